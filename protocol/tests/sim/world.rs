//! Runs a plan.

use std::collections::{BTreeMap, BTreeSet};

use percolator_protocol::actions::Prewrite;
use percolator_protocol::txn::{
    Command, Coordinator, Ending, Event, Finished, PrimaryEnd, ReadNext, after_status_read,
};
use percolator_protocol::types::{Cell, Timestamp};

use super::check::{self, Watch};
use super::client::{Client, Purpose, State, ask, resolve};
use super::plan::{Plan, Step, early};
use super::request::{Request, Response};
use crate::support::args;
use crate::support::store::Store;
use crate::support::txn::event_command;

/// More than any case needs to come to rest.
const DRAIN_MAX: usize = 400;

/// A message under way.
#[derive(Clone, Debug)]
struct Message {
    client: usize,
    /// Which of its calls it belongs to; `None` where nobody waits.
    call: Option<u64>,
    content: Content,
}

#[derive(Clone, Debug)]
enum Content {
    Ask(Request),
    Response(Response),
}

pub(crate) struct World<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) store: Store,
    pub(crate) clients: Vec<Client>,
    /// The oracle: the last timestamp handed out.
    clock: Timestamp,
    /// Timestamps that were held back, to be granted as a commit_ts later.
    held_back: BTreeSet<Timestamp>,
    messages: Vec<Message>,
    calls: u64,
    watch: Watch,
    /// The commands of a script that does the same, where one is wanted.
    script: Option<&'a mut Vec<String>>,
}

/// Runs the plan to its end, and says what is wrong.
pub(crate) fn run(plan: &Plan, script: Option<&mut Vec<String>>) -> Result<Store, String> {
    let mut world = World {
        plan,
        store: Store::default(),
        clients: (0..plan.txns.len()).map(|_| Client::default()).collect(),
        clock: Timestamp::ZERO,
        held_back: BTreeSet::new(),
        messages: Vec::new(),
        calls: 0,
        watch: Watch::default(),
        script,
    };
    world.run()?;
    Ok(world.store)
}

