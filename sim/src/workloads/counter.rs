//! Increments: the number that comes out is that of the increments that were committed, exactly. Where an
//! answer was lost, or its client has died, the cluster is asked in the end; where its records are collected by
//! then, both are possible.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};

use futures_util::FutureExt;
use parking_lot::Mutex;
use percolator_client::transport::BoxFuture;
use percolator_client::{Cell, Error, Outcome, TableId, Timestamp};

use super::{TableSpec, Workload, number, tagged};
use crate::recorder::Session;

const TABLE: &str = "counters";
const COUNTERS: u64 = 2;
const COLUMN: &str = "count";
const LOOKED_AT: &str = "counter";

/// The workload.
#[derive(Default)]
pub struct Counter {
    /// Answered.
    sure: AtomicI64,
    /// Told to commit, and not answered: the row, by the start_ts.
    unknown: Mutex<BTreeMap<Timestamp, String>>,
}

fn row(counter: u64) -> String {
    format!("counter{counter}")
}

impl Counter {
    async fn add(&self, session: &Session) -> Result<(), Error> {
        let row = row(session.below(COUNTERS));
        let txn = session.begin().await?;
        let count = number(txn.get(TABLE, &row, COLUMN).await?.as_ref());
        txn.put(TABLE, &row, COLUMN, tagged(count + 1, session))?;
        let start_ts = txn.start_ts();
        // A client that is killed from here on leaves it so.
        self.unknown.lock().insert(start_ts, row);
        let result = txn.commit().await;
        match &result {
            Ok(_) => {
                self.sure.fetch_add(1, Ordering::Relaxed);
                self.unknown.lock().remove(&start_ts);
            }
            Err(Error::Unknown { .. }) => {}
            Err(_) => {
                self.unknown.lock().remove(&start_ts);
            }
        }
        result.map(drop)
    }

    /// Reads a counter, which has to be right (`invariants/exact_reads.rs`).
    async fn look(&self, session: &Session) -> Result<(), Error> {
        let txn = session.begin().await?;
        txn.get(TABLE, &row(session.below(COUNTERS)), COLUMN)
            .await?;
        txn.commit().await.map(drop)
    }

    /// How many of those whose answer was lost are committed, and of how many nobody knows any more.
    async fn committed(&self, session: &Session) -> Result<(i64, i64), Error> {
        let tables = session.client.tables().await?;
        let table = tables.iter().find(|table| table.name == TABLE);
        let table = TableId(table.map_or(0, |table| table.id));
        let unknown = self.unknown.lock().clone();
        let (mut committed, mut forgotten) = (0, 0);
        for (start_ts, row) in unknown {
            // The only cell that it writes.
            let primary = Cell::new(table, row, COLUMN);
            match session.client.outcome(start_ts, &primary).await {
                Ok(Outcome::Committed(_)) => committed += 1,
                Ok(Outcome::RolledBack) => {}
                Ok(Outcome::Forgotten) => forgotten += 1,
                Err(error) => return Err(error),
                Ok(Outcome::Pending) => {
                    return Err(Error::Unavailable(format!("{start_ts} is under way")));
                }
            }
        }
        Ok((committed, forgotten))
    }
}

impl Workload for Counter {
    fn name(&self) -> &'static str {
        "counter"
    }

    fn invariants(&self) -> &'static [&'static str] {
        &[LOOKED_AT]
    }

    fn tables(&self) -> Vec<TableSpec> {
        vec![(TABLE, vec!["counter1"])]
    }

    fn load<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            let txn = session.begin().await?;
            for counter in 0..COUNTERS {
                txn.put(TABLE, &row(counter), COLUMN, tagged(0, session))?;
            }
            txn.commit().await.map(drop)
        }
        .boxed()
    }

    fn step<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            match session.below(4) {
                // Anyone who reads and writes nothing must not be overtaken by a commit below its snapshot either.
                0 => self.look(session).await,
                _ => self.add(session).await,
            }
        }
        .boxed()
    }

    fn check<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<Option<String>, Error>> {
        async move {
            let (lost, forgotten) = self.committed(session).await?;
            let txn = session.begin().await?;
            let mut count = 0;
            for counter in 0..COUNTERS {
                count += number(txn.get(TABLE, &row(counter), COLUMN).await?.as_ref());
            }
            let sure = self.sure.load(Ordering::Relaxed);
            let may_be = sure + lost..=sure + lost + forgotten;
            Ok((!may_be.contains(&count)).then(|| {
                format!(
                    "{sure} increments were answered, {lost} are committed besides, of {forgotten} nobody knows, \
                     and the counters say {count}"
                )
            }))
        }
        .boxed()
    }
}
