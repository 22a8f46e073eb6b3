//! Runs `protocol::txn`: turns its commands into requests, and their responses into events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{FutureExt, pending};
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use percolator_protocol::actions::PrewriteRejection;
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::txn::{Command, Coordinator, Event, Finished, PrimaryEnd, Step};
use percolator_protocol::types::{Cell, Mutation, Timestamp};
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::response::Body;
use percolator_wire::{commit_result, v1};
use tokio::sync::oneshot;

use crate::Error;
use crate::attempts::Attempt;
use crate::group::RequestGroup;
use crate::large::Large;
use crate::location_cache::{RowQuery, UnknownLocation};
use crate::resolver::{malformed, unexpected};
use crate::router::{CallError, Deadline, Router};
use crate::session::GcLockGuard;
use crate::transport::BoxFuture;

/// How long a rollback may be tried in the background after a transaction was aborted. What is left
/// then, others clear when its ttl is over.
const ROLLBACK_TIMEOUT: Duration = Duration::from_secs(5);
/// The same after a transaction's deadline, which its caller waits for.
const LATE_ROLLBACK_TIMEOUT: Duration = Duration::from_millis(500);
/// How long secondaries may be tried in the background after the primary was committed. What is left
/// then, others clear when they meet it.
const SECONDARIES_TIMEOUT: Duration = Duration::from_secs(10);

const NO_BOUND: percolator_wire::Malformed =
    percolator_wire::Malformed("the answer to a prewrite without its min_commit_ts");

/// Cells in one request of a flush, such requests at a time, and places among its cells from which they are taken in
/// turn: the cells are sorted, and no server is to wait for all of another's.
const FLUSH_CELLS: usize = 16;
const FLUSH_AT_A_TIME: usize = 12;
const FLUSH_PLACES: usize = 8;

/// What a transaction has to commit.
pub(crate) struct Commit {
    pub(crate) router: Arc<Router>,
    pub(crate) start_ts: Timestamp,
    /// When the transaction began, on the transport's clock.
    pub(crate) began: Duration,
    /// Its changes, in the order of their cells; the first is the primary. Of a large transaction, those that
    /// are flushed now.
    pub(crate) mutations: Vec<Mutation>,
    /// The runs of observers that it comes from.
    pub(crate) chain: Option<v1::Chain>,
    /// What is known of a large transaction; `None`: this is all of it.
    pub(crate) flush: Option<Flush>,
    /// Retention of its locks, in milliseconds; it is renewed as long as the commit goes on.
    pub(crate) ttl_ms: u64,
    pub(crate) deadline: Deadline,
    /// What the last request that was given up on met.
    pub(crate) last_seen: Mutex<Option<CallError>>,
    /// The barrier is kept below it until the last prewrite is in place.
    pub(crate) held: Mutex<Option<GcLockGuard>>,
}

/// One flush of a large transaction.
pub(crate) struct Flush {
    pub(crate) large: Arc<Large>,
    /// Counted from 1.
    pub(crate) generation: u32,
    /// Behind it comes the commit.
    pub(crate) last: bool,
}

/// The requests of a flush: small ones, so that nobody waits long behind one of them, and some at a time.
#[derive(Default)]
struct Flushing {
    waiting: VecDeque<Vec<usize>>,
    under_way: FuturesUnordered<BoxFuture<'static, Vec<Event>>>,
}

impl Flushing {
    fn add(&mut self, mutations: &[usize]) {
        let pieces: Vec<_> = mutations.chunks(FLUSH_CELLS).collect();
        let apart = pieces.len().div_ceil(FLUSH_PLACES);
        let in_turn = (0..apart).flat_map(|first| pieces.iter().skip(first).step_by(apart));
        self.waiting.extend(in_turn.map(|piece| piece.to_vec()));
    }

    fn go_on(&mut self, commit: &Arc<Commit>) {
        while self.under_way.len() < FLUSH_AT_A_TIME
            && let Some(piece) = self.waiting.pop_front()
        {
            let commit = commit.clone();
            let prewrite = async move { commit.prewrite(piece).await };
            self.under_way.push(prewrite.boxed());
        }
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.under_way.is_empty()
    }
}

/// Ends when nobody waits for the result, as long as there is none.
async fn gone(result: &mut Option<oneshot::Sender<Result<Timestamp, Error>>>) {
    match result {
        Some(result) => result.closed().await,
        None => pending().await,
    }
}

