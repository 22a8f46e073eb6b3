//! One of several oracles: its part in the election, and the promises by which it goes on while the register is away. As
//! `tso/src/leadership.rs` and `promises.rs` do over a network.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select;
use percolator_protocol::election::{
    Command, CopyRequest, Leadership, OracleReplica, PromiseCall, PromiseRecord, PromiseRequest,
    PromiseRound, RoleKind, StoredLeadership, SwapResult,
};
use percolator_protocol::oracle::Now;
use percolator_protocol::types::Timestamp;
use percolator_register::{Register, SwapError};
use percolator_server::leadership;
use percolator_server::promises::{
    CopyRefusal, IntroducedStandby, Introduction, LeaderRight, Promiser,
};

use crate::messages::{Ask, Caller};
use crate::servers::oracle::{Oracle, Running};
use crate::servers::promises::PromisePlace;
use crate::servers::replica::Replicated;
use crate::world::World;

/// A process's part in the election.
pub(super) struct Part {
    pub(super) oracle: Arc<Oracle>,
    pub(super) world: Arc<World>,
    pub(super) register: Arc<dyn Register>,
    pub(super) replicated: Replicated,
    pub(super) running: Arc<Running>,
    /// The register that the folder knows; 0: none.
    pub(super) known_register: u64,
    pub(super) promises: PromisePlace,
}

impl Part {
    /// Answers other oracles. One that the master hasn't accepted answers nothing.
    pub(super) fn answer(self: &Arc<Self>, caller: Caller, ask: &Ask) {
        if !self.running.state.lock().is_accepted {
            return;
        }
        match ask {
            Ask::Promise(request) => self.promises.promise(self, caller, request),
            Ask::Introduce(standby) => self.promises.introduced(&**self, caller, standby),
            _ => {}
        }
    }

    /// Takes part in the election until the process is told to end; then it hands over, and ends.
    pub(super) async fn run(self: Arc<Self>, incarnation: u64) {
        {
            let taking_part = pin!(self.take_part(incarnation));
            let stop = pin!(self.running.stop.notified());
            // The command under way is dropped.
            select(taking_part, stop).await;
        }
        self.replica(|replica, now| {
            replica.hand_over();
            replica.abandon(now);
        });
        let (world, node) = (&self.world, self.oracle.node);
        let left = async {
            while self.replica(|replica, _| replica.role()) != Some(RoleKind::Left) {
                leadership::drive(&*self.register, &*self).await;
                self.oracle.answer_waiting(world, &self.running);
                world.sleep_on(node, self.replicated.poll()).await;
            }
        };
        let given_up = world.sleep_on(node, self.replicated.hand_over_max());
        select(pin!(left), given_up).await;
        self.oracle.answer_waiting(world, &self.running);
        let down = self.running.state.lock().down;
        self.oracle.end(world, down);
    }

    /// Never ends.
    async fn take_part(self: &Arc<Self>, incarnation: u64) {
        let (world, node) = (&self.world, self.oracle.node);
        let poll = self.replicated.poll();
        let register_id = self.begin(incarnation).await;
        self.running.state.lock().register_id = register_id;
        self.oracle.beat(world, self.running.clone(), incarnation);
        // A process of another cluster grants nothing.
        while !self.running.state.lock().is_accepted {
            world.sleep_on(node, poll).await;
        }
        let electing = async {
            loop {
                leadership::drive(&*self.register, &**self).await;
                self.oracle.answer_waiting(world, &self.running);
                self.oracle.look_at_others(world);
                let exhausted = pin!(self.running.exhausted.notified());
                select(world.sleep_on(node, poll), exhausted).await;
            }
        };
        select(pin!(electing), pin!(self.promises.run(self))).await;
    }

