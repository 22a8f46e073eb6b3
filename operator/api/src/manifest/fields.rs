//! Decodes typed fields from the tree. A problem has the field's path and line, and an unknown field doesn't hide other
//! problems.

use std::cell::RefCell;
use std::fmt::Display;

use serde::de::value::{StrDeserializer, StringDeserializer};
use serde::de::{self, DeserializeSeed, Deserializer, IntoDeserializer, Visitor};

use super::tree::{Entry, Node, Value};
use crate::validate::Problem;

/// Collects the unknown fields that are met while typed values are read.
#[derive(Default)]
pub(super) struct Fields {
    unknown: RefCell<Vec<Problem>>,
}

impl Fields {
    /// Reads from the root of a document.
    pub(super) fn of<'a>(&'a self, root: &'a Node) -> NodeDeserializer<'a> {
        NodeDeserializer {
            fields: self,
            node: root,
            path: String::new(),
            line: root.line,
        }
    }

    /// The unknown fields that were met.
    pub(super) fn into_problems(self) -> Vec<Problem> {
        self.unknown.into_inner()
    }
}

/// The problem that ended the decoding. Its path is empty until it passes the value that it is about.
#[derive(Debug)]
pub(super) struct Fault(pub(super) Problem);

impl Fault {
    fn new(message: String) -> Self {
        Self(Problem {
            path: String::new(),
            line: None,
            message,
        })
    }

    fn at(mut self, path: &str, line: u64) -> Self {
        if self.0.line.is_none() {
            self.0.path = join(path, &self.0.path);
            self.0.line = Some(line);
        }
        self
    }
}

impl Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Fault {}

impl de::Error for Fault {
    fn custom<T: Display>(message: T) -> Self {
        Self::new(message.to_string())
    }

    fn missing_field(field: &'static str) -> Self {
        let mut fault = Self::new("missing: this field is required".into());
        fault.0.path = field.into();
        fault
    }

    fn unknown_variant(found: &str, known: &'static [&'static str]) -> Self {
        Self::new(format!(
            "{found:?} is not known{}",
            instead(found, known, "use one of")
        ))
    }
}

/// Deserializes the value of a node, and records the fields that nothing reads.
pub(super) struct NodeDeserializer<'a> {
    fields: &'a Fields,
    node: &'a Node,
    path: String,
    line: u64,
}

impl<'a> NodeDeserializer<'a> {
    fn child(&self, entry: &'a Entry) -> Self {
        NodeDeserializer {
            fields: self.fields,
            node: &entry.node,
            path: join(&self.path, &entry.key),
            line: entry.line,
        }
    }

    fn element(&self, index: usize, node: &'a Node) -> Self {
        NodeDeserializer {
            fields: self.fields,
            node,
            path: format!("{}[{index}]", self.path),
            line: node.line,
        }
    }

    fn mismatch(&self, expected: &dyn Display) -> Fault {
        Fault::new(format!(
            "expected {expected}, found {}",
            self.node.value.describe()
        ))
        .at(&self.path, self.line)
    }

    fn number<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.node.value {
            Value::Unsigned(number) => visitor
                .visit_u64(number)
                .map_err(|_: Fault| self.mismatch(&WHOLE_NUMBER)),
            _ => Err(self.mismatch(&WHOLE_NUMBER)),
        }
    }

    fn signed<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let number = match self.node.value {
            Value::Unsigned(number) => i64::try_from(number).ok(),
            Value::Negative(number) => Some(number),
            _ => None,
        };
        let read = number.map(|number| visitor.visit_i64::<Fault>(number));
        match read {
            Some(Ok(value)) => Ok(value),
            _ => Err(self.mismatch(&"a whole number in bounds")),
        }
    }

    fn entries(&self) -> Result<&'a [Entry], Fault> {
        match &self.node.value {
            Value::Map(entries) => Ok(entries),
            Value::Null => Ok(&[]),
            _ => Err(self.mismatch(&"a group of fields")),
        }
    }
}

const WHOLE_NUMBER: &str = "a whole number from 0 to 4294967295";

