//! The suite every register has to pass. A failure is a panic that says what was expected.

mod faults;
mod proxy;
mod races;
mod values;

use std::sync::Arc;
use std::time::Duration;

pub use faults::{Fault, FaultyFiles, FaultyRegister};
pub use proxy::FaultyProxy;

use crate::{BoxFuture, LoadError, Register, RegisterVersion, SwapError, VersionedValue};

/// What a case waits for comes long before this, or never.
const DEADLINE: Duration = Duration::from_secs(120);

/// How a case gets its register, which has no value at first.
pub trait Bed: Send + Sync {
    /// One more handle on the register, as another process would have one: it shares nothing with the others.
    fn open(&self) -> BoxFuture<'_, Arc<dyn Register>>;

    /// The same, behind something that loses requests or answers.
    fn open_faulty(&self) -> BoxFuture<'_, FaultyRegister>;
}

/// A case: its name, and what it does with a bed of its own.
pub type Case = (&'static str, for<'a> fn(&'a dyn Bed) -> BoxFuture<'a, ()>);

/// All cases. Each wants a new bed.
pub const CASES: &[Case] = &[
    ("first_swap", |bed| Box::pin(values::first_swap(bed))),
    ("other_handles_see_it", |bed| {
        Box::pin(values::other_handles_see_it(bed))
    }),
    ("stale_versions_conflict", |bed| {
        Box::pin(values::stale_versions_conflict(bed))
    }),
    ("odd_values", |bed| Box::pin(values::odd_values(bed))),
    ("too_large_a_value", |bed| {
        Box::pin(values::too_large_a_value(bed))
    }),
    ("one_first_swap_wins", |bed| {
        Box::pin(races::one_first_swap_wins(bed))
    }),
    ("one_swap_of_a_version_wins", |bed| {
        Box::pin(races::one_swap_of_a_version_wins(bed))
    }),
    ("one_handle_serves_many", |bed| {
        Box::pin(races::one_handle_serves_many(bed))
    }),
    ("no_increment_is_lost", |bed| {
        Box::pin(races::no_increment_is_lost(bed))
    }),
    ("loads_never_go_back", |bed| {
        Box::pin(races::loads_never_go_back(bed))
    }),
    ("a_lost_answer_is_unknown", |bed| {
        Box::pin(faults::a_lost_answer_is_unknown(bed))
    }),
    ("a_lost_connection_is_unknown", |bed| {
        Box::pin(faults::a_lost_connection_is_unknown(bed))
    }),
    ("a_lost_request_is_no_conflict", |bed| {
        Box::pin(faults::a_lost_request_is_no_conflict(bed))
    }),
];

/// Runs all cases, each with a bed that `bed` makes.
pub async fn run<B: Bed>(mut bed: impl AsyncFnMut(&'static str) -> B) {
    for (name, case) in CASES {
        eprintln!("case {name}");
        case(&bed(name).await).await;
    }
}

async fn load(register: &dyn Register) -> Option<VersionedValue> {
    // A store that is busy with the rest of a case may be late.
    within("a load", async {
        loop {
            match register.load().await {
                Ok(found) => return found,
                Err(LoadError::Unavailable { .. }) => tokio::task::yield_now().await,
                Err(error) => panic!("a load: {error}"),
            }
        }
    })
    .await
}

/// A swap that has to succeed.
async fn swap(
    register: &dyn Register,
    expected: Option<RegisterVersion>,
    value: &[u8],
) -> RegisterVersion {
    let swapped = register.swap(expected, value.to_vec()).await;
    let version = swapped.unwrap_or_else(|error| panic!("a swap of {expected:?}: {error}"));
    assert!(
        Some(version) > expected,
        "version {version} follows {expected:?}"
    );
    version
}

/// A swap that has to conflict with this version.
async fn conflicts(
    register: &dyn Register,
    expected: Option<RegisterVersion>,
    with: Option<RegisterVersion>,
) {
    match register.swap(expected, b"a stale value".to_vec()).await {
        Err(SwapError::Conflict { found, .. }) => assert_eq!(found, with, "what it conflicts with"),
        other => panic!("a swap of {expected:?} over {with:?} ends with {other:?}"),
    }
}

fn is_conflict(result: &Result<RegisterVersion, SwapError>) -> bool {
    matches!(result, Err(SwapError::Conflict { .. }))
}

async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    match tokio::time::timeout(DEADLINE, work).await {
        Ok(result) => result,
        Err(_) => panic!("{what}: not within {DEADLINE:?}"),
    }
}
