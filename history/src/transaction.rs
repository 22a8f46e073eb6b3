//! The format: one transaction a line, as JSON.
//!
//! ```json
//! {"client":"c1","start_ts":"17","commit_ts":"19","outcome":"committed",
//!  "ops":[{"r":["accounts/bob:balance","10"]},{"w":["accounts/bob:balance","7"]},{"l":"accounts/joe:balance"}]}
//! ```
//! Timestamps are texts, as many readers of JSON lose digits of large numbers; they are below 2^64 - 1, and left
//! out where they aren't known. A value that isn't there, or was deleted, is null. `l` is a cell that was got for
//! update. `outcome` is `committed`, `aborted`, or `unknown`: the answer was lost, and either may be true.
//!
//! `"times":{"clock":"c","began_us":5,"ended_us":9}` says when, by some clock, its snapshot was asked for and
//! its end was known, in microseconds. Times of one clock can be compared, those of two can't.
//!
//! `commit_ts` lies above `start_ts`, but where a transaction only read, and `ended_us` not below `began_us`.
//!
//! A field of any other name is an error, as it may be one of these, misspelt.

use std::collections::hash_map::Entry;

use serde::{Deserialize, Serialize};

use crate::hashed::HashMap;

/// What a transaction did, and what its client knows of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transaction {
    /// Who ran it.
    pub client: String,
    /// Its snapshot, where that is known.
    #[serde(default, with = "text", skip_serializing_if = "Option::is_none")]
    pub start_ts: Option<u64>,
    /// Its commit, where that is known.
    #[serde(default, with = "text", skip_serializing_if = "Option::is_none")]
    pub commit_ts: Option<u64>,
    /// How it ended.
    pub outcome: Outcome,
    /// When it was, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<Times>,
    /// What it did, in order.
    pub ops: Vec<Op>,
}

impl Transaction {
    /// Whether it wrote or locked something, so that it has a commit of its own.
    pub(crate) fn changes(&self) -> bool {
        self.ops.iter().any(|op| !matches!(op, Op::Read(..)))
    }
}

/// When a transaction was, as its client saw.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Times {
    /// By which clock: it never goes back, and others by the same name are the same one.
    pub clock: String,
    /// Before its snapshot was asked for, in microseconds; none: at an older snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began_us: Option<u64>,
    /// After its end was answered, in microseconds; none: it wasn't.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_us: Option<u64>,
}

/// How a transaction ended, as its client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It is committed.
    Committed,
    /// Nothing of it may ever be seen.
    Aborted,
    /// The answer was lost.
    Unknown,
}

/// A part of a transaction: on which cell, and with what value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// It read this.
    #[serde(rename = "r")]
    Read(String, Option<String>),
    /// It wrote this.
    #[serde(rename = "w")]
    Write(String, Option<String>),
    /// It got the cell for update.
    #[serde(rename = "l")]
    Lock(String),
}

/// A line that has no place in a history.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// It is no transaction.
    #[error("line {line}: {cause}")]
    Line {
        /// Which, from 1 on.
        line: usize,
        /// What is wrong with it.
        cause: serde_json::Error,
    },
    /// It ended before it began, or was committed at its snapshot or below.
    #[error(
        "line {line}: {what} {end} isn't {above} {began}: these are two fields of one transaction, and one of them is wrong"
    )]
    Backwards {
        /// Which, from 1 on.
        line: usize,
        /// The field of its end.
        what: &'static str,
        /// What that says.
        end: u64,
        /// How it has to lie to its beginning, and that one's field.
        above: &'static str,
        /// What that says.
        began: u64,
    },
    /// A transaction has a second line that can't take the first one's place.
    #[error(
        "line {line}: {client} began at {start_ts}, as in line {earlier}, whose place it can't take: that would have \
         to be \"unknown\" with the same ops; remove the line that is wrong, or where both are right, give two clients two \
         names"
    )]
    Twice {
        /// The second line, from 1 on.
        line: usize,
        /// The first line, from 1 on.
        earlier: usize,
        /// Who ran it.
        client: String,
        /// Its snapshot.
        start_ts: u64,
    },
}

/// Reads a history, one transaction a line; empty lines are skipped. Anyone who may be killed writes a transaction down
/// as unknown before it commits: a later line with the same client, `start_ts` and ops takes the place of an unknown
/// one. Any number of transactions may only read at one snapshot.
///
/// # Errors
/// [`FormatError`] for the first line that is no transaction, ends before it began, or is about one of an earlier line and can't take its
/// place.
pub fn parse(text: &str) -> Result<Vec<Transaction>, FormatError> {
    let mut history: Vec<Transaction> = Vec::new();
    // Where a transaction is, and in which line it was.
    let mut places: HashMap<(String, u64), (usize, usize)> = HashMap::default();
    for (line, text) in (1..).zip(text.lines()) {
        if text.trim().is_empty() {
            continue;
        }
        let transaction: Transaction =
            serde_json::from_str(text).map_err(|cause| FormatError::Line { line, cause })?;
        forwards(line, &transaction)?;
        let Some(start_ts) = transaction.start_ts else {
            history.push(transaction);
            continue;
        };
        match places.entry((transaction.client.clone(), start_ts)) {
            Entry::Occupied(mut place) => {
                let (at, earlier) = *place.get();
                let before = &history[at];
                if before.outcome == Outcome::Unknown && before.ops == transaction.ops {
                    place.insert((at, line));
                    history[at] = transaction;
                } else if before.changes() && transaction.changes() {
                    return Err(FormatError::Twice {
                        line,
                        earlier,
                        client: transaction.client,
                        start_ts,
                    });
                } else {
                    if transaction.changes() {
                        place.insert((history.len(), line));
                    }
                    history.push(transaction);
                }
            }
            Entry::Vacant(place) => {
                place.insert((history.len(), line));
                history.push(transaction);
            }
        }
    }
    Ok(history)
}

/// Whether it ended behind its beginning; who only reads has no commit of its own.
fn forwards(line: usize, transaction: &Transaction) -> Result<(), FormatError> {
    let times = transaction.times.as_ref();
    let us = times.and_then(|times| Some((times.began_us?, times.ended_us?)));
    let ts = transaction.start_ts.zip(transaction.commit_ts);
    let (what, above, (began, end)) = match (us, ts) {
        (Some(us), _) if us.1 < us.0 => ("ended_us", "at or above began_us", us),
        (_, Some(ts)) if ts.1 <= ts.0 && transaction.changes() => {
            ("commit_ts", "above start_ts", ts)
        }
        _ => return Ok(()),
    };
    Err(FormatError::Backwards {
        line,
        what,
        end,
        above,
        began,
    })
}

/// A history as text, one transaction a line.
pub fn write(history: &[Transaction]) -> String {
    let mut text = String::new();
    for transaction in history {
        // Every part has a form in JSON.
        text += &serde_json::to_string(transaction).unwrap_or_default();
        text.push('\n');
    }
    text
}

mod text {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
    pub(super) fn serialize<S: Serializer>(
        ts: &Option<u64>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        ts.map(|ts| ts.to_string()).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<u64>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        let parse = |text: String| match text.parse().map_err(D::Error::custom)? {
            u64::MAX => Err(D::Error::custom(format!(
                "{text} is no timestamp of a transaction: none lies above it"
            ))),
            ts => Ok(ts),
        };
        text.map(parse).transpose()
    }
}
