//! The commands of the coordinator, which print what it wants done:
//!
//! | command | further lines |
//! |---|---|
//! | `txn 7 primary=bob mutations=2 [one-server]` | |
//! | `flush 7 primary=bob mutations=2 [last=8]` | |
//! | `event 7 prewritten [min_commit=9] 0 1` | |
//! | `event 7 rejected 0 1` | rejections: `bob conflict start=8 commit=9` |
//! | `event 7 status 0 alive min_commit=8 ttl=3000` | |
//! | `event 7 resolved 0` | |
//! | `event 7 commit-ts 9` | |
//! | `event 7 primary-commit ok` | |
//! | `event 7 committed-in-one-phase 9` | |
//! | `event 7 no-answer-in-one-phase` | |
//! | `event 7 rollback-ended rolled-back`, `committed 9` or `unanswered` | |
//! | `event 7 gave-up prewrite`, `commit-ts` or `commit-primary` | |
//! | `event 7 cancel` | |

use std::collections::BTreeMap;

use percolator_protocol::safe_point::TooOld;
use percolator_protocol::txn::{
    AbortReason, Command, Coordinator, Event, Finished, PrimaryEnd, Step,
};
use percolator_protocol::types::{Cell, Timestamp};

use super::args::{self, Args, read_number, read_ts};
use super::{outcomes, rows};

/// Runs the command, if it is one of a coordinator.
pub(crate) fn run(
    coordinators: &mut BTreeMap<Timestamp, Coordinator>,
    name: &str,
    args: &str,
    input: &[String],
) -> Option<Result<Vec<String>, String>> {
    match name {
        "txn" => Some(start(
            coordinators,
            args,
            |args, (start_ts, primary, mutations)| {
                let one_server = args.flag("one-server");
                Ok(Coordinator::start(start_ts, primary, mutations, one_server))
            },
        )),
        "flush" => Some(start(
            coordinators,
            args,
            |args, (start_ts, primary, mutations)| {
                let last = args.named("last").map(|ts| read_ts(&ts)).transpose()?;
                Ok(Coordinator::start_large(start_ts, primary, mutations, last))
            },
        )),
        "event" => Some(event(coordinators, args, input)),
        _ => None,
    }
}

type Started = (Coordinator, Vec<Command>);
/// Begins one, with arguments of its own.
type Begin = fn(&mut Args, (Timestamp, Cell, usize)) -> Result<Started, String>;

/// Begins with a coordinator of a whole transaction, or of one flush of a pipelined one.
fn start(
    coordinators: &mut BTreeMap<Timestamp, Coordinator>,
    args: &str,
    begin: Begin,
) -> Result<Vec<String>, String> {
    let mut args = Args::read(args)?;
    let start_ts = read_ts(&args.expect("a start_ts")?)?;
    let mutations = args.number("mutations")? as usize;
    let primary = args.cell("primary")?;
    let (coordinator, commands) = begin(&mut args, (start_ts, primary, mutations))?;
    args.end()?;
    coordinators.insert(start_ts, coordinator);
    Ok(commands.iter().map(command_line).collect())
}

fn event(
    coordinators: &mut BTreeMap<Timestamp, Coordinator>,
    args: &str,
    input: &[String],
) -> Result<Vec<String>, String> {
    let mut args = Args::read(args)?;
    let start_ts = read_ts(&args.expect("a start_ts")?)?;
    let coordinator = coordinators
        .get_mut(&start_ts)
        .ok_or_else(|| format!("no transaction {start_ts}"))?;
    let event = read_event(&mut args, start_ts, input)?;
    args.end()?;
    let commands = coordinator.on(event);
    let mut lines: Vec<String> = commands.iter().map(command_line).collect();
    if lines.is_empty() {
        lines.push("nothing to do".into());
    }
    if coordinator.ended() {
        lines.push("ended".into());
    }
    Ok(lines)
}