impl Commit {
    /// Commits in the background, so that a caller that goes away doesn't leave it half done: without
    /// anybody waiting, what hasn't been decided is rolled back.
    pub(crate) async fn run(self) -> Result<Timestamp, Error> {
        let (sender, receiver) = oneshot::channel();
        let (start_ts, primary) = (self.start_ts, self.primary().clone());
        self.start(sender);
        receiver.await.unwrap_or(Err(Error::Unknown {
            start_ts,
            primary,
            why: "the commit ended with its runtime".into(),
        }))
    }

    /// [`Self::run`], for anyone who waits elsewhere.
    pub(crate) fn start(self, result: oneshot::Sender<Result<Timestamp, Error>>) {
        let transport = self.router.world.transport.clone();
        let going = self.router.in_background();
        let driver = Arc::new(self).drive(result);
        transport.spawn(driver.map(|()| drop(going)).boxed());
    }

    /// The server that has all cells, and the one request to it.
    fn one_server(&self) -> Result<Option<(RequestGroup, u64)>, UnknownLocation> {
        let cells = self.mutations.iter().map(|mutation| &mutation.cell);
        let bytes = |at: usize| self.mutations[at].value.len();
        self.router.one_server(cells.enumerate(), &bytes)
    }

    fn primary(&self) -> &Cell {
        match &self.flush {
            Some(flush) => &flush.large.primary,
            None => &self.mutations[0].cell,
        }
    }

    /// When to give up a step. A large transaction's take long altogether.
    fn deadline(&self) -> Deadline {
        match &self.flush {
            Some(flush) => self.router.deadline(flush.large.request_timeout),
            None => self.deadline,
        }
    }

    /// The coordinator, its first commands, and the request in one phase, if one server has every cell.
    async fn coordinator(&self) -> (Coordinator, Vec<Command>, Option<(RequestGroup, u64)>) {
        let (primary, mutations) = (self.primary().clone(), self.mutations.len());
        if let Some(flush) = &self.flush {
            let last = flush.last.then(|| flush.large.min_commit_ts());
            let (coordinator, commands) =
                Coordinator::start_large(self.start_ts, primary, mutations, last);
            return (coordinator, commands, None);
        }
        // Before the commit_ts is taken: see `protocol::actions::one_phase`.
        let one_server = match self.one_server() {
            Ok(one_server) => one_server,
            Err(UnknownLocation(_)) => {
                let cells = self.mutations.iter().map(|mutation| &mutation.cell);
                let rows = cells.map(|cell| RowQuery::of(cell.table, &cell.row));
                // A master that is away leaves it unknown.
                let _ = self.router.find(rows.collect(), self.deadline).await;
                self.one_server().unwrap_or_default()
            }
        };
        let (coordinator, commands) =
            Coordinator::start(self.start_ts, primary, mutations, one_server.is_some());
        (coordinator, commands, one_server)
    }

    async fn drive(self: Arc<Self>, result: oneshot::Sender<Result<Timestamp, Error>>) {
        let mut result = Some(result);
        let (mut coordinator, mut commands, mut one_server) = self.coordinator().await;
        let mut running: FuturesUnordered<BoxFuture<'_, Vec<Event>>> = FuturesUnordered::new();
        let mut flushing = Flushing::default();
        let mut is_cancelled = false;
        let mut renewing = self.clone().keep_alive().boxed();
        loop {
            for command in commands.drain(..) {
                match command {
                    Command::Finish(finished) => {
                        if let Some(result) = result.take() {
                            let _ = result.send(self.finished(finished));
                        }
                    }
                    Command::CommitSecondaries { commit_ts } => {
                        self.commit_secondaries(commit_ts).await;
                        return;
                    }
                    Command::ResolveAll { ending } => {
                        // What is on its way may leave locks, which nobody else would clear soon.
                        while flushing.under_way.next().await.is_some() {}
                        if let Some(flush) = &self.flush {
                            flush.large.resolve_all(ending).await;
                        }
                        return;
                    }
                    Command::OnePhase => {
                        if let Some((group, incarnation)) = one_server.take() {
                            running.push(self.clone().one_phase(group, incarnation).boxed());
                        }
                    }
                    Command::Prewrite { mutations } if self.flush.is_some() => {
                        flushing.add(&mutations);
                    }
                    command => running.push(self.clone().carry_out(command).boxed()),
                }
            }
            if coordinator.ended() {
                return;
            }
            if coordinator.prewrites() {
                flushing.go_on(&self);
            } else {
                flushing.waiting.clear();
            }
            let events = tokio::select! {
                biased;
                // Nobody waits for the result any more: what is not decided is dropped.
                () = gone(&mut result), if !is_cancelled => {
                    is_cancelled = true;
                    vec![Event::Cancel]
                }
                Some(events) = running.next() => events,
                Some(events) = flushing.under_way.next() => events,
                never = &mut renewing => match never {},
            };
            for event in events {
                commands.extend(coordinator.on(event));
            }
            if commands.is_empty() && running.is_empty() && flushing.is_empty() {
                // Every command ends in an event, so this can't be; better to say unknown than to hang.
                return;
            }
        }
    }

