//! What was answered, to be held against what is there.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use percolator_client::{Client, Error, Range, Timestamp, Txn};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::accounts::Transfer;
use crate::output::Output;

const COLUMN: &[u8] = b"transfer";

/// The transfers' own rows, and the file of answers.
pub(super) struct Ledger {
    /// The accounts' table.
    accounts: String,
    table: String,
    file: RefCell<BufWriter<File>>,
    /// Unlike those of any other run.
    run: u64,
    next: Cell<u64>,
}

/// One line of the file.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    row: String,
    /// For people: a string, as many readers of JSON round large numbers. Nothing here reads it.
    #[serde(skip_deserializing)]
    start_ts: String,
    answer: Kind,
    /// Of the accounts. Missing in files of before it was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    table: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Committed,
    Aborted,
    Unknown,
}

fn ledger_table(table: &str) -> String {
    format!("{table}-ledger")
}

impl Ledger {
    pub(super) async fn open(client: &Client, table: &str, path: &Path) -> anyhow::Result<Self> {
        let accounts = table.to_owned();
        let table = ledger_table(table);
        match client.create_table(&table, &[]).await {
            Ok(()) | Err(Error::AlreadyExists(_)) => {}
            Err(error) => return Err(error.into()),
        }
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .with_context(|| format!("cannot write {}", path.display()))?;
        // A client that was killed may have left half a line.
        let cut_off =
            std::fs::read(path).is_ok_and(|lines| lines.last().is_some_and(|last| *last != b'\n'));
        if cut_off {
            (&file).write_all(b"\n")?;
        }
        Ok(Self {
            accounts,
            table,
            file: RefCell::new(BufWriter::new(file)),
            run: rand::random(),
            next: Cell::new(0),
        })
    }

    /// Writes the transfer's own row, in its transaction.
    pub(super) fn write(
        &self,
        txn: &Txn,
        client: u32,
        transfer: &Transfer,
    ) -> Result<String, Error> {
        let number = self.next.get();
        self.next.set(number + 1);
        let row = format!("{:016x}-{client:05}-{number:012}", self.run);
        let value = format!("{} {} {}", transfer.from, transfer.to, transfer.amount);
        txn.put(&self.table, &row, COLUMN, value)?;
        Ok(row)
    }

    /// Writes down what was answered, at once: this process may be killed too.
    pub(super) fn answered(
        &self,
        row: &str,
        start_ts: Timestamp,
        result: &Result<Timestamp, Error>,
    ) -> std::io::Result<()> {
        let answer = Answer {
            row: row.to_owned(),
            start_ts: start_ts.to_string(),
            answer: match result {
                Ok(_) => Kind::Committed,
                Err(Error::Unknown { .. }) => Kind::Unknown,
                Err(_) => Kind::Aborted,
            },
            table: Some(self.accounts.clone()),
        };
        let mut file = self.file.borrow_mut();
        serde_json::to_writer(&mut *file, &answer)?;
        file.write_all(b"\n")?;
        file.flush()
    }

    pub(super) fn finish(&self) -> std::io::Result<()> {
        self.file.borrow_mut().flush()
    }
}

/// Holds the answers against the cluster: what was answered committed is there, what was answered
/// aborted is not, and the accounts are what the transfers made of them.
pub(super) async fn verify(
    client: &Client,
    table: &str,
    path: &Path,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let answers = read_answers(BufReader::new(file), table, path, output)?;
    let txn = client.begin().await?;
    let mut there: HashMap<String, String> = HashMap::new();
    let mut scan = txn.scan(&ledger_table(table), Range::all()).await?;
    while let Some(cell) = scan.next().await? {
        there.insert(
            String::from_utf8_lossy(&cell.row).into_owned(),
            String::from_utf8_lossy(&cell.value).into_owned(),
        );
    }
    let mut counts = [0_u64; 3];
    let mut shown = Shown { output, said: 0 };
    let (mut lost, mut undead, mut unknown_there) = (0_u64, 0_u64, 0_u64);
    for answer in answers {
        let is_there = there.contains_key(&answer.row);
        match answer.answer {
            Kind::Committed => {
                counts[0] += 1;
                if !is_there {
                    lost += 1;
                    shown.say(|| format!("LOST: {} was answered committed", answer.row));
                }
            }
            Kind::Aborted => {
                counts[1] += 1;
                if is_there {
                    undead += 1;
                    shown.say(|| {
                        format!("WRONG: {} was answered aborted, and is there", answer.row)
                    });
                }
            }
            Kind::Unknown => {
                counts[2] += 1;
                unknown_there += u64::from(is_there);
            }
        }
    }
    let wrong_accounts = wrong_accounts(&txn, table, there.values(), &mut shown).await?;
    shown.end();
    if wrong_accounts > 0 && lost + undead == 0 {
        output.note(&format!(
            "Accounts are held against the transfers in table {}. A bank that ran on table {table} without \
             --ledger has left none there, and explains this. To be certain, take another --table, or delete \
             both, and let every bank on it write a --ledger.",
            ledger_table(table)
        ));
    }
    let [committed, aborted, unknown] = counts;
    let text = format!(
        "committed      {committed}, {lost} of them lost\n\
         aborted        {aborted}, {undead} of them there\n\
         unknown        {unknown}, {unknown_there} of them there\n\
         accounts       {wrong_accounts} differ from what the {} transfers make of them",
        there.len()
    );
    output.result(
        &text,
        &json!({
            "committed": committed, "lost": lost, "aborted": aborted, "aborted_but_there": undead,
            "unknown": unknown, "unknown_and_there": unknown_there, "transfers": there.len(),
            "wrong_accounts": wrong_accounts,
        }),
    )?;
    Ok(crate::answered(lost + undead + wrong_accounts == 0))
}

