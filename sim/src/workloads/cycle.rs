//! A ring of cells, each naming the next: swaps of neighbours keep it one ring (FoundationDB's Cycle
//! workload). A lost update, or a swap that is seen in part, makes two rings of it.

use bytes::Bytes;
use futures_util::FutureExt;
use percolator_client::Error;
use percolator_client::transport::BoxFuture;

use super::{TableSpec, Workload, number, tagged};
use crate::recorder::{Recorded, Session};

const TABLE: &str = "cycle";
const NODES: i64 = 8;
const COLUMN: &str = "next";
const LOOKED_AT: &str = "cycle: one ring";

/// The workload.
pub struct Cycle;

fn row(node: i64) -> String {
    format!("node{node}")
}

async fn next(txn: &Recorded, node: i64) -> Result<i64, Error> {
    let value = txn.get(TABLE, &row(node), COLUMN).await?;
    Ok(number(value.as_ref()))
}

impl Cycle {
    async fn swap(&self, session: &Session) -> Result<(), Error> {
        let txn = session.begin().await?;
        let first = session.below(NODES as u64) as i64;
        let second = next(&txn, first).await?;
        let third = next(&txn, second).await?;
        let fourth = next(&txn, third).await?;
        for (from, to) in [(first, third), (third, second), (second, fourth)] {
            txn.put(TABLE, &row(from), COLUMN, tagged(to, session))?;
        }
        txn.commit().await.map(drop)
    }

    async fn walk(&self, session: &Session) -> Result<Option<String>, Error> {
        let txn = session.begin().await?;
        let cells: Vec<(Bytes, Bytes, Bytes)> = txn.scan(TABLE, "", "", false).await?;
        let next: Vec<i64> = cells
            .iter()
            .map(|(_, _, value)| number(Some(value)))
            .collect();
        let (mut at, mut length) = (0, 0);
        loop {
            at = next.get(at as usize).copied().unwrap_or(-1);
            length += 1;
            if at == 0 || length > NODES {
                break;
            }
        }
        let snapshot = txn.start_ts();
        Ok((length != NODES || cells.len() as i64 != NODES)
            .then(|| format!("at snapshot {snapshot} the ring of {NODES} is {next:?}")))
    }
}

impl Workload for Cycle {
    fn name(&self) -> &'static str {
        "cycle"
    }

    fn invariants(&self) -> &'static [&'static str] {
        &[LOOKED_AT]
    }

    fn tables(&self) -> Vec<TableSpec> {
        vec![(TABLE, vec!["node3", "node6"])]
    }

    fn load<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            let txn = session.begin().await?;
            for node in 0..NODES {
                let to = (node + 1) % NODES;
                txn.put(TABLE, &row(node), COLUMN, tagged(to, session))?;
            }
            txn.commit().await.map(drop)
        }
        .boxed()
    }

    fn step<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            if session.below(4) == 0 {
                if let Some(wrong) = self.walk(session).await? {
                    session.world.fail(LOOKED_AT, wrong);
                }
                Ok(())
            } else {
                self.swap(session).await
            }
        }
        .boxed()
    }

    fn check<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<Option<String>, Error>> {
        self.walk(session).boxed()
    }
}
