//! The network between processes: calls and answers that are lost, late, doubled, out of order, cut off
//! one way, or whose connection is reset after the request was handled.
//!
//! A duplicate, or a request that comes long after its caller has given up, is what a retry over a new
//! connection makes possible.
//!
//! Whatever befalls the messages from one process to another is drawn for each kind of fault from a stream of its own:
//! the tenth of them is lost or not, whichever other kinds there are, and whatever others send.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use percolator_client::transport::Lost;

use crate::messages::{Answer, Ask, Caller};
use crate::rng::Rng;
use crate::world::{NodeId, TimerKey, World};

/// How the network behaves.
#[derive(Clone, Copy, Debug, Default)]
pub struct NetworkFaults {
    /// Messages that don't arrive, of a million.
    pub loss_ppm: u32,
    /// Messages that arrive late, of a million.
    pub late_ppm: u32,
    /// How late they are, at most.
    pub late_max: Duration,
    /// Requests that arrive twice, of a million.
    pub duplicate_ppm: u32,
    /// Whether messages between two processes overtake each other.
    pub reorders: bool,
    /// Calls whose connection is reset after the request was handled and before it is answered, of a
    /// million.
    pub reset_ppm: u32,
}

/// The network's state.
pub struct Network {
    rng: Rng,
    faults: NetworkFaults,
    /// What nobody receives: from, to.
    cuts: BTreeSet<(NodeId, NodeId)>,
    links: BTreeMap<(NodeId, NodeId), Link>,
    calls: BTreeMap<u64, Call>,
    next_call: u64,
    addresses: BTreeMap<String, NodeId>,
}

/// The way from one process to another.
struct Link {
    /// Of messages, and of second copies of them.
    fates: [Fates; 2],
    resets: Rng,
    duplicates: Rng,
    /// When the last message arrives, in microseconds.
    last_us: u64,
}

/// What befalls each message.
struct Fates {
    usual: Rng,
    losses: Rng,
    late: Rng,
}

impl Link {
    fn new(rng: &Rng, from: NodeId, to: NodeId) -> Self {
        let rng = rng.stream(&format!("from {from} to {to}"));
        let fates = |rng: Rng| Fates {
            usual: rng.stream("usual"),
            losses: rng.stream("losses"),
            late: rng.stream("late"),
        };
        Self {
            fates: [fates(rng.stream("first")), fates(rng.stream("second"))],
            resets: rng.stream("resets"),
            duplicates: rng.stream("duplicates"),
            last_us: 0,
        }
    }
}

impl Fates {
    /// How long a message takes; `None`: it doesn't arrive.
    fn delay_us(&mut self, faults: &NetworkFaults) -> Option<u64> {
        let delay_us = self.usual.between(80, 400);
        let mut late_us = 0;
        if self.late.chance(faults.late_ppm) {
            let most_us = u64::try_from(faults.late_max.as_micros()).unwrap_or(u64::MAX / 8);
            // Short delays are as interesting as long ones.
            let most_us = most_us >> self.late.below(12);
            late_us = self.late.below(most_us.max(1));
        }
        let is_lost = self.losses.chance(faults.loss_ppm);
        (!is_lost).then_some(delay_us + late_us)
    }
}

struct Call {
    to: NodeId,
    reset: bool,
    /// Its request is on its way twice.
    has_copy: bool,
    /// Large, and moved with all calls of that time otherwise.
    result: Option<Box<Result<Answer, Lost>>>,
    waker: Option<Waker>,
}

impl Network {
    /// A network of nobody.
    pub fn new(rng: Rng) -> Self {
        Self {
            rng,
            faults: NetworkFaults::default(),
            cuts: BTreeSet::new(),
            links: BTreeMap::new(),
            calls: BTreeMap::new(),
            next_call: 0,
            addresses: BTreeMap::new(),
        }
    }

    /// From now on it behaves like this.
    pub fn set_faults(&mut self, faults: NetworkFaults) {
        self.faults = faults;
    }

    /// A process can be reached here.
    pub fn listen(&mut self, address: &str, node: NodeId) {
        self.addresses.insert(address.to_owned(), node);
    }

    /// Who listens here.
    pub fn at(&self, address: &str) -> Option<NodeId> {
        self.addresses.get(address).copied()
    }

    /// Nothing gets from one to the other, or it does again.
    pub fn cut(&mut self, from: NodeId, to: NodeId, cut: bool) {
        if cut {
            self.cuts.insert((from, to));
        } else {
            self.cuts.remove(&(from, to));
        }
    }