    /// Which register it is. One without a value gets its first one.
    async fn begin(&self, incarnation: u64) -> u64 {
        // The leader may need this one's promises while the register is away.
        if self.known_register != 0 {
            return self.known_register;
        }
        loop {
            match self.register.load().await {
                Ok(Some(found)) => match Leadership::decode(&found.value) {
                    Ok(value) => return value.register,
                    Err(error) => self.world.fail("the oracle starts", error.to_string()),
                },
                Ok(None) => {
                    let first = Leadership::first(incarnation, Timestamp::ZERO);
                    // Another oracle may be first: a load shows whose value it is.
                    let _ = self.register.swap(None, first.encode()).await;
                    continue;
                }
                Err(_) => {}
            }
            let pause = Duration::from_millis(self.replicated.timing.retry_ms);
            self.world.sleep_on(self.oracle.node, pause).await;
        }
    }

    fn replica<T>(&self, act: impl FnOnce(&mut OracleReplica, Now) -> T) -> Option<T> {
        let now = self.oracle.now(&self.world);
        let mut state = self.running.state.lock();
        state.last_clock = now;
        state.granting.replica().map(|replica| act(replica, now))
    }
}

impl leadership::Replica for Part {
    fn poll(&self) -> Option<Command> {
        self.replica(|replica, now| replica.poll(now)).flatten()
    }

    fn loaded(&self, result: Result<Option<StoredLeadership>, String>) {
        self.replica(|replica, now| replica.loaded(now, result.map_err(drop)));
        self.oracle.answer_waiting(&self.world, &self.running);
    }

    fn swapped(&self, result: SwapResult, _: Option<&SwapError>, _: Duration) {
        self.replica(|replica, now| replica.swapped(now, result));
        self.follow_term();
        self.oracle.answer_waiting(&self.world, &self.running);
    }
}

impl Part {
    /// Whether a term has begun: the others are to promise, and the folder is to keep it.
    fn follow_term(&self) {
        let mut state = self.running.state.lock();
        let leads = state.granting.replica().and_then(|replica| {
            let leads = replica.role() == RoleKind::Leader;
            leads.then(|| replica.term())
        });
        if leads.is_some() && leads != state.begun_term {
            self.running.begun.notify_one();
        }
        state.begun_term = leads;
    }
}

impl Promiser for Part {
    const ROLE: &'static str = "oracle";
    /// A limit is part of a promise.
    const COPY_BYTES_MAX: usize = 0;

    fn record(&self) -> Option<PromiseRecord> {
        self.replica(|replica, _| replica.record())
    }

    fn ask_promises(&self) -> Option<PromiseRound> {
        self.replica(|replica, now| replica.ask_promises(now))
            .flatten()
    }

    fn kept(&self, record: &PromiseRecord) {
        self.replica(|replica, now| replica.kept(now, record));
        self.oracle.answer_waiting(&self.world, &self.running);
    }

    fn promised(&self, call: &PromiseCall) {
        self.replica(|replica, now| replica.promised(now, call));
        self.oracle.answer_waiting(&self.world, &self.running);
    }

    fn promise(&self, request: &PromiseRequest) -> Option<PromiseRecord> {
        self.replica(|replica, now| replica.promise(now, request))
            .flatten()
    }

    fn introduction(&self) -> Option<Introduction> {
        let introduction = self.replica(|replica, _| {
            Some(Introduction {
                leader: replica.introduces_to()?.to_owned(),
                standby: IntroducedStandby::new(replica.register()?, replica.member()),
            })
        });
        introduction.flatten()
    }

    fn introduced(&self, standby: &IntroducedStandby) {
        self.replica(|replica, now| {
            if replica.register() == Some(standby.register) {
                replica.introduced(now, &standby.peer);
            }
        });
    }

    fn right(&self) -> LeaderRight {
        let right = self.replica(|replica, now| LeaderRight {
            leads: replica.leads(now),
            is_by_promises: replica.leads_by_promises(now),
        });
        right.unwrap_or_default()
    }

    async fn term_begun(&self) {
        self.running.begun.notified().await;
    }

    fn count_promise(&self, _: &'static str) {}

    async fn keep_copy(&self, _: &CopyRequest, _: Vec<u8>) -> Result<(), CopyRefusal> {
        Err(CopyRefusal::Refused)
    }
}
