//! Three points in time that only go forward, and what they allow: how far back transactions may reach, and
//! what may be collected.
//!
//! - **Barrier**: nobody reads, prewrites or begins below it.
//! - **Safe point**: versions that no snapshot at or above it sees may go. Never above the barrier.
//! - **Resolved**: no lock is left, in any tablet, of a transaction that began below it, except those whose commit lies
//!   above it. Records of commits below it may go; of others that the safe point has passed the fate stays. Never above
//!   the safe point.
//!
//! To bring all to T: the master makes the barrier T durable; every tablet server takes it, durably, and refuses from
//! then on what is below; then it resolves, in its own tablets, every lock of a transaction that began below T, or pushes
//! the commit of a live owner above T, and reports T as its resolved timestamp ([`covered`]); when every tablet is covered
//! by such a report, resolved and the safe point are T, durable; then tablet servers collect. Where a report stays away,
//! as that of a server that is down, the safe point follows the barrier alone ([`Points::moved`]).
//!
//! # Why it is sound
//! A snapshot that misses a version would have to be read below the safe point, as everything that a snapshot at or
//! above the safe point sees stays ([`crate::actions::gc`]). Each tablet server collects only up to a safe point that
//! its own barrier has reached, and refuses reads below its own barrier. So no read depends on a gc-lock, a
//! lease or a clock: these are there so that live transactions are not refused.
//!
//! A write conflict that is missed would need a prewrite below the safe point, to which records above its start_ts
//! have been lost: the same barrier refuses it. (So a gc-lock is held until the last prewrite is in place,
//! not until the reads end: a delete that was committed after the snapshot and collected meanwhile would hide
//! the conflict.)
//!
//! A lock whose fate nobody knows any more would need its primary's record to be collected before it is
//! resolved. The record of a transaction S that committed at C goes only where resolved is above C, so above S:
//! then all locks of S were resolved in every tablet, after the barrier of its owner had passed S, so that none
//! came later. (A report names the tablets that it is about, and one that is in no report holds resolved back: a
//! tablet on its way between two owners, or one that its owner has lost. TiDB once asked servers instead of tablets, and
//! missed the locks of a region that moved meanwhile: tidb#22245.) While S is alive its primary holds its lock, which is
//! no record; and as its commit is pushed above T, what is collected up to T can't be its commit record.
//!
//! Where the safe point is above resolved, a record of a commit between them that no snapshot needs is replaced by its fate:
//! a record of a lock, with the same start_ts and commit_ts and without a value ([`crate::actions::gc`]). It says that S
//! committed, and at which time, so anyone who meets a lock of S learns the same as from the record. A delete that is a
//! cell's newest record stays as it is. All other rules use start_ts and commit_ts alone, or the newest put or delete,
//! which stays. Fates go when resolved has passed them. What is in the way of resolved doesn't matter: a server that is
//! down, with any locks; a server that can't resolve its locks because their primaries are on the one that is down; a
//! tablet that was lost, whose folder may come back. A server that comes back with an older barrier refuses and
//! collects by that one, until it has taken the newer points.
//!
//! A pipelined transaction's locks are resolved at the tablets without a list of them, and a late prewrite of one that
//! was rolled back may leave a lock behind that. It is met when locks below the barrier are resolved, as others
//! are; until the safe point has passed S, the rollback's record stands at the primary, and after that nothing is found there,
//! which says the same.
//!
//! The record of a rollback may go earlier, and leaves no fate: an owner that was alive when the safe point passed S
//! may die, and be rolled back by a reader that clears some of its locks. Anyone who meets another one of them finds nothing
//! at the primary. That says enough: had S committed, the record would be there as long as that lock is. So it clears
//! the lock as one that was rolled back. Should the lock have been resolved since it was met, this changes
//! nothing: a commit's record in its place refuses the rollback, and where that was collected too, [`TooOld`]
//! does.
//!
//! The same decides when the tablets of a deleted table D may go, which alone know what became of transactions whose
//! primary lies there. They are frozen first: from then on no such transaction commits, so that all of them that did
//! began below F, a timestamp that was taken when the last tablet was frozen. When resolved has reached F, no lock of
//! theirs is left anywhere, and the tablets are dropped. A lock that is met later and names a primary in D is that of a
//! transaction that never committed.
//!
//! A request without a lock learns nothing: a paused client that asks for its commit again, or a request
//! for an outcome. Where neither lock nor record of S is found and S is below the safe point, the answer is [`TooOld`],
//! never "rolled back" ([`Points::recall`]).

use std::time::Duration;

use crate::actions::{CellView, OwnRecord};
use crate::mutants::{self, Mutant};
use crate::types::Timestamp;

