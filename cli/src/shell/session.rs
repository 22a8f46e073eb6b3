//! What commands do: in the open transaction, or each in its own.

use std::collections::BTreeMap;
use std::time::Instant;

use bytes::Bytes;
use percolator_client::{Client, Error, Outcome, Range, Timestamp, Txn, escape};
use serde_json::json;

use super::command::{Command, ScanArgs};
use super::conflict::describe;
use crate::cells::pairs;
use crate::errors::{InOtherWords, in_words};
use crate::output::{CellJson, Cells, Format, Output};

/// A session.
pub(crate) struct Session<'a> {
    client: &'a Client,
    output: Output,
    /// The snapshot that all of the session reads, if it only reads.
    at: Option<Txn>,
    open: Option<Open>,
}

/// A transaction between `begin` and `commit`.
struct Open {
    txn: Txn,
    began: Instant,
    /// What was done to cells, by table, row and column.
    buffered: BTreeMap<(String, Bytes, Bytes), Write>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Write {
    Put,
    Delete,
    Lock,
}

/// Whether the session goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Go,
    Exit,
}

impl<'a> Session<'a> {
    /// A session; one that only reads if it is `at` a snapshot.
    pub(crate) async fn new(
        client: &'a Client,
        at: Option<u64>,
        output: Output,
    ) -> Result<Self, Error> {
        let at = match at {
            Some(at) => Some(client.begin_at(Timestamp::from_u64(at)).await?),
            None => None,
        };
        Ok(Self {
            client,
            output,
            at,
            open: None,
        })
    }

    /// What stands before the cursor: whether a transaction is open, and whether it would write.
    pub(crate) fn prompt(&self) -> String {
        match (&self.open, &self.at) {
            (None, None) => "percolator> ".into(),
            (None, Some(at)) => prompt_in("at", at.start_ts(), false),
            (Some(open), _) => prompt_in("txn", open.txn.start_ts(), !open.buffered.is_empty()),
        }
    }

    /// Carries out a command.
    pub(crate) async fn run(&mut self, command: Command) -> anyhow::Result<Next> {
        if let Some(at) = &self.at
            && command.is_for_writers()
        {
            anyhow::bail!(
                "the session only reads, as of {}; a shell without --at has transactions",
                at.start_ts()
            );
        }
        match command {
            Command::Begin { at } => self.begin(at).await?,
            Command::Get { table, row, column } => match column {
                Some(column) => {
                    let txn = self.reading().await?;
                    let value = txn.get(&table, &row.0, &column.0).await?;
                    self.value(&row.0, &column.0, value)?;
                }
                None => {
                    let range = Range::row(&row.0);
                    if self.scan(&table, range, false).await? == 0 {
                        self.output.note("no such row");
                    }
                }
            },
            Command::GetForUpdate { table, row, column } => {
                let (row, column) = (row.0, column.0);
                let value = match &mut self.open {
                    Some(open) => {
                        let value = open.txn.get_for_update(&table, &row, &column).await?;
                        let place = (table, row.clone(), column.clone());
                        open.buffered.entry(place).or_insert(Write::Lock);
                        value
                    }
                    None => {
                        self.output.note(
                            "no transaction is open, so that nothing holds the cell afterwards",
                        );
                        self.client
                            .begin()
                            .await?
                            .get(&table, &row, &column)
                            .await?
                    }
                };
                self.value(&row, &column, value)?;
            }
            Command::Put { table, row, cells } => {
                let cells = pairs(cells)?.into_iter();
                let cells = cells.map(|(column, value)| (column, Some(value)));
                self.write(table, row.0, cells.collect()).await?;
            }
            Command::Delete { table, row, column } => {
                self.write(table, row.0, vec![(column.0, None)]).await?;
            }
            Command::Scan(args) => {
                let ScanArgs { table, .. } = &args;
                self.scan(table, range(&args), true).await?;
            }
            Command::Commit => self.commit().await?,
            Command::Rollback => {
                let open = self.open.take().ok_or_else(not_open)?;
                open.txn.rollback();
                self.output.note("rolled back");
            }
            Command::Tables => crate::table::list(self.client, self.output).await?,
            Command::Status => self.status()?,
            Command::Exit => return Ok(Next::Exit),
        }
        Ok(Next::Go)
    }

