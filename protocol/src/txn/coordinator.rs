//! The two phases of one transaction.

use std::collections::{BTreeMap, BTreeSet};

use super::bound::{CommitBound, Verdict};
use super::finished::{AbortReason, Finished};
use super::obstacle::{Ending, MetLock};
use crate::actions::{CommitRejection, PrewriteRejection, Status};
use crate::mutants::{self, Mutant};
use crate::safe_point::TooOld;
use crate::types::{Cell, Timestamp};

/// An event of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// These mutations are in place.
    Prewritten {
        /// Indices of mutations.
        mutations: Vec<usize>,
        /// The transaction may not commit below this (`actions::min_commit_ts`).
        min_commit_ts: Timestamp,
    },
    /// None of these mutations was written, because some of them were rejected.
    Rejected {
        /// Indices of the mutations of the request.
        mutations: Vec<usize>,
        /// Which were rejected, on which cell, and why; at least one.
        rejections: Vec<(Cell, PrewriteRejection)>,
    },
    /// The answer to [`Command::CheckStatus`].
    Status {
        /// Which obstacle.
        obstacle: usize,
        /// The end of its transaction.
        status: Status,
    },
    /// The answer to [`Command::Resolve`].
    Resolved {
        /// Which obstacle.
        obstacle: usize,
    },
    /// The answer to [`Command::TakeCommitTs`].
    CommitTs(Timestamp),
    /// The answer to [`Command::CommitPrimary`].
    PrimaryCommit(Result<(), CommitRejection>),
    /// [`Command::OnePhase`] has committed everything.
    CommittedInOnePhase(Timestamp),
    /// [`Command::OnePhase`] was not carried out, or not answered.
    NoAnswerInOnePhase,
    /// [`Command::OnePhase`] has not left the client, and won't.
    NotSentInOnePhase,
    /// [`Command::Rollback`] has come to its end.
    RollbackEnded(PrimaryEnd),
    /// The runner's deadline passed before this step was answered. What became of it is unknown.
    GaveUp(Step),
    /// A tablet server refused the prewrite, because the barrier has passed the transaction.
    TooOld {
        /// By how far.
        too_old: TooOld,
        /// [`Command::OnePhase`] was refused, and not carried out.
        in_one_phase: bool,
    },
    /// The application dropped the transaction.
    Cancel,
}

/// The state of the primary after the rollback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrimaryEnd {
    /// It is rolled back, for good.
    RolledBack,
    /// It is committed; nothing was rolled back.
    Committed(Timestamp),
    /// It could not be reached.
    Unanswered,
}

/// A kind of command, as far as giving up on it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Prewriting, with the clearing of obstacles.
    Prewrite,
    /// Taking a commit_ts.
    CommitTs,
    /// Committing the primary.
    CommitPrimary,
}

/// A command to the runner of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Prewrite these, one request a server; answer each request with an event of its own.
    Prewrite {
        /// Indices of mutations.
        mutations: Vec<usize>,
    },
    /// Take a commit_ts, then send every mutation to the one server that has them all, once: it prewrites
    /// them, and commits them in the same step where it can. Answered as [`Command::Prewrite`] is, or by
    /// [`Event::CommittedInOnePhase`] or [`Event::NoAnswerInOnePhase`].
    OnePhase,
    /// Ask the lock's primary what became of its transaction.
    CheckStatus {
        /// To be named in the answer.
        obstacle: usize,
        /// The lock; of several of one transaction, the one that lives longest.
        met: MetLock,
        /// Roll it back if it's alive: it is younger.
        force: bool,
    },
    /// Clear the locks of one transaction.
    Resolve {
        /// To be named in the answer.
        obstacle: usize,
        /// The locks, at least one.
        met: Vec<MetLock>,
        /// How its transaction ended.
        ending: Ending,
    },
    /// Ask the oracle, after this pause and not before: every lock is in place.
    TakeCommitTs {
        /// How far the last one was behind, in milliseconds; the first one is taken at once.
        pause_ms: u64,
    },
    /// Commit the primary.
    CommitPrimary {
        /// At this timestamp.
        commit_ts: Timestamp,
    },
    /// Return the outcome to the application.
    Finish(Finished),
    /// Commit everything but the primary; nobody waits for it.
    CommitSecondaries {
        /// At this timestamp.
        commit_ts: Timestamp,
    },
    /// Roll these back; among them those whose prewrite wasn't answered.
    Rollback {
        /// Indices of mutations, at least one.
        mutations: Vec<usize>,
    },
    /// Roll the primary of a pipelined transaction back.
    RollbackPrimary,
    /// Resolve every lock of a pipelined transaction; nobody waits for it.
    ResolveAll {
        /// How it ended.
        ending: Ending,
    },
}

