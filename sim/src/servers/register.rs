//! The registers of several oracles and masters: values with versions in one store behind the network, as an API server has
//! them. The store loses nothing; requests and answers are lost, late or doubled by the network, and by its own faults.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use percolator_gc_master::StoredState;
use percolator_protocol::election::Leadership;
use percolator_register::{
    BoxFuture, LoadError, Register, RegisterVersion, SwapError, VersionedValue, WriteId,
};

use crate::messages::{Answer, Ask, Caller};
use crate::rng::{Dice, Rng};
use crate::world::{NodeId, World};

/// The register of the oracles.
pub const ORACLES: &str = "oracles";
/// The register that says which master leads.
pub const MASTERS: &str = "masters";
/// The register of the master's state.
pub const STATE: &str = "master-state";

/// What a replica asks of a register.
#[derive(Clone, Debug)]
pub enum RegisterRequest {
    /// Its value.
    Load,
    /// Another value, if it has the expected version.
    Swap {
        /// The version.
        expected: Option<u64>,
        /// The new value.
        value: Vec<u8>,
        /// The swap's name.
        write: WriteId,
    },
}

/// What a register answers.
#[derive(Clone, Debug)]
pub enum RegisterAnswer {
    /// It holds this.
    Loaded(Option<VersionedValue>),
    /// The value was replaced, and has this version.
    Swapped(RegisterVersion),
    /// It has another version.
    Conflict(Option<RegisterVersion>),
    /// It did nothing, and will do nothing.
    Unavailable,
}

/// The store of all registers.
pub struct RegisterStore {
    /// Its process.
    pub node: NodeId,
    /// How long requests are late, and which are refused.
    pub dice: Dice,
    /// How slow it is.
    pub slow: Mutex<Slowness>,
    /// Requests that are refused, of a million.
    pub refused_ppm: Mutex<u32>,
    values: Mutex<Values>,
}

/// How late a store carries out and answers, about.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slowness {
    /// Before it carries out.
    pub before: Duration,
    /// Between that and its answer.
    pub after: Duration,
    /// Of this process's requests; none: of all.
    pub only: Option<NodeId>,
}

#[derive(Default)]
struct Values {
    /// Of the whole store, so that it never goes back.
    version: u64,
    stored: BTreeMap<&'static str, VersionedValue>,
    /// Requests that came before: the second copy of one does nothing.
    seen: BTreeSet<u64>,
    /// Terms of oracles and masters that have begun.
    takeovers: u64,
    /// Terms of masters that have begun with a copy in a folder.
    from_copies: u64,
}

impl RegisterStore {
    /// An empty store.
    pub fn new(node: NodeId, dice: Dice) -> Self {
        Self {
            node,
            dice,
            slow: Mutex::default(),
            refused_ppm: Mutex::default(),
            values: Mutex::default(),
        }
    }

    /// Starts the process. What it holds outlives it.
    pub fn boot(self: &Arc<Self>, world: &Arc<World>) {
        let store = self.clone();
        let handler = Arc::new(move |world: &Arc<World>, caller, ask| {
            if let Ask::Register { register, request } = ask {
                store.handle(world, caller, register, request);
            }
        });
        world.start(self.node, Some(handler), Box::new(|_| {}));
    }

    /// Starts the process, unless it runs.
    pub fn boot_again(self: &Arc<Self>, world: &Arc<World>) {
        if !world.is_up(self.node) {
            self.boot(world);
        }
    }

    /// It is neither slow nor refuses.
    pub fn mend(&self) {
        *self.slow.lock() = Slowness::default();
        *self.refused_ppm.lock() = 0;
    }

    /// How many terms of oracles and masters have begun.
    pub fn takeovers(&self) -> u64 {
        self.values.lock().takeovers
    }

    /// How many terms of masters have begun with a copy in a folder, because the register's state was older.
    pub fn from_copies(&self) -> u64 {
        self.values.lock().from_copies
    }

    /// Such a term begins.
    pub(super) fn begun_from_copy(&self) {
        self.values.lock().from_copies += 1;
    }

    /// All values are gone, as when their objects are deleted.
    pub fn clear(&self) {
        let mut values = self.values.lock();
        values.stored.clear();
        values.version += 1;
    }

    /// Somebody changes the object around the value, as by a label: its version grows.
    pub fn touch(&self, register: &str) {
        let mut values = self.values.lock();
        values.version += 1;
        let version = RegisterVersion(values.version);
        if let Some(stored) = values.stored.get_mut(register) {
            stored.version = version;
        }
    }

    /// The master's state, and which one it is.
    pub fn state(&self) -> Option<StoredState> {
        let values = self.values.lock();
        StoredState::decode(values.stored.get(STATE)?.value.clone())
    }

