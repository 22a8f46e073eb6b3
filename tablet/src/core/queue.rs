//! Requests that wait for the latches of their rows, or for the disk.

use std::collections::{HashMap, VecDeque};

use percolator_wire::v1;

use super::Asker;
use crate::latches::{Latches, RowHash, Ticket};
use crate::probe::Note;
use crate::work::Work;

/// The requests that wait.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) latches: Latches,
    pub(super) next_ticket: Ticket,
    /// Requests that wait for latches.
    pub(super) waiting: HashMap<Ticket, Queued>,
    /// The tickets of those that have got their latches.
    pub(super) ready: VecDeque<Ticket>,
    /// Reads that wait for the group on its way to the disk.
    pub(super) reads: Vec<(Asker, v1::Request, Note)>,
    /// Bytes of waiting requests and reads.
    pub(super) bytes: usize,
    /// Requests that write since garbage was collected last.
    pub(super) writes: usize,
}

/// The caller of a request that writes, and its latches.
#[derive(Default)]
pub(super) struct PendingRequest {
    /// `None`: the server's own background task.
    pub(super) to: Option<Asker>,
    pub(super) id: u64,
    pub(super) note: Note,
    /// Its latches.
    pub(super) rows: Vec<RowHash>,
}

/// A request that waits for its latches.
pub(super) struct Queued {
    pub(super) asked: PendingRequest,
    pub(super) work: Work,
    /// The memory that it takes.
    pub(super) bytes: usize,
}

impl Queue {
    /// The next free ticket.
    pub(super) fn ticket(&mut self) -> Ticket {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        ticket
    }

    /// Adds a request that waits for its latches.
    pub(super) fn push(&mut self, ticket: Ticket, asked: PendingRequest, mut work: Work) {
        let bytes = work.detach();
        self.bytes += bytes;
        self.waiting.insert(ticket, Queued { asked, work, bytes });
    }

    /// Takes the next request that has got its latches.
    pub(super) fn pop(&mut self) -> Option<(Ticket, Queued)> {
        while let Some(ticket) = self.ready.pop_front() {
            if let Some(queued) = self.waiting.remove(&ticket) {
                self.bytes -= queued.bytes;
                return Some((ticket, queued));
            }
        }
        None
    }
}
