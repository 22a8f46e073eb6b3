//! The words of a line: `name=value`, values in quotes, timestamps, cells.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use percolator_protocol::types::{Cell, TableId, Timestamp, escape, unescape};

/// A line, taken apart.
pub(crate) struct Args {
    named: BTreeMap<String, String>,
    words: VecDeque<String>,
}

impl Args {
    pub(crate) fn read(line: &str) -> Result<Self, String> {
        let mut args = Self {
            named: BTreeMap::new(),
            words: VecDeque::new(),
        };
        for word in words(line)? {
            match word.split_once('=') {
                Some((name, value)) if !word.starts_with('"') => {
                    if args.named.insert(name.into(), value.into()).is_some() {
                        return Err(format!("{name}= comes twice"));
                    }
                }
                _ => args.words.push_back(word),
            }
        }
        Ok(args)
    }

    /// The next word that isn't `name=value`.
    pub(crate) fn word(&mut self) -> Option<String> {
        self.words.pop_front()
    }

    pub(crate) fn expect(&mut self, what: &str) -> Result<String, String> {
        self.word().ok_or_else(|| format!("{what} is missing"))
    }

    /// Whether the word is among them.
    pub(crate) fn flag(&mut self, name: &str) -> bool {
        let at = self.words.iter().position(|word| word == name);
        at.and_then(|at| self.words.remove(at)).is_some()
    }

    pub(crate) fn named(&mut self, name: &str) -> Option<String> {
        self.named.remove(name)
    }

    pub(crate) fn need(&mut self, name: &str) -> Result<String, String> {
        self.named(name)
            .ok_or_else(|| format!("{name}= is missing"))
    }

    pub(crate) fn ts(&mut self, name: &str) -> Result<Timestamp, String> {
        read_ts(&self.need(name)?)
    }

    pub(crate) fn number(&mut self, name: &str) -> Result<u64, String> {
        read_number(&self.need(name)?)
    }

    /// Of a flush; 0 where there is none.
    pub(crate) fn generation(&mut self) -> Result<u32, String> {
        self.named("generation").map_or(Ok(0), |text| {
            text.parse().map_err(|_| format!("{text} is no generation"))
        })
    }

    pub(crate) fn cell(&mut self, name: &str) -> Result<Cell, String> {
        read_cell(&self.need(name)?)
    }

    /// The words that are left, as cells.
    pub(crate) fn cells(&mut self) -> Result<Vec<Cell>, String> {
        self.words.drain(..).map(|word| read_cell(&word)).collect()
    }

    /// The words that are left, as indices.
    pub(crate) fn indices(&mut self) -> Result<Vec<usize>, String> {
        let index = |word: String| Ok(read_number(&word)? as usize);
        self.words.drain(..).map(index).collect()
    }

    /// Nothing may be left.
    pub(crate) fn end(self) -> Result<(), String> {
        match self.words.front().or(self.named.keys().next()) {
            Some(word) => Err(format!("what is {word} here?")),
            None => Ok(()),
        }
    }
}

fn words(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quoted = false;
    for c in line.chars() {
        quoted ^= c == '"';
        if c.is_whitespace() && !quoted {
            words.extend(Some(std::mem::take(&mut word)).filter(|word| !word.is_empty()));
        } else {
            word.push(c);
        }
    }
    if quoted {
        return Err("a quote has no end".into());
    }
    words.extend(Some(word).filter(|word| !word.is_empty()));
    Ok(words)
}

pub(crate) fn read_number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text} is no number"))
}

/// `7`; `5ms` for the first timestamp of a millisecond, `5ms+3` for the third after it; `max`.
pub(crate) fn read_ts(text: &str) -> Result<Timestamp, String> {
    if text == "max" {
        return Ok(Timestamp::MAX);
    }
    let Some((ms, logical)) = text.split_once("ms") else {
        return Ok(Timestamp::from_u64(read_number(text)?));
    };
    let logical = match logical.strip_prefix('+') {
        Some(logical) => read_number(logical)?,
        None if logical.is_empty() => 0,
        None => return Err(format!("{text} is no timestamp")),
    };
    let first = Timestamp::from_millis(read_number(ms)?);
    Ok(Timestamp::from_u64(first.as_u64() + logical))
}

pub(crate) fn ts(ts: Timestamp) -> String {
    match (ts.physical_ms(), ts.logical()) {
        _ if ts == Timestamp::MAX => "max".into(),
        (0, logical) => logical.to_string(),
        (ms, 0) => format!("{ms}ms"),
        (ms, logical) => format!("{ms}ms+{logical}"),
    }
}

/// `bob`, `bob:balance`, `2/bob:balance`; the table is 1 where none is named.
pub(crate) fn read_cell(text: &str) -> Result<Cell, String> {
    let (table, name) = match text.split_once('/') {
        Some((table, name)) => {
            let table = table.parse().map_err(|_| format!("{table} is no table"))?;
            (table, name)
        }
        None => (1, text),
    };
    let (row, column) = name.split_once(':').unwrap_or((name, ""));
    Ok(Cell::new(TableId(table), unescape(row)?, unescape(column)?))
}

pub(crate) fn cell(cell: &Cell) -> String {
    let mut text = match cell.table {
        TableId(1) => String::new(),
        TableId(table) => format!("{table}/"),
    };
    text += &name(&cell.row);
    if !cell.column.is_empty() {
        text += ":";
        text += &name(&cell.column);
    }
    text
}

fn name(bytes: &[u8]) -> String {
    let mut text = escape(bytes);
    for (c, escaped) in [
        (" ", "\\x20"),
        ("\"", "\\x22"),
        (":", "\\x3a"),
        ("/", "\\x2f"),
    ] {
        text = text.replace(c, escaped);
    }
    text.replace('=', "\\x3d")
}

/// `"3"`; `"ab"*150` for a value of 300 bytes.
pub(crate) fn read_value(text: &str) -> Result<Bytes, String> {
    let inner = text.strip_prefix('"');
    let (unit, rest) = inner
        .and_then(|inner| inner.split_once('"'))
        .ok_or_else(|| format!("{text} is no value in quotes"))?;
    let unit = unescape(unit)?;
    match rest.strip_prefix('*') {
        Some(times) => Ok(unit.repeat(read_number(times)? as usize).into()),
        None if rest.is_empty() => Ok(unit.into()),
        None => Err(format!("what is {rest} behind a value?")),
    }
}

pub(crate) fn value(bytes: &[u8]) -> String {
    let quoted = |bytes: &[u8]| format!("\"{}\"", escape(bytes).replace('"', "\\x22"));
    if bytes.len() > 32 {
        let unit = (1..=8).find(|unit| {
            bytes.len().is_multiple_of(*unit)
                && bytes.chunks(*unit).all(|part| *part == bytes[..*unit])
        });
        if let Some(unit) = unit {
            return format!("{}*{}", quoted(&bytes[..unit]), bytes.len() / unit);
        }
    }
    quoted(bytes)
}
