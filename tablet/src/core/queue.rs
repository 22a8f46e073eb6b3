//! Requests that wait: for the latches of their rows, or for what is on its way to the disk.

use std::collections::{HashMap, VecDeque};

use percolator_wire::v1;

use super::Asker;
use crate::latches::{Latches, RowHash, Ticket};
use crate::probe::Note;
use crate::work::Work;

/// See the module's head.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) latches: Latches,
    pub(super) next_ticket: Ticket,
    /// For latches.
    pub(super) waiting: HashMap<Ticket, Queued>,
    /// Those of them that have their latches.
    pub(super) ready: VecDeque<Ticket>,
    /// Reads that wait for what is on its way to the disk.
    pub(super) reads: Vec<(Asker, v1::Request, Note)>,
    /// Of those that wait and of the reads, in memory.
    pub(super) bytes: usize,
    /// Requests that write, since it was last looked for garbage.
    pub(super) writes: usize,
}

/// A request that writes, as far as it is to be answered.
#[derive(Default)]
pub(super) struct PendingRequest {
    /// `None`: the server's own background task.
    pub(super) to: Option<Asker>,
    pub(super) id: u64,
    pub(super) note: Note,
    /// Its latches.
    pub(super) rows: Vec<RowHash>,
}

/// One that waits.
pub(super) struct Queued {
    pub(super) asked: PendingRequest,
    pub(super) work: Work,
    /// What it holds in memory.
    pub(super) bytes: usize,
}

impl Queue {
    /// The next ticket, which nobody has yet.
    pub(super) fn ticket(&mut self) -> Ticket {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        ticket
    }

    /// Waits for its latches.
    pub(super) fn push(&mut self, ticket: Ticket, asked: PendingRequest, mut work: Work) {
        let bytes = work.detach();
        self.bytes += bytes;
        self.waiting.insert(ticket, Queued { asked, work, bytes });
    }

    /// The next that has its latches.
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
