//! Records, and the stored form of their fields.
//!
//! A JSON string is stored as its raw text, unless that text would itself read as JSON (`1`, `true`,
//! `[]`, `"x"`); then it is stored as a JSON string. Everything else is stored as compact JSON text. So
//! anyone who reads a cell sees plain text where text was given, and an export gives back the very same
//! JSON values.

use std::collections::BTreeMap;

use bytes::Bytes;
use percolator_client::limits::{COLUMN_BYTES_MAX, ROW_BYTES_MAX, VALUE_BYTES_MAX};
use percolator_client::{escape, index_row};

use super::{IndexArg, json};

/// The most bytes of JSON that a value may have: of a string, six for each byte, and the quotes.
pub(crate) const JSON_VALUE_BYTES_MAX: usize = 6 * VALUE_BYTES_MAX + 2;

/// One row to load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Where it starts in its file, from 1.
    pub(crate) line: u64,
    /// The row.
    pub(crate) key: Bytes,
    /// Whether another key of JSON is the same row.
    pub(crate) twin: Twin,
    /// Stored values by column.
    pub(crate) fields: BTreeMap<Bytes, Bytes>,
}

/// Which key of JSON is the same row as another one: a row is a key's text, so that of 1 and "1" is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Twin {
    /// None: a string that reads as no number and no boolean.
    None,
    /// A string: this key is a number or a boolean.
    Text,
    /// A number or a boolean: this key is a string that reads as one.
    Bare,
}

impl Twin {
    /// What kind of key this one is, and the other one.
    pub(crate) fn kinds(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::None => None,
            Self::Text => Some(("a number or a boolean", "a string that reads as one")),
            Self::Bare => Some((
                "a string that reads as a number or a boolean",
                "a number or a boolean",
            )),
        }
    }
}

impl Record {
    /// Why the row that is there is another key's: what its key column holds, which is this one's text in another
    /// kind. `key` is that column's name.
    pub(crate) fn is_anothers(&self, key: &str, column: &[u8], stored: &[u8]) -> Option<String> {
        let (of, with) = self.twin.kinds()?;
        let differs = self.fields.get(column).is_some_and(|new| new != stored);
        let is_twin = column == key.as_bytes()
            && differs
            && to_text(stored).is_ok_and(|text| text.as_bytes() == self.key);
        is_twin.then(|| {
            format!(
                "the key, field {key:?}, is {of}, and the row {} that is there has {with}: 1 and \"1\" would be one \
                 row; write keys in one way, or delete the row if this one is to replace it",
                short(&self.key)
            )
        })
    }

    /// Bytes of its key, names and values.
    pub(crate) fn size(&self) -> usize {
        let fields = self.fields.iter();
        self.key.len()
            + fields
                .map(|(name, value)| name.len() + value.len())
                .sum::<usize>()
    }
}

/// How records of a file become rows.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// The field whose value is the row.
    pub(crate) key: String,
    pub(crate) indexes: Vec<IndexArg>,
}

