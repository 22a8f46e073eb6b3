//! Turns at cells that many transactions want to write.

use std::time::Duration;

use percolator_wire::v1;
use percolator_wire::v1::response::Body;

use super::{Asker, Core, Reply};
use crate::decision::Decision;
use crate::latches;
use crate::places::Place;
use crate::probe::Note;
use crate::store::{self, LockChange};
use crate::wait_queue::Woken;
use crate::work::invalid;

/// The caller of a waiting request.
#[derive(Debug)]
pub(super) struct Waiter {
    to: Asker,
    id: u64,
    note: Note,
}

impl Core {
    pub(super) fn wait_for_cell(
        &mut self,
        to: Asker,
        id: u64,
        mut note: Note,
        refs: &[v1::TabletRef],
        request: v1::WaitForCellRequest,
        out: &mut Vec<Reply>,
    ) {
        let cell = match request.cell {
            Some(cell) => self.state.cell(refs, &Place::from(cell)),
            None => Err(invalid("a wait for no cell")),
        };
        let cell = match cell {
            Ok(cell) => cell,
            Err(refusal) => return self.answer(Some(to), id, note, Err(refusal), out),
        };
        // The time that it waits is no time of work.
        note.timed = false;
        let hash = latches::hash(&[&store::cell_key(&cell)]);
        let locked = self.state.filter.may_hold_hash(hash);
        let timeout = Duration::from_millis(request.timeout_ms.into());
        let waiter = Waiter { to, id, note };
        let woken = self
            .waits
            .ask(hash, request.waiter, timeout, locked, waiter);
        self.answer_woken(woken, out);
    }

    /// The cells whose turn ends when this decision is durable.
    pub(super) fn wakes(&self, decision: &Decision) -> Vec<u64> {
        if self.waits.is_idle() {
            return Vec::new();
        }
        let changes = decision.memory.lock_changes.iter();
        changes
            .filter_map(|change| match change {
                LockChange::Removed(hash) => Some(*hash),
                LockChange::Added(_) => None,
            })
            .collect()
    }

    /// The cells whose turn ends with this decision at once: they are committed without a lock. The next transaction begins
    /// above the commit, and its reads wait until that is durable.
    pub(super) fn wakes_at_once(&self, decision: &Decision) -> Vec<u64> {
        match &decision.held {
            Some((_, cells)) if !self.waits.is_idle() => cells.clone(),
            _ => Vec::new(),
        }
    }

    pub(super) fn wake(&mut self, cells: Vec<u64>, out: &mut Vec<Reply>) {
        for cell in cells {
            let woken = self.waits.ended(cell);
            self.answer_woken(woken, out);
        }
    }

    pub(super) fn tick_waits(&mut self, elapsed: Duration, out: &mut Vec<Reply>) {
        if !self.waits.is_idle() {
            let woken = self.waits.tick(elapsed);
            self.answer_woken(woken, out);
        }
    }

    fn answer_woken(&self, woken: impl IntoIterator<Item = Woken<Waiter>>, out: &mut Vec<Reply>) {
        for woken in woken {
            let (waiter, granted) = match woken {
                Woken::Granted(waiter) => (waiter, true),
                Woken::Unserved(waiter) => (waiter, false),
            };
            let body = Body::WaitForCell(v1::WaitForCellResponse { granted });
            let Waiter { to, id, note } = waiter;
            self.answer(Some(to), id, note, Ok(Some(body)), out);
        }
    }
}
