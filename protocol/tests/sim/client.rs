//! A client: reads at its snapshot, then commits through the coordinator.

use std::collections::BTreeMap;

use bytes::Bytes;
use percolator_protocol::actions::StatusQuery;
use percolator_protocol::txn::{Coordinator, Ending, Event, Finished, MetLock, PrimaryEnd, Step};
use percolator_protocol::types::{Cell, Mutation, Timestamp};

use super::plan::ReadPlan;
use super::request::Request;

/// The purpose of a client's request.
#[derive(Clone, Debug)]
pub(crate) enum Purpose {
    Read,
    /// The status of a lock that a read has met.
    ReadStatus(MetLock),
    ReadResolve,
    /// Indices of mutations.
    Prewrite(Vec<usize>),
    Status(usize),
    Resolve(usize),
    CommitTs,
    CommitPrimary,
    /// The commit_ts of a commit in one phase.
    OnePhaseTs,
    /// Every mutation.
    OnePhase(Vec<usize>),
    /// One of the servers of a rollback.
    Rollback,
}

impl Purpose {
    /// The coordinator's event when the client gives up on it; reads never are given up.
    pub(crate) fn given_up(&self) -> Option<Event> {
        let step = match self {
            Self::Prewrite(_) | Self::Status(_) | Self::Resolve(_) => Step::Prewrite,
            Self::CommitTs | Self::OnePhaseTs => Step::CommitTs,
            Self::OnePhase(_) => return Some(Event::NoAnswerInOnePhase),
            Self::CommitPrimary => Step::CommitPrimary,
            Self::Read | Self::ReadStatus(_) | Self::ReadResolve | Self::Rollback => return None,
        };
        Some(Event::GaveUp(step))
    }
}

#[derive(Debug, Default)]
pub(crate) enum State {
    #[default]
    NotBegun,
    /// At this one of its reads.
    Reading(usize),
    Committing(Box<Coordinator>),
    /// Read everything and had nothing to write, or died.
    Ended,
}

#[derive(Debug, Default)]
pub(crate) struct Client {
    pub(crate) state: State,
    pub(crate) start_ts: Timestamp,
    pub(crate) mutations: Vec<Mutation>,
    pub(crate) ttl_ms: u64,
    /// Which flush it is at; 0: it doesn't flush.
    pub(crate) generation: u32,
    /// The highest min_commit_ts of its flushes.
    pub(crate) min_commit_ts: Timestamp,
    /// Transactions whose locks its reads ignore.
    pub(crate) bypass: Vec<Timestamp>,
    /// Its requests under way, by call.
    pub(crate) waiting: BTreeMap<u64, (Purpose, Request)>,
    /// Servers whose rollback hasn't been answered.
    pub(crate) rollbacks: usize,
    /// Their answer about the primary.
    pub(crate) primary_end: Option<PrimaryEnd>,
    /// Its reads.
    pub(crate) found: Vec<(ReadPlan, Vec<(Cell, Bytes)>)>,
    /// The outcome returned to its application.
    pub(crate) outcome: Option<Finished>,
}

impl Client {
    pub(crate) fn primary(&self) -> &Cell {
        &self.mutations[0].cell
    }

    /// Its ttl from start_ts on, so that `ttl_ms` of it are left at `now`.
    pub(crate) fn ttl_at(&self, now: Timestamp) -> u64 {
        now.physical_ms() - self.start_ts.physical_ms() + self.ttl_ms
    }

    pub(crate) fn die(&mut self) {
        self.waiting.clear();
        self.state = State::Ended;
    }
}

/// Asks about a lock.
pub(crate) fn ask(
    met: &MetLock,
    now: Timestamp,
    push_past: Option<Timestamp>,
    force: bool,
) -> Request {
    let query = StatusQuery {
        start_ts: met.lock.start_ts,
        now,
        push_past,
        force,
        met_ttl_ms: met.lock.ttl_ms,
    };
    Request::CheckStatus(met.lock.primary.clone(), query)
}

/// Clears a lock.
pub(crate) fn resolve(met: &[MetLock], ending: Ending) -> Request {
    let start_ts = met[0].lock.start_ts;
    let cells = met.iter().map(|met| met.cell.clone()).collect();
    match ending {
        Ending::Committed(commit_ts) => Request::Commit {
            start_ts,
            commit_ts,
            cells,
        },
        Ending::RolledBack => Request::Rollback { start_ts, cells },
    }
}