impl Shape {
    /// The record of these fields; values are compact JSON text.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub(crate) fn record(
        &self,
        line: u64,
        members: Vec<(String, String)>,
    ) -> Result<Record, String> {
        let mut key = None;
        let mut fields = BTreeMap::new();
        for (name, value) in members {
            if name.len() > COLUMN_BYTES_MAX {
                return Err(format!(
                    "the name of field {:?}… is {} bytes long, the limit is {COLUMN_BYTES_MAX}",
                    name.chars().take(40).collect::<String>(),
                    name.len()
                ));
            }
            let stored = stored(&value);
            if stored.len() > VALUE_BYTES_MAX {
                let least = if value.len() > JSON_VALUE_BYTES_MAX {
                    "at least "
                } else {
                    ""
                };
                return Err(format!(
                    "the value of field {name:?} is {least}{} bytes long, the limit is {VALUE_BYTES_MAX}",
                    stored.len()
                ));
            }
            if name == self.key {
                key = Some(self.key_of(&value)?);
            }
            if fields.insert(Bytes::from(name.clone()), stored).is_some() {
                return Err(format!("field {name:?} is there twice"));
            }
        }
        let key = key.ok_or_else(|| {
            let names: Vec<String> = fields
                .keys()
                .take(10)
                .map(|name| format!("{:?}", String::from_utf8_lossy(name)))
                .collect();
            format!(
                "there is no field {:?}, which is to be the row's key; the fields are {}",
                self.key,
                if names.is_empty() {
                    "none".into()
                } else {
                    names.join(", ")
                }
            )
        })?;
        for index in &self.indexes {
            if let Some(value) = fields.get(index.field.as_bytes()) {
                let row = index_row(value, &key.0);
                if row.len() > ROW_BYTES_MAX {
                    return Err(format!(
                        "the entry of field {:?} in index {} is {} bytes long (value and key), the limit \
                         is {ROW_BYTES_MAX}",
                        index.field,
                        index.table,
                        row.len()
                    ));
                }
            }
        }
        let (key, twin) = key;
        Ok(Record {
            line,
            key,
            twin,
            fields,
        })
    }

    /// The row of a key: a string's text, a number or a boolean as it is written.
    fn key_of(&self, value: &str) -> Result<(Bytes, Twin), String> {
        let (text, twin) = match json::string(value) {
            Some(text) if is_bare(&text) => (text, Twin::Bare),
            Some(text) => (text, Twin::None),
            None if value == "null" || value.starts_with(['[', '{']) => {
                let kind = match value.as_bytes().first() {
                    Some(b'[') => "an array",
                    Some(b'{') => "an object",
                    _ => "null",
                };
                return Err(format!(
                    "the key, field {:?}, is {kind}; a key is a string, a number or a boolean",
                    self.key
                ));
            }
            None => (value.to_owned(), Twin::Text),
        };
        if text.is_empty() {
            return Err(format!("the key, field {:?}, is empty", self.key));
        }
        if text.len() > ROW_BYTES_MAX {
            return Err(format!(
                "the key, field {:?}, is {} bytes long, the limit is {ROW_BYTES_MAX}",
                self.key,
                text.len()
            ));
        }
        Ok((text.into(), twin))
    }
}

/// Whether a text is that of a number or a boolean, as keys have them.
fn is_bare(text: &str) -> bool {
    !text.starts_with(['"', '[', '{'])
        && text != "null"
        && json::compact(text).is_ok_and(|json| json == text)
}

/// The stored form of a value; takes compact JSON text.
pub(crate) fn stored(value: &str) -> Bytes {
    match json::string(value) {
        Some(text) => stored_text(text),
        None => Bytes::copy_from_slice(value.as_bytes()),
    }
}

fn stored_text(text: String) -> Bytes {
    if json::compact(&text).is_ok() {
        json::quote(&text).into()
    } else {
        text.into()
    }
}

/// A cell's bytes that are no text, and so no JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotText;

/// The JSON text of a stored value.
pub(crate) fn to_json(stored: &[u8]) -> Result<String, NotText> {
    let text = std::str::from_utf8(stored).map_err(|_| NotText)?;
    Ok(json::compact(text).unwrap_or_else(|_| json::quote(text)))
}

/// The plain text of a stored value: of a string its text, of another value its JSON.
pub(crate) fn to_text(stored: &[u8]) -> Result<String, NotText> {
    let text = std::str::from_utf8(stored).map_err(|_| NotText)?;
    Ok(match json::compact(text) {
        Ok(json) => json::string(&json).unwrap_or(json),
        Err(_) => text.to_owned(),
    })
}