/// The part of a transaction that a coordinator has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Whole,
    /// One flush of a pipelined transaction.
    Flush,
    /// The remaining prewrites, and the commit.
    LastFlush,
}

/// The commit of one transaction; or, of a pipelined one, of one of its flushes.
#[derive(Debug)]
pub struct Coordinator {
    part: Part,
    start_ts: Timestamp,
    primary: Cell,
    mutations: usize,
    /// Mutations that aren't in place yet.
    missing: usize,
    obstacles: BTreeMap<usize, Obstacle>,
    next_obstacle: usize,
    bound: CommitBound,
    /// A request to commit in one phase was sent, and may be carried out yet.
    one_phase_open: bool,
    /// For [`Mutant::CommitTsBeforePrewrite`] alone.
    early_commit_ts: Option<Timestamp>,
    state: State,
}

/// The locks of one transaction in the way of a request, which is sent again when its last obstacle is gone.
#[derive(Debug)]
struct Obstacle {
    /// At least one; the first lives longest.
    met: Vec<MetLock>,
    request: usize,
    /// The mutations of the request; held by its last obstacle.
    mutations: Vec<usize>,
}

#[allow(
    clippy::large_enum_variant,
    reason = "one a transaction; a box would cost more than it saves"
)]
#[derive(Debug, PartialEq)]
enum State {
    Prewriting,
    TakingCommitTs,
    CommittingPrimary(Timestamp),
    RollingBack(AbortReason),
    Ended,
}

impl Coordinator {
    /// Starts to commit `mutations` cells, at least one; `primary` is one of them. `one_server`: one server
    /// seems to have them all, and is known well enough to be asked to commit them in one phase.
    pub fn start(
        start_ts: Timestamp,
        primary: Cell,
        mutations: usize,
        one_server: bool,
    ) -> (Self, Vec<Command>) {
        assert!(mutations > 0, "nothing to commit");
        let mut coordinator = Self::new(Part::Whole, start_ts, primary, mutations);
        coordinator.one_phase_open = one_server;
        let first = if one_server {
            Command::OnePhase
        } else if mutants::on(Mutant::CommitTsBeforePrewrite) {
            coordinator.state = State::TakingCommitTs;
            Command::TakeCommitTs { pause_ms: 0 }
        } else {
            coordinator.prewrite_all()
        };
        (coordinator, vec![first])
    }

    /// Starts to flush so many cells of a pipelined transaction, or, with `last`, to commit it, when every earlier
    /// flush is in place; `last` is the highest min_commit_ts of those. `primary` need not be among the cells; it is among those of the first flush. Of the
    /// others nobody remembers which they are: anyone who runs this knows the tables and rows between which they
    /// lie, and each tablet its locks.
    pub fn start_large(
        start_ts: Timestamp,
        primary: Cell,
        mutations: usize,
        last: Option<Timestamp>,
    ) -> (Self, Vec<Command>) {
        let part = match last {
            Some(_) => Part::LastFlush,
            None => Part::Flush,
        };
        let mut coordinator = Self::new(part, start_ts, primary, mutations);
        if let Some(min_commit_ts) =
            last.filter(|_| !mutants::on(Mutant::EarlierFlushesNotCompared))
        {
            coordinator.bound.raise(min_commit_ts);
        }
        let mut commands = Vec::new();
        if mutations > 0 {
            commands.push(coordinator.prewrite_all());
        }
        if mutations == 0 || (last.is_some() && mutants::on(Mutant::CommitBeforeLastFlush)) {
            commands.extend(coordinator.all_in_place());
        }
        (coordinator, commands)
    }

