//! What large transactions ask for: their flushes, and that what they have left is resolved. Each is as much work as
//! many requests of others, and nobody waits for one of them with a hand on the clock. Beside others they have their
//! turn when their pace allows it, one after the other.

use std::collections::VecDeque;

use percolator_wire::v1;
use percolator_wire::v1::request::Body;
use prost::Message as _;

use super::{Asker, Core, Reply};
use crate::probe::{Limit, Note};
use crate::resolve;

/// So many bytes are as much work as a cell, in memory and on the disk.
const BYTES_OF_A_CELL: usize = 16 << 10;

/// A request that waits for its turn.
pub(super) struct WaitingFlush {
    pub(super) to: Asker,
    pub(super) request: v1::Request,
    pub(super) note: Note,
    pub(super) bytes: usize,
    cells: usize,
}

/// Those that wait.
#[derive(Default)]
pub(super) struct FlushQueue {
    waiting: VecDeque<WaitingFlush>,
    /// Their cells, and bytes.
    pub(super) cells: usize,
    pub(super) bytes: usize,
}

impl FlushQueue {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &WaitingFlush> {
        self.waiting.iter()
    }

    fn push(&mut self, waiting: WaitingFlush) {
        self.cells += waiting.cells;
        self.bytes += waiting.bytes;
        self.waiting.push_back(waiting);
    }

    fn pop(&mut self) -> Option<WaitingFlush> {
        let next = self.waiting.pop_front()?;
        self.cells -= next.cells;
        self.bytes -= next.bytes;
        Some(next)
    }
}

impl Core {
    /// Takes a request whose note was made. One of a large transaction waits for its turn.
    pub(super) fn take_in_turn(
        &mut self,
        to: Asker,
        request: v1::Request,
        note: Note,
        out: &mut Vec<Reply>,
    ) {
        match &request.body {
            Some(Body::Prewrite(prewrite)) if prewrite.generation > 0 => {}
            Some(Body::Resolve(_)) => {}
            // These are a large transaction's own: it doesn't slow itself down.
            Some(
                Body::KeepAlive(_)
                | Body::WaitForCell(_)
                | Body::Notifications(_)
                | Body::Get(v1::GetRequest { own: true, .. })
                | Body::Scan(v1::ScanRequest { own: true, .. }),
            ) => return self.take(to, request, note, out),
            _ => {
                self.pace.asked();
                return self.take(to, request, note, out);
            }
        }
        // None of them overtakes another.
        let now = self.flushes.is_empty() && self.pace.may_flush();
        if now || self.failed.is_some() {
            return self.take_flush(to, request, note, out);
        }
        let mut asked = request.tablets.iter();
        if asked.any(|asked| self.state.tablets.serving(asked.id, asked.epoch).is_err()) {
            // Who asks the wrong server is told that at once.
            return self.take(to, request, note, out);
        }
        let bytes = request.encoded_len();
        let id = request.id;
        let waiting = self.flushes.len();
        let why = || format!("{waiting} requests of large transactions wait for their turn");
        let limit = if self.state.limits.no_more_requests(waiting) {
            Limit::Requests
        } else if self.state.limits.enough_queued(self.flushes.bytes) {
            Limit::QueuedBytes
        } else {
            let cells = self.cells(&request);
            self.flushes.push(WaitingFlush {
                to,
                request,
                note,
                bytes,
                cells,
            });
            return;
        };
        self.refuse(Some(to), id, note, (limit, why()), out);
    }

    /// Lets those have their turn that may now.
    pub(super) fn run_flushes(&mut self, out: &mut Vec<Reply>) {
        while (self.pace.may_flush() || self.failed.is_some())
            && let Some(next) = self.flushes.pop()
        {
            self.take_flush(next.to, next.request, next.note, out);
        }
    }

    fn take_flush(&mut self, to: Asker, request: v1::Request, note: Note, out: &mut Vec<Reply>) {
        // What a resolve comes to is known when its locks are found.
        if !matches!(request.body, Some(Body::Resolve(_))) {
            self.pace.spent_flush(self.cells(&request));
        }
        self.take(to, request, note, out);
    }

    /// That one of these requests is about, at the most; more, where they are large.
    fn cells(&self, request: &v1::Request) -> usize {
        match &request.body {
            Some(Body::Prewrite(prewrite)) => {
                let sizes = prewrite.mutations.iter().map(|it| it.value.len());
                let bytes: usize = sizes.sum();
                prewrite.mutations.len().max(bytes / BYTES_OF_A_CELL)
            }
            _ => resolve::CELLS_OF_A_LOCK * self.resolved_at_once(),
        }
    }

    /// Locks of one transaction that one request resolves now.
    pub(super) fn resolved_at_once(&self) -> usize {
        if self.pace.is_alone() {
            self.state.limits.resolve_locks
        } else {
            self.state.limits.resolve_locks.min(resolve::LOCKS_BESIDE)
        }
    }
}
