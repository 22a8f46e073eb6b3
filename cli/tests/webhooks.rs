//! Webhooks: a real HTTP server that checks what it is sent, fails for some changes, and never answers for one.

use crate::support;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::support::Cluster;
use base64::prelude::{BASE64_STANDARD, Engine};
use ring::hmac;
use serde_json::Value;

const KEY: &[u8] = b"a key that has 24 bytes and more";

/// What a server was sent.
#[derive(Default)]
struct Calls {
    /// By row: the ids of the calls for it, one a call.
    ids: Mutex<BTreeMap<String, Vec<String>>>,
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Calls {
    fn ids(&self) -> BTreeMap<String, Vec<String>> {
        let ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        ids.clone()
    }
}

/// A request: its headers, and its body.
fn read(stream: &TcpStream) -> (BTreeMap<String, String>, String) {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).expect("a line");
    assert_eq!(line, "POST /changed?by=percolator HTTP/1.1\r\n");
    let mut headers = BTreeMap::new();
    loop {
        line.clear();
        stream.read_line(&mut line).expect("a header");
        let Some((name, value)) = line.trim().split_once(": ") else {
            break;
        };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let length = headers["content-length"].parse().expect("a length");
    let mut body = vec![0; length];
    stream.read_exact(&mut body).expect("a body");
    (headers, String::from_utf8(body).expect("UTF-8"))
}

fn check_signature(headers: &BTreeMap<String, String>, body: &str) {
    let (id, at) = (&headers["webhook-id"], &headers["webhook-timestamp"]);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a time");
    let age = now.as_secs().abs_diff(at.parse().expect("seconds"));
    assert!(age < 300, "it is of {age} s ago");
    let signature = headers["webhook-signature"].strip_prefix("v1,");
    let signature = BASE64_STANDARD.decode(signature.expect("version 1"));
    let key = hmac::Key::new(hmac::HMAC_SHA256, KEY);
    let signed = format!("{id}.{at}.{body}");
    hmac::verify(&key, signed.as_bytes(), &signature.expect("base64")).expect("the signature");
}

/// Status and body of the answer for this row; `None`: it is never answered.
fn decide(change: &Value, calls: usize) -> Option<(u16, String)> {
    let row = change["row"].as_str().expect("a row");
    let put = format!(
        "{{\"put\":{{\"row\":\"{row}\",\"column\":\"seen\",\"value\":{}}}}}\n",
        change["value"]
    );
    match row {
        "busy" if calls < 3 => Some((503, put)),
        "gone" => Some((404, "no such thing".to_owned())),
        "elsewhere" => Some((302, String::new())),
        "gets" => Some((200, "{\"get\":{\"row\":\"a\"}}".to_owned())),
        "hangs" => None,
        "silent" => Some((204, String::new())),
        _ => Some((200, put)),
    }
}

fn serve(mut stream: TcpStream, calls: &Calls) {
    let now = calls.now.fetch_add(1, Ordering::SeqCst) + 1;
    calls.most.fetch_max(now, Ordering::SeqCst);
    let (headers, body) = read(&stream);
    check_signature(&headers, &body);
    assert_eq!(headers["content-type"], "application/json");
    let change: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(
        (&change["table"], &change["column"]),
        (&"t".into(), &"c".into())
    );
    assert!(change["start_ts"].is_string() && change["changed_at"].is_string());
    let row = change["row"].as_str().expect("a row").to_owned();
    let count = {
        let mut ids = calls.ids.lock().unwrap_or_else(PoisonError::into_inner);
        let ids = ids.entry(row).or_default();
        ids.push(headers["webhook-id"].clone());
        ids.len()
    };
    match decide(&change, count) {
        Some((status, body)) => {
            let length = body.len();
            let head = format!(
                "HTTP/1.1 {status} so\r\nContent-Length: {length}\r\nConnection: close\r\n"
            );
            calls.now.fetch_sub(1, Ordering::SeqCst);
            let answer = format!("{head}Location: /other\r\n\r\n{body}");
            stream.write_all(answer.as_bytes()).expect("written");
        }
        None => {
            // Until the caller has enough.
            let _ = stream.read(&mut [0]);
            calls.now.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// The server's address, and what it is sent.
fn start() -> (String, Arc<Calls>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!(
        "http://{}/changed?by=percolator",
        listener.local_addr().expect("an address")
    );
    let calls = Arc::new(Calls::default());
    let shared = calls.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let calls = shared.clone();
            std::thread::spawn(move || serve(stream, &calls));
        }
    });
    (url, calls)
}

#[test]
fn a_webhook_is_called_for_each_change_until_it_has_answered_well() {
    let folder = tempfile::tempdir().expect("a folder");
    let key = folder.path().join("key");
    let text = format!("whsec_{}\n", BASE64_STANDARD.encode(KEY));
    std::fs::write(&key, text).expect("written");
    let cluster = Cluster::threads();
    cluster.run(&["table", "create", "t"]).ok();
    cluster.run(&["table", "observe", "t", "c"]).ok();
    let well = ["a", "b", "busy", "d", "e", "silent"];
    let given_up = ["elsewhere", "gets", "gone", "hangs"];
    for row in well.iter().chain(&given_up) {
        cluster.run(&["put", "t", row, "c", "x"]).ok();
    }
    let (url, calls) = start();
    let run = ["observe", "run", "t", "c", "--until-idle", "-o", "json"];
    let how = ["--attempts", "3", "--timeout", "1s", "--concurrency", "2"];
    let to = [
        "--webhook",
        &url,
        "--webhook-key-file",
        key.to_str().expect("text"),
    ];
    let said = cluster.run(&[&run[..], &how, &to].concat());
    assert_eq!(said.code(), 7, "{said:?}");
    let said: Value = serde_json::from_str(&said.out).expect("JSON");
    assert_eq!(
        (&said["committed"], &said["dead_letters"]),
        (&6.into(), &4.into()),
        "{said}"
    );
    let ids = calls.ids();
    for (row, ids) in &ids {
        let expected = match row.as_str() {
            "busy" | "elsewhere" | "gets" | "gone" | "hangs" => 3,
            _ => 1,
        };
        assert_eq!(ids.len(), expected, "{row}");
        // Receivers tell a call that is repeated from another one.
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    }
    let distinct: BTreeSet<&String> = ids.values().flatten().collect();
    assert_eq!((ids.len(), distinct.len()), (10, 10));
    let most = calls.most.load(Ordering::SeqCst);
    assert!(most <= 3, "{most} calls at a time");
    for row in ["a", "b", "busy", "d", "e"] {
        assert_eq!(cluster.run(&["get", "t", row, "seen"]).ok(), "x\n");
    }
    for row in ["silent", "gets", "gone", "hangs"] {
        assert_eq!(cluster.run(&["get", "t", row, "seen"]).code(), 7, "{row}");
    }
    let status = cluster.run(&["observe", "status", "t", "c"]);
    assert_eq!(status.code(), 7);
    for reason in [
        "302",
        "can't have an answer",
        "404",
        "no such thing",
        "longer than 1s",
    ] {
        assert!(status.out.contains(reason), "{reason}: {}", status.out);
    }
}

#[test]
fn a_webhook_needs_a_url_and_a_key() {
    let cluster = Cluster::threads();
    cluster.run(&["table", "create", "t"]).ok();
    cluster.run(&["table", "observe", "t", "c"]).ok();
    let run = |more: &[&str], key: &str| {
        let run = ["observe", "run", "t", "c", "--until-idle"];
        let mut command = cluster.command(&[&run[..], more].concat());
        command.env("PERCOLATOR_WEBHOOK_KEY", key);
        // As in an image without certificates; http needs none.
        command.env("SSL_CERT_FILE", "/nowhere");
        command.env("SSL_CERT_DIR", "/nowhere");
        support::output_of(command)
    };
    let key = "k".repeat(24);
    let url = ["--webhook", "http://127.0.0.1:1/"];
    run(&url, &key).ok();
    run(&["--webhook", "https://127.0.0.1:1/"], &key).refused(1, &["SSL_CERT_FILE"]);
    run(&url, "short").refused(2, &["24 bytes"]);
    run(&["--webhook", "ftp://127.0.0.1/"], &key).refused(2, &["http://"]);
    run(&[], &key).refused(2, &["--exec"]);
    run(&[&url[..], &["--exec", "true"]].concat(), &key).refused(2, &["--exec"]);
    run(
        &[&url[..], &["--webhook-key-file", "/nowhere"]].concat(),
        &key,
    )
    .refused(2, &["/nowhere"]);
}