    pub(crate) fn clear(&mut self) {
        self.calls.clear();
    }

    fn link(&mut self, from: NodeId, to: NodeId) -> &mut Link {
        let rng = &self.rng;
        let link = self.links.entry((from, to));
        link.or_insert_with(|| Link::new(rng, from, to))
    }

    /// When a message arrives, counted from now; `None`: it doesn't.
    fn delay(&mut self, from: NodeId, to: NodeId, copy: usize, now_us: u64) -> Option<Duration> {
        let faults = self.faults;
        let link = self.link(from, to);
        let mut at_us = now_us + link.fates[copy].delay_us(&faults)?;
        if !faults.reorders {
            at_us = at_us.max(link.last_us + 1);
            link.last_us = at_us;
        }
        Some(Duration::from_micros(at_us - now_us))
    }
}

impl World {
    /// Asks a process, and waits for its answer until the time is over.
    pub fn call(self: &Arc<Self>, from: NodeId, to: NodeId, ask: Ask, timeout: Duration) -> Asked {
        let now_us = self.now_us();
        let (call, first, copy) = {
            let mut network = self.network.lock();
            let call = network.next_call;
            network.next_call += 1;
            let faults = network.faults;
            let link = network.link(from, to);
            let reset = link.resets.chance(faults.reset_ppm);
            let has_copy = link.duplicates.chance(faults.duplicate_ppm);
            let first = network.delay(from, to, 0, now_us);
            let copy = has_copy.then(|| network.delay(from, to, 1, now_us));
            network.calls.insert(
                call,
                Call {
                    to,
                    reset,
                    has_copy,
                    result: None,
                    waker: None,
                },
            );
            (call, first, copy)
        };
        let caller = Caller { node: from, call };
        let copy = copy.map(|delay| (ask.clone(), delay));
        self.send(to, caller, ask, first);
        if let Some((ask, delay)) = copy {
            self.send(to, caller, ask, delay);
        }
        let timeout = self.at(
            timeout,
            Box::new(move |world| {
                world.finish(call, Err(Lost::unknown("no answer in time".to_owned())))
            }),
        );
        Asked {
            world: self.clone(),
            call,
            timeout,
        }
    }

    /// A message is on its way for so long; none: it is lost.
    fn send(self: &Arc<Self>, to: NodeId, caller: Caller, ask: Ask, delay: Option<Duration>) {
        match delay {
            Some(delay) => {
                self.at(delay, Box::new(move |world| world.arrive(to, caller, ask)));
            }
            None => self.note_message("lost", caller.node, to, caller.call, || ask.brief()),
        }
    }

    /// Answers a call, over the network.
    pub fn reply(self: &Arc<Self>, from: NodeId, caller: Caller, answer: Answer) {
        let now_us = self.now_us();
        let to = caller.node;
        let (delay, reset) = {
            let mut network = self.network.lock();
            let Some(call) = network.calls.get(&caller.call) else {
                return;
            };
            let reset = call.reset;
            (network.delay(from, to, 0, now_us), reset)
        };
        let Some(delay) = delay else {
            self.note_message("lost", from, to, caller.call, || answer.brief());
            return;
        };
        let arrive = move |world: &Arc<World>| {
            if world.network.lock().cuts.contains(&(from, to)) {
                world.note_message("cut off", from, to, caller.call, || answer.brief());
            } else if reset {
                world.note_message("reset", from, to, caller.call, || answer.brief());
                world.finish(
                    caller.call,
                    Err(Lost::unknown("the connection was reset".to_owned())),
                );
            } else {
                world.note_message("answer", from, to, caller.call, || answer.brief());
                world.finish(caller.call, Ok(answer));
            }
        };
        self.at(delay, Box::new(arrive));
    }

    /// Nobody listens there: the caller is told at once.
    pub(crate) fn refused(self: &Arc<Self>, caller: Caller) {
        let act = move |world: &Arc<World>| {
            let has_copy = {
                let network = world.network.lock();
                network
                    .calls
                    .get(&caller.call)
                    .is_some_and(|call| call.has_copy)
            };
            let why = "connection refused".to_owned();
            // The other one may meet a process yet.
            let lost = if has_copy {
                Lost::unknown(why)
            } else {
                Lost::never_sent(why)
            };
            world.finish(caller.call, Err(lost));
        };
        self.at(Duration::from_micros(300), Box::new(act));
    }

