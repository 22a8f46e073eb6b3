//! An HTTP server on this machine, which pods reach: what a webhook calls.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use crate::{lock, wait};

/// The machine's address in the network of the test's nodes.
pub(crate) const MACHINE: &str = "172.30.0.1";
/// A caller that sends nothing for so long is left.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// A call: its headers, one a line, and its body.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    headers: String,
    pub(crate) body: Value,
}

/// Answers each call with one line: the length of the changed cell's value, for the cell `length` of the same row.
#[derive(Debug)]
pub struct Receiver {
    address: String,
    calls: Arc<Mutex<Vec<Call>>>,
}

impl Receiver {
    /// Listens, until the process ends.
    pub fn start() -> Self {
        let listener = TcpListener::bind((MACHINE, 0)).expect("an address that pods reach");
        let address = listener.local_addr().expect("an address").to_string();
        let calls = Arc::<Mutex<Vec<Call>>>::default();
        let kept = calls.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let kept = kept.clone();
                let _ = stream.set_read_timeout(Some(REQUEST_TIMEOUT));
                std::thread::spawn(move || answer_calls(stream, "", |call| length_of(call, &kept)));
            }
        });
        Self { address, calls }
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("http://{}/changed", self.address)
    }

    /// Waits for a call about this value, which is signed.
    pub fn was_called_with(&self, value: &str) {
        let call = wait("a call", || {
            let calls = lock(&self.calls);
            let mut calls_with = calls.iter().rev();
            let found = calls_with.find(|call| call.body["value"] == value);
            found.cloned().ok_or_else(|| format!("{calls:?}"))
        });
        let headers = call.headers.to_ascii_lowercase();
        assert!(headers.contains("webhook-signature: v1,"), "{call:?}");
    }
}

/// Keeps a call, and answers it.
fn length_of(call: Call, kept: &Mutex<Vec<Call>>) -> String {
    let length = call.body["value"].as_str().map_or(0, str::len);
    let put = json!({"row": call.body["row"], "column": "length", "value": length.to_string()});
    lock(kept).push(call);
    format!("{}\n", json!({ "put": put }))
}

/// Answers a caller's calls, one after the other. `headers`: of each answer, besides its length, a line each.
pub(crate) fn answer_calls(
    stream: impl Read + Write,
    headers: &str,
    mut answer: impl FnMut(Call) -> String,
) {
    let mut stream = BufReader::new(stream);
    while let Some(call) = call(&mut stream) {
        let body = answer(call);
        let length = body.len();
        let head = format!("HTTP/1.1 200 OK\r\n{headers}Content-Length: {length}\r\n\r\n");
        if stream
            .get_mut()
            .write_all((head + &body).as_bytes())
            .is_err()
        {
            return;
        }
    }
}

/// The next call, if one comes.
fn call(reader: &mut impl BufRead) -> Option<Call> {
    let (mut headers, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line.trim().is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').unwrap_or_default();
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok()?;
        }
        headers += &line;
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let body = serde_json::from_slice(&body).ok()?;
    Some(Call { headers, body })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read_one_after_the_other() {
        let text = "POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n{\"a\": 12}POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}";
        let mut reader = text.as_bytes();
        assert_eq!(call(&mut reader).unwrap().body, json!({"a": 12}));
        assert_eq!(call(&mut reader).unwrap().body, json!({}));
        assert!(call(&mut reader).is_none());
    }
}
