//! Tables, which are no part of a transaction.

use bytes::Bytes;

use super::Transactions;
use super::beginning::Beginning;
use crate::caller::Caller;
use crate::failure::Failure;

impl Transactions {
    /// Makes a table, cut into tablets at these rows. Until it is there the call has the place of a session: no client
    /// keeps the others from having their own made.
    pub(crate) async fn create_table(
        &self,
        caller: &Caller,
        table: &str,
        split_at: &[Bytes],
    ) -> Result<(), Failure> {
        let client = caller.client(self.client()?);
        let _place = Beginning::place(self, caller.address)?;
        let created = client.create_table(table, split_at).await;
        created.map_err(|error| Failure::from(error).with("table", table))
    }
}
