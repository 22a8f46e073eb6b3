//! Makes an index agree with its data: every repair reads the cells anew, in a transaction, and does
//! what is right by then.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::try_join_all;
use percolator_client::{CellName, Client, Error, Txn, index_row};
use serde_json::json;

use super::records::short;
use super::{IndexArg, count};
use crate::output::{Format, Output, with_bytes};
use crate::retries::{Retries, may_pass};

/// Repairs in one transaction.
const BATCH: usize = 200;

/// What was found to be wrong.
#[derive(Debug)]
pub(crate) enum Fault<'a> {
    /// The row's value has no entry.
    Missing {
        index: &'a IndexArg,
        row: Bytes,
        value: Bytes,
    },
    /// The entry is of a value that the row doesn't have.
    Dangling {
        index: &'a IndexArg,
        entry: Bytes,
        row: Bytes,
        value: Vec<u8>,
    },
}

impl<'a> Fault<'a> {
    /// The index, the row in question, and what it would have to hold for the entry to be right.
    fn parts(&self) -> (&'a IndexArg, &Bytes, &[u8]) {
        match self {
            Self::Missing { index, row, value } => (index, row, value),
            Self::Dangling {
                index, row, value, ..
            } => (index, row, value),
        }
    }

    fn entry(&self) -> Bytes {
        match self {
            Self::Missing { row, value, .. } => index_row(value, row),
            Self::Dangling { entry, .. } => entry.clone(),
        }
    }
}

/// What a repair did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Did {
    Added,
    Removed,
    /// Somebody else has changed the row or the entry since, so that they agree, or are theirs to mend.
    Nothing,
}

/// Repairs under way.
pub(crate) struct Repair<'a> {
    client: &'a Client,
    table: &'a str,
    output: Output,
    retries: Retries,
    say: &'a (dyn Fn(&str) + Sync),
    /// The most repairs to name.
    show: u64,
    waiting: Vec<Fault<'a>>,
    added: u64,
    removed: u64,
    /// What no entry can be made for, and what is no entry.
    left: u64,
}

impl<'a> Repair<'a> {
    pub(crate) fn new(
        client: &'a Client,
        table: &'a str,
        output: Output,
        request_timeout: Duration,
        show: u64,
        say: &'a (dyn Fn(&str) + Sync),
    ) -> Self {
        Self {
            client,
            table,
            output,
            retries: Retries::new(request_timeout),
            say,
            show,
            waiting: Vec::new(),
            added: 0,
            removed: 0,
            left: 0,
        }
    }

    pub(crate) fn add(&mut self, fault: Fault<'a>) {
        self.waiting.push(fault);
    }

    /// Counts something that can't be repaired.
    pub(crate) fn leave(&mut self) {
        self.left += 1;
    }

    /// Repairs what waits for it, a batch a transaction.
    pub(crate) async fn mend(&mut self) -> anyhow::Result<()> {
        let faults = std::mem::take(&mut self.waiting);
        for batch in faults.chunks(BATCH) {
            let done = loop {
                let (client, table) = (self.client, self.table);
                let mended = client
                    .transact(|txn| async move { mend(&txn, table, batch).await })
                    .await;
                match mended {
                    Ok(done) => break done,
                    // Whatever became of it: the same once more is harmless.
                    Err(error @ (Error::Unknown { .. } | Error::Conflict(_))) => {
                        self.retries.wait(error, self.say).await?;
                    }
                    Err(error) if may_pass(&error) => self.retries.wait(error, self.say).await?,
                    Err(error) => return Err(error.into()),
                }
            };
            self.retries.progress();
            for (fault, did) in batch.iter().zip(done) {
                self.tell(fault, did)?;
            }
        }
        Ok(())
    }

    fn tell(&mut self, fault: &Fault<'_>, did: Did) -> std::io::Result<()> {
        let (word, number) = match did {
            Did::Added => ("added", &mut self.added),
            Did::Removed => ("removed", &mut self.removed),
            Did::Nothing => return Ok(()),
        };
        *number += 1;
        if self.added + self.removed > self.show {
            return Ok(());
        }
        let (index, row, value) = fault.parts();
        let text = format!(
            "{word}: entry of row {}, {} = {}, in {}",
            short(row),
            index.field,
            short(value),
            index.table
        );
        let json = json!({
            "repair": word,
            "index": index.table,
            "field": index.field,
        });
        let json = with_bytes(json, &[("row", row), ("value", value)]);
        self.output.result(&text, &json)
    }

    /// Says what was done in all. True: nothing is left.
    pub(crate) fn summary(&self) -> anyhow::Result<bool> {
        let (added, removed, left) = (self.added, self.removed, self.left);
        let mut text = format!(
            "repaired: {} added, {removed} removed",
            count(added, "entry")
        );
        if left > 0 {
            text += &format!(
                "; {left} left: no entries by their form, which may be somebody's data, or values too long \
                 for an entry"
            );
        }
        let json = json!({"added": added, "removed": removed, "left": left});
        if self.output.format == Format::Text && added + removed > self.show {
            let rest = added + removed - self.show;
            self.output
                .note(&format!("{rest} more; --show N names more of them"));
        }
        self.output.result(&text, &json)?;
        Ok(left == 0)
    }
}

async fn mend(txn: &Txn, table: &str, faults: &[Fault<'_>]) -> Result<Vec<Did>, Error> {
    // Held, so that anyone who changes the value meanwhile conflicts with what is decided by it.
    let values = try_join_all(faults.iter().map(|fault| async {
        let (index, row, _) = fault.parts();
        txn.get_for_update(table, row, &index.field).await
    }))
    .await?;
    let entries: Vec<Bytes> = faults.iter().map(Fault::entry).collect();
    let names: Vec<CellName<'_>> = faults
        .iter()
        .zip(&entries)
        .map(|(fault, entry)| (fault.parts().0.table.as_str(), &entry[..], &b""[..]))
        .collect();
    let there = txn.batch_get(&names).await?;
    let mut done = Vec::with_capacity(faults.len());
    for (((fault, entry), value), there) in faults.iter().zip(&entries).zip(values).zip(there) {
        let (index, _, expected) = fault.parts();
        let right = value.is_some_and(|value| value == expected);
        done.push(match (right, there) {
            (true, None) => {
                txn.put(&index.table, entry, "", "")?;
                Did::Added
            }
            (false, Some(_)) => {
                txn.delete(&index.table, entry, "")?;
                Did::Removed
            }
            (true, Some(_)) | (false, None) => Did::Nothing,
        });
    }
    Ok(done)
}
