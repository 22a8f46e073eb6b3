//! Runs an election (`protocol::election`) over its register: carries out the commands of a replica, one at a time. The
//! oracles, the masters and the simulator's replicas of both run this. And what a server shows of its leadership.

use std::convert::Infallible;
use std::future::pending;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::FusedFuture;
use percolator_protocol::election::{Command, Leadership, RoleKind, StoredLeadership, SwapResult};
use percolator_register::{Register, RegisterVersion, SwapError};
use percolator_telemetry::names::leadership as names;
use percolator_telemetry::{Gauge, IntCounter, IntGauge, Outage, Registry, Set};
use tokio::sync::{Notify, watch};

/// One replica of an election, with its clock. Each method reads the clock.
pub trait Replica: Sync {
    /// The next command, if one is due.
    fn poll(&self) -> Option<Command>;

    /// The load under way has ended: with what the register holds, or with why that isn't known.
    fn loaded(&self, result: Result<Option<StoredLeadership>, String>);

    /// The swap under way has ended, after so long.
    fn swapped(&self, result: SwapResult, cause: Option<&SwapError>, took: Duration);
}

/// Logs that the register of a role can't be read, as "oracles": once, then each minute, and when it can be read again.
#[derive(Debug, Default)]
pub struct RegisterOutage(Outage);

impl RegisterOutage {
    /// A load has ended with this.
    pub fn loaded<T>(&self, role: &'static str, result: &Result<T, String>) {
        match result {
            Ok(_) => {
                if let Some(line) = self.0.ended() {
                    let (attempts, lasted) = (line.attempts, line.lasted.as_secs());
                    tracing::info!(
                        attempts,
                        lasted_s = lasted,
                        "the {role}' register is read again"
                    );
                }
            }
            Err(error) => {
                if let Some(line) = self.0.failed() {
                    let (attempts, lasted) = (line.attempts, line.lasted.as_secs());
                    tracing::warn!(
                        error,
                        attempts,
                        lasted_s = lasted,
                        "the {role}' register can't be read"
                    );
                }
            }
        }
    }
}

/// Carries out all commands that are due. This is not to be dropped while the replica goes on: whether the command under way was
/// carried out would stay unknown.
pub async fn drive(register: &dyn Register, replica: &impl Replica) {
    while let Some(command) = replica.poll() {
        match command {
            Command::Load => replica.loaded(load(register).await),
            Command::Swap { expected, value } => {
                let began = Instant::now();
                let expected = expected.map(RegisterVersion);
                let swapped = register.swap(expected, value.encode()).await;
                replica.swapped(
                    swap_result(&swapped),
                    swapped.as_ref().err(),
                    began.elapsed(),
                );
            }
        }
    }
}

/// What a replica is in its election, for the tasks beside the one that [drives](drive) it.
#[derive(Debug)]
pub struct Standing {
    /// Its role, and the term as far as it knows.
    shown: watch::Sender<(RoleKind, u64)>,
    begun: Notify,
    /// A command may be due before the next poll.
    due: Notify,
}

impl Default for Standing {
    fn default() -> Self {
        Self {
            shown: watch::Sender::new((RoleKind::Standby, 0)),
            begun: Notify::new(),
            due: Notify::new(),
        }
    }
}

impl Standing {
    /// It is this now, in this term.
    pub fn show(&self, role: RoleKind, term: u64) {
        let is_new = self.shown.send_if_modified(|shown| {
            let is_new = *shown != (role, term);
            *shown = (role, term);
            is_new
        });
        if is_new && role == RoleKind::Leader {
            self.begun.notify_one();
        }
    }

    /// Waits until it leads, whether or not its right has ended for the moment, and returns the term.
    pub async fn leads(&self) -> u64 {
        self.wait_for(|role, _| role == RoleKind::Leader).await
    }

