//! What a failure is about: the transactions, cells and clients that its text names; and which lines of a trace are
//! about the same, so that anyone who looks at it sees those first.

use std::collections::BTreeSet;

/// A timestamp has at least as many digits.
const TIMESTAMP_DIGITS: usize = 12;

/// The words by which lines are found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    transactions: BTreeSet<String>,
    cells: BTreeSet<String>,
    clients: BTreeSet<String>,
}

impl Subject {
    /// Of a failure with this text.
    pub fn of(detail: &str) -> Self {
        let mut subject = Self::default();
        for token in detail.split(|c: char| c.is_whitespace() || "(),;\"=".contains(c)) {
            let token = token.trim_end_matches('.');
            // In the history's words: client@start_ts.
            let number = token.trim_end_matches(':');
            let number = number.rsplit('@').next().unwrap_or(number);
            let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
            if is_number && number.len() >= TIMESTAMP_DIGITS {
                subject.transactions.insert(number.to_owned());
            } else if token.starts_with("client-") {
                // What lies behind a slash is a mark in a value.
                if !token.contains('/') {
                    let who = token.trim_end_matches(':');
                    subject.clients.insert(who.to_owned());
                }
            } else if let Some((_, cell)) = token.split_once('/')
                && !cell.is_empty()
            {
                // Messages name a cell without its table, and with a colon where it has no column.
                let colon = if cell.contains(':') { "" } else { ":" };
                subject.cells.insert(format!("{cell}{colon}"));
            }
        }
        subject
    }

    /// The lines that are about each part of it, with the answers to what they ask; of clients only where nothing
    /// else is named.
    pub fn lines<'a>(&self, lines: &[&'a str]) -> Vec<(&'static str, Vec<&'a str>)> {
        let parts = [
            ("the transactions", &self.transactions),
            ("the cells", &self.cells),
            ("the clients", &self.clients),
        ];
        let mut found = Vec::new();
        for (what, words) in parts {
            if what == "the clients" && !found.is_empty() {
                break;
            }
            let about = about(words, lines);
            if !about.is_empty() {
                found.push((what, about));
            }
        }
        found
    }
}

fn about<'a>(words: &BTreeSet<String>, lines: &[&'a str]) -> Vec<&'a str> {
    let about = |line: &&&str| words.iter().any(|word| has_word(line, word));
    let calls = lines.iter().filter(about).filter_map(|of| call(of));
    let calls: BTreeSet<&str> = calls.collect();
    let is_answer = |line: &str| call(line).is_some_and(|call| calls.contains(call));
    let found = lines.iter().filter(|line| about(line) || is_answer(line));
    found.copied().collect()
}

/// The number of the call that a line of a message belongs to: `#17`.
fn call(line: &str) -> Option<&str> {
    let mut begin = line.split_whitespace().take(4);
    begin.find(|word| word.starts_with('#'))
}

/// Whether the line has this as a word of its own, not as the end or the beginning of another one.
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric();
    let alone = |(at, _): (usize, &str)| {
        let before = line[..at].chars().next_back();
        let behind = line[at + word.len()..].chars().next();
        let ends_open = word.ends_with(is_part);
        !(before.is_some_and(is_part) || ends_open && behind.is_some_and(is_part))
    };
    line.match_indices(word).any(alone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn named(detail: &str, transactions: &[&str], cells: &[&str], clients: &[&str]) {
        let set = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let subject = Subject {
            transactions: set(transactions),
            cells: set(cells),
            clients: set(clients),
        };
        assert_eq!(Subject::of(detail), subject, "{detail}");
    }

    #[test]
    fn what_failures_name_is_found() {
        named(
            "transaction 445644800000001 of client-1.0 is committed on bank_a/account0:balance at no time and on \
             bank_b/account1:balance at 445644800000009",
            &["445644800000001", "445644800000009"],
            &["account0:balance", "account1:balance"],
            &["client-1.0"],
        );
        named(
            "client-0.1 read at snapshot 445644800000001: users_by_city/city1/user3: as nothing instead of \
             \"1 client-1.2/00aa\"",
            &["445644800000001"],
            &["city1/user3:"],
            &["client-0.1"],
        );
        named(
            "lost update: client-1.0@445644800000001 wrote lists/0-1:list",
            &["445644800000001"],
            &["0-1:list"],
            &[],
        );
        named("2 workers have not ended within 61.5 s", &[], &[], &[]);
    }

    #[test]
    fn lines_about_it_and_answers_to_them_are_found() {
        let lines = [
            "   0.100000  call     #7 client-0 -> tablet-0: get @445644800000001 r1:a",
            "   0.200000  cut off  #8 client-1 -> tablet-0: get @445644800000002 user1:a",
            "   0.300000  answer   #7 tablet-0 -> client-0: got -",
            "   0.400000  answer   #8 tablet-0 -> client-1: got -",
            "   0.500000  call     #9 client-1 -> tablet-0: get @445644800000003 r1:ab",
            "   0.600000  call     #10 client-1 -> tablet-0: get @4456448000000011 r2:a",
        ];
        let found = |detail: &str| Subject::of(detail).lines(&lines);
        let (first, both) = (vec![lines[0], lines[2]], vec![lines[1], lines[3]]);
        assert_eq!(found("cell 3/r1:a"), [("the cells", first.clone())]);
        assert_eq!(
            found("client-1 at 445644800000001 on t/user1:a"),
            [("the transactions", first), ("the cells", both)]
        );
        assert_eq!(found("client-0 waits")[0].0, "the clients");
        assert_eq!(found("nothing that is known"), []);
    }
}
