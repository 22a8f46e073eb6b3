//! `percolator top` on a terminal, and for scripts.

mod support;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::Value;
use support::{Cluster, PERCOLATOR, percolator, wait_for};

/// A terminal of so many columns and lines: our side of it, and the programs'.
fn terminal() -> (File, File) {
    let ours: OwnedFd = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&ours).expect("ours");
    unlockpt(&ours).expect("unlocked");
    let name = ptsname(&ours, Vec::new()).expect("a name");
    let path = name.to_str().expect("text").to_owned();
    let theirs = File::options()
        .read(true)
        .write(true)
        .open(path)
        .expect("their side");
    let size = Winsize {
        ws_row: 30,
        ws_col: 110,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&theirs, size).expect("a size");
    (File::from(ours), theirs)
}

#[test]
fn top_draws_on_a_terminal_and_leaves_it_as_it_was() {
    let cluster = Cluster::processes();
    let (mut ours, theirs) = terminal();
    let stdio = || Stdio::from(theirs.try_clone().expect("another"));
    let mut child = Command::new("setsid")
        .args([
            "--ctty",
            "--wait",
            PERCOLATOR,
            "-c",
            &cluster.master,
            "top",
            "--interval",
            "100ms",
            "--data-dir",
        ])
        .arg(&cluster.data_dir)
        .env("TERM", "xterm-256color")
        .stdin(stdio())
        .stdout(stdio())
        .stderr(stdio())
        .spawn()
        .expect("setsid runs");
    drop(theirs);
    let drawn = Arc::new(Mutex::new(Vec::new()));
    let (mut reader, sink) = (ours.try_clone().expect("another"), drawn.clone());
    let reading = std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        // It ends with an error where nobody has the other side any more.
        while let Ok(read @ 1..) = reader.read(&mut bytes) {
            sink.lock()
                .expect("whole")
                .extend_from_slice(&bytes[..read]);
        }
    });
    let text = || String::from_utf8_lossy(&drawn.lock().expect("whole")).into_owned();
    wait_for("the servers and their load", || {
        let drawn = text();
        let all = ["tablet-2", "requests/s", "WRITE P99"];
        all.iter().all(|words| drawn.contains(words)).then_some(())
    });
    ours.write_all(b"q").expect("typed");
    let status = wait_for("its end", || child.try_wait().expect("a child"));
    reading.join().expect("the reader ends");
    let drawn = text();
    assert!(status.success(), "{status}: {drawn}");
    assert!(
        drawn.contains("\x1b[?1049h") && drawn.contains("\x1b[?1049l"),
        "{drawn}"
    );
}

#[test]
fn top_prints_one_look_for_scripts() {
    let cluster = Cluster::processes();
    let data_dir = cluster.data_dir.display().to_string();
    cluster.run(&["table", "create", "accounts"]).ok();
    cluster
        .run(&["put", "accounts", "bob", "balance", "1"])
        .ok();
    let look = |more: &[&str]| -> Value {
        let arguments = [
            &["top", "--once", "-o", "json", "--interval", "200ms"],
            more,
        ]
        .concat();
        serde_json::from_str(&cluster.run(&arguments).ok()).expect("JSON")
    };
    let seen = look(&["--data-dir", &data_dir]);
    assert_eq!(seen["status"]["healthy"], true, "{seen}");
    assert_eq!(
        seen["load_of"].as_object().map(serde_json::Map::len),
        Some(3),
        "{seen}"
    );
    assert!(seen["load"]["requests_per_second"].is_f64(), "{seen}");
    let tablets = seen["load_of_tablets"].as_object().expect("tablets");
    let rates = tablets
        .values()
        .next()
        .expect("the one that was written to");
    assert_eq!(tablets.len(), 1, "{seen}");
    assert!(
        rates["requests_per_second"].is_f64() && rates["bytes_per_second"].is_f64(),
        "{seen}"
    );
    // Only the master's port is reached, as through kubectl port-forward.
    let seen = look(&["--data-dir", "nowhere"]);
    assert_eq!(seen["status"]["tables"][0]["ready"], 1, "{seen}");
    assert!(seen["load"].is_null(), "{seen}");
    let seen = look(&["--data-dir", "nowhere", "--metrics", "tablet-0=127.0.0.1:1"]);
    assert!(
        seen["metrics_not_reached"]["tablet-0"].is_string(),
        "{seen}"
    );
}

#[test]
fn top_needs_a_terminal_or_once() {
    percolator(&["top"]).refused(2, &["terminal", "--once -o json"]);
    percolator(&["top", "--once"]).refused(2, &["-o json"]);
    percolator(&[
        "-c",
        "127.0.0.1:1",
        "top",
        "--once",
        "-o",
        "json",
        "--patience",
        "1s",
    ])
    .refused(5, &["127.0.0.1:1"]);
}
