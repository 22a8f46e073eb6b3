//! Large transactions: many cells over two tables, some of them with values too long for a lock, all
//! set to one number. No snapshot sees two numbers. In many runs clients buffer much less than that, so that they
//! flush on the way, what is written again later too, and read it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use percolator_client::Error;
use percolator_client::transport::BoxFuture;

use super::{TableSpec, Workload, number, tagged};
use crate::recorder::{Recorded, Session};

const TABLES: [&str; 2] = ["large_a", "large_b"];
const ROWS: u64 = 20;
const COLUMNS: [&str; 2] = ["short", "long"];
/// Longer than what a lock or a write record holds.
const LONG_BYTES: usize = 300;

/// After so many transactions of a run each one waits first, for about this long: one that scans takes 80 requests where
/// an answer holds one cell, and thousands of those, as clients without faults make them, took ten seconds.
const SOON: u64 = 150;
const WAIT: Duration = Duration::from_millis(400);
/// All cells of a transaction have one number.
const ONE: &str = "large: one number";
/// It sees what it has written itself.
const OWN: &str = "large: own writes";

/// The workload.
#[derive(Default)]
pub struct Large {
    begun: AtomicU64,
}

impl Large {
    /// Writes every cell, some of them twice and deleted in between, and looks at them on the way. What is wrong with
    /// what it sees of its own, if anything.
    async fn write(&self, session: &Session) -> Result<Option<String>, Error> {
        let txn = session.begin().await?;
        let now = session.below(1_000_000) as i64;
        // Read by nobody else, ever.
        let not_yet = -1 - now;
        let first = session.below(3) == 0;
        if first {
            if let Some(wrong) = self.write_all(session, &txn, not_yet).await? {
                return Ok(Some(wrong));
            }
            let (table, row) = (TABLES[1], format!("{:03}", session.below(ROWS)));
            COLUMNS
                .iter()
                .try_for_each(|column| txn.delete(table, &row, column))?;
            let seen = txn.get(table, &row, COLUMNS[1]).await?;
            if seen.is_some() {
                return Ok(Some(format!("row {row} was deleted, and is {seen:?}")));
            }
            let deleted = COLUMNS.len() as u64;
            if let Some(wrong) = own(&txn, TABLES[1], not_yet, deleted, session).await? {
                return Ok(Some(wrong));
            }
        }
        if let Some(wrong) = self.write_all(session, &txn, now).await? {
            return Ok(Some(wrong));
        }
        if first && let Some(wrong) = own(&txn, TABLES[0], now, 0, session).await? {
            return Ok(Some(wrong));
        }
        txn.commit().await?;
        Ok(None)
    }

    async fn write_all(
        &self,
        session: &Session,
        txn: &Recorded,
        number_now: i64,
    ) -> Result<Option<String>, Error> {
        for table in TABLES {
            for row in 0..ROWS {
                let name = format!("{row:03}");
                let value = tagged(number_now, session);
                let long = format!("{value:LONG_BYTES$}");
                txn.put(table, &name, COLUMNS[0], value)?;
                txn.put(table, &name, COLUMNS[1], long)?;
                txn.ready().await?;
                if session.below(20) == 0 {
                    let name = format!("{:03}", session.below(row + 1));
                    let column = COLUMNS[session.below(2) as usize];
                    let seen = txn.get(table, &name, column).await?;
                    if number(seen.as_ref()) != number_now {
                        return Ok(Some(format!(
                            "transaction {} has put {number_now} into row {name}, and reads {seen:?}",
                            txn.start_ts()
                        )));
                    }
                }
            }
        }
        Ok(None)
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

/// Whether a transaction that has put this number into every cell of a table, and deleted so many since, sees that.
async fn own(
    txn: &Recorded,
    table: &str,
    wanted: i64,
    deleted: u64,
    session: &Session,
) -> Result<Option<String>, Error> {
    let cells = txn.scan(table, "", "", session.below(2) == 0).await?;
    let numbers: BTreeSet<i64> = cells
        .iter()
        .map(|(_, _, value)| number(Some(value)))
        .collect();
    let count = ROWS * COLUMNS.len() as u64 - deleted;
    let right = cells.len() as u64 == count && numbers.iter().eq([&wanted]);
    Ok((!right).then(|| {
        format!(
            "transaction {} has {count} cells of {wanted} in {table}, and sees {} of {numbers:?}",
            txn.start_ts(),
            cells.len()
        )
    }))
}

impl Workload for Large {
    fn name(&self) -> &'static str {
        "large"
    }

    fn invariants(&self) -> &'static [&'static str] {
        &[ONE, OWN]
    }

    fn tables(&self) -> Vec<TableSpec> {
        vec![(TABLES[0], vec!["007", "014"]), (TABLES[1], vec!["010"])]
    }

    fn load<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<(), Error>> {
        self.write(session).map(|result| result.map(drop)).boxed()
    }

    fn step<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            if self.begun.fetch_add(1, Ordering::Relaxed) >= SOON {
                let wait = session.rng.lock().about(WAIT);
                session.world.sleep(wait).await;
            }
            match session.below(6) {
                0 => {
                    if let Some(wrong) = self.write(session).await? {
                        session.world.fail(OWN, wrong);
                    }
                    Ok(())
                }
                1 => {
                    if let Some(wrong) = self.read(session).await? {
                        session.world.fail(ONE, wrong);
                    }
                    Ok(())
                }
                // The others are many cells each: not too many of them.
                _ => {
                    if let Some(wrong) = self.read_row(session).await? {
                        session.world.fail(ONE, wrong);
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
