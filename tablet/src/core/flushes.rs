//! Requests of large transactions: their flushes, and the resolution of what they have left. Each is as much work as many other
//! requests, and no caller expects it within milliseconds. Beside other requests their pace limits them, one after the other.

use std::collections::VecDeque;

use percolator_wire::v1;
use percolator_wire::v1::request::Body;
use prost::Message as _;

use super::{Asker, Core, Reply};
use crate::probe::{Limit, Note};
use crate::resolve;

/// This many bytes are as much work as a cell, in memory and on the disk.
const BYTES_OF_A_CELL: usize = 16 << 10;

/// A request that waits for its turn.
pub(super) struct WaitingFlush {
    pub(super) to: Asker,
    pub(super) request: v1::Request,
    pub(super) note: Note,
    pub(super) bytes: usize,
    cells: usize,
}

/// Requests that wait for their turn.
#[derive(Default)]
pub(super) struct FlushQueue {
    waiting: VecDeque<WaitingFlush>,
    /// The cells and the bytes of these requests.
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
    /// Takes a request with its note. A request of a large transaction waits for its turn.
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
            // A large transaction's own requests don't slow it down.
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
        // Requests keep their order.
        let now = self.flushes.is_empty() && self.pace.may_flush();
        if now || self.failed.is_some() {
            return self.take_flush(to, request, note, out);
        }
        let mut asked = request.tablets.iter();
        if asked.any(|asked| self.state.tablets.serving(asked.id, asked.epoch).is_err()) {
            // A request for another server is refused at once.
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

    /// Takes waiting requests as far as the pace allows.
    pub(super) fn run_flushes(&mut self, out: &mut Vec<Reply>) {
        while (self.pace.may_flush() || self.failed.is_some())
            && let Some(next) = self.flushes.pop()
        {
            self.take_flush(next.to, next.request, next.note, out);
        }
    }

    fn take_flush(&mut self, to: Asker, request: v1::Request, note: Note, out: &mut Vec<Reply>) {
        // The work of a resolve request is known when its locks are found.
        if !matches!(request.body, Some(Body::Resolve(_))) {
            self.pace.spent_flush(self.cells(&request));
        }
        self.take(to, request, note, out);
    }

    /// The most cells that one of these requests is about. Large values count as several.
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

    /// The number of locks of one transaction that one request resolves now.
    pub(super) fn resolved_at_once(&self) -> usize {
        if self.pace.is_alone() {
            self.state.limits.resolve_locks
        } else {
            self.state.limits.resolve_locks.min(resolve::LOCKS_BESIDE)
        }
    }
}