    fn finished(&self, finished: Finished) -> Result<Timestamp, Error> {
        match finished {
            Finished::Committed(commit_ts) => Ok(commit_ts),
            Finished::Flushed { min_commit_ts } => {
                if let Some(flush) = &self.flush {
                    flush.large.raise_min_commit_ts(min_commit_ts);
                }
                Ok(self.start_ts)
            }
            Finished::Aborted(reason) => {
                let after = self
                    .router
                    .world
                    .transport
                    .now()
                    .saturating_sub(self.deadline.start);
                let last = self.last_seen.lock().take();
                if let Some(gone @ (CallError::Deleted(_) | CallError::BeingDeleted(_))) = last {
                    let transport = &*self.router.world.transport;
                    return Err(self.deadline.error(transport, "committing", gone));
                }
                let last = last.map(|error| error.to_string());
                Err(Error::aborted(reason, last, after))
            }
            Finished::Unknown => Err(Error::Unknown {
                start_ts: self.start_ts,
                primary: self.primary().clone(),
                why: (self.last_seen.lock().take())
                    .map_or_else(|| "no answer".into(), |error| error.to_string()),
            }),
        }
    }

    async fn carry_out(self: Arc<Self>, command: Command) -> Vec<Event> {
        let router = &self.router;
        match command {
            Command::Prewrite { mutations } => self.prewrite(mutations).await,
            Command::CheckStatus {
                obstacle,
                met,
                force,
            } => match router
                .check_status(&met, None, force, self.deadline())
                .await
            {
                Ok(status) => vec![Event::Status { obstacle, status }],
                Err(error) => self.gave_up(Step::Prewrite, error),
            },
            Command::Resolve {
                obstacle,
                met,
                ending,
            } => match router.resolve(&met, ending, self.deadline()).await {
                Ok(()) => {
                    router.clear_behind(&met[0], ending);
                    vec![Event::Resolved { obstacle }]
                }
                Err(error) => self.gave_up(Step::Prewrite, error),
            },
            Command::TakeCommitTs { pause_ms } => {
                // Everything is locked: from now on the locks stand for it, see `session`.
                self.held.lock().take();
                if pause_ms > 0 {
                    let pause = Duration::from_millis(pause_ms);
                    router.world.transport.sleep(pause).await;
                }
                match router.commit_ts(self.start_ts, self.deadline()).await {
                    Ok(ts) => vec![Event::CommitTs(ts)],
                    Err(error) => self.gave_up(Step::CommitTs, error),
                }
            }
            Command::CommitPrimary { commit_ts } => self.commit_primary(commit_ts).await,
            Command::Rollback { mutations } => {
                vec![Event::RollbackEnded(self.rollback(mutations).await)]
            }
            Command::RollbackPrimary => {
                let end = match &self.flush {
                    Some(flush) => flush.large.rollback_primary().await,
                    None => PrimaryEnd::Unanswered,
                };
                vec![Event::RollbackEnded(end)]
            }
            Command::OnePhase
            | Command::Finish(_)
            | Command::CommitSecondaries { .. }
            | Command::ResolveAll { .. } => Vec::new(),
        }
    }

    async fn commit_primary(&self, commit_ts: Timestamp) -> Vec<Event> {
        if mutants::on(Mutant::SecondariesFirst) {
            self.commit_secondaries(commit_ts).await;
        }
        let build = |cell| self.commit_request(commit_ts, vec![cell]);
        let answer = self
            .router
            .call_one(self.primary(), &build, self.deadline())
            .await
            .and_then(|body| match body {
                Body::Commit(response) => commit_result(response).map_err(malformed),
                _ => Err(unexpected()),
            });
        match answer {
            Ok(result) => vec![Event::PrimaryCommit(result)],
            Err(error) => self.gave_up(Step::CommitPrimary, error),
        }
    }

