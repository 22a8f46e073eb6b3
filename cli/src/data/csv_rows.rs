//! Rows of a CSV file, strictly after RFC 4180: the `csv` crate reads on over a quote that stands
//! where none may be, and would load wrong values without a word.

use std::io::{self, BufRead};

use super::lines::{Lines, Next};
use super::source::Bad;

/// A row, and the line that it starts in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CsvRow {
    pub(crate) line: u64,
    pub(crate) fields: Vec<String>,
}

/// A row that is being read; a quoted field goes on over lines.
#[derive(Default)]
struct Open {
    fields: Vec<String>,
    field: String,
    /// The line of the quote that is open.
    quoted_since: Option<u64>,
}

/// The next row; `None` at the end. Empty lines are passed over.
pub(crate) fn next_row<R: BufRead>(
    lines: &mut Lines<R>,
    buffer: &mut Vec<u8>,
) -> io::Result<Option<Result<CsvRow, Bad>>> {
    let mut open = Open::default();
    let mut start = None;
    let mut bytes = 0;
    loop {
        let next = lines.next(buffer)?;
        let line = *start.get_or_insert(lines.line());
        let unclosed = |opened: u64, what: &str| Bad {
            line: opened,
            why: format!("the quote that opens here is not closed {what}"),
            fatal: true,
        };
        match (next, open.quoted_since) {
            (Next::End, Some(opened)) => {
                return Ok(Some(Err(unclosed(opened, "before the file's end"))));
            }
            (Next::End, None) => return Ok(None),
            (Next::TooLong, None) => return Ok(Some(Err(Bad::too_long(line, lines.limit())))),
            (Next::Line, Some(opened)) if bytes + buffer.len() > lines.limit() => {
                let what = format!("within {} bytes, the limit of a record", lines.limit());
                return Ok(Some(Err(unclosed(opened, &what))));
            }
            (Next::TooLong, Some(opened)) => {
                let what = format!("within {} bytes, the limit of a record", lines.limit());
                return Ok(Some(Err(unclosed(opened, &what))));
            }
            (Next::Line, _) => {}
        }
        bytes += buffer.len();
        let text = match std::str::from_utf8(buffer) {
            Ok(text) => text,
            Err(error) => {
                let bad = Bad::not_utf8(lines.line(), &error);
                return Ok(Some(Err(of_row(bad, buffer, open.quoted_since.is_some()))));
            }
        };
        if open.quoted_since.is_none() && text.trim_end_matches(['\r', '\n']).is_empty() {
            start = None;
            continue;
        }
        let is_quoted = open.quoted_since.is_some();
        match open.take(text, lines.line()) {
            Ok(true) => {
                let fields = open.fields;
                return Ok(Some(Ok(CsvRow { line, fields })));
            }
            Ok(false) => {}
            Err(why) => {
                let bad = Bad::at(lines.line(), why);
                return Ok(Some(Err(of_row(bad, buffer, is_quoted))));
            }
        }
    }
}

/// What is wrong with a row because of this line. Where a quote is open at its end, nobody knows where the row ends: the next line may
/// be a part of a field, and look like a row.
fn of_row(bad: Bad, line: &[u8], is_quoted: bool) -> Bad {
    if !ends_quoted(line, is_quoted) {
        return bad;
    }
    Bad {
        why: format!(
            "{}; a quote is open at the line's end, so that the lines behind it may be parts of a field",
            bad.why
        ),
        fatal: true,
        ..bad
    }
}

/// Whether a quote is open at the end of a line, as far as that can be seen; `is_quoted`: one was at its beginning.
fn ends_quoted(line: &[u8], mut is_quoted: bool) -> bool {
    let mut is_start = !is_quoted;
    let mut bytes = line.iter().peekable();
    while let Some(byte) = bytes.next() {
        if is_quoted {
            // Two quotes are one.
            is_quoted = *byte != b'"' || bytes.next_if_eq(&&b'"').is_some();
        } else if is_start && *byte == b'"' {
            (is_quoted, is_start) = (true, false);
        } else {
            is_start = *byte == b',';
        }
    }
    is_quoted
}

