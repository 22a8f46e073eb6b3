//! The world of a run: its time, its tasks and its processes. One thread, one queue; whatever could
//! differ from run to run comes from the seed.
//!
//! It knows nothing of servers and transactions. A process is a name, clocks, a handler of messages, and
//! tasks that end with it.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use foldhash::fast::FixedState;
use parking_lot::Mutex;
use percolator_client::Timestamp;
use percolator_client::transport::BoxFuture;

use crate::clock::Clock;
use crate::messages::{Ask, Caller};
use crate::network::Network;
use crate::plan::{Fault, Plan};
use crate::rng::Rng;
use crate::seen::Seen;
use crate::stale::HeldBack;
use crate::trace::Trace;
use crate::watch::Watch;

/// A process, by number.
pub type NodeId = usize;
/// What handles a process' messages.
pub type Handler = Arc<dyn Fn(&Arc<World>, Caller, Ask) + Send + Sync>;
/// Something to do in the world.
pub type Act = Box<dyn FnOnce(&Arc<World>) + Send>;

/// When something is to happen, in microseconds, and which of what happens then.
pub type TimerKey = (u64, u64);

/// The world outside: its tasks are no process'.
pub const NOBODY: NodeId = 0;

/// So many steps of tasks happen at one time at most. More are a loop that waits for nothing.
const STEPS_AT_ONCE: u32 = 200_000;

/// Why a run has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The invariant that was broken.
    pub invariant: String,
    /// What was seen.
    pub detail: String,
}

/// The world; shared by everything in it.
pub struct World {
    inner: Mutex<Inner>,
    ready: Arc<Ready>,
    pub(crate) network: Mutex<Network>,
    pub(crate) watch: Mutex<Watch>,
    /// What clients may get as a commit_ts.
    pub(crate) held_back: Mutex<HeldBack>,
    /// The registers are or were away on purpose, after the faults: what a master answers meanwhile waits for copies of its state.
    pub(crate) has_outage: AtomicBool,
    /// Transactions of which something was sent that commits them.
    pub(crate) commits_sent: Mutex<BTreeSet<Timestamp>>,
    /// The one invariant that counts.
    only: Option<&'static str>,
    /// Somebody wants it to end.
    cut: Arc<AtomicBool>,
}

struct Inner {
    now_us: u64,
    order: u64,
    timers: BTreeMap<TimerKey, Timer>,
    tasks: HashMap<u64, Task, FixedState>,
    next_task: u64,
    nodes: Vec<Node>,
    schedule: Rng,
    trace: Trace,
    failure: Option<Failure>,
}

enum Timer {
    Wake(Waker),
    Act(Act),
}

struct Task {
    node: NodeId,
    /// Away while it runs.
    future: Option<BoxFuture<'static, ()>>,
    waker: Waker,
}

/// A process.
struct Node {
    name: Arc<str>,
    up: bool,
    /// How often it was started.
    life: u64,
    paused: bool,
    /// What happened while it was paused.
    kept: Vec<Kept>,
    handler: Option<Handler>,
    at_kill: Option<Act>,
    clock: Clock,
}

enum Kept {
    Task(u64),
    Message(Caller, Box<Ask>),
}

#[derive(Default)]
struct Ready(Mutex<VecDeque<u64>>);

struct TaskWaker {
    task: u64,
    ready: Arc<Ready>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut ready = self.ready.0.lock();
        if !ready.contains(&self.task) {
            ready.push_back(self.task);
        }
    }
}

impl World {
    /// An empty world.
    pub fn new(plan: &Plan, network: Network, trace: Trace, cut: Arc<AtomicBool>) -> Arc<Self> {
        let world = Arc::new(Self {
            inner: Mutex::new(Inner {
                now_us: 0,
                order: 0,
                timers: BTreeMap::new(),
                tasks: HashMap::default(),
                next_task: 0,
                nodes: Vec::new(),
                schedule: Rng::new(plan.seed, "schedule"),
                trace,
                failure: None,
            }),
            ready: Arc::default(),
            network: Mutex::new(network),
            watch: Mutex::new(Watch::new(plan.only)),
            has_outage: AtomicBool::new(false),
            commits_sent: Mutex::default(),
            held_back: Mutex::new(HeldBack::new(plan.seed, plan.has(Fault::StaleCommitTs))),
            only: plan.only,
            cut,
        });
        world.see(&Seen::RetentionAsked(plan.retention));
        let nobody = world.add_node("world");
        debug_assert_eq!(nobody, NOBODY);
        world.inner.lock().nodes[NOBODY].up = true;
        world
    }

    /// The time since the run began.
    pub fn now(&self) -> Duration {
        Duration::from_micros(self.inner.lock().now_us)
    }

    pub(crate) fn now_us(&self) -> u64 {
        self.inner.lock().now_us
    }

