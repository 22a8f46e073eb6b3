//! Real processes on one register: leaders are killed, stand still and go on, and hand over. Over all of them and all
//! clients, timestamps strictly increase in real-time order, and none comes twice.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::oracles::{Cluster, Stream, granted_once};
use percolator_wire::leader_of;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::process::Signal;
use tokio::sync::watch;

const ORACLES: usize = 3;
const CLIENTS: usize = 6;
/// How leaders end, again and again.
const FAULTS: [Fault; 5] = [
    Fault::HandOver,
    Fault::Kill,
    Fault::HandOver,
    Fault::Stop,
    Fault::HandOver,
];
const TAKEOVERS: usize = 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Fault {
    /// SIGKILL, and a new process.
    Kill,
    /// SIGSTOP, and SIGCONT after the takeover.
    Stop,
    /// SIGTERM, and a new process.
    HandOver,
}

/// What all clients know together.
#[derive(Default)]
struct Watched {
    /// The highest timestamp of an answer that arrived.
    highest: AtomicU64,
    stop: AtomicBool,
}

/// The answer that came last.
#[derive(Clone, Debug, Default)]
struct LastAnswer {
    answers: u64,
    /// Who gave it.
    address: String,
}

/// Asks any oracle until it is stopped, and returns what it was granted: first and last of each answer.
async fn client(
    mut random: StdRng,
    addresses: Arc<Mutex<Vec<String>>>,
    watched: Arc<Watched>,
    answered: watch::Sender<LastAnswer>,
) -> Vec<(u64, u64)> {
    let mut granted = Vec::new();
    let mut address = String::new();
    let mut stream: Option<Stream> = None;
    while !watched.stop.load(Ordering::SeqCst) {
        // Also of one that answers: any replica may be asked.
        if stream.is_none() || random.random_ratio(1, 200) {
            if address.is_empty() || stream.is_some() {
                let addresses = addresses.lock().unwrap();
                address.clone_from(&addresses[random.random_range(0..ORACLES)]);
            }
            let opened = tokio::time::timeout(Duration::from_millis(500), Stream::open(&address));
            stream = opened.await.ok().and_then(Result::ok);
        }
        let Some(open) = &mut stream else {
            address.clear();
            tokio::task::yield_now().await;
            continue;
        };
        let count = if random.random_ratio(1, 4) { 65_536 } else { 3 };
        let floor = watched.highest.load(Ordering::SeqCst);
        // The answer of one that stands still comes when it goes on: that late answer is checked as well.
        let limit = Duration::from_millis(random.random_range(200..8_000));
        match tokio::time::timeout(limit, open.ask(count)).await {
            Ok(Ok(response)) => {
                let last = response.first + u64::from(response.count) - 1;
                assert!(
                    response.first > floor,
                    "{response:?} after {floor} was known"
                );
                watched.highest.fetch_max(last, Ordering::SeqCst);
                granted.push((response.first, last));
                answered.send_modify(|answered| {
                    answered.answers += 1;
                    answered.address.clone_from(&address);
                });
            }
            Ok(Err(status)) => {
                stream = None;
                let leader = leader_of(&status).flatten();
                address = leader.map(|it| it.address).unwrap_or_default();
            }
            Err(_) => {
                stream = None;
                address.clear();
            }
        }
    }
    granted
}

