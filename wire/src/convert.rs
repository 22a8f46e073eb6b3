//! From and to protocol types. What comes from a peer is checked here, once.

use bytes::Bytes;
use percolator_protocol::actions::{CommitRejection, NotNotified, PrewriteRejection, Status};
use percolator_protocol::lease::{Lease, NotLeased};
use percolator_protocol::safe_point::{Points, TooOld};
use percolator_protocol::txn::MetLock;
use percolator_protocol::types::{
    CHAIN_COLUMNS_MAX, Cell, Chain, Lock, LockKind, Rows, TableId, Tablet, TabletState, Timestamp,
    TraceParent,
};

use crate::v1;

/// A message that a peer should not have sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed message: {0}")]
pub struct Malformed(pub &'static str);

impl std::fmt::Display for v1::Addressee {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (start {:016x})", self.server, self.incarnation)
    }
}

/// The points that a tablet server has taken.
impl From<&v1::HeartbeatRequest> for Points {
    fn from(beat: &v1::HeartbeatRequest) -> Self {
        Self {
            barrier: Timestamp::from_u64(beat.barrier),
            safe_point: Timestamp::from_u64(beat.safe_point),
            resolved: Timestamp::from_u64(beat.all_resolved_ts),
        }
    }
}

/// The points that a tablet server is to take.
impl From<&v1::HeartbeatResponse> for Points {
    fn from(response: &v1::HeartbeatResponse) -> Self {
        Self {
            barrier: Timestamp::from_u64(response.barrier),
            safe_point: Timestamp::from_u64(response.safe_point),
            resolved: Timestamp::from_u64(response.resolved_ts),
        }
    }
}

impl From<TooOld> for v1::TooOld {
    fn from(too_old: TooOld) -> Self {
        Self {
            start_ts: too_old.start_ts.as_u64(),
            barrier: too_old.barrier.as_u64(),
        }
    }
}

impl From<NotLeased> for v1::NotLeased {
    fn from(not_leased: NotLeased) -> Self {
        Self {
            asked: not_leased.asked.as_u64(),
            lease: not_leased.until.as_u64(),
        }
    }
}

impl From<v1::NotLeased> for NotLeased {
    fn from(not_leased: v1::NotLeased) -> Self {
        Self {
            asked: Timestamp::from_u64(not_leased.asked),
            until: Timestamp::from_u64(not_leased.lease),
        }
    }
}

/// The lease that the master grants to a tablet server.
impl From<&v1::HeartbeatResponse> for Lease {
    fn from(response: &v1::HeartbeatResponse) -> Self {
        Self {
            until: Timestamp::from_u64(response.lease),
            commits_above: Timestamp::from_u64(response.commits_above),
        }
    }
}

impl From<v1::TooOld> for TooOld {
    fn from(too_old: v1::TooOld) -> Self {
        Self {
            start_ts: Timestamp::from_u64(too_old.start_ts),
            barrier: Timestamp::from_u64(too_old.barrier),
        }
    }
}

impl std::fmt::Display for v1::OtherServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = |server: &Option<v1::Addressee>| match server {
            Some(server) => server.to_string(),
            None => "nobody".to_owned(),
        };
        let (meant, answers) = (name(&self.meant), name(&self.answers));
        write!(
            f,
            "this was meant for {meant}, and {answers} has the address now"
        )
    }
}

impl From<&Cell> for v1::CellName {
    fn from(cell: &Cell) -> Self {
        Self {
            table_id: cell.table.0,
            row: cell.row.clone(),
            column: cell.column.clone(),
        }
    }
}

impl From<v1::CellName> for Cell {
    fn from(name: v1::CellName) -> Self {
        Self::new(TableId(name.table_id), name.row, name.column)
    }
}

impl From<LockKind> for v1::LockKind {
    fn from(kind: LockKind) -> Self {
        match kind {
            LockKind::Put => Self::Put,
            LockKind::Delete => Self::Delete,
            LockKind::Lock => Self::Lock,
        }
    }
}

impl TryFrom<v1::LockKind> for LockKind {
    type Error = Malformed;

    fn try_from(kind: v1::LockKind) -> Result<Self, Malformed> {
        match kind {
            v1::LockKind::Put => Ok(Self::Put),
            v1::LockKind::Delete => Ok(Self::Delete),
            v1::LockKind::Lock => Ok(Self::Lock),
            v1::LockKind::Unspecified => Err(Malformed("a lock or mutation without a kind")),
        }
    }
}

