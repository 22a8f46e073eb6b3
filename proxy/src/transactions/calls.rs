//! Calls that read, and what every call of a session has.

use std::net::IpAddr;

use bytes::Bytes;
use percolator_client::Error;

use super::{CellAt, SessionTxn, Transactions, check_count};
use crate::failure::Failure;
use crate::transit::Counted;

/// Cells that are read at a time, before it is known how large they are.
const READ_AT_A_TIME: usize = 32;

/// What cells have that were read, and that it is on its way.
#[derive(Debug, Default)]
pub(crate) struct Values {
    pub(crate) values: Vec<Option<Bytes>>,
    counted: Option<Counted>,
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
        let mut read = Values::default();
        for names in names.chunks(READ_AT_A_TIME) {
            let result = txn.txn.batch_get(names).await;
            call.add(&mut read, result)?;
        }
        Ok(read)
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
    /// The value of the only cell that was read, for the client's answer.
    fn one(&self, result: Result<Option<Bytes>, Error>) -> Result<Values, Failure> {
        let mut read = Values::default();
        self.add(&mut read, result.map(|value| vec![value]))?;
        Ok(read)
    }

    /// Adds to what the client is answered, if there is room for it on the way.
    fn add(
        &self,
        read: &mut Values,
        result: Result<Vec<Option<Bytes>>, Error>,
    ) -> Result<(), Failure> {
        let values = result.map_err(|error| self.of.failed(self.session, error))?;
        let counted = read.counted.take();
        let mut counted = counted.unwrap_or_else(|| self.of.transit.counted(self.client));
        counted.take(values.iter().flatten().map(Bytes::len).sum())?;
        read.counted = Some(counted);
        read.values.extend(values);
        Ok(())
    }
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        let now = self.of.now();
        let mut sessions = self.of.sessions.lock();
        sessions.call_done(now, self.session, self.client);
    }
}
