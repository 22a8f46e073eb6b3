//! What commands print: results on standard output, as text or JSON; messages on standard error.

use std::io::{self, IsTerminal, Write};

use base64::prelude::{BASE64_STANDARD, Engine};
use clap::ValueEnum;
use percolator_client::{Entry, escape};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;

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

/// Bytes, for people: with binary units, as `du -h` does.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let mut size = bytes as f64 / 1024.0;
    let mut unit = 0;
    while size >= 1024.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(size < 10.0);
    format!("{size:.digits$} {}", UNITS[unit])
}

/// Cells that are read or written a second, for people; few aren't counted.
pub(crate) fn load(cells: u64) -> String {
    match cells {
        0 => "-".to_owned(),
        cells => format!("{cells}/s"),
    }
}

/// Cells, one a line: in columns on a terminal, with tabs between them elsewhere, for programs.
///
/// Columns are as wide as the widest cell so far, and a screenful is measured before it is printed.
pub(crate) struct Cells {
    output: Output,
    with_rows: bool,
    /// `None`: tabs.
    widths: Option<Vec<usize>>,
    held: Vec<Vec<String>>,
    /// Lines that are to be written.
    text: String,
}

/// Bytes of one write, if the output is no terminal.
const WRITE_BYTES: usize = 64 << 10;
/// Lines that are measured together.
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
            text: String::new(),
        }
    }

    pub(crate) fn print(&mut self, cell: &Entry) -> io::Result<()> {
        if self.output.format == Format::Json {
            let json = CellJson::new(&cell.row, &cell.column, Some(&cell.value));
            self.text += &serde_json::to_string(&json)?;
            self.text.push('\n');
            return self.write_from(WRITE_BYTES);
        }
        let row = self.with_rows.then(|| escape(&cell.row));
        let words = row
            .into_iter()
            .chain([escape(&cell.column), escape(&cell.value)])
            .collect();
        self.held.push(words);
        if self.held.len() >= SCREENFUL {
            self.lay_out();
            self.write_from(if self.widths.is_some() {
                0
            } else {
                WRITE_BYTES
            })?;
        }
        Ok(())
    }

    /// Prints what is held: to be called at the end, also at one that an error has made.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        self.lay_out();
        self.write_from(0)
    }

    fn lay_out(&mut self) {
        for line in self.lines() {
            self.text += &line;
            self.text.push('\n');
        }
    }

    /// Writes what there is, if it has so many bytes: a write for each line takes longer than to read it.
    fn write_from(&mut self, bytes: usize) -> io::Result<()> {
        if self.text.len() < bytes {
            return Ok(());
        }
        io::stdout().lock().write_all(self.text.as_bytes())?;
        self.text.clear();
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

/// Bytes in JSON under a name: text where they are UTF-8, else in base64 under the name with `_base64` behind it. For
/// `#[serde(flatten)]`.
#[derive(Debug)]
pub(crate) struct Named<'a> {
    name: &'static str,
    bytes: Option<&'a [u8]>,
}

impl<'a> Named<'a> {
    pub(crate) fn new(name: &'static str, bytes: &'a [u8]) -> Self {
        Self {
            name,
            bytes: Some(bytes),
        }
    }
}

impl Serialize for Named<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1))?;
        let bytes = self.bytes;
        match bytes.map(std::str::from_utf8).transpose() {
            Ok(text) => map.serialize_entry(self.name, &text)?,
            Err(_) => {
                let base64 = BASE64_STANDARD.encode(bytes.unwrap_or_default());
                map.serialize_entry(&format!("{}_base64", self.name), &base64)?;
            }
        }
        map.end()
    }
}

/// The object, with bytes besides: see [`Named`].
pub(crate) fn with_bytes(mut json: Value, named: &[(&'static str, &[u8])]) -> Value {
    for (name, bytes) in named {
        let one = serde_json::to_value(Named::new(name, bytes));
        if let (Some(into), Ok(Value::Object(one))) = (json.as_object_mut(), one) {
            into.extend(one);
        }
    }
    json
}

/// A cell as JSON.
#[derive(Debug, serde::Serialize)]
pub(crate) struct CellJson<'a> {
    #[serde(flatten)]
    row: Named<'a>,
    #[serde(flatten)]
    column: Named<'a>,
    #[serde(flatten)]
    value: Named<'a>,
}

impl<'a> CellJson<'a> {
    pub(crate) fn new(row: &'a [u8], column: &'a [u8], value: Option<&'a [u8]>) -> Self {
        Self {
            row: Named::new("row", row),
            column: Named::new("column", column),
            value: Named {
                name: "value",
                bytes: value,
            },
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
            text: String::new(),
        };
        cells.lines()
    }

    #[test]
    fn bytes_are_text_in_json_or_base64() {
        let json = |value| serde_json::to_string(&CellJson::new(br"C:\temp", b"c", value));
        assert_eq!(
            json(Some("ä".as_bytes())).expect("JSON"),
            r#"{"row":"C:\\temp","column":"c","value":"ä"}"#
        );
        assert_eq!(
            json(Some(b"\xff\x00")).expect("JSON"),
            r#"{"row":"C:\\temp","column":"c","value_base64":"/wA="}"#
        );
        assert_eq!(
            json(None).expect("JSON"),
            r#"{"row":"C:\\temp","column":"c","value":null}"#
        );
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