    /// Waits until it doesn't lead in this term any more.
    pub async fn leads_no_more(&self, term: u64) {
        self.wait_for(|role, shown| role != RoleKind::Leader || shown != term)
            .await;
    }

    /// Ends when a term of it has begun, for one caller at a time: its folder is to keep that, and the others are to promise.
    pub async fn term_begun(&self) {
        self.begun.notified().await;
    }

    /// Makes the task that drives it check now whether a command is due.
    pub fn hurry(&self) {
        self.due.notify_one();
    }

    /// Ends with [`Self::hurry`], for one caller at a time.
    pub async fn hurried(&self) {
        self.due.notified().await;
    }

    /// Whether its part has ended before `given_up` does: otherwise a standby takes over without a hand-over. For after
    /// [`Election::hand_over`](percolator_protocol::election::Election::hand_over); the task that drives it goes on meanwhile.
    pub async fn is_left_before(&self, given_up: impl Future<Output = ()> + Send) -> bool {
        self.hurry();
        tokio::select! {
            biased;
            _ = self.wait_for(|role, _| role == RoleKind::Left) => true,
            () = given_up => false,
        }
    }

    /// Waits for such a role and term, and returns the term.
    async fn wait_for(&self, is_it: impl Fn(RoleKind, u64) -> bool) -> u64 {
        let mut shown = self.shown.subscribe();
        let found = shown.wait_for(|(role, term)| is_it(*role, *term)).await;
        // The sender lives in here, so that this can't fail.
        found.map_or(0, |found| found.1)
    }
}

/// Does this work while something else goes on, a replica's part in its election, say, for as long as that takes.
pub async fn beside<T>(other: impl FusedFuture, work: impl Future<Output = T>) -> T {
    let other = async {
        if !other.is_terminated() {
            other.await;
        }
        pending::<Infallible>().await
    };
    tokio::select! {
        biased;
        done = work => done,
        never = other => match never {},
    }
}

/// What the register holds.
///
/// # Errors
/// Why that isn't known.
pub async fn load(register: &dyn Register) -> Result<Option<StoredLeadership>, String> {
    let found = register.load().await.map_err(|error| error.to_string())?;
    let Some(found) = found else { return Ok(None) };
    let value = Leadership::decode(&found.value).map_err(|error| error.to_string())?;
    let version = found.version.0;
    Ok(Some(StoredLeadership { version, value }))
}

/// What a swap means for the election.
fn swap_result(swapped: &Result<RegisterVersion, SwapError>) -> SwapResult {
    match swapped {
        Ok(version) => SwapResult::Done(version.0),
        Err(SwapError::Conflict { .. }) => SwapResult::Conflict,
        Err(SwapError::Unknown { .. }) => SwapResult::Unknown,
        Err(
            SwapError::TooLarge { .. }
            | SwapError::Refused { .. }
            | SwapError::Damaged { .. }
            | SwapError::Unavailable { .. },
        ) => SwapResult::NotDone,
    }
}

/// What a server shows of its part in an election.
pub struct LeadershipMetrics {
    leader: IntGauge,
    term: IntGauge,
    takeovers: IntCounter,
    handovers: IntCounter,
    takeover_seconds: Gauge,
    observed: Mutex<Observed>,
}

/// What was observed so far.
#[derive(Default)]
struct Observed {
    /// The register's version that another server has stored last, and since when this one knows it.
    of_other: Option<(u64, Instant)>,
    /// The last term in which this server led.
    led: Option<u64>,
    /// How long the last takeover from another server took.
    took: Option<Duration>,
    has_handed_over: bool,
}

