//! Notifications: which changes observers have still to see (paper, section 2.4).
//!
//! A commit of a put or a delete on an observed column leaves a notification of its cell. It is written in the same atomic
//! batch as the write record, by the server that has the cell: no crash comes between the two.
//!
//! The transaction of an observer acknowledges it by a lock (`get_for_update`) of a hidden cell of the same row, see
//! [`ack_column`](crate::types::ack_column). A lock conflicts with other locks, shows no value to readers, and is collected
//! as other records are. The rules are:
//! - It is prewritten only if a change waits that its snapshot has seen ([`may_acknowledge`]).
//! - When it commits, the notification goes if its snapshot has seen the last change. Otherwise that one waits on ([`left`]).
//!
//! So at most one transaction commits for a change: of two at a time one conflicts on the hidden cell, and one that begins after
//! the other has committed needs a change that the other has not seen. And none is lost: what the snapshot has not seen waits on.
//! A cell that changes all the time holds no run up: what it changes to while a run goes on is another run's.
//!
//! The observer reads the changed cell at its snapshot before it commits. After that no commit of that cell comes at or below
//! the snapshot, so that no notification does either.

use crate::mutants::{self, Mutant};
use crate::types::{Chain, Effect, Notification, Timestamp, WriteKind};

/// No change waits that the snapshot of an acknowledging transaction has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotNotified {
    /// When the cell changed after the snapshot, if it did. `None`: nothing waits, so another transaction has acknowledged it.
    pub changed_at: Option<Timestamp>,
}

/// Whether the effects of a commit on an observed cell change it; when it committed.
pub fn changed_at(effects: &[Effect]) -> Option<Timestamp> {
    record(effects, |kind| {
        matches!(kind, WriteKind::Put | WriteKind::Delete)
    })
}

/// Whether the effects of a commit on a hidden cell are those of an acknowledgement.
pub fn acknowledges(effects: &[Effect]) -> bool {
    record(effects, |kind| kind == WriteKind::Lock).is_some()
}

fn record(effects: &[Effect], is_it: impl Fn(WriteKind) -> bool) -> Option<Timestamp> {
    effects.iter().find_map(|effect| match effect {
        Effect::PutWrite(ts, write) if is_it(write.kind) => Some(*ts),
        _ => None,
    })
}

/// What waits after this change of the cell, beside what waited before: several changes are one notification, from the first to the
/// last one, and with the longest of their chains. So a loop of observers is found also if others change its cells.
pub fn notify(waiting: Option<Notification>, change: Notification) -> Notification {
    let Some(waiting) = waiting else {
        return change;
    };
    Notification {
        first_at: waiting.first_at.min(change.first_at),
        changed_at: waiting.changed_at.max(change.changed_at),
        chain: waiting.chain.deeper(change.chain),
    }
}

/// The change that a commit makes of an observed cell. `chain`: that of its transaction.
pub fn change(changed_at: Timestamp, chain: Option<&Chain>) -> Notification {
    Notification {
        first_at: changed_at,
        changed_at,
        chain: chain.cloned().unwrap_or_default(),
    }
}

/// Whether a transaction that began at `start_ts` may prewrite its acknowledgement.
///
/// # Errors
/// Nothing waits that it has seen.
pub fn may_acknowledge(
    waiting: Option<&Notification>,
    start_ts: Timestamp,
) -> Result<(), NotNotified> {
    let changed_at = waiting.map(|waiting| waiting.first_at);
    if changed_at.is_some_and(|changed_at| changed_at <= start_ts)
        || mutants::on(Mutant::AckNotChecked)
    {
        return Ok(());
    }
    Err(NotNotified { changed_at })
}

