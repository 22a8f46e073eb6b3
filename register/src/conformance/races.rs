//! Several at a time: of two swaps of one version, one wins.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::join_all;
use tokio::sync::Barrier;

use super::{Bed, is_conflict, load, swap, within};
use crate::{Register, RegisterVersion, SwapError};

const SWAPPERS: u8 = 4;
const ROUNDS: u8 = 25;
const INCREMENTS: u64 = 15;

async fn handles(bed: &dyn Bed) -> Vec<Arc<dyn Register>> {
    let mut handles = Vec::new();
    for _ in 0..SWAPPERS {
        handles.push(bed.open().await);
    }
    handles
}

pub(super) async fn one_first_swap_wins(bed: &dyn Bed) {
    let registers = handles(bed).await;
    round(&registers, None, 0).await;
}

pub(super) async fn one_swap_of_a_version_wins(bed: &dyn Bed) {
    let registers = handles(bed).await;
    let mut version = swap(&*registers[0], None, b"").await;
    for number in 0..ROUNDS {
        version = round(&registers, Some(version), number).await;
    }
}

/// What a store tells apart by handle, as locks of files, must not let two swaps of one handle through.
pub(super) async fn one_handle_serves_many(bed: &dyn Bed) {
    let registers = vec![bed.open().await; usize::from(SWAPPERS)];
    let mut version = swap(&*registers[0], None, b"").await;
    for number in 0..ROUNDS {
        version = round(&registers, Some(version), number).await;
    }
}

/// All swap the same version at a time. Gives the winner's.
async fn round(
    registers: &[Arc<dyn Register>],
    expected: Option<RegisterVersion>,
    number: u8,
) -> RegisterVersion {
    let barrier = Arc::new(Barrier::new(registers.len()));
    let tasks = registers.iter().zip(0_u8..).map(|(register, swapper)| {
        let (register, barrier) = (register.clone(), barrier.clone());
        tokio::spawn(async move {
            barrier.wait().await;
            register.swap(expected, vec![number, swapper]).await
        })
    });
    let results = within("a round of swaps", join_all(tasks)).await;
    let results: Vec<_> = results
        .into_iter()
        .map(|task| task.expect("a task"))
        .collect();
    let won: Vec<_> = (0_u8..)
        .zip(&results)
        .filter_map(|(swapper, result)| Some((swapper, *result.as_ref().ok()?)))
        .collect();
    let lost = results.iter().filter(|result| is_conflict(result)).count();
    let [(winner, version)] = won[..] else {
        panic!("one swap of {expected:?} has to win: {results:?}");
    };
    assert_eq!(
        lost,
        registers.len() - 1,
        "all others conflict: {results:?}"
    );
    assert!(Some(version) > expected, "{version} follows {expected:?}");
    let found = load(&*registers[0]).await.expect("a value");
    let stored = (&*found.value, found.version);
    assert_eq!(stored, (&[number, winner][..], version));
    version
}

/// Each adds to a number until it has done so often enough. What was acknowledged, is there in the end.
pub(super) async fn no_increment_is_lost(bed: &dyn Bed) {
    let registers = handles(bed).await;
    let tasks = registers.iter().map(|register| {
        let register = register.clone();
        tokio::spawn(async move {
            let mut versions = Vec::new();
            while versions.len() < INCREMENTS as usize {
                versions.extend(increment(&*register).await);
            }
            versions
        })
    });
    let results = within("all increments", join_all(tasks)).await;
    let mut all = Vec::new();
    for versions in results {
        let versions = versions.expect("a task");
        assert!(versions.is_sorted(), "of one swapper: {versions:?}");
        all.extend(versions);
    }
    let last = load(&*registers[0]).await.expect("a value");
    assert_eq!(number(&last.value), INCREMENTS * u64::from(SWAPPERS));
    all.sort_unstable();
    assert_eq!(all.last(), Some(&last.version));
    let count = all.len();
    all.dedup();
    assert_eq!(all.len(), count, "no version was given out twice");
}

fn number(value: &[u8]) -> u64 {
    u64::from_le_bytes(value.try_into().expect("a number"))
}

async fn increment(register: &dyn Register) -> Option<RegisterVersion> {
    let found = load(register).await;
    let expected = found.as_ref().map(|found| found.version);
    let next = found.map_or(0, |found| number(&found.value)) + 1;
    match register.swap(expected, next.to_le_bytes().to_vec()).await {
        Ok(version) => Some(version),
        Err(SwapError::Conflict { found, .. }) => {
            assert!(found > expected, "{found:?} is later than {expected:?}");
            None
        }
        Err(error) => panic!("an increment: {error}"),
    }
}

/// Readers see each value at its version, and no older one after a newer one, while another handle swaps.
pub(super) async fn loads_never_go_back(bed: &dyn Bed) {
    let writer = bed.open().await;
    let mut version = swap(&*writer, None, &0_u64.to_le_bytes()).await;
    let done = Arc::new(AtomicBool::new(false));
    let readers = handles(bed).await;
    let readers = readers.into_iter().map(|register| {
        let done = done.clone();
        tokio::spawn(async move {
            let mut last = (RegisterVersion(0), 0);
            while !done.load(Ordering::Relaxed) {
                let found = load(&*register).await.expect("a value");
                let now = (found.version, number(&found.value));
                let is_same = now == last;
                let is_later = now.0 > last.0 && now.1 >= last.1;
                assert!(is_same || is_later, "{now:?} after {last:?}");
                last = now;
            }
        })
    });
    let readers: Vec<_> = readers.collect();
    let own = bed.open().await;
    for next in 1..=u64::from(ROUNDS) {
        version = swap(&*writer, Some(version), &next.to_le_bytes()).await;
        let found = load(&*own).await.expect("a value");
        assert_eq!((found.version, number(&found.value)), (version, next));
    }
    done.store(true, Ordering::Relaxed);
    for reader in within("the readers' end", join_all(readers)).await {
        reader.expect("a reader");
    }
}