impl<'de> Deserializer<'de> for NodeDeserializer<'_> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let located = |fault: Fault| fault.at(&self.path, self.line);
        match &self.node.value {
            Value::Unsigned(number) => visitor.visit_u64(*number).map_err(located),
            Value::String(text) => visitor.visit_str(text).map_err(located),
            Value::Float(number) => visitor.visit_f64(*number).map_err(located),
            _ => {
                let expected = expectation(&visitor);
                Err(self.mismatch(&expected))
            }
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.node.value {
            Value::String(text) => visitor
                .visit_str(text)
                .map_err(|fault: Fault| fault.at(&self.path, self.line)),
            _ => {
                let expected = expectation(&visitor);
                Err(self.mismatch(&expected))
            }
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.deserialize_str(visitor)
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.deserialize_str(visitor)
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.number(visitor)
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.signed(visitor)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.signed(visitor)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.node.value {
            Value::Bool(value) => visitor.visit_bool(value),
            _ => Err(self.mismatch(&"true or false")),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        if name != crate::template::NAME {
            return visitor.visit_newtype_struct(self);
        }
        self.entries()?;
        visitor
            .visit_string(self.node.value.to_json().to_string())
            .map_err(|fault: Fault| fault.at(&self.path, self.line))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let Value::List(nodes) = &self.node.value else {
            return Err(self.mismatch(&"a list"));
        };
        visitor.visit_seq(Elements {
            at: &self,
            rest: nodes.iter().enumerate(),
        })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.node.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let Value::String(text) = &self.node.value else {
            return Err(self.mismatch(&format!("one of {}", variants.join(", "))));
        };
        let variant: StrDeserializer<'_, Fault> = text.as_str().into_deserializer();
        visitor
            .visit_enum(variant)
            .map_err(|fault| fault.at(&self.path, self.line))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let mut wanted = Vec::new();
        for entry in self.entries()? {
            if !known.contains(&entry.key.as_str()) {
                self.fields.unknown.borrow_mut().push(Problem {
                    path: join(&self.path, &entry.key),
                    line: Some(entry.line),
                    message: format!(
                        "unknown field{}",
                        instead(&entry.key, known, "the fields here are")
                    ),
                });
            } else if !matches!(entry.node.value, Value::Null) {
                // A field without a value is as good as none, as it is to Kubernetes.
                wanted.push(entry);
            }
        }
        visitor
            .visit_map(Members {
                at: &self,
                rest: wanted.into_iter(),
                value: None,
            })
            .map_err(|fault| fault.at(&self.path, self.line))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let entries: Vec<&Entry> = self.entries()?.iter().collect();
        visitor.visit_map(Members {
            at: &self,
            rest: entries.into_iter(),
            value: None,
        })
    }

    serde::forward_to_deserialize_any! {
        i8 i16 u8 u16 u64 f32 f64 char bytes byte_buf unit unit_struct
        tuple tuple_struct ignored_any
    }
}

struct Elements<'a, 'b> {
    at: &'b NodeDeserializer<'a>,
    rest: std::iter::Enumerate<std::slice::Iter<'a, Node>>,
}

impl<'de> de::SeqAccess<'de> for Elements<'_, '_> {
    type Error = Fault;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Fault> {
        let Some((index, node)) = self.rest.next() else {
            return Ok(None);
        };
        seed.deserialize(self.at.element(index, node)).map(Some)
    }
}

struct Members<'a, 'b> {
    at: &'b NodeDeserializer<'a>,
    rest: std::vec::IntoIter<&'a Entry>,
    value: Option<&'a Entry>,
}

impl<'de> de::MapAccess<'de> for Members<'_, '_> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Fault> {
        self.value = self.rest.next();
        let Some(entry) = self.value else {
            return Ok(None);
        };
        let key: StringDeserializer<Fault> = entry.key.clone().into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Fault> {
        let entry = self.value.take().expect("serde asks for a key first");
        seed.deserialize(self.at.child(entry))
    }
}

/// The value that a visitor expects, as text.
fn expectation<'de, V: Visitor<'de>>(visitor: &V) -> String {
    (visitor as &dyn de::Expected).to_string()
}

fn join(path: &str, field: &str) -> String {
    match (path, field) {
        ("", only) | (only, "") => only.into(),
        (path, field) if field.starts_with('[') => format!("{path}{field}"),
        (path, field) => format!("{path}.{field}"),
    }
}

/// The rest of the sentence: the name that was most likely meant, or else all that there are.
fn instead(found: &str, known: &[&str], all: &str) -> String {
    let best = known
        .iter()
        .map(|name| (distance(found, name), name))
        .min()
        .filter(|(distance, name)| *distance <= 1 + name.len() / 4);
    match best {
        Some((_, name)) => format!("; did you mean {name:?}?"),
        None => format!("; {all} {}", known.join(", ")),
    }
}

/// How many letters must be inserted, removed or replaced to make one name of the other, whatever
/// their case.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.to_lowercase(), b.to_lowercase());
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.chars().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}
