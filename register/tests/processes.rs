//! Several processes swap one register and are killed at any time: every version has one winner, what was acknowledged stays,
//! and nothing is torn.
//!
//! The test starts its own program again as children, which acknowledge on their standard error (the test harness writes on
//! the standard output).

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use percolator_register::{FolderRegister, Register, RegisterVersion, SwapError, VersionedFolder};
use rand::{RngExt as _, SeedableRng as _};

const PATH: &str = "PERCOLATOR_TEST_REGISTER";
const NAME: &str = "PERCOLATOR_TEST_NAME";
const ROUNDS: u64 = 100;
const PROCESSES: u64 = 3;

/// Not a test of its own: what a child runs, until it is killed.
#[test]
fn child() {
    let Some(path) = std::env::var_os(PATH) else {
        return;
    };
    let name = std::env::var(NAME).expect("a name");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(swap_for_ever(&FolderRegister::new(path), &name));
}

async fn swap_for_ever(register: &FolderRegister, name: &str) {
    let mut acknowledge = std::io::stderr();
    let mut expected = register.load().await.expect("a load").map(|it| it.version);
    for number in 0.. {
        // Of several lengths: a mixture of two would not have the right checksum.
        let value = format!("{name} {number} {}", ".".repeat(number * 37 % 900));
        match register.swap(expected, value.clone().into_bytes()).await {
            Ok(version) => {
                // In one piece, which a pipe takes as a whole or not at all.
                let line = format!("{version} {value}\n");
                acknowledge.write_all(line.as_bytes()).expect("a parent");
                expected = Some(version);
            }
            Err(SwapError::Conflict { found, .. }) => expected = found,
            // The others are faster, by many versions.
            Err(SwapError::Unknown { .. }) => {
                expected = register.load().await.expect("a load").map(|it| it.version);
            }
            Err(error) => panic!("a swap: {error}"),
        }
    }
}

fn spawn(path: &Path, name: &str) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "processes::child", "--nocapture"])
        .env(PATH, path)
        .env(NAME, name)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("this program")
}

/// Lets children swap until so many were acknowledged, and kills them one after the other. Gives what was acknowledged.
fn round(path: &Path, number: u64, swaps: usize) -> Vec<(u64, String)> {
    let (send, acknowledged) = mpsc::channel();
    let mut children: Vec<Child> = (0..PROCESSES)
        .map(|child| spawn(path, &format!("{number}-{child}")))
        .collect();
    let mut readers = Vec::new();
    for child in &mut children {
        let lines = BufReader::new(child.stderr.take().expect("it is piped"));
        let send = send.clone();
        readers.push(std::thread::spawn(move || {
            for line in lines.split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8(line).expect("UTF-8");
                let (version, value) = line.split_once(' ').unwrap_or_else(|| panic!("{line}"));
                let version = version.parse().unwrap_or_else(|_| panic!("{line}"));
                send.send((version, value.to_owned())).expect("a test");
            }
        }));
    }
    drop(send);
    let mut all: Vec<_> = acknowledged.iter().take(swaps).collect();
    for child in &mut children {
        child.kill().expect("a kill");
        all.extend(acknowledged.try_iter());
    }
    for child in &mut children {
        child.wait().expect("an end");
    }
    for reader in readers {
        reader.join().expect("only acknowledgements");
    }
    all.extend(acknowledged.iter());
    all
}

#[test]
fn processes_that_are_killed_lose_nothing_and_agree() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("register");
    let seed = rand::random();
    eprintln!("seed {seed}");
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    let register = VersionedFolder::new(&path);
    let mut all = BTreeMap::new();
    for number in 0..ROUNDS {
        for (version, value) in round(&path, number, random.random_range(0..20)) {
            let before = all.insert(version, value);
            assert_eq!(before, None, "version {version} has two winners");
        }
        // The same handle all the time: it notices versions that go back.
        let found = register.load().expect("never torn");
        let found = found.map(|found| (found.version, found.value));
        let Some((RegisterVersion(version), value)) = found else {
            assert!(all.is_empty(), "acknowledged, and nothing is there");
            continue;
        };
        let last = all.keys().next_back().copied().unwrap_or_default();
        assert!(
            version >= last,
            "{last} was acknowledged, {version} is there"
        );
        if let Some(acknowledged) = all.get(&version) {
            assert_eq!(value, acknowledged.as_bytes(), "version {version}");
        }
    }
    eprintln!("{} swaps were acknowledged", all.len());
    assert!(all.len() as u64 > ROUNDS, "{}", all.len());
}
