//! What commands print: results on standard output, as text or JSON; messages on standard error.

use std::io::{self, IsTerminal, Write};

use clap::ValueEnum;
use percolator_client::{Entry, escape};
use serde::Serialize;

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs: one JSON value, or one a line where there are many. Timestamps are strings: many
    /// readers of JSON round large numbers.
    Json,
}

/// Prints results.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    pub(crate) format: Format,
    /// Messages that nobody has to act on are left out.
    pub(crate) quiet: bool,
}

impl Output {
    /// Prints a result: the text, or the value as JSON.
    pub(crate) fn result(&self, text: &str, value: &impl Serialize) -> io::Result<()> {
        match self.format {
            Format::Text => self.line(text),
            Format::Json => self.line(&serde_json::to_string(value)?),
        }
    }

    /// Prints a line on standard output.
    pub(crate) fn line(&self, line: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "{line}")
    }

    /// Says something on standard error.
    pub(crate) fn note(&self, message: &str) {
        if !self.quiet {
            let _ = writeln!(io::stderr().lock(), "{message}");
        }
    }
}

/// Cells, one a line: in columns on a terminal, with tabs between them elsewhere, for programs.
///
/// Columns are as wide as the widest cell so far, and a screenful is looked at before it is printed.
pub(crate) struct Cells {
    output: Output,
    with_rows: bool,
    /// `None`: tabs.
    widths: Option<Vec<usize>>,
    held: Vec<Vec<String>>,
}

/// Lines that are looked at together.
const SCREENFUL: usize = 50;
/// A column is made no wider than this: one long row doesn't push everything off the screen.
const WIDTH_MAX: usize = 40;

impl Cells {
    /// `with_rows`: says of which row each cell is.
    pub(crate) fn new(output: Output, with_rows: bool) -> Self {
        let widths = io::stdout().is_terminal().then(Vec::new);
        Self {
            output,
            with_rows,
            widths,
            held: Vec::new(),
        }
    }

    pub(crate) fn print(&mut self, cell: &Entry) -> io::Result<()> {
        if self.output.format == Format::Json {
            let json = CellJson::new(&cell.row, &cell.column, Some(&cell.value));
            return self.output.line(&serde_json::to_string(&json)?);
        }
        let row = self.with_rows.then(|| escape(&cell.row));
        let words = row
            .into_iter()
            .chain([escape(&cell.column), escape(&cell.value)])
            .collect();
        self.held.push(words);
        if self.widths.is_none() || self.held.len() >= SCREENFUL {
            self.end()?;
        }
        Ok(())
    }

    /// Prints what is held: to be called at the end, also at one that an error has made.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        for line in self.lines() {
            self.output.line(&line)?;
        }
        Ok(())
    }

    fn lines(&mut self) -> Vec<String> {
        let rows = std::mem::take(&mut self.held);
        let Some(widths) = &mut self.widths else {
            return rows.iter().map(|row| row.join("\t")).collect();
        };
        for row in &rows {
            let before_the_last = row.iter().take(row.len().saturating_sub(1));
            for (at, cell) in before_the_last.enumerate() {
                let width = cell.chars().count().min(WIDTH_MAX);
                match widths.get_mut(at) {
                    Some(known) => *known = (*known).max(width),
                    None => widths.push(width),
                }
            }
        }
        // The last one is as long as it is.
        let widths = widths.iter().chain([&0]);
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(widths.clone());
            let cells: Vec<String> = cells
                .map(|(cell, width)| format!("{cell:<width$}"))
                .collect();
            cells.join("   ")
        };
        rows.iter().map(line).collect()
    }
}

/// Rows of text in columns; the first row is the head.
pub(crate) fn columns(rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows {
        for (at, cell) in row.iter().enumerate() {
            let width = cell.chars().count();
            match widths.get_mut(at) {
                Some(known) => *known = (*known).max(width),
                None => widths.push(width),
            }
        }
    }
    let lines: Vec<String> = rows
        .iter()
        .map(|row| {
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell:<width$}"))
                .collect();
            cells.join("   ").trim_end().to_owned()
        })
        .collect();
    lines.join("\n")
}

/// A cell as JSON: bytes in their escaped form.
#[derive(Debug, Serialize)]
pub(crate) struct CellJson {
    row: String,
    column: String,
    value: Option<String>,
}

impl CellJson {
    pub(crate) fn new(row: &[u8], column: &[u8], value: Option<&[u8]>) -> Self {
        Self {
            row: escape(row),
            column: escape(column),
            value: value.map(escape),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(widths: Option<Vec<usize>>, rows: &[[&str; 3]]) -> Vec<String> {
        let output = Output {
            format: Format::Text,
            quiet: false,
        };
        let held = rows
            .iter()
            .map(|row| row.iter().map(|&cell| cell.to_owned()).collect());
        let mut cells = Cells {
            output,
            with_rows: true,
            widths,
            held: held.collect(),
        };
        cells.lines()
    }

    #[test]
    fn cells_stand_in_columns_on_a_terminal_alone() {
        let long = "x".repeat(60);
        let rows = [
            ["bob", "balance", "10"],
            ["zoe", "owner", "Zoe"],
            [&long, "o", ""],
        ];
        assert_eq!(
            printed(Some(Vec::new()), &rows[..2]),
            ["bob   balance   10", "zoe   owner     Zoe"]
        );
        let wide = printed(Some(Vec::new()), &rows);
        assert_eq!(wide[0], format!("bob{}   balance   10", " ".repeat(37)));
        assert_eq!(wide[2], format!("{long}   o         "));
        assert_eq!(printed(None, &rows)[0], "bob\tbalance\t10");
    }
}