impl World<'_> {
    fn run(&mut self) -> Result<(), String> {
        for step in &self.plan.steps {
            self.step(*step)?;
        }
        if self.plan.drain {
            self.drain()?;
        }
        self.clear_locks()?;
        // Nobody waits any more; what is still under way arrives all the same.
        self.clients.iter_mut().for_each(Client::die);
        while !self.messages.is_empty() {
            self.deliver(0)?;
        }
        self.clear_locks()?;
        check::outcomes(self)
    }

    fn note(&mut self, command: impl FnOnce() -> Option<String>) {
        if let Some(script) = &mut self.script {
            script.extend(command());
        }
    }

    pub(super) fn tick(&mut self) -> Timestamp {
        self.clock = self.clock.next();
        self.clock
    }

    /// The commit_ts that the client gets, of which this one was granted last: the lowest that was held back and
    /// lies above its start_ts. As two oracles with overlapping rights would, it grants none twice.
    fn swapped(&mut self, at: usize, granted: Timestamp) -> Timestamp {
        if !self.plan.stale {
            return granted;
        }
        self.held_back.insert(granted);
        let start_ts = self.clients[at].start_ts;
        let stale = self.held_back.range(start_ts.next()..).next();
        let stale = stale.copied().unwrap_or(granted);
        self.held_back.remove(&stale);
        stale
    }

    fn pass(&mut self, ms: u64) {
        self.clock = Timestamp::from_millis(self.clock.physical_ms() + ms);
    }

    fn step(&mut self, step: Step) -> Result<(), String> {
        let message = |pick: usize, world: &Self| {
            let count = world.messages.len();
            (count > 0).then(|| pick % count)
        };
        let clients = self.clients.len();
        let slow = self.plan.slow;
        let quick = |message: &Message| message.client != slow;
        match step {
            Step::Client(pick) => self.advance(pick % clients),
            Step::Deliver(pick) => {
                if let Some(at) = message(pick, self) {
                    return self.deliver(at);
                }
            }
            Step::DeliverOldest => {
                if let Some(at) = self.messages.iter().position(quick) {
                    return self.deliver(at);
                }
            }
            Step::DeliverNewest => {
                if let Some(at) = self.messages.iter().rposition(quick) {
                    return self.deliver(at);
                }
            }
            Step::Double(pick) => {
                if let Some(at) = message(pick, self) {
                    self.messages.push(self.messages[at].clone());
                }
            }
            Step::Lose(pick) => {
                if let Some(at) = message(pick, self) {
                    let lost = self.messages.remove(at);
                    self.ask_again(&lost);
                }
            }
            Step::GiveUp(pick) => {
                if let Some(at) = message(pick, self) {
                    let Message { client, call, .. } = self.messages[at];
                    self.give_up(client, call);
                }
            }
            Step::Kill(pick) => self.clients[pick % clients].die(),
            Step::Cancel(pick) => self.event(pick % clients, Event::Cancel),
            Step::KeepAlive(pick) => self.keep_alive(pick % clients),
            Step::Pass { ms } => self.pass(ms),
        }
        Ok(())
    }

    /// Everything arrives, in order, and the clients go on; time passes, so that nobody waits for the
    /// dead forever.
    fn drain(&mut self) -> Result<(), String> {
        for round in 0..DRAIN_MAX {
            if self.messages.is_empty() {
                for client in 0..self.clients.len() {
                    if !matches!(self.clients[client].state, State::NotBegun) {
                        self.advance(client);
                    }
                }
                if self.messages.is_empty() {
                    return Ok(());
                }
            }
            if round % 8 == 7 {
                self.pass(1);
            }
            self.deliver(0)?;
        }
        Ok(())
    }

    /// The end: every owner is dead, and a reader of everything clears each lock that it meets.
    fn clear_locks(&mut self) -> Result<(), String> {
        self.pass(1_000_000);
        for met in self.store.locks() {
            let now = self.tick();
            let Response::CheckStatus(status) = self.serve(&ask(&met, now, Some(now), false))?
            else {
                unreachable!("the status was asked for");
            };
            match after_status_read(status, now) {
                ReadNext::Resolve(ending) => {
                    self.serve(&resolve(std::slice::from_ref(&met), ending))?
                }
                other => return Err(format!("the lock on {} stays: {other:?}", met.cell)),
            };
        }
        match self.store.locks().first() {
            Some(met) => Err(format!("the lock on {} can't be cleared", met.cell)),
            None => Ok(()),
        }
    }

    pub(super) fn advance(&mut self, at: usize) {
        match self.clients[at].state {
            State::NotBegun => {
                let start_ts = self.tick();
                if self.plan.stale {
                    let held_back = self.tick();
                    self.held_back.insert(held_back);
                }
                let client = &mut self.clients[at];
                client.start_ts = start_ts;
                client.ttl_ms = self.plan.txns[at].ttl_ms;
                client.state = State::Reading(0);
                self.go_on(at);
            }
            State::Reading(next) if self.clients[at].waiting.is_empty() => {
                if next < self.plan.txns[at].reads.len() {
                    self.read(at);
                    return;
                }
                let mutations = self.plan.mutations(at);
                if mutations.is_empty() {
                    self.clients[at].state = State::Ended;
                    return;
                }
                let client = &mut self.clients[at];
                let (start_ts, count) = (client.start_ts, mutations.len());
                let primary = mutations[0].cell.clone();
                client.mutations = mutations;
                if self.plan.txns[at].flushes {
                    return self.flush(at);
                }
                let all: Vec<usize> = (0..self.clients[at].mutations.len()).collect();
                let one_server = self.plan.one_phase && self.by_server(at, &all).len() == 1;
                self.note(|| {
                    let (ts, cell) = (args::ts(start_ts), args::cell(&primary));
                    let one_server = if one_server { " one-server" } else { "" };
                    Some(format!(
                        "txn {ts} primary={cell} mutations={count}{one_server}"
                    ))
                });
                let (coordinator, commands) =
                    Coordinator::start(start_ts, primary, count, one_server);
                self.clients[at].state = State::Committing(Box::new(coordinator));
                self.carry_out(at, commands);
            }
            State::Reading(_) | State::Committing(_) | State::Ended => {}
        }
    }

    /// The next flush; the second one is the last.
    fn flush(&mut self, at: usize) {
        let client = &mut self.clients[at];
        client.generation += 1;
        let last = (client.generation == 2).then_some(client.min_commit_ts);
        let (start_ts, count) = (client.start_ts, client.mutations.len());
        let primary = client.primary().clone();
        self.note(|| {
            let (ts, cell) = (args::ts(start_ts), args::cell(&primary));
            let last = last.map_or_else(String::new, |ts| format!(" last={}", args::ts(ts)));
            Some(format!("flush {ts} primary={cell} mutations={count}{last}"))
        });
        let (coordinator, commands) = Coordinator::start_large(start_ts, primary, count, last);
        self.clients[at].state = State::Committing(Box::new(coordinator));
        self.carry_out(at, commands);
    }

    fn keep_alive(&mut self, at: usize) {
        let client = &self.clients[at];
        if matches!(client.state, State::Committing(_)) {
            let request = Request::KeepAlive {
                primary: client.primary().clone(),
                start_ts: client.start_ts,
                ttl_ms: client.ttl_at(self.clock),
            };
            self.send(at, None, request);
        }
    }

    pub(super) fn call(&mut self, at: usize, purpose: Purpose, request: Request) {
        self.calls += 1;
        let call = self.calls;
        let waiting = &mut self.clients[at].waiting;
        waiting.insert(call, (purpose, request.clone()));
        self.send(at, Some(call), request);
    }

    fn send(&mut self, client: usize, call: Option<u64>, request: Request) {
        self.messages.push(Message {
            client,
            call,
            content: Content::Ask(request),
        });
    }

    fn ask_again(&mut self, lost: &Message) {
        let waiting = &self.clients[lost.client].waiting;
        if let Some((_, request)) = lost.call.and_then(|call| waiting.get(&call)) {
            let request = request.clone();
            self.send(lost.client, lost.call, request);
        }
    }

    fn give_up(&mut self, at: usize, call: Option<u64>) {
        let client = &mut self.clients[at];
        let Some(call) = call else { return };
        let Some((purpose, _)) = client.waiting.get(&call) else {
            return;
        };
        if let Some(event) = purpose.given_up() {
            client.waiting.remove(&call);
            self.event(at, event);
        } else if matches!(purpose, Purpose::Rollback) {
            client.waiting.remove(&call);
            self.rolled_back(at);
        }
    }

    fn deliver(&mut self, at: usize) -> Result<(), String> {
        let message = self.messages.remove(at);
        match message.content {
            Content::Ask(request) => {
                let answer = self.serve(&request)?;
                if message.call.is_some() {
                    let content = Content::Response(answer);
                    self.messages.push(Message { content, ..message });
                }
            }
            Content::Response(answer) => {
                let client = &mut self.clients[message.client];
                let waiting = message.call.and_then(|call| client.waiting.remove(&call));
                // A double, or nobody waits any more.
                if let Some((purpose, _)) = waiting {
                    self.answered(message.client, purpose, answer);
                }
            }
        }
        Ok(())
    }

    fn serve(&mut self, request: &Request) -> Result<Response, String> {
        if let Request::Timestamp = request {
            return Ok(Response::Timestamp(self.tick()));
        }
        self.note(|| request.command());
        let answer = request.run(&mut self.store);
        if !matches!(answer, Response::Get(_) | Response::Scan(..)) {
            self.watch.check(&self.store)?;
        }
        Ok(answer)
    }

    fn answered(&mut self, at: usize, purpose: Purpose, answer: Response) {
        let event = match (purpose, answer) {
            (purpose @ (Purpose::Read | Purpose::ReadStatus(_) | Purpose::ReadResolve), answer) => {
                return self.read_answered(at, purpose, answer);
            }
            (Purpose::Rollback, Response::Rollback(committed)) => {
                // One server has the primary, and of a commit in one phase any cell knows.
                let end = committed.map_or(PrimaryEnd::RolledBack, PrimaryEnd::Committed);
                self.clients[at].primary_end.get_or_insert(end);
                return self.rolled_back(at);
            }
            (Purpose::OnePhaseTs, Response::Timestamp(commit_ts)) => {
                let commit_ts = self.swapped(at, commit_ts);
                return self.one_phase(at, commit_ts);
            }
            (Purpose::OnePhase(_), Response::CommittedInOnePhase(commit_ts)) => {
                Event::CommittedInOnePhase(commit_ts)
            }
            (
                Purpose::Prewrite(mutations) | Purpose::OnePhase(mutations),
                Response::Prewrite(result),
            ) => match result {
                Ok(min_commit_ts) => Event::Prewritten {
                    mutations,
                    min_commit_ts,
                },
                Err(rejections) => Event::Rejected {
                    mutations,
                    rejections,
                },
            },
            (Purpose::Status(obstacle), Response::CheckStatus(status)) => {
                Event::Status { obstacle, status }
            }
            (Purpose::Resolve(obstacle), _) => Event::Resolved { obstacle },
            (Purpose::CommitTs, Response::Timestamp(ts)) => Event::CommitTs(self.swapped(at, ts)),
            (Purpose::CommitPrimary, Response::Commit(result)) => Event::PrimaryCommit(result),
            (purpose, answer) => unreachable!("{purpose:?} was answered by {answer:?}"),
        };
        self.event(at, event);
    }

    fn rolled_back(&mut self, at: usize) {
        let client = &mut self.clients[at];
        client.rollbacks = client.rollbacks.saturating_sub(1);
        if client.rollbacks == 0 {
            let end = client.primary_end.unwrap_or(PrimaryEnd::Unanswered);
            self.event(at, Event::RollbackEnded(end));
        }
    }

    fn event(&mut self, at: usize, event: Event) {
        let client = &mut self.clients[at];
        let State::Committing(coordinator) = &mut client.state else {
            return;
        };
        let start_ts = client.start_ts;
        let commands = coordinator.on(event.clone());
        self.note(|| Some(event_command(start_ts, &event)));
        self.carry_out(at, commands);
    }

    #[expect(clippy::too_many_lines, reason = "one match over all commands")]
    fn carry_out(&mut self, at: usize, commands: Vec<Command>) {
        for command in commands {
            match command {
                Command::Prewrite { mutations } => self.prewrite(at, &mutations),
                Command::CheckStatus {
                    obstacle,
                    met,
                    force,
                } => {
                    let request = ask(&met, self.tick(), None, force);
                    self.call(at, Purpose::Status(obstacle), request);
                }
                Command::Resolve {
                    obstacle,
                    met,
                    ending,
                } => self.call(at, Purpose::Resolve(obstacle), resolve(&met, ending)),
                Command::OnePhase => self.call(at, Purpose::OnePhaseTs, Request::Timestamp),
                Command::TakeCommitTs { .. } => {
                    self.call(at, Purpose::CommitTs, Request::Timestamp)
                }
                Command::CommitPrimary { commit_ts } => {
                    let client = &self.clients[at];
                    let request = Request::Commit {
                        start_ts: client.start_ts,
                        commit_ts,
                        cells: vec![client.primary().clone()],
                    };
                    self.call(at, Purpose::CommitPrimary, request);
                }
                Command::Finish(Finished::Flushed { min_commit_ts }) => {
                    let client = &mut self.clients[at];
                    client.min_commit_ts = client.min_commit_ts.max(min_commit_ts);
                    self.flush(at);
                }
                Command::RollbackPrimary => {
                    let client = &mut self.clients[at];
                    client.rollbacks = 1;
                    let request = Request::Rollback {
                        start_ts: client.start_ts,
                        cells: vec![client.primary().clone()],
                    };
                    self.call(at, Purpose::Rollback, request);
                }
                Command::ResolveAll { ending } => {
                    let start_ts = self.clients[at].start_ts;
                    // Each may come at any time, or twice; one resolves a part.
                    for limit in [1, usize::MAX] {
                        let request = Request::Resolve {
                            start_ts,
                            ending,
                            limit,
                        };
                        self.send(at, None, request);
                    }
                }
                Command::Finish(finished) => self.clients[at].outcome = Some(finished),
                Command::CommitSecondaries { commit_ts } => {
                    let start_ts = self.clients[at].start_ts;
                    let secondaries: Vec<usize> = (1..self.clients[at].mutations.len()).collect();
                    for cells in self.by_server(at, &secondaries) {
                        let ending = Request::Commit {
                            start_ts,
                            commit_ts,
                            cells,
                        };
                        self.send(at, None, ending);
                    }
                }
                Command::Rollback { mutations } => {
                    let start_ts = self.clients[at].start_ts;
                    let servers = self.by_server(at, &mutations);
                    self.clients[at].rollbacks = servers.len();
                    for cells in servers {
                        self.call(at, Purpose::Rollback, Request::Rollback { start_ts, cells });
                    }
                }
            }
        }
    }

    fn txn(&self, at: usize) -> Prewrite {
        let client = &self.clients[at];
        Prewrite {
            start_ts: client.start_ts,
            primary: client.primary().clone(),
            ttl_ms: client.ttl_at(self.clock),
            generation: client.generation,
            chain: None,
        }
    }

    fn one_phase(&mut self, at: usize, commit_ts: Timestamp) {
        let mutations = self.clients[at].mutations.clone();
        let all = (0..mutations.len()).collect();
        let request = Request::OnePhase(self.txn(at), mutations, commit_ts);
        self.call(at, Purpose::OnePhase(all), request);
    }

    /// One request a server.
    fn prewrite(&mut self, at: usize, mutations: &[usize]) {
        let client = &self.clients[at];
        let txn = self.txn(at);
        let mut servers: BTreeMap<u8, Vec<usize>> = BTreeMap::new();
        for index in mutations {
            let server = self.plan.server(&client.mutations[*index].cell);
            servers.entry(server).or_default().push(*index);
        }
        for indices in servers.into_values() {
            let all = &self.clients[at].mutations;
            let mutations = indices.iter().map(|index| match txn.generation {
                1 => early(&all[*index]),
                _ => all[*index].clone(),
            });
            let mutations = mutations.collect();
            let request = Request::Prewrite(txn.clone(), mutations);
            self.call(at, Purpose::Prewrite(indices), request);
        }
    }

    /// The cells of the mutations from `first` on, one list a server.
    fn by_server(&self, at: usize, mutations: &[usize]) -> Vec<Vec<Cell>> {
        let mut servers: BTreeMap<u8, Vec<Cell>> = BTreeMap::new();
        for mutation in mutations.iter().map(|of| &self.clients[at].mutations[*of]) {
            let server = self.plan.server(&mutation.cell);
            servers
                .entry(server)
                .or_default()
                .push(mutation.cell.clone());
        }
        servers.into_values().collect()
    }

    /// How the transaction ended, as its primary says at the end.
    pub(crate) fn ending(&self, client: &Client) -> Option<Ending> {
        check::ending(&self.store, client.primary(), client.start_ts)
    }
}
