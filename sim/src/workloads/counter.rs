//! Increments: the number that comes out is that of the increments that were answered, and of no more
//! than those besides whose answer was lost.

use std::sync::atomic::{AtomicI64, Ordering};

use futures_util::FutureExt;
use percolator_client::Error;
use percolator_client::transport::BoxFuture;

use super::{TableSpec, Workload, number, tagged};
use crate::recorder::Session;

const TABLE: &str = "counters";
const COUNTERS: u64 = 2;
const COLUMN: &str = "count";

/// The workload.
#[derive(Default)]
pub struct Counter {
    /// Answered.
    sure: AtomicI64,
    /// Begun and not known to have failed.
    maybe: AtomicI64,
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
        // A client that is killed from here on leaves it so.
        self.maybe.fetch_add(1, Ordering::Relaxed);
        let result = txn.commit().await;
        match &result {
            Ok(_) => {
                self.sure.fetch_add(1, Ordering::Relaxed);
            }
            Err(Error::Unknown { .. }) => {}
            Err(_) => {
                self.maybe.fetch_sub(1, Ordering::Relaxed);
            }
        }
        result.map(drop)
    }
}

impl Workload for Counter {
    fn name(&self) -> &'static str {
        "counter"
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
        self.add(session).boxed()
    }

    fn check<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<Option<String>, Error>> {
        async move {
            let txn = session.begin().await?;
            let mut count = 0;
            for counter in 0..COUNTERS {
                count += number(txn.get(TABLE, &row(counter), COLUMN).await?.as_ref());
            }
            let sure = self.sure.load(Ordering::Relaxed);
            let maybe = self.maybe.load(Ordering::Relaxed);
            Ok((count < sure || count > maybe).then(|| {
                format!(
                    "{sure} increments were answered, {maybe} begun, and the counters say {count}"
                )
            }))
        }
        .boxed()
    }
}
