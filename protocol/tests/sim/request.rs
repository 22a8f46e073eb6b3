//! The requests of clients: what they do to the store, what is answered, and how they read in a
//! script.

use bytes::Bytes;
use percolator_protocol::actions::{
    CommitRejection, Prewrite, PrewriteRejection, ScanEnd, Snapshot, Status, StatusQuery,
};
use percolator_protocol::txn::Ending;
use percolator_protocol::types::{Cell, Mutation, Timestamp};

use crate::support::store::{ReadResult, ScanRange, Store};
use crate::support::{args, rows};

#[derive(Clone, Debug)]
pub(crate) enum Request {
    Prewrite(Prewrite, Vec<Mutation>),
    OnePhase(Prewrite, Vec<Mutation>, Timestamp),
    Commit {
        start_ts: Timestamp,
        commit_ts: Timestamp,
        cells: Vec<Cell>,
    },
    Rollback {
        start_ts: Timestamp,
        cells: Vec<Cell>,
    },
    /// Of a pipelined transaction's locks, so many.
    Resolve {
        start_ts: Timestamp,
        ending: Ending,
        limit: usize,
    },
    CheckStatus(Cell, StatusQuery),
    KeepAlive {
        primary: Cell,
        start_ts: Timestamp,
        ttl_ms: u64,
    },
    Get {
        ts: Timestamp,
        bypass: Vec<Timestamp>,
        cell: Cell,
    },
    Scan {
        ts: Timestamp,
        bypass: Vec<Timestamp>,
        range: ScanRange,
    },
    /// To the oracle.
    Timestamp,
}

#[derive(Clone, Debug)]
pub(crate) enum Response {
    Prewrite(Result<Timestamp, Vec<(Cell, PrewriteRejection)>>),
    CommittedInOnePhase(Timestamp),
    /// The first cell's commit_ts, where one has committed.
    Rollback(Option<Timestamp>),
    /// The first rejection, where there is one.
    Commit(Result<(), CommitRejection>),
    CheckStatus(Status),
    Get(ReadResult),
    Scan(Vec<(Cell, Bytes)>, ScanEnd<Cell>),
    Timestamp(Timestamp),
    Done,
}

impl Request {
    /// Does it, as a server does; a timestamp is the world's to give.
    pub(crate) fn run(&self, store: &mut Store) -> Response {
        match self {
            Self::Prewrite(txn, mutations) => Response::Prewrite(store.prewrite(txn, mutations)),
            Self::OnePhase(txn, mutations, commit_ts) => {
                match store.one_phase(txn, mutations, *commit_ts) {
                    Ok(None) => Response::CommittedInOnePhase(*commit_ts),
                    Ok(Some(min_commit_ts)) => Response::Prewrite(Ok(min_commit_ts)),
                    Err(rejections) => Response::Prewrite(Err(rejections)),
                }
            }
            Self::Commit {
                start_ts,
                commit_ts,
                cells,
            } => {
                let mut result = Ok(());
                for cell in cells {
                    result = result.and(store.commit(*start_ts, *commit_ts, cell));
                }
                Response::Commit(result)
            }
            Self::Rollback { start_ts, cells } => {
                for cell in cells {
                    if let Err(already) = store.rollback(*start_ts, cell) {
                        return Response::Rollback(Some(already.commit_ts));
                    }
                }
                Response::Rollback(None)
            }
            Self::Resolve {
                start_ts,
                ending,
                limit,
            } => {
                store.resolve(*start_ts, *ending, None, *limit);
                Response::Done
            }
            Self::CheckStatus(primary, query) => {
                let status = store.check_status(primary, query);
                Response::CheckStatus(status.expect("locks name their primaries"))
            }
            Self::KeepAlive {
                primary,
                start_ts,
                ttl_ms,
            } => {
                store.keep_alive(primary, *start_ts, *ttl_ms);
                Response::Done
            }
            Self::Get { ts, bypass, cell } => Response::Get(store.get(
                Snapshot {
                    ts: *ts,
                    bypass,
                    own: false,
                },
                cell,
            )),
            Self::Scan { ts, bypass, range } => {
                let (found, end) = store.scan(
                    Snapshot {
                        ts: *ts,
                        bypass,
                        own: false,
                    },
                    range,
                );
                Response::Scan(found, end)
            }
            Self::Timestamp => Response::Done,
        }
    }