/// The three points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Points {
    /// The read barrier: no transaction reads, prewrites or begins below it.
    pub barrier: Timestamp,
    /// Versions that no snapshot at or above it sees may be collected.
    pub safe_point: Timestamp,
    /// No lock is left anywhere of a transaction that began below it, except those whose commit lies above it.
    pub resolved: Timestamp,
}

/// A transaction or snapshot lies below a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{start_ts} is too old: what is below {barrier} may be collected")]
pub struct TooOld {
    /// Its start_ts.
    pub start_ts: Timestamp,
    /// The point: the barrier where something was to be read or prewritten, the safe point where it
    /// was asked what became of the transaction.
    pub barrier: Timestamp,
}

impl Points {
    /// All as far as either has them.
    #[must_use]
    pub fn raised(self, to: Self) -> Self {
        let barrier = self.barrier.max(to.barrier);
        // Anyone who sends a safe point has sent its barrier before; if not, it waits for that.
        let safe_point = if to.safe_point <= barrier {
            self.safe_point.max(to.safe_point)
        } else {
            self.safe_point
        };
        // Resolved is a fact about all tablets, from any server. It has no use above the safe point.
        let resolved = self.resolved.max(to.resolved).min(safe_point);
        Self {
            barrier,
            safe_point,
            resolved,
        }
    }

    /// The safe point and resolved, moved by what is [`covered`]. `is_stuck`: resolved has not moved for so long that
    /// collection doesn't wait for it.
    #[must_use]
    pub fn moved(self, covered: Option<Timestamp>, is_stuck: bool) -> Self {
        let covered = covered.unwrap_or_default().min(self.barrier);
        let resolved = self.resolved.max(covered);
        let to = if is_stuck { self.barrier } else { resolved };
        Self {
            safe_point: self.safe_point.max(to),
            resolved,
            ..self
        }
    }

    /// Whether the fate of a transaction that committed at this time may still be asked for by somebody who meets a lock of
    /// it.
    pub fn needs_fate(&self, commit_ts: Timestamp) -> bool {
        commit_ts >= self.resolved && !mutants::on(Mutant::FateCollected)
    }

    /// Whether a snapshot at start_ts may be read.
    ///
    /// # Errors
    /// It is below the barrier.
    pub fn admit_read(&self, start_ts: Timestamp) -> Result<(), TooOld> {
        if mutants::on(Mutant::BarrierNotEnforcedAtReads) {
            Ok(())
        } else {
            below(start_ts, self.barrier)
        }
    }

    /// Whether a transaction that began at start_ts may lock cells.
    ///
    /// # Errors
    /// It is below the barrier.
    pub fn admit_prewrite(&self, start_ts: Timestamp) -> Result<(), TooOld> {
        if mutants::on(Mutant::BarrierNotEnforcedAtPrewrite) {
            Ok(())
        } else {
            below(start_ts, self.barrier)
        }
    }

    /// Whether what the view shows of the transaction is all that there was.
    ///
    /// # Errors
    /// Nothing is found of it, and its records may have been collected.
    pub fn recall(&self, view: &CellView, start_ts: Timestamp) -> Result<(), TooOld> {
        let found = view.own != OwnRecord::None || view.own_lock(start_ts).is_some();
        if found || mutants::on(Mutant::CollectedIsRolledBack) {
            Ok(())
        } else {
            below(start_ts, self.safe_point)
        }
    }
}

fn below(start_ts: Timestamp, point: Timestamp) -> Result<(), TooOld> {
    if start_ts < point {
        return Err(TooOld {
            start_ts,
            barrier: point,
        });
    }
    Ok(())
}

/// How long versions are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionPolicy {
    /// Whether they are read or not.
    pub retention: Duration,
    /// For a gc-lock, at most; `None`: for as long as it is held. Shorter than the retention, it has no effect.
    pub hold_max: Option<Duration>,
}

/// The highest permitted barrier at the oracle's time `now`: transactions live for the retention without being
/// asked, and anyone who holds a gc-lock, of which `lowest` is the lowest, for as long as it does and may.
pub fn barrier(now: Timestamp, policy: RetentionPolicy, lowest: Option<Timestamp>) -> Timestamp {
    let before = |time: Duration| {
        let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Timestamp::from_millis(now.physical_ms().saturating_sub(ms))
    };
    let retention = if mutants::on(Mutant::RetentionCutShort) {
        policy.retention / 10
    } else {
        policy.retention
    };
    let oldest = before(retention);
    let longest = policy.hold_max.map_or(Timestamp::ZERO, before);
    lowest.map_or(oldest, |lowest| lowest.max(longest).min(oldest))
}

