//! Changes that were given up: each is a row of a table, written by the transaction that acknowledges the change.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::types::Timestamp;
use percolator_protocol::types::limits::ROW_BYTES_MAX;

use super::run::Run;
use crate::{Client, Error, Range, Txn, tuple};

/// The table of the dead letters of all observers. Its rows are tuples of table, column and row; its columns are `reason`,
/// `attempts`, `changed_at` and `given_up_at`. Where that would be longer than a row may be, the tuple has the first bytes of the row and a
/// number, and the column `row` has all of it.
pub const DEAD_LETTERS: &str = "observer_dead_letters";
/// Of a reason so many characters are kept: it may quote what a handler has answered.
const REASON_CHARS_MAX: usize = 1_000;
const REASON: &str = "reason";
const ATTEMPTS: &str = "attempts";
const CHANGED_AT: &str = "changed_at";
/// The start_ts of the transaction that wrote the letter: one that is written again for the same value has another one.
const GIVEN_UP_AT: &str = "given_up_at";
const ROW: &str = "row";
/// So much of a row is in the tuple if the whole row is too long for it.
const ROW_BEGIN_BYTES: usize = 512;

/// A change that no observer runs for any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// The observed cell's table.
    pub table: String,
    /// Its row.
    pub row: Bytes,
    /// Its column.
    pub column: Bytes,
    /// The handler's last error.
    pub reason: String,
    /// How often it failed; 0: it was not called, because the chain of runs before was too long.
    pub attempts: u32,
    /// When the cell changed.
    pub changed_at: Timestamp,
    /// When the letter was written.
    pub given_up_at: Timestamp,
}

/// The row of a change's letter, and whether the change's own row is in a column, because it is too long for the key.
async fn place(
    txn: &Txn,
    (table, column, row): (&str, &[u8], &[u8]),
) -> Result<(Vec<u8>, bool), Error> {
    let column = tuple::Bytes::from(column);
    let whole = tuple::pack(&(table, &column, tuple::Bytes::from(row)));
    if whole.len() <= ROW_BYTES_MAX {
        return Ok((whole, false));
    }
    let begin = tuple::Bytes::from(&row[..ROW_BEGIN_BYTES]);
    let others = Range::prefix(tuple::pack(&(table, &column, &begin)));
    let mut scan = txn.scan(DEAD_LETTERS, others).await?;
    let mut taken = BTreeSet::new();
    while let Some(entry) = scan.next().await? {
        if entry.column != ROW.as_bytes() {
            continue;
        }
        if entry.value == row {
            return Ok((entry.row.to_vec(), true));
        }
        taken.insert(entry.row);
    }
    let mut number = 0_u64;
    loop {
        let free = tuple::pack(&(table, &column, &begin, number));
        if !taken.contains(&*free) {
            return Ok((free, true));
        }
        number += 1;
    }
}

/// The table, column and row of a letter; without the row, where that is in a column.
fn name_of(row: &[u8]) -> Result<(String, Bytes, Option<Bytes>), Error> {
    type Parts<'a> = (String, tuple::Bytes<'a>, tuple::Bytes<'a>);
    let copied = |bytes: &[u8]| Bytes::copy_from_slice(bytes);
    if let Ok((table, column, row)) = tuple::unpack::<Parts<'_>>(row) {
        return Ok((table, copied(&column), Some(copied(&row))));
    }
    let numbered: Result<(String, tuple::Bytes<'_>, tuple::Bytes<'_>, u64), _> = tuple::unpack(row);
    let (table, column, _, _) =
        numbered.map_err(|error| Error::Invalid(format!("a row of {DEAD_LETTERS}: {error}")))?;
    Ok((table, copied(&column), None))
}

/// Gives the change up, in a transaction of which one attempt is made. It begins a chain of its own: a letter is no run.
/// `failed_on`: what the cell has to hold. `None`: it holds something else.
pub(super) async fn write(
    run: &Run,
    failed_on: Option<&Option<Bytes>>,
    attempts: u32,
    reason: &str,
) -> Result<Option<Timestamp>, Error> {
    let shared = &*run.shared;
    match shared.client.create_table(DEAD_LETTERS, &[]).await {
        Ok(()) | Err(Error::AlreadyExists(_)) => {}
        Err(error) => return Err(error),
    }
    let observer = &shared.observer;
    let txn = shared.client.begin().await?;
    let value = run.acknowledge(&txn).await?;
    if failed_on.is_some_and(|failed_on| *failed_on != value) {
        txn.rollback();
        return Ok(None);
    }
    let change = (&*observer.table, &*observer.column, &**run.row());
    let (row, is_long) = place(&txn, change).await?;
    if is_long {
        txn.put(DEAD_LETTERS, &row, ROW, run.row().clone())?;
    }
    if mutants::on(Mutant::DeadLetterForgotten) {
        return txn.commit().await.map(Some);
    }
    let reason: String = reason.chars().take(REASON_CHARS_MAX).collect();
    txn.put(DEAD_LETTERS, &row, REASON, reason)?;
    txn.put(DEAD_LETTERS, &row, ATTEMPTS, attempts.to_string())?;
    let changed_at = run.changed_at.to_string();
    txn.put(DEAD_LETTERS, &row, CHANGED_AT, changed_at)?;
    let given_up_at = txn.start_ts().to_string();
    txn.put(DEAD_LETTERS, &row, GIVEN_UP_AT, given_up_at)?;
    txn.commit().await.map(Some)
}

