//! A log without what could name a row, a column or a value.
//!
//! Our own lines never do, but what errors, panics and other libraries say may: a key that can't be read, a cell that is
//! locked. So what stays is what is known to be harmless, and a field that comes into being tomorrow goes until it is
//! named here.

use serde_json::Value;

/// Fields whose text stays, no matter who says it.
const OF_ALL: &[&str] = &["timestamp", "level", "target"];
/// And in lines of ours: of names, addresses, times and outcomes.
const HARMLESS: &[&str] = &[
    "name",
    "method",
    "result",
    "start_ts",
    "owner_start_ts",
    "table",
    "owner_table",
    "tablet",
    "tablets",
    "steps",
    "in_the_way",
    "role",
    "server",
    "address",
    "advertised",
    "master",
    "cluster",
    "code",
    "signal",
    "from",
    "to",
    "format",
    // Of garbage collection.
    "manifest",
];
/// Whose messages are words of ours alone, without what they are about.
const OURS: &str = "percolator_";
/// What stands for the rest.
const LEFT_OUT: &str = "[left out]";
/// How a master's message goes on with a tablet server's own words.
const WORDS_OF_ANOTHER: &str = "it is asked again: ";

/// The log, line by line, without what isn't known to be harmless.
pub(crate) fn redacted(log: &[u8]) -> Vec<u8> {
    let log = String::from_utf8_lossy(log);
    let lines = log.lines().map(|line| redacted_line(line) + "\n");
    lines.collect::<String>().into_bytes()
}

fn redacted_line(line: &str) -> String {
    match serde_json::from_str(line) {
        Ok(Value::Object(mut fields)) => {
            let is_ours = fields
                .get("target")
                .and_then(Value::as_str)
                .is_some_and(|target| target.starts_with(OURS));
            for (name, value) in &mut fields {
                match value {
                    Value::String(message) if name == "message" && is_ours => {
                        if let Some(at) = message.find(WORDS_OF_ANOTHER) {
                            message.truncate(at + WORDS_OF_ANOTHER.len());
                            message.push_str(LEFT_OUT);
                        }
                    }
                    _ if OF_ALL.contains(&name.as_str()) => {}
                    _ => redact(is_ours, name, value),
                }
            }
            Value::Object(fields).to_string()
        }
        _ if is_harmless(line) => line.to_owned(),
        _ => format!("[a line of {} bytes that is no JSON, left out]", line.len()),
    }
}

/// Numbers stay, and in lines of ours what is known.
fn redact(is_ours: bool, name: &str, value: &mut Value) {
    match value {
        Value::String(_) if is_ours && HARMLESS.contains(&name) => {}
        Value::String(text) => LEFT_OUT.clone_into(text),
        Value::Array(values) => {
            for value in values {
                redact(is_ours, name, value);
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                redact(is_ours, name, value);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Where a thread has panicked, without why; and what the system has refused to a program: a file, an address.
fn is_harmless(line: &str) -> bool {
    let panicked = line.starts_with("thread '")
        && line
            .split_once(" panicked at ")
            .is_some_and(|(_, place)| place.ends_with(':') && !place.contains(' '));
    panicked || line.starts_with("error: cannot ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_harmless_stays_and_all_else_goes() {
        for (line, left) in [
            (
                r#"{"code":"Unavailable","level":"WARN","message":"slow request","target":"percolator_tablet::trace","took_ms":3.5}"#,
                None,
            ),
            (
                r#"{"message":"left for others to clear","target":"percolator_client::large","why":"cell 1/secret:c is locked"}"#,
                Some(
                    r#"{"message":"left for others to clear","target":"percolator_client::large","why":"[left out]"}"#,
                ),
            ),
            (
                r#"{"message":"tablet-0 has not carried out a command for tablet 1, it is asked again: rows secret","target":"percolator_gc_master::runner_host"}"#,
                Some(
                    r#"{"message":"tablet-0 has not carried out a command for tablet 1, it is asked again: [left out]","target":"percolator_gc_master::runner_host"}"#,
                ),
            ),
            (
                r#"{"message":"inserting secret","target":"redb","rows":["secret",1],"span":{"key":"secret","name":"write"}}"#,
                Some(
                    r#"{"message":"[left out]","rows":["[left out]",1],"span":{"key":"[left out]","name":"[left out]"},"target":"redb"}"#,
                ),
            ),
            (
                "thread 'tablet-0' (7) panicked at tablet/src/core.rs:12:3:",
                None,
            ),
            (
                "thread 'tablet-0' panicked at secret and more:",
                Some("[a line of 46 bytes that is no JSON, left out]"),
            ),
            (
                "error: cannot write /data/log: No space left on device",
                None,
            ),
            (
                "error: the key secret can't be read",
                Some("[a line of 35 bytes that is no JSON, left out]"),
            ),
        ] {
            assert_eq!(redacted_line(line), left.unwrap_or(line));
        }
        assert_eq!(
            redacted(b"error: cannot a\nsecret\n"),
            b"error: cannot a\n[a line of 6 bytes that is no JSON, left out]\n"
        );
    }
}
