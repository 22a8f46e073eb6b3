//! Changes that were given up: each is a row of a table, written by the transaction that acknowledges the change.

use bytes::Bytes;
use percolator_protocol::types::Timestamp;

use super::run::Run;
use super::worker::Shared;
use crate::{Client, Error, Range, tuple};

/// The table of the dead letters of all observers. Its rows are tuples of table, column and row; its columns are `reason`,
/// `attempts` and `changed_at`.
pub const DEAD_LETTERS: &str = "observer_dead_letters";
/// Of a reason so many characters are kept: it may quote what a handler has answered.
const REASON_CHARS_MAX: usize = 1_000;
const REASON: &str = "reason";
const ATTEMPTS: &str = "attempts";
const CHANGED_AT: &str = "changed_at";

/// A change that no observer runs for any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// The observed cell's table.
    pub table: String,
    /// Its row.
    pub row: Bytes,
    /// Its column.
    pub column: Bytes,
    /// Why the handler failed the last time.
    pub reason: String,
    /// How often it failed; 0: it was not called, because the chain of runs before was too long.
    pub attempts: u32,
    /// When the cell changed.
    pub changed_at: Timestamp,
}

fn letter_row(table: &str, column: &[u8], row: &[u8]) -> Vec<u8> {
    tuple::pack(&(table, tuple::Bytes::from(column), tuple::Bytes::from(row)))
}

/// Gives the change up, in a transaction of which one attempt is made. It begins a chain of its own: a letter is no run.
pub(super) async fn write(
    shared: &Shared,
    run: &Run,
    attempts: u32,
    reason: &str,
) -> Result<Timestamp, Error> {
    match shared.client.create_table(DEAD_LETTERS, &[]).await {
        Ok(()) | Err(Error::AlreadyExists(_)) => {}
        Err(error) => return Err(error),
    }
    let observer = &shared.observer;
    let row = letter_row(&observer.table, &observer.column, run.row());
    let txn = shared.client.begin().await?;
    run.acknowledge(&txn).await?;
    let reason: String = reason.chars().take(REASON_CHARS_MAX).collect();
    txn.put(DEAD_LETTERS, &row, REASON, reason)?;
    txn.put(DEAD_LETTERS, &row, ATTEMPTS, attempts.to_string())?;
    let changed_at = run.changed_at.to_string();
    txn.put(DEAD_LETTERS, &row, CHANGED_AT, changed_at)?;
    txn.commit().await
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
        while let Some(entry) = scan.next().await? {
            let name: Result<(String, tuple::Bytes<'_>, tuple::Bytes<'_>), _> =
                tuple::unpack(&entry.row);
            let (table, column, row) =
                name.map_err(|error| Error::Invalid(format!("a row of {DEAD_LETTERS}: {error}")))?;
            let (row, column) = (
                Bytes::copy_from_slice(&row),
                Bytes::copy_from_slice(&column),
            );
            let is_next = letters.last().is_none_or(|last| last.row != row);
            if is_next {
                letters.push(DeadLetter {
                    table,
                    row,
                    column,
                    reason: String::new(),
                    attempts: 0,
                    changed_at: Timestamp::ZERO,
                });
            }
            let Some(letter) = letters.last_mut() else {
                continue;
            };
            let text = String::from_utf8_lossy(&entry.value).into_owned();
            match &entry.column[..] {
                b"reason" => letter.reason = text,
                b"attempts" => letter.attempts = text.parse().unwrap_or_default(),
                b"changed_at" => {
                    letter.changed_at = Timestamp::from_u64(text.parse().unwrap_or_default());
                }
                _ => {}
            }
        }
        Ok(letters)
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
        let row = letter_row(&letter.table, &letter.column, &letter.row);
        let changed_at = letter.changed_at.to_string();
        self.transact(|txn| {
            let (row, changed_at) = (row.clone(), changed_at.clone());
            async move {
                let now = txn.get(DEAD_LETTERS, &row, CHANGED_AT).await?;
                if now.as_deref() != Some(changed_at.as_bytes()) {
                    // The change was tried again meanwhile, and given up again: that letter stays.
                    return Ok(());
                }
                for column in [REASON, ATTEMPTS, CHANGED_AT] {
                    txn.delete(DEAD_LETTERS, &row, column)?;
                }
                Ok(())
            }
        })
        .await
    }
}
