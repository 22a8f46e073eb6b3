//! The facts about a server that metrics show.

use percolator_protocol::safe_point::Points;
use percolator_protocol::types::{Tablet, Timestamp};

use super::Core;
use crate::notify;
use crate::probe::Probe;
use crate::progress::TabletGarbage;

/// The facts about a server now.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// Requests that wait for rows, and those of large transactions that wait for their turn.
    pub(crate) queued: usize,
    /// Reads that wait for the disk.
    pub(crate) reads: usize,
    /// Transactions that wait for a turn at a cell.
    pub(crate) cells: usize,
    /// Bytes of waiting requests and reads.
    pub(crate) queued_bytes: usize,
    /// Requests that are decided and wait for the disk, or are on their way there.
    pub(crate) decided: usize,
    /// Bytes of decisions that wait for the disk.
    pub(crate) decided_bytes: usize,
    /// Cells that are locked, about.
    pub(crate) locks: usize,
    /// Changes that no observer has acknowledged; not all are counted.
    pub(crate) notifications: (u64, Timestamp),
    /// Reads of cells whose newest version was in memory, and others.
    pub(crate) cache: (u64, u64),
    /// Memory of the newest versions.
    pub(crate) cache_bytes: usize,
    /// New data is refused, because the disk is full.
    pub(crate) short_of_room: bool,
    /// The barrier and the safe point.
    pub(crate) points: Points,
    /// The oldest entry of the index of garbage.
    pub(crate) oldest_garbage: Timestamp,
    /// The garbage of each tablet.
    pub(crate) garbage: Vec<TabletGarbage>,
    /// The tablets of this server.
    pub(crate) tablets: Vec<Tablet>,
}

impl Core {
    /// Sets the probe.
    pub(crate) fn watch(&mut self, probe: Box<dyn Probe>) {
        self.state.probe = probe;
    }

    /// The probe.
    pub(crate) fn probe(&self) -> &dyn Probe {
        &*self.state.probe
    }

    /// The facts now.
    pub(crate) fn facts(&self) -> Facts {
        let cache = self.state.cache.borrow();
        Facts {
            queued: self.queue.waiting.len() + self.flushes.len(),
            reads: self.queue.reads.len(),
            cells: self.waits.waiting(),
            queued_bytes: self.queue.bytes + self.flushes.bytes,
            decided: self.groups.decided.len() + self.groups.committing.len(),
            decided_bytes: self.groups.decided_bytes,
            locks: self.state.filter.len(),
            notifications: notify::waiting_about(&self.state),
            cache: cache.lookups(),
            cache_bytes: cache.bytes(),
            short_of_room: self.groups.short_of_room,
            points: self.state.points.durable,
            oldest_garbage: self.oldest_garbage().unwrap_or_default(),
            garbage: self.gc.progress.tablets().map(|(_, it)| it).collect(),
            tablets: self.state.tablets.all().cloned().collect(),
        }
    }
}
