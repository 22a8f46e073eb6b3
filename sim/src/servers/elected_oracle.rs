//! One of several oracles: the process around `tso`'s part in the election. As `tso/src/leadership.rs` has it over a network.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{FutureExt as _, select};
use percolator_protocol::election::{Leadership, OracleReplica};
use percolator_protocol::oracle::Now;
use percolator_protocol::types::Timestamp;
use percolator_register::Register;
use percolator_server::leadership::beside;
use percolator_server::promises::take_leave;
use percolator_tso::{Elected, Host};

use crate::messages::{Ask, Caller};
use crate::servers::oracle::{Oracle, Running};
use crate::servers::promises::PromisePlace;
use crate::servers::replica::Replicated;
use crate::world::World;

/// A process of an oracle.
pub(super) struct OracleHost {
    pub(super) oracle: Arc<Oracle>,
    pub(super) world: Arc<World>,
    pub(super) running: Arc<Running>,
}

impl Host for OracleHost {
    fn replica<T>(&self, act: impl FnOnce(&mut OracleReplica, Now) -> T) -> Option<T> {
        let now = self.oracle.now(&self.world);
        let mut state = self.running.state.lock();
        state.last_clock = now;
        state.granting.replica().map(|replica| act(replica, now))
    }

    fn recheck_waiting(&self) {
        self.oracle.answer_waiting(&self.world, &self.running);
    }

    async fn sleep(&self, duration: Duration) {
        self.world.sleep_on(self.oracle.node, duration).await;
    }

    async fn exhausted(&self) {
        self.running.exhausted.notified().await;
    }

    fn driven(&self) {
        self.oracle.look_at_others(&self.world);
    }
}

/// Its part in the election.
pub(super) struct Part {
    elected: Arc<Elected<OracleHost>>,
    replicated: Replicated,
    /// The register that the folder knows; 0: none.
    known_register: u64,
    pub(super) promises: PromisePlace,
}

impl Part {
    pub(super) fn new(
        host: OracleHost,
        register: Arc<dyn Register>,
        replicated: &Replicated,
        (promises, known_register): (PromisePlace, u64),
    ) -> Self {
        let (host, timing) = (Arc::new(host), replicated.timing);
        Self {
            elected: Arc::new(Elected::new(host, register, timing)),
            replicated: replicated.clone(),
            known_register,
            promises,
        }
    }

    /// Answers other oracles. One that the master hasn't accepted answers nothing.
    pub(super) fn answer(self: &Arc<Self>, caller: Caller, ask: &Ask) {
        if !self.elected.host().running.state.lock().is_accepted {
            return;
        }
        self.promises.answer(&self.elected, caller, ask);
    }

    /// Takes part in the election until the process is asked to end; then it hands over, and ends.
    pub(super) async fn run(self: Arc<Self>, incarnation: u64) {
        {
            let mut part = pin!(self.take_part(incarnation).fuse());
            let stop = pin!(self.elected.host().running.stop.notified());
            select(&mut part, stop).await;
            beside(part, self.elected.hand_over()).await;
        }
        let OracleHost {
            oracle,
            world,
            running,
        } = &**self.elected.host();
        oracle.answer_waiting(world, running);
        take_leave(&self.elected, &self.promises).await;
        let down = running.state.lock().down;
        oracle.end(world, down);
    }

    /// Never ends.
    async fn take_part(self: &Arc<Self>, incarnation: u64) {
        let OracleHost {
            oracle,
            world,
            running,
        } = &**self.elected.host();
        let register_id = self.begin(incarnation).await;
        running.state.lock().register_id = register_id;
        oracle.beat(world, running.clone(), incarnation);
        // A process of another cluster grants nothing.
        while !running.state.lock().is_accepted {
            let poll = self.replicated.poll();
            world.sleep_on(oracle.node, poll).await;
        }
        let promising = pin!(self.promises.run(&self.elected));
        select(pin!(self.elected.run()), promising).await;
    }

    /// Which register it is. One without a value gets its first one.
    async fn begin(&self, incarnation: u64) -> u64 {
        // The leader may need this one's promises while the register is away.
        if self.known_register != 0 {
            return self.known_register;
        }
        let (host, register) = (self.elected.host(), self.elected.register());
        loop {
            match register.load().await {
                Ok(Some(found)) => match Leadership::decode(&found.value) {
                    Ok(value) => return value.register,
                    Err(error) => host.world.fail("the oracle starts", error.to_string()),
                },
                Ok(None) => {
                    let first = Leadership::first(incarnation, Timestamp::ZERO);
                    // Another oracle may be first: a load shows whose value it is.
                    let _ = register.swap(None, first.encode()).await;
                    continue;
                }
                Err(_) => {}
            }
            let pause = Duration::from_millis(self.replicated.timing.retry_ms);
            host.world.sleep_on(host.oracle.node, pause).await;
        }
    }
}
