//! A table that is deleted and created again under its name while transactions use it: each of them uses one of the two.

use std::time::Duration;

use futures_util::FutureExt;
use percolator_client::Error;
use percolator_client::transport::BoxFuture;

use super::{TableSpec, Workload, number, tagged};
use crate::recorder::Session;

const TABLE: &str = "again";
/// Cells in two tablets, whose numbers are the same in any one table.
const ROWS: [&str; 2] = ["a", "b"];
const COLUMN: &str = "c";
/// What it looks at.
const ONE_TABLE: &str = "again: one table";

/// The workload.
pub struct Again;

impl Again {
    async fn make_again(&self, session: &Session) -> Result<(), Error> {
        match session.client.delete_table(TABLE).await {
            Ok(()) | Err(Error::UnknownTable { .. }) => {}
            Err(error) => return Err(error),
        }
        session.client.create_table(TABLE, &[ROWS[1].into()]).await
    }

    async fn count(&self, session: &Session) -> Result<(), Error> {
        let txn = session.begin().await?;
        let mut numbers = Vec::new();
        for row in ROWS {
            numbers.push(number(txn.get(TABLE, row, COLUMN).await?.as_ref()));
            self.pause(session).await;
        }
        if numbers[0] != numbers[1] {
            let detail = format!("{} read {numbers:?}, at {}", session.name, txn.start_ts());
            session.world.fail(ONE_TABLE, detail);
        }
        for row in ROWS {
            txn.put(TABLE, row, COLUMN, tagged(numbers[0] + 1, session))?;
            self.pause(session).await;
        }
        txn.commit().await.map(drop)
    }

    /// In which the table may be made again.
    async fn pause(&self, session: &Session) {
        let ms = session.below(20);
        session.world.sleep(Duration::from_millis(ms)).await;
    }
}

impl Workload for Again {
    fn name(&self) -> &'static str {
        "again"
    }

    fn invariants(&self) -> &'static [&'static str] {
        &[ONE_TABLE]
    }

    fn tables(&self) -> Vec<TableSpec> {
        vec![(TABLE, vec![ROWS[1]])]
    }

    fn is_left_out(&self, table: &str) -> bool {
        table == TABLE
    }

    fn load<'a>(&'a self, _: &'a Session) -> BoxFuture<'a, Result<(), Error>> {
        async { Ok(()) }.boxed()
    }

    fn step<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            if session.below(12) == 0 {
                return self.make_again(session).await;
            }
            match self.count(session).await {
                // Anyone who was to make it again didn't.
                Err(Error::UnknownTable { .. }) => {
                    session.client.create_table(TABLE, &[ROWS[1].into()]).await
                }
                counted => counted,
            }
        }
        .boxed()
    }

    /// A deletion that was begun is ended, and so is a creation that was lost with the master's state.
    fn check<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<Option<String>, Error>> {
        async move {
            let tables = session.client.tables().await?;
            if tables
                .iter()
                .any(|table| table.name == TABLE && !table.ready)
            {
                session.client.delete_table(TABLE).await?;
            }
            Ok(None)
        }
        .boxed()
    }
}
