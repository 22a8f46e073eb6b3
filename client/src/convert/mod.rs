//! Turns messages of the master and of tablet servers into the client's own types, and back. A message that lacks a part is
//! refused here, once.

mod admin;
mod cluster;

use percolator_protocol::types::{TableId, TraceParent};
use percolator_wire::{Malformed, v1};

use crate::collection::{LeaseRequest, TxnOwner};
use crate::location_cache::{KnownTable, LocateResult, LocatedTablet, RowQuery};
use crate::transport::MasterError;

pub(crate) use admin::verified_page;

/// The master's response is malformed. The request may be sent again: another master may answer it.
pub(crate) fn malformed_response(error: Malformed) -> MasterError {
    MasterError::Unavailable(format!("the master sent a {error}"))
}

fn collect<M, T: TryFrom<M, Error = Malformed>>(messages: Vec<M>) -> Result<Vec<T>, Malformed> {
    messages.into_iter().map(T::try_from).collect()
}

/// The trace context for a request.
pub(crate) fn trace_context(trace: Option<TraceParent>) -> Option<v1::TraceContext> {
    trace.map(v1::TraceContext::from)
}

impl TryFrom<v1::TableInfo> for KnownTable {
    type Error = Malformed;

    fn try_from(info: v1::TableInfo) -> Result<Self, Malformed> {
        let state = info.state();
        if state == v1::TableState::Unspecified {
            return Err(Malformed("a table without a state"));
        }
        Ok(Self {
            id: TableId(info.id),
            name: info.name,
            ready: state == v1::TableState::Ready,
            deleting: state == v1::TableState::Deleting,
        })
    }
}

/// The request for tables by name and for rows, with so many tablets besides each row's.
pub(crate) fn locate_request(names: &[String], rows: &[RowQuery], ahead: u32) -> v1::LocateRequest {
    let row = |query: &RowQuery| v1::RowToLocate {
        table_id: query.table.0,
        row: query.row.clone(),
        before: query.before,
    };
    v1::LocateRequest {
        names: names.to_vec(),
        rows: rows.iter().map(row).collect(),
        ahead,
    }
}

impl TryFrom<v1::LocateResponse> for LocateResult {
    type Error = Malformed;

    fn try_from(response: v1::LocateResponse) -> Result<Self, Malformed> {
        Ok(Self {
            tables: collect(response.tables)?,
            tablets: collect(response.tablets)?,
            deleted_tables: response.deleted_tables.into_iter().map(TableId).collect(),
        })
    }
}

impl TryFrom<v1::LocatedTablet> for LocatedTablet {
    type Error = Malformed;

    fn try_from(located: v1::LocatedTablet) -> Result<Self, Malformed> {
        let tablet = located.tablet.ok_or(Malformed("a place of no tablet"))?;
        Ok(Self {
            tablet: tablet.try_into()?,
            server: located.server,
            address: located.address.into(),
            incarnation: Some(located.incarnation).filter(|incarnation| *incarnation != 0),
        })
    }
}

impl From<v1::Owner> for TxnOwner {
    fn from(owner: v1::Owner) -> Self {
        Self {
            host: owner.host,
            process: owner.process,
            application: owner.application,
            label: owner.label,
        }
    }
}

impl From<TxnOwner> for v1::Owner {
    fn from(owner: TxnOwner) -> Self {
        Self {
            host: owner.host,
            process: owner.process,
            application: owner.application,
            label: owner.label,
        }
    }
}

impl From<LeaseRequest> for v1::SessionRequest {
    fn from(request: LeaseRequest) -> Self {
        Self {
            session: request.session,
            owner: request.owner.map(v1::Owner::from),
            floor: request.floor.as_u64(),
            transactions: request.transactions.iter().map(|ts| ts.as_u64()).collect(),
            unnamed: request.unnamed,
        }
    }
}