async fn takeovers(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut cluster = Cluster::start(ORACLES).await;
    let watched = Arc::new(Watched::default());
    let (answered, mut answers) = watch::channel(LastAnswer::default());
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let random = StdRng::seed_from_u64(random.random());
            let addresses = cluster.addresses.clone();
            tokio::spawn(client(random, addresses, watched.clone(), answered.clone()))
        })
        .collect();
    let mut gaps: HashMap<Fault, Vec<Duration>> = HashMap::new();
    for takeover in 0..TAKEOVERS {
        let until = answers.borrow().answers + random.random_range(50..400);
        let by = answers.wait_for(|last| last.answers >= until).await;
        let leader = by.unwrap().address.clone();
        let number = {
            let addresses = cluster.addresses.lock().unwrap();
            addresses.iter().position(|address| *address == leader)
        };
        let number = number.unwrap();
        let fault = FAULTS[takeover % FAULTS.len()];
        let began = Instant::now();
        cluster.signal(
            number,
            match fault {
                Fault::Kill => Signal::KILL,
                Fault::Stop => Signal::STOP,
                Fault::HandOver => Signal::TERM,
            },
        );
        answers
            .wait_for(|last| last.address != leader)
            .await
            .unwrap();
        gaps.entry(fault).or_default().push(began.elapsed());
        match fault {
            Fault::Stop => cluster.signal(number, Signal::CONT),
            Fault::Kill | Fault::HandOver => cluster.restart(number, "127.0.0.1:0").await,
        }
    }
    let answers = granted_once(clients, &watched.stop).await;
    print(&gaps, answers);
}

/// Prints how long it took from each signal to the first answer of another leader.
fn print(gaps: &HashMap<Fault, Vec<Duration>>, answers: usize) {
    eprintln!("{answers} answers over {TAKEOVERS} takeovers");
    let mut gaps: Vec<_> = gaps.iter().collect();
    gaps.sort();
    for (fault, gaps) in gaps {
        let mut ms: Vec<_> = gaps.iter().map(Duration::as_millis).collect();
        ms.sort_unstable();
        let median = ms[ms.len() / 2];
        eprintln!(
            "{fault:?}: {} times, median {median} ms, all {ms:?} ms",
            ms.len()
        );
    }
}

/// A client that knows no other oracle, and asks while the leader hands over.
#[tokio::test]
async fn a_leader_that_hands_over_names_its_successor() {
    let mut cluster = Cluster::start(2).await;
    for turn in 0..6 {
        let (number, mut stream, last) = settled(&cluster).await;
        cluster.signal(number, Signal::TERM);
        let refused = loop {
            if let Err(status) = stream.ask(1).await {
                break status;
            }
        };
        let named = leader_of(&refused).flatten();
        let named = named.unwrap_or_else(|| panic!("turn {turn}: {refused}"));
        let other = cluster.addresses.lock().unwrap()[1 - number].clone();
        assert_eq!(named.address, other, "turn {turn}");
        // It stands in the register by then, and grants as soon as its disk has said so to itself.
        let granted = granted_by(&named.address).await;
        assert!(granted > last, "turn {turn}: {granted} after {last}");
        cluster.restart(number, "127.0.0.1:0").await;
    }
}

/// An oracle that has led long enough to know that the other one is there: its number, a stream to it, and the last
/// timestamp that it granted.
async fn settled(cluster: &Cluster) -> (usize, Stream, u64) {
    loop {
        let (number, mut stream) = leader(cluster).await;
        let promised = Instant::now() + Duration::from_secs(2);
        // Where a disk stands still, another one leads meanwhile.
        while let Ok(answer) = stream.ask(1).await {
            if Instant::now() > promised {
                return (number, stream, answer.first);
            }
        }
    }
}

/// The first timestamp of the oracle at an address.
async fn granted_by(address: &str) -> u64 {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let mut stream = Stream::open(address).await.unwrap();
        match stream.ask(1).await {
            Ok(granted) => return granted.first,
            Err(status) if leader_of(&status).is_some() && Instant::now() < until => {}
            Err(status) => panic!("{address}: {status}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The oracle that grants, by its number, and a stream to it.
async fn leader(cluster: &Cluster) -> (usize, Stream) {
    let addresses = cluster.addresses.lock().unwrap().clone();
    loop {
        for (number, address) in addresses.iter().enumerate() {
            if let Ok(mut stream) = Stream::open(address).await
                && stream.ask(1).await.is_ok()
            {
                return (number, stream);
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn timestamps_strictly_increase_over_takeovers() {
    let seed = std::env::var("PERCOLATOR_SEED")
        .ok()
        .map_or_else(rand::random, |seed| seed.parse().unwrap());
    eprintln!("PERCOLATOR_SEED={seed}");
    tokio::time::timeout(Duration::from_secs(300), takeovers(seed))
        .await
        .unwrap();
}
