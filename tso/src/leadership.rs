//! Runs one of several oracles over their register: carries out its commands, one at a time.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use percolator_protocol::election::{
    Command, Member, NamedLeader, RoleKind, StoredLeadership, SwapResult,
};
use percolator_register::{Register, SwapError};
use percolator_server::leadership::RegisterOutage;
use percolator_server::{Folder, SmallFile, leadership};

use crate::Error;
use crate::register;
use crate::service::{Shared, Successor};

/// A hand-over is given up after so long; a standby takes over without one.
const HAND_OVER_MAX: Duration = Duration::from_secs(2);

/// A successor is waited for so long where none has promised anything: there may be none.
const UNPROMISED_MAX: Duration = Duration::from_secs(1);
/// An oracle that hands over looks so often who has taken over.
const SUCCESSOR_POLL: Duration = Duration::from_millis(20);

/// Carries out what [`OracleReplica`](percolator_protocol::election::OracleReplica) commands.
pub(crate) struct LeadershipTask {
    shared: Arc<Shared>,
    register: Arc<dyn Register>,
    /// Of this start of the oracle.
    incarnation: u64,
    poll: Duration,
    outage: RegisterOutage,
    /// If the register could not be read at the start.
    begins: Option<LateBeginning>,
}

/// What is still to be done before an oracle may take part in the election of a register that it knows from its folder. It
/// promises already.
pub(crate) struct LateBeginning {
    pub(crate) file: SmallFile,
    pub(crate) folder: Arc<Folder>,
    pub(crate) incarnation: u64,
    /// The register that it knows.
    pub(crate) register_id: u64,
}

impl fmt::Debug for LeadershipTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeadershipTask")
            .field("register", &self.register)
            .finish_non_exhaustive()
    }
}

/// What of a replica is logged when it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LoggedState {
    role: RoleKind,
    term: u64,
    leader: Option<Member>,
    blocked: Option<String>,
}

impl LeadershipTask {
    pub(crate) fn new(
        shared: Arc<Shared>,
        register: Arc<dyn Register>,
        incarnation: u64,
        poll: Duration,
        begins: Option<LateBeginning>,
    ) -> Self {
        // It is not alone, and may have to wait long before it takes part.
        shared.metrics.leadership.show(RoleKind::Standby, 0, false);
        Self {
            shared,
            register,
            incarnation,
            poll,
            outage: RegisterOutage::default(),
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
        let mut logged = None;
        loop {
            self.drive(&mut logged).await;
            tokio::select! {
                () = tokio::time::sleep(self.poll) => {}
                () = self.shared.exhausted() => {}
            }
        }
    }

    async fn begin(&self, begins: &LateBeginning) -> Result<(), Error> {
        let LateBeginning {
            file,
            folder,
            incarnation,
            register_id,
        } = begins;
        let begun =
            register::begin(&*self.register, file, folder, *incarnation, *register_id).await?;
        if begun.id != *register_id {
            return Err(Error::OtherRegister);
        }
        self.shared.replica(|replica, _| replica.raise(begun.limit));
        Ok(())
    }

    /// Stops granting, and stores that this oracle leads no more, so that another one takes over at once. Requests wait until
    /// that one is known, and are sent there: their clients may know no other way to it. Ends then, or after
    /// [`HAND_OVER_MAX`] for each of the two.
    pub(crate) async fn hand_over(&self) {
        let role = self.shared.replica(|replica, _| replica.role());
        let led = role == Some(RoleKind::Leader);
        // One that has begun lately may not have promised yet.
        let wait = if self.shared.right().is_promised {
            HAND_OVER_MAX
        } else {
            UNPROMISED_MAX
        };
        if led {
            // Before it grants nothing more.
            self.shared.succeeded_by(Successor::Awaited);
        }
        self.shared.replica(|replica, now| {
            replica.hand_over();
            replica.abandon(now);
        });
        self.shared.look_again();
        let left = async {
            let mut logged = None;
            loop {
                self.drive(&mut logged).await;
                let role = self.shared.replica(|replica, _| replica.role());
                if role.is_none_or(|role| role == RoleKind::Left) {
                    return;
                }
                tokio::time::sleep(self.poll).await;
            }
        };
        if tokio::time::timeout(HAND_OVER_MAX, left).await.is_err() {
            tracing::warn!(
                "the hand-over is not durable: another oracle takes over in some seconds"
            );
        } else if led {
            let successor = tokio::time::timeout(wait, self.successor()).await;
            let successor = successor.map_or(Successor::None, Successor::Known);
            return self.shared.succeeded_by(successor);
        }
        self.shared.succeeded_by(Successor::None);
    }

    /// The oracle that takes over.
    async fn successor(&self) -> NamedLeader {
        loop {
            let found = leadership::load(&*self.register).await;
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

    /// Carries out all commands that are due.
    async fn drive(&self, logged: &mut Option<LoggedState>) {
        leadership::drive(&*self.register, self).await;
        let state = self.shared.replica(|replica, now| {
            let state = LoggedState {
                role: replica.role(),
                term: replica.term(),
                leader: replica.leader().cloned(),
                blocked: replica.blocked().map(|error| error.to_string()),
            };
            (state, replica.leads(now))
        });
        let Some((state, leads)) = state else { return };
        let metrics = &self.shared.metrics.leadership;
        metrics.show(state.role, state.term, leads);
        if !leads {
            // Whoever leads writes limits. An attempt that failed before, because this process stood still, say, is over.
            self.shared.metrics.limits_fail(false);
            // A request must not wait for an oracle whose right has ended.
            self.shared.look_again();
        }
        if logged.as_ref() != Some(&state) {
            if state.role == RoleKind::Leader {
                self.shared.term_begins();
            }
            log(&state);
            *logged = Some(state);
        }
    }
}

impl leadership::Replica for LeadershipTask {
    fn poll(&self) -> Option<Command> {
        self.shared
            .replica(|replica, now| replica.poll(now))
            .flatten()
    }

    fn loaded(&self, result: Result<Option<StoredLeadership>, String>) {
        self.outage.loaded("oracles", &result);
        let result = result.map_err(drop);
        let found = result.as_ref().ok().and_then(Option::as_ref);
        let metrics = &self.shared.metrics.leadership;
        metrics.loaded(found, self.incarnation);
        self.shared
            .replica(|replica, now| replica.loaded(now, result));
        self.shared.look_again();
    }

    fn swapped(&self, result: SwapResult, cause: Option<&SwapError>, took: Duration) {
        self.shared.metrics.limit_written(cause.is_none(), took);
        if let Some(error) = cause {
            tracing::debug!(%error, "a swap of the oracles' register");
            // Then limits are durable in the folders of all oracles.
            let fails = !self.shared.right().is_promised;
            self.shared.metrics.limits_fail(fails);
        }
        self.shared
            .replica(|replica, now| replica.swapped(now, result));
        self.shared.look_again();
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