/// A name or value in an error, cut to a readable length.
pub(crate) fn short(bytes: &[u8]) -> String {
    const CHARS_MAX: usize = 80;
    let text = escape(&bytes[..bytes.len().min(4 * CHARS_MAX)]);
    if text.chars().count() > CHARS_MAX || bytes.len() > 4 * CHARS_MAX {
        let start: String = text.chars().take(CHARS_MAX).collect();
        format!("{start}… ({} bytes)", bytes.len())
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn shape(indexes: &[&str]) -> Shape {
        Shape {
            key: "id".into(),
            indexes: indexes.iter().map(|index| index.parse().unwrap()).collect(),
        }
    }

    fn record(line: &str, shape: &Shape) -> Result<Record, String> {
        shape.record(
            1,
            json::members(line, JSON_VALUE_BYTES_MAX).unwrap().unwrap(),
        )
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let text = prop_oneof![
            any::<String>(),
            "[ \\t\\n]{0,2}(-?[0-9]{1,30}|true|false|null|\\[\\]|\\{\\}|\"x\"|\"\\\\ud800\"|\"\")[ \\n]{0,2}",
        ];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            text.prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(any::<String>(), inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn every_value_comes_back(value in any_json()) {
            let text = value.to_string();
            let stored = stored(&json::compact(&text).unwrap());
            prop_assert_eq!(to_json(&stored).unwrap(), text);
        }

        #[test]
        fn different_values_are_stored_differently(a in any_json(), b in any_json()) {
            prop_assume!(a != b);
            prop_assert_ne!(stored(&a.to_string()), stored(&b.to_string()));
        }

        #[test]
        fn every_text_comes_back(text in any::<String>()) {
            prop_assert_eq!(to_text(&stored(&json::quote(&text))).unwrap(), text);
        }

        #[test]
        fn whatever_is_stored_can_be_exported(bytes in any::<Vec<u8>>()) {
            if let Ok(json) = to_json(&bytes) {
                prop_assert!(serde_json::from_str::<serde::de::IgnoredAny>(&json).is_ok());
                prop_assert!(!json.contains('\n'));
            }
        }
    }

    #[test]
    fn text_that_reads_as_json_is_quoted() {
        for (value, expected) in [
            (json!("bob"), "bob"),
            (json!(""), ""),
            (json!("1"), "\"1\""),
            (json!(1), "1"),
            (json!("true"), "\"true\""),
            (json!("null"), "\"null\""),
            (json!(null), "null"),
            (json!("[]"), "\"[]\""),
            (json!("\"x\""), "\"\\\"x\\\"\""),
            (json!(" 1 "), "\" 1 \""),
            (json!("1.2.3"), "1.2.3"),
            (json!([1, "a"]), "[1,\"a\"]"),
        ] {
            assert_eq!(stored(&value.to_string()), expected, "{value}");
        }
    }

    #[test]
    fn numbers_keep_their_digits() {
        let digits = "123456789012345678901234567890.10";
        assert_eq!(to_json(&stored(digits)).unwrap(), digits);
    }

    #[test]
    fn a_record_becomes_a_row() {
        let record = record(
            r#"{"id": 7, "name": "bob", "age": "41"}"#,
            &shape(&["name=n"]),
        )
        .unwrap();
        assert_eq!(record.key, "7");
        assert_eq!(record.fields[&b"name"[..]], "bob");
        assert_eq!(record.fields[&b"age"[..]], "\"41\"");
        assert_eq!(record.fields[&b"id"[..]], "7");
    }

    #[test]
    fn a_row_of_another_kind_of_key_is_noticed() {
        let record = |line: &str| record(line, &shape(&[])).unwrap();
        let (number, string) = (record(r#"{"id": 7}"#), record(r#"{"id": "7"}"#));
        let stored = |record: &Record| record.fields[&b"id"[..]].clone();
        for (one, other) in [(&number, &string), (&string, &number)] {
            let why = one.is_anothers("id", b"id", &stored(other)).unwrap();
            assert!(why.contains("row 7") && why.contains("one row"), "{why}");
            assert_eq!(one.is_anothers("id", b"id", &stored(one)), None);
            // Another column, and a key column that somebody has put something else into.
            assert_eq!(one.is_anothers("id", b"n", &stored(other)), None);
            assert_eq!(one.is_anothers("id", b"id", b"8"), None);
        }
        let word = record(r#"{"id": "x"}"#);
        assert_eq!(word.is_anothers("id", b"id", b"\"x\""), None);
    }

    #[test]
    fn wrong_records_say_why() {
        let long = "k".repeat(5000);
        let huge = "v".repeat(VALUE_BYTES_MAX + 1);
        for (line, expected) in [
            (r#"{"name": "bob"}"#.to_owned(), "no field \"id\""),
            (r#"{}"#.to_owned(), "the fields are none"),
            (r#"{"id": ""}"#.to_owned(), "is empty"),
            (r#"{"id": null}"#.to_owned(), "is null"),
            (r#"{"id": [1]}"#.to_owned(), "is an array"),
            (r#"{"id": "a", "id": "b"}"#.to_owned(), "twice"),
            (
                format!(r#"{{"id": "{long}"}}"#),
                "5000 bytes long, the limit is 4096",
            ),
            (
                format!(r#"{{"id": "a", "{long}": 1}}"#),
                "the limit is 1024",
            ),
            (format!(r#"{{"id": "a", "name": "{long}"}}"#), "index n"),
            (
                format!(r#"{{"id": "a", "v": "{huge}"}}"#),
                "the limit is 4194304",
            ),
        ] {
            let why = record(&line, &shape(&["name=n"])).unwrap_err();
            assert!(why.contains(expected), "{why}");
        }
    }
}
