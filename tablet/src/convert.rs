//! Between messages and the tablet server's own types. A message in which something is missing is refused here.

use percolator_engine::Column;
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::Timestamp;
use percolator_wire::v1::request::Body as RequestBody;
use percolator_wire::v1::response::Body;
use percolator_wire::{Malformed, v1};

use crate::peers::{
    ClosedTablet, MoveRequest, MoveResponse, MovedEntry, NotServed, PullRequest, PullResponse,
    ServerIncarnation, ServerLocation, TabletChunk, TakeOutcome, TakeRequest,
};

impl From<v1::Addressee> for ServerIncarnation {
    fn from(addressee: v1::Addressee) -> Self {
        Self {
            server: addressee.server,
            incarnation: addressee.incarnation,
        }
    }
}

impl From<ServerIncarnation> for v1::Addressee {
    fn from(server: ServerIncarnation) -> Self {
        Self {
            server: server.server,
            incarnation: server.incarnation,
        }
    }
}

impl TryFrom<v1::MovedTo> for ServerLocation {
    type Error = Malformed;

    fn try_from(location: v1::MovedTo) -> Result<Self, Malformed> {
        let server = location.server.ok_or(Malformed("no server"))?;
        Ok(Self {
            server: server.into(),
            address: location.address,
        })
    }
}

impl From<ServerLocation> for v1::MovedTo {
    fn from(location: ServerLocation) -> Self {
        Self {
            server: Some(location.server.into()),
            address: location.address,
        }
    }
}

impl From<NotServed> for v1::NotServed {
    fn from(not_served: NotServed) -> Self {
        Self {
            tablet_id: not_served.id,
            asked_epoch: not_served.asked_epoch,
            known_epoch: not_served.known_epoch,
            frozen: not_served.is_frozen,
            tablets: not_served.tablets.into_iter().map(Into::into).collect(),
            moving: not_served.is_moving,
            moved_to: not_served.moved_to.map(Into::into),
        }
    }
}

fn tablet_ref(tablet: Option<v1::TabletRef>) -> Result<v1::TabletRef, Malformed> {
    tablet.ok_or(Malformed("no tablet"))
}

fn receiver(by: Option<v1::MovedTo>) -> Result<ServerLocation, Malformed> {
    by.ok_or(Malformed("no server gets the tablet"))?.try_into()
}

impl TryFrom<v1::PullTabletRequest> for PullRequest {
    type Error = Malformed;

    fn try_from(request: v1::PullTabletRequest) -> Result<Self, Malformed> {
        let tablet = tablet_ref(request.tablet)?;
        Ok(Self {
            to: request.to.map(Into::into),
            id: tablet.id,
            epoch: tablet.epoch,
            by: receiver(request.by)?,
            attempt: request.attempt,
            chunk: request.chunk,
            copy: request.copy,
            is_ahead: request.ahead,
            resolved_ts: Timestamp::from_u64(request.resolved_ts),
        })
    }
}

impl TryFrom<v1::TakeTabletRequest> for TakeRequest {
    type Error = Malformed;

    fn try_from(request: v1::TakeTabletRequest) -> Result<Self, Malformed> {
        let tablet = tablet_ref(request.tablet)?;
        Ok(Self {
            owner: request.server,
            id: tablet.id,
            epoch: tablet.epoch,
            table: request.table_id,
            start_row: request.start_row,
            by: receiver(request.by)?,
            attempt: request.attempt,
            copy: request.copy,
        })
    }
}

impl From<MoveRequest> for RequestBody {
    fn from(request: MoveRequest) -> Self {
        match request {
            MoveRequest::Pull(pull) => Self::PullTablet(v1::PullTabletRequest {
                to: pull.to.map(Into::into),
                tablet: Some(v1::TabletRef {
                    id: pull.id,
                    epoch: pull.epoch,
                }),
                by: Some(pull.by.into()),
                attempt: pull.attempt,
                chunk: pull.chunk,
                resolved_ts: pull.resolved_ts.as_u64(),
                copy: pull.copy,
                ahead: pull.is_ahead,
            }),
            MoveRequest::Take(take) => Self::TakeTablet(v1::TakeTabletRequest {
                server: take.owner,
                tablet: Some(v1::TabletRef {
                    id: take.id,
                    epoch: take.epoch,
                }),
                table_id: take.table,
                by: Some(take.by.into()),
                attempt: take.attempt,
                start_row: take.start_row,
                copy: take.copy,
            }),
        }
    }
}

impl From<PullResponse> for Body {
    fn from(response: PullResponse) -> Self {
        Self::PullTablet(match response {
            PullResponse::Chunk(chunk) => chunk.into(),
            PullResponse::Over(over) => v1::PullTabletResponse {
                over,
                ..v1::PullTabletResponse::default()
            },
        })
    }
}

