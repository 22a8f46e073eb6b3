//! Completion: commands, their options, and the names of tables.

use std::sync::Arc;

use parking_lot::Mutex;
use rustyline::completion::{Completer, Pair};
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::validate::Validator;
use rustyline::{Context, Helper};

use super::command::{names, options, takes_table};

/// Completes words.
pub(crate) struct Words {
    pub(crate) tables: Arc<Mutex<Vec<String>>>,
}

impl Words {
    /// Where the word under the cursor starts, and what it can become.
    fn candidates(&self, line: &str) -> (usize, Vec<String>) {
        let start = line.rfind(char::is_whitespace).map_or(0, |blank| blank + 1);
        let (before, word) = line.split_at(start);
        let before: Vec<&str> = before.split_whitespace().collect();
        let mut all = match before.first() {
            None => names(),
            Some(&"help") if before.len() == 1 => names(),
            Some(_) if word.starts_with('-') => options(before[0]),
            Some(command) if takes_table(command, before.len()) => self.tables.lock().clone(),
            Some(_) => Vec::new(),
        };
        all.retain(|candidate| candidate.starts_with(word));
        (start, all)
    }
}

impl Completer for Words {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        pos: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let (start, candidates) = self.candidates(line.get(..pos).unwrap_or(line));
        let pair = |candidate: String| Pair {
            replacement: format!("{candidate} "),
            display: candidate,
        };
        Ok((start, candidates.into_iter().map(pair).collect()))
    }
}

impl Hinter for Words {
    type Hint = String;
}
impl Highlighter for Words {}
impl Validator for Words {}
impl Helper for Words {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_tables_and_options_are_completed() {
        let words = Words {
            tables: Arc::new(Mutex::new(vec!["accounts".into(), "users".into()])),
        };
        let (start, found) = words.candidates("ge");
        assert_eq!(
            (start, found),
            (0, vec!["get".into(), "get-for-update".into()])
        );
        assert_eq!(words.candidates("get u"), (4, vec!["users".into()]));
        assert_eq!(
            words.candidates("scan users --r"),
            (11, vec!["--reverse".into()])
        );
        assert_eq!(words.candidates("help rol").1, ["rollback"]);
        assert_eq!(words.candidates("get users b").1, [""; 0]);
        assert_eq!(words.candidates("commit ").1, [""; 0]);
    }
}