    /// The script's command for it, if it has one.
    pub(crate) fn command(&self) -> Option<String> {
        Some(match self {
            Self::Prewrite(txn, mutations) => prewrite(txn, mutations, None),
            Self::OnePhase(txn, mutations, commit_ts) => prewrite(txn, mutations, Some(*commit_ts)),
            Self::Commit {
                start_ts,
                commit_ts,
                cells,
            } => format!(
                "commit start={} at={}{}",
                args::ts(*start_ts),
                args::ts(*commit_ts),
                names(cells)
            ),
            Self::Rollback { start_ts, cells } => {
                format!("rollback start={}{}", args::ts(*start_ts), names(cells))
            }
            Self::Resolve {
                start_ts,
                ending,
                limit,
            } => {
                let mut text = format!("resolve start={}", args::ts(*start_ts));
                if let Ending::Committed(at) = ending {
                    text += &format!(" at={}", args::ts(*at));
                }
                match limit {
                    &usize::MAX => text,
                    limit => text + &format!(" limit={limit}"),
                }
            }
            Self::CheckStatus(primary, query) => {
                let mut text = format!(
                    "check-status start={} primary={} now={} met-ttl={}",
                    args::ts(query.start_ts),
                    args::cell(primary),
                    args::ts(query.now),
                    query.met_ttl_ms
                );
                if let Some(snapshot) = query.push_past {
                    text += &format!(" push={}", args::ts(snapshot));
                }
                text + if query.force { " force" } else { "" }
            }
            Self::KeepAlive {
                primary,
                start_ts,
                ttl_ms,
            } => format!(
                "keep-alive start={} primary={} ttl={ttl_ms}",
                args::ts(*start_ts),
                args::cell(primary)
            ),
            Self::Get { ts, bypass, cell } => {
                format!(
                    "get at={}{} {}",
                    args::ts(*ts),
                    through(bypass),
                    args::cell(cell)
                )
            }
            Self::Scan { ts, bypass, range } => {
                let reverse = if range.reverse { " reverse" } else { "" };
                let limit = range
                    .limit
                    .map_or(String::new(), |limit| format!(" limit={limit}"));
                format!(
                    "scan at={}{}{limit}{reverse}",
                    args::ts(*ts),
                    through(bypass)
                )
            }
            Self::Timestamp => return None,
        })
    }
}

fn prewrite(txn: &Prewrite, mutations: &[Mutation], one_phase: Option<Timestamp>) -> String {
    let mut text = format!(
        "prewrite start={} primary={} ttl={}",
        args::ts(txn.start_ts),
        args::cell(&txn.primary),
        txn.ttl_ms
    );
    if txn.generation > 0 {
        text += &format!(" generation={}", txn.generation);
    }
    if let Some(commit_ts) = one_phase {
        text += &format!(" one-phase={}", args::ts(commit_ts));
    }
    for mutation in mutations {
        text += "\n  ";
        text += &rows::mutation(mutation);
    }
    text
}

fn names(cells: &[Cell]) -> String {
    cells
        .iter()
        .map(|cell| format!(" {}", args::cell(cell)))
        .collect()
}

fn through(bypass: &[Timestamp]) -> String {
    let bypass: Vec<String> = bypass.iter().map(|ts| args::ts(*ts)).collect();
    match bypass.as_slice() {
        [] => String::new(),
        _ => format!(" bypass={}", bypass.join(",")),
    }
}
