//! The proxy's door of JSON, as a program without any library of HTTP calls it.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::Value;

/// A proxy.
pub(crate) struct Http {
    address: String,
}

/// The value of a JSON text.
pub(crate) fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

impl Http {
    pub(crate) fn new(address: &str) -> Self {
        Self {
            address: address.to_owned(),
        }
    }

    /// Calls a method: the status, and the JSON value of the answer.
    pub(crate) fn post(&self, method: &str, body: &str) -> (u16, Value) {
        let (status, text) = self.post_text(method, body);
        (status, json(&text))
    }

    /// Calls a method: the status, and the text of the answer.
    pub(crate) fn post_text(&self, method: &str, body: &str) -> (u16, String) {
        let length = body.len();
        let head = format!("POST /v1/{method} HTTP/1.1\r\nContent-Length: {length}\r\n");
        self.ask(&head, body)
    }

    /// Calls a method in a trace: the JSON value of the answer.
    #[allow(dead_code, reason = "not in every test")]
    pub(crate) fn post_in_trace(&self, method: &str, traceparent: &str, body: &Value) -> Value {
        let body = body.to_string();
        let length = body.len();
        let head = format!(
            "POST /v1/{method} HTTP/1.1\r\nContent-Length: {length}\r\ntraceparent: {traceparent}\r\n"
        );
        let (status, text) = self.ask(&head, &body);
        assert_eq!(status, 200, "{text}");
        json(&text)
    }

    /// Reads a page.
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        self.ask(&format!("GET {path} HTTP/1.1\r\n"), "")
    }

    fn ask(&self, head: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).expect("connected");
        let head = format!("{head}Host: {}\r\nConnection: close\r\n\r\n", self.address);
        stream.write_all(head.as_bytes()).expect("written");
        // A body that is too long is not read to its end.
        let _ = stream.write_all(body.as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8(answer).expect("UTF-8");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        let is_chunked = head
            .to_ascii_lowercase()
            .contains("transfer-encoding: chunked");
        let body = if is_chunked {
            unchunked(body)
        } else {
            body.to_owned()
        };
        (status.expect("a status"), body)
    }
}

fn unchunked(mut rest: &str) -> String {
    let mut body = String::new();
    loop {
        let (length, chunk) = rest.split_once("\r\n").expect("a chunk's length");
        let length = usize::from_str_radix(length, 16).expect("hexadecimal digits");
        if length == 0 {
            return body;
        }
        body += &chunk[..length];
        rest = &chunk[length + 2..];
    }
}