impl From<TabletChunk> for v1::PullTabletResponse {
    fn from(chunk: TabletChunk) -> Self {
        let response = Self {
            entries: chunk.entries.into_iter().map(Into::into).collect(),
            changes: u32::try_from(chunk.changes).unwrap_or(u32::MAX),
            copied: chunk.is_copied,
            copy: chunk.copy,
            ..Self::default()
        };
        match chunk.last {
            None => response,
            Some(closed) => Self {
                last: true,
                barrier: closed.points.barrier.as_u64(),
                safe_point: closed.points.safe_point.as_u64(),
                all_resolved_ts: closed.points.resolved.as_u64(),
                read_ts: closed.read_ts.as_u64(),
                resolved_ts: closed.resolved_ts.as_u64(),
                observed: closed.observed,
                ..response
            },
        }
    }
}

impl TryFrom<v1::PullTabletResponse> for PullResponse {
    type Error = Malformed;

    fn try_from(response: v1::PullTabletResponse) -> Result<Self, Malformed> {
        if !response.over.is_empty() {
            return Ok(Self::Over(response.over));
        }
        let points = Points {
            barrier: Timestamp::from_u64(response.barrier),
            safe_point: Timestamp::from_u64(response.safe_point),
            resolved: Timestamp::from_u64(response.all_resolved_ts),
        };
        let closed = ClosedTablet {
            points,
            read_ts: Timestamp::from_u64(response.read_ts),
            resolved_ts: Timestamp::from_u64(response.resolved_ts),
            observed: response.observed,
        };
        let entries = response.entries.into_iter().map(TryInto::try_into);
        Ok(Self::Chunk(TabletChunk {
            entries: entries.collect::<Result<_, _>>()?,
            changes: response.changes as usize,
            is_copied: response.copied,
            copy: response.copy,
            last: response.last.then_some(closed),
        }))
    }
}

impl From<MovedEntry> for v1::MovedEntry {
    fn from(entry: MovedEntry) -> Self {
        let column = match entry.column {
            Column::Lock => v1::MovedColumn::Lock,
            Column::Write => v1::MovedColumn::Write,
            Column::Data => v1::MovedColumn::Data,
            Column::Notify => v1::MovedColumn::Notify,
            Column::Garbage | Column::Meta => v1::MovedColumn::Unspecified,
        };
        Self {
            column: column.into(),
            key: entry.key,
            value: entry.value,
        }
    }
}

impl TryFrom<v1::MovedEntry> for MovedEntry {
    type Error = Malformed;

    fn try_from(entry: v1::MovedEntry) -> Result<Self, Malformed> {
        let column = match entry.column() {
            v1::MovedColumn::Lock => Column::Lock,
            v1::MovedColumn::Write => Column::Write,
            v1::MovedColumn::Data => Column::Data,
            v1::MovedColumn::Notify => Column::Notify,
            v1::MovedColumn::Unspecified => return Err(Malformed("an entry without a column")),
        };
        Ok(Self {
            column,
            key: entry.key,
            value: entry.value,
        })
    }
}

impl From<TakeOutcome> for Body {
    fn from(outcome: TakeOutcome) -> Self {
        let (taken, barrier) = match outcome {
            TakeOutcome::Moved { barrier } => (v1::Taken::Moved, barrier),
            TakeOutcome::Stays => (v1::Taken::Stays, Timestamp::ZERO),
            TakeOutcome::Undecided => (v1::Taken::Unspecified, Timestamp::ZERO),
        };
        Self::TakeTablet(v1::TakeTabletResponse {
            taken: taken.into(),
            barrier: barrier.as_u64(),
        })
    }
}

impl TryFrom<Body> for MoveResponse {
    type Error = Malformed;

    fn try_from(body: Body) -> Result<Self, Malformed> {
        match body {
            // An owner that sends such chunks sends them again: the attempt is over.
            Body::PullTablet(response) => Ok(Self::Pull(response.try_into().unwrap_or_else(
                |error: Malformed| {
                    PullResponse::Over(format!("its owner has sent what can't be read: {error}"))
                },
            ))),
            Body::TakeTablet(response) => Ok(Self::Take(match response.taken() {
                v1::Taken::Moved => TakeOutcome::Moved {
                    barrier: Timestamp::from_u64(response.barrier),
                },
                v1::Taken::Stays => TakeOutcome::Stays,
                v1::Taken::Unspecified => TakeOutcome::Undecided,
            })),
            _ => Err(Malformed("a response of another kind")),
        }
    }
}
