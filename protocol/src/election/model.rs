//! A model of several oracles over one register, in one thread and from seeds. It proves the order of timestamps:
//!
//! - Each timestamp is greater than every one that was granted before its request was sent.
//! - None is granted twice.
//!
//! With [`Election`] alone, as the master uses it, each answer of a leader names its term. It proves that no term is
//! answered in after a later one: the moment that counts is when the clock was read, which is after the request.
//!
//! The world: processes stand still at any moment and go on, die, and end in order; their clocks differ in speed and offset,
//! and wall clocks jump. The register's requests are late, lost or doubled, and so are its answers. It is away for long, for
//! all or for one. Promises are lost, late or doubled as well, and folders are replaced.

mod elected;
mod faults;
mod killing;
mod outage;
mod promises;
mod states;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::mutants::{self, ElectionMutant};
use super::*;
use crate::oracle::Now;
use elected::{Elected, Replica};
use promises::PendingResponse;
use states::{StateCommand, StateResult, StateWorker, States};

const UNIX_MS: u64 = 1_700_000_000_000;
const REPLICAS: usize = 3;
/// A request to the register is given up after so long, or so long.
const TIMEOUTS_MS: [u64; 2] = [1_500, 6_000];
/// How often a process polls for a command.
const TICK_MS: u64 = 60;

/// A generator of numbers (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// A client's request for timestamps.
#[derive(Clone, Debug)]
struct Request {
    count: u32,
    /// The highest timestamp that was granted before it was sent.
    floor: u64,
}

/// An event of a process, or of a request to the register.
#[derive(Clone, Debug)]
enum Event {
    Tick,
    Start,
    Request(Request),
    /// The clock was read for it, and the process stood still since.
    LateGrant(Request, Now),
    /// A command reaches the register; the answer goes back after so long, unless it is lost.
    AtRegister(u64, Command, Option<u64>),
    /// The answer to this command, by its number.
    Loaded(u64, Result<Option<StoredLeadership>, ()>),
    Swapped(u64, SwapResult),
    /// A request for a promise arrives, from this process.
    Ask(usize, PromiseCall),
    /// A write of the folder has ended. The call that it was for is answered to this process, if there is one.
    Written(PromiseRecord, Option<PendingResponse>),
    Promised(PromiseCall),
    Introduced(Peer),
    /// A command reaches the register of the state, and its answer comes.
    AtStates(u64, StateCommand, Option<u64>),
    OfStates(u64, StateResult),
    /// A request to keep the copy of a state arrives, from this process; a write of it has ended; it is answered.
    AskCopy(usize, PromiseCall, CopyRequest, usize),
    CopyWritten(StateNumber, usize, Option<PendingResponse>),
    Copied(PromiseCall, u64),
    Fault,
    Client,
}

/// One replica's process.
struct Process {
    /// None while it is down.
    replica: Option<Replica>,
    start: u64,
    paused_until: u64,
    /// Its clock goes by so many thousandths of the true time.
    pace: u64,
    offset_ms: u64,
    unix_skew_ms: i64,
    waiting: Vec<Request>,
    /// The number of the command under way.
    command: u64,
    last_clock: Now,
    /// The content of its folder.
    folder: PromiseRecord,
    /// The copy of a state that it has.
    copy: Option<(StateNumber, usize)>,
    worker: Option<StateWorker>,
    /// The last write of the folder ends then.
    written_at: u64,
    /// It reaches no register until then.
    cut_off_until: u64,
    /// It reaches no other process until then.
    isolated_until: u64,
}

impl Process {
    fn clock(&self, at: u64) -> Now {
        Now {
            unix_ms: (UNIX_MS + at).saturating_add_signed(self.unix_skew_ms),
            mono_ms: self.offset_ms + at * self.pace / 1_000,
        }
    }

    fn role(&self) -> Option<RoleKind> {
        self.replica.as_ref().map(Replica::role)
    }
}

struct World {
    random: Random,
    now: u64,
    /// Time, number, process, its start, and what happens.
    events: BinaryHeap<Reverse<(u64, u64, usize, u64)>>,
    bodies: BTreeMap<u64, Event>,
    numbers: u64,
    processes: Vec<Process>,
    register: Option<StoredLeadership>,
    /// The register is away until then.
    away_until: u64,
    is_often_cut_off: bool,
    /// The share of commands that go wrong, in percent.
    trouble: u64,
    /// The highest timestamp that was granted, or the highest term that was answered in.
    highest: u64,
    /// All that was granted: first to last.
    granted: BTreeMap<u64, u64>,
    answers: usize,
    elected: Elected,
    states: States,
    /// So many states were shown because folders had them.
    by_copies: usize,
    violation: Option<String>,
}

