//! Golden scripts, in the manner of etcd raft's and CockroachDB's `datadriven`: a command, which may
//! have further lines, then `----`, then what is expected of it up to a blank line. Lines that start
//! with `#` before a command are comments.

use std::collections::BTreeMap;

use percolator_protocol::txn::Coordinator;
use percolator_protocol::types::Timestamp;

use super::store::Store;
use super::{codec, rows, rules, txn};

/// A command and its expected output.
struct Step {
    /// The line of the command, from 1 on.
    line: usize,
    /// The lines before it.
    comment: Vec<String>,
    command: Vec<String>,
    expected: Vec<String>,
}

/// The state that the commands of a script change.
#[derive(Default)]
struct Runner {
    store: Store,
    coordinators: BTreeMap<Timestamp, Coordinator>,
}

/// A script that was run.
pub(crate) struct Ran {
    /// As it should be.
    pub(crate) text: String,
    /// Lines of the commands whose output isn't the expected one.
    pub(crate) differences: Vec<usize>,
    pub(crate) store: Store,
}

/// Runs a script; says which command is no command.
pub(crate) fn run(script: &str) -> Result<Ran, String> {
    let (steps, tail) = read(script)?;
    let mut runner = Runner::default();
    let mut text = String::new();
    let mut differences = Vec::new();
    for step in steps {
        let output = runner
            .run(&step.command)
            .map_err(|why| format!("line {}: {why}", step.line))?;
        if output != step.expected {
            differences.push(step.line);
        }
        push_lines(&mut text, &step.comment);
        push_lines(&mut text, &step.command);
        text.push_str("----\n");
        push_lines(&mut text, &output);
        text.push('\n');
    }
    push_lines(&mut text, &tail);
    text.truncate(text.trim_end().len());
    text.push('\n');
    Ok(Ran {
        text,
        differences,
        store: runner.store,
    })
}

/// A script of these commands.
pub(crate) fn of_commands(commands: &[String]) -> String {
    let steps = commands
        .iter()
        .map(|command| format!("{command}\n----\n\n"));
    steps.collect()
}

fn push_lines(text: &mut String, lines: &[String]) {
    for line in lines {
        text.push_str(line);
        text.push('\n');
    }
}

fn read(script: &str) -> Result<(Vec<Step>, Vec<String>), String> {
    let mut steps = Vec::new();
    let mut lines = script.lines().map(str::trim_end).zip(1..).peekable();
    loop {
        let mut comment = Vec::new();
        while let Some((text, _)) =
            lines.next_if(|(text, _)| text.is_empty() || text.starts_with('#'))
        {
            comment.push(text.to_owned());
        }
        let Some((_, line)) = lines.peek().copied() else {
            return Ok((steps, comment));
        };
        let mut command = Vec::new();
        while let Some((text, _)) = lines.next_if(|(text, _)| *text != "----") {
            if text.is_empty() {
                return Err(format!("line {line}: the command has no ----"));
            }
            command.push(text.to_owned());
        }
        lines
            .next()
            .ok_or_else(|| format!("line {line}: the command has no ----"))?;
        let mut expected = Vec::new();
        while let Some((text, _)) = lines.next_if(|(text, _)| !text.is_empty()) {
            expected.push(text.to_owned());
        }
        lines.next();
        steps.push(Step {
            line,
            comment,
            command,
            expected,
        });
    }
}

impl Runner {
    /// Runs one command; the rows follow the outcome of those that write.
    fn run(&mut self, command: &[String]) -> Result<Vec<String>, String> {
        let (line, input) = command.split_first().ok_or("an empty command")?;
        let (name, args) = line.split_once(' ').unwrap_or((line, ""));
        if let Some(output) = codec::run(name, args, input) {
            return output;
        }
        if let Some(output) = txn::run(&mut self.coordinators, name, args, input) {
            return output;
        }
        let before = self.store.clone();
        let mut output = rules::run(&mut self.store, name, args, input)?;
        let reads = matches!(name, "get" | "scan" | "after-status" | "points");
        if self.store != before {
            assert!(!reads, "{line} has written something");
            let all = self.store.rows();
            output.extend(all.iter().map(|(cell, row)| rows::row(cell, row)));
        } else if !reads {
            output.push("rows as before".into());
        }
        Ok(output)
    }
}
