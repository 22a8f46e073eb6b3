//! Cells: what a transaction reads and writes.

use std::fmt;

use bytes::Bytes;

use super::limits::{COLUMN_BYTES_MAX, ROW_BYTES_MAX};

/// A table's number. The master never hands one out twice, so that a table that is deleted and made
/// again can't show the old one's rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId(pub u32);

/// One cell of one table, ordered by table, row, column.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cell {
    /// The table.
    pub table: TableId,
    /// The row, 1 to [`ROW_BYTES_MAX`] bytes.
    pub row: Bytes,
    /// The column, 0 to [`COLUMN_BYTES_MAX`] bytes.
    pub column: Bytes,
}

impl Cell {
    /// A cell of these parts.
    pub fn new(table: TableId, row: impl Into<Bytes>, column: impl Into<Bytes>) -> Self {
        Self {
            table,
            row: row.into(),
            column: column.into(),
        }
    }

    /// The reason why the cell can't be stored, if it can't: a sentence with the limit in it.
    pub fn invalid(&self) -> Option<String> {
        invalid_row(&self.row).or_else(|| {
            (self.column.len() > COLUMN_BYTES_MAX).then(|| {
                format!(
                    "the column is {} bytes long, the limit is {COLUMN_BYTES_MAX}",
                    self.column.len()
                )
            })
        })
    }
}

fn invalid_row(row: &[u8]) -> Option<String> {
    if row.is_empty() {
        Some("the row is empty; a row has at least 1 byte".into())
    } else if row.len() > ROW_BYTES_MAX {
        Some(format!(
            "the row is {} bytes long, the limit is {ROW_BYTES_MAX}",
            row.len()
        ))
    } else {
        None
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A colon of the row or the column is escaped too: the one that isn't is between them.
        let part = |bytes| escape(bytes).replace(':', "\\x3a");
        write!(f, "{}/{}", self.table.0, part(&self.row))?;
        if !self.column.is_empty() {
            write!(f, ":{}", part(&self.column))?;
        }
        Ok(())
    }
}

/// Bytes as text: printable ASCII and well-formed UTF-8 letters as they are, a backslash as `\\`, every
/// other byte as `\xNN`. [`unescape`] reads it back.
pub fn escape(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                c if c.is_control() || (c.is_whitespace() && c != ' ') => {
                    let mut utf8 = [0; 4];
                    for byte in c.encode_utf8(&mut utf8).bytes() {
                        let _ = write!(text, "\\x{byte:02x}");
                    }
                }
                c => text.push(c),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Bytes from their escaped form: `\\`, `\xNN`, `\n`, `\r`, `\t`; everything else stands for itself.
///
/// # Errors
/// A sentence that says which escape is wrong.
pub fn unescape(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        if c != '\\' {
            let mut utf8 = [0; 4];
            bytes.extend_from_slice(c.encode_utf8(&mut utf8).as_bytes());
            continue;
        }
        match chars.next().map(|(_, c)| c) {
            Some('\\') => bytes.push(b'\\'),
            Some('n') => bytes.push(b'\n'),
            Some('r') => bytes.push(b'\r'),
            Some('t') => bytes.push(b'\t'),
            Some('x') => {
                let digits = text.get(at + 2..at + 4).unwrap_or_default();
                let byte = u8::from_str_radix(digits, 16).map_err(|_| {
                    format!("\\x at byte {at} needs two hexadecimal digits, as in \\x00")
                })?;
                bytes.push(byte);
                chars.next();
                chars.next();
            }
            Some(other) => {
                return Err(format!(
                    "\\{other} at byte {at} is no escape; use \\\\, \\n, \\r, \\t or \\xNN"
                ));
            }
            None => return Err("a lone \\ at the end; write \\\\ for a backslash".into()),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_bytes_read_back() {
        for bytes in [
            &b"bob"[..],
            b"",
            b"a b",
            b"\x00\xff\n\t\\x41",
            "gr\u{fc}n \u{85}".as_bytes(),
            b"\xc3\x28",
        ] {
            assert_eq!(
                unescape(&escape(bytes)).unwrap(),
                bytes,
                "{}",
                escape(bytes)
            );
        }
        assert_eq!(escape(b"k\x00\\"), "k\\x00\\\\");
    }

    #[test]
    fn wrong_escapes_say_where() {
        assert!(unescape("ab\\q").unwrap_err().contains("byte 2"));
        assert!(unescape("\\x4").unwrap_err().contains("two hexadecimal"));
        assert!(unescape("\\x+1").is_err() || unescape("\\x+1").unwrap() == b"\x01");
        assert!(unescape("tail\\").unwrap_err().contains("lone"));
    }

    #[test]
    fn limits_are_named() {
        let cell = Cell::new(TableId(1), vec![b'r'; ROW_BYTES_MAX + 1], "");
        assert!(cell.invalid().unwrap().contains("limit is 4096"));
        assert!(Cell::new(TableId(1), "", "").invalid().is_some());
        assert!(Cell::new(TableId(1), "r", "").invalid().is_none());
    }
}