    /// Why the run has failed, if it has.
    pub fn failure(&self) -> Option<Failure> {
        self.inner.lock().failure.clone()
    }

    /// The run has failed; the first failure counts.
    pub fn fail(&self, invariant: &str, detail: impl Into<String>) {
        if self.only.is_some_and(|only| only != invariant) {
            return;
        }
        let detail = detail.into();
        self.note(|| format!("BROKEN: {invariant}: {detail}"));
        self.inner.lock().failure.get_or_insert(Failure {
            invariant: invariant.to_owned(),
            detail,
        });
    }

    /// Tells the invariants what was seen.
    pub fn see(&self, seen: &Seen<'_>) {
        let broken = self.watch.lock().see(seen);
        if let Err((invariant, detail)) = broken {
            self.fail(invariant, detail);
        }
    }

    /// Writes an event into the trace; the text is only made where somebody reads it, and must not ask
    /// the world anything.
    pub fn note(&self, text: impl FnOnce() -> String) {
        let mut inner = self.inner.lock();
        let now_us = inner.now_us;
        inner.trace.note(now_us, text);
    }

    /// Writes an event between two processes into the trace, as [`Self::note`] does.
    pub(crate) fn note_between(
        &self,
        from: NodeId,
        to: NodeId,
        text: impl FnOnce(&str, &str) -> String,
    ) {
        let mut inner = self.inner.lock();
        let Inner {
            now_us,
            trace,
            nodes,
            ..
        } = &mut *inner;
        trace.note(*now_us, || text(&nodes[from].name, &nodes[to].name));
    }

    /// The trace so far.
    pub fn take_trace(&self) -> Trace {
        std::mem::take(&mut self.inner.lock().trace)
    }

    /// Adds a process, which isn't running.
    pub fn add_node(&self, name: &str) -> NodeId {
        let mut inner = self.inner.lock();
        inner.nodes.push(Node {
            name: name.into(),
            up: false,
            life: 0,
            paused: false,
            kept: Vec::new(),
            handler: None,
            at_kill: None,
            clock: Clock::default(),
        });
        inner.nodes.len() - 1
    }

    /// A process' name.
    pub fn name(&self, node: NodeId) -> Arc<str> {
        self.inner.lock().nodes[node].name.clone()
    }

    /// The process runs from now on. `at_kill` is done when it is killed.
    pub fn start(&self, node: NodeId, handler: Option<Handler>, at_kill: Act) {
        let name = self.name(node);
        self.note(|| format!("{name} starts"));
        let mut inner = self.inner.lock();
        let node = &mut inner.nodes[node];
        node.up = true;
        node.life += 1;
        node.handler = handler;
        node.at_kill = Some(at_kill);
    }

    /// The process ends at once, with all of its tasks. `silent`: its whole machine does, and nobody who
    /// waits for it is told.
    pub fn kill(self: &Arc<Self>, node: NodeId, silent: bool) {
        let (at_kill, gone) = {
            let mut inner = self.inner.lock();
            if !inner.nodes[node].up {
                return;
            }
            let killed = &mut inner.nodes[node];
            killed.up = false;
            killed.paused = false;
            let handler = killed.handler.take();
            let kept = std::mem::take(&mut killed.kept);
            let at_kill = killed.at_kill.take();
            let mut tasks: Vec<u64> = inner
                .tasks
                .iter()
                .filter(|(_, task)| task.node == node)
                .map(|(id, _)| *id)
                .collect();
            tasks.sort_unstable();
            let tasks: Vec<Option<Task>> = tasks.iter().map(|id| inner.tasks.remove(id)).collect();
            (at_kill, (handler, kept, tasks))
        };
        if let Some(at_kill) = at_kill {
            at_kill(self);
        }
        // What tasks hold may call the world when it goes.
        drop(gone);
        if !silent {
            self.network_lost(node);
        }
    }

    /// How often the process was started.
    pub fn life(&self, node: NodeId) -> u64 {
        self.inner.lock().nodes[node].life
    }

    /// Whether the process runs.
    pub fn is_up(&self, node: NodeId) -> bool {
        self.inner.lock().nodes[node].up
    }

    /// The process stands still until it is resumed: SIGSTOP.
    pub fn pause(&self, node: NodeId) {
        self.inner.lock().nodes[node].paused = true;
    }

    /// The process goes on.
    pub fn resume(self: &Arc<Self>, node: NodeId) {
        let kept = {
            let mut inner = self.inner.lock();
            inner.nodes[node].paused = false;
            std::mem::take(&mut inner.nodes[node].kept)
        };
        for kept in kept {
            match kept {
                Kept::Task(task) => self.ready.0.lock().push_back(task),
                Kept::Message(caller, ask) => self.deliver(node, caller, *ask),
            }
        }
    }

