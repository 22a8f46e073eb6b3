//! Pairs of which at least one has to be on (the doctors on call of Cahill et al., "Serializable Isolation
//! for Snapshot Databases", 2008). Anyone who turns one off gets the other for update, which forbids the
//! write skew that snapshot isolation allows. In a second table nobody does, and the skew may happen.

use futures_util::FutureExt;
use percolator_client::Error;
use percolator_client::transport::BoxFuture;

use super::{TableSpec, Workload, number, tagged};
use crate::recorder::Session;

const GUARDED: &str = "skew_guarded";
const BARE: &str = "skew_bare";
const PAIRS: u64 = 3;
const COLUMN: &str = "on";
const LOOKED_AT: &str = "skew: one is on";

/// The workload.
pub struct Skew;

/// The two of a pair lie in rows of their own, mostly on two servers.
fn row(pair: u64, half: u64) -> String {
    format!("{half}/{pair}")
}

impl Skew {
    async fn turn(&self, session: &Session, table: &str) -> Result<(), Error> {
        let pair = session.below(PAIRS);
        let half = session.below(2);
        let (mine, other) = (row(pair, half), row(pair, 1 - half));
        let txn = session.begin().await?;
        let is_on = number(txn.get(table, &mine, COLUMN).await?.as_ref());
        if is_on == 0 {
            txn.put(table, &mine, COLUMN, tagged(1, session))?;
        } else {
            let other_on = if table == GUARDED {
                txn.get_for_update(table, &other, COLUMN).await?
            } else {
                txn.get(table, &other, COLUMN).await?
            };
            if number(other_on.as_ref()) == 1 {
                txn.put(table, &mine, COLUMN, tagged(0, session))?;
            }
        }
        txn.commit().await.map(drop)
    }

    async fn look(&self, session: &Session) -> Result<Option<String>, Error> {
        let txn = session.begin().await?;
        for pair in 0..PAIRS {
            let rows = [row(pair, 0), row(pair, 1)];
            let cells: Vec<_> = rows
                .iter()
                .map(|row| (GUARDED, row.as_bytes(), COLUMN.as_bytes()))
                .collect();
            let values = txn.batch_get(&cells).await?;
            if values.iter().all(|value| number(value.as_ref()) == 0) {
                let snapshot = txn.start_ts();
                return Ok(Some(format!(
                    "at snapshot {snapshot} both of pair {pair} are off"
                )));
            }
        }
        Ok(None)
    }
}

impl Workload for Skew {
    fn name(&self) -> &'static str {
        "skew"
    }

    fn invariants(&self) -> &'static [&'static str] {
        &[LOOKED_AT]
    }

    fn tables(&self) -> Vec<TableSpec> {
        vec![(GUARDED, vec!["1/"]), (BARE, vec!["1/"])]
    }

    fn load<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            let txn = session.begin().await?;
            for table in [GUARDED, BARE] {
                for pair in 0..PAIRS {
                    for half in 0..2 {
                        txn.put(table, &row(pair, half), COLUMN, tagged(1, session))?;
                    }
                }
            }
            txn.commit().await.map(drop)
        }
        .boxed()
    }

    fn step<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            match session.below(8) {
                0 => {
                    if let Some(wrong) = self.look(session).await? {
                        session.world.fail(LOOKED_AT, wrong);
                    }
                    Ok(())
                }
                1 => self.turn(session, BARE).await,
                _ => self.turn(session, GUARDED).await,
            }
        }
        .boxed()
    }

    fn check<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<Option<String>, Error>> {
        self.look(session).boxed()
    }
}
