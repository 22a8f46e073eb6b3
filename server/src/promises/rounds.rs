//! The rounds of promises and the responses to them, over any carrier of messages and keeper of the record: the network and a folder,
//! or the simulator's.

use std::convert::Infallible;
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, select};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use percolator_protocol::election::{
    CopyRequest, Election, PromiseCall, PromiseRecord, PromiseRequest,
};
use percolator_telemetry::Limited;
use tokio::sync::Semaphore;

use super::{Introduction, LeaderRight, PromiseRefusal, Promiser};

/// A standby introduces itself once in so many rounds, or later.
const INTRODUCTION_ROUNDS: u32 = 5;

/// Keeps the record of promises in a replica's folder.
pub trait RecordKeeper: Send + Sync + 'static {
    /// Makes the newest record durable, and returns it: each that was made before is part of it. Once begun it is made durable
    /// also if this future is dropped.
    ///
    /// # Errors
    /// The replica is alone, or its folder doesn't take the record.
    fn keep<P: Promiser>(
        &self,
        replica: &Arc<P>,
    ) -> impl Future<Output = Result<PromiseRecord, String>> + Send;
}

/// What a replica needs to ask others for promises.
pub trait PromiseHost: RecordKeeper {
    /// A clock that never goes back.
    fn now(&self) -> Duration;

    /// Waits, by that clock.
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send;

    /// Connections to other addresses than these are needed no more.
    fn keep_connections(&self, _addresses: &[&str]) {}

    /// Asks a peer for a promise, for as long as its answer would count.
    ///
    /// # Errors
    /// It didn't promise in time.
    fn ask(&self, call: &PromiseCall) -> impl Future<Output = Result<(), String>> + Send;

    /// Introduces a standby to the leader. It is sent again: one that isn't known to the leader has no part in promises, and
    /// takes nothing from it.
    fn introduce(&self, introduction: Introduction) -> impl Future<Output = ()> + Send;
}

/// Asks the other replicas for promises each so often while this one leads, and introduces this one to the leader otherwise.
/// Never ends; what is under way when this is dropped is given up.
pub async fn take_part<P: Promiser, H: PromiseHost>(
    replica: &Arc<P>,
    host: &H,
    every: Duration,
) -> Infallible {
    let calls = FuturesUnordered::new();
    let mut rounds = Rounds {
        replica,
        host,
        every,
        calls,
        writes: Arc::new(Semaphore::new(1)),
        introduced: None,
        was_by_promises: false,
    };
    loop {
        rounds.round();
        rounds.introduce();
        rounds.log();
        let (next, begun) = (pin!(host.sleep(every)), pin!(replica.term_begun()));
        let answered = pin!(async {
            while rounds.calls.next().await.is_some() {}
            pending::<()>().await;
        });
        select(select(next, begun), answered).await;
    }
}

struct Rounds<'a, P, H> {
    replica: &'a Arc<P>,
    host: &'a H,
    every: Duration,
    /// What is under way.
    calls: FuturesUnordered<BoxFuture<'a, ()>>,
    writes: Arc<Semaphore>,
    /// When this standby has introduced itself.
    introduced: Option<Duration>,
    was_by_promises: bool,
}

impl<P: Promiser, H: PromiseHost> Rounds<'_, P, H> {
    fn round(&self) {
        let Some(round) = self.replica.ask_promises() else {
            // It has led, or would have, and leads again when its folder has that term.
            if self.replica.election(Election::is_term_kept) == Some(false) {
                self.keep_record();
            }
            return;
        };
        self.keep_record();
        let (replica, host) = (self.replica, self.host);
        let addresses: Vec<&str> = round.calls.iter().map(|call| &*call.address).collect();
        host.keep_connections(&addresses);
        for call in round.calls {
            let asking = async move {
                match host.ask(&call).await {
                    Ok(()) => {
                        replica.count_promise("received");
                        replica.promised(&call);
                    }
                    Err(error) => {
                        replica.count_promise("missing");
                        tracing::debug!(address = call.address, error, "a promise is missing");
                    }
                }
            };
            self.calls.push(asking.boxed());
        }
    }

    fn keep_record(&self) {
        let (replica, host) = (self.replica, self.host);
        // While its disk hangs, no further writes wait for it: the next round's has what this one's would have.
        if let Ok(turn) = self.writes.clone().try_acquire_owned() {
            let keeping = async move {
                match host.keep(replica).await {
                    Ok(record) => replica.kept(&record),
                    Err(error) => log_failed_write::<P>(&error),
                }
                drop(turn);
            };
            self.calls.push(keeping.boxed());
        }
    }

    /// At once when the leader becomes known: without this standby's promise it stops when the register does.
    fn introduce(&mut self) {
        let (host, now) = (self.host, self.host.now());
        let pause = self.every * INTRODUCTION_ROUNDS;
        let is_recent = |at: Duration| now.saturating_sub(at) < pause;
        if self.introduced.is_some_and(is_recent) {
            return;
        }
        let introduction = self.replica.election(Introduction::to_leader);
        let Some(introduction) = introduction.flatten() else {
            return;
        };
        host.keep_connections(&[&introduction.to]);
        self.calls.push(host.introduce(introduction).boxed());
        self.introduced = Some(now);
    }

    fn log(&mut self) {
        let right = self.replica.right();
        if right.is_by_promises != self.was_by_promises {
            log::<P>(right);
        }
        self.was_by_promises = right.is_by_promises;
    }
}