    /// Looks at, or changes, a process' clocks.
    pub fn clock<T>(&self, node: NodeId, with: impl FnOnce(&mut Clock, u64) -> T) -> T {
        let mut inner = self.inner.lock();
        let now_us = inner.now_us;
        with(&mut inner.nodes[node].clock, now_us)
    }

    /// What a process's own monotonic clock says.
    pub fn mono(&self, node: NodeId) -> Duration {
        self.clock(node, |clock, now_us| {
            Duration::from_micros(clock.mono_us(now_us))
        })
    }

    /// Whether any clock ever went fast or slow.
    pub(crate) fn has_paced_clocks(&self) -> bool {
        self.inner
            .lock()
            .nodes
            .iter()
            .any(|node| node.clock.was_paced())
    }

    /// Hands a message to a process, now or when it goes on.
    pub(crate) fn deliver(self: &Arc<Self>, node: NodeId, caller: Caller, ask: Ask) {
        let handler = {
            let mut inner = self.inner.lock();
            let node = &mut inner.nodes[node];
            if node.up && node.paused {
                node.kept.push(Kept::Message(caller, Box::new(ask)));
                return;
            }
            node.handler.clone().filter(|_| node.up)
        };
        match handler {
            Some(handler) => handler(self, caller, ask),
            None => self.refused(caller),
        }
    }

    /// Runs a future as a part of a process.
    pub fn spawn(&self, node: NodeId, future: BoxFuture<'static, ()>) {
        let mut inner = self.inner.lock();
        if !inner.nodes[node].up {
            drop(inner);
            drop(future);
            return;
        }
        let task = inner.next_task;
        inner.next_task += 1;
        let waker = Waker::from(Arc::new(TaskWaker {
            task,
            ready: self.ready.clone(),
        }));
        inner.tasks.insert(
            task,
            Task {
                node,
                future: Some(future),
                waker,
            },
        );
        self.ready.0.lock().push_back(task);
    }

    /// Does something at a later time, whatever becomes of processes; unless it is called off.
    pub fn at(&self, delay: Duration, act: Act) -> TimerKey {
        let mut inner = self.inner.lock();
        let key = inner.timer_key(delay);
        inner.timers.insert(key, Timer::Act(act));
        key
    }

    /// What was to be done isn't, where it wasn't yet.
    pub(crate) fn call_off(&self, key: TimerKey) {
        let gone = self.inner.lock().timers.remove(&key);
        drop(gone);
    }

    /// Waits, by the world's time.
    pub fn sleep(self: &Arc<Self>, duration: Duration) -> Sleep {
        Sleep {
            world: self.clone(),
            duration,
            timer: None,
        }
    }

    /// Waits, by a process' monotonic clock.
    pub fn sleep_on(self: &Arc<Self>, node: NodeId, duration: Duration) -> Sleep {
        let own_us = duration.as_nanos().div_ceil(1_000);
        let own_us = u64::try_from(own_us).unwrap_or(u64::MAX / 4096);
        self.sleep(Duration::from_micros(
            self.clock(node, |clock, _| clock.world_us(own_us)),
        ))
    }

    /// Runs until `until` is true, the run has failed, or the time is over; whether `until` was.
    pub fn run(self: &Arc<Self>, end: Duration, until: impl Fn() -> bool) -> bool {
        let end_us = u64::try_from(end.as_micros()).unwrap_or(u64::MAX);
        let (mut at_us, mut steps) = (self.now_us(), 0);
        loop {
            while let Some(task) = self.next_ready() {
                self.poll(task);
                steps += 1;
                if steps > STEPS_AT_ONCE {
                    self.fail_as_busy(task);
                }
                if self.inner.lock().failure.is_some() {
                    return false;
                }
            }
            if until() {
                return true;
            }
            let timer = {
                let mut inner = self.inner.lock();
                match inner.timers.first_key_value() {
                    Some(((at, _), _)) if *at <= end_us => {}
                    _ => {
                        inner.now_us = inner.now_us.max(end_us);
                        return false;
                    }
                }
                let Some(((at, _), timer)) = inner.timers.pop_first() else {
                    return false;
                };
                inner.now_us = at;
                if at > at_us {
                    (at_us, steps) = (at, 0);
                }
                timer
            };
            match timer {
                Timer::Wake(waker) => waker.wake(),
                Timer::Act(act) => act(self),
            }
            if self.inner.lock().failure.is_some() || self.cut.load(Ordering::Relaxed) {
                return false;
            }
        }
    }

    fn fail_as_busy(&self, task: u64) {
        let name = {
            let inner = self.inner.lock();
            let node = inner.tasks.get(&task).map_or(NOBODY, |task| task.node);
            inner.nodes[node].name.clone()
        };
        let why = format!("{STEPS_AT_ONCE} steps happened at one time, the last one in {name}");
        self.fail("time goes on", why);
    }