fn read_event(args: &mut Args, start_ts: Timestamp, input: &[String]) -> Result<Event, String> {
    Ok(match args.expect("an event")?.as_str() {
        "prewritten" => Event::Prewritten {
            min_commit_ts: match args.named("min_commit") {
                Some(ts) => read_ts(&ts)?,
                None => start_ts.next(),
            },
            mutations: args.indices()?,
        },
        "rejected" => Event::Rejected {
            mutations: args.indices()?,
            rejections: input
                .iter()
                .map(|line| outcomes::read_rejection(line))
                .collect::<Result<_, _>>()?,
        },
        "status" => Event::Status {
            obstacle: read_number(&args.expect("an obstacle")?)? as usize,
            status: outcomes::read_status(args)?,
        },
        "resolved" => Event::Resolved {
            obstacle: read_number(&args.expect("an obstacle")?)? as usize,
        },
        "commit-ts" => Event::CommitTs(read_ts(&args.expect("a commit_ts")?)?),
        "primary-commit" => Event::PrimaryCommit(outcomes::read_commit(args)?),
        "committed-in-one-phase" => {
            Event::CommittedInOnePhase(read_ts(&args.expect("a commit_ts")?)?)
        }
        "no-answer-in-one-phase" => Event::NoAnswerInOnePhase,
        "not-sent-in-one-phase" => Event::NotSentInOnePhase,
        "rollback-ended" => Event::RollbackEnded(match args.expect("an end")?.as_str() {
            "rolled-back" => PrimaryEnd::RolledBack,
            "committed" => PrimaryEnd::Committed(read_ts(&args.expect("a commit_ts")?)?),
            "unanswered" => PrimaryEnd::Unanswered,
            other => return Err(format!("{other} is no end of a primary")),
        }),
        "gave-up" => Event::GaveUp(match args.expect("a step")?.as_str() {
            "prewrite" => Step::Prewrite,
            "commit-ts" => Step::CommitTs,
            "commit-primary" => Step::CommitPrimary,
            other => return Err(format!("{other} is no step")),
        }),
        "too-old" => Event::TooOld {
            too_old: TooOld {
                start_ts,
                barrier: read_ts(&args.expect("a barrier")?)?,
            },
            in_one_phase: false,
        },
        "too-old-in-one-phase" => Event::TooOld {
            too_old: TooOld {
                start_ts,
                barrier: read_ts(&args.expect("a barrier")?)?,
            },
            in_one_phase: true,
        },
        "cancel" => Event::Cancel,
        other => return Err(format!("{other} is no event")),
    })
}

/// The command that brings the event to the coordinator of `start_ts`.
pub(crate) fn event_command(start_ts: Timestamp, event: &Event) -> String {
    let text = match event {
        Event::Prewritten {
            mutations,
            min_commit_ts,
        } => {
            let min = outcomes::min_commit(start_ts, *min_commit_ts);
            format!("prewritten{min}{}", indices(mutations))
        }
        Event::Rejected {
            mutations,
            rejections,
        } => {
            let mut text = format!("rejected{}", indices(mutations));
            for (cell, rejection) in rejections {
                text += "\n  ";
                text += &outcomes::rejection(cell, rejection);
            }
            text
        }
        Event::Status { obstacle, status } => {
            format!("status {obstacle} {}", outcomes::status(*status))
        }
        Event::Resolved { obstacle } => format!("resolved {obstacle}"),
        Event::CommitTs(ts) => format!("commit-ts {}", args::ts(*ts)),
        Event::PrimaryCommit(result) => format!("primary-commit {}", outcomes::commit(result)),
        Event::CommittedInOnePhase(ts) => format!("committed-in-one-phase {}", args::ts(*ts)),
        Event::NoAnswerInOnePhase => "no-answer-in-one-phase".into(),
        Event::NotSentInOnePhase => "not-sent-in-one-phase".into(),
        Event::RollbackEnded(PrimaryEnd::RolledBack) => "rollback-ended rolled-back".into(),
        Event::RollbackEnded(PrimaryEnd::Committed(ts)) => {
            format!("rollback-ended committed {}", args::ts(*ts))
        }
        Event::RollbackEnded(PrimaryEnd::Unanswered) => "rollback-ended unanswered".into(),
        Event::GaveUp(what) => format!("gave-up {}", step(*what)),
        Event::TooOld {
            too_old,
            in_one_phase,
        } => {
            let how = if *in_one_phase { "-in-one-phase" } else { "" };
            format!("too-old{how} {}", args::ts(too_old.barrier))
        }
        Event::Cancel => "cancel".into(),
    };
    format!("event {} {text}", args::ts(start_ts))
}

