//! The real program, killed at random moments: over all its lives and all clients, timestamps
//! strictly increase and none comes twice.
//!
//! Half of the clients ask for so many timestamps at a time that the counter runs ahead of the
//! clock: with a counter behind it, the clock alone would keep the order after a restart, and a
//! limit that was never stored would not be noticed.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use percolator_client::oracle::{COUNT_MAX, OracleClient};
use percolator_protocol::oracle::Granted;
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

/// The last of the timestamps.
fn last(granted: &Granted) -> u64 {
    granted.first.as_u64() + u64::from(granted.count) - 1
}

/// Asks until it's stopped; returns whatever it got.
async fn ask(
    client: OracleClient,
    count: u32,
    watched: Arc<Watched>,
    progress: watch::Sender<u64>,
) -> Vec<Granted> {
    let mut got = Vec::new();
    while !watched.stop.load(Ordering::SeqCst) {
        let before = watched.highest.load(Ordering::SeqCst);
        let granted = client.timestamps(count).await.unwrap();
        let first = granted.first.as_u64();
        assert!(first > before, "{first} after {before} was known");
        watched.highest.fetch_max(last(&granted), Ordering::SeqCst);
        got.push(granted);
        progress.send_modify(|answers| *answers += 1);
    }
    got
}

async fn kills(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let folder = tempfile::tempdir().unwrap();
    let (place, placed) = watch::channel(None::<String>);
    let (answered, mut progress) = watch::channel(0);
    let watched = Arc::new(Watched::default());
    let mut callers = Vec::new();
    for number in 0..CLIENTS {
        let count = if number % 2 == 0 { 1 } else { COUNT_MAX };
        let placed = placed.clone();
        let provide = move || {
            let mut placed = placed.clone();
            Box::pin(async move {
                let place = placed.wait_for(Option::is_some).await;
                let place = place.map_err(|error| error.to_string())?;
                let address = place.clone().ok_or_else(|| "nowhere".to_owned())?;
                Ok(address.into())
            }) as _
        };
        let client = OracleClient::with_deadline(provide, Duration::from_secs(120));
        for _ in 0..CALLERS_A_CLIENT {
            let asking = ask(client.clone(), count, watched.clone(), answered.clone());
            callers.push(tokio::spawn(asking));
        }
    }
    for _ in 0..LIVES {
        let mut oracle = start(folder.path());
        // Some are killed before they could say where they listen.
        if random.random_ratio(4, 5) {
            place.send_replace(Some(address(&mut oracle).await));
            let until = *progress.borrow() + random.random_range(0..3_000);
            progress
                .wait_for(|answers| *answers >= until)
                .await
                .unwrap();
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
        all.extend(got);
    }
    oracle.kill().await.unwrap();
    all.sort_unstable_by_key(|granted| granted.first);
    for pair in all.windows(2) {
        let apart = last(&pair[0]) < pair[1].first.as_u64();
        assert!(apart, "granted twice: {pair:?}");
    }
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
