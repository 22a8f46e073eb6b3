//! Records of a file, one after the other.

use std::collections::HashSet;
use std::io::{self, BufRead};

use super::csv_rows::next_row;
use super::elements::Element;
use super::lines::{Lines, Next};
use super::records::{JSON_VALUE_BYTES_MAX, Record, Shape, Twin};
use super::{FileFormat, json};

/// A line, or a row, that can't be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bad {
    /// From 1.
    pub(crate) line: u64,
    pub(crate) why: String,
    /// Nothing behind it can be read.
    pub(crate) fatal: bool,
}

impl Bad {
    pub(crate) fn at(line: u64, why: impl Into<String>) -> Self {
        Self {
            line,
            why: why.into(),
            fatal: false,
        }
    }

    pub(crate) fn too_long(line: u64, limit: usize) -> Self {
        Self::at(
            line,
            format!("the line is longer than {limit} bytes, the limit"),
        )
    }

    pub(crate) fn not_utf8(line: u64, error: &std::str::Utf8Error) -> Self {
        Self::at(
            line,
            format!("column {}: not UTF-8 text", error.valid_up_to() + 1),
        )
    }

    fn fatal(line: u64, why: impl Into<String>) -> Self {
        Self {
            fatal: true,
            ..Self::at(line, why)
        }
    }
}

/// Reads records.
pub(crate) struct Source<R> {
    lines: Lines<R>,
    shape: Shape,
    format: FileFormat,
    header: Option<Vec<String>>,
    /// The first key that another key of JSON would have the row of, and its line.
    twin: Option<(u64, Twin)>,
    buffer: Vec<u8>,
    /// Whether the file is a JSON array, once that was determined.
    array: Option<bool>,
}

impl<R: BufRead> Source<R> {
    pub(crate) fn new(lines: Lines<R>, format: FileFormat, shape: Shape) -> Self {
        Self {
            lines,
            shape,
            format,
            header: None,
            twin: None,
            buffer: Vec::new(),
            array: None,
        }
    }

    /// The line that was read last, from 1.
    pub(crate) fn line(&self) -> u64 {
        self.lines.line()
    }

    /// The next record, or what is wrong with it; `None` at the end. Behind a fatal one nothing may be
    /// asked for.
    pub(crate) fn next(&mut self) -> io::Result<Option<Result<Record, Bad>>> {
        let next = match self.format {
            FileFormat::Jsonl => self.next_json(),
            FileFormat::Csv => self.next_csv(),
        };
        Ok(next?.map(|record| self.without_twins(record?)))
    }

    /// Refuses keys whose rows are those of other keys: one would take the other's place without a word.
    fn without_twins(&mut self, record: Record) -> Result<Record, Bad> {
        let Some((of, with)) = record.twin.kinds() else {
            return Ok(record);
        };
        let (first, twin) = *self.twin.get_or_insert((record.line, record.twin));
        if twin == record.twin {
            return Ok(record);
        }
        let why = format!(
            "the key, field {:?}, is {of}, and in line {first} it is {with}: 1 and \"1\" would be one row; write \
             the keys of a file in one way",
            self.shape.key
        );
        Err(Bad::at(record.line, why))
    }

    fn next_json(&mut self) -> io::Result<Option<Result<Record, Bad>>> {
        if self.array.is_none() {
            self.lines.in_array = self.lines.enters_array()?;
            self.array = Some(self.lines.in_array);
        }
        if self.array == Some(true) {
            return self.next_element();
        }
        loop {
            let next = self.lines.next(&mut self.buffer)?;
            let line = self.lines.line();
            match next {
                Next::End => return Ok(None),
                Next::TooLong => return Ok(Some(Err(Bad::too_long(line, self.lines.limit())))),
                Next::Line if self.buffer.trim_ascii().is_empty() => {}
                Next::Line => return Ok(Some(self.json_record(line))),
            }
        }
    }

    fn next_element(&mut self) -> io::Result<Option<Result<Record, Bad>>> {
        let element = if self.lines.in_array {
            self.lines.element(&mut self.buffer)?
        } else {
            Element::End
        };
        let is_last = !self.lines.in_array;
        match element {
            // An empty array, or the end of one: nothing else may follow.
            Element::Whole { .. } if is_last && self.buffer.trim_ascii().is_empty() => {}
            Element::Whole { line } => return Ok(Some(self.json_record(line))),
            Element::TooLong { line } => {
                return Ok(Some(Err(Bad::too_long(line, self.lines.limit()))));
            }
            Element::Broken(why) => {
                return Ok(Some(Err(Bad::fatal(self.lines.line() + 1, why))));
            }
            Element::End => {}
        }
        match self.lines.behind_array(&mut self.buffer)? {
            Element::Broken(why) => Ok(Some(Err(Bad::fatal(self.lines.line(), why)))),
            _ => Ok(None),
        }
    }

