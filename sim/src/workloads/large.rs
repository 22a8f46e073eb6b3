//! Large transactions: many cells over two tables, some of them with values too long for a lock, all
//! set to one number. No snapshot sees two numbers.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use percolator_client::Error;
use percolator_client::transport::BoxFuture;

use super::{TableSpec, Workload, number, tagged};
use crate::recorder::Session;

const TABLES: [&str; 2] = ["large_a", "large_b"];
const ROWS: u64 = 20;
const COLUMNS: [&str; 2] = ["short", "long"];
/// Longer than what a lock or a write record holds.
const LONG_BYTES: usize = 300;

/// After so many transactions of a run each one waits first, for about this long: one that scans takes 80 requests where
/// an answer holds one cell, and thousands of those, as clients without faults make them, took ten seconds.
const SOON: u64 = 150;
const WAIT: Duration = Duration::from_millis(400);

/// The workload.
#[derive(Default)]
pub struct Large {
    begun: AtomicU64,
}

impl Large {
    async fn write(&self, session: &Session) -> Result<(), Error> {
        let txn = session.begin().await?;
        let now = session.below(1_000_000) as i64;
        for table in TABLES {
            for row in 0..ROWS {
                let row = format!("{row:03}");
                let value = tagged(now, session);
                txn.put(table, &row, COLUMNS[0], value.clone())?;
                txn.put(table, &row, COLUMNS[1], format!("{value:LONG_BYTES$}"))?;
            }
        }
        txn.commit().await.map(drop)
    }

    /// One row of each table, short and long.
    async fn read_row(&self, session: &Session) -> Result<Option<String>, Error> {
        let row = format!("{:03}", session.below(ROWS));
        let txn = session.begin().await?;
        let cells: Vec<_> = TABLES
            .into_iter()
            .flat_map(|table| COLUMNS.map(|column| (table, row.as_bytes(), column.as_bytes())))
            .collect();
        let values = txn.batch_get(&cells).await?;
        let numbers: BTreeSet<i64> = values.iter().map(|value| number(value.as_ref())).collect();
        let snapshot = txn.start_ts();
        Ok((numbers.len() != 1).then(|| {
            format!("at snapshot {snapshot} the cells of row {row} have the numbers {numbers:?}")
        }))
    }

    async fn read(&self, session: &Session) -> Result<Option<String>, Error> {
        let txn = session.begin().await?;
        let mut numbers = BTreeSet::new();
        let mut cells = 0;
        for table in TABLES {
            for (_, _, value) in txn.scan(table, "", "", session.below(2) == 0).await? {
                numbers.insert(number(Some(&value)));
                cells += 1;
            }
        }
        let wanted = TABLES.len() as u64 * ROWS * COLUMNS.len() as u64;
        let snapshot = txn.start_ts();
        Ok((numbers.len() != 1 || cells != wanted).then(|| {
            format!("at snapshot {snapshot} {cells} of {wanted} cells have the numbers {numbers:?}")
        }))
    }
}

impl Workload for Large {
    fn name(&self) -> &'static str {
        "large"
    }

    fn tables(&self) -> Vec<TableSpec> {
        vec![(TABLES[0], vec!["007", "014"]), (TABLES[1], vec!["010"])]
    }

    fn load<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<(), Error>> {
        self.write(session).boxed()
    }

    fn step<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            if self.begun.fetch_add(1, Ordering::Relaxed) >= SOON {
                let wait = session.rng.lock().about(WAIT);
                session.world.sleep(wait).await;
            }
            match session.below(6) {
                0 => self.write(session).await,
                1 => {
                    if let Some(wrong) = self.read(session).await? {
                        session.world.fail("large: one number", wrong);
                    }
                    Ok(())
                }
                // The others are many cells each: not too many of them.
                _ => {
                    if let Some(wrong) = self.read_row(session).await? {
                        session.world.fail("large: one number", wrong);
                    }
                    Ok(())
                }
            }
        }
        .boxed()
    }

    fn check<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<Option<String>, Error>> {
        self.read(session).boxed()
    }
}
