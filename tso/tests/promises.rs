//! Real processes whose register goes away: they go on while all of them are up, and lose no limit that only their folders
//! have.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::oracles::{Cluster, Stream, granted_once};
use percolator_protocol::election::Leadership;
use percolator_register::{FolderRegister, Register};
use rustix::process::Signal;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

/// What is waited for comes within this, or never.
const WITHIN: Duration = Duration::from_secs(60);
/// Longer than the right to grant lasts after the last swap.
const OUTAGE: Duration = Duration::from_secs(8);
const CLIENTS: usize = 4;
/// Outages, in one of which at least nothing is refused.
const TRIES: usize = 5;

/// What all clients have seen.
#[derive(Debug, Default)]
struct Seen {
    /// The highest timestamp of an answer that arrived.
    highest: AtomicU64,
    answers: AtomicU64,
    /// What was answered in place of timestamps.
    refusals: Mutex<Vec<String>>,
    stop: AtomicBool,
}

impl Seen {
    /// Waits until so many more requests are answered with timestamps.
    async fn wait_for_answers(&self, more: u64) {
        let until = self.answers.load(Ordering::SeqCst) + more;
        let is_there = || self.answers.load(Ordering::SeqCst) >= until;
        wait_until("timestamps", is_there, || format!("{self:?}")).await;
    }

    /// Waits until requests are refused, and no more are answered.
    async fn wait_for_refusals(&self) {
        let refused = || self.refusals.lock().unwrap().len();
        let before = refused();
        wait_until("refusal", || refused() > before, || format!("{self:?}")).await;
        let refusal = self.refusals.lock().unwrap()[before].clone();
        assert!(
            refusal.contains("its register has not answered"),
            "{refusal}"
        );
        // Those of other clients may be answered for the last time now.
        wait_until(
            "refusals",
            || refused() > before + 10,
            || format!("{self:?}"),
        )
        .await;
        let answered = self.answers.load(Ordering::SeqCst);
        wait_until(
            "refusals",
            || refused() > before + 100,
            || format!("{self:?}"),
        )
        .await;
        assert_eq!(self.answers.load(Ordering::SeqCst), answered);
    }
}