    fn handle(
        self: &Arc<Self>,
        world: &Arc<World>,
        caller: Caller,
        register: &'static str,
        request: RegisterRequest,
    ) {
        if !self.values.lock().seen.insert(caller.call) {
            return;
        }
        let (slow, ppm) = (*self.slow.lock(), *self.refused_ppm.lock());
        if self.dice.of("refusals", |rng| rng.chance(ppm)) {
            world.reply(
                self.node,
                caller,
                Answer::Register(RegisterAnswer::Unavailable),
            );
            return;
        }
        let late = |name, by| match by {
            Duration::ZERO => Duration::ZERO,
            by => self.dice.of(name, |rng| rng.about(by)),
        };
        let (before, after) = (late("before", slow.before), late("after", slow.after));
        if before + after == Duration::ZERO || slow.only.is_some_and(|only| only != caller.node) {
            let answer = self.values.lock().carry_out(register, request);
            world.reply(self.node, caller, Answer::Register(answer));
            return;
        }
        let (store, world2) = (self.clone(), world.clone());
        let answering = async move {
            world2.sleep(before).await;
            let answer = store.values.lock().carry_out(register, request);
            world2.sleep(after).await;
            world2.reply(store.node, caller, Answer::Register(answer));
        };
        world.spawn(self.node, answering.boxed());
    }
}

impl Values {
    fn carry_out(&mut self, register: &'static str, request: RegisterRequest) -> RegisterAnswer {
        let stored = self.stored.get(register);
        let version = stored.map(|stored| stored.version);
        match request {
            RegisterRequest::Load => RegisterAnswer::Loaded(stored.cloned()),
            RegisterRequest::Swap { expected, .. } if expected.map(RegisterVersion) != version => {
                RegisterAnswer::Conflict(version)
            }
            RegisterRequest::Swap { value, write, .. } => {
                let term = |value: &[u8]| Leadership::decode(value).map_or(0, |value| value.term);
                let before = stored.map_or(0, |stored| term(&stored.value));
                if register != STATE && term(&value) > before {
                    self.takeovers += 1;
                }
                self.version += 1;
                let version = RegisterVersion(self.version);
                let stored = VersionedValue {
                    value,
                    version,
                    write,
                };
                self.stored.insert(register, stored);
                RegisterAnswer::Swapped(version)
            }
        }
    }
}

/// One process's way to a register.
pub struct SimRegister {
    world: Arc<World>,
    from: NodeId,
    store: NodeId,
    name: &'static str,
    /// An answer comes within this, or is lost.
    timeout: Duration,
    names: Mutex<Rng>,
}

impl fmt::Debug for SimRegister {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimRegister")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl SimRegister {
    /// From this process; `names`: those of its swaps.
    pub fn new(
        world: &Arc<World>,
        from: NodeId,
        store: NodeId,
        name: &'static str,
        timeout: Duration,
        names: Rng,
    ) -> Self {
        Self {
            world: world.clone(),
            from,
            store,
            name,
            timeout,
            names: Mutex::new(names),
        }
    }

    async fn ask(&self, request: RegisterRequest) -> Result<RegisterAnswer, String> {
        let ask = Ask::Register {
            register: self.name,
            request,
        };
        match self
            .world
            .call(self.from, self.store, ask, self.timeout)
            .await
        {
            Ok(Answer::Register(answer)) => Ok(answer),
            Ok(_) => Err("another question was answered".to_owned()),
            Err(lost) => Err(lost.why),
        }
    }
}

impl Register for SimRegister {
    fn load(&self) -> BoxFuture<'_, Result<Option<VersionedValue>, LoadError>> {
        async move {
            let register = self.name.to_owned();
            match self.ask(RegisterRequest::Load).await {
                Ok(RegisterAnswer::Loaded(found)) => Ok(found),
                Ok(_) => Err("it refuses for now".to_owned()),
                Err(reason) => Err(reason),
            }
            .map_err(|reason| LoadError::Unavailable { register, reason })
        }
        .boxed()
    }

    fn swap(
        &self,
        expected: Option<RegisterVersion>,
        value: Vec<u8>,
    ) -> BoxFuture<'_, Result<RegisterVersion, SwapError>> {
        async move {
            let register = self.name.to_owned();
            let write = {
                let mut names = self.names.lock();
                let name = u128::from(names.next()) << 64 | u128::from(names.next());
                WriteId(name.to_le_bytes())
            };
            let request = RegisterRequest::Swap {
                expected: expected.map(|version| version.0),
                value,
                write,
            };
            match self.ask(request).await {
                Ok(RegisterAnswer::Swapped(version)) => Ok(version),
                Ok(RegisterAnswer::Conflict(found)) => Err(SwapError::Conflict {
                    register,
                    expected,
                    found,
                }),
                Ok(RegisterAnswer::Unavailable | RegisterAnswer::Loaded(_)) => {
                    let reason = "it refuses for now".to_owned();
                    Err(SwapError::Unavailable { register, reason })
                }
                Err(reason) => Err(SwapError::Unknown {
                    register,
                    write,
                    reason,
                }),
            }
        }
        .boxed()
    }
}
