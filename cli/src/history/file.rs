//! A history while it is made: transactions as lines of a file, each written down as unknown before it commits,
//! because this process may be killed.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, bail};
use parking_lot::Mutex;
use percolator_client::{Client, Error, Timestamp, Txn};
use percolator_history::{Op, Outcome, Times, Transaction};

/// So much of a cluster's number tells it from others.
const CLUSTER_DIGITS: usize = 8;

/// The file, to which lines are appended.
#[derive(Debug)]
pub(crate) struct HistoryFile {
    file: Mutex<File>,
    /// Since when times count: only those of one process can be compared.
    started: Instant,
    /// Numbers of this process in names: another one that goes on with the file has others.
    run: u32,
}

/// A table as histories name it: by its number in its cluster too, so that one that was deleted and made again, here or
/// elsewhere, is another one.
///
/// # Errors
/// There is none of this name, or nobody can be asked.
pub(crate) async fn table_name(client: &Client, table: &str) -> anyhow::Result<String> {
    let cluster = client.cluster_id().await?;
    let tables = client.tables().await?;
    let known = tables.iter().find(|known| known.name == table);
    let known = known.with_context(|| format!("table {table} was deleted meanwhile"))?;
    let cluster: String = cluster.chars().take(CLUSTER_DIGITS).collect();
    Ok(format!("{table}@{cluster}.{}", known.id))
}

impl HistoryFile {
    /// Whether the file has no transaction of this table yet, or isn't there. The table is named as by [`table_name`].
    ///
    /// # Errors
    /// It can't be read.
    pub(crate) fn is_new(path: &Path, table: &str) -> anyhow::Result<bool> {
        let cannot_read = || format!("cannot read {}", path.display());
        match std::fs::metadata(path) {
            Ok(there) if !there.is_file() => bail!(
                "{} is no regular file: a history has to be one that can be gone on with",
                path.display()
            ),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
            Err(error) => return Err(error).with_context(cannot_read),
        }
        // As cells are named in it.
        let of_table = format!("\"{table}/");
        for line in BufReader::new(File::open(path).with_context(cannot_read)?).lines() {
            if line.with_context(cannot_read)?.contains(&of_table) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Opens the file, or makes it.
    ///
    /// # Errors
    /// It can't be read or written.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let mut file = File::options()
            .create(true)
            .append(true)
            .open(path)
            .with_context(|| format!("cannot write {}", path.display()))?;
        // A killed process may have left a part of a line.
        if ends_within_a_line(path).with_context(|| format!("cannot read {}", path.display()))? {
            file.write_all(b"\n").context("cannot write the history")?;
        }
        Ok(Self {
            file: Mutex::new(file),
            started: Instant::now(),
            run: rand::random(),
        })
    }

    /// A number that no other process has, but by chance.
    pub(crate) fn run(&self) -> u32 {
        self.run
    }

    /// Microseconds by the clock of this process.
    pub(crate) fn now_us(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// The line of a transaction that was asked for at `began_us`: aborted, as long as nobody commits it.
    pub(crate) fn line(&self, client: u32, began_us: u64, start_ts: Timestamp) -> Transaction {
        Transaction {
            client: format!("{:08x}-{client}", self.run),
            start_ts: Some(start_ts.as_u64()),
            commit_ts: None,
            outcome: Outcome::Aborted,
            times: Some(Times {
                clock: format!("{:08x}", self.run),
                began_us: Some(began_us),
                ended_us: None,
            }),
            ops: Vec::new(),
        }
    }

    /// Commits the transaction of a line, and writes down how that ended: after an error that may be either,
    /// and after one of the caller's own making, as unknown.
    ///
    /// # Errors
    /// The history can't be written; within: those of the commit.
    pub(crate) async fn commit(
        &self,
        txn: Txn,
        line: &mut Transaction,
    ) -> io::Result<Result<Timestamp, Error>> {
        line.outcome = Outcome::Unknown;
        self.write(line)?;
        let result = txn.commit().await;
        match &result {
            Ok(commit_ts) => {
                line.outcome = Outcome::Committed;
                line.commit_ts = Some(commit_ts.as_u64());
            }
            Err(
                Error::Conflict(_)
                | Error::TooOld(_)
                | Error::Timeout { .. }
                | Error::Unavailable(_),
            ) => {
                line.outcome = Outcome::Aborted;
            }
            Err(_) => {}
        }
        if let Some(times) = &mut line.times {
            times.ended_us = Some(self.now_us());
        }
        self.write(line)?;
        Ok(result)
    }

    /// Writes down a transaction that has read this, and nothing else.
    ///
    /// # Errors
    /// Those of writing.
    pub(crate) fn looked(
        &self,
        client: u32,
        began_us: u64,
        snapshot: Timestamp,
        ops: Vec<Op>,
    ) -> io::Result<()> {
        let mut line = self.line(client, began_us, snapshot);
        line.outcome = Outcome::Committed;
        if let Some(times) = &mut line.times {
            times.ended_us = Some(self.now_us());
        }
        line.ops = ops;
        self.write(&line)
    }

    /// Writes a line, in one piece and at once.
    ///
    /// # Errors
    /// Those of writing.
    pub(crate) fn write(&self, line: &Transaction) -> io::Result<()> {
        let text = percolator_history::write(std::slice::from_ref(line));
        self.file.lock().write_all(text.as_bytes())
    }
}

fn ends_within_a_line(path: &Path) -> io::Result<bool> {
    let mut file = File::open(path)?;
    if file.metadata()?.len() == 0 {
        return Ok(false);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}