    fn json_record(&self, line: u64) -> Result<Record, Bad> {
        let text =
            std::str::from_utf8(&self.buffer).map_err(|error| Bad::not_utf8(line, &error))?;
        let members = json::members(text, JSON_VALUE_BYTES_MAX)
            .map_err(|error| {
                let unit = match self.array {
                    Some(true) => "byte of the element",
                    _ => "column",
                };
                Bad::at(line, format!("{unit} {}: {}", error.column, error.why))
            })?
            .ok_or_else(|| {
                Bad::at(
                    line,
                    "not a JSON object; every line, or element of the array, has to be one, as in {\"id\":\"a\",\"size\":1}",
                )
            })?;
        self.shape
            .record(line, members)
            .map_err(|why| Bad::at(line, why))
    }

    fn next_csv(&mut self) -> io::Result<Option<Result<Record, Bad>>> {
        let header = match self.header.take() {
            Some(header) => header,
            None => match next_row(&mut self.lines, &mut self.buffer)? {
                None => {
                    let why = format!("the file is empty; {}", self.header_wanted());
                    return Ok(Some(Err(Bad::fatal(1, why))));
                }
                Some(Err(bad)) => return Ok(Some(Err(Bad { fatal: true, ..bad }))),
                Some(Ok(row)) => match self.header_wrong(&row.fields) {
                    Some(why) => {
                        let why = format!("{why}; {}", self.header_wanted());
                        return Ok(Some(Err(Bad::fatal(row.line, why))));
                    }
                    None => row.fields,
                },
            },
        };
        let row = next_row(&mut self.lines, &mut self.buffer)?;
        let record = row.map(|row| {
            let row = row?;
            if row.fields.len() != header.len() {
                let why = format!(
                    "{} fields, but the header has {}",
                    row.fields.len(),
                    header.len()
                );
                return Err(Bad::at(row.line, why));
            }
            let values = row.fields.iter().map(|value| json::quote(value));
            let members = header.iter().cloned().zip(values).collect();
            self.shape
                .record(row.line, members)
                .map_err(|why| Bad::at(row.line, why))
        });
        self.header = Some(header);
        Ok(record)
    }

    /// What the first line of a CSV file has to be.
    fn header_wanted(&self) -> String {
        let mut names = vec![self.shape.key.as_str()];
        for index in &self.shape.indexes {
            if !names.contains(&index.field.as_str()) {
                names.push(&index.field);
            }
        }
        format!(
            "a CSV file begins with a header row, which names every column once, {} among them (the fields of --key \
             and --index), as in {}",
            names
                .iter()
                .map(|name| format!("{name:?}"))
                .collect::<Vec<_>>()
                .join(" and "),
            names.join(",")
        )
    }

