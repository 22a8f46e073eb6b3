//! What a session that is about to begin leaves behind if it doesn't: nothing.

use std::net::IpAddr;

use super::{CellAt, Transactions, Values};
use crate::failure::Failure;

impl Transactions {
    /// Reads cells along with the beginning of a session: if they can't be, no session is left.
    pub(super) async fn first_values(
        &self,
        session: &str,
        cells: &[CellAt],
    ) -> Result<Values, Failure> {
        if cells.is_empty() {
            return Ok(Values::default());
        }
        let mut unanswered = Unanswered {
            of: self,
            session,
            is_done: false,
        };
        let values = self.batch_get(session, cells).await?;
        unanswered.is_done = true;
        Ok(values)
    }
}

/// A session that is about to begin.
pub(super) struct Beginning<'a> {
    pub(super) of: &'a Transactions,
    pub(super) client: IpAddr,
    pub(super) is_done: bool,
}

impl<'a> Beginning<'a> {
    /// Takes the place of a session.
    pub(super) fn place(of: &'a Transactions, client: IpAddr) -> Result<Self, Failure> {
        of.sessions.lock().begin(client)?;
        Ok(Self {
            of,
            client,
            is_done: false,
        })
    }
}

impl Drop for Beginning<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.of.sessions.lock().not_begun(self.client);
            self.of.ended.notify_waiters();
        }
    }
}

/// A session whose token nobody has yet: it ends with the call that began it.
struct Unanswered<'a> {
    of: &'a Transactions,
    session: &'a str,
    is_done: bool,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            // One that has ended needs no more.
            let _ = self.of.rollback(self.session);
        }
    }
}
