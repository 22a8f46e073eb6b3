//! The part of one of several oracles in the election over their register, and the promises by which the leader goes on while that
//! is away. Over a [`Host`], which is a process with a network, or one of the simulator.

use std::convert::Infallible;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select;
use percolator_protocol::election::{
    Command, CopyRequest, Election, OracleReplica, PromiseCall, PromiseRecord, PromiseRequest,
    PromiseRound, StoredLeadership, SwapResult, Timing,
};
use percolator_protocol::oracle::Now;
use percolator_register::{Register, SwapError};
use percolator_server::leadership::{self, Standing};
use percolator_server::promises::{IntroducedReplica, LeaderRight, PromiseRefusal, Promiser};

/// What one of several oracles has around what it decides.
pub trait Host: Send + Sync + 'static {
    /// Lets the replica act, by a clock that is read now. None: this oracle is alone.
    fn replica<T>(&self, act: impl FnOnce(&mut OracleReplica, Now) -> T) -> Option<T>;

    /// The replica has acted: requests that wait may be answered now.
    fn recheck_waiting(&self);

    /// Waits.
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send;

    /// Ends when a request waits for a limit, for one caller at a time.
    fn exhausted(&self) -> impl Future<Output = ()> + Send;

    /// All commands that were due are carried out.
    fn driven(&self) {}

    /// A load of the register has ended.
    fn loaded(&self, _result: &Result<Option<StoredLeadership>, String>) {}

    /// A swap of the register has ended, after so long.
    fn swapped(&self, _cause: Option<&SwapError>, _took: Duration) {}

    /// This became of a promise: see [`Promiser::count_promise`].
    fn count_promise(&self, _result: &'static str) {}
}

/// One of several oracles.
pub struct Elected<H> {
    host: Arc<H>,
    register: Arc<dyn Register>,
    timing: Timing,
    standing: Standing,
}

impl<H> fmt::Debug for Elected<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Elected")
            .field("register", &self.register)
            .finish_non_exhaustive()
    }
}

impl<H: Host> Elected<H> {
    /// With these times.
    pub fn new(host: Arc<H>, register: Arc<dyn Register>, timing: Timing) -> Self {
        Self {
            host,
            register,
            timing,
            standing: Standing::default(),
        }
    }

    /// What is around it.
    pub fn host(&self) -> &Arc<H> {
        &self.host
    }

    /// Its register.
    pub fn register(&self) -> &Arc<dyn Register> {
        &self.register
    }

    fn poll(&self) -> Duration {
        Duration::from_millis(self.timing.poll_ms)
    }

    /// A hand-over is given up after so long; a standby takes over without one.
    pub(crate) fn hand_over_max(&self) -> Duration {
        Duration::from_millis(self.timing.right_ms)
    }

    /// Takes part in the election; never ends.
    pub async fn run(&self) -> Infallible {
        loop {
            self.drive().await;
            let exhausted = pin!(self.host.exhausted());
            let hurried = pin!(self.standing.hurried());
            let sleep = pin!(self.host.sleep(self.poll()));
            select(sleep, select(exhausted, hurried)).await;
        }
    }

    /// Stops granting, and stores that this oracle leads no more, so that another one takes over at once; whether that is durable.
    /// [`Self::run`] goes on meanwhile.
    pub async fn hand_over(&self) -> bool {
        self.host.replica(|replica, _| replica.hand_over());
        self.host.recheck_waiting();
        self.publish();
        let given_up = self.host.sleep(self.hand_over_max());
        self.standing.is_left_before(given_up).await
    }

    /// Carries out all commands that are due.
    async fn drive(&self) {
        leadership::drive(&*self.register, self).await;
        self.publish();
        self.host.driven();
        // A request must not wait for an oracle whose right has ended.
        if self.host.replica(|replica, now| replica.leads(now)) == Some(false) {
            self.host.recheck_waiting();
        }
    }

    fn publish(&self) {
        let is_now = self
            .host
            .replica(|replica, _| (replica.role(), replica.term()));
        if let Some((role, term)) = is_now {
            self.standing.show(role, term);
        }
    }
}

impl<H: Host> leadership::Replica for Elected<H> {
    fn poll(&self) -> Option<Command> {
        self.host
            .replica(|replica, now| replica.poll(now))
            .flatten()
    }

    fn loaded(&self, result: Result<Option<StoredLeadership>, String>) {
        self.host.loaded(&result);
        self.host
            .replica(|replica, now| replica.loaded(now, result.map_err(drop)));
        self.host.recheck_waiting();
    }

    fn swapped(&self, result: SwapResult, cause: Option<&SwapError>, took: Duration) {
        if let Some(error) = cause {
            tracing::debug!(%error, "a swap of the oracles' register");
        }
        self.host.swapped(cause, took);
        self.host
            .replica(|replica, now| replica.swapped(now, result));
        self.publish();
        self.host.recheck_waiting();
    }
}

impl<H: Host> Promiser for Elected<H> {
    const ROLE: &'static str = "oracle";
    /// A limit is part of a promise.
    const COPY_BYTES_MAX: usize = 0;

    fn record(&self) -> Option<PromiseRecord> {
        self.host.replica(|replica, _| replica.record())
    }

    fn ask_promises(&self) -> Option<PromiseRound> {
        let round = self.host.replica(|replica, now| replica.ask_promises(now));
        round.flatten()
    }

    fn kept(&self, record: &PromiseRecord) {
        self.host.replica(|replica, now| replica.kept(now, record));
        self.host.recheck_waiting();
    }

    fn promised(&self, call: &PromiseCall) {
        self.host
            .replica(|replica, now| replica.promised(now, call));
        self.host.recheck_waiting();
    }

    fn promise(&self, request: &PromiseRequest) -> Option<PromiseRecord> {
        let promised = self
            .host
            .replica(|replica, now| replica.promise(now, request));
        promised.flatten()
    }

    fn election<T>(&self, read: impl FnOnce(&Election) -> T) -> Option<T> {
        self.host.replica(|replica, _| read(replica.election()))
    }

    fn introduced(&self, other: &IntroducedReplica) {
        self.host.replica(|replica, now| {
            if replica.register() != Some(other.register) {
                return;
            }
            if other.is_leaving {
                replica.leader_has_ended();
                self.standing.hurry();
            } else {
                replica.introduced(now, &other.peer);
            }
        });
    }

    fn right(&self) -> LeaderRight {
        let right = self.host.replica(|replica, now| LeaderRight {
            leads: replica.leads(now),
            is_by_promises: replica.leads_by_promises(now),
        });
        right.unwrap_or_default()
    }

    async fn term_begun(&self) {
        self.standing.term_begun().await;
    }

    fn count_promise(&self, result: &'static str) {
        self.host.count_promise(result);
    }

    async fn keep_copy(&self, _: &CopyRequest, _: Vec<u8>) -> Result<(), PromiseRefusal> {
        Err(PromiseRefusal::Refused)
    }
}
