//! One after the other: what is stored, is loaded.

use super::{Bed, Fault, conflicts, load, swap};
use crate::{RegisterVersion, SwapError, VALUE_BYTES_MAX};

pub(super) async fn first_swap(bed: &dyn Bed) {
    let register = bed.open().await;
    assert_eq!(load(&*register).await, None);
    // Versions are not made up by those who expect them.
    for version in [0, 1] {
        conflicts(&*register, Some(RegisterVersion(version)), None).await;
    }
    assert_eq!(load(&*register).await, None);
    let version = swap(&*register, None, b"one").await;
    let found = load(&*register).await.expect("a value");
    assert_eq!((&*found.value, found.version), (&b"one"[..], version));
    conflicts(&*register, None, Some(version)).await;
    assert_eq!(load(&*register).await, Some(found));
}

pub(super) async fn other_handles_see_it(bed: &dyn Bed) {
    let registers = [bed.open().await, bed.open().await, bed.open().await];
    let mut expected = None;
    for round in 0..10_u8 {
        let at = usize::from(round) % registers.len();
        let version = swap(&*registers[at], expected, &[round]).await;
        for register in &registers {
            let found = load(&**register).await.expect("a value");
            assert_eq!((&*found.value, found.version), (&[round][..], version));
        }
        expected = Some(version);
    }
    let later = bed.open().await;
    assert_eq!(load(&*later).await, load(&*registers[0]).await);
}

pub(super) async fn stale_versions_conflict(bed: &dyn Bed) {
    let (ours, other) = (bed.open().await, bed.open().await);
    let first = swap(&*ours, None, b"one").await;
    let second = swap(&*other, Some(first), b"two").await;
    let odd = [0, second.0 + 1, u64::MAX].map(|version| Some(RegisterVersion(version)));
    for expected in [None, Some(first)].into_iter().chain(odd) {
        conflicts(&*ours, expected, Some(second)).await;
        let found = load(&*ours).await.expect("a value");
        assert_eq!((&*found.value, found.version), (&b"two"[..], second));
    }
    swap(&*ours, Some(second), b"three").await;
    conflicts(&*other, Some(second), load_version(bed).await).await;
}

async fn load_version(bed: &dyn Bed) -> Option<RegisterVersion> {
    let register = bed.open().await;
    load(&*register).await.map(|found| found.version)
}

/// Empty, not UTF-8, the same once more, and as large as may be.
pub(super) async fn odd_values(bed: &dyn Bed) {
    let (ours, other) = (bed.open().await, bed.open().await);
    let all: Vec<u8> = (0..=u8::MAX).collect();
    let large: Vec<u8> = (0..VALUE_BYTES_MAX)
        .map(|at| (at * 7 % 251) as u8)
        .collect();
    let mut expected = None;
    for value in [&b""[..], b"", b"\0", &all, &large, &large, b""] {
        let version = swap(&*ours, expected, value).await;
        let found = load(&*other).await.expect("a value");
        assert!(found.value == value, "a value of {} bytes", value.len());
        assert_eq!(found.version, version);
        expected = Some(version);
    }
}

/// Nothing is sent: an answer would not come.
pub(super) async fn too_large_a_value(bed: &dyn Bed) {
    let register = bed.open().await;
    let version = swap(&*register, None, b"one").await;
    let faulty = bed.open_faulty().await;
    load(&*faulty.register).await;
    faulty.set(Fault::RequestsLost);
    for expected in [None, Some(version)] {
        let value = vec![0; VALUE_BYTES_MAX + 1];
        let error = faulty.register.swap(expected, value).await;
        let too_large = SwapError::TooLarge {
            bytes: VALUE_BYTES_MAX + 1,
            bytes_max: VALUE_BYTES_MAX,
        };
        assert_eq!(error, Err(too_large));
    }
    let found = load(&*register).await.expect("a value");
    assert_eq!((&*found.value, found.version), (&b"one"[..], version));
}
