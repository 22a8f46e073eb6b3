//! A process that is killed while it commits loses nothing it has acknowledged, and leaves no half of
//! a batch.
//!
//! The test starts its own program again as a child, which acknowledges on its standard error (the
//! test harness writes on the standard output).

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    time::{SystemTime, UNIX_EPOCH},
};

use percolator_engine::{Batch, Column, Direction, Engine, EngineKind, Error, Options, open};

const FOLDER: &str = "PERCOLATOR_TEST_FOLDER";
const KIND: &str = "PERCOLATOR_TEST_KIND";
/// The size of a segment of the log, in bytes.
const SEGMENT: &str = "PERCOLATOR_TEST_SEGMENT";
/// Small, so that rotations and checkpoints are under way when it is killed.
const SMALL: u64 = 20_000;
/// Large enough that a segment is written over an older one's file.
const OVER_OLDER: u64 = 1 << 20;
/// Ends after this many groups; without it never.
const GROUPS: &str = "PERCOLATOR_TEST_GROUPS";

const ON_DISK: [EngineKind; 2] = [EngineKind::Redb, EngineKind::Sled];
/// Locks of the last so many batches are there.
const WINDOW: u64 = 5;

fn options(kind: EngineKind) -> Options {
    Options {
        segment_bytes: std::env::var(SEGMENT)
            .map_or(SMALL, |text| text.parse().expect("a number of bytes")),
        reserve_bytes: 0,
        last_reserve_bytes: 0,
        ..Options::new(kind, "tablet-0")
    }
}

/// Batch `i` touches all columns, deletes, and overwrites.
fn batch(i: u64) -> Batch {
    let mut batch = Batch::default();
    batch.put(
        Column::Data,
        i.to_be_bytes().to_vec(),
        vec![i as u8; (i * 37 % 900) as usize],
    );
    batch.put(
        Column::Write,
        i.to_be_bytes().to_vec(),
        i.to_be_bytes().to_vec(),
    );
    batch.put(Column::Lock, i.to_be_bytes().to_vec(), "locked");
    if let Some(old) = i.checked_sub(WINDOW) {
        batch.delete(Column::Lock, old.to_be_bytes().to_vec());
    }
    batch.put(Column::Meta, "last", i.to_be_bytes().to_vec());
    batch
}

/// Number of batches that are there; panics if one is there in part.
fn check(engine: &dyn Engine) -> u64 {
    let last = engine.get(Column::Meta, b"last").expect("a get");
    let count = last.map_or(0, |last| {
        1 + u64::from_be_bytes((*last).try_into().expect("a number"))
    });
    let all = |column| {
        let scan = engine
            .scan(column, b"", b"", Direction::Forward)
            .expect("a scan");
        scan.map(|pair| pair.expect("a pair")).collect::<Vec<_>>()
    };
    let (data, write, lock) = (all(Column::Data), all(Column::Write), all(Column::Lock));
    assert_eq!(data.len() as u64, count);
    assert_eq!(write.len() as u64, count);
    for (i, ((key, value), (write, number))) in (0_u64..).zip(data.iter().zip(&write)) {
        assert_eq!(**key, i.to_be_bytes());
        assert_eq!(**write, i.to_be_bytes());
        assert_eq!(**number, i.to_be_bytes());
        assert_eq!(**value, vec![i as u8; (i * 37 % 900) as usize]);
    }
    let locks: Vec<u64> = (count.saturating_sub(WINDOW)..count).collect();
    let found: Vec<u64> = lock
        .iter()
        .map(|(key, _)| u64::from_be_bytes((**key).try_into().expect("a number")))
        .collect();
    assert_eq!(found, locks);
    count
}