impl From<TabletState> for v1::TabletState {
    fn from(state: TabletState) -> Self {
        match state {
            TabletState::Serving => Self::Serving,
            TabletState::Frozen => Self::Frozen,
        }
    }
}

impl From<Tablet> for v1::TabletInfo {
    fn from(tablet: Tablet) -> Self {
        Self {
            id: tablet.id,
            table_id: tablet.table.0,
            table_name: tablet.table_name,
            start_row: tablet.rows.start,
            end_row: tablet.rows.end,
            epoch: tablet.epoch,
            state: v1::TabletState::from(tablet.state).into(),
        }
    }
}

impl TryFrom<v1::TabletInfo> for Tablet {
    type Error = Malformed;

    fn try_from(info: v1::TabletInfo) -> Result<Self, Malformed> {
        let state = match info.state() {
            v1::TabletState::Serving => TabletState::Serving,
            v1::TabletState::Frozen => TabletState::Frozen,
            v1::TabletState::Unspecified => return Err(Malformed("a tablet without a state")),
        };
        Ok(Self {
            id: info.id,
            table: TableId(info.table_id),
            table_name: info.table_name,
            rows: Rows {
                start: info.start_row,
                end: info.end_row,
            },
            epoch: info.epoch,
            state,
        })
    }
}

impl From<&Chain> for v1::Chain {
    fn from(chain: &Chain) -> Self {
        let column = |(table, column): &(TableId, Bytes)| v1::ChainColumn {
            table_id: table.0,
            column: column.clone(),
        };
        Self {
            depth: chain.depth,
            columns: chain.columns.iter().map(column).collect(),
            trace: chain.trace.map(v1::TraceContext::from),
        }
    }
}

impl TryFrom<v1::Chain> for Chain {
    type Error = Malformed;

    fn try_from(chain: v1::Chain) -> Result<Self, Malformed> {
        if chain.columns.len() > CHAIN_COLUMNS_MAX {
            return Err(Malformed("a chain with too many columns"));
        }
        let columns = chain.columns.into_iter();
        Ok(Self {
            depth: chain.depth,
            columns: columns
                .map(|it| (TableId(it.table_id), it.column))
                .collect(),
            trace: chain.trace.as_ref().map(TraceParent::from),
        })
    }
}

/// A lock as others see it: without its value.
pub fn met_lock(cell: &Cell, lock: &Lock) -> v1::MetLock {
    v1::MetLock {
        cell: Some(cell.into()),
        primary: Some((&lock.primary).into()),
        start_ts: lock.start_ts.as_u64(),
        ttl_ms: lock.ttl_ms,
        kind: v1::LockKind::from(lock.kind).into(),
        min_commit_ts: lock.min_commit_ts.as_u64(),
        generation: lock.generation,
    }
}

impl TryFrom<v1::MetLock> for MetLock {
    type Error = Malformed;

    fn try_from(met: v1::MetLock) -> Result<Self, Malformed> {
        let kind = met.kind().try_into()?;
        Ok(Self {
            cell: met.cell.ok_or(Malformed("a lock without its cell"))?.into(),
            lock: Lock {
                kind,
                primary: met
                    .primary
                    .ok_or(Malformed("a lock without its primary"))?
                    .into(),
                start_ts: Timestamp::from_u64(met.start_ts),
                ttl_ms: met.ttl_ms,
                min_commit_ts: Timestamp::from_u64(met.min_commit_ts),
                committing: false,
                generation: met.generation,
                short_value: None,
                chain: None,
            },
        })
    }
}

/// A rejection of the mutation with this index, on this cell.
pub fn prewrite_rejection(
    mutation: u32,
    cell: &Cell,
    rejection: &PrewriteRejection,
) -> v1::PrewriteRejection {
    use v1::prewrite_rejection::Reason;
    let reason = match rejection {
        PrewriteRejection::Locked(lock) => Reason::Locked(met_lock(cell, lock)),
        PrewriteRejection::Conflict {
            with_start_ts,
            with_commit_ts,
        } => Reason::Conflict(v1::Conflict {
            cell: Some(cell.into()),
            with_start_ts: with_start_ts.as_u64(),
            with_commit_ts: with_commit_ts.as_u64(),
        }),
        PrewriteRejection::RolledBack => Reason::RolledBack(v1::RolledBack {}),
        PrewriteRejection::Committed(commit_ts) => Reason::Committed(v1::Committed {
            commit_ts: commit_ts.as_u64(),
        }),
        PrewriteRejection::NotNotified(not) => Reason::NotNotified(v1::NotNotified {
            changed_at: not.changed_at.map_or(0, Timestamp::as_u64),
        }),
    };
    v1::PrewriteRejection {
        mutation,
        reason: Some(reason),
    }
}

