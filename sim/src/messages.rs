//! What processes say to each other.

use percolator_client::transport::MasterError;
use percolator_protocol::oracle::Granted;
use percolator_tablet::core::Order;
use percolator_wire::v1;

use crate::world::NodeId;

/// Who waits for an answer.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// The process that asked.
    pub node: NodeId,
    /// Which of its calls.
    pub call: u64,
}

/// A question.
#[derive(Clone, Debug)]
pub enum Ask {
    /// To a tablet server.
    Tablet(v1::Request),
    /// To the oracle: so many timestamps.
    Timestamps(u32),
    /// To the master.
    Directory,
    /// To the master.
    CreateTable(v1::CreateTableRequest),
    /// To the master.
    DeleteTable(v1::DeleteTableRequest),
    /// To the master.
    Session(v1::SessionRequest),
    /// To the master.
    Heartbeat(v1::HeartbeatRequest),
    /// The master's, to a tablet server, with the cluster's id, and whom it is meant for.
    Order(String, v1::Addressee, Order),
}

/// An answer.
#[derive(Clone, Debug)]
pub enum Answer {
    /// A tablet server's.
    Tablet(v1::Response),
    /// The oracle's.
    Timestamps(Granted),
    /// The master's.
    Directory(v1::DirectoryResponse),
    /// The master's.
    TableCreated(v1::CreateTableResponse),
    /// The master's.
    TableDeleted(v1::DeleteTableResponse),
    /// The master's.
    Session(v1::SessionResponse),
    /// The master's, to a heartbeat.
    Heartbeat(v1::HeartbeatResponse),
    /// An order was carried out, or not, and why.
    Done(Result<(), String>),
    /// The master refuses.
    Refused(MasterError),
}

impl Ask {
    /// In a few words, for the trace.
    pub fn brief(&self) -> String {
        use v1::request::Body as B;
        match self {
            Self::Tablet(request) => match &request.body {
                Some(B::Get(get)) => format!(
                    "get @{} {}",
                    get.start_ts,
                    cells(get.cells.iter().map(Some))
                ),
                Some(B::GetOne(get)) => {
                    let (row, column) = (text(&get.row), text(&get.column));
                    format!("get @{} {row}:{column}", get.start_ts)
                }
                Some(B::LocksOf(asked)) => match (asked.primary_table, asked.below) {
                    (0, 0) => "locks".to_owned(),
                    (0, below) => format!("locks from below {below}"),
                    (table, 0) => format!("locks with their primary in table {table}"),
                    (table, below) => {
                        format!("locks from below {below} with their primary in table {table}")
                    }
                },
                Some(B::Scan(scan)) => format!("scan @{}", scan.start_ts),
                Some(B::Prewrite(prewrite)) => format!(
                    "prewrite {}{} ttl={} {}",
                    prewrite.start_ts,
                    match prewrite.generation {
                        0 => String::new(),
                        generation => format!(" flush {generation}"),
                    },
                    prewrite.ttl_ms,
                    cells(prewrite.mutations.iter().map(|m| m.cell.as_ref()))
                ),
                Some(B::Commit(commit)) => format!(
                    "commit {} at {} {}",
                    commit.start_ts,
                    commit.commit_ts,
                    cells(commit.cells.iter().map(Some))
                ),
                Some(B::Rollback(rollback)) => format!(
                    "rollback {} {}",
                    rollback.start_ts,
                    cells(rollback.cells.iter().map(Some))
                ),
                Some(B::CheckStatus(check)) => format!(
                    "check_status {} now={} push_past={} force={} {}",
                    check.start_ts,
                    check.now,
                    check.push_past,
                    check.force,
                    cells(std::iter::once(check.primary.as_ref()))
                ),
                Some(B::Resolve(resolve)) => {
                    let how = match resolve.commit_ts {
                        0 => "rolled back".to_owned(),
                        at => format!("committed at {at}"),
                    };
                    format!("resolve {} {how}", resolve.start_ts)
                }
                Some(B::KeepAlive(keep)) => {
                    format!("keep_alive {} ttl={}", keep.start_ts, keep.ttl_ms)
                }
                other => format!("{other:?}"),
            },
            Self::Timestamps(count) => format!("timestamps {count}"),
            Self::Directory => "directory".to_owned(),
            Self::CreateTable(request) => format!("create table {}", request.name),
            Self::DeleteTable(request) => match request.swept {
                0 => format!("delete table {}", request.name),
                id => format!("delete table {}, {id} is swept", request.name),
            },
            Self::Session(request) => {
                format!("session {:x} floor={}", request.session, request.floor)
            }
            Self::Heartbeat(beat) => format!(
                "heartbeat of {} barrier={} ready={}",
                beat.server, beat.barrier, beat.ready
            ),
            Self::Order(_, _, Order::Create { tablet, .. }) => {
                let (id, table) = (tablet.id, tablet.table_id);
                format!("own tablet {id} of {table}, {:?}", tablet.state())
            }
            Self::Order(_, _, Order::Drop { id, table }) => {
                format!("forget tablet {id} of {table}")
            }
        }
    }
}

