//! One of several oracles as a process over a network: how its part in the election begins and ends, and what it shows of it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use percolator_protocol::election::{
    Member, NamedLeader, OracleReplica, RoleKind, StoredLeadership,
};
use percolator_protocol::oracle::Now;
use percolator_register::SwapError;
use percolator_server::promises::PromiseTask;
use percolator_server::{Folder, SmallFile, leadership};

use crate::Error;
use crate::elected::{Elected, Host};
use crate::register;
use crate::service::{Shared, Successor};

/// A successor is waited for so long where none has promised anything: there may be none.
const UNPROMISED_MAX: Duration = Duration::from_secs(1);
/// How often an oracle that hands over checks which one has taken over.
const SUCCESSOR_POLL: Duration = Duration::from_millis(20);

/// One of several oracles, over a network.
pub(crate) type Replica = Elected<Shared>;

/// Its part in the election, from the start of the process to its end.
#[derive(Debug)]
pub(crate) struct LeadershipTask {
    elected: Arc<Replica>,
    /// Of this start of the oracle.
    incarnation: u64,
    /// If the register could not be read at the start.
    begins: Option<LateBeginning>,
}

/// What is still to be done before an oracle may take part in the election of a register that it knows from its folder. It
/// promises already.
#[derive(Debug)]
pub(crate) struct LateBeginning {
    pub(crate) file: SmallFile,
    pub(crate) folder: Arc<Folder>,
    pub(crate) incarnation: u64,
    /// The register that it knows.
    pub(crate) register_id: u64,
}

/// What of a replica is logged when it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoggedState {
    role: RoleKind,
    term: u64,
    leader: Option<Member>,
    blocked: Option<String>,
}

impl LeadershipTask {
    pub(crate) fn new(
        elected: Arc<Replica>,
        incarnation: u64,
        begins: Option<LateBeginning>,
    ) -> Self {
        // It is not alone, and may have to wait long before it takes part.
        let metrics = &elected.host().metrics;
        metrics.leadership.show(RoleKind::Standby, 0, false);
        Self {
            elected,
            incarnation,
            begins,
        }
    }

    /// Takes part in the election; never ends otherwise.
    ///
    /// # Errors
    /// The register could not be read at the start, and is not the one that it was.
    pub(crate) async fn run(&self) -> Result<Infallible, Error> {
        if let Some(begins) = &self.begins {
            self.begin(begins).await?;
        }
        Ok(self.elected.run().await)
    }

    async fn begin(&self, begins: &LateBeginning) -> Result<(), Error> {
        let LateBeginning {
            file,
            folder,
            incarnation,
            register_id,
        } = begins;
        let begun = register::begin(
            &**self.elected.register(),
            file,
            folder,
            *incarnation,
            *register_id,
        )
        .await?;
        if begun.id != *register_id {
            return Err(Error::OtherRegister);
        }
        let shared = self.elected.host();
        shared.replica(|replica, _| replica.raise(begun.limit));
        Ok(())
    }

    /// Lets another oracle take over. Requests wait until that one is known, and are sent there: their clients may know no other
    /// way to it. Ends then, or when the hand-over is given up.
    pub(crate) async fn hand_over(&self, promises: &PromiseTask<Replica>) {
        let shared = self.elected.host();
        let role = shared.replica(|replica, _| replica.role());
        let led = role == Some(RoleKind::Leader);
        // One that has begun lately may not have promised yet.
        let wait = if shared.right().is_promised {
            self.elected.hand_over_max()
        } else {
            UNPROMISED_MAX
        };
        if led {
            // Before it grants nothing more.
            shared.succeeded_by(Successor::Awaited);
        }
        if !self.elected.hand_over().await {
            tracing::warn!(
                "the hand-over is not durable: another oracle takes over in some seconds"
            );
        } else if led {
            let successor = tokio::time::timeout(wait, self.successor());
            // One that is away isn't waited for.
            let taking_leave = promises.take_leave().fuse();
            let successor = leadership::beside(taking_leave, successor).await;
            let successor = successor.map_or(Successor::None, Successor::Known);
            return shared.succeeded_by(successor);
        }
        shared.succeeded_by(Successor::None);
    }

    /// The oracle that takes over.
    async fn successor(&self) -> NamedLeader {
        loop {
            let found = leadership::load(&**self.elected.register()).await;
            let holder = found.ok().flatten().and_then(|found| found.value.holder);
            if let Some(holder) = holder.filter(|it| it.incarnation != self.incarnation) {
                return NamedLeader {
                    address: holder.address,
                    silent_ms: 0,
                };
            }
            tokio::time::sleep(SUCCESSOR_POLL).await;
        }
    }
}

impl Host for Shared {
    fn replica<T>(&self, act: impl FnOnce(&mut OracleReplica, Now) -> T) -> Option<T> {
        Self::replica(self, act)
    }

    fn recheck_waiting(&self) {
        Self::recheck_waiting(self);
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    async fn exhausted(&self) {
        Self::exhausted(self).await;
    }

    fn driven(&self) {
        let state = self.replica(|replica, now| {
            let state = LoggedState {
                role: replica.role(),
                term: replica.term(),
                leader: replica.leader().cloned(),
                blocked: replica.blocked().map(|error| error.to_string()),
            };
            (state, replica.leads(now))
        });
        let Some((state, leads)) = state else { return };
        let metrics = &self.metrics.leadership;
        metrics.show(state.role, state.term, leads);
        if !leads {
            // Whoever leads writes limits. An attempt that failed before, because this process stood still, say, is over.
            self.metrics.limits_fail(false);
        }
        self.log_once(state, log);
    }

    fn loaded(&self, result: &Result<Option<StoredLeadership>, String>) {
        self.outage.loaded("oracles", result);
        let found = result.as_ref().ok().and_then(Option::as_ref);
        let own = self.replica(|replica, _| replica.member().incarnation);
        self.metrics.leadership.loaded(found, own.unwrap_or(0));
    }

    fn swapped(&self, cause: Option<&SwapError>, took: Duration) {
        self.metrics.limit_written(cause.is_none(), took);
        if cause.is_some() {
            // Then limits are durable in the folders of all oracles.
            let fails = !self.right().is_promised;
            self.metrics.limits_fail(fails);
        }
    }

    fn count_promise(&self, result: &'static str) {
        self.metrics.promise(result);
    }
}

fn log(state: &LoggedState) {
    let LoggedState {
        role,
        term,
        leader,
        blocked,
    } = state;
    match (role, blocked) {
        (RoleKind::Leader, _) => tracing::info!(term, "this oracle leads"),
        (_, Some(error)) => tracing::error!(error, "this oracle should take over, and can't"),
        (RoleKind::Standby, None) => {
            let leader = leader.as_ref().map(|leader| leader.address.as_str());
            tracing::info!(term, leader, "this oracle is a standby");
        }
        (RoleKind::Candidate | RoleKind::HandingOver | RoleKind::Left, None) => {}
    }
}
