//! `percolator check-index`: whether data and secondary indexes agree, both ways, at one snapshot.

use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use percolator_client::limits::ROW_BYTES_MAX;
use percolator_client::{CellName, Client, Range, index_row, split_index_row};
use serde_json::{Value, json};

use super::progress::Progress;
use super::records::short;
use super::repair::{Fault, Repair};
use super::{IndexArg, count, indexes_invalid, say as say_now};
use crate::errors::Usage;
use crate::output::{Format, Output, with_bytes};
use crate::retries::Snapshot;

/// Cells that are looked up together.
const BATCH_CELLS: usize = 1000;

const DETAILS: &str = "\
Check that secondary indexes agree with their data, at one snapshot: every value of an indexed field has \
its entry, and every entry is of a value that is there.

It changes nothing, unless --repair is given: then entries that are missing are added, and those that are \
of no value removed, in transactions that look at row and entry anew. What has not the form of an entry is \
left alone. Nothing is repaired where an index has entries and not a single one is right: that is likely \
another field's index, or no index.";

const EXAMPLES: &str = "\
Examples:
  percolator check-index --table users --index email=users_by_email
  percolator check-index --table users --index email=by_email --index city=by_city -o json
  percolator check-index --table users --index email=users_by_email --repair

Exit code 7 where anything disagrees; with --repair, where anything is left.";

/// Check that secondary indexes agree with their data, and repair them.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{DETAILS}\n\n{EXAMPLES}"))]
pub(crate) struct Args {
    /// Table of the rows.
    #[arg(long, value_name = "TABLE", add = crate::complete::tables())]
    table: String,
    /// Indexed field, and the table of its entries; may be given often.
    #[arg(long, value_name = "FIELD=INDEX_TABLE", required = true)]
    index: Vec<IndexArg>,
    /// Read as of this timestamp, not of now.
    #[arg(long, value_name = "TIMESTAMP", conflicts_with = "repair")]
    at: Option<u64>,
    /// Then make the indexes agree with the data.
    #[arg(long)]
    repair: bool,
    /// The most disagreements to name; all are counted.
    #[arg(long, value_name = "N", default_value_t = 20)]
    show: u64,
    /// Give up when a server is away for this long.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = humantime::parse_duration)]
    pub(crate) request_timeout: Duration,
}

/// Where data and an index disagree.
enum Finding<'a> {
    /// A value without its entry.
    Missing {
        index: &'a IndexArg,
        row: &'a [u8],
        value: &'a [u8],
    },
    /// An entry without its value.
    Dangling {
        index: &'a IndexArg,
        entry: &'a [u8],
        why: String,
    },
}

impl Finding<'_> {
    fn text(&self) -> String {
        match self {
            Self::Missing { index, row, value } => format!(
                "missing: row {}, {} = {} has no entry in {}",
                short(row),
                index.field,
                short(value),
                index.table
            ),
            Self::Dangling { index, entry, why } => {
                format!("dangling: entry {} in {}: {why}", short(entry), index.table)
            }
        }
    }

    fn json(&self) -> Value {
        match self {
            Self::Missing { index, row, value } => {
                let json = json!({
                    "disagreement": "missing",
                    "index": index.table,
                    "field": index.field,
                });
                with_bytes(json, &[("row", row), ("value", value)])
            }
            Self::Dangling { index, entry, why } => {
                let json = json!({
                    "disagreement": "dangling",
                    "index": index.table,
                    "field": index.field,
                    "why": why,
                });
                with_bytes(json, &[("entry", entry)])
            }
        }
    }
}

struct Check<'a> {
    args: &'a Args,
    snapshot: Snapshot<'a>,
    output: Output,
    progress: &'a Mutex<Progress>,
    rows: u64,
    values: u64,
    entries: u64,
    /// By the index: values, entries, and those entries that are right.
    values_of: Vec<u64>,
    entries_of: Vec<u64>,
    right: Vec<u64>,
    missing: u64,
    dangling: u64,
    /// Instead of naming what is found.
    repair: Option<Repair<'a>>,
}

impl Args {
    /// What can be found wrong before anybody is asked anything.
    pub(crate) fn check(&self) -> Result<(), Usage> {
        indexes_invalid(&self.table, &self.index).map_or(Ok(()), |why| Err(Usage(why)))
    }
}

pub(crate) async fn run(client: &Client, args: Args, output: Output) -> anyhow::Result<ExitCode> {
    let progress = Mutex::new(Progress::new(output, None));
    let say = |message: &str| progress.lock().note(message);
    let check = async |at, repair| {
        let snapshot = Snapshot::take(client, at, args.request_timeout, &say).await?;
        let mut check = Check::new(snapshot, &args, output, &progress, repair);
        let checked = check.all().await;
        progress.lock().clear();
        checked?;
        anyhow::Ok(check)
    };
    let checked = check(args.at, None).await?;
    let code = checked.summary()?;
    if !args.repair || checked.found() == 0 {
        return Ok(code);
    }
    if let Some(why) = checked.not_to_be_repaired() {
        anyhow::bail!(why);
    }
    let repair = Repair::new(
        client,
        &args.table,
        output,
        args.request_timeout,
        args.show,
        &say,
    );
    // Once more from the beginning: what was found is only kept in part.
    let repaired = check(None, Some(repair)).await?;
    let mended = match repaired.repair {
        Some(repair) => repair.summary()?,
        None => false,
    };
    Ok(crate::answered(mended))
}