/// The answers of a file, all of banks on `table`: of another one every transfer would seem to be lost.
fn read_answers(
    file: impl BufRead,
    table: &str,
    path: &Path,
    output: Output,
) -> anyhow::Result<Vec<Answer>> {
    let mut answers = Vec::new();
    for (number, line) in (1..).zip(file.lines()) {
        // A client that was killed leaves half a line at the end; what it was told isn't known then.
        let Ok(answer) = serde_json::from_str::<Answer>(&line?) else {
            output.note(&format!("line {number} is cut off and is left out"));
            continue;
        };
        if let Some(other) = answer.table.as_ref().filter(|other| *other != table) {
            bail!(
                "{}, line {number}: this is the ledger of a bank on table {other}, not {table}: verify it with --table \
                 {other}",
                path.display()
            );
        }
        answers.push(answer);
    }
    Ok(answers)
}

/// The first of what is wrong, in words.
struct Shown {
    output: Output,
    said: u64,
}

impl Shown {
    const MOST: u64 = 20;

    fn say(&mut self, words: impl FnOnce() -> String) {
        if self.said < Self::MOST {
            self.output.note(&words());
        }
        self.said += 1;
    }

    fn end(&self) {
        if self.said > Self::MOST {
            let more = self.said - Self::MOST;
            self.output.note(&format!("... and {more} more"));
        }
    }
}

/// How many accounts aren't what the transfers made of them. Only where every transfer of the bank's
/// life was kept in the ledger.
async fn wrong_accounts(
    txn: &Txn,
    table: &str,
    transfers: impl Iterator<Item = &String>,
    shown: &mut Shown,
) -> anyhow::Result<u64> {
    let mut changes: HashMap<u32, i64> = HashMap::new();
    for transfer in transfers {
        let mut parts = transfer.split(' ');
        let mut next = || parts.next().context("a ledger row without its transfer");
        let (from, to) = (next()?.parse()?, next()?.parse()?);
        let amount: i64 = next()?.parse()?;
        *changes.entry(from).or_default() -= amount;
        *changes.entry(to).or_default() += amount;
    }
    let mut wrong = 0;
    let mut scan = txn.scan(table, Range::all()).await?;
    while let Some(cell) = scan.next().await? {
        let number: u32 = String::from_utf8_lossy(&cell.row).parse()?;
        let balance: i64 = String::from_utf8_lossy(&cell.value).parse()?;
        let expected = 100 + changes.get(&number).copied().unwrap_or_default();
        if balance != expected {
            wrong += 1;
            shown.say(|| format!("WRONG: account {number} has {balance}, expected {expected}"));
        }
    }
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_strings_and_ledgers_with_numbers_are_read() {
        let answer = Answer {
            row: "r".into(),
            start_ts: Timestamp::from_u64(u64::MAX).to_string(),
            answer: Kind::Committed,
            table: None,
        };
        let line = serde_json::to_string(&answer).unwrap();
        assert_eq!(
            line,
            "{\"row\":\"r\",\"start_ts\":\"18446744073709551615\",\"answer\":\"committed\"}"
        );
        let with_number = line.replace("\"18446744073709551615\"", "470");
        for line in [line, with_number] {
            let read: Answer = serde_json::from_str(&line).unwrap();
            assert_eq!((read.row.as_str(), read.answer), ("r", Kind::Committed));
        }
    }
}
