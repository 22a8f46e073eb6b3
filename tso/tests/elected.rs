//! The part of one of several oracles in its election, over a scripted host: who waits is answered as soon as that is possible.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{Either, select};
use parking_lot::Mutex;
use percolator_protocol::election::{Leadership, Member, OracleReplica, RequestOutcome, Timing};
use percolator_protocol::oracle::{Granted, Now, Settings};
use percolator_protocol::types::Timestamp;
use percolator_register::{
    BoxFuture, LoadError, Register, RegisterVersion, SwapError, VersionedValue, WriteId,
};
use percolator_server::leadership;
use percolator_tso::{Elected, Host};
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long a swap of the register takes.
const SWAP: Duration = Duration::from_millis(5);
/// A script has ended by then, in simulated time.
const SCRIPT_MAX: Duration = Duration::from_secs(60);
/// When the clock of this test begins.
const BEGIN_MS: u64 = 1_800_000_000_000;

/// A register in memory.
#[derive(Debug, Default)]
struct MemoryRegister {
    stored: Mutex<Option<(u64, Vec<u8>)>>,
    /// A swap has begun.
    swapping: Arc<Notify>,
}

impl Register for MemoryRegister {
    fn load(&self) -> BoxFuture<'_, Result<Option<VersionedValue>, LoadError>> {
        let found = self.stored.lock().clone();
        Box::pin(async move {
            Ok(found.map(|(version, value)| VersionedValue {
                value,
                version: RegisterVersion(version),
                write: WriteId([0; 16]),
            }))
        })
    }

    fn swap(
        &self,
        expected: Option<RegisterVersion>,
        value: Vec<u8>,
    ) -> BoxFuture<'_, Result<RegisterVersion, SwapError>> {
        self.swapping.notify_waiters();
        Box::pin(async move {
            tokio::time::sleep(SWAP).await;
            let mut stored = self.stored.lock();
            let version = stored.as_ref().map(|(version, _)| *version);
            assert_eq!(version, expected.map(|it| it.0), "one oracle alone swaps");
            let next = version.unwrap_or_default() + 1;
            *stored = Some((next, value));
            Ok(RegisterVersion(next))
        })
    }
}

/// A process with one request at most, which waits if it has to.
struct ScriptedHost {
    replica: Mutex<OracleReplica>,
    began: Instant,
    /// The wall clock is ahead by so much of what it was.
    ahead_ms: AtomicU64,
    exhausted: Notify,
    waits: Mutex<bool>,
    granted: Mutex<Option<Granted>>,
    answered: Notify,
}

impl ScriptedHost {
    fn now(&self) -> Now {
        let mono_ms = u64::try_from(self.began.elapsed().as_millis()).expect("a short test");
        Now {
            unix_ms: BEGIN_MS + self.ahead_ms.load(Ordering::Relaxed) + mono_ms,
            mono_ms,
        }
    }

    fn answer(&self) -> RequestOutcome {
        let outcome = self.replica.lock().request(self.now(), 1);
        if let RequestOutcome::Granted(granted) = &outcome {
            *self.granted.lock() = Some(*granted);
            *self.waits.lock() = false;
            self.answered.notify_one();
        }
        outcome
    }

    /// A request comes. Whether it waits for a limit.
    fn request(&self) -> bool {
        *self.waits.lock() = true;
        let waits = self.answer() == RequestOutcome::Wait;
        if waits {
            self.exhausted.notify_one();
        }
        waits
    }
}

impl Host for ScriptedHost {
    fn replica<T>(&self, act: impl FnOnce(&mut OracleReplica, Now) -> T) -> Option<T> {
        Some(act(&mut self.replica.lock(), self.now()))
    }

    fn recheck_waiting(&self) {
        if *self.waits.lock() {
            self.answer();
        }
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    async fn exhausted(&self) {
        self.exhausted.notified().await;
    }
}

/// An oracle whose register has a first value, as it is before it leads; and what is notified when a swap begins.
fn oracle(timing: Timing) -> (Elected<ScriptedHost>, Arc<Notify>) {
    let member = Member {
        name: "tso-0".into(),
        address: "tso-0:7401".into(),
        incarnation: 1,
        replica: 0,
    };
    let settings = Settings {
        window_ms: 100,
        ..Settings::default()
    };
    let first = Leadership::first(1, Timestamp::ZERO).encode();
    let register = MemoryRegister {
        stored: Mutex::new(Some((1, first))),
        ..MemoryRegister::default()
    };
    let swapping = register.swapping.clone();
    let host = ScriptedHost {
        replica: Mutex::new(OracleReplica::new(member, Vec::new(), timing, settings)),
        began: Instant::now(),
        ahead_ms: AtomicU64::new(0),
        exhausted: Notify::new(),
        waits: Mutex::new(false),
        granted: Mutex::new(None),
        answered: Notify::new(),
    };
    let elected = Elected::new(Arc::new(host), Arc::new(register), timing);
    (elected, swapping)
}

/// Runs the oracle beside this script, which ends in simulated time.
async fn beside(oracle: &Elected<ScriptedHost>, script: impl Future<Output = ()>) {
    let script = tokio::time::timeout(SCRIPT_MAX, script);
    match select(pin!(oracle.run()), pin!(script)).await {
        Either::Right((ended, _)) => ended.expect("nobody answers"),
        Either::Left((never, _)) => match never {},
    }
}

/// Until it leads.
async fn led(host: &ScriptedHost) {
    while host.replica(|replica, now| replica.leads(now)) != Some(true) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_limit_is_answered_when_it_is_stored() {
    let (oracle, _) = oracle(Timing::default());
    let host = oracle.host();
    beside(&oracle, async {
        led(host).await;
        assert!(!host.request(), "its limit is above its clock");
        host.answered.notified().await;
        // Time goes beyond the limit.
        let mut asked = Instant::now();
        while !host.request() {
            host.answered.notified().await;
            host.ahead_ms.fetch_add(500, Ordering::Relaxed);
            asked = Instant::now();
        }
        host.answered.notified().await;
        // A swap, and nothing that comes by itself later.
        assert!(asked.elapsed() < 3 * SWAP, "{:?}", asked.elapsed());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_limit_is_in_the_register_before_anything_below_it_is_granted() {
    let (oracle, _) = oracle(Timing::default());
    let host = oracle.host();
    beside(&oracle, async {
        led(host).await;
        for _ in 0..20 {
            host.ahead_ms.fetch_add(150, Ordering::Relaxed);
            host.request();
            host.answered.notified().await;
            let granted = host.granted.lock().expect("it was answered");
            let stored = leadership::load(&**oracle.register()).await;
            let limit = stored.expect("a load").expect("a value").value.limit;
            assert!(granted.first < limit, "{granted:?}, limit {limit}");
        }
    })
    .await;
}

/// Whether it is done decides for how long nobody leads.
#[tokio::test(start_paused = true)]
async fn a_planned_end_waits_for_the_swap_under_way() {
    let (oracle, swapping) = oracle(Timing::default());
    let host = oracle.host();
    beside(&oracle, async {
        led(host).await;
        swapping.notified().await;
        let asked = Instant::now();
        assert!(oracle.hand_over().await, "it isn't durable");
        assert!(asked.elapsed() <= 3 * SWAP, "{:?}", asked.elapsed());
        let stored = leadership::load(&**oracle.register()).await;
        let value = stored.expect("a load").expect("a value").value;
        assert_eq!(value.holder, None);
    })
    .await;
}