impl TryFrom<v1::PrewriteRejection> for PrewriteRejection {
    type Error = Malformed;

    fn try_from(rejection: v1::PrewriteRejection) -> Result<Self, Malformed> {
        use v1::prewrite_rejection::Reason;
        Ok(
            match rejection
                .reason
                .ok_or(Malformed("a rejection without a reason"))?
            {
                Reason::Locked(met) => Self::Locked(MetLock::try_from(met)?.lock),
                Reason::Conflict(conflict) => Self::Conflict {
                    with_start_ts: Timestamp::from_u64(conflict.with_start_ts),
                    with_commit_ts: Timestamp::from_u64(conflict.with_commit_ts),
                },
                Reason::RolledBack(_) => Self::RolledBack,
                Reason::NotNotified(not) => Self::NotNotified(NotNotified {
                    changed_at: (not.changed_at > 0).then(|| Timestamp::from_u64(not.changed_at)),
                }),
                Reason::Committed(committed) => {
                    Self::Committed(Timestamp::from_u64(committed.commit_ts))
                }
            },
        )
    }
}

/// The answer to a commit; `cell` is the index of the cell that was rejected.
pub fn commit_response(result: Result<(), (u32, CommitRejection)>) -> v1::CommitResponse {
    use v1::commit_response::Result as R;
    let result = match result {
        Ok(()) => R::Done(v1::Absent {}),
        Err((cell, CommitRejection::LockMissing { rolled_back })) => {
            R::LockMissing(v1::CommitLockMissing { cell, rolled_back })
        }
        Err((_, CommitRejection::TooLow { min_commit_ts })) => R::TooLow(v1::CommitTooLow {
            min_commit_ts: min_commit_ts.as_u64(),
        }),
        Err((_, CommitRejection::Taken { by })) => R::Taken(v1::CommitTaken {
            by_start_ts: by.as_u64(),
        }),
    };
    v1::CommitResponse {
        result: Some(result),
    }
}

/// Decodes the answer to a commit.
///
/// # Errors
/// The answer is empty.
pub fn commit_result(
    response: v1::CommitResponse,
) -> Result<Result<(), CommitRejection>, Malformed> {
    use v1::commit_response::Result as R;
    Ok(
        match response
            .result
            .ok_or(Malformed("an empty answer to a commit"))?
        {
            R::Done(_) => Ok(()),
            R::LockMissing(missing) => Err(CommitRejection::LockMissing {
                rolled_back: missing.rolled_back,
            }),
            R::TooLow(low) => Err(CommitRejection::TooLow {
                min_commit_ts: Timestamp::from_u64(low.min_commit_ts),
            }),
            R::Taken(taken) => Err(CommitRejection::Taken {
                by: Timestamp::from_u64(taken.by_start_ts),
            }),
        },
    )
}

impl From<Status> for v1::CheckStatusResponse {
    fn from(status: Status) -> Self {
        use v1::check_status_response::Status as S;
        Self {
            status: Some(match status {
                Status::Committed(commit_ts) => S::Committed(v1::Committed {
                    commit_ts: commit_ts.as_u64(),
                }),
                Status::RolledBack => S::RolledBack(v1::RolledBack {}),
                Status::Alive {
                    min_commit_ts,
                    committing,
                    ttl_ms,
                } => S::Alive(v1::Alive {
                    min_commit_ts: min_commit_ts.as_u64(),
                    committing,
                    ttl_ms,
                }),
                Status::PrimaryPending => S::Pending(v1::PrimaryPending {}),
            }),
        }
    }
}

impl TryFrom<v1::CheckStatusResponse> for Status {
    type Error = Malformed;

    fn try_from(response: v1::CheckStatusResponse) -> Result<Self, Malformed> {
        use v1::check_status_response::Status as S;
        Ok(
            match response
                .status
                .ok_or(Malformed("an empty answer to a status check"))?
            {
                S::Committed(committed) => {
                    Self::Committed(Timestamp::from_u64(committed.commit_ts))
                }
                S::RolledBack(_) => Self::RolledBack,
                S::Alive(alive) => Self::Alive {
                    min_commit_ts: Timestamp::from_u64(alive.min_commit_ts),
                    committing: alive.committing,
                    ttl_ms: alive.ttl_ms,
                },
                S::Pending(_) => Self::PrimaryPending,
            },
        )
    }
}