    fn gave_up(&self, step: Step, error: CallError) -> Vec<Event> {
        if let (CallError::TooOld(too_old), Step::Prewrite) = (&error, step) {
            return vec![Event::TooOld {
                too_old: *too_old,
                in_one_phase: false,
            }];
        }
        *self.last_seen.lock() = Some(error);
        vec![Event::GaveUp(step)]
    }

    async fn prewrite(&self, mutations: Vec<usize>) -> Vec<Event> {
        let build = |cells| self.prewrite_request(cells, None);
        let answered = self
            .router
            .call(
                &|at| self.mutations[at].cell.clone(),
                mutations,
                &|at| self.mutations[at].value.len(),
                &build,
                self.deadline(),
            )
            .await;
        answered
            .into_iter()
            .flat_map(|(mutations, body)| match body {
                Ok(Body::Prewrite(response)) => self.prewritten(mutations, response),
                Ok(_) => self.gave_up(Step::Prewrite, unexpected()),
                Err(error) => self.gave_up(Step::Prewrite, error),
            })
            .collect()
    }

    async fn one_phase(self: Arc<Self>, group: RequestGroup, incarnation: u64) -> Vec<Event> {
        let commit_ts = match self.router.commit_ts(self.start_ts, self.deadline).await {
            Ok(ts) => ts,
            Err(error) => return self.gave_up(Step::CommitTs, error),
        };
        let all = (0..self.mutations.len()).collect();
        let wish = v1::OnePhase {
            commit_ts: commit_ts.as_u64(),
            incarnation,
        };
        let body = self.prewrite_request(group.cells, Some(wish));
        // Once: another server, or another incarnation of this one, is not to be asked with this commit_ts.
        let (address, deadline) = (&group.address, self.deadline);
        let sent = self.router.send(address, group.tablets, body, deadline);
        match sent.await {
            Attempt::Done(Body::Prewrite(response)) if response.committed => {
                vec![Event::CommittedInOnePhase(commit_ts)]
            }
            Attempt::Done(Body::Prewrite(response)) => self.prewritten(all, response),
            Attempt::TooOld(too_old) => vec![Event::TooOld {
                too_old,
                in_one_phase: true,
            }],
            Attempt::NeverSent(_) => vec![Event::NotSentInOnePhase],
            Attempt::Again(why)
            | Attempt::Busy(why)
            | Attempt::Moved(why)
            | Attempt::Lost(why)
            | Attempt::Damaged(why) => {
                *self.last_seen.lock() = Some(CallError::GaveUp(why));
                vec![Event::NoAnswerInOnePhase]
            }
            Attempt::Done(_) | Attempt::Frozen(_) | Attempt::Invalid(_) => {
                vec![Event::NoAnswerInOnePhase]
            }
        }
    }

    fn prewrite_request(
        &self,
        cells: Vec<(usize, v1::CellRef)>,
        one_phase: Option<v1::OnePhase>,
    ) -> Ask {
        Ask::Prewrite(v1::PrewriteRequest {
            start_ts: self.start_ts.as_u64(),
            primary: Some(v1::CellName::from(self.primary())),
            ttl_ms: self.ttl_now_ms(),
            generation: self.flush.as_ref().map_or(0, |flush| flush.generation),
            mutations: cells
                .into_iter()
                .map(|(at, cell)| v1::Mutation {
                    cell: Some(cell),
                    kind: v1::LockKind::from(self.mutations[at].kind).into(),
                    value: self.mutations[at].value.clone(),
                })
                .collect(),
            one_phase,
            chain: self.chain.clone(),
        })
    }

    /// What the response for these mutations says.
    fn prewritten(&self, mutations: Vec<usize>, response: v1::PrewriteResponse) -> Vec<Event> {
        if response.rejections.is_empty() {
            return match response.min_commit_ts {
                0 => self.gave_up(Step::Prewrite, malformed(NO_BOUND)),
                min_commit_ts => vec![Event::Prewritten {
                    mutations,
                    min_commit_ts: Timestamp::from_u64(min_commit_ts),
                }],
            };
        }
        let rejections: Result<Vec<(Cell, PrewriteRejection)>, percolator_wire::Malformed> =
            response
                .rejections
                .into_iter()
                .map(|rejection| {
                    let at = mutations
                        .get(rejection.mutation as usize)
                        .ok_or(percolator_wire::Malformed("a rejection of nothing"))?;
                    Ok((self.mutations[*at].cell.clone(), rejection.try_into()?))
                })
                .collect();
        match rejections {
            Ok(rejections) => vec![Event::Rejected {
                mutations,
                rejections,
            }],
            Err(error) => self.gave_up(Step::Prewrite, malformed(error)),
        }
    }

