//! What was answered, to be held against what is there.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use percolator_client::{Client, Error, Range, Timestamp, Txn};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::accounts::{BALANCE, Transfer};
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
/// aborted is not, and the accounts, of which there may be a known number, are what the transfers made of them.
pub(super) async fn verify(
    client: &Client,
    (table, accounts): (&str, Option<u32>),
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
    let mut shown = Shown { output, said: 0 };
    let held = AnswerCounts::of(&answers, &there, &mut shown);
    let mut expected = Expected::by(there.values(), accounts)?;
    let differ = wrong_accounts(&txn, table, &mut expected, &mut shown).await?;
    let gone = expected.missing.len() as u64;
    shown.end();
    if answers.is_empty() {
        output.note(&format!(
            "nothing to verify: {} has no answer",
            path.display()
        ));
    }
    let AnswerCounts {
        committed,
        lost,
        aborted,
        undead,
        unknown,
        unknown_there,
    } = held;
    if differ > 0 && gone + lost + undead == 0 {
        output.note(&format!(
            "Accounts are held against the transfers in table {}. A bank that ran on table {table} without \
             --ledger has left none there, and explains this. To be certain, take another --table, or delete \
             both, and let every bank on it write a --ledger.",
            ledger_table(table)
        ));
    }
    let wrong_accounts = differ + gone;
    let text = format!(
        "committed      {committed}, {lost} of them lost\n\
         aborted        {aborted}, {undead} of them there\n\
         unknown        {unknown}, {unknown_there} of them there\n\
         accounts       {wrong_accounts} differ from what the {} transfers make of them, {gone} of these are gone",
        there.len()
    );
    output.result(
        &text,
        &json!({
            "committed": committed, "lost": lost, "aborted": aborted, "aborted_but_there": undead,
            "unknown": unknown, "unknown_and_there": unknown_there, "transfers": there.len(),
            "wrong_accounts": wrong_accounts, "accounts_gone": gone,
        }),
    )?;
    let is_right = lost + undead + wrong_accounts == 0;
    Ok(crate::answered(is_right && !answers.is_empty()))
}

/// What became of the answers of each kind.
#[derive(Default)]
struct AnswerCounts {
    committed: u64,
    lost: u64,
    aborted: u64,
    /// Answered aborted, and there.
    undead: u64,
    unknown: u64,
    unknown_there: u64,
}

impl AnswerCounts {
    fn of(answers: &[Answer], there: &HashMap<String, String>, shown: &mut Shown) -> Self {
        let mut held = Self::default();
        for Answer { row, answer, .. } in answers {
            let is_there = there.contains_key(row);
            match answer {
                Kind::Committed => {
                    held.committed += 1;
                    if !is_there {
                        held.lost += 1;
                        shown.say(|| format!("LOST: {row} was answered committed"));
                    }
                }
                Kind::Aborted => {
                    held.aborted += 1;
                    if is_there {
                        held.undead += 1;
                        shown.say(|| format!("WRONG: {row} was answered aborted, and is there"));
                    }
                }
                Kind::Unknown => {
                    held.unknown += 1;
                    held.unknown_there += u64::from(is_there);
                }
            }
        }
        held
    }
}