    fn new(part: Part, start_ts: Timestamp, primary: Cell, mutations: usize) -> Self {
        Self {
            part,
            start_ts,
            primary,
            mutations,
            missing: mutations,
            obstacles: BTreeMap::new(),
            next_obstacle: 0,
            bound: CommitBound::at(start_ts.next()),
            one_phase_open: false,
            early_commit_ts: None,
            state: State::Prewriting,
        }
    }

    /// Whether nothing more will come of any event.
    pub fn ended(&self) -> bool {
        self.state == State::Ended
    }

    /// Whether mutations are still to be prewritten.
    pub fn prewrites(&self) -> bool {
        self.state == State::Prewriting || mutants::on(Mutant::CommitBeforeLastFlush)
    }

    /// Takes what happened and says what to do. Events that come too late are ignored.
    pub fn on(&mut self, event: Event) -> Vec<Command> {
        match (&self.state, event) {
            (State::Prewriting | State::TakingCommitTs, Event::GaveUp(step)) => {
                if step == Step::CommitTs {
                    // Without a commit_ts the request for one phase was never sent.
                    self.one_phase_open = false;
                }
                self.abort(AbortReason::GaveUp(step))
            }
            (State::Prewriting | State::TakingCommitTs, Event::Cancel) => {
                self.abort(AbortReason::Cancelled)
            }
            (State::Prewriting, event) => self.while_prewriting(event),
            (State::TakingCommitTs, Event::CommitTs(commit_ts))
                if mutants::on(Mutant::CommitTsBeforePrewrite) && self.missing > 0 =>
            {
                self.early_commit_ts = Some(commit_ts);
                self.state = State::Prewriting;
                vec![self.prewrite_all()]
            }
            (State::TakingCommitTs, Event::CommitTs(granted)) => self.granted(granted),
            (State::CommittingPrimary(commit_ts), Event::PrimaryCommit(result)) => {
                let commit_ts = *commit_ts;
                self.primary_commit(commit_ts, result)
            }
            (State::CommittingPrimary(_), Event::GaveUp(Step::CommitPrimary)) => {
                // A lost answer means unknown, never failed.
                self.state = State::Ended;
                if mutants::on(Mutant::LostAnswerIsFailure) {
                    let reason = AbortReason::GaveUp(Step::CommitPrimary);
                    return vec![Command::Finish(Finished::Aborted(reason))];
                }
                vec![Command::Finish(Finished::Unknown)]
            }
            (State::RollingBack(reason), Event::RollbackEnded(primary)) => {
                let reason = reason.clone();
                self.rolled_back(reason, primary)
            }
            _ => Vec::new(),
        }
    }

    fn while_prewriting(&mut self, event: Event) -> Vec<Command> {
        match event {
            Event::Prewritten {
                mutations,
                min_commit_ts,
            } => {
                self.bound.raise(min_commit_ts);
                self.missing -= mutations.len();
                if self.missing > 0 {
                    return Vec::new();
                }
                // A late copy of a request for one phase finds these locks, and leaves them.
                self.one_phase_open = false;
                if let Some(commit_ts) = self.early_commit_ts {
                    self.state = State::CommittingPrimary(commit_ts);
                    return vec![Command::CommitPrimary { commit_ts }];
                }
                self.all_in_place()
            }
            Event::CommittedInOnePhase(commit_ts) => {
                self.state = State::Ended;
                vec![Command::Finish(Finished::Committed(commit_ts))]
            }
            // Should it have been carried out, or be yet, then the answer to this one says so.
            Event::NoAnswerInOnePhase => vec![self.prewrite_all()],
            Event::NotSentInOnePhase => {
                self.one_phase_open = false;
                vec![self.prewrite_all()]
            }
            Event::Rejected {
                mutations,
                rejections,
            } => self.rejected(mutations, rejections),
            Event::TooOld {
                too_old,
                in_one_phase,
            } => {
                self.one_phase_open &= !in_one_phase;
                self.abort(AbortReason::TooOld(too_old))
            }
            Event::Status { obstacle, status } => {
                let Some(found) = self.obstacles.get(&obstacle) else {
                    return Vec::new();
                };
                let met = found.met.clone();
                match Ending::of(status) {
                    Some(ending) => vec![Command::Resolve {
                        obstacle,
                        met,
                        ending,
                    }],
                    None => self.abort(AbortReason::LockedByOlder(met[0].clone())),
                }
            }
            Event::Resolved { obstacle } => self.cleared(obstacle),
            _ => Vec::new(),
        }
    }