impl<'a> Check<'a> {
    fn new(
        snapshot: Snapshot<'a>,
        args: &'a Args,
        output: Output,
        progress: &'a Mutex<Progress>,
        repair: Option<Repair<'a>>,
    ) -> Self {
        Self {
            args,
            snapshot,
            output,
            progress,
            rows: 0,
            values: 0,
            entries: 0,
            right: vec![0; args.index.len()],
            values_of: vec![0; args.index.len()],
            entries_of: vec![0; args.index.len()],
            missing: 0,
            dangling: 0,
            repair,
        }
    }

    fn found(&self) -> u64 {
        self.missing + self.dangling
    }

    /// Why the indexes had better not be repaired.
    fn not_to_be_repaired(&self) -> Option<String> {
        let entries = self.right.iter().zip(&self.entries_of);
        let (index, _) = self
            .args
            .index
            .iter()
            .zip(entries)
            .find(|(_, (right, entries))| **right == 0 && **entries > 0)?;
        Some(format!(
            "nothing was repaired: table {} has entries, and not one is of a value of field {} in table {}; \
             if it is that index all the same, delete and create it, and repair it then",
            index.table, index.field, self.args.table
        ))
    }

    async fn all(&mut self) -> anyhow::Result<()> {
        self.values_have_entries().await?;
        for (at, index) in self.args.index.iter().enumerate() {
            let (entries, dangling) = (self.entries, self.dangling);
            self.entries_have_values(index).await?;
            self.entries_of[at] = self.entries - entries;
            self.right[at] = self.entries_of[at].saturating_sub(self.dangling - dangling);
        }
        Ok(())
    }

    /// Reads the data, and looks up the entry of every indexed value.
    async fn values_have_entries(&mut self) -> anyhow::Result<()> {
        let mut cells = self
            .snapshot
            .txn
            .scan(&self.args.table, Range::all())
            .await?;
        let mut row = Bytes::new();
        let mut expected: Vec<(&IndexArg, Bytes, Bytes)> = Vec::new();
        while let Some(cell) = self.snapshot.next(&mut cells).await? {
            if cell.row != row {
                self.rows += 1;
                row = cell.row.clone();
            }
            let indexes = self.args.index.iter().enumerate();
            for (at, index) in indexes.filter(|(_, index)| index.field.as_bytes() == cell.column) {
                self.values += 1;
                self.values_of[at] += 1;
                // Too long for an entry, so that it can't have one; and not worth keeping.
                if cell.value.len() > ROW_BYTES_MAX
                    || index_row(&cell.value, &cell.row).len() > ROW_BYTES_MAX
                {
                    self.missing(index, &cell.row, &cell.value)?;
                    self.leave();
                    continue;
                }
                expected.push((index, cell.row.clone(), cell.value.clone()));
            }
            if expected.len() >= BATCH_CELLS {
                self.look_up_entries(&mut expected).await?;
            }
        }
        self.look_up_entries(&mut expected).await
    }

