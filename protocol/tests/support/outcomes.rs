//! The results of the rules as text, both ways: a rule prints it, a coordinator's event reads it.

use percolator_protocol::actions::{CommitRejection, NotNotified, PrewriteRejection, Status};
use percolator_protocol::txn::{Ending, ReadNext};
use percolator_protocol::types::{Cell, Timestamp};

use super::args::{self, Args, read_cell, read_ts};
use super::rows;

/// `bob locked put start=9 ..`, `bob conflict start=8 commit=9`, `bob rolled-back`, `bob committed 9`.
pub(crate) fn rejection(cell: &Cell, rejection: &PrewriteRejection) -> String {
    let cell = args::cell(cell);
    match rejection {
        PrewriteRejection::Locked(lock) => format!("{cell} locked {}", rows::lock(lock)),
        PrewriteRejection::Conflict {
            with_start_ts,
            with_commit_ts,
        } => format!(
            "{cell} conflict start={} commit={}",
            args::ts(*with_start_ts),
            args::ts(*with_commit_ts)
        ),
        PrewriteRejection::RolledBack => format!("{cell} rolled-back"),
        PrewriteRejection::NotNotified(not) => {
            let changed_at = not.changed_at.unwrap_or(Timestamp::ZERO);
            format!("{cell} not-notified changed={}", args::ts(changed_at))
        }
        PrewriteRejection::Committed(ts) => format!("{cell} committed {}", args::ts(*ts)),
    }
}

pub(crate) fn read_rejection(line: &str) -> Result<(Cell, PrewriteRejection), String> {
    let mut args = Args::read(line)?;
    let cell = read_cell(&args.expect("a cell")?)?;
    let rejection = match args.expect("why")?.as_str() {
        "locked" => PrewriteRejection::Locked(rows::read_lock(&mut args)?),
        "conflict" => PrewriteRejection::Conflict {
            with_start_ts: args.ts("start")?,
            with_commit_ts: args.ts("commit")?,
        },
        "rolled-back" => PrewriteRejection::RolledBack,
        "not-notified" => {
            let changed_at = args.ts("changed")?;
            PrewriteRejection::NotNotified(NotNotified {
                changed_at: (changed_at > Timestamp::ZERO).then_some(changed_at),
            })
        }
        "committed" => PrewriteRejection::Committed(read_ts(&args.expect("a commit_ts")?)?),
        other => return Err(format!("{other} is no rejection")),
    };
    args.end()?;
    Ok((cell, rejection))
}

/// ` min_commit=12`, if it is more than the transaction's own start asks for.
pub(crate) fn min_commit(start_ts: Timestamp, min_commit_ts: Timestamp) -> String {
    if min_commit_ts == start_ts.next() {
        return String::new();
    }
    format!(" min_commit={}", args::ts(min_commit_ts))
}

/// `ok`, `lock-missing`, `lock-missing rolled-back`, `too-low min_commit=12`, `taken start=5`.
pub(crate) fn commit(result: &Result<(), CommitRejection>) -> String {
    match result {
        Ok(()) => "ok".into(),
        Err(CommitRejection::LockMissing { rolled_back: false }) => "lock-missing".into(),
        Err(CommitRejection::LockMissing { rolled_back: true }) => {
            "lock-missing rolled-back".into()
        }
        Err(CommitRejection::TooLow { min_commit_ts }) => {
            format!("too-low min_commit={}", args::ts(*min_commit_ts))
        }
        Err(CommitRejection::Taken { by }) => format!("taken start={}", args::ts(*by)),
    }
}

pub(crate) fn read_commit(args: &mut Args) -> Result<Result<(), CommitRejection>, String> {
    Ok(match args.expect("an outcome")?.as_str() {
        "ok" => Ok(()),
        "lock-missing" => Err(CommitRejection::LockMissing {
            rolled_back: args.flag("rolled-back"),
        }),
        "too-low" => Err(CommitRejection::TooLow {
            min_commit_ts: args.ts("min_commit")?,
        }),
        "taken" => Err(CommitRejection::Taken {
            by: args.ts("start")?,
        }),
        other => return Err(format!("{other} is no outcome of a commit")),
    })
}

/// `committed 8`, `rolled-back`, `alive min_commit=8 ttl=3000 committing`, `primary-pending`.
pub(crate) fn status(status: Status) -> String {
    match status {
        Status::Committed(ts) => format!("committed {}", args::ts(ts)),
        Status::RolledBack => "rolled-back".into(),
        Status::Alive {
            min_commit_ts,
            committing,
            ttl_ms,
        } => {
            let text = format!("alive min_commit={} ttl={ttl_ms}", args::ts(min_commit_ts));
            text + if committing { " committing" } else { "" }
        }
        Status::PrimaryPending => "primary-pending".into(),
    }
}

pub(crate) fn read_status(args: &mut Args) -> Result<Status, String> {
    Ok(match args.expect("a status")?.as_str() {
        "committed" => Status::Committed(read_ts(&args.expect("a commit_ts")?)?),
        "rolled-back" => Status::RolledBack,
        "alive" => Status::Alive {
            min_commit_ts: args.ts("min_commit")?,
            committing: args.flag("committing"),
            ttl_ms: args.number("ttl")?,
        },
        "primary-pending" => Status::PrimaryPending,
        other => return Err(format!("{other} is no status")),
    })
}

pub(crate) fn ending(ending: Ending) -> String {
    match ending {
        Ending::Committed(ts) => format!("committed {}", args::ts(ts)),
        Ending::RolledBack => "rolled-back".into(),
    }
}

pub(crate) fn read_next(next: ReadNext) -> String {
    match next {
        ReadNext::Resolve(how) => format!("resolve {}", ending(how)),
        ReadNext::Bypass => "bypass".into(),
        ReadNext::Wait => "wait".into(),
    }
}
