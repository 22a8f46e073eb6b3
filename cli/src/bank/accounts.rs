//! The accounts: rows of one table, cut into tablets over every server.

use bytes::Bytes;
use percolator_client::{CellName, Client, Entry, Error, Range, ServerRole, Txn, escape};
use percolator_history::Op;

use super::recording::Recording;
use super::wrong_contents;
use crate::output::Output;

/// What every account starts with.
pub(super) const BALANCE: i64 = 100;
const COLUMN: &[u8] = b"balance";
/// Accounts that one transaction makes.
const BATCH: u32 = 1000;
/// Tablets for each tablet server.
const TABLETS_PER_SERVER: u32 = 2;

/// The accounts of a bank.
#[derive(Debug)]
pub(crate) struct Accounts {
    table: String,
    pub(super) count: u32,
}

/// A transfer between two accounts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) amount: i64,
}

impl Transfer {
    /// Drawn from one account less, `to` is moved past `from`: every pair is as likely.
    pub(super) fn between_different(mut self) -> Self {
        self.to += u32::from(self.to >= self.from);
        self
    }
}

/// What a table holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contents {
    pub(super) cells: u64,
    pub(super) sum: i64,
    /// Every balance is what it was at first.
    untouched: bool,
}

impl Contents {
    /// Whether these can be the first ones of so many accounts, left by a run that was stopped while it made
    /// them: whole transactions of them, in order, and nobody transfers before all are there.
    fn may_become(&self, count: u32) -> bool {
        self.cells < u64::from(count)
            && self.cells.is_multiple_of(u64::from(BATCH))
            && self.untouched
    }
}