impl Answer {
    /// In a few words, for the trace.
    pub fn brief(&self) -> String {
        use v1::response::Body as B;
        match self {
            Self::Tablet(response) => match &response.body {
                Some(B::Get(get)) => {
                    let results = get.results.iter().map(|result| match &result.result {
                        Some(v1::get_result::Result::Found(found)) => text(&found.value),
                        Some(v1::get_result::Result::Locked(lock)) => {
                            format!("locked by {}", lock.start_ts)
                        }
                        _ => "-".to_owned(),
                    });
                    format!("got {}", results.collect::<Vec<_>>().join(", "))
                }
                Some(B::GetOne(got)) => match (&got.value, &got.locked) {
                    (Some(value), _) => format!("got {}", text(value)),
                    (None, Some(lock)) => format!("got locked by {}", lock.start_ts),
                    (None, None) => "got -".to_owned(),
                },
                Some(B::LocksOf(found)) => {
                    let more = if found.resume.is_some() {
                        ", maybe more"
                    } else {
                        ""
                    };
                    format!("{} locks{more}", found.locks.len())
                }
                Some(B::Scan(scan)) => {
                    format!("{} cells, {} locked", scan.cells.len(), scan.locked.len())
                }
                Some(B::Prewrite(prewrite)) if prewrite.rejections.is_empty() => {
                    "prewritten".to_owned()
                }
                Some(B::Prewrite(prewrite)) => {
                    let reasons = prewrite.rejections.iter();
                    let reasons = reasons.filter_map(|rejection| rejection.reason.as_ref());
                    format!("rejected: {:?}", reasons.collect::<Vec<_>>())
                }
                Some(B::Commit(commit)) => format!("{:?}", commit.result),
                Some(B::Rollback(rollback)) => format!("{rollback:?}"),
                Some(B::CheckStatus(status)) => format!("{:?}", status.status),
                Some(B::KeepAlive(alive)) => format!("{alive:?}"),
                Some(B::Error(error)) => match &error.kind {
                    Some(v1::request_error::Kind::Busy(why)) => format!("busy: {why}"),
                    Some(v1::request_error::Kind::TooOld(old)) => {
                        format!(
                            "{} is too old: the barrier is {}",
                            old.start_ts, old.barrier
                        )
                    }
                    other => format!("{other:?}"),
                },
                other => format!("{other:?}"),
            },
            Self::Timestamps(granted) => format!("timestamp {}", granted.first),
            Self::Directory(directory) => format!("{} tablets", directory.tablets.len()),
            Self::TableCreated(_) => "created".to_owned(),
            Self::TableDeleted(deleted) if deleted.gone => "deleted".to_owned(),
            Self::TableDeleted(_) => "frozen".to_owned(),
            Self::Session(told) => format!("lease {} ms", told.lease_ms),
            Self::Heartbeat(told) => {
                format!("heard, barrier={} ready={}", told.barrier, told.ready)
            }
            Self::Done(done) => format!("done: {done:?}"),
            Self::Refused(why) => format!("{why:?}"),
        }
    }
}

fn cells<'a>(cells: impl Iterator<Item = Option<&'a v1::CellRef>>) -> String {
    const SHOWN: usize = 6;
    let mut names: Vec<String> = cells
        .flatten()
        .map(|cell| {
            let row = percolator_client::escape(&cell.row);
            let column = percolator_client::escape(&cell.column);
            format!("{row}:{column}")
        })
        .collect();
    let more = names.len().saturating_sub(SHOWN);
    names.truncate(SHOWN);
    if more > 0 {
        names.push(format!("and {more} more"));
    }
    names.join(" ")
}

fn text(value: &[u8]) -> String {
    const SHOWN: usize = 40;
    let text = percolator_client::escape(&value[..value.len().min(SHOWN)]);
    text.to_string()
}
