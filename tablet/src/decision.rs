//! What is decided about a request that writes, and what from.

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

/// A change of what this server serves, that takes effect when its batch is durable.
#[derive(Debug)]
pub(crate) enum TabletChange {
    Insert(Tablet),
    /// One tablet is these two now.
    Split {
        first: Tablet,
        second: Tablet,
    },
    /// Two neighbours are one tablet now; the second one is gone.
    Merge {
        merged: Tablet,
        gone: u64,
    },
    /// Of this table, which is deleted.
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
        /// Of the index of garbage, that were made for it.
        entries: u64,
    },
    /// Another server has the tablet now.
    Leave(Box<DepartedTablet>),
    /// Other servers report these tablets.
    Settle(Vec<Tablet>),
    /// This column of it is observed.
    Observe {
        id: u64,
        table: u32,
        column: Bytes,
    },
    /// This column of it is observed no more.
    Unobserve {
        id: u64,
        table: u32,
        column: Bytes,
    },
}

impl TabletChange {
    /// Whether this tablet is another one then.
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

/// What was decided: one atomic batch, and what holds once it is durable.
#[derive(Debug, Default)]
pub(crate) struct Decision {
    pub(crate) batch: Batch,
    pub(crate) memory: MemoryChanges,
    pub(crate) garbage: GarbageChanges,
    /// What is committed without a lock before it, by the hashes of the cells' keys: a reader at or above
    /// the commit_ts waits for the batch.
    pub(crate) held: Option<(Timestamp, Vec<u64>)>,
    /// This transaction's cells are prewritten by it; it may not commit below what has been read until the batch is durable.
    pub(crate) prewritten: Option<Timestamp>,
    /// A transaction is committed by it: this decides for all its cells.
    pub(crate) commits: Option<CommitKind>,
    pub(crate) tablet_change: Option<TabletChange>,
    /// What the points are then, where they are raised.
    pub(crate) points: Option<Points>,
    /// What it means to observers.
    pub(crate) notified: Notified,
    /// `None`: done, there's nothing to say.
    pub(crate) answer: Option<Body>,
}

/// What memory knows of cells then.
#[derive(Debug, Default)]
pub(crate) struct MemoryChanges {
    pub(crate) lock_changes: Vec<LockChange>,
    pub(crate) versions: Vec<Version>,
    /// Keys of cells of which it knows nothing.
    pub(crate) unlearn: Vec<Bytes>,
    /// Write records: their cell's hash, and their timestamp.
    pub(crate) records: Vec<(u64, Timestamp)>,
}

/// What there is to be collected then, and has been.
#[derive(Debug, Default)]
pub(crate) struct GarbageChanges {
    /// What is hidden by it, and from when on, until the index has it.
    pub(crate) hides: Vec<(Timestamp, Item)>,
    /// Fates that it leaves, and from when on, until the index has them.
    pub(crate) fates: BTreeMap<(Timestamp, Bytes), Hidden>,
    /// The records are those of a tablet that this server gets.
    pub(crate) arrives: bool,
    /// By tablet.
    pub(crate) counts: BTreeMap<u64, TabletGarbageChange>,
    /// The lowest entry of the index that is made.
    pub(crate) lowest_entry: Option<Timestamp>,
    /// The lowest one of fates.
    pub(crate) lowest_fate: Option<Timestamp>,
    /// Of a piece of garbage: entries stay, as there is more to do for them.
    pub(crate) unfinished: bool,
    /// Of a piece of garbage: the lowest entry of cells whose tablets are on their way here, or away.
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

    /// Takes note of a transaction that is committed by these effects of its commit, where the cell is its primary. A late
    /// copy of the request finds a record or no lock, and writes none.
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

    /// What collection does to a cell: it hides nothing, and is no commit.
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

/// Whether a record isn't marked: for the proof that this is noticed.
fn is_unmarked(kind: WriteKind) -> bool {
    let mutant = match kind {
        WriteKind::Rollback => Mutant::RollbackNotMarked,
        _ => Mutant::CommitNotMarked,
    };
    mutants::on(mutant)
}