    /// The oracle has granted a commit_ts, and nothing is decided yet.
    fn granted(&mut self, granted: Timestamp) -> Vec<Command> {
        match self.bound.judge(granted) {
            Verdict::Commit => {
                self.state = State::CommittingPrimary(granted);
                vec![Command::CommitPrimary { commit_ts: granted }]
            }
            Verdict::TakeAnother { pause_ms } => self.take_commit_ts(pause_ms),
            Verdict::RollBack => self.abort(AbortReason::StaleCommitTs {
                granted,
                min_commit_ts: self.bound.min_commit_ts(),
            }),
        }
    }

    fn take_commit_ts(&mut self, pause_ms: u64) -> Vec<Command> {
        self.state = State::TakingCommitTs;
        vec![Command::TakeCommitTs { pause_ms }]
    }

    fn rolled_back(&mut self, reason: AbortReason, primary: PrimaryEnd) -> Vec<Command> {
        let finished = match primary {
            PrimaryEnd::Committed(commit_ts) if self.one_phase_open => {
                Finished::Committed(commit_ts)
            }
            PrimaryEnd::Unanswered if self.one_phase_open => Finished::Unknown,
            _ => Finished::Aborted(reason),
        };
        self.state = State::Ended;
        let mut commands = vec![Command::Finish(finished)];
        if self.part != Part::Whole {
            // Nobody but this coordinator could have committed it, and it hasn't.
            let ending = Ending::RolledBack;
            commands.push(Command::ResolveAll { ending });
        }
        commands
    }

    fn primary_commit(
        &mut self,
        commit_ts: Timestamp,
        result: Result<(), CommitRejection>,
    ) -> Vec<Command> {
        match result {
            Ok(()) => {
                self.state = State::Ended;
                let ending = Ending::Committed(commit_ts);
                vec![
                    Command::Finish(Finished::Committed(commit_ts)),
                    match self.part {
                        Part::Whole => Command::CommitSecondaries { commit_ts },
                        Part::Flush | Part::LastFlush => Command::ResolveAll { ending },
                    },
                ]
            }
            // A fresh timestamp, not min_commit_ts itself: that one is a reader's
            // start_ts + 1, which the oracle may have given to somebody else.
            Err(rejection @ (CommitRejection::TooLow { .. } | CommitRejection::Taken { .. })) => {
                if let CommitRejection::TooLow { min_commit_ts } = rejection {
                    self.bound.raise(min_commit_ts);
                }
                self.take_commit_ts(0)
            }
            Err(CommitRejection::LockMissing { .. }) => {
                let primary = self.primary.clone();
                self.abort(AbortReason::RolledBack(primary))
            }
        }
    }

