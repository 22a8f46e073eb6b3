//! Commit in one phase: where one server holds every cell of a transaction, one atomic step can do what
//! a prewrite and a commit do in two.
//!
//! A lock stops readers while the commit_ts is taken. Without one, the commit_ts is taken
//! first, and the server has to know that no snapshot at or above it has read the row meanwhile: that
//! snapshot has seen the row without the change. (TiKV does the same by one highest read timestamp a store,
//! RFC 0067; here it is kept by row, so that one reader doesn't send every writer the long way.)
//!
//! From the decision until its batch can be read, a reader at or above commit_ts has to wait: that is the
//! caller's to see to. So is that the server knows of every read since commit_ts was asked for: a server that
//! was started, or has taken the row over, after that doesn't.

use super::{CellView, Prewrite, PrewriteRejection, commit, prewrite};
use crate::mutants::{self, Mutant};
use crate::types::{Effect, Mutation, Timestamp};

/// The reason why a cell was not committed in one phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnePhaseRejection {
    /// It can't be locked either.
    Prewrite(PrewriteRejection),
    /// It can be locked, and committed at a later commit_ts: a snapshot at or above this one has read the
    /// row, or the cell is locked by this transaction already, or the commit_ts is another's.
    TwoPhases,
}

/// Commits a mutation of `txn` at `commit_ts`, which `view` was loaded for. `read_ts` is at least the
/// highest snapshot that has read the row.
///
/// # Errors
/// The rejection; nothing is to be written then, for any cell of the transaction.
///
/// # Panics
/// When commit_ts isn't above start_ts.
#[allow(
    clippy::result_large_err,
    reason = "one a cell, and taken apart at once; a box would cost more than it saves"
)]
pub fn one_phase(
    view: &CellView,
    mutation: &Mutation,
    txn: &Prewrite,
    commit_ts: Timestamp,
    read_ts: Timestamp,
) -> Result<Vec<Effect>, OnePhaseRejection> {
    let mut effects =
        prewrite(view, mutation, txn, Timestamp::ZERO).map_err(OnePhaseRejection::Prewrite)?;
    // A late copy of the request finds the locks of its second try: those are committed in two phases.
    let was_read = read_ts >= commit_ts && !mutants::on(Mutant::OnePhaseIgnoresReads);
    if view.lock.is_some() || was_read {
        return Err(OnePhaseRejection::TwoPhases);
    }
    let lock = effects.iter().find_map(|effect| match effect {
        Effect::PutLock(lock) => Some(lock.clone()),
        _ => None,
    });
    let locked = CellView {
        lock,
        ..view.clone()
    };
    let (committed, outcome) = commit(&locked, txn.start_ts, commit_ts);
    if outcome.is_err() {
        return Err(OnePhaseRejection::TwoPhases);
    }
    effects.extend(committed);
    effects.retain(|effect| !matches!(effect, Effect::PutLock(_) | Effect::DeleteLock));
    Ok(effects)
}
