//! Calls that read, and what every call of a session has.

use std::net::IpAddr;

use bytes::Bytes;
use percolator_client::Error;

use super::{CellAt, SessionTxn, Transactions, check_count};
use crate::failure::Failure;
use crate::transit::Counted;

/// What cells have that were read, and that it is on its way.
#[derive(Debug, Default)]
pub(crate) struct Values {
    pub(crate) values: Vec<Option<Bytes>>,
    pub(crate) counted: Option<Counted>,
}

/// The reason why cells are not read.
enum NotRead {
    Failed(Error),
    /// There is no room for their values.
    Full(Failure),
}

impl From<Error> for NotRead {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Transactions {
    pub(crate) async fn get(&self, session: &str, cell: &CellAt) -> Result<Values, Failure> {
        let (txn, call) = self.call(session)?;
        let result = txn.txn.get(&cell.table, &cell.row, &cell.column).await;
        call.one(result)
    }

    pub(crate) async fn get_for_update(
        &self,
        session: &str,
        cell: &CellAt,
    ) -> Result<Values, Failure> {
        let (txn, call) = self.call(session)?;
        self.check_room(session, cell.buffered_bytes(0))?;
        let txn = &txn.txn;
        let result = txn
            .get_for_update(&cell.table, &cell.row, &cell.column)
            .await;
        self.written(session, txn);
        call.one(result)
    }

    pub(crate) async fn batch_get(
        &self,
        session: &str,
        cells: &[CellAt],
    ) -> Result<Values, Failure> {
        check_count(cells.len())?;
        let (txn, call) = self.call(session)?;
        let names: Vec<(&str, &[u8], &[u8])> = cells
            .iter()
            .map(|cell| (&*cell.table, &*cell.row, &*cell.column))
            .collect();
        let mut counted = self.transit.counted(call.client);
        let count = |bytes| counted.take(bytes).map_err(NotRead::Full);
        match txn.txn.batch_get_counted(&names, count).await {
            Ok(values) => Ok(Values {
                values,
                counted: Some(counted),
            }),
            Err(NotRead::Failed(error)) => Err(self.failed(session, error)),
            Err(NotRead::Full(failure)) => Err(failure),
        }
    }

    pub(super) fn call<'a>(
        &'a self,
        session: &'a str,
    ) -> Result<(SessionTxn, CallGuard<'a>), Failure> {
        let called = self.sessions.lock().call(self.now(), session);
        let (txn, client) = called.map_err(|refusal| self.refused(session, refusal))?;
        let guard = CallGuard {
            of: self,
            session,
            client,
        };
        Ok((txn, guard))
    }
}

/// A call under way.
pub(super) struct CallGuard<'a> {
    of: &'a Transactions,
    session: &'a str,
    client: IpAddr,
}

impl CallGuard<'_> {
    /// The value of the only cell that was read, for the client's answer, if there is room for it on the way.
    fn one(&self, result: Result<Option<Bytes>, Error>) -> Result<Values, Failure> {
        let value = result.map_err(|error| self.of.failed(self.session, error))?;
        let mut counted = self.of.transit.counted(self.client);
        counted.take(value.as_ref().map_or(0, Bytes::len))?;
        Ok(Values {
            values: vec![value],
            counted: Some(counted),
        })
    }
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        let now = self.of.now();
        let mut sessions = self.of.sessions.lock();
        sessions.call_done(now, self.session, self.client);
    }
}