impl LeadershipMetrics {
    /// Of a server of this role. It is taken for one that is alone until [`Self::show`] is called.
    ///
    /// # Errors
    /// The registry has metrics of these names.
    pub fn new(registry: &Registry, role: &str) -> Result<Self, percolator_telemetry::Error> {
        let set = Set::new(registry, names::ALL);
        let metrics = Self {
            leader: set.gauges(names::LEADER)?.with_label_values(&[role]),
            term: set.gauges(names::TERM)?.with_label_values(&[role]),
            takeovers: set.counters(names::TAKEOVERS)?.with_label_values(&[role]),
            handovers: set.counters(names::HANDOVERS)?.with_label_values(&[role]),
            takeover_seconds: set
                .fraction_gauges(names::TAKEOVER_SECONDS)?
                .with_label_values(&[role]),
            observed: Mutex::default(),
        };
        set.finish();
        metrics.leader.set(1);
        Ok(metrics)
    }

    /// A load of the register has found this.
    pub fn loaded(&self, found: Option<&StoredLeadership>, own_incarnation: u64) {
        let Some(found) = found else { return };
        if found.value.swap.incarnation == own_incarnation {
            return;
        }
        let mut observed = self.observed();
        if observed
            .of_other
            .is_none_or(|(version, _)| version != found.version)
        {
            observed.of_other = Some((found.version, Instant::now()));
        }
    }

    /// The server's part is this now. `leads`: it may answer.
    pub fn show(&self, role: RoleKind, term: u64, leads: bool) {
        let mut observed = self.observed();
        self.leader.set(leads.into());
        self.term.set(i64::try_from(term).unwrap_or(i64::MAX));
        if role == RoleKind::Leader && observed.led != Some(term) {
            observed.led = Some(term);
            observed.has_handed_over = false;
            self.takeovers.inc();
            if let Some((_, since)) = observed.of_other.take() {
                let took = since.elapsed();
                self.takeover_seconds.set(took.as_secs_f64());
                observed.took = Some(took);
            }
        }
        let hands_over = role == RoleKind::HandingOver;
        if hands_over && !observed.has_handed_over {
            self.handovers.inc();
        }
        observed.has_handed_over |= hands_over;
    }

    /// How long it took this server to take over from another one, when it did so last.
    pub fn last_takeover(&self) -> Option<Duration> {
        self.observed().took
    }

    fn observed(&self) -> MutexGuard<'_, Observed> {
        self.observed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use percolator_protocol::election::SwapName;
    use percolator_protocol::types::Timestamp;

    use super::*;

    fn stored(version: u64, incarnation: u64) -> StoredLeadership {
        let mut value = Leadership::first(1, Timestamp::ZERO);
        value.swap = SwapName {
            incarnation,
            sequence: 1,
        };
        StoredLeadership { version, value }
    }

    #[test]
    fn takeovers_and_handovers_are_counted_once() {
        let metrics = LeadershipMetrics::new(&Registry::new(), "tso").unwrap();
        assert_eq!(metrics.leader.get(), 1, "alone");
        metrics.show(RoleKind::Standby, 4, false);
        assert_eq!((metrics.leader.get(), metrics.term.get()), (0, 4));
        assert_eq!(metrics.last_takeover(), None);
        metrics.loaded(Some(&stored(7, 9)), 5);
        let since = metrics.observed().of_other;
        // The same value, and one of its own, are no sign of the other one.
        metrics.loaded(Some(&stored(7, 9)), 5);
        metrics.loaded(Some(&stored(8, 5)), 5);
        assert_eq!(metrics.observed().of_other, since);
        for leads in [true, true, false] {
            metrics.show(RoleKind::Leader, 5, leads);
            assert_eq!(metrics.leader.get(), i64::from(leads));
        }
        assert_eq!(metrics.takeovers.get(), 1);
        assert!(metrics.takeover_seconds.get() > 0.0);
        assert!(metrics.last_takeover().is_some());
        for role in [RoleKind::HandingOver, RoleKind::HandingOver, RoleKind::Left] {
            metrics.show(role, 5, false);
        }
        assert_eq!(metrics.handovers.get(), 1);
        metrics.show(RoleKind::Leader, 7, true);
        assert_eq!(metrics.takeovers.get(), 2);
    }
}
