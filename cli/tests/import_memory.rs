//! An import of more than fits: its memory is bounded whatever the length of its input, and it says how far it is.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use support::{Cluster, wait_for};

const ROWS: usize = 150_000;
/// Of a row, about.
const ROW_BYTES: usize = 1000;
/// 8 MiB of records that wait, what is under way to the servers, and the program itself. All rows at a time
/// would need more than that for their bytes alone.
const MEMORY_KIB_MAX: u64 = 128 << 10;

#[test]
fn an_import_has_bounded_memory_and_says_how_far_it_is() {
    assert!(ROWS * ROW_BYTES > (MEMORY_KIB_MAX as usize) << 10);
    let cluster = Cluster::processes();
    let mut import = cluster
        .command(&["import", "--table", "t", "--key", "id", "-"])
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
    let status = std::fs::read_to_string(format!("/proc/{}/status", import.id())).expect("it runs");
    let peak_kib: u64 = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix("kB"))
        .and_then(|size| size.trim().parse().ok())
        .expect("a size");
    eprintln!("{peak_kib} KiB at the most");
    assert!(peak_kib < MEMORY_KIB_MAX, "{peak_kib} KiB");
    drop(input);
    let ended = import.wait_with_output().expect("it ends");
    let summary = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{summary}");
    assert!(summary.contains(&format!("{ROWS} new")), "{summary}");
    reader.join().expect("the reader ends");
}