/// What waits on behind the commit of an acknowledgement by a transaction that began at `start_ts`: if anything, the last change.
/// Of those between, a run that sees the last one sees what they came to.
pub fn left(waiting: Notification, start_ts: Timestamp) -> Option<Notification> {
    if waiting.changed_at <= start_ts || mutants::on(Mutant::AckHidesLaterChange) {
        return None;
    }
    Some(Notification {
        first_at: waiting.changed_at,
        ..waiting
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{TableId, Write};
    use bytes::Bytes;

    fn ts(number: u64) -> Timestamp {
        Timestamp::from_u64(number)
    }

    fn waiting(number: u64) -> Option<Notification> {
        Some(change(ts(number), None))
    }

    #[test]
    fn puts_and_deletes_notify_and_locks_acknowledge() {
        let effects = |kind| {
            let write = Write {
                kind,
                start_ts: ts(1),
                short_value: None,
                overlapped_rollback: false,
            };
            [Effect::PutWrite(ts(2), write), Effect::DeleteLock]
        };
        assert_eq!(changed_at(&effects(WriteKind::Put)), Some(ts(2)));
        assert_eq!(changed_at(&effects(WriteKind::Delete)), Some(ts(2)));
        assert_eq!(changed_at(&effects(WriteKind::Lock)), None);
        assert_eq!(changed_at(&effects(WriteKind::Rollback)), None);
        assert_eq!(changed_at(&[Effect::DeleteLock]), None);
        assert!(acknowledges(&effects(WriteKind::Lock)));
        assert!(!acknowledges(&effects(WriteKind::Put)));
    }

    #[test]
    fn several_changes_are_one_notification_from_the_first_to_the_last() {
        let notified = |before, changed_at| Some(notify(before, change(ts(changed_at), None)));
        assert_eq!(notified(None, 5), waiting(5));
        assert_eq!(notified(waiting(5), 9), Some(several(5, 9)));
        assert_eq!(notified(waiting(9), 5), Some(several(5, 9)));
        assert_eq!(notified(Some(several(5, 9)), 7), Some(several(5, 9)));
    }

    fn several(first: u64, last: u64) -> Notification {
        Notification {
            first_at: ts(first),
            ..change(ts(last), None)
        }
    }

    /// A run goes on while the cell changes, and commits.
    #[test]
    fn a_cell_that_changes_all_the_time_is_run_for() {
        let mut waits = several(5, 5);
        for begins in [6, 16, 26] {
            // Another one that sees nothing new is refused.
            assert!(may_acknowledge(Some(&waits), ts(begins - 2)).is_err());
            waits = notify(Some(waits), change(ts(begins + 5), None));
            waits = notify(Some(waits), change(ts(begins + 9), None));
            assert_eq!(may_acknowledge(Some(&waits), ts(begins)), Ok(()));
            waits = left(waits, ts(begins)).expect("what it has not seen");
            assert_eq!(waits, several(begins + 9, begins + 9));
        }
    }

    #[test]
    fn several_changes_have_the_longest_of_their_chains() {
        let first = Chain::default().then(TableId(1), &Bytes::from("c"));
        let second = first.then(TableId(1), &Bytes::from("c"));
        let long = notify(
            Some(change(ts(5), Some(&second))),
            change(ts(9), Some(&first)),
        );
        assert_eq!(long.chain, second);
        let by_a_writer = notify(Some(long), change(ts(10), None));
        assert_eq!(by_a_writer.chain, second);
        assert_eq!(notify(None, change(ts(11), None)).chain, Chain::default());
    }

    #[test]
    fn only_what_the_snapshot_has_seen_is_acknowledged() {
        assert_eq!(may_acknowledge(waiting(5).as_ref(), ts(5)), Ok(()));
        assert_eq!(may_acknowledge(waiting(5).as_ref(), ts(6)), Ok(()));
        let later = NotNotified {
            changed_at: Some(ts(7)),
        };
        assert_eq!(may_acknowledge(waiting(7).as_ref(), ts(6)), Err(later));
        let nothing = NotNotified { changed_at: None };
        assert_eq!(may_acknowledge(None, ts(6)), Err(nothing));
        let left = |changed: u64, start: u64| left(change(ts(changed), None), ts(start));
        assert_eq!((left(5, 5), left(5, 6)), (None, None));
        assert_eq!(left(7, 6), waiting(7));
    }
}