impl Client {
    /// The dead letters of an observed column, in the order of its rows.
    ///
    /// # Errors
    /// As [`Txn::scan`](crate::Txn::scan).
    pub async fn dead_letters(
        &self,
        table: &str,
        column: impl AsRef<[u8]>,
    ) -> Result<Vec<DeadLetter>, Error> {
        let prefix = tuple::pack(&(table, tuple::Bytes::from(column.as_ref())));
        let txn = self.begin().await?;
        let mut scan = match txn.scan(DEAD_LETTERS, Range::prefix(prefix)).await {
            Err(Error::UnknownTable { .. }) => return Ok(Vec::new()),
            scan => scan?,
        };
        let mut letters: Vec<DeadLetter> = Vec::new();
        let (mut last, mut is_asked) = (Bytes::new(), false);
        while let Some(entry) = scan.next().await? {
            if last != entry.row {
                last = entry.row.clone();
                let (table, found, row) = name_of(&last)?;
                // The name of another column may begin with this one, and a zero.
                is_asked = found == column.as_ref();
                if !is_asked {
                    continue;
                }
                letters.push(DeadLetter {
                    table,
                    row: row.unwrap_or_default(),
                    column: found,
                    reason: String::new(),
                    attempts: 0,
                    changed_at: Timestamp::ZERO,
                    given_up_at: Timestamp::ZERO,
                });
            }
            let Some(letter) = letters.last_mut().filter(|_| is_asked) else {
                continue;
            };
            let text = String::from_utf8_lossy(&entry.value).into_owned();
            let timestamp = || Timestamp::from_u64(text.parse().unwrap_or_default());
            match &entry.column[..] {
                b"row" => letter.row = entry.value,
                b"reason" => letter.reason = text,
                b"attempts" => letter.attempts = text.parse().unwrap_or_default(),
                b"changed_at" => letter.changed_at = timestamp(),
                b"given_up_at" => letter.given_up_at = timestamp(),
                _ => {}
            }
        }
        Ok(letters)
    }

    /// How many dead letters there are, by table and column of the observed cells; of so many letters at the most.
    ///
    /// # Errors
    /// As [`Txn::scan`](crate::Txn::scan).
    pub async fn count_dead_letters(
        &self,
        most: usize,
    ) -> Result<BTreeMap<(String, Bytes), usize>, Error> {
        let txn = self.begin().await?;
        let mut scan = match txn.scan(DEAD_LETTERS, Range::all()).await {
            Err(Error::UnknownTable { .. }) => return Ok(BTreeMap::new()),
            scan => scan?,
        };
        let (mut counts, mut all) = (BTreeMap::new(), 0);
        while all < most
            && let Some(entry) = scan.next().await?
        {
            if entry.column == CHANGED_AT.as_bytes() {
                let (table, column, _) = name_of(&entry.row)?;
                *counts.entry((table, column)).or_default() += 1;
                all += 1;
            }
        }
        Ok(counts)
    }

    /// Has observers run again for a change that was given up: leaves a weak notification, and deletes the letter.
    ///
    /// # Errors
    /// As [`Client::notify`] and [`Client::transact`].
    pub async fn retry_dead_letter(&self, letter: &DeadLetter) -> Result<(), Error> {
        // In this order: where the second isn't done, both are there, and it is tried once more.
        self.notify(
            &letter.table,
            &letter.column,
            std::slice::from_ref(&letter.row),
        )
        .await?;
        self.discard_dead_letter(letter).await
    }

    /// Deletes the letter, unless another one was written for the same cell since: nobody runs for the change.
    ///
    /// # Errors
    /// As [`Client::transact`].
    pub async fn discard_dead_letter(&self, letter: &DeadLetter) -> Result<(), Error> {
        let given_up_at = letter.given_up_at.to_string();
        self.transact(|txn| {
            let (letter, given_up_at) = (letter.clone(), given_up_at.clone());
            async move {
                let change = (&*letter.table, &*letter.column, &*letter.row);
                let (row, _) = place(&txn, change).await?;
                let now = txn.get(DEAD_LETTERS, &row, GIVEN_UP_AT).await?;
                if now.as_deref() != Some(given_up_at.as_bytes()) {
                    // The change was tried again meanwhile, and given up again, perhaps for the same value: that letter stays.
                    return Ok(());
                }
                for column in [REASON, ATTEMPTS, CHANGED_AT, GIVEN_UP_AT, ROW] {
                    txn.delete(DEAD_LETTERS, &row, column)?;
                }
                Ok(())
            }
        })
        .await
    }
}
