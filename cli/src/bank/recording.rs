//! What the bank's transactions read and wrote, as a history for the checker.

use std::path::Path;

use percolator_client::{Client, Error, Timestamp, Txn, escape};
use percolator_history::{Op, Outcome};

use super::accounts::{Accounts, Transfer, row};
use crate::history::{HistoryFile, table_name};

/// The history of one bank.
pub(super) struct Recording {
    file: HistoryFile,
    /// The accounts' table, as the history names it.
    table: String,
    /// The number of each reader of the sums.
    reader: u32,
}

impl Recording {
    /// Goes on with the file; one without a transaction of this table gets what the accounts have now, as one that
    /// wrote that.
    pub(super) async fn open(
        client: &Client,
        accounts: &Accounts,
        clients: u32,
        path: &Path,
    ) -> anyhow::Result<Self> {
        let table = table_name(client, accounts.table()).await?;
        let is_new = HistoryFile::is_new(path, &table)?;
        let file = HistoryFile::open(path)?;
        let recording = Self {
            file,
            table,
            reader: clients,
        };
        if is_new {
            let txn = client.begin().await?;
            let mut first = recording.file.line(recording.reader, 0, txn.start_ts());
            accounts
                .look(&txn, |row, balance| {
                    let cell = recording.cell_name(row);
                    first.ops.push(Op::Write(cell, Some(balance.to_string())));
                })
                .await?;
            // Its snapshot sees all of it: it was committed there at the latest.
            first.commit_ts = first.start_ts.take();
            first.outcome = Outcome::Committed;
            first.times = None;
            recording.file.write(&first)?;
        }
        Ok(recording)
    }

    /// An account's cell, as the history names it.
    pub(super) fn cell_name(&self, row: &[u8]) -> String {
        format!("{}/{}:balance", self.table, escape(row))
    }

    /// By the clock of the history.
    pub(super) fn now_us(&self) -> u64 {
        self.file.now_us()
    }

    /// Commits a transfer that did this, and writes it down.
    ///
    /// # Errors
    /// The history can't be written, whatever came of the transfer; within: those of the commit.
    pub(super) async fn commit(
        &self,
        txn: Txn,
        client: u32,
        began_us: u64,
        ops: Vec<Op>,
    ) -> std::io::Result<Result<Timestamp, Error>> {
        let mut line = self.file.line(client, began_us, txn.start_ts());
        line.ops = ops;
        self.file.commit(txn, &mut line).await
    }

    /// Records what a reader of the sums has read.
    pub(super) fn looked(
        &self,
        began_us: u64,
        snapshot: Timestamp,
        ops: Vec<Op>,
    ) -> std::io::Result<()> {
        self.file.looked(self.reader, began_us, snapshot, ops)
    }

    /// What a transfer read and wrote, where it found these balances.
    pub(super) fn ops(&self, transfer: &Transfer, before: (i64, i64)) -> Vec<Op> {
        let cells = [
            (transfer.from, before.0, -transfer.amount),
            (transfer.to, before.1, transfer.amount),
        ];
        let read = cells.map(|(account, balance, _)| {
            Op::Read(self.cell_name(&row(account)), Some(balance.to_string()))
        });
        let written = cells.map(|(account, balance, change)| {
            Op::Write(
                self.cell_name(&row(account)),
                Some((balance + change).to_string()),
            )
        });
        read.into_iter().chain(written).collect()
    }
}
