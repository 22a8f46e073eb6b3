//! JSON as text: checked, without blanks between its parts, and otherwise as it was written, so that
//! numbers keep every digit. A parsed value would round them.

use serde::de::IgnoredAny;

/// What is wrong with a text that should be JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JsonError {
    /// Line within the text, from 1.
    pub(crate) line: usize,
    /// Byte within the line, from 1.
    pub(crate) column: usize,
    pub(crate) why: String,
}

/// The text without blanks between its parts.
///
/// # Errors
/// It isn't JSON, or a string in it is no Unicode text (half a surrogate pair).
pub(crate) fn compact(text: &str) -> Result<String, JsonError> {
    let mut compact = String::with_capacity(text.len());
    for part in parts(text)? {
        compact.push_str(part?);
    }
    Ok(compact)
}

/// The names and values of an object, in the order of the text; values are compact JSON text, and those that are longer than
/// `value_bytes_max` are cut off somewhere behind that.
/// `None`: it is JSON, but no object.
///
/// # Errors
/// As [`compact`].
pub(crate) fn members(
    text: &str,
    value_bytes_max: usize,
) -> Result<Option<Vec<(String, String)>>, JsonError> {
    let mut parts = parts(text)?;
    if parts.next().transpose()? != Some("{") {
        // It is none, and is JSON all the same.
        return parts.try_for_each(|part| part.map(drop)).map(|()| None);
    }
    let mut members = Vec::new();
    let mut name = None;
    let mut value = String::new();
    let mut depth = 0;
    for part in parts {
        let part = part?;
        match part {
            "{" | "[" => depth += 1,
            "}" | "]" if depth > 0 => depth -= 1,
            "," | "}" if depth == 0 => {
                if let Some(name) = name.take() {
                    members.push((name, std::mem::take(&mut value)));
                }
                continue;
            }
            ":" if depth == 0 => continue,
            part if name.is_none() => {
                name = Some(string(part).unwrap_or_default());
                continue;
            }
            _ => {}
        }
        if value.len() <= value_bytes_max {
            value.push_str(part);
        }
    }
    Ok(Some(members))
}

/// The text that a JSON string stands for; `None` where the JSON text is no string.
pub(crate) fn string(json: &str) -> Option<String> {
    if json.starts_with('"') {
        serde_json::from_str(json).ok()
    } else {
        None
    }
}

/// The JSON string that stands for a text.
pub(crate) fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Cuts JSON text into its tokens, one at a time: there may be as many as bytes.
fn parts(text: &str) -> Result<impl Iterator<Item = Result<&str, JsonError>>, JsonError> {
    serde_json::from_str::<IgnoredAny>(text).map_err(|error| JsonError {
        line: error.line(),
        column: error.column(),
        why: reason(&error),
    })?;
    let bytes = text.as_bytes();
    let is_blank = |byte: &u8| b" \t\r\n".contains(byte);
    let mut at = 0;
    Ok(std::iter::from_fn(move || {
        at += bytes[at..].iter().take_while(|byte| is_blank(byte)).count();
        let start = at;
        let first = bytes.get(at)?;
        at += 1;
        match first {
            b'{' | b'}' | b'[' | b']' | b',' | b':' => {}
            b'"' => {
                while bytes[at] != b'"' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
                let token = &text[start..at];
                if token.contains("\\u")
                    && let Err(error) = serde_json::from_str::<String>(token)
                {
                    return Some(Err(misplaced(text, start, &error)));
                }
            }
            _ => {
                while at < bytes.len() && !b" \t\r\n{}[],:\"".contains(&bytes[at]) {
                    at += 1;
                }
            }
        }
        Some(Ok(&text[start..at]))
    }))
}

fn misplaced(text: &str, at: usize, error: &serde_json::Error) -> JsonError {
    let before = &text[..at];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    JsonError {
        line: before.matches('\n').count() + 1,
        column: at - line_start + error.column(),
        why: reason(error),
    }
}

/// What is wrong, without the place.
fn reason(error: &serde_json::Error) -> String {
    let why = error.to_string();
    let place = why.rfind(" at line ").unwrap_or(why.len());
    match &why[..place] {
        "expected ident" => "expected true, false or null; text stands in double quotes".to_owned(),
        why => why.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_go_and_digits_stay() {
        assert_eq!(
            compact(" { \"a b\" : [ 1.10 , 123456789012345678901234567890, -0, 1e999 ] }\r\n")
                .unwrap(),
            "{\"a b\":[1.10,123456789012345678901234567890,-0,1e999]}"
        );
        assert_eq!(compact("\"a \\\" b\\\\\"").unwrap(), "\"a \\\" b\\\\\"");
        assert_eq!(compact("null").unwrap(), "null");
    }

    #[test]
    fn an_object_falls_into_its_members() {
        let members = members(
            r#"{"a": 1, "b\u0021": {"x": [1, {"y": 2}]}, "c": "d,:}", "e": {}, "f": []}"#,
            100,
        )
        .unwrap()
        .unwrap();
        let members: Vec<(&str, &str)> = members
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        assert_eq!(
            members,
            [
                ("a", "1"),
                ("b!", r#"{"x":[1,{"y":2}]}"#),
                ("c", r#""d,:}""#),
                ("e", "{}"),
                ("f", "[]"),
            ]
        );
        assert_eq!(super::members("{}", 100).unwrap(), Some(vec![]));
        assert_eq!(super::members("[{}]", 100).unwrap(), None);
        assert_eq!(super::members("\"{\"", 100).unwrap(), None);
        assert!(super::members("[\"\\ud800\"]", 100).is_err());
    }

    #[test]
    fn of_a_value_that_is_too_long_no_more_is_kept() {
        let text = format!(r#"{{"a": [{}0], "b": 1}}"#, "0,".repeat(10_000));
        let members = members(&text, 100).unwrap().unwrap();
        assert!((101..200).contains(&members[0].1.len()));
        assert_eq!(members[1], ("b".to_owned(), "1".to_owned()));
    }

    #[test]
    fn errors_have_their_column() {
        let error = compact("{\"a\": 1,, \"b\": 2}").unwrap_err();
        assert_eq!((error.line, error.column), (1, 9));
        assert!(!error.why.contains("line"), "{}", error.why);
        let error = compact("{\"a\": \"\\ud800\"}").unwrap_err();
        assert!(error.column >= 7, "{error:?}");
        let error = compact("{\"a\": nope}").unwrap_err();
        assert!(error.why.starts_with("expected true, false or null"));
        assert!(compact("").is_err());
        assert!(compact("1 2").is_err());
        assert!(compact("\"a\nb\"").is_err());
    }
}
