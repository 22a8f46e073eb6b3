//! The states of masters in the model. Each leader goes on from a state that it has loaded, changes it, and makes it durable in
//! the register of the state, or in folders. It proves:
//!
//! - Each answer shows all that was shown before its request was sent.
//! - Of two states that are shown, one has come from the other.
//!
//! The register of the state is away together with the other one, or alone.

use super::*;

/// The register of the state: its version, which state it is, and the state itself, by its place in [`States::parents`].
#[derive(Clone, Copy, Debug)]
pub(super) struct StoredNumber {
    version: u64,
    number: StateNumber,
    state: usize,
}

/// The states of the world's masters.
#[derive(Debug)]
pub(super) struct States {
    register: StoredNumber,
    /// From which state each one was made. That of the first is itself.
    parents: Vec<usize>,
    pub(super) away_until: u64,
}

impl Default for States {
    fn default() -> Self {
        Self {
            register: StoredNumber {
                version: 1,
                number: StateNumber::default(),
                state: 0,
            },
            parents: vec![0],
            away_until: 0,
        }
    }
}

impl States {
    /// Whether the second one was made from the first, or is it.
    fn has_come_from(&self, first: usize, second: usize) -> bool {
        let mut state = second;
        while state > first {
            state = self.parents[state];
        }
        state == first
    }
}

/// A request to the register of the state.
#[derive(Clone, Copy, Debug)]
pub(super) enum StateCommand {
    Load,
    Swap {
        expected: u64,
        number: StateNumber,
        state: usize,
    },
}

/// The result of a request. None: unknown.
pub(super) type StateResult = Option<Result<StoredNumber, ()>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Loads,
    Takes,
    Serves,
}

/// The part of a leader that makes the states of its term durable.
#[derive(Debug)]
pub(super) struct StateWorker {
    term: u64,
    phase: Phase,
    /// The register's version, as far as it knows.
    version: u64,
    /// The number of the command under way.
    command: Option<u64>,
    must_load: bool,
    /// The newest one, and how many changes it has.
    state: usize,
    number: u64,
    stored: u64,
    durable: u64,
    /// Of which copies are made.
    copying: u64,
    /// Answers: the change that they wait for, the state that they show, and what was shown before they were asked for.
    answers: Vec<(u64, usize, usize)>,
}

impl StateWorker {
    fn new(term: u64) -> Self {
        Self {
            term,
            phase: Phase::Loads,
            version: 0,
            command: None,
            must_load: true,
            state: 0,
            number: 0,
            stored: 0,
            durable: 0,
            copying: 0,
            answers: Vec::new(),
        }
    }

    fn numbered(&self, number: u64) -> StateNumber {
        StateNumber {
            term: self.term,
            number,
        }
    }
}

impl World {
    fn master(&mut self, process: usize) -> Option<&mut MasterReplica> {
        match &mut self.processes[process].replica {
            Some(Replica::States(master)) => Some(master),
            _ => None,
        }
    }

    /// After each event of a process: its worker goes on.
    pub(super) fn tend(&mut self, process: usize) {
        let now_ms = self.processes[process].clock(self.now).mono_ms;
        let Some(master) = self.master(process) else {
            return;
        };
        let term = (master.role() == RoleKind::Leader).then(|| master.term());
        let may_store = master.may_store_state(now_ms);
        let worker = &mut self.processes[process].worker;
        if worker.as_ref().map(|worker| worker.term) != term {
            *worker = term.map(StateWorker::new);
        }
        let Some(worker) = worker.as_mut().filter(|it| it.command.is_none()) else {
            return;
        };
        let command = match worker.phase {
            _ if worker.must_load => StateCommand::Load,
            Phase::Takes if may_store => StateCommand::Swap {
                expected: worker.version,
                number: worker.numbered(0),
                state: worker.state,
            },
            Phase::Serves if worker.stored < worker.number => StateCommand::Swap {
                expected: worker.version,
                number: worker.numbered(worker.number),
                state: worker.state,
            },
            Phase::Loads | Phase::Takes | Phase::Serves => return,
        };
        self.numbers += 1;
        worker.command = Some(self.numbers);
        self.send_state_command(process, self.numbers, command);
    }