    fn rejected(
        &mut self,
        mutations: Vec<usize>,
        rejections: Vec<(Cell, PrewriteRejection)>,
    ) -> Vec<Command> {
        let mut met_locks: BTreeMap<(Timestamp, Cell), Vec<MetLock>> = BTreeMap::new();
        for (cell, rejection) in rejections {
            match rejection {
                PrewriteRejection::Conflict {
                    with_start_ts,
                    with_commit_ts,
                } => {
                    let reason = AbortReason::Conflict {
                        cell,
                        with_start_ts,
                        with_commit_ts,
                    };
                    return self.abort_but(reason, &mutations);
                }
                // A late copy of the request may meet the notification after all, where that is sent again. In one phase it would commit.
                PrewriteRejection::NotNotified(not) if self.one_phase_open => {
                    return self.abort(AbortReason::NotNotified(cell, not));
                }
                PrewriteRejection::NotNotified(not) => {
                    return self.abort_but(AbortReason::NotNotified(cell, not), &mutations);
                }
                PrewriteRejection::RolledBack => {
                    return self.abort(AbortReason::RolledBack(cell));
                }
                // What was committed in one phase is committed as a whole. Otherwise only this coordinator
                // commits its primary, and it hasn't: what isn't understood must not be called aborted.
                PrewriteRejection::Committed(commit_ts) => {
                    self.state = State::Ended;
                    return vec![Command::Finish(if self.one_phase_open {
                        Finished::Committed(commit_ts)
                    } else {
                        Finished::Unknown
                    })];
                }
                PrewriteRejection::Locked(lock) => {
                    let of_txn = met_locks
                        .entry((lock.start_ts, lock.primary.clone()))
                        .or_default();
                    of_txn.push(MetLock { cell, lock });
                }
            }
        }
        let request = self.next_obstacle;
        let mut commands = Vec::new();
        let mut mutations = Some(mutations);
        for mut met in met_locks.into_values() {
            met.sort_by_key(|met| std::cmp::Reverse(met.lock.ttl_ms));
            let obstacle = self.next_obstacle;
            self.next_obstacle += 1;
            commands.push(Command::CheckStatus {
                obstacle,
                met: met[0].clone(),
                force: met[0].lock.start_ts > self.start_ts,
            });
            self.obstacles.insert(
                obstacle,
                Obstacle {
                    met,
                    request,
                    mutations: mutations.take().unwrap_or_default(),
                },
            );
        }
        commands
    }

    fn cleared(&mut self, obstacle: usize) -> Vec<Command> {
        let Some(gone) = self.obstacles.remove(&obstacle) else {
            return Vec::new();
        };
        let others = self
            .obstacles
            .values_mut()
            .find(|other| other.request == gone.request);
        match others {
            Some(other) => {
                other.mutations.extend(gone.mutations);
                Vec::new()
            }
            None => vec![Command::Prewrite {
                mutations: gone.mutations,
            }],
        }
    }

    fn all_in_place(&mut self) -> Vec<Command> {
        if self.part == Part::Flush {
            self.state = State::Ended;
            let min_commit_ts = self.bound.min_commit_ts();
            return vec![Command::Finish(Finished::Flushed { min_commit_ts })];
        }
        self.take_commit_ts(0)
    }

    fn prewrite_all(&self) -> Command {
        Command::Prewrite {
            mutations: (0..self.mutations).collect(),
        }
    }

    fn abort(&mut self, reason: AbortReason) -> Vec<Command> {
        self.abort_but(reason, &[])
    }

    /// A request that met a conflict has left nothing: a copy of it that came before would have locked the
    /// cell of the conflict, and one that comes later meets the same conflict. So under contention those who
    /// lose write nothing.
    fn abort_but(&mut self, reason: AbortReason, in_conflict: &[usize]) -> Vec<Command> {
        self.obstacles.clear();
        if self.part != Part::Whole {
            self.state = State::RollingBack(reason);
            return vec![Command::RollbackPrimary];
        }
        let left_nothing: BTreeSet<&usize> = in_conflict.iter().collect();
        if left_nothing.len() == self.mutations {
            self.state = State::Ended;
            return vec![Command::Finish(Finished::Aborted(reason))];
        }
        // The primary in any case: its record decides about the other locks.
        let mutations = (0..self.mutations)
            .filter(|at| *at == 0 || !left_nothing.contains(at))
            .collect();
        self.state = State::RollingBack(reason);
        vec![Command::Rollback { mutations }]
    }
}
