//! Transactions that read what they have written themselves, by every way of reading there is, before and after they
//! write it again, and abort some of it: `invariants/exact_reads` and the checker of histories know what they should
//! have seen (read your writes; Cerone and Gotsman's axiom INT).

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join;
use percolator_client::Error;
use percolator_client::transport::BoxFuture;

use super::{TableSpec, Workload, tagged};
use crate::recorder::{Recorded, Session};

const TABLE: &str = "own";
const ROWS: u64 = 6;
const COLUMNS: [&str; 2] = ["a", "b"];
/// How long one waits before its first step, about, that waits.
const AGES: Duration = Duration::from_millis(60);
/// Steps of one transaction, at most.
const STEPS: u64 = 8;

/// The workload.
pub struct Own;

fn row(row: u64) -> String {
    format!("r{row}")
}

impl Own {
    async fn some(&self, session: &Session) -> Result<(), Error> {
        let txn = session.begin().await?;
        // What it finds may be much younger than its snapshot.
        if session.below(6) == 0 {
            let pause = session.rng.lock().about(AGES);
            session.world.sleep(pause).await;
        }
        for _ in 0..2 + session.below(STEPS - 1) {
            self.one(session, &txn).await?;
        }
        // Sometimes it ends without having been told to commit.
        if session.below(6) == 0 {
            return Ok(());
        }
        txn.commit().await.map(drop)
    }

    async fn one(&self, session: &Session, txn: &Recorded) -> Result<(), Error> {
        // Few rows a transaction, so that it mostly meets what it wrote.
        let near = txn.start_ts().as_u64() % if session.few_keys { 1 } else { ROWS };
        let row = row((near + session.below(2)) % ROWS);
        let column = COLUMNS[session.below(2) as usize];
        match session.below(9) {
            // Two calls at a time.
            8 => {
                let get = txn.get(TABLE, &row, column);
                let (got, scanned) = join(get, txn.scan(TABLE, &row, "", false)).await;
                got.and(scanned.map(drop))
            }
            0 | 1 => txn.put(TABLE, &row, column, tagged(1, session)),
            2 => txn.delete(TABLE, &row, column),
            3 => txn.get(TABLE, &row, column).await.map(drop),
            4 => txn.get_for_update(TABLE, &row, column).await.map(drop),
            5 => {
                let cells = COLUMNS.map(|column| (TABLE, row.as_bytes(), column.as_bytes()));
                txn.batch_get(&cells).await.map(drop)
            }
            way => {
                let (start, end) = match session.below(2) {
                    0 => ("", ""),
                    _ => (&*row, ""),
                };
                txn.scan(TABLE, start, end, way == 6).await.map(drop)
            }
        }
    }
}

impl Workload for Own {
    fn name(&self) -> &'static str {
        "own"
    }

    fn invariants(&self) -> &'static [&'static str] {
        &[]
    }

    fn tables(&self) -> Vec<TableSpec> {
        vec![(TABLE, vec!["r2", "r4"])]
    }

    fn load<'a>(&'a self, _: &'a Session) -> BoxFuture<'a, Result<(), Error>> {
        async { Ok(()) }.boxed()
    }

    fn step<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<(), Error>> {
        self.some(session).boxed()
    }

    fn check<'a>(&'a self, _: &'a Session) -> BoxFuture<'a, Result<Option<String>, Error>> {
        async { Ok(None) }.boxed()
    }
}
