//! A YAML document as a tree in which every node knows its line.

use std::fmt;

use serde::de;
use serde_saphyr::{Error, Spanned};

use super::ManifestError;

/// One value of the document.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// Where it begins, counted from 1.
    pub(super) line: u64,
    pub(super) value: Value,
}

#[derive(Clone, Debug)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Unsigned(u64),
    Negative(i64),
    Float(f64),
    String(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// A field and its value.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    /// Where the key stands, counted from 1.
    pub(super) line: u64,
    pub(super) node: Node,
}

/// Reads the one document of a manifest.
pub(super) fn parse(text: &str) -> Result<Node, ManifestError> {
    let spanned: Spanned<Value> = serde_saphyr::from_str(text).map_err(|error| refusal(&error))?;
    let root = Node::from(spanned);
    match root.value {
        Value::Null => Err(ManifestError::Empty),
        _ => Ok(root),
    }
}

fn refusal(error: &Error) -> ManifestError {
    let error = error.without_snippet();
    let location = error.location();
    let line = location.map_or(1, |at| at.line());
    match error {
        Error::Eof { .. } => ManifestError::Empty,
        Error::MultipleDocuments { .. } => ManifestError::SeveralDocuments { line },
        Error::DuplicateMappingKey { key, .. } => ManifestError::Syntax {
            line,
            column: location.map_or(1, |at| at.column()),
            message: match key {
                Some(key) => format!("the field {key} stands here a second time"),
                None => "a field stands here a second time".into(),
            },
        },
        _ => {
            let column = location.map_or(1, |at| at.column());
            let message = error.to_string();
            // The reader says the place at the end; here it stands at the beginning.
            let place = format!(" at line {line}, column {column}");
            ManifestError::Syntax {
                line,
                column,
                message: message.strip_suffix(&place).unwrap_or(&message).into(),
            }
        }
    }
}

impl Node {
    /// Where the field of this path stands; or the nearest one above it that does.
    pub(super) fn line_of(&self, path: &str) -> Option<u64> {
        let mut node = self;
        let mut line = self.line;
        let mut rest = path;
        while let Value::Map(entries) = &node.value {
            let found = entries.iter().find_map(|entry| {
                let tail = behind(&entry.key, rest)?;
                Some((entry, tail))
            });
            let Some((entry, tail)) = found else { break };
            (node, line) = (&entry.node, entry.line);
            rest = tail;
        }
        Some(line)
    }

    /// Takes out the field of this path, if it is there.
    pub(super) fn take_out(&mut self, path: &str) {
        let Value::Map(entries) = &mut self.value else {
            return;
        };
        let found = entries.iter().enumerate().find_map(|(at, entry)| {
            let tail = behind(&entry.key, path)?;
            Some((at, tail))
        });
        match found {
            Some((at, "")) => {
                entries.remove(at);
            }
            Some((at, tail)) => entries[at].node.take_out(tail),
            None => {}
        }
    }

    /// Gives the field this value, where it stands or behind the others.
    pub(super) fn put(&mut self, key: &str, value: Value) {
        let line = self.line;
        let Value::Map(entries) = &mut self.value else {
            return;
        };
        match entries.iter_mut().find(|entry| entry.key == key) {
            Some(entry) => entry.node.value = value,
            None => entries.push(Entry {
                key: key.into(),
                line,
                node: Node { line, value },
            }),
        }
    }

    /// The value of a field.
    pub(super) fn get_mut(&mut self, key: &str) -> Option<&mut Self> {
        let Value::Map(entries) = &mut self.value else {
            return None;
        };
        let entry = entries.iter_mut().find(|entry| entry.key == key)?;
        Some(&mut entry.node)
    }
}

/// What is left of a path behind this key; `None`: it begins with another one. Keys of labels and annotations
/// hold dots themselves: so a path isn't split at every dot.
fn behind<'a>(key: &str, path: &'a str) -> Option<&'a str> {
    let tail = path.strip_prefix(key)?;
    match tail.strip_prefix('.') {
        Some(tail) => Some(tail),
        None => tail.is_empty().then_some(tail),
    }
}

impl Value {
    /// What it is, for "expected a number, found ...".
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Null => "nothing".into(),
            Self::Bool(value) => format!("the boolean {value}"),
            Self::Unsigned(value) => format!("the number {value}"),
            Self::Negative(value) => format!("the number {value}"),
            Self::Float(value) => format!("the number {value}"),
            Self::String(value) => format!("the string {value:?}"),
            Self::List(_) => "a list".into(),
            Self::Map(_) => "a group of fields".into(),
        }
    }
}

impl Value {
    /// The same without lines.
    pub(super) fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Null => serde_json::Value::Null,
            Self::Bool(value) => (*value).into(),
            Self::Unsigned(value) => (*value).into(),
            Self::Negative(value) => (*value).into(),
            Self::Float(value) => (*value).into(),
            Self::String(value) => value.as_str().into(),
            Self::List(nodes) => nodes.iter().map(|node| node.value.to_json()).collect(),
            Self::Map(entries) => {
                let fields = entries.iter();
                let fields = fields.map(|entry| (entry.key.clone(), entry.node.value.to_json()));
                serde_json::Value::Object(fields.collect())
            }
        }
    }
}

impl From<Spanned<Value>> for Node {
    fn from(spanned: Spanned<Value>) -> Self {
        Self {
            line: spanned.referenced.line(),
            value: spanned.value,
        }
    }
}

impl<'de> de::Deserialize<'de> for Value {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> de::Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Unsigned(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(u64::try_from(value).map_or(Value::Negative(value), Value::Unsigned))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.into()))
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut nodes = Vec::new();
        while let Some(node) = list.next_element::<Spanned<Value>>()? {
            nodes.push(node.into());
        }
        Ok(Value::List(nodes))
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            entries.push(Entry {
                key: key.value,
                line: key.referenced.line(),
                node: map.next_value::<Spanned<Value>>()?.into(),
            });
        }
        Ok(Value::Map(entries))
    }
}