    async fn look_up_entries(
        &mut self,
        expected: &mut Vec<(&'a IndexArg, Bytes, Bytes)>,
    ) -> anyhow::Result<()> {
        let entries: Vec<Bytes> = expected
            .iter()
            .map(|(_, row, value)| index_row(value, row))
            .collect();
        let names: Vec<CellName<'_>> = expected
            .iter()
            .zip(&entries)
            .map(|((index, ..), entry)| (index.table.as_str(), &entry[..], &b""[..]))
            .collect();
        let there = self.snapshot.batch_get(&names).await?;
        for ((index, row, value), there) in expected.iter().zip(there) {
            if there.is_none() {
                self.missing(index, row, value)?;
                self.mend_later(|| Fault::Missing {
                    index,
                    row: row.clone(),
                    value: value.clone(),
                });
            }
        }
        expected.clear();
        self.show();
        self.mend().await
    }

    /// Reads an index, and looks up the value of every entry.
    async fn entries_have_values(&mut self, index: &'a IndexArg) -> anyhow::Result<()> {
        let mut cells = self.snapshot.txn.scan(&index.table, Range::all()).await?;
        let mut batch: Vec<(Bytes, Vec<u8>, Bytes)> = Vec::new();
        while let Some(cell) = self.snapshot.next(&mut cells).await? {
            self.entries += 1;
            let why = match split_index_row(&cell.row) {
                None => "not an entry: a value and a row are expected".to_owned(),
                Some((_, [])) => "not an entry: it names no row".to_owned(),
                Some(_) if !cell.column.is_empty() => {
                    format!("not an entry: it has column {}", short(&cell.column))
                }
                Some((value, row)) => {
                    let row = Bytes::copy_from_slice(row);
                    batch.push((cell.row, value, row));
                    if batch.len() >= BATCH_CELLS {
                        self.look_up_values(index, &mut batch).await?;
                    }
                    continue;
                }
            };
            self.dangling(index, &cell.row, why)?;
            self.leave();
        }
        self.look_up_values(index, &mut batch).await
    }

    async fn look_up_values(
        &mut self,
        index: &'a IndexArg,
        batch: &mut Vec<(Bytes, Vec<u8>, Bytes)>,
    ) -> anyhow::Result<()> {
        let field = index.field.as_bytes();
        let names: Vec<CellName<'_>> = batch
            .iter()
            .map(|(_, _, row)| (self.args.table.as_str(), &row[..], field))
            .collect();
        let values = self.snapshot.batch_get(&names).await?;
        for ((entry, value, row), there) in batch.iter().zip(values) {
            let why = match there {
                Some(there) if there == value[..] => continue,
                Some(there) => format!(
                    "row {} has another value, {}, not {}",
                    short(row),
                    short(&there),
                    short(value)
                ),
                None if self.repair.is_some() || self.found() >= self.args.show => String::new(),
                None => self.why_no_value(index, row).await?,
            };
            self.dangling(index, entry, why)?;
            self.mend_later(|| Fault::Dangling {
                index,
                entry: entry.clone(),
                row: row.clone(),
                value: value.clone(),
            });
        }
        batch.clear();
        self.show();
        self.mend().await
    }

    fn mend_later(&mut self, fault: impl FnOnce() -> Fault<'a>) {
        if let Some(repair) = &mut self.repair {
            repair.add(fault());
        }
    }

    fn leave(&mut self) {
        if let Some(repair) = &mut self.repair {
            repair.leave();
        }
    }

    async fn mend(&mut self) -> anyhow::Result<()> {
        match &mut self.repair {
            Some(repair) => repair.mend().await,
            None => Ok(()),
        }
    }

    async fn why_no_value(&self, index: &IndexArg, row: &Bytes) -> anyhow::Result<String> {
        let range = Range::row(row).limit(1);
        let mut cells = self.snapshot.txn.scan(&self.args.table, range).await?;
        Ok(match self.snapshot.next(&mut cells).await? {
            None => format!("there is no row {}", short(row)),
            Some(_) => format!("row {} has no field {}", short(row), index.field),
        })
    }

    fn missing(&mut self, index: &IndexArg, row: &[u8], value: &[u8]) -> anyhow::Result<()> {
        self.name(&Finding::Missing { index, row, value })?;
        self.missing += 1;
        Ok(())
    }

    fn dangling(&mut self, index: &IndexArg, entry: &[u8], why: String) -> anyhow::Result<()> {
        self.name(&Finding::Dangling { index, entry, why })?;
        self.dangling += 1;
        Ok(())
    }

    fn name(&self, finding: &Finding<'_>) -> anyhow::Result<()> {
        if self.repair.is_some() || self.found() >= self.args.show {
            return Ok(());
        }
        match self.output.format {
            Format::Text => self.output.line(&finding.text())?,
            Format::Json => self.output.line(&finding.json().to_string())?,
        }
        Ok(())
    }

    fn show(&self) {
        let message = || {
            format!(
                "{}, {}, {}",
                count(self.rows, "row"),
                count(self.entries, "index entry"),
                count(self.found(), "disagreement")
            )
        };
        self.progress.lock().show(self.rows + self.entries, message);
    }

    fn summary(&self) -> anyhow::Result<ExitCode> {
        let found = self.found();
        let snapshot = self.snapshot.txn.start_ts();
        if found > self.args.show {
            let rest = found - self.args.show;
            self.output
                .note(&format!("{rest} more; --show N names more of them"));
        }
        for (index, values) in self.args.index.iter().zip(&self.values_of) {
            if *values == 0 && self.rows > 0 {
                say_now(&format!(
                    "no row of table {} has field {}: there was nothing to look up in {}; is that the field's name?",
                    self.args.table, index.field, index.table
                ));
            }
        }
        let text = format!(
            "{}: {}, {} of indexed fields, {}; {} missing, {} dangling; snapshot {snapshot}",
            if found == 0 { "agree" } else { "DISAGREE" },
            count(self.rows, "row"),
            count(self.values, "value"),
            count(self.entries, "index entry"),
            self.missing,
            self.dangling,
        );
        let json = json!({
            "agree": found == 0,
            "rows": self.rows,
            "values": self.values,
            "index_entries": self.entries,
            "missing": self.missing,
            "dangling": self.dangling,
            "snapshot": snapshot.to_string(),
        });
        self.output.result(&text, &json)?;
        Ok(crate::answered(found == 0))
    }
}
