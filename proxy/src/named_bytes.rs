//! Bytes in JSON: `NAME` is text, and `NAME_base64` is bytes that may be no text. A request has one of the two; an answer
//! has text if the bytes are UTF-8. The `percolator` command prints cells so, too.

use base64::prelude::{BASE64_STANDARD, Engine};
use bytes::Bytes;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value};

use crate::failure::{Failure, Reason};

const SUFFIX: &str = "_base64";

/// An object of bytes with these names; without bytes a name has null.
pub(crate) struct NamedBytes<'a, const N: usize>(pub(crate) [(&'static str, Option<&'a [u8]>); N]);

impl<const N: usize> Serialize for NamedBytes<'_, N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_map(Some(N))?;
        for (name, bytes) in self.0 {
            let Some(bytes) = bytes else {
                object.serialize_entry(name, &())?;
                continue;
            };
            match std::str::from_utf8(bytes) {
                Ok(text) => object.serialize_entry(name, text)?,
                Err(_) => object
                    .serialize_entry(&format!("{name}{SUFFIX}"), &BASE64_STANDARD.encode(bytes))?,
            }
        }
        object.end()
    }
}

/// Takes the bytes of this name out of a request; `None`: it has none.
///
/// # Errors
/// [`Reason::Invalid`].
pub(crate) fn take(object: &mut Map<String, Value>, name: &str) -> Result<Option<Bytes>, Failure> {
    let encoded_name = format!("{name}{SUFFIX}");
    let text = object.remove(name);
    let encoded = object.remove(&encoded_name);
    let invalid = |message: String| Failure::new(Reason::Invalid, message);
    match (text, encoded) {
        (None, None) => Ok(None),
        (Some(Value::String(text)), None) => Ok(Some(text.into())),
        (None, Some(Value::String(encoded))) => match BASE64_STANDARD.decode(encoded) {
            Ok(bytes) => Ok(Some(bytes.into())),
            Err(error) => Err(invalid(format!("{encoded_name} is not base64: {error}"))),
        },
        (Some(_), Some(_)) => Err(invalid(format!("both {name} and {encoded_name} are there"))),
        (Some(_), None) => Err(invalid(format!("{name} is not a string"))),
        (None, Some(_)) => Err(invalid(format!("{encoded_name} is not a string"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(value: Value) -> Map<String, Value> {
        match value {
            Value::Object(object) => object,
            other => panic!("{other}"),
        }
    }

    fn written(row: &[u8]) -> Map<String, Value> {
        let written = NamedBytes([("row", Some(row))]);
        object(serde_json::to_value(written).unwrap())
    }

    #[test]
    fn bytes_come_back_as_they_were() {
        for bytes in [&b""[..], b"bob", "\u{e4}\n".as_bytes(), b"\xff\x00"] {
            let mut written = written(bytes);
            assert_eq!(written.len(), 1);
            assert_eq!(take(&mut written, "row").unwrap().unwrap(), bytes);
            assert!(written.is_empty());
        }
        let written = written(b"\xff\x00");
        assert_eq!(Value::from(written), json!({"row_base64": "/wA="}));
    }

    #[test]
    fn what_has_no_meaning_is_refused() {
        for wrong in [
            json!({"row": "a", "row_base64": "YQ=="}),
            json!({"row": 1}),
            json!({"row": null}),
            json!({"row_base64": 1}),
            json!({"row_base64": "a"}),
        ] {
            let failure = take(&mut object(wrong.clone()), "row").unwrap_err();
            assert_eq!(failure.reason, Reason::Invalid, "{wrong}");
        }
        assert_eq!(take(&mut Map::new(), "row").unwrap(), None);
    }
}