/// How far the safe point may go by what the owners of tablets report. `resolved` has one entry for each tablet whose rows
/// are in use: up to where its owner has resolved the locks there, by a report that names this tablet, or `None` where
/// there is no such report. `None`: it may not move, and there is no tablet at all, or one of which nothing is known.
pub fn covered(resolved: impl Iterator<Item = Option<Timestamp>>) -> Option<Timestamp> {
    if mutants::on(Mutant::CoveredByOneTablet) {
        return resolved.flatten().max();
    }
    let mut lowest = None;
    for resolved_ts in resolved {
        let resolved_ts = resolved_ts?;
        lowest = Some(lowest.map_or(resolved_ts, |lowest: Timestamp| lowest.min(resolved_ts)));
    }
    lowest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ts(ts: u64) -> Timestamp {
        Timestamp::from_u64(ts)
    }

    fn points(barrier: u64, safe_point: u64) -> Points {
        Points {
            barrier: ts(barrier),
            safe_point: ts(safe_point),
            resolved: ts(safe_point),
        }
    }

    #[test]
    fn points_only_go_forward_and_ready_never_passes_the_barrier() {
        let now = points(10, 5);
        assert_eq!(now.raised(points(8, 4)), now);
        assert_eq!(now.raised(points(12, 7)), points(12, 7));
        assert_eq!(now.raised(points(8, 10)), points(10, 10));
        // A safe point beyond every barrier that is known waits, and resolved with it.
        assert_eq!(now.raised(points(8, 11)), now);
    }

    #[test]
    fn the_safe_point_goes_on_alone_where_resolved_is_stuck() {
        let now = points(10, 5);
        assert_eq!(now.moved(Some(ts(7)), false), points(10, 7));
        assert_eq!(now.moved(Some(ts(12)), false), points(10, 10));
        assert_eq!(now.moved(None, false), now);
        let alone = now.moved(None, true);
        let resolved = ts(5);
        assert_eq!(
            alone,
            Points {
                resolved,
                ..points(10, 10)
            }
        );
        assert!(alone.needs_fate(ts(5)) && !alone.needs_fate(ts(4)));
        // What is resolved later is below the safe point, which stays.
        let later = alone.moved(Some(ts(8)), false);
        assert_eq!((later.safe_point, later.resolved), (ts(10), ts(8)));
        assert_eq!(later.moved(Some(ts(10)), false), points(10, 10));
        assert_eq!(now.raised(alone), alone);
        assert_eq!(alone.raised(now), alone);
    }

    #[test]
    fn what_began_at_the_barrier_is_admitted_and_what_began_below_is_not() {
        let now = points(10, 5);
        assert_eq!(now.admit_read(ts(10)), Ok(()));
        let error = now.admit_prewrite(ts(9)).unwrap_err();
        assert_eq!((error.start_ts, error.barrier), (ts(9), ts(10)));
        assert_eq!(now.admit_read(ts(9)), Err(error));
    }

    #[test]
    fn nothing_found_of_a_transaction_below_ready_is_no_answer() {
        let mut view = CellView::load(
            None,
            ts(4),
            None,
            std::iter::empty::<Result<_, std::convert::Infallible>>(),
        )
        .unwrap();
        let now = points(10, 5);
        assert_eq!(now.recall(&view, ts(4)).unwrap_err().barrier, ts(5));
        assert_eq!(now.recall(&view, ts(5)), Ok(()));
        view.own = OwnRecord::RolledBack;
        assert_eq!(now.recall(&view, ts(4)), Ok(()));
    }

    #[test]
    fn the_barrier_is_held_by_the_retention_and_by_the_lowest_gc_lock() {
        let at = Timestamp::from_millis;
        let keep = |hold_max: Option<u64>| RetentionPolicy {
            retention: Duration::from_secs(10),
            hold_max: hold_max.map(Duration::from_secs),
        };
        assert_eq!(barrier(at(15_000), keep(None), None), at(5_000));
        assert_eq!(barrier(at(15_000), keep(None), Some(at(4_000))), at(4_000));
        assert_eq!(barrier(at(15_000), keep(None), Some(at(9_000))), at(5_000));
        // The cluster is younger than the retention.
        assert_eq!(barrier(at(5_000), keep(None), None), Timestamp::ZERO);
        // A gc-lock that is held for too long, and a limit below the retention.
        assert_eq!(
            barrier(at(15_000), keep(Some(12)), Some(at(1_000))),
            at(3_000)
        );
        assert_eq!(
            barrier(at(15_000), keep(Some(12)), Some(at(4_000))),
            at(4_000)
        );
        assert_eq!(
            barrier(at(15_000), keep(Some(1)), Some(at(4_000))),
            at(5_000)
        );
    }

    #[test]
    fn a_tablet_without_a_report_holds_the_safe_point_back() {
        assert_eq!(covered([Some(ts(5)), Some(ts(7))].into_iter()), Some(ts(5)));
        assert_eq!(covered([Some(ts(5)), None].into_iter()), None);
        assert_eq!(covered(std::iter::empty()), None);
    }
}
