//! Transfers between accounts in several tables: whatever happens, no snapshot shows money made or lost
//! (paper, figure 4; the bank of Jepsen's tests).

use futures_util::FutureExt;
use percolator_client::Error;
use percolator_client::transport::BoxFuture;

use super::{TableSpec, Workload, number, tagged};
use crate::recorder::Session;

const TABLES: [&str; 2] = ["bank_a", "bank_b"];
const ACCOUNTS: u64 = 6;
const EACH: i64 = 100;
const COLUMN: &str = "balance";
const LOOKED_AT: &str = "bank: the total";

/// The workload.
pub struct Bank;

fn account(of: u64) -> (&'static str, String) {
    (TABLES[(of % 2) as usize], format!("account{}", of / 2))
}

impl Bank {
    async fn transfer(&self, session: &Session) -> Result<(), Error> {
        let from = session.key(2 * ACCOUNTS);
        let to = (from + 1 + session.key(2 * ACCOUNTS - 1)) % (2 * ACCOUNTS);
        let amount = 1 + session.below(20) as i64;
        let ((from_table, from_row), (to_table, to_row)) = (account(from), account(to));
        let txn = session.begin().await?;
        let from_has = number(txn.get(from_table, &from_row, COLUMN).await?.as_ref());
        let to_has = number(txn.get(to_table, &to_row, COLUMN).await?.as_ref());
        let amount = amount.min(from_has);
        txn.put(
            from_table,
            &from_row,
            COLUMN,
            tagged(from_has - amount, session),
        )?;
        txn.put(to_table, &to_row, COLUMN, tagged(to_has + amount, session))?;
        txn.commit().await.map(drop)
    }

    /// The money at one snapshot.
    async fn sum(&self, session: &Session) -> Result<(), Error> {
        let txn = session.begin().await?;
        let mut sum = 0;
        match session.below(3) {
            0 => {
                let accounts: Vec<_> = (0..2 * ACCOUNTS).map(account).collect();
                let cells: Vec<_> = accounts
                    .iter()
                    .map(|(table, row)| (*table, row.as_bytes(), COLUMN.as_bytes()))
                    .collect();
                let values = txn.batch_get(&cells).await?;
                sum += values
                    .iter()
                    .map(|value| number(value.as_ref()))
                    .sum::<i64>();
            }
            way => {
                for table in TABLES {
                    let cells = txn.scan(table, "", "", way == 1).await?;
                    let balances = cells.iter().map(|(_, _, value)| number(Some(value)));
                    sum += balances.sum::<i64>();
                }
            }
        }
        let snapshot = txn.start_ts();
        let expected = 2 * ACCOUNTS as i64 * EACH;
        if sum != expected {
            session.world.fail(
                LOOKED_AT,
                format!(
                    "{} sees {sum} instead of {expected} at snapshot {snapshot}",
                    session.name
                ),
            );
        }
        txn.commit().await.map(drop)
    }
}

impl Workload for Bank {
    fn name(&self) -> &'static str {
        "bank"
    }

    fn invariants(&self) -> &'static [&'static str] {
        &[LOOKED_AT]
    }

    fn tables(&self) -> Vec<TableSpec> {
        vec![
            (TABLES[0], vec!["account3"]),
            (TABLES[1], vec!["account2", "account4"]),
        ]
    }

    fn load<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            let txn = session.begin().await?;
            for of in 0..2 * ACCOUNTS {
                let (table, row) = account(of);
                txn.put(table, &row, COLUMN, tagged(EACH, session))?;
            }
            txn.commit().await.map(drop)
        }
        .boxed()
    }

    fn step<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            if session.below(4) == 0 {
                self.sum(session).await
            } else {
                self.transfer(session).await
            }
        }
        .boxed()
    }

    fn check<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<Option<String>, Error>> {
        async move { self.sum(session).await.map(|()| None) }.boxed()
    }
}
