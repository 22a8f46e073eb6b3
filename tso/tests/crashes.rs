//! The real program, killed at random moments: over all its lives and all clients, timestamps
//! strictly increase and none comes twice.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use percolator_client::oracle::OracleClient;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;

const CLIENTS: usize = 4;
const CALLERS_A_CLIENT: usize = 16;
const LIVES: usize = 25;

/// Starts the program; the limit is stored often, so that kills meet it.
fn start(folder: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_percolator-tso"))
        .arg("--data-dir")
        .arg(folder)
        .args(["--window", "8ms"])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// Where it listens, from the one line that it prints.
async fn address(oracle: &mut Child) -> String {
    let mut lines = BufReader::new(oracle.stdout.take().unwrap()).lines();
    let line = lines.next_line().await.unwrap().unwrap();
    line.strip_prefix("listening on ").unwrap().to_owned()
}

/// What all callers know together.
#[derive(Default)]
struct Watched {
    /// The highest timestamp of a call that ended.
    highest: AtomicU64,
    stop: AtomicBool,
}

/// Asks until it's stopped; returns whatever it got.
async fn ask(client: OracleClient, watched: Arc<Watched>, granted: watch::Sender<u64>) -> Vec<u64> {
    let mut got = Vec::new();
    while !watched.stop.load(Ordering::SeqCst) {
        let before = watched.highest.load(Ordering::SeqCst);
        let timestamp = client.timestamp().await.unwrap().as_u64();
        assert!(timestamp > before, "{timestamp} after {before} was known");
        watched.highest.fetch_max(timestamp, Ordering::SeqCst);
        got.push(timestamp);
        granted.send_modify(|count| *count += 1);
    }
    got
}

async fn kills(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let folder = tempfile::tempdir().unwrap();
    let (place, placed) = watch::channel(None::<String>);
    let (granted, mut progress) = watch::channel(0);
    let watched = Arc::new(Watched::default());
    let mut callers = Vec::new();
    for _ in 0..CLIENTS {
        let placed = placed.clone();
        let provide = move || {
            let mut placed = placed.clone();
            Box::pin(async move {
                let place = placed.wait_for(Option::is_some).await;
                let place = place.map_err(|error| error.to_string())?;
                place.clone().ok_or_else(|| "nowhere".to_owned())
            }) as _
        };
        let client = OracleClient::with_deadline(provide, Duration::from_secs(120));
        for _ in 0..CALLERS_A_CLIENT {
            let asking = ask(client.clone(), watched.clone(), granted.clone());
            callers.push(tokio::spawn(asking));
        }
    }
    for _ in 0..LIVES {
        let mut oracle = start(folder.path());
        // Some are killed before they could say where they listen.
        if random.random_ratio(4, 5) {
            place.send_replace(Some(address(&mut oracle).await));
            let until = *progress.borrow() + random.random_range(0..3_000);
            progress.wait_for(|count| *count >= until).await.unwrap();
            place.send_replace(None);
        }
        oracle.kill().await.unwrap();
    }
    let mut oracle = start(folder.path());
    place.send_replace(Some(address(&mut oracle).await));
    watched.stop.store(true, Ordering::SeqCst);
    let mut all = Vec::new();
    for caller in callers {
        let got = caller.await.unwrap();
        assert!(got.is_sorted_by(|one, next| one < next));
        all.extend(got);
    }
    oracle.kill().await.unwrap();
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count, "some timestamp came twice");
}

#[tokio::test]
async fn timestamps_strictly_increase_over_kills() {
    let seed = std::env::var("PERCOLATOR_SEED")
        .ok()
        .map_or_else(rand::random, |seed| seed.parse().unwrap());
    eprintln!("PERCOLATOR_SEED={seed}");
    tokio::time::timeout(Duration::from_secs(120), kills(seed))
        .await
        .unwrap();
}