/// Waits until the server at this address says that it is ready, or that it isn't.
async fn wait_until_ready(address: &str, is_ready: bool) {
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap();
    let mut client = HealthClient::new(endpoint.connect().await.unwrap());
    let deadline = Instant::now() + WITHIN;
    loop {
        let service = "ready".to_owned();
        let answer = client.check(HealthCheckRequest { service }).await;
        let status = answer.unwrap().into_inner().status();
        if (status == ServingStatus::Serving) == is_ready {
            return;
        }
        assert!(Instant::now() < deadline, "{status:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn wait_until(what: &str, is_there: impl Fn() -> bool, seen: impl Fn() -> String) {
    let deadline = Instant::now() + WITHIN;
    while !is_there() {
        assert!(Instant::now() < deadline, "no {what}: {}", seen());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Asks the oracle at this address until it is stopped, and returns first and last timestamp of each answer.
async fn client(address: String, seen: Arc<Seen>) -> Vec<(u64, u64)> {
    let mut granted = Vec::new();
    let mut stream: Option<Stream> = None;
    while !seen.stop.load(Ordering::SeqCst) {
        let floor = seen.highest.load(Ordering::SeqCst);
        let asked = async {
            if stream.is_none() {
                stream = Some(Stream::open(&address).await?);
            }
            stream.as_mut().unwrap().ask(100).await
        };
        match asked.await {
            Ok(response) => {
                let last = response.first + u64::from(response.count) - 1;
                assert!(response.first > floor, "{response:?} after {floor}");
                seen.highest.fetch_max(last, Ordering::SeqCst);
                seen.answers.fetch_add(1, Ordering::SeqCst);
                granted.push((response.first, last));
                // As fast as it can it would only be busy.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Err(status) => {
                stream = None;
                let refused = status.message().to_owned();
                seen.refusals.lock().unwrap().push(refused);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
    granted
}

fn start_clients(address: &str, seen: &Arc<Seen>) -> Vec<JoinHandle<Vec<(u64, u64)>>> {
    let start = |_| tokio::spawn(client(address.to_owned(), seen.clone()));
    (0..CLIENTS).map(start).collect()
}

/// Two oracles, of which number 0 leads with the promises of number 1.
struct Pair {
    cluster: Cluster,
    leader: String,
    standby: String,
}

impl Pair {
    /// `behind_ms`: how far the standby's clock is behind.
    async fn start(behind_ms: i64) -> Self {
        let mut cluster = Cluster::start(0).await;
        let clock = cluster.folder.path().join("clock-1");
        std::fs::write(clock, format!("-{behind_ms}")).unwrap();
        cluster.add().await;
        let pair = |cluster: Cluster| {
            let addresses = cluster.addresses.lock().unwrap().clone();
            Self {
                leader: addresses[0].clone(),
                standby: addresses.get(1).cloned().unwrap_or_default(),
                cluster,
            }
        };
        let mut alone = pair(cluster);
        alone
            .wait_for_value(|value| value.holder.as_ref().is_some_and(|h| h.name == "tso-0"))
            .await;
        alone.cluster.add().await;
        let both = pair(alone.cluster);
        both.wait_for_value(|value| value.promisers.len() == 1)
            .await;
        both
    }

    fn register(&self) -> PathBuf {
        self.cluster.folder.path().join("register")
    }

    async fn wait_for_value(&self, is_it: impl Fn(&Leadership) -> bool) {
        let register = FolderRegister::new(self.register().join("oracle"));
        let deadline = Instant::now() + WITHIN;
        loop {
            let found = register.load().await;
            let value = found
                .ok()
                .flatten()
                .map(|found| Leadership::decode(&found.value));
            if let Some(Ok(value)) = &value
                && is_it(value)
            {
                return;
            }
            assert!(Instant::now() < deadline, "the register has {value:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn take_register_away(&self) {
        std::fs::rename(self.register(), self.register().with_extension("away")).unwrap();
    }

    fn bring_register_back(&self) {
        std::fs::rename(self.register().with_extension("away"), self.register()).unwrap();
    }
}

/// Two oracles that have gone on without their register, and refused nothing. On a machine that comes to one of them too rarely
/// its promises are late, and the leader refuses until they are there: then two others are tried.
async fn without_register() -> (Pair, Arc<Seen>, Vec<JoinHandle<Vec<(u64, u64)>>>) {
    let mut refused = Vec::new();
    for _ in 0..TRIES {
        let pair = Pair::start(0).await;
        let seen = Arc::new(Seen::default());
        let clients = start_clients(&pair.leader, &seen);
        seen.wait_for_answers(100).await;
        pair.take_register_away();
        tokio::time::sleep(OUTAGE).await;
        seen.wait_for_answers(1_000).await;
        refused.clone_from(&seen.refusals.lock().unwrap());
        if refused.is_empty() {
            return (pair, seen, clients);
        }
        granted_once(clients, &seen.stop).await;
    }
    refused.dedup();
    panic!("in each of {TRIES} outages something was refused, in the last one: {refused:?}");
}

#[tokio::test]
async fn while_all_oracles_are_up_a_register_that_is_away_costs_nothing() {
    let (mut pair, seen, clients) = without_register().await;
    wait_until_ready(&pair.leader, true).await;

    // Nobody promises any more.
    pair.cluster.signal(1, Signal::KILL);
    seen.wait_for_refusals().await;
    wait_until_ready(&pair.leader, false).await;
    // One that comes back with its folder does, although it can't read the register.
    let address = pair.standby.clone();
    pair.cluster.restart(1, &address).await;
    seen.wait_for_answers(1_000).await;
    pair.cluster.signal(1, Signal::KILL);
    seen.wait_for_refusals().await;

    pair.bring_register_back();
    seen.wait_for_answers(1_000).await;
    granted_once(clients, &seen.stop).await;
}

#[tokio::test]
async fn a_takeover_goes_on_above_limits_that_only_the_folders_have() {
    // By its own clock it would grant again what was granted while the register was away.
    let pair = Pair::start(60_000).await;
    let seen = Arc::new(Seen::default());
    let clients = start_clients(&pair.leader, &seen);
    seen.wait_for_answers(100).await;
    pair.take_register_away();
    tokio::time::sleep(OUTAGE).await;
    seen.wait_for_answers(100).await;
    pair.cluster.signal(0, Signal::KILL);
    pair.bring_register_back();
    // What these assert is that each timestamp is above all that were seen before.
    let of_standby = start_clients(&pair.standby, &seen);
    seen.wait_for_answers(1_000).await;
    granted_once(clients.into_iter().chain(of_standby), &seen.stop).await;
}