/// The answers of a file, all of banks on `table`: of another one every transfer would seem to be lost. A line that is none is
/// an error, as nothing that it says would be verified.
fn read_answers(
    file: impl BufRead,
    table: &str,
    path: &Path,
    output: Output,
) -> anyhow::Result<Vec<Answer>> {
    let mut answers = Vec::new();
    for (number, line) in (1..).zip(file.lines()) {
        let answer: Answer = match serde_json::from_str(&line?) {
            Ok(answer) => answer,
            // A client that was killed leaves half a line at the end; what it was answered isn't known then.
            Err(error) if error.is_eof() => {
                output.note(&format!("line {number} is cut off and is left out"));
                continue;
            }
            Err(error) => {
                let place = format!("{}, line {number}", path.display());
                return Err(error).with_context(|| format!("{place} is no answer of a bank"));
            }
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

/// What the accounts have to be. Only where every transfer of the bank's life was kept in the ledger.
///
/// A transfer takes what it gives: where each of so many accounts is as expected, the sum is what it was at first.
struct Expected {
    changes: HashMap<u32, i64>,
    /// Those that have to be there, and were not seen yet.
    missing: BTreeSet<u32>,
    /// How many there are; the others don't belong there.
    accounts: Option<u32>,
}

impl Expected {
    /// By the transfers, and by how many accounts there are, if that is known.
    fn by<'a>(
        transfers: impl Iterator<Item = &'a String>,
        accounts: Option<u32>,
    ) -> anyhow::Result<Self> {
        let mut changes: HashMap<u32, i64> = HashMap::new();
        for transfer in transfers {
            let mut parts = transfer.split(' ');
            let mut next = || parts.next().context("a ledger row without its transfer");
            let (from, to) = (next()?.parse()?, next()?.parse()?);
            let amount: i64 = next()?.parse()?;
            *changes.entry(from).or_default() -= amount;
            *changes.entry(to).or_default() += amount;
        }
        let all = 0..accounts.unwrap_or_default();
        let missing = all.chain(changes.keys().copied()).collect();
        Ok(Self {
            changes,
            missing,
            accounts,
        })
    }

    /// What is wrong with an account that is there.
    fn see(&mut self, number: u32, balance: i64) -> Option<String> {
        self.missing.remove(&number);
        if self.accounts.is_some_and(|accounts| number >= accounts) {
            return Some(format!("account {number} is one too many"));
        }
        let expected = BALANCE + self.changes.get(&number).copied().unwrap_or_default();
        (balance != expected)
            .then(|| format!("account {number} has {balance}, expected {expected}"))
    }
}

/// How many of the accounts that are there aren't what they have to be.
async fn wrong_accounts(
    txn: &Txn,
    table: &str,
    expected: &mut Expected,
    shown: &mut Shown,
) -> anyhow::Result<u64> {
    let mut wrong = 0;
    let mut scan = txn.scan(table, Range::all()).await?;
    while let Some(cell) = scan.next().await? {
        let number: u32 = String::from_utf8_lossy(&cell.row).parse()?;
        let balance: i64 = String::from_utf8_lossy(&cell.value).parse()?;
        if let Some(what) = expected.see(number, balance) {
            wrong += 1;
            shown.say(|| format!("WRONG: {what}"));
        }
    }
    for number in &expected.missing {
        shown.say(|| format!("LOST: account {number} is not there"));
    }
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = r#"{"row":"r","start_ts":"1","answer":"committed","table":"bank"}"#;

    fn read(text: &str) -> anyhow::Result<usize> {
        let output = Output {
            format: crate::output::Format::Text,
            quiet: true,
        };
        let answers = read_answers(text.as_bytes(), "bank", Path::new("ledger"), output)?;
        Ok(answers.len())
    }

    #[test]
    fn only_lines_that_ended_early_are_left_out() {
        for end in 1..ANSWER.len() {
            let text = format!("{ANSWER}\n{}\n{ANSWER}\n", &ANSWER[..end]);
            assert_eq!(read(&text).unwrap(), 2, "{text}");
        }
        for wrong in [
            "no JSON",
            "{}",
            r#"{"client":"c","outcome":"committed","ops":[]}"#,
            &ANSWER.replace("committed", "perhaps"),
        ] {
            let error = read(&format!("{ANSWER}\n{wrong}\n")).unwrap_err();
            assert!(error.to_string().contains("line 2"), "{wrong}: {error:#}");
        }
    }

    #[test]
    fn accounts_that_are_gone_are_missed_and_those_too_many_seen() {
        let transfers = ["0 1 5".to_owned(), "1 2 3".to_owned()];
        let found = |accounts, there: &[(u32, i64)]| {
            let mut expected = Expected::by(transfers.iter(), accounts).unwrap();
            let wrong = there.iter().filter(|(number, balance)| {
                let what = expected.see(*number, *balance);
                what.is_some()
            });
            let wrong = wrong.count();
            (wrong, expected.missing.len())
        };
        let all = [(0, 95), (1, 102), (2, 103), (3, 100)];
        for accounts in [None, Some(4)] {
            assert_eq!(found(accounts, &all), (0, 0));
            assert_eq!(found(accounts, &all[1..]), (0, 1));
        }
        // No transfer names it.
        assert_eq!(found(None, &all[..3]), (0, 0));
        assert_eq!(found(Some(4), &all[..3]), (0, 1));
        assert_eq!(found(Some(3), &all), (1, 0));
        assert_eq!(found(None, &[(0, 95), (1, 101), (2, 103)]), (1, 0));
    }

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