impl World {
    fn new(seed: u64, elected: Elected) -> Self {
        let mut random = Random(seed);
        let processes = (0..REPLICAS).map(|process| Process {
            replica: None,
            start: 0,
            paused_until: 0,
            pace: 850 + random.below(300),
            offset_ms: random.below(1_000_000),
            unix_skew_ms: i64::try_from(random.below(8_000)).unwrap() - 4_000,
            waiting: Vec::new(),
            command: 0,
            last_clock: Now {
                unix_ms: 0,
                mono_ms: 0,
            },
            folder: promises::empty_folder(1 + u64::try_from(process).unwrap()),
            copy: None,
            worker: None,
            written_at: 0,
            cut_off_until: 0,
            isolated_until: 0,
        });
        let mut world = Self {
            processes: processes.collect(),
            random,
            now: 0,
            events: BinaryHeap::new(),
            bodies: BTreeMap::new(),
            numbers: 0,
            register: None,
            away_until: 0,
            is_often_cut_off: seed % 2 == 1,
            trouble: 5,
            highest: 0,
            granted: BTreeMap::new(),
            answers: 0,
            elected,
            states: States::default(),
            by_copies: 0,
            violation: None,
        };
        for process in 0..REPLICAS {
            world.push(0, process, Event::Start);
        }
        world.push(0, 0, Event::Client);
        world
    }

    fn push(&mut self, after: u64, process: usize, event: Event) {
        let start = self.processes[process].start;
        self.numbers += 1;
        let key = (self.now + after, self.numbers, process, start);
        self.events.push(Reverse(key));
        self.bodies.insert(self.numbers, event);
    }

    fn takeovers(&self) -> u64 {
        self.register.as_ref().map_or(0, |stored| stored.value.term)
    }

    fn step(&mut self) {
        let Some(Reverse((at, number, process, start))) = self.events.pop() else {
            panic!("nothing happens any more");
        };
        self.now = at;
        let event = self.bodies.remove(&number).unwrap();
        match event {
            Event::Fault => return self.fault(),
            Event::Client => return self.client(),
            Event::AtRegister(command, what, answer) => {
                return self.at_register(process, start, command, what, answer);
            }
            Event::AtStates(number, command, answer) => {
                return self.at_states((process, start), number, command, answer);
            }
            _ => {}
        }
        // A message may reach a later start.
        let is_message = matches!(
            event,
            Event::Ask(..)
                | Event::Promised(_)
                | Event::Introduced(_)
                | Event::AskCopy(..)
                | Event::Copied(..)
        );
        if self.processes[process].start != start && !is_message {
            return;
        }
        if self.processes[process].paused_until > at {
            let rest = self.processes[process].paused_until - at;
            return self.push(rest, process, event);
        }
        self.at_process(process, event);
        self.drive(process);
        self.tend(process);
        self.processes[process].last_clock = self.processes[process].clock(self.now);
    }

    fn at_process(&mut self, process: usize, event: Event) {
        let now = self.processes[process].clock(self.now);
        match event {
            Event::Start => self.start(process),
            Event::Tick => {
                let tick = TICK_MS / 2 + self.random.below(TICK_MS);
                self.push(tick, process, Event::Tick);
                self.talk(process);
                self.make_copies(process);
            }
            Event::Request(request) => {
                let clock = if mutants::on(ElectionMutant::ClockBeforeRequest) {
                    self.processes[process].last_clock
                } else {
                    now
                };
                // What a master answers counts from when the clock was read.
                let may_stand_still = self.elected == Elected::Oracle && self.trouble > 0;
                if may_stand_still && self.random.percent(1) {
                    let pause = self.random.below(6_000);
                    self.processes[process].paused_until = self.now + pause;
                    self.push(pause, process, Event::LateGrant(request, clock));
                } else {
                    self.grant(process, request, clock);
                }
            }
            Event::LateGrant(request, clock) => self.grant(process, request, clock),
            Event::Loaded(command, result) if command == self.processes[process].command => {
                if let Some(replica) = &mut self.processes[process].replica {
                    replica.loaded(now, result);
                }
            }
            Event::Swapped(command, result) if command == self.processes[process].command => {
                if let Some(replica) = &mut self.processes[process].replica {
                    replica.swapped(now, result);
                }
            }
            Event::OfStates(number, result) => self.of_states(process, number, result),
            event @ (Event::AskCopy(..) | Event::CopyWritten(..) | Event::Copied(..)) => {
                self.copy_event(process, event);
            }
            event => self.promise_event(process, event),
        }
        for request in std::mem::take(&mut self.processes[process].waiting) {
            self.grant(process, request, now);
        }
    }