    /// A process is gone: anyone who waits for it hears it from its machine.
    pub(crate) fn network_lost(self: &Arc<Self>, node: NodeId) {
        let waiting: Vec<u64> = {
            let network = self.network.lock();
            let calls = network.calls.iter();
            calls
                .filter(|(_, call)| call.to == node && call.result.is_none())
                .map(|(id, _)| *id)
                .collect()
        };
        for call in waiting {
            let reset = move |world: &Arc<World>| {
                world.finish(call, Err(Lost::unknown("connection reset".to_owned())))
            };
            self.at(Duration::from_micros(300), Box::new(reset));
        }
    }

    fn arrive(self: &Arc<Self>, to: NodeId, caller: Caller, ask: Ask) {
        if self.network.lock().cuts.contains(&(caller.node, to)) {
            self.note_message("cut off", caller.node, to, caller.call, || ask.brief());
            return;
        }
        self.note_message("call", caller.node, to, caller.call, || ask.brief());
        self.deliver(to, caller, ask);
    }

    fn finish(&self, call: u64, result: Result<Answer, Lost>) {
        let waker = {
            let mut network = self.network.lock();
            let Some(call) = network.calls.get_mut(&call) else {
                return;
            };
            if call.result.is_some() {
                return;
            }
            call.result = Some(Box::new(result));
            call.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn note_message(
        &self,
        what: &str,
        from: NodeId,
        to: NodeId,
        call: u64,
        brief: impl FnOnce() -> String,
    ) {
        self.note_between(from, to, |from, to| {
            format!("{what:8} #{call} {from} -> {to}: {}", brief())
        });
    }
}

/// A call that waits for its answer.
pub struct Asked {
    world: Arc<World>,
    call: u64,
    /// By which it gives up.
    timeout: TimerKey,
}

impl Future for Asked {
    type Output = Result<Answer, Lost>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut network = self.world.network.lock();
        let Some(call) = network.calls.get_mut(&self.call) else {
            return Poll::Ready(Err(Lost::unknown("the world has ended".to_owned())));
        };
        match call.result.take() {
            Some(result) => Poll::Ready(*result),
            None => {
                call.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.world.call_off(self.timeout);
        let gone = self.world.network.lock().calls.remove(&self.call);
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: NetworkFaults = NetworkFaults {
        loss_ppm: 200_000,
        late_ppm: 200_000,
        late_max: Duration::from_secs(1),
        duplicate_ppm: 200_000,
        reorders: true,
        reset_ppm: 200_000,
    };

    /// Of each message from 1 to 2: how long it and its copy take, and whether there is one, and a reset; others send
    /// something in between.
    #[allow(clippy::type_complexity, reason = "compared as a whole")]
    fn fates(faults: NetworkFaults) -> Vec<(Option<Duration>, Option<Option<Duration>>, bool)> {
        let mut network = Network::new(Rng::new(3, "network"));
        network.set_faults(faults);
        let mut fates = Vec::new();
        for _ in 0..500 {
            network.delay(1, 3, 0, 0);
            let link = network.link(1, 2);
            let reset = link.resets.chance(faults.reset_ppm);
            let copy = link.duplicates.chance(faults.duplicate_ppm);
            let first = network.delay(1, 2, 0, 0);
            fates.push((first, copy.then(|| network.delay(1, 2, 1, 0)), reset));
        }
        fates
    }

    #[test]
    fn without_one_kind_of_fault_the_others_are_the_same() {
        let all = fates(ALL);
        assert!(all.iter().any(|(first, ..)| first.is_none()));
        let no_loss = NetworkFaults { loss_ppm: 0, ..ALL };
        for (with, without) in all.iter().zip(fates(no_loss)) {
            assert!(with.0.is_none() || with.0 == without.0);
            assert_eq!((with.1.is_some(), with.2), (without.1.is_some(), without.2));
        }
        let never_late = NetworkFaults { late_ppm: 0, ..ALL };
        for (with, without) in all.iter().zip(fates(never_late)) {
            assert_eq!(with.0.is_some(), without.0.is_some());
            assert!(with.0 >= without.0, "{with:?} {without:?}");
            assert_eq!((with.1.is_some(), with.2), (without.1.is_some(), without.2));
        }
        let no_copies = NetworkFaults {
            duplicate_ppm: 0,
            ..ALL
        };
        for (with, without) in all.iter().zip(fates(no_copies)) {
            assert_eq!((with.0, with.2), (without.0, without.2));
        }
        let no_resets = NetworkFaults {
            reset_ppm: 0,
            ..ALL
        };
        for (with, without) in all.iter().zip(fates(no_resets)) {
            assert_eq!((with.0, with.1), (without.0, without.1));
        }
    }
}