    /// Ends the session. `true`: writes were dropped.
    pub(crate) fn end(&mut self) -> bool {
        let Some(open) = self.open.take() else {
            return false;
        };
        let dropped = open.buffered.len();
        open.txn.rollback();
        self.output.note(&format!(
            "the open transaction is rolled back ({dropped} buffered)"
        ));
        dropped > 0
    }

    /// The tables' names, for completion.
    pub(crate) async fn table_names(&self) -> Option<Vec<String>> {
        let tables = self.client.tables().await.ok()?;
        Some(tables.into_iter().map(|table| table.name).collect())
    }

    async fn begin(&mut self, at: Option<u64>) -> anyhow::Result<()> {
        if let Some(open) = &self.open {
            anyhow::bail!(
                "transaction {} is open; commit or rollback first",
                open.txn.start_ts()
            );
        }
        let txn = match at {
            Some(at) => self.client.begin_at(Timestamp::from_u64(at)).await?,
            None => self.client.begin().await?,
        };
        if self.output.format == Format::Json {
            let json = json!({"start_ts": txn.start_ts().to_string()});
            self.output.line(&json.to_string())?;
        } else {
            self.output.note(&format!("start_ts {}", txn.start_ts()));
        }
        self.open = Some(Open {
            txn,
            began: Instant::now(),
            buffered: BTreeMap::new(),
        });
        Ok(())
    }

    /// The open transaction, or a new one.
    async fn reading(&self) -> Result<Txn, Error> {
        match (&self.open, &self.at) {
            (Some(Open { txn, .. }), _) | (None, Some(txn)) => Ok(txn.clone()),
            (None, None) => self.client.begin().await,
        }
    }

    fn value(&self, row: &[u8], column: &[u8], value: Option<Bytes>) -> anyhow::Result<()> {
        match (self.output.format, &value) {
            (Format::Json, value) => {
                let json = CellJson::new(row, column, value.as_deref());
                self.output.line(&serde_json::to_string(&json)?)?;
            }
            (Format::Text, Some(value)) => self.output.line(&escape(value))?,
            (Format::Text, None) => self.output.note("no value"),
        }
        Ok(())
    }

    async fn write(
        &mut self,
        table: String,
        row: Bytes,
        cells: Vec<(Bytes, Option<Bytes>)>,
    ) -> anyhow::Result<()> {
        // All of them or none: what comes behind a wrong one is not written, and what came before would be committed.
        for (column, value) in &cells {
            Txn::check_write(&row, column, value.as_deref().unwrap_or_default())?;
        }
        let write = |txn: &Txn| -> anyhow::Result<()> {
            for (column, value) in &cells {
                match value {
                    Some(value) => txn.put(&table, &row, column, value.clone())?,
                    None => txn.delete(&table, &row, column)?,
                }
            }
            Ok(())
        };
        if let Some(open) = &mut self.open {
            // A wrong name is better found now than at the commit.
            open.txn.check_table(&table).await?;
            write(&open.txn)?;
            for (column, value) in cells {
                let kind = match value {
                    Some(_) => Write::Put,
                    None => Write::Delete,
                };
                open.buffered
                    .insert((table.clone(), row.clone(), column), kind);
            }
            return Ok(());
        }
        let txn = self.client.begin().await?;
        write(&txn)?;
        self.committing(txn, "").await
    }

    async fn commit(&mut self) -> anyhow::Result<()> {
        let open = self.open.take().ok_or_else(not_open)?;
        self.committing(open.txn, "; the transaction has ended")
            .await
    }