    fn send_state_command(&mut self, process: usize, number: u64, command: StateCommand) {
        let (there, back) = (1 + self.random.below(4), 1 + self.random.below(4));
        let until = self.away_until.max(self.states.away_until);
        let is_cut_off = self.now < until.max(self.processes[process].cut_off_until);
        if !is_cut_off && !self.random.percent(self.trouble) {
            let event = Event::AtStates(number, command, Some(back));
            return self.push(there, process, event);
        }
        let timeout = TIMEOUTS_MS[usize::from(self.random.percent(50))];
        let late = self.random.below(6_000);
        self.push(timeout, process, Event::OfStates(number, None));
        if is_cut_off {
            return;
        }
        let arrivals: &[(u64, Option<u64>)] = match self.random.below(4) {
            // It is lost; it is late; its answer is lost; it comes twice.
            0 => &[],
            1 => &[(late, None)],
            2 => &[(there, None)],
            _ => &[(there, Some(back)), (late, None)],
        };
        for (after, answer) in arrivals {
            let event = Event::AtStates(number, command, *answer);
            self.push(*after, process, event);
        }
    }

    /// The register of the state carries out a command, also of a process that is dead by now.
    pub(super) fn at_states(
        &mut self,
        (process, start): (usize, u64),
        number: u64,
        command: StateCommand,
        answer: Option<u64>,
    ) {
        let register = &mut self.states.register;
        let result = match command {
            StateCommand::Load => Ok(*register),
            StateCommand::Swap { expected, .. } if expected != register.version => Err(()),
            StateCommand::Swap { number, state, .. } => {
                *register = StoredNumber {
                    version: register.version + 1,
                    number,
                    state,
                };
                Ok(*register)
            }
        };
        if let Some(after) = answer
            && self.processes[process].start == start
        {
            self.push(after, process, Event::OfStates(number, Some(result)));
        }
    }

    /// The answer to the command of this number, whatever it was.
    pub(super) fn of_states(&mut self, process: usize, number: u64, result: StateResult) {
        let copy = self.processes[process].copy;
        let is_waited_for = |worker: &&mut StateWorker| worker.command == Some(number);
        let worker = self.processes[process].worker.as_mut();
        let Some(worker) = worker.filter(is_waited_for) else {
            return;
        };
        worker.command = None;
        // A conflict, or nothing at all: the register shows what there is.
        worker.must_load = true;
        let Some(Ok(found)) = result else { return };
        if found.number.term > worker.term {
            // A later leader has written: this one is about to learn that.
            return;
        }
        worker.must_load = false;
        worker.version = found.version;
        if found.number.term < worker.term {
            if worker.phase == Phase::Serves {
                panic!("the state of an earlier term is back: {found:?}");
            }
            let own = copy.map(|(number, _)| number);
            worker.state = match (StateNumber::take_over(Some(found.number), own), copy) {
                (StateSource::Copy, Some((_, state))) => state,
                _ => found.state,
            };
            worker.phase = Phase::Takes;
            return;
        }
        worker.phase = Phase::Serves;
        worker.stored = found.number.number;
        worker.durable = worker.durable.max(worker.stored);
        if let Some(master) = self.master(process) {
            master.stored(found.number);
        }
        self.show_durable(process);
    }

    /// A client asks: half of the requests change the state.
    pub(super) fn ask_master(&mut self, process: usize, request: &Request, now_ms: u64) {
        let changes = self.random.percent(50);
        let Some(master) = self.master(process) else {
            return;
        };
        let leads = master.leads(now_ms);
        let worker = self.processes[process].worker.as_mut();
        let Some(worker) = worker.filter(|it| leads && it.phase == Phase::Serves) else {
            return;
        };
        if changes {
            self.states.parents.push(worker.state);
            worker.state = self.states.parents.len() - 1;
            worker.number += 1;
        }
        let floor = usize::try_from(request.floor).unwrap();
        worker.answers.push((worker.number, worker.state, floor));
        self.show_durable(process);
    }