/// Not a test of its own: what the child runs.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let kind = std::env::var(KIND)
        .expect("a kind")
        .parse()
        .expect("a kind");
    let groups: u64 =
        std::env::var(GROUPS).map_or(u64::MAX, |text| text.parse().expect("a number"));
    let mut acknowledge = std::io::stderr().lock();
    let engine = match open(Path::new(&folder), &options(kind)) {
        Ok(engine) => engine,
        Err(error) => {
            let locked = matches!(error, Error::Locked { .. });
            writeln!(acknowledge, "refused locked={locked} {error}").expect("a parent");
            return;
        }
    };
    let mut next = check(&*engine);
    writeln!(acknowledge, "open {next}").expect("a parent");
    for group in 0..groups {
        let size = 1 + (next + group) % 7;
        let batches: Vec<Batch> = (next..next + size).map(batch).collect();
        engine.commit(&batches).expect("a commit");
        next += size;
        writeln!(acknowledge, "ack {next}").expect("a parent");
    }
    engine.close().expect("a close");
}

fn command(program: &str, folder: &Path, kind: EngineKind, segment: u64) -> Command {
    let mut command = Command::new(program);
    command
        .env(FOLDER, folder)
        .env(KIND, kind.name())
        .env(SEGMENT, segment.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

fn this_program() -> String {
    let path = std::env::current_exe().expect("this program");
    path.to_str().expect("a path").to_owned()
}

fn start(
    folder: &Path,
    kind: EngineKind,
    segment: u64,
) -> (Child, BufReader<std::process::ChildStderr>) {
    let mut child = command(&this_program(), folder, kind, segment)
        .args(["--exact", "crash::child", "--nocapture"])
        .spawn()
        .expect("a child");
    let answers = BufReader::new(child.stderr.take().expect("a pipe"));
    (child, answers)
}

fn next_line(answers: &mut impl BufRead) -> Option<String> {
    let mut line = String::new();
    answers.read_line(&mut line).expect("a line");
    // A line that was cut off by the kill counts for nothing.
    line.ends_with('\n').then(|| line.trim().to_owned())
}

fn number(line: &str, word: &str) -> u64 {
    let rest = line
        .strip_prefix(word)
        .unwrap_or_else(|| panic!("the child says: {line}"));
    rest.trim().parse().expect("a number")
}

#[test]
fn killed_at_any_moment() {
    const ROUNDS: usize = 25;
    let seed = std::env::var("PERCOLATOR_TEST_SEED").map_or_else(
        |_| {
            let now = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .expect("a time");
            now.subsec_nanos() as u64 + 1
        },
        |text| text.parse().expect("a seed"),
    );
    eprintln!("seed: PERCOLATOR_TEST_SEED={seed}");
    let mut numbers = seed;
    let mut below = |limit: u64| {
        numbers = numbers
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695);
        (numbers >> 33) % limit
    };
    for (kind, segment) in ON_DISK
        .map(|kind| [(kind, SMALL), (kind, OVER_OLDER)])
        .concat()
    {
        let folder = tempfile::tempdir().expect("a folder");
        // More groups than a segment holds, so that one that was written over comes to its end too.
        let groups = if segment == SMALL { 60 } else { 900 };
        let mut acknowledged = 0;
        for round in 0..ROUNDS {
            let (mut child, mut answers) = start(folder.path(), kind, segment);
            let there = number(&next_line(&mut answers).expect("an answer"), "open");
            assert!(
                there >= acknowledged,
                "{kind}, round {round}: {there} < {acknowledged}"
            );
            // Sometimes right after the open, sometimes deep within; then a little on, so that it is
            // in any phase of a commit.
            for _ in 0..below(groups) {
                acknowledged = number(&next_line(&mut answers).expect("an answer"), "ack");
            }
            for _ in 0..below(1_000_000) {
                std::hint::spin_loop();
            }
            child.kill().expect("a kill");
            child.wait().expect("an end");
            while let Some(line) = next_line(&mut answers) {
                acknowledged = number(&line, "ack");
            }
        }
        let engine = open(folder.path(), &options(kind)).expect("an engine");
        let there = check(&*engine);
        assert!(there >= acknowledged, "{kind}: {there} < {acknowledged}");
        eprintln!(
            "{kind}, segments of {segment} bytes: {there} batches over {ROUNDS} kills, {acknowledged} acknowledged"
        );
    }
}

#[test]
fn a_second_process_is_refused() {
    for kind in ON_DISK {
        let folder = tempfile::tempdir().expect("a folder");
        let engine = open(folder.path(), &options(kind)).expect("an engine");
        let (mut child, mut answers) = start(folder.path(), kind, SMALL);
        let line = next_line(&mut answers).expect("an answer");
        assert!(line.starts_with("refused locked=true"), "{line}");
        child.wait().expect("an end");
        drop(engine);
    }
}

/// Between writing a group and acknowledging it, the same thread has synced the file it wrote to; and
/// before the first segment of the log goes, the store's files were synced.
#[test]
fn acknowledged_is_synced() {
    const COUNT: usize = 40;
    for kind in ON_DISK {
        let folder = tempfile::tempdir().expect("a folder");
        let trace = folder.path().join("trace");
        let child = command("strace", &folder.path().join("data"), kind, SMALL)
            .env(GROUPS, COUNT.to_string())
            .args([
                "-f",
                "-y",
                "-e",
                "trace=write,pwrite64,fdatasync,fsync,unlink,unlinkat",
                "-o",
            ])
            .arg(&trace)
            .arg(this_program())
            .args(["--exact", "crash::child", "--nocapture"])
            .output();
        let output = match child {
            Ok(output) if output.status.success() => output,
            Ok(output) => {
                let why = String::from_utf8_lossy(&output.stderr).into_owned();
                assert!(!why.contains("open "), "the child failed: {why}");
                eprintln!("SKIPPED: strace cannot trace here: {why}");
                return;
            }
            Err(error) => {
                eprintln!("SKIPPED: there is no strace: {error}");
                return;
            }
        };
        let acks = String::from_utf8_lossy(&output.stderr)
            .matches("ack ")
            .count();
        assert_eq!(acks, COUNT);
        let trace = std::fs::read_to_string(&trace).expect("a trace");
        let commits = synced_commits(&trace);
        assert_eq!(commits, COUNT, "{kind}");
        let removed = segments_removed(&trace);
        assert!(removed > 0, "{kind}: no segment was removed");
        eprintln!(
            "{kind}: {commits} groups acknowledged, each synced before; {removed} segments removed"
        );
    }
}

/// Number of acknowledgements in a trace that come after a write to the log and its sync; panics at
/// one that does not.
fn synced_commits(trace: &str) -> usize {
    #[derive(PartialEq, Debug)]
    enum State {
        Idle,
        Written,
        Syncing,
        Synced,
    }
    let committer = trace
        .lines()
        .find(|line| line.contains("\"ack "))
        .and_then(|line| line.split(' ').next())
        .expect("an acknowledgement");
    let mut state = State::Idle;
    let mut count = 0;
    for line in trace.lines() {
        let Some(call) = line.strip_prefix(committer).map(str::trim_start) else {
            continue;
        };
        let done = call.ends_with("= 0");
        if call.starts_with("pwrite64(") && call.contains(".log>") {
            state = State::Written;
        } else if call.starts_with("fdatasync(")
            && call.contains(".log>")
            // Otherwise the end of a segment is cut.
            && state == State::Written
        {
            state = if done { State::Synced } else { State::Syncing };
        } else if call.starts_with("<... fdatasync resumed>") && state == State::Syncing {
            assert!(done, "{line}");
            state = State::Synced;
        } else if call.contains("\"ack ") {
            assert_eq!(state, State::Synced, "acknowledged without a sync: {line}");
            state = State::Idle;
            count += 1;
        }
    }
    count
}

/// Number of segments of the log that were removed in a trace; panics if the thread that did it had not
/// synced the store before.
fn segments_removed(trace: &str) -> usize {
    let is_removal = |line: &&str| line.contains(" unlink") && line.contains(".log\"");
    let checkpointer = trace
        .lines()
        .find(is_removal)
        .and_then(|line| line.split(' ').next())
        .expect("a removal");
    let mut synced = false;
    let mut count = 0;
    for line in trace.lines().filter(|line| line.starts_with(checkpointer)) {
        if line.contains("/store/") {
            // What was written since is not.
            synced = line.contains("sync(") || (synced && !line.contains("write"));
        }
        if is_removal(&line) {
            assert!(synced, "removed before the store was synced: {line}");
            count += 1;
        }
    }
    count
}