    fn header_wrong(&self, header: &[String]) -> Option<String> {
        let mut names = HashSet::new();
        for (at, name) in header.iter().enumerate() {
            if name.is_empty() {
                return Some(format!("column {} of the header has no name", at + 1));
            }
            if !names.insert(name.as_str()) {
                return Some(format!("the header has {name:?} twice"));
            }
        }
        let fields = self.shape.indexes.iter().map(|index| &index.field);
        let mut asked = std::iter::once(&self.shape.key).chain(fields);
        let missing = asked.find(|name| !names.contains(name.as_str()))?;
        Some(format!(
            "the header has no {missing:?}; it has {}",
            header
                .iter()
                .map(|name| format!("{name:?}"))
                .collect::<Vec<_>>()
                .join(", ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn all(format: FileFormat, text: &[u8]) -> Vec<Result<Record, Bad>> {
        let shape = Shape {
            key: "id".into(),
            indexes: vec!["name=by_name".parse().unwrap()],
        };
        let lines = Lines::new(text, Arc::default()).with_limit(60);
        let mut source = Source::new(lines, format, shape);
        let mut all = Vec::new();
        while let Some(next) = source.next().unwrap() {
            let fatal = matches!(&next, Err(bad) if bad.fatal);
            all.push(next);
            if fatal {
                break;
            }
        }
        all
    }

    fn bad(format: FileFormat, text: &[u8]) -> (u64, String, bool) {
        let bad = all(format, text).into_iter().find_map(Result::err).unwrap();
        (bad.line, bad.why, bad.fatal)
    }

    #[test]
    fn json_lines_are_read() {
        let text = b"{\"id\":\"a\",\"n\":1}\n\n  \r\n{ \"id\" : 2 }\r\n";
        let rows: Vec<Record> = all(FileFormat::Jsonl, text)
            .into_iter()
            .map(Result::unwrap)
            .collect();
        assert_eq!((rows[0].line, &rows[0].key[..]), (1, &b"a"[..]));
        assert_eq!((rows[1].line, &rows[1].key[..]), (4, &b"2"[..]));
        assert_eq!(rows.len(), 2);
    }

    #[test]
    fn a_file_may_be_one_array() {
        let text =
            b"\xef\xbb\xbf [\n {\"id\":\"a]\\\"\",\"l\":[1,{\"x\":[]}]},\n\n {\"id\":\n2}\n]\n ";
        let rows: Vec<Record> = all(FileFormat::Jsonl, text)
            .into_iter()
            .map(Result::unwrap)
            .collect();
        assert_eq!((rows[0].line, &rows[0].key[..]), (2, &b"a]\""[..]));
        assert_eq!((rows[1].line, &rows[1].key[..]), (4, &b"2"[..]));
        assert_eq!(rows.len(), 2);
        for empty in ["[]", " [ ]\n", ""] {
            assert_eq!(all(FileFormat::Jsonl, empty.as_bytes()), []);
        }
        for (text, at, expected, is_fatal) in [
            ("[{\"id\":1}", 1, "ends within the array", true),
            ("[{\"id\":1}]\n]", 2, "behind the array", true),
            ("[{\"id\":1},\n,{\"id\":1}]", 2, "EOF while parsing", false),
            ("[\n1]", 2, "not a JSON object", false),
            (
                "[{\"id\":\"0123456789012345678901234567890123456789012345678901234567890\"},{\"id\":1}]",
                1,
                "longer than 60 bytes",
                false,
            ),
        ] {
            let (line, why, fatal) = bad(FileFormat::Jsonl, text.as_bytes());
            assert_eq!((line, fatal), (at, is_fatal), "{text}: {why}");
            assert!(why.contains(expected), "{why}");
        }
    }

    #[test]
    fn wrong_json_lines_are_named() {
        let cases: [(&[u8], u64, &str); 6] = [
            (b"{\"id\":1}\n{\"id\":}\n", 2, "column 7: expected value"),
            (b"[1]\n", 1, "not a JSON object"),
            (b"\n\n{\"x\":1}\n", 3, "no field \"id\""),
            (b"{\"id\":\"\xff\"}\n", 1, "column 8: not UTF-8"),
            (b"{\"id\":1} x\n", 1, "trailing characters"),
            (
                b"{\"id\":\"0123456789012345678901234567890123456789012345678901234567890\"}\n",
                1,
                "longer than 60 bytes",
            ),
        ];
        for (text, line, expected) in cases {
            let (at, why, fatal) = bad(FileFormat::Jsonl, text);
            assert_eq!((at, fatal), (line, false), "{why}");
            assert!(why.contains(expected), "{why}");
        }
        // What is behind a wrong line can be read.
        let rows = all(FileFormat::Jsonl, b"{\n{\"id\":1}\n");
        assert!(rows[0].is_err() && rows[1].is_ok());
    }

    #[test]
    fn keys_that_would_be_one_row_are_refused() {
        for (one, other) in [("1", "\"1\""), ("\"2\"", "1.5"), ("true", "\"true\"")] {
            let text = format!("{{\"id\":\"x\"}}\n{{\"id\":{one}}}\n{{\"id\":{other}}}\n");
            let (line, why, fatal) = bad(FileFormat::Jsonl, text.as_bytes());
            assert_eq!((line, fatal), (3, false), "{why}");
            assert!(
                why.contains("in line 2") && why.contains("one row"),
                "{why}"
            );
        }
        // None of these is another one's row.
        let text = b"{\"id\":\"x\"}\n{\"id\":1}\n{\"id\":\"null\"}\n{\"id\":\"[]\"}\n{\"id\":\" 1\"}\n{\"id\":true}";
        assert!(all(FileFormat::Jsonl, text).iter().all(Result::is_ok));
        let text = b"id,name\n1,a\ntrue,b\nx,c\n";
        assert!(all(FileFormat::Csv, text).iter().all(Result::is_ok));
    }

    #[test]
    fn csv_values_are_text() {
        let rows = all(FileFormat::Csv, b"\xef\xbb\xbfid,name,v\n1,\"b\nc\",2\n");
        let record = rows[0].clone().unwrap();
        assert_eq!(record.key, "1");
        assert_eq!(record.fields[&b"v"[..]], "\"2\"");
        assert_eq!(record.fields[&b"name"[..]], "b\nc");
    }

    #[test]
    fn wrong_csv_files_are_named() {
        let cases: [(&[u8], u64, &str, bool); 7] = [
            (
                b"",
                1,
                "names every column once, \"id\" and \"name\" among them (the fields of --key and --index), as in \
                 id,name",
                true,
            ),
            (b"id,,name\n", 1, "column 2 of the header has no name", true),
            (b"id,name,id\n", 1, "\"id\" twice", true),
            (
                b"key,name\n",
                1,
                "has no \"id\"; it has \"key\", \"name\"; a CSV file begins with a header row",
                true,
            ),
            (b"id,v\n", 1, "has no \"name\"", true),
            (
                b"id,name\n1,2\n1,2,3\n",
                3,
                "3 fields, but the header has 2",
                false,
            ),
            (b"id,name\n\n,x\n", 3, "is empty", false),
        ];
        for (text, line, expected, fatal) in cases {
            let (at, why, was_fatal) = bad(FileFormat::Csv, text);
            assert_eq!((at, was_fatal), (line, fatal), "{why}");
            assert!(why.contains(expected), "{why}");
        }
    }
}
