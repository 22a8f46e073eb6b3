//! Large transactions that are not tidy: they write rows downwards or in any order, pause between flushes, make a long
//! value short and long again, delete in between, read whole rows and what others change, and some end without a commit.
//! Half of the rows have names of 300 bytes. `invariants/exact_reads` and the checker of histories know what they
//! should have seen.

use std::time::Duration;

use futures_util::FutureExt;
use percolator_client::Error;
use percolator_client::transport::BoxFuture;

use super::{TableSpec, Workload, tagged};
use crate::recorder::{Recorded, Session};

/// Its name.
pub(super) const NAME: &str = "pipelined";
const TABLE: &str = NAME;
const ROWS: u64 = 10;
const COLUMNS: [&str; 2] = ["a", "b"];
/// Longer than what a lock or a write record holds.
const LONG_BYTES: usize = 300;
/// How long values are, about: around what a lock and a record hold, and what a server keeps in memory together with a long row.
const WIDTHS: [usize; 6] = [0, 180, 250, 255, 256, LONG_BYTES];
/// Cells that one transaction writes, at most: some of them more than once.
const WRITES: u64 = 30;
/// A pause is about so long: several of a transaction are longer than a short retention.
const PAUSE: Duration = Duration::from_millis(40);

/// The workload.
pub struct Pipelined;

/// Every second one is longer than what one byte counts.
fn row(row: u64) -> String {
    let name = format!("r{row}");
    if row.is_multiple_of(2) {
        name
    } else {
        format!("{name:-<LONG_BYTES$}")
    }
}

impl Pipelined {
    async fn write(&self, session: &Session) -> Result<(), Error> {
        let txn = session.begin().await?;
        let downwards = session.below(2) == 0;
        let count = 2 + session.below(WRITES - 1);
        for number in 0..count {
            let at = if downwards {
                ROWS - 1 - number * ROWS / count
            } else {
                session.key(ROWS)
            };
            let column = COLUMNS[session.below(2) as usize];
            match session.below(8) {
                0 => txn.delete(TABLE, &row(at), column)?,
                1 => self.look(session, &txn).await?,
                2 => {
                    let pause = session.rng.lock().about(PAUSE);
                    session.world.sleep(pause).await;
                }
                _ => {
                    let value = tagged(1, session);
                    let width = WIDTHS[session.below(WIDTHS.len() as u64) as usize];
                    txn.put(TABLE, &row(at), column, format!("{value:width$}"))?;
                }
            }
            txn.ready().await?;
        }
        if session.below(8) == 0 {
            return Ok(());
        }
        txn.commit().await.map(drop)
    }

    /// Reads what is its own, or what others change.
    async fn look(&self, session: &Session, txn: &Recorded) -> Result<(), Error> {
        let row = row(session.key(ROWS));
        match session.below(4) {
            0 => txn.get(TABLE, &row, COLUMNS[0]).await.map(drop),
            1 => txn.get_for_update(TABLE, &row, COLUMNS[1]).await.map(drop),
            2 => {
                let cells = COLUMNS.map(|column| (TABLE, row.as_bytes(), column.as_bytes()));
                txn.batch_get(&cells).await.map(drop)
            }
            _ => self.whole_row(session, txn, &row).await,
        }
    }

    async fn whole_row(&self, session: &Session, txn: &Recorded, row: &str) -> Result<(), Error> {
        let behind = format!("{row}\0");
        let reverse = session.below(2) == 0;
        txn.scan(TABLE, row, &behind, reverse).await.map(drop)
    }

    async fn read(&self, session: &Session) -> Result<(), Error> {
        let txn = session.begin().await?;
        for _ in 0..1 + session.below(3) {
            self.look(session, &txn).await?;
        }
        if session.below(4) == 0 {
            let reverse = session.below(2) == 0;
            txn.scan(TABLE, "", "", reverse).await?;
        }
        txn.commit().await.map(drop)
    }
}

impl Workload for Pipelined {
    fn name(&self) -> &'static str {
        NAME
    }

    fn invariants(&self) -> &'static [&'static str] {
        &[]
    }

    fn tables(&self) -> Vec<TableSpec> {
        vec![(TABLE, vec!["r3", "r6"])]
    }

    fn load<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<(), Error>> {
        self.write(session).boxed()
    }

    fn step<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            if session.below(3) == 0 {
                self.read(session).await
            } else {
                self.write(session).await
            }
        }
        .boxed()
    }

    fn check<'a>(&'a self, _: &'a Session) -> BoxFuture<'a, Result<Option<String>, Error>> {
        async { Ok(None) }.boxed()
    }
}