    fn start(&mut self, process: usize) {
        let is_lost = self.trouble > 0 && self.random.percent(15);
        let has_new_folder = is_lost && self.replace_folder(process);
        let before = self.processes[process].start;
        // A start that holds the same folder's lock knows that the earlier ones are dead.
        let dead = if !has_new_folder && self.random.percent(50) {
            (1..before)
                .map(|start| incarnation(process, start))
                .collect()
        } else {
            Vec::new()
        };
        let of = &mut self.processes[process];
        of.start += 1;
        let member = Member {
            name: format!("tso-{process}"),
            address: format!("here:{process}"),
            incarnation: incarnation(process, of.start),
            replica: of.folder.replica,
        };
        let timing = Timing {
            poll_ms: 200,
            ..Timing::default()
        };
        let mut replica = Replica::new(self.elected, member, dead, timing);
        let of = &mut self.processes[process];
        replica.restore(of.clock(self.now), of.folder);
        of.replica = Some(replica);
        self.push(0, process, Event::Tick);
    }

    /// Carries out the next command of a process.
    fn drive(&mut self, process: usize) {
        let now = self.processes[process].clock(self.now);
        let Some(replica) = &mut self.processes[process].replica else {
            return;
        };
        if replica.role() == RoleKind::Left {
            let after = self.random.below(1_000);
            return self.stop(process, after);
        }
        let Some(command) = replica.poll(now) else {
            return;
        };
        let number = self.numbers;
        self.processes[process].command = number;
        let failed = match command {
            Command::Load => Event::Loaded(number, Err(())),
            Command::Swap { .. } => Event::Swapped(number, SwapResult::Unknown),
        };
        // Not all of the way there is in the network: a process can stand still before it sends.
        let (there, back) = (1 + self.random.below(4), 1 + self.random.below(4));
        let arrive = |world: &mut Self, after, answer| {
            let event = Event::AtRegister(number, command.clone(), answer);
            world.push(after, process, event);
        };
        let is_cut_off = self.now < self.away_until.max(self.processes[process].cut_off_until);
        if !is_cut_off && !self.random.percent(self.trouble) {
            return arrive(self, there, Some(back));
        }
        let (long, back_late) = (self.random.below(6_000), self.random.below(5_000));
        let timeout = TIMEOUTS_MS[usize::from(self.random.percent(50))];
        let fault = if is_cut_off {
            [0, 5][usize::from(self.random.percent(50))]
        } else {
            self.random.below(6)
        };
        match fault {
            // The request is lost.
            0 => self.push(timeout, process, failed),
            // The request is late, for longer than it is waited for or not.
            1 if long < timeout => arrive(self, long, Some(back)),
            1 => {
                arrive(self, long, None);
                self.push(timeout, process, failed);
            }
            // The answer is lost.
            2 => {
                arrive(self, there, None);
                self.push(timeout, process, failed);
            }
            // The request comes twice.
            3 => {
                arrive(self, there, Some(back));
                arrive(self, long, None);
            }
            // The answer is late. Some stores are waited for that long.
            4 => arrive(self, there, Some(back_late)),
            _ => {
                let refused = match command {
                    Command::Load => failed,
                    Command::Swap { .. } => Event::Swapped(number, SwapResult::NotDone),
                };
                self.push(there + back, process, refused);
            }
        }
    }

    /// The register carries out a command, also of a process that is dead by now.
    fn at_register(
        &mut self,
        process: usize,
        start: u64,
        number: u64,
        command: Command,
        answer: Option<u64>,
    ) {
        let version = self.register.as_ref().map(|stored| stored.version);
        let event = match command {
            Command::Load => Event::Loaded(number, Ok(self.register.clone())),
            Command::Swap { expected, .. } if expected != version => {
                Event::Swapped(number, SwapResult::Conflict)
            }
            Command::Swap { value, .. } => {
                let version = version.unwrap_or(0) + 1;
                self.register = Some(StoredLeadership { version, value });
                Event::Swapped(number, SwapResult::Done(version))
            }
        };
        if let Some(after) = answer
            && self.processes[process].start == start
        {
            self.push(after, process, event);
        }
    }

