//! The decision about a request that writes.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use percolator_engine::Batch;
use percolator_protocol::actions::CellView;
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::{Cell, Effect, Tablet, Timestamp, WriteKind};
use percolator_wire::v1::response::Body;

use crate::arriving::{ArrivalRecord, Step};
use crate::index::{Hidden, Item};
use crate::latches;
use crate::notify::Notified;
use crate::peers::DepartedTablet;
use crate::probe::CommitKind;
use crate::progress::TabletGarbageChange;
use crate::state::State;
use crate::store::{self, LockChange, Version};
use crate::tablets::GcSettingsCopy;
use crate::{garbage, points};

/// A change of the tablets of this server. It takes effect when its batch is durable.
#[derive(Debug)]
pub(crate) enum TabletChange {
    Insert(Tablet),
    /// One tablet is cut into these two.
    Split {
        first: Tablet,
        second: Tablet,
    },
    /// Two neighbours are one tablet now; the second one is gone.
    Merge {
        merged: Tablet,
        gone: u64,
    },
    /// A tablet of this table, which is deleted, is dropped.
    Drop {
        id: u64,
        table: u32,
    },
    Forget(u64),
    Keep(GcSettingsCopy),
    /// This server begins to get a tablet.
    Arrive(Box<ArrivalRecord>),
    /// A step of an arrival is carried out.
    Arrived {
        id: u64,
        step: Arc<Step>,
        /// Entries of the index of garbage that were made for it.
        entries: u64,
    },
    /// Another server has the tablet now.
    Leave(Box<DepartedTablet>),
    /// Other servers report these tablets.
    Settle(Vec<Tablet>),
    /// A column of a tablet is observed.
    Observe {
        id: u64,
        table: u32,
        column: Bytes,
    },
    /// A column of a tablet is observed no more.
    Unobserve {
        id: u64,
        table: u32,
        column: Bytes,
    },
}

impl TabletChange {
    /// Whether the change alters this tablet.
    pub(crate) fn is_about(&self, id: u64) -> bool {
        match self {
            Self::Insert(tablet) => tablet.id == id,
            Self::Split { first, .. } => first.id == id,
            Self::Merge { merged, gone } => merged.id == id || *gone == id,
            Self::Drop { id: changed, .. }
            | Self::Observe { id: changed, .. }
            | Self::Unobserve { id: changed, .. } => *changed == id,
            _ => false,
        }
    }
}

/// A decision: one atomic batch, and its effects once it is durable.
#[derive(Debug, Default)]
pub(crate) struct Decision {
    pub(crate) batch: Batch,
    pub(crate) memory: MemoryChanges,
    pub(crate) garbage: GarbageChanges,
    /// Commits without a lock before them: the commit_ts, and the hashes of the cells' keys. A reader at or above the commit_ts
    /// waits for the batch.
    pub(crate) held: Option<(Timestamp, Vec<u64>)>,
    /// The transaction whose cells are prewritten. It may not commit at or below snapshots that are read before the batch is
    /// durable.
    pub(crate) prewritten: Option<Timestamp>,
    /// How the transaction commits, if this decides for all of its cells.
    pub(crate) commits: Option<CommitKind>,
    pub(crate) tablet_change: Option<TabletChange>,
    /// The raised points.
    pub(crate) points: Option<Points>,
    /// The changes that it means to observers.
    pub(crate) notified: Notified,
    /// The response; `None`: done, without content.
    pub(crate) answer: Option<Body>,
}

/// The changes of what memory has of cells.
#[derive(Debug, Default)]
pub(crate) struct MemoryChanges {
    pub(crate) lock_changes: Vec<LockChange>,
    pub(crate) versions: Vec<Version>,
    /// Keys of cells to remove from the cache.
    pub(crate) unlearn: Vec<Bytes>,
    /// Write records: the hash of their cell, and their timestamp.
    pub(crate) records: Vec<(u64, Timestamp)>,
}

/// The changes of garbage.
#[derive(Debug, Default)]
pub(crate) struct GarbageChanges {
    /// Versions that it hides, and the times from which they are hidden, until the index has them.
    pub(crate) hides: Vec<(Timestamp, Item)>,
    /// Fates that it leaves, and their times, until the index has them.
    pub(crate) fates: BTreeMap<(Timestamp, Bytes), Hidden>,
    /// The records belong to a tablet that arrives.
    pub(crate) arrives: bool,
    /// The changes of each tablet's garbage.
    pub(crate) counts: BTreeMap<u64, TabletGarbageChange>,
    /// The lowest new entry of the index.
    pub(crate) lowest_entry: Option<Timestamp>,
    /// The lowest new entry of fates.
    pub(crate) lowest_fate: Option<Timestamp>,
    /// The piece of garbage is not finished: entries stay.
    pub(crate) unfinished: bool,
    /// The lowest entry of the piece whose tablet arrives or leaves.
    pub(crate) postponed: Option<Timestamp>,
}

impl Decision {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Raises the points to these.
    pub(crate) fn raise(&mut self, points: Points) {
        points::write(&mut self.batch, points);
        self.points = Some(points);
    }

    pub(crate) fn answered(answer: Body) -> Self {
        Self {
            answer: Some(answer),
            ..Self::new()
        }
    }

    /// Notes a transaction that commits by these effects, if the cell is its primary. A late copy of the request has no
    /// effects.
    pub(crate) fn note_primary(
        &mut self,
        view: &CellView,
        start_ts: Timestamp,
        cell: &Cell,
        effects: &[Effect],
    ) {
        let writes = |effect: &Effect| matches!(effect, Effect::PutWrite(..));
        let own = view.own_lock(start_ts);
        let primary = own.filter(|lock| lock.primary == *cell);
        if let Some(lock) = primary.filter(|_| effects.iter().any(writes)) {
            self.commits = Some(match lock.generation {
                0 => CommitKind::TwoPhase,
                _ => CommitKind::Large,
            });
        }
    }

    /// Adds the effects of collection on a cell: they hide nothing, and are no commit.
    pub(crate) fn collect(&mut self, cell_key: &[u8], effects: &[Effect]) {
        let hash = latches::hash(&[cell_key]);
        store::write_down(&mut self.batch, cell_key, hash, false, effects.to_vec());
    }

    pub(crate) fn add(
        &mut self,
        state: &State,
        cell_key: &[u8],
        was_locked: bool,
        effects: Vec<Effect>,
    ) {
        let hash = latches::hash(&[cell_key]);
        garbage::note(state, self, cell_key, hash, &effects);
        for effect in &effects {
            if let Effect::PutWrite(ts, write) = effect
                && !is_unmarked(write.kind)
            {
                self.memory.records.push((hash, *ts));
            }
        }
        self.memory.lock_changes.extend(store::write_down(
            &mut self.batch,
            cell_key,
            hash,
            was_locked,
            effects,
        ));
    }
}

/// Whether a mutant leaves the record unmarked.
fn is_unmarked(kind: WriteKind) -> bool {
    let mutant = match kind {
        WriteKind::Rollback => Mutant::RollbackNotMarked,
        _ => Mutant::CommitNotMarked,
    };
    mutants::on(mutant)
}