impl Open {
    /// Takes a line with its end; `true`: the row is complete.
    fn take(&mut self, text: &str, line: u64) -> Result<bool, String> {
        let body = text.strip_suffix('\n').unwrap_or(text);
        let body = body.strip_suffix('\r').unwrap_or(body);
        let mut rest = body;
        loop {
            if self.quoted_since.is_some() {
                let Some(quote) = rest.find('"') else {
                    self.field.push_str(rest);
                    self.field.push_str(&text[body.len()..]);
                    return Ok(false);
                };
                self.field.push_str(&rest[..quote]);
                rest = &rest[quote + 1..];
                if let Some(after) = rest.strip_prefix('"') {
                    self.field.push('"');
                    rest = after;
                    continue;
                }
                self.quoted_since = None;
                if !rest.is_empty() && !rest.starts_with(',') {
                    return Err(format!(
                        "column {}: text behind the closing quote of a field; a quote within a quoted field \
                         is written \"\"",
                        body.len() - rest.len() + 1
                    ));
                }
            } else if let Some(quoted) = rest.strip_prefix('"') {
                self.quoted_since = Some(line);
                rest = quoted;
                continue;
            } else {
                let end = rest.find(',').unwrap_or(rest.len());
                if let Some(quote) = rest[..end].find('"') {
                    return Err(format!(
                        "column {}: a quote within a field that isn't quoted; quote the field and write the \
                         quote as \"\"",
                        body.len() - rest.len() + quote + 1
                    ));
                }
                self.field.push_str(&rest[..end]);
                rest = &rest[end..];
            }
            self.fields.push(std::mem::take(&mut self.field));
            match rest.strip_prefix(',') {
                Some(next) => rest = next,
                None => return Ok(true),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;

    fn rows(text: &[u8]) -> Vec<Result<CsvRow, Bad>> {
        let mut lines = Lines::new(text, Arc::default()).with_limit(50);
        let mut buffer = Vec::new();
        let mut rows = Vec::new();
        while let Some(row) = next_row(&mut lines, &mut buffer).unwrap() {
            let fatal = matches!(&row, Err(bad) if bad.fatal);
            rows.push(row);
            if fatal {
                break;
            }
        }
        rows
    }

    fn fields(text: &str) -> Vec<(u64, Vec<String>)> {
        let rows = rows(text.as_bytes()).into_iter();
        rows.map(|row| row.map(|row| (row.line, row.fields)).unwrap())
            .collect()
    }

    #[test]
    fn rows_are_read() {
        assert_eq!(
            fields("a,b\r\n1,\r\n\r\n,2"),
            [
                (1, vec!["a".into(), "b".into()]),
                (2, vec!["1".into(), String::new()]),
                (4, vec![String::new(), "2".into()]),
            ]
        );
        assert_eq!(
            fields("\"a\"\"b\",\"c,\nd\r\n\"\ne,f\n"),
            [
                (1, vec!["a\"b".into(), "c,\nd\r\n".into()]),
                (4, vec!["e".into(), "f".into()]),
            ]
        );
        assert_eq!(fields("\"\"\n"), [(1, vec![String::new()])]);
    }

    #[test]
    fn wrong_quotes_are_found_where_they_are() {
        let bad = |text: &str, at: usize| rows(text.as_bytes())[at].clone().unwrap_err();
        let inner = bad("a,b\n5\" disk,x\nc,d\n", 1);
        assert_eq!((inner.line, inner.fatal), (2, false));
        assert!(inner.why.contains("column 2"), "{}", inner.why);
        let behind = bad("\"a\"x,b\n", 0);
        assert!(behind.why.contains("column 4"), "{}", behind.why);
        let open = bad("a\n\"b\nc\n", 1);
        assert_eq!((open.line, open.fatal), (2, true));
        assert!(open.why.contains("file's end"), "{}", open.why);
        let long = bad(&format!("\"a\n{}", "0123456789\n".repeat(6)), 0);
        assert!(long.fatal && long.why.contains("50 bytes"), "{}", long.why);
        let latin = rows(b"a\n\xe4\nb\n");
        assert_eq!(latin[1].clone().unwrap_err().line, 2);
        assert_eq!(latin[2].clone().unwrap().fields, ["b"]);
    }

    /// What lies within it is no row, whatever it looks like.
    #[test]
    fn nothing_is_read_behind_a_bad_line_with_an_open_quote() {
        for text in [
            &b"id,name\n1,\"caf\xe9 and\n2,evil\nend\"\n"[..],
            b"id,name\n1,\"and\ncaf\xe9\n2,evil\nend\"\n",
            b"id,name\n1\",\"and\n2,evil\nend\"\n",
            b"id,name\n\"1\"x,\"and\n2,evil\nend\"\n",
        ] {
            let rows = rows(text);
            assert_eq!(rows.len(), 2, "{rows:?}");
            assert!(rows[1].clone().unwrap_err().fatal, "{rows:?}");
        }
        for text in [
            &b"id,name\n1,\"caf\xe9\"\n2,good\n"[..],
            b"id,name\n1,\"a\"\"b\xe9\"\n2,good\n",
            b"id,name\n1,\"a\nb\xe9\"\n2,good\n",
            b"id,name\n\"1\"x\",y\n2,good\n",
        ] {
            let rows = rows(text);
            assert_eq!(rows.len(), 3, "{rows:?}");
            assert_eq!(rows[2].clone().unwrap().fields, ["2", "good"]);
        }
    }

    proptest! {
        #[test]
        fn what_the_csv_crate_writes_is_read_back(
            table in prop::collection::vec(prop::collection::vec("[a\",\r\n ü]{0,4}", 2), 0..5)
        ) {
            let mut writer = csv::WriterBuilder::new().from_writer(Vec::new());
            for row in &table {
                writer.write_record(row).unwrap();
            }
            let text = writer.into_inner().unwrap();
            let mut lines = Lines::new(&text[..], Arc::default());
            let mut read = Vec::new();
            while let Some(row) = next_row(&mut lines, &mut Vec::new()).unwrap() {
                read.push(row.unwrap().fields);
            }
            prop_assert_eq!(read, table);
        }
    }
}