    fn grant(&mut self, process: usize, request: Request, clock: Now) {
        let Some(replica) = &mut self.processes[process].replica else {
            return;
        };
        let replica = match replica {
            Replica::Oracle(oracle) => oracle,
            Replica::Master(master) => {
                let leads = master.leads(clock.mono_ms)
                    || master.role() == RoleKind::Leader
                        && mutants::on(ElectionMutant::RightNeverEnds);
                let term = leads.then(|| master.term());
                return term.map_or((), |term| self.answer(process, term));
            }
            Replica::States(_) => return self.ask_master(process, &request, clock.mono_ms),
        };
        let granted = match replica.request(clock, request.count) {
            RequestOutcome::Granted(granted) => granted,
            RequestOutcome::Wait => return self.processes[process].waiting.push(request),
            RequestOutcome::NotLeader { .. } => return,
        };
        let first = granted.first.as_u64();
        let last = first + u64::from(granted.count) - 1;
        if first <= request.floor {
            self.violation = Some(format!(
                "tso-{process} granted {first} at {} ms, after {} was granted",
                self.now, request.floor
            ));
        }
        if let Some((before, to)) = self.granted.range(..=last).next_back()
            && *to >= first
        {
            let twice = format!("tso-{process} granted {first}, which is in {before} to {to}");
            self.violation.get_or_insert(twice);
        }
        self.granted.insert(first, last);
        self.highest = self.highest.max(last);
        self.answers += 1;
    }

    /// A master answers in this term. A request whose process stood still since the clock was read was answered then, as
    /// far as anybody may rely on it.
    fn answer(&mut self, process: usize, term: u64) {
        if term < self.highest {
            self.violation = Some(format!(
                "master-{process} answered in term {term} at {} ms, after term {} had begun",
                self.now, self.highest
            ));
        }
        self.highest = self.highest.max(term);
        self.answers += 1;
    }

    /// A client sends a request, mostly to the leader.
    fn client(&mut self) {
        let leader = (0..REPLICAS)
            .filter(|process| self.processes[*process].role() == Some(RoleKind::Leader))
            .max_by_key(|_| self.random.below(8));
        let to = match leader {
            Some(leader) if self.random.percent(80) => leader,
            _ => usize::try_from(self.random.below(3)).unwrap(),
        };
        let count = if self.random.percent(10) { 65_536 } else { 2 };
        let request = Request {
            count,
            floor: self.highest,
        };
        let late = if self.random.percent(3) { 3_000 } else { 3 };
        let after = self.random.below(late);
        self.push(after, to, Event::Request(request));
        let next = self.random.below(60);
        self.push(next, 0, Event::Client);
        // The client and the faults are nobody's: a start of process 0 must not end them.
    }

    fn stop(&mut self, process: usize, after: u64) {
        let of = &mut self.processes[process];
        // Events of this start, but for those at the register, are dropped.
        of.start += 1;
        of.replica = None;
        of.waiting.clear();
        of.worker = None;
        of.paused_until = 0;
        self.push(after, process, Event::Start);
    }
}

fn incarnation(process: usize, start: u64) -> u64 {
    (start << 8) + 1 + u64::try_from(process).unwrap()
}

/// Runs one world until so many terms have begun, and returns how many requests were answered.
fn run(elected: Elected, seed: u64, terms: u64) -> Result<usize, String> {
    run_world(elected, seed, terms).map(|world| world.answers)
}

fn run_world(elected: Elected, seed: u64, terms: u64) -> Result<World, String> {
    let mut world = World::new(seed, elected);
    world.push(0, 0, Event::Fault);
    while world.takeovers() < terms {
        world.step();
        if let Some(violation) = world.violation {
            return Err(format!("seed {seed}: {violation}"));
        }
        // In the mean a term takes some five seconds.
        if world.now > terms * 60_000 {
            return Err(format!("seed {seed}: no leader is elected any more"));
        }
    }
    Ok(world)
}

#[test]
fn timestamps_strictly_increase_over_ten_thousand_takeovers() {
    const SEEDS: u64 = 50;
    const TERMS: u64 = 210;
    let mut answered = 0;
    for seed in 0..SEEDS {
        answered += run(Elected::Oracle, seed, TERMS).unwrap();
    }
    // Otherwise hardly anything was proven.
    assert!(answered > 100_000, "{answered} requests were answered");
}

#[test]
fn no_master_answers_in_a_term_after_a_later_one_has_begun() {
    let mut answered = 0;
    for seed in 0..20 {
        answered += run(Elected::Master, seed, 210).unwrap();
    }
    assert!(answered > 100_000, "{answered} requests were answered");
}