fn command_line(command: &Command) -> String {
    match command {
        Command::Prewrite { mutations } => format!("prewrite{}", indices(mutations)),
        Command::CheckStatus {
            obstacle,
            met,
            force,
        } => {
            let force = if *force { " force" } else { "" };
            format!("check-status {obstacle}{force}: {}", rows::met_lock(met))
        }
        Command::Resolve {
            obstacle,
            met,
            ending,
        } => format!(
            "resolve {obstacle} {}: {}",
            outcomes::ending(*ending),
            met.iter()
                .map(rows::met_lock)
                .collect::<Vec<_>>()
                .join("; ")
        ),
        Command::OnePhase => "one-phase".into(),
        Command::TakeCommitTs { pause_ms: 0 } => "take-commit-ts".into(),
        Command::TakeCommitTs { pause_ms } => format!("take-commit-ts pause={pause_ms}"),
        Command::CommitPrimary { commit_ts } => format!("commit-primary {}", args::ts(*commit_ts)),
        Command::Finish(Finished::Committed(ts)) => format!("finish committed {}", args::ts(*ts)),
        Command::Finish(Finished::Aborted(reason)) => format!("finish aborted: {}", why(reason)),
        Command::Finish(Finished::Unknown) => "finish unknown".into(),
        Command::Finish(Finished::Flushed { min_commit_ts }) => {
            format!("finish flushed min_commit={}", args::ts(*min_commit_ts))
        }
        Command::RollbackPrimary => "rollback-primary".into(),
        Command::ResolveAll { ending } => format!("resolve-all {}", outcomes::ending(*ending)),
        Command::CommitSecondaries { commit_ts } => {
            format!("commit-secondaries {}", args::ts(*commit_ts))
        }
        Command::Rollback { mutations } => format!("rollback{}", indices(mutations)),
    }
}

fn why(reason: &AbortReason) -> String {
    match reason {
        AbortReason::Conflict {
            cell,
            with_start_ts,
            with_commit_ts,
        } => format!(
            "{} conflict start={} commit={}",
            args::cell(cell),
            args::ts(*with_start_ts),
            args::ts(*with_commit_ts)
        ),
        AbortReason::LockedByOlder(met) => format!("an older one has {}", rows::met_lock(met)),
        AbortReason::RolledBack(cell) => format!("{} rolled-back", args::cell(cell)),
        AbortReason::NotNotified(cell, _) => format!("{} not-notified", args::cell(cell)),
        AbortReason::TooOld(too_old) => format!("too-old {}", args::ts(too_old.barrier)),
        AbortReason::StaleCommitTs {
            granted,
            min_commit_ts,
        } => format!(
            "stale commit_ts {} min_commit={}",
            args::ts(*granted),
            args::ts(*min_commit_ts)
        ),
        AbortReason::Cancelled => "cancelled".into(),
        AbortReason::GaveUp(what) => format!("gave-up {}", step(*what)),
    }
}

fn step(step: Step) -> &'static str {
    match step {
        Step::Prewrite => "prewrite",
        Step::CommitTs => "commit-ts",
        Step::CommitPrimary => "commit-primary",
    }
}

fn indices(indices: &[usize]) -> String {
    indices.iter().map(|index| format!(" {index}")).collect()
}