impl Accounts {
    /// The accounts in this table, made where they aren't there.
    pub(super) async fn open(
        client: &Client,
        table: &str,
        count: u32,
        output: Output,
    ) -> anyhow::Result<Self> {
        let accounts = Self {
            table: table.to_owned(),
            count,
        };
        let exists = client
            .tables()
            .await?
            .iter()
            .any(|known| known.name == table);
        if !exists {
            let servers = client
                .servers()
                .await?
                .iter()
                .filter(|server| server.role == ServerRole::Tablet)
                .count();
            let tablets = u32::try_from(servers).unwrap_or(1).max(1) * TABLETS_PER_SERVER;
            let cuts: Vec<Bytes> = (1..tablets.min(count))
                .map(|cut| {
                    row(
                        u32::try_from(u64::from(count) * u64::from(cut) / u64::from(tablets))
                            .unwrap_or(0),
                    )
                })
                .collect();
            match client.create_table(table, &cuts).await {
                // Another bank was first.
                Ok(()) | Err(Error::AlreadyExists(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let there = accounts.look(&client.begin().await?, |_, _| {}).await?;
        if accounts.are_all(&there) {
            output.note(&format!("table {table} has its {count} accounts already"));
            return Ok(accounts);
        }
        if !there.may_become(count) {
            return wrong_contents(table, count, &there);
        }
        for first in (0..count).step_by(BATCH as usize) {
            client
                .transact(|txn| async move {
                    // What is there may belong to another bank, which moves money already.
                    let rows: Vec<Bytes> = (first..count.min(first + BATCH)).map(row).collect();
                    let cells: Vec<CellName<'_>> =
                        rows.iter().map(|row| (table, &row[..], COLUMN)).collect();
                    let there = txn.batch_get(&cells).await?;
                    for (row, _) in rows.iter().zip(there).filter(|(_, there)| there.is_none()) {
                        txn.put(table, row, COLUMN, BALANCE.to_string())?;
                    }
                    Ok(())
                })
                .await?;
        }
        let now = accounts.look(&client.begin().await?, |_, _| {}).await?;
        if !accounts.are_all(&now) {
            return wrong_contents(table, count, &now);
        }
        output.note(&match there.cells {
            0 => format!("made {count} accounts in table {table}"),
            some => format!(
                "made {} accounts in table {table}, which had the first {some} of {count}",
                u64::from(count).saturating_sub(some)
            ),
        });
        Ok(accounts)
    }

    fn are_all(&self, there: &Contents) -> bool {
        there.cells == u64::from(self.count) && there.sum == self.expected_sum()
    }

    /// What the balances have to sum up to.
    pub(super) fn expected_sum(&self) -> i64 {
        i64::from(self.count) * BALANCE
    }

    /// The sum of the balances at one snapshot, written down where there is a history.
    pub(super) async fn sum(
        &self,
        client: &Client,
        recording: Option<&Recording>,
    ) -> anyhow::Result<i64> {
        let began_us = recording.map(Recording::now_us);
        let txn = client.begin().await?;
        let mut ops = Vec::new();
        let Contents { cells, sum, .. } = self
            .look(&txn, |row, balance| {
                if let Some(recording) = recording {
                    ops.push(Op::Read(
                        recording.cell_name(row),
                        Some(balance.to_string()),
                    ));
                }
            })
            .await?;
        if let (Some(recording), Some(began_us)) = (recording, began_us) {
            recording.looked(began_us, txn.start_ts(), ops)?;
        }
        if cells != u64::from(self.count) {
            anyhow::bail!("{cells} accounts at one snapshot, there are {}", self.count);
        }
        Ok(sum)
    }

    /// What is there at a transaction's snapshot; `see` is told each row with its balance.
    pub(super) async fn look(
        &self,
        txn: &Txn,
        mut see: impl FnMut(&[u8], i64),
    ) -> anyhow::Result<Contents> {
        let mut scan = txn.scan(&self.table, Range::all()).await?;
        let mut contents = Contents {
            cells: 0,
            sum: 0,
            untouched: true,
        };
        while let Some(cell) = scan.next().await? {
            let balance = match balance(Some(cell.value.clone())) {
                Ok(balance) if cell.column == COLUMN => balance,
                _ => return Err(self.no_bank(&cell)),
            };
            see(&cell.row, balance);
            contents.cells += 1;
            contents.sum += balance;
            contents.untouched &= balance == BALANCE;
        }
        Ok(contents)
    }

    fn no_bank(&self, cell: &Entry) -> anyhow::Error {
        anyhow::anyhow!(
            "table {} is not a bank's: an account is a row whose one column, balance, holds a number, and cell {}:{} is \
             something else; give another --table",
            self.table,
            escape(&cell.row),
            escape(&cell.column)
        )
    }

    pub(super) fn table(&self) -> &str {
        &self.table
    }

    /// Reads both accounts and writes both: an account may be overdrawn. Returns what they had.
    pub(super) async fn transfer(
        &self,
        txn: &Txn,
        transfer: &Transfer,
    ) -> Result<(i64, i64), Error> {
        let (from, to) = (row(transfer.from), row(transfer.to));
        let mut balances = txn
            .batch_get(&[(&self.table, &from, COLUMN), (&self.table, &to, COLUMN)])
            .await?
            .into_iter();
        let from_balance = balance(balances.next().flatten())?;
        let to_balance = balance(balances.next().flatten())?;
        txn.put(
            &self.table,
            &from,
            COLUMN,
            (from_balance - transfer.amount).to_string(),
        )?;
        txn.put(
            &self.table,
            &to,
            COLUMN,
            (to_balance + transfer.amount).to_string(),
        )?;
        Ok((from_balance, to_balance))
    }
}

pub(super) fn row(number: u32) -> Bytes {
    format!("{number:08}").into()
}

fn balance(value: Option<Bytes>) -> Result<i64, Error> {
    let value = value.ok_or_else(|| Error::application("an account is missing"))?;
    std::str::from_utf8(&value)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| {
            Error::application(format!(
                "a balance is {:?}, which is no number",
                escape(&value)
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bank_of_its_own_is_not_taken_for_the_first_accounts_of_a_larger_one() {
        let may = |cells: u64, untouched| {
            let sum = i64::try_from(cells).unwrap() * BALANCE;
            Contents {
                cells,
                sum,
                untouched,
            }
            .may_become(3500)
        };
        assert!(may(0, true) && may(1000, true) && may(3000, true));
        assert!(!may(2, true) && !may(3499, true) && !may(4000, true));
        assert!(!may(1000, false));
    }
}
