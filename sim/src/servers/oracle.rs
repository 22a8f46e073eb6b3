//! The oracle's process: `tso::core`, and around it what `tso/src/keeper.rs` and `service.rs` do.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use percolator_protocol::oracle::{Now, Settings};
use percolator_protocol::types::Timestamp;
use percolator_server::{DurableValue, SmallFile};
use percolator_tso::core::Answer as Grants;
use percolator_tso::core::{Core, Store};
use percolator_wire::v1;

use crate::disk::SimDisk;
use crate::messages::{Answer, Ask, Caller};
use crate::rng::{Dice, Rng};
use crate::servers::{Lives, STEPS, Way, cant_read, exit, heartbeats};
use crate::watch::Seen;
use crate::world::{NodeId, World};

/// Where clients reach it.
pub const ADDRESS: &str = "tso-0:7401";
/// How long a write of the limit takes on a disk that is well.
pub const WRITE: Duration = Duration::from_millis(4);

/// The oracle: what outlives its processes.
pub struct Oracle {
    /// Its process.
    pub node: NodeId,
    /// The master's process.
    pub master: NodeId,
    /// Its folder.
    pub disk: SimDisk,
    /// Its bounds.
    pub settings: Settings,
    /// How long a write of the limit takes, about.
    pub write: Mutex<Duration>,
    /// Processes that had its folder.
    pub lives: Arc<Lives>,
    /// Incarnations, and how long the disk takes.
    pub dice: Dice,
}

struct Running {
    core: Core,
    waiting: Vec<(Caller, u32)>,
    /// A limit that is being written.
    writing: Option<Store>,
}

impl Oracle {
    /// Starts the process.
    pub fn boot(self: &Arc<Self>, world: &Arc<World>) {
        let stored = match self.limit().load() {
            Ok(stored) => stored,
            Err(error) => {
                let oracle = self.clone();
                return cant_read(world, self.node, &error, move |world| oracle.boot(world));
            }
        };
        let mut core = match Core::recover(stored.as_deref(), self.now(world), self.settings) {
            Ok(core) => core,
            Err(error) => return world.fail("the oracle starts", error.to_string()),
        };
        core.obey_master();
        let running = Arc::new(Mutex::new(Running {
            core,
            waiting: Vec::new(),
            writing: None,
        }));
        let handler = {
            let (oracle, running) = (self.clone(), running.clone());
            Arc::new(move |world: &Arc<World>, caller, ask| {
                if let Ask::Timestamps(count) = ask {
                    oracle.grant(world, &running, caller, count);
                }
            })
        };
        let at_kill = {
            let (oracle, running) = (self.clone(), running.clone());
            Box::new(move |_: &Arc<World>| {
                if let Some(store) = running.lock().writing.take() {
                    oracle.disk.die_within(STEPS);
                    // Nobody is there to hear of it.
                    let _ = oracle.limit().store(&store.value());
                }
                oracle.disk.crash();
            })
        };
        world.start(self.node, Some(handler), at_kill);
        let keeper = {
            let (oracle, world, running) = (self.clone(), world.clone(), running.clone());
            async move {
                let look = Duration::from_millis((oracle.settings.window_ms / 8).max(1));
                loop {
                    oracle.extend(&world, &running).await;
                    world.sleep_on(oracle.node, look).await;
                }
            }
        };
        world.spawn(self.node, keeper.boxed());
        self.beat(world, running);
    }

    /// Sends heartbeats, and takes in what the master answers.
    fn beat(self: &Arc<Self>, world: &Arc<World>, running: Arc<Mutex<Running>>) {
        let incarnation = self.dice.of("incarnations", Rng::next);
        let sent_ms = Arc::new(Mutex::new(0));
        let beat = {
            let (oracle, world, running) = (self.clone(), world.clone(), running.clone());
            let sent_ms = sent_ms.clone();
            move || {
                let now = oracle.now(&world);
                *sent_ms.lock() = now.mono_ms;
                let reached = running.lock().core.reached(now);
                v1::HeartbeatRequest {
                    cluster_id: String::new(),
                    role: v1::Role::Oracle.into(),
                    server: "tso-0".to_owned(),
                    address: ADDRESS.to_owned(),
                    incarnation,
                    high_ts: reached.limit.as_u64(),
                    time: reached.time.as_u64(),
                    ..v1::HeartbeatRequest::default()
                }
            }
        };
        let learn = {
            let (oracle, world) = (self.clone(), world.clone());
            move |told: &v1::HeartbeatResponse| {
                let above = Timestamp::from_u64(told.timestamps_above);
                let sent_ms = *sent_ms.lock();
                running
                    .lock()
                    .core
                    .heard(sent_ms, told.lease_ms.into(), above);
                let waiting = std::mem::take(&mut running.lock().waiting);
                for (caller, count) in waiting {
                    oracle.grant(&world, &running, caller, count);
                }
            }
        };
        let refused = {
            let (oracle, world) = (self.clone(), world.clone());
            move |why: &str| oracle.exit(&world, why)
        };
        let beats = heartbeats(
            world.clone(),
            Way {
                from: self.node,
                to: self.master,
            },
            self.lives.clone(),
            beat,
            |_| {},
            learn,
            refused,
        );
        world.spawn(self.node, beats.boxed());
    }

    fn limit(&self) -> SmallFile {
        SmallFile::on(Arc::new(self.disk.clone()), "limit")
    }

    fn now(&self, world: &Arc<World>) -> Now {
        world.clock(self.node, |clock, now_us| Now {
            unix_ms: clock.wall_us(now_us) / 1_000,
            mono_ms: clock.mono_us(now_us) / 1_000,
        })
    }

    fn grant(
        self: &Arc<Self>,
        world: &Arc<World>,
        running: &Arc<Mutex<Running>>,
        caller: Caller,
        count: u32,
    ) {
        let answer = running.lock().core.request(self.now(world), count);
        match answer {
            Ok(Grants::Granted(granted)) => {
                world.see(&Seen::Granted(granted));
                world.reply(self.node, caller, Answer::Timestamps(granted));
            }
            Ok(Grants::Wait) => {
                running.lock().waiting.push((caller, count));
                let (oracle, world2, running) = (self.clone(), world.clone(), running.clone());
                let extend = async move { oracle.extend(&world2, &running).await };
                world.spawn(self.node, extend.boxed());
            }
            Err(refused) => world.fail("the oracle answers", refused.to_string()),
        }
    }

    /// Makes a limit durable, if one is due, and answers anyone who waited for it.
    async fn extend(self: &Arc<Self>, world: &Arc<World>, running: &Arc<Mutex<Running>>) {
        let store = {
            let mut running = running.lock();
            let Some(store) = running.core.store(self.now(world)) else {
                return;
            };
            running.writing = Some(store);
            store
        };
        let takes = {
            let write = *self.write.lock();
            self.dice.of("writes", |rng| rng.about(write))
        };
        world.sleep(takes).await;
        running.lock().writing = None;
        match self.limit().store(&store.value()) {
            Ok(()) => running.lock().core.stored(self.now(world), store),
            Err(_) => {
                running.lock().core.not_stored();
                // Anyone who waits is answered with the next look.
                return;
            }
        }
        let waiting = std::mem::take(&mut running.lock().waiting);
        for (caller, count) in waiting {
            self.grant(world, running, caller, count);
        }
    }

    /// Ends the process; it is started again.
    pub fn exit(self: &Arc<Self>, world: &Arc<World>, why: &str) {
        let oracle = self.clone();
        exit(world, self.node, why, move |world| oracle.boot(world));
    }
}