/// Says that this replica ends: a standby to its leader, which would show it as down for a while, and a leader that has handed
/// over to the standbys, which would take over only when they load next. Nobody relies on it.
pub async fn take_leave<P: Promiser, H: PromiseHost>(replica: &Arc<P>, host: &H) {
    let takings = replica.election(Introduction::leave_takings);
    let calls = takings.into_iter().flatten();
    let calls: FuturesUnordered<_> = calls.map(|it| host.introduce(it)).collect();
    calls.collect::<Vec<()>>().await;
}

/// A peer asks for a promise. The leader may count on it when this succeeds.
///
/// # Errors
/// This replica doesn't promise, or its folder doesn't keep it.
pub async fn promise<P: Promiser>(
    replica: &Arc<P>,
    records: &impl RecordKeeper,
    request: &PromiseRequest,
) -> Result<(), PromiseRefusal> {
    let promised = replica.promise(request).ok_or(PromiseRefusal::Refused);
    keep(replica, records, promised.map(drop)).await
}

/// A peer asks for a promise, and to keep a copy of this state. It is durable when this succeeds.
///
/// # Errors
/// Those of [`promise`].
pub async fn keep_copy<P: Promiser>(
    replica: &Arc<P>,
    records: &impl RecordKeeper,
    request: &CopyRequest,
    state: Vec<u8>,
) -> Result<(), PromiseRefusal> {
    let copied = replica.keep_copy(request, state).await;
    keep(replica, records, copied).await
}

/// It is bound already. The leader may count on it when a later start of this process would know it as well.
async fn keep<P: Promiser>(
    replica: &Arc<P>,
    records: &impl RecordKeeper,
    promised: Result<(), PromiseRefusal>,
) -> Result<(), PromiseRefusal> {
    let kept = match promised {
        Ok(()) => records.keep(replica).await.map_err(PromiseRefusal::Failed),
        Err(refusal) => Err(refusal),
    };
    match kept {
        Ok(_) => {
            replica.count_promise("given");
            Ok(())
        }
        Err(PromiseRefusal::Refused) => {
            replica.count_promise("refused");
            Err(PromiseRefusal::Refused)
        }
        Err(PromiseRefusal::Failed(error)) => {
            replica.count_promise("failed");
            log_failed_write::<P>(&error);
            Err(PromiseRefusal::Failed(error))
        }
    }
}

fn log<P: Promiser>(right: LeaderRight) {
    let role = P::ROLE;
    if right.is_by_promises {
        tracing::warn!(
            "the {role}s' register can't be swapped: this {role} goes on, because all that could take over promise not to"
        );
    } else if right.leads {
        tracing::info!("the {role}s' register is swapped again");
    } else {
        tracing::error!(
            "this {role} stops: the {role}s' register can't be swapped, and {} {role} that could take over does not promise not to",
            if role.starts_with('o') { "an" } else { "a" }
        );
    }
}

fn log_failed_write<P: Promiser>(error: &str) {
    static LOGGED: Limited = Limited::new();
    if let Some(left_out) = LOGGED.admit() {
        let role = P::ROLE;
        tracing::warn!(
            error,
            left_out,
            "this {role}'s folder keeps no promises: the {role}s stop if their register can't be reached"
        );
    }
}