    /// Ends everything: what is left holds the world, and would keep it.
    pub fn end(self: &Arc<Self>) {
        let (tasks, timers, nodes) = {
            let mut inner = self.inner.lock();
            let mut nodes = Vec::new();
            for node in &mut inner.nodes {
                node.up = false;
                nodes.push((
                    node.handler.take(),
                    node.at_kill.take(),
                    std::mem::take(&mut node.kept),
                ));
            }
            (
                std::mem::take(&mut inner.tasks),
                std::mem::take(&mut inner.timers),
                nodes,
            )
        };
        drop((tasks, timers, nodes));
        self.network.lock().clear();
    }

    /// A task that is ready; mostly the one that waits longest, now and then any.
    fn next_ready(&self) -> Option<u64> {
        loop {
            let mut inner = self.inner.lock();
            let mut ready = self.ready.0.lock();
            let len = ready.len() as u64;
            let at = if len > 1 && inner.schedule.below(4) == 0 {
                inner.schedule.below(len) as usize
            } else {
                0
            };
            let task = ready.remove(at)?;
            let Some(node) = inner.tasks.get(&task).map(|task| task.node) else {
                continue;
            };
            if inner.nodes[node].paused {
                inner.nodes[node].kept.push(Kept::Task(task));
                continue;
            }
            return Some(task);
        }
    }

    fn poll(&self, task: u64) {
        let (mut future, waker) = {
            let mut inner = self.inner.lock();
            let Some(slot) = inner.tasks.get_mut(&task) else {
                return;
            };
            let Some(future) = slot.future.take() else {
                return;
            };
            (future, slot.waker.clone())
        };
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        let done = {
            let mut inner = self.inner.lock();
            if polled.is_ready() {
                inner.tasks.remove(&task);
                Some(future)
            } else if let Some(slot) = inner.tasks.get_mut(&task) {
                slot.future = Some(future);
                None
            } else {
                // Its process was killed by what it did.
                Some(future)
            }
        };
        drop(done);
    }
}

impl Inner {
    fn timer_key(&mut self, delay: Duration) -> TimerKey {
        self.order += 1;
        let delay_us = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX / 2);
        (self.now_us.saturating_add(delay_us), self.order)
    }
}

/// A pause of the world's time.
pub struct Sleep {
    world: Arc<World>,
    duration: Duration,
    timer: Option<TimerKey>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let world = self.world.clone();
        let mut inner = world.inner.lock();
        let key = match self.timer {
            Some(key) if inner.now_us >= key.0 && !inner.timers.contains_key(&key) => {
                return Poll::Ready(());
            }
            Some(key) => {
                if let Some(Timer::Wake(waker)) = inner.timers.get(&key)
                    && waker.will_wake(context.waker())
                {
                    return Poll::Pending;
                }
                key
            }
            None => inner.timer_key(self.duration),
        };
        self.timer = Some(key);
        inner
            .timers
            .insert(key, Timer::Wake(context.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.timer {
            self.world.call_off(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::trace::Keep;

    fn world() -> Arc<World> {
        let (plan, network) = (Plan::new(1), Network::new(Rng::new(1, "network")));
        World::new(&plan, network, Trace::new(Keep::Nothing), Arc::default())
    }

    #[test]
    fn who_sleeps_until_a_time_is_awake_once_it_has_come() {
        for pace in [1, 333, 700, 999, 1_000, 1_001, 1_900] {
            let world = world();
            world.clock(NOBODY, |clock, now_us| clock.set_pace(now_us, pace));
            let (sleeping, naps) = (world.clone(), Arc::new(Mutex::new(0)));
            let counted = naps.clone();
            let sleep = async move {
                let until = Duration::from_nanos(77_500);
                while sleeping.mono(NOBODY) < until {
                    *counted.lock() += 1;
                    let left = until.saturating_sub(sleeping.mono(NOBODY));
                    sleeping.sleep_on(NOBODY, left).await;
                }
            };
            world.spawn(NOBODY, sleep.boxed());
            world.run(Duration::from_secs(1), || false);
            assert_eq!(world.failure(), None, "at a pace of {pace}");
            assert!((1..=2).contains(&*naps.lock()), "at a pace of {pace}");
            world.end();
        }
    }

    #[test]
    fn a_task_that_waits_for_nothing_fails_the_run() {
        let world = world();
        let busy = world.clone();
        let nap = async move {
            loop {
                busy.sleep(Duration::ZERO).await;
            }
        };
        world.spawn(NOBODY, nap.boxed());
        world.run(Duration::from_secs(1), || false);
        let failure = world.failure().expect("a failure");
        assert_eq!(failure.invariant, "time goes on");
        assert!(failure.detail.ends_with("the last one in world"));
        world.end();
    }
}