    /// The ttl counts from start_ts on, and the application has had its time since then.
    fn ttl_now_ms(&self) -> u64 {
        let elapsed = self.router.world.transport.now().saturating_sub(self.began);
        self.ttl_ms + u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX / 2)
    }

    fn commit_request(&self, commit_ts: Timestamp, cells: Vec<v1::CellRef>) -> Ask {
        Ask::Commit(v1::CommitRequest {
            start_ts: self.start_ts.as_u64(),
            commit_ts: commit_ts.as_u64(),
            cells,
        })
    }

    async fn commit_secondaries(&self, commit_ts: Timestamp) {
        if self.mutations.len() == 1 {
            return;
        }
        let build = |cells: Vec<(usize, v1::CellRef)>| {
            self.commit_request(commit_ts, cells.into_iter().map(|(_, cell)| cell).collect())
        };
        let secondaries = (1..self.mutations.len()).collect();
        let deadline = self.router.deadline(SECONDARIES_TIMEOUT);
        let _ = self.every_cell(secondaries, &build, deadline).await;
    }

    async fn rollback(&self, mutations: Vec<usize>) -> PrimaryEnd {
        let build = |cells: Vec<(usize, v1::CellRef)>| {
            Ask::Rollback(v1::RollbackRequest {
                start_ts: self.start_ts.as_u64(),
                cells: cells.into_iter().map(|(_, cell)| cell).collect(),
            })
        };
        // Anyone who waits has waited long enough; servers that answer do so within that.
        let timeout = if self.deadline.passed(&*self.router.world.transport) {
            LATE_ROLLBACK_TIMEOUT
        } else {
            ROLLBACK_TIMEOUT
        };
        let deadline = self.router.deadline(timeout);
        match self.every_cell(mutations, &build, deadline).await {
            Some(Body::Rollback(response)) => match response.committed {
                Some(committed) => PrimaryEnd::Committed(Timestamp::from_u64(committed.commit_ts)),
                None => PrimaryEnd::RolledBack,
            },
            _ => PrimaryEnd::Unanswered,
        }
    }

    /// Returns the response for the primary, where it is among them.
    async fn every_cell(
        &self,
        indices: Vec<usize>,
        build: &(dyn Fn(Vec<(usize, v1::CellRef)>) -> Ask + Sync),
        deadline: Deadline,
    ) -> Option<Body> {
        let mut of_primary = None;
        let cell = |at: usize| self.mutations[at].cell.clone();
        let answered = self
            .router
            .call(&cell, indices, &|_| 0, build, deadline)
            .await;
        for (cells, body) in answered {
            match body {
                Ok(body) if cells.contains(&0) => of_primary = Some(body),
                Ok(_) => {}
                Err(why) => {
                    tracing::debug!(start_ts = %self.start_ts, %why, "left for others to clear");
                }
            }
        }
        of_primary
    }

    /// Renews the primary's ttl. A renewal is tried until the next one is due: there is one at a time.
    async fn keep_alive(self: Arc<Self>) -> Infallible {
        let every = Duration::from_millis((self.ttl_ms / 3).max(1));
        let build = |primary| {
            Ask::KeepAlive(v1::KeepAliveRequest {
                primary: Some(primary),
                start_ts: self.start_ts.as_u64(),
                // Of each attempt: the ttl counts from when this one is sent.
                ttl_ms: self.ttl_now_ms(),
            })
        };
        let renew = async || {
            // A primary that isn't there (any more) shows when it is committed.
            let (primary, deadline) = (self.primary(), self.deadline());
            let _ = self.router.call_one(primary, &build, deadline).await;
        };
        let mut due = self.router.world.transport.sleep(every);
        let mut renewal: BoxFuture<'_, ()> = pending().boxed();
        loop {
            tokio::select! {
                biased;
                () = &mut due => {
                    due = self.router.world.transport.sleep(every);
                    renewal = renew().boxed();
                }
                () = &mut renewal => renewal = pending().boxed(),
            }
        }
    }
}
