//! `percolator top` on a terminal, and for scripts.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use crate::support::{Cluster, PERCOLATOR, percolator, wait_for};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::Value;

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

/// What a terminal shows that these bytes were written to: characters, and where the cursor goes.
fn screen(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = vec![vec![' '; 110]; 30];
    let (mut line, mut column) = (0_usize, 0_usize);
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        if char != '\x1b' {
            if let Some(cell) = lines.get_mut(line).and_then(|line| line.get_mut(column)) {
                *cell = char;
            }
            column += 1;
            continue;
        }
        let mut sequence = String::new();
        for char in chars.by_ref() {
            sequence.push(char);
            if char.is_ascii_alphabetic() {
                break;
            }
        }
        match sequence
            .strip_prefix('[')
            .and_then(|it| it.strip_suffix('H'))
        {
            Some("") => (line, column) = (0, 0),
            Some(place) => {
                let (to_line, to_column) = place.split_once(';').expect(place);
                let number = |text: &str| text.parse::<usize>().expect(text) - 1;
                (line, column) = (number(to_line), number(to_column));
            }
            None if sequence.ends_with('J') => lines.iter_mut().for_each(|line| line.fill(' ')),
            None => {}
        }
    }
    let lines = lines.into_iter().map(String::from_iter);
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
#[allow(clippy::too_many_lines, reason = "one story in its order")]
fn top_draws_on_a_terminal_and_leaves_it_as_it_was() {
    let cluster = Cluster::processes();
    let splits: Vec<String> = (1..40).map(|number| format!("{number:02}")).collect();
    let splits = splits.iter().flat_map(|row| ["--split-at", row]);
    let create = ["table", "create", "long"].into_iter().chain(splits);
    cluster.run(&create.collect::<Vec<_>>()).ok();
    let tablets = cluster.run(&["table", "list", "-o", "json"]);
    let tablets: Value = serde_json::from_str(&tablets.ok()).expect("JSON");
    let line = |tablet: usize| format!("long {} tablet", tablets["tablets"][tablet]["id"]);
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
    // Tab, End; then Home.
    for (keys, tablet, words) in [
        ("\t\x1b[F", line(39), "-40 of 40"),
        ("\x1b[H", line(0), "by table, 1-"),
    ] {
        ours.write_all(keys.as_bytes()).expect("typed");
        let mut seen = String::new();
        wait_for(&format!("{words} on the terminal"), || {
            let shown = screen(&drawn.lock().expect("whole"));
            let plain = shown.split_whitespace().collect::<Vec<_>>().join(" ");
            let is_there = plain.contains(&tablet) && plain.contains(words);
            if seen != shown {
                eprintln!("{shown}");
                seen = shown;
            }
            is_there.then_some(())
        });
    }
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
        Some(3 + 1),
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
    let threads = Cluster::threads();
    let data_dir = threads.data_dir.display().to_string();
    let look_once = ["top", "--once", "-o", "json", "--interval", "200ms"];
    let said = threads.run(&[&look_once[..], &["--data-dir", &data_dir]].concat());
    let alike: Value = serde_json::from_str(&said.ok()).expect("JSON");
    assert_eq!(
        alike["load_of"].as_object().map(serde_json::Map::len),
        Some(3 + 1),
        "{alike}"
    );
    // The master knows where they are.
    let seen = look(&["--data-dir", "nowhere"]);
    assert_eq!(seen["status"]["tables"][0]["ready"], 1, "{seen}");
    assert!(seen["load"]["requests_per_second"].is_f64(), "{seen}");
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
        "--request-timeout",
        "1s",
    ])
    .refused(5, &["127.0.0.1:1"]);
}