    /// Commits, and says what became of it.
    async fn committing(&self, txn: Txn, ended: &str) -> anyhow::Result<()> {
        let start_ts = txn.start_ts();
        let commit_ts = match txn.commit().await {
            Ok(commit_ts) => commit_ts,
            Err(Error::Conflict(conflict)) => {
                let message = format!(
                    "conflict: {}{ended}; begin again",
                    describe(self.client, &conflict).await
                );
                let error = Error::Conflict(conflict);
                return Err(InOtherWords { message, error }.into());
            }
            // A little later the primary may well be there to be asked.
            Err(Error::Unknown {
                start_ts,
                primary,
                why,
            }) => match self.client.outcome(start_ts, &primary).await {
                Ok(Outcome::Committed(commit_ts)) => commit_ts,
                Ok(Outcome::RolledBack) => {
                    anyhow::bail!("the commit was not answered, and was rolled back{ended}")
                }
                Ok(Outcome::Pending | Outcome::Forgotten) | Err(_) => {
                    return Err(Error::Unknown {
                        start_ts,
                        primary,
                        why,
                    }
                    .into());
                }
            },
            Err(error) if ended.is_empty() => return Err(error.into()),
            Err(error) => {
                let message = format!("{}{ended}", in_words(&error));
                return Err(InOtherWords { message, error }.into());
            }
        };
        if self.output.format == Format::Json {
            let json =
                json!({"start_ts": start_ts.to_string(), "commit_ts": commit_ts.to_string()});
            self.output.line(&json.to_string())?;
        } else {
            self.output.note(&format!("committed at {commit_ts}"));
        }
        Ok(())
    }

    /// Prints cells; of a row, or with their rows.
    async fn scan(&self, table: &str, range: Range, with_rows: bool) -> anyhow::Result<u64> {
        let txn = self.reading().await?;
        let mut cells = txn.scan(table, range).await?;
        let mut out = Cells::new(self.output, with_rows);
        let mut count = 0;
        let ended = loop {
            match cells.next().await {
                Ok(Some(cell)) => out.print(&cell)?,
                Ok(None) => break Ok(count),
                Err(error) => break Err(error.into()),
            }
            count += 1;
        };
        out.end()?;
        ended
    }

    fn status(&self) -> anyhow::Result<()> {
        let Some(open) = &self.open else {
            let (text, json) = match &self.at {
                None => (
                    "no transaction is open; every command is its own".to_owned(),
                    json!({"open": false}),
                ),
                Some(at) => (
                    format!("the session only reads, as of {}", at.start_ts()),
                    json!({"open": false, "at": at.start_ts().to_string()}),
                ),
            };
            self.output.result(&text, &json)?;
            return Ok(());
        };
        let number = |kind| {
            open.buffered
                .values()
                .filter(|write| **write == kind)
                .count()
        };
        let (puts, deletes, locks) = (
            number(Write::Put),
            number(Write::Delete),
            number(Write::Lock),
        );
        let age = open.began.elapsed();
        let start_ts = open.txn.start_ts();
        self.output.result(
            &format!(
                "transaction {start_ts}, open for {:.1} s; buffered: {puts} put, {deletes} deleted, {locks} got \
                 for update",
                age.as_secs_f64()
            ),
            &json!({
                "open": true,
                "start_ts": start_ts.to_string(),
                "age_ms": u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
                "puts": puts,
                "deletes": deletes,
                "for_update": locks,
            }),
        )?;
        Ok(())
    }
}

fn not_open() -> anyhow::Error {
    anyhow::anyhow!("no transaction is open; begin one")
}

fn prompt_in(what: &str, start_ts: Timestamp, buffered: bool) -> String {
    // The last digits: the first ones are the same for weeks.
    let digits = start_ts.to_string();
    let last = &digits[digits.len().saturating_sub(6)..];
    let more = if last.len() < digits.len() { "…" } else { "" };
    format!(
        "percolator({what} {more}{last}{})> ",
        if buffered { "*" } else { "" }
    )
}

fn range(args: &ScanArgs) -> Range {
    let bytes = |word: &Option<crate::cells::Escaped>| {
        word.as_ref().map(|word| word.0.clone()).unwrap_or_default()
    };
    let mut range = match &args.prefix {
        Some(prefix) => Range::prefix(prefix.0.clone()),
        None => Range::rows(bytes(&args.from), bytes(&args.to)),
    };
    if args.reverse {
        range = range.reverse();
    }
    match args.limit {
        Some(limit) => range.limit_rows(limit),
        None => range,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prompt_shows_the_transaction() {
        let ts = Timestamp::from_u64(463_372_648_734_720);
        assert_eq!(prompt_in("txn", ts, false), "percolator(txn …734720)> ");
        assert_eq!(prompt_in("txn", ts, true), "percolator(txn …734720*)> ");
        assert_eq!(
            prompt_in("at", Timestamp::from_u64(7), false),
            "percolator(at 7)> "
        );
    }
}
