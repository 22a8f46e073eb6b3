//! An import of more than fits: its memory is bounded whatever the length of its input, in one transaction or in many,
//! and it says how far it is.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Cluster, wait_for};

const ROWS: usize = 150_000;
/// Of a row, about.
const ROW_BYTES: usize = 1000;
/// 8 MiB of records that wait, what is under way to the servers, and the program itself. All rows at a time
/// would need more than that for their bytes alone.
const MEMORY_KIB_MAX: u64 = 128 << 10;

/// The most that it has had by now; nothing once it has ended.
fn peak_kib(import: &Child) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", import.id())).ok()?;
    let size = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix("kB"))?;
    size.trim().parse().ok()
}

fn has_bounded_memory(more: &[&str]) {
    assert!(ROWS * ROW_BYTES > (MEMORY_KIB_MAX as usize) << 10);
    let cluster = Cluster::processes();
    let arguments = ["import", "-o", "json", "--table", "t", "--key", "id", "-"];
    let mut import = cluster
        .command(&[&arguments, more].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the import runs");
    let mut input = import.stdin.take().expect("a pipe");
    let stderr = import.stderr.take().expect("a pipe");
    let (send, said) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            eprintln!("{line}");
            let _ = send.send(line);
        }
    });
    let text = "v".repeat(ROW_BYTES);
    for row in 0..ROWS {
        writeln!(input, "{{\"id\":\"{row:08}\",\"text\":\"{text}\"}}").expect("the import reads");
    }
    // Its input is still open, so it goes on to say how far it is: not to a terminal, line by line.
    let all = format!("{ROWS} rows");
    wait_for("the import to say that all rows are in", || {
        said.try_iter().find(|line| *line == all)
    });
    let mut peak = peak_kib(&import).expect("it runs");
    drop(input);
    // Where it is one transaction, it commits now.
    let ends = Instant::now();
    wait_for("its end", || {
        peak = peak.max(peak_kib(&import).unwrap_or(0));
        std::thread::sleep(Duration::from_millis(10));
        import.try_wait().expect("it is a child")
    });
    eprintln!("{peak} KiB at the most; the end took {:?}", ends.elapsed());
    assert!(peak < MEMORY_KIB_MAX, "{peak} KiB");
    let ended = import.wait_with_output().expect("it ends");
    let summary = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{summary}");
    // Rows whose commit was answered too late are found unchanged when they are written again: on a machine with much to do.
    let counts: Value = serde_json::from_str(&summary).expect(&summary);
    let count = |name: &str| counts[name].as_u64().expect(name);
    let (all, changed) = (ROWS as u64, count("changed"));
    assert_eq!((count("rows"), changed), (all, 0), "{summary}");
    assert_eq!(count("new") + count("unchanged"), all, "{summary}");
    reader.join().expect("the reader ends");
}

#[test]
fn an_import_has_bounded_memory_and_says_how_far_it_is() {
    has_bounded_memory(&[]);
}

#[test]
fn so_has_one_in_one_transaction() {
    has_bounded_memory(&["--atomic"]);
}
