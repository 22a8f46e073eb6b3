//! What commands print: results on standard output, as text or JSON; messages on standard error.

use std::io::{self, Write};

use clap::ValueEnum;
use percolator_client::escape;
use serde::Serialize;

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs: one JSON value, or one a line where there are many.
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
