//! An error says what is so. No request of the client library's is one that no server could take; a conflict is one with a
//! transaction that has committed (`protocol/src/actions/prewrite.rs`); only what was sent to be committed has an unknown
//! outcome; and where nothing fails, nothing does but for conflicts, and nothing takes long.

use std::collections::BTreeMap;
use std::time::Duration;

use percolator_client::{Conflict, Error, Timestamp};

use crate::history::{End, Record};
use crate::plan::{Fault, Plan};
use crate::recorder::Session;
use crate::trace::shown;

/// Its name.
pub(crate) const NAME: &str = "errors are true";
/// Faults that are none to a client that waits for a while.
pub(crate) const HARMLESS: [Fault; 4] = [
    Fault::JoinLater,
    Fault::SplitAndMerge,
    Fault::MoveTablets,
    Fault::Burst,
];
/// A client that tries for less may give up before a crowd has gone.
const TRIES_MIN: Duration = Duration::from_secs(5);
/// A lock that lives for less may end before its transaction does.
const LOCKS_LIVE_MIN: Duration = Duration::from_secs(1);
/// Workloads that delete their tables.
const DELETING: [&str; 2] = ["again", "tables"];
/// What a worker does at a time, with every pause that it makes.
const STEP_MAX: Duration = Duration::from_secs(5);

/// The transaction that had committed first, as the error says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConflictSeen {
    with_start_ts: Timestamp,
    with_commit_ts: Timestamp,
}

impl Plan {
    /// Whether nothing fails.
    pub(crate) fn is_healthy(&self) -> bool {
        let mut faults = self.faults.iter();
        faults.all(|fault| HARMLESS.contains(fault))
            && self.request_timeout >= TRIES_MIN
            && self.lock_ttl >= LOCKS_LIVE_MIN
            && !self.replicas.are_several()
    }
}

/// What a worker has done has come to this, after so long.
pub(crate) fn look(session: &Session, doing: &str, result: Result<(), &Error>, took: Duration) {
    let who = &session.name;
    let fail = |why: String| session.world.fail(NAME, why);
    // Whose table goes meanwhile doesn't learn what became of its commit.
    let deletes = DELETING.iter().any(|name| doing.starts_with(name));
    match result {
        // Others make and delete the same tables.
        Err(Error::Invalid(_)) if deletes => {}
        // Nobody has had a timestamp yet.
        Err(Error::NoSnapshot { asked, .. }) if *asked == Timestamp::ZERO => {}
        Err(
            error @ (Error::Invalid(_)
            | Error::NoSnapshot { .. }
            | Error::NoTransaction { .. }
            | Error::Application(_)),
        ) => fail(format!("{doing} of {who}: {error}")),
        Ok(())
        | Err(
            Error::Conflict(_)
            | Error::Ended
            | Error::TooOld(_)
            | Error::AlreadyExists(_)
            | Error::UnknownTable { .. },
        ) => {}
        Err(error) if session.is_healthy && !deletes => {
            fail(format!("{doing} of {who}, where nothing fails: {error}"));
        }
        Err(_) => {}
    }
    if session.is_healthy && took > STEP_MAX {
        let took = shown(took);
        fail(format!("{doing} of {who} took {took}, where nothing fails"));
    }
}

/// A commit failed like this: it may be committed if something was sent that commits.
pub(crate) fn unknown(session: &Session, error: &Error) {
    let Error::Unknown { start_ts, why, .. } = error else {
        return;
    };
    let is_sent = session.world.commits_sent.lock().contains(start_ts);
    // Where the table goes, nobody asks any further.
    let is_other = why == "the commit ended with its runtime" || why.contains("deleted");
    if !is_sent && !is_other {
        session.world.fail(
            NAME,
            format!(
                "the outcome of {start_ts} is unknown ({why}), and nothing was sent that commits it"
            ),
        );
    }
}

/// A commit was refused like this. What the conflict was with, if that is another transaction's commit.
pub(crate) fn conflict(
    session: &Session,
    start_ts: Timestamp,
    error: &Error,
) -> Option<ConflictSeen> {
    let Error::Conflict(Conflict::Committed {
        with_start_ts,
        with_commit_ts,
        cell,
    }) = error
    else {
        return None;
    };
    if *with_commit_ts < start_ts || with_start_ts >= with_commit_ts || *with_start_ts == start_ts {
        session.world.fail(
            NAME,
            format!(
                "transaction {start_ts} gets a conflict in {cell} with {with_start_ts}, which committed at \
                 {with_commit_ts}"
            ),
        );
    }
    Some(ConflictSeen {
        with_start_ts: *with_start_ts,
        with_commit_ts: *with_commit_ts,
    })
}

/// What is wrong with the conflicts, as far as it is known how those have ended that they were with.
pub(crate) fn wrong(conflicts: &[ConflictSeen], records: &[Record]) -> Option<String> {
    // Those that only read may have begun at another one's timestamp.
    let fresh = records.iter().filter(|it| it.fresh);
    let ends: BTreeMap<Timestamp, &End> = fresh.map(|it| (it.start_ts, &it.end)).collect();
    conflicts.iter().find_map(|seen| {
        let end = ends.get(&seen.with_start_ts)?;
        let is_true = match end {
            End::Committed(commit_ts) => *commit_ts == seen.with_commit_ts,
            End::Open | End::Unknown => true,
            End::Aborted(_) => false,
        };
        (!is_true).then(|| {
            format!(
                "a transaction got a conflict with {}, committed at {}, which is {end}",
                seen.with_start_ts, seen.with_commit_ts
            )
        })
    })
}