    /// Answers leave whose state is durable.
    fn show_durable(&mut self, process: usize) {
        let Some(worker) = &mut self.processes[process].worker else {
            return;
        };
        let is_durable = |(number, _, _): &mut (u64, usize, usize)| *number <= worker.durable;
        let shown: Vec<_> = worker.answers.extract_if(.., is_durable).collect();
        for (number, state, floor) in shown {
            let highest = usize::try_from(self.highest).unwrap();
            let (states, worker) = (&self.states, &self.processes[process].worker);
            let is_one_line = states.has_come_from(highest.min(state), highest.max(state));
            if !is_one_line || !states.has_come_from(floor, state) {
                self.violation = Some(format!(
                    "master-{process} showed state {state}, number {number} of {worker:?}, at {} ms, after {highest} was \
                     shown, {floor} before it was asked",
                    self.now
                ));
            }
            self.highest = self.highest.max(state as u64);
            self.answers += 1;
        }
    }

    /// At a tick of a leader: it makes copies of a state that waits for the register.
    pub(super) fn make_copies(&mut self, process: usize) {
        if self.elected != Elected::States || !self.random.percent(50) {
            return;
        }
        let now_ms = self.processes[process].clock(self.now).mono_ms;
        let worker = self.processes[process].worker.as_mut();
        let Some(worker) = worker.filter(|it| it.number > it.durable) else {
            return;
        };
        worker.copying = worker.number;
        let (number, state) = (worker.numbered(worker.number), worker.state);
        let Some(calls) = self
            .master(process)
            .and_then(|master| master.ask_copies(now_ms))
        else {
            return;
        };
        self.write_copy(process, number, state, None);
        for call in calls {
            let to = promises::at(&call.address);
            let request = CopyRequest {
                promise: call.request,
                number: number.number,
            };
            self.send(process, to, Event::AskCopy(process, call, request, state));
        }
    }

    fn write_copy(
        &mut self,
        process: usize,
        number: StateNumber,
        state: usize,
        answer: Option<PendingResponse>,
    ) {
        let after = self.written_after(process);
        self.push(after, process, Event::CopyWritten(number, state, answer));
    }

    pub(super) fn copy_event(&mut self, process: usize, event: Event) {
        let now_ms = self.processes[process].clock(self.now).mono_ms;
        match event {
            Event::AskCopy(from, call, request, state) => {
                let kept = self
                    .master(process)
                    .and_then(|master| master.keep_copy(now_ms, &request));
                if kept.is_some() {
                    let answer = PendingResponse {
                        to: from,
                        call,
                        copy: Some(request.number),
                    };
                    self.write_copy(process, request.state(), state, Some(answer));
                }
            }
            Event::CopyWritten(number, state, answer) => {
                let own = self.processes[process].copy.map(|(number, _)| number);
                match number.decide_copy(own) {
                    CopyDecision::Keep => self.processes[process].copy = Some((number, state)),
                    CopyDecision::HasIt => {}
                    CopyDecision::Outdated => return,
                }
                let Some(master) = self.master(process) else {
                    return;
                };
                let record = master.record();
                match answer {
                    Some(answer) => self.write(process, record, Some(answer)),
                    None => master.copied_own(number),
                }
                self.show_copied(process);
            }
            Event::Copied(call, number) => {
                if let Some(master) = self.master(process) {
                    master.copied(now_ms, &call, number);
                }
                self.show_copied(process);
            }
            _ => {}
        }
    }

    fn show_copied(&mut self, process: usize) {
        let now_ms = self.processes[process].clock(self.now).mono_ms;
        let Some(worker) = &self.processes[process].worker else {
            return;
        };
        let number = worker.numbered(worker.copying);
        let is_shown = self
            .master(process)
            .is_some_and(|master| master.show_copied(now_ms, number));
        if let Some(worker) = &mut self.processes[process].worker
            && is_shown
        {
            if worker.durable < number.number {
                self.by_copies += 1;
            }
            worker.durable = worker.durable.max(number.number);
        }
        self.show_durable(process);
    }
}

#[test]
fn no_state_that_was_shown_is_lost() {
    let (mut answered, mut by_copies) = (0, 0);
    for seed in 0..40 {
        let world = run_world(Elected::States, seed, 150).unwrap();
        answered += world.answers;
        by_copies += world.by_copies;
    }
    // Otherwise hardly anything was proven.
    assert!(answered > 50_000, "{answered} requests were answered");
    assert!(by_copies > 2_000, "{by_copies} states were shown by copies");
}
