//! What is decided about a request that writes, and what from.

use std::cell::RefCell;
use std::collections::BTreeMap;

use bytes::Bytes;
use percolator_engine::{Batch, Engine};
use percolator_protocol::actions::CellView;
use percolator_protocol::lease::Lease;
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::{Cell, Effect, Lock, Timestamp, WriteKind};
use percolator_wire::v1;
use percolator_wire::v1::response::Body;

use crate::cache::CellCache;
use crate::index::Item;
use crate::latches;
use crate::limits::Limits;
use crate::marks::Marks;
use crate::probe::{Committed, Probe};
use crate::progress::Change;
use crate::readers::Readers;
use crate::store::{self, LockChange, LockFilter, Version};
use crate::tablets::{self, Tablets};
use crate::work::Place;
use crate::{Error, Refusal, garbage, points};

/// A change of what this server serves, that takes effect when its batch is durable.
#[derive(Debug)]
pub(crate) enum TabletChange {
    Insert(v1::TabletInfo),
    /// Of this table, which is deleted.
    Drop {
        id: u64,
        table: u32,
    },
    Forget(u64),
    Meet(Vec<String>),
    Keep(v1::GcSettings),
}

/// What was decided: one atomic batch, and the answer for when it is durable.
#[derive(Debug)]
pub(crate) struct Decision {
    pub(crate) batch: Batch,
    pub(crate) lock_changes: Vec<LockChange>,
    pub(crate) versions: Vec<Version>,
    /// Write records: their cell's hash, and their timestamp.
    pub(crate) records: Vec<(u64, Timestamp)>,
    /// What is committed without a lock before it, by the hashes of the cells' keys: a reader at or above
    /// the commit_ts waits for the batch.
    pub(crate) held: Option<(Timestamp, Vec<u64>)>,
    /// A transaction is committed by it: this decides for all its cells.
    pub(crate) commits: Option<Committed>,
    pub(crate) tablet_change: Option<TabletChange>,
    /// What the points are then, where they are raised.
    pub(crate) points: Option<Points>,
    /// What is hidden by it, and from when on, until the index has it.
    pub(crate) hides: Vec<(Timestamp, Item)>,
    /// What that changes of tablets' garbage.
    pub(crate) garbage: BTreeMap<u64, Change>,
    /// The lowest entry of the index that is made.
    pub(crate) lowest_entry: Option<Timestamp>,
    /// Of a piece of garbage: entries stay, as there is more to do for them.
    pub(crate) unfinished: bool,
    /// `None`: done, there's nothing to say.
    pub(crate) answer: Option<Body>,
}

impl Decision {
    pub(crate) fn new() -> Self {
        Self {
            batch: Batch::default(),
            lock_changes: Vec::new(),
            versions: Vec::new(),
            records: Vec::new(),
            held: None,
            commits: None,
            tablet_change: None,
            points: None,
            hides: Vec::new(),
            garbage: BTreeMap::new(),
            lowest_entry: None,
            unfinished: false,
            answer: None,
        }
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
                0 => Committed::TwoPhase,
                _ => Committed::Large,
            });
        }
    }

    pub(crate) fn add(
        &mut self,
        ground: Ground<'_>,
        cell_key: &[u8],
        was_locked: bool,
        effects: Vec<Effect>,
    ) {
        let hash = latches::hash(&[cell_key]);
        garbage::note(ground, self, cell_key, hash, &effects);
        for effect in &effects {
            if let Effect::PutWrite(ts, write) = effect
                && !is_unmarked(write.kind)
            {
                self.records.push((hash, *ts));
            }
        }
        self.lock_changes.extend(store::write_down(
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

/// What a decision is made from.
#[derive(Clone, Copy)]
pub(crate) struct Ground<'a> {
    pub(crate) engine: &'a dyn Engine,
    pub(crate) limits: &'a Limits,
    pub(crate) filter: &'a LockFilter,
    pub(crate) records: &'a Marks,
    pub(crate) cache: &'a RefCell<CellCache>,
    pub(crate) tablets: &'a Tablets,
    pub(crate) readers: &'a RefCell<Readers>,
    pub(crate) points: Points,
    /// How far it may answer.
    pub(crate) lease: Lease,
    /// What a record of the points is raised from.
    pub(crate) to_raise: Points,
    /// A number of this start of the server.
    pub(crate) life: u64,
    /// Its name, and that number.
    pub(crate) me: &'a v1::Addressee,
    /// Who is told how long it takes to load.
    pub(crate) probe: &'a dyn Probe,
}

impl Ground<'_> {
    /// Whether this server, in this life of its, is meant.
    pub(crate) fn check_addressee(&self, to: Option<v1::Addressee>) -> Result<(), Refusal> {
        match to {
            Some(to) if to == *self.me => Ok(()),
            meant => Err(Refusal::OtherServer(v1::OtherServer {
                meant,
                answers: Some(self.me.clone()),
            })),
        }
    }

    /// The cell at a place, where this server serves its tablet.
    pub(crate) fn cell(&self, refs: &[v1::TabletRef], place: &Place) -> Result<Cell, Refusal> {
        let asked = asked(refs, place)?;
        self.cell_in(asked, place.row.clone(), place.column.clone())
    }

    /// The cell at a place, where this server may tell what became of a transaction there, and roll it
    /// back: its tablet may be frozen.
    pub(crate) fn cell_to_decide(
        &self,
        refs: &[v1::TabletRef],
        place: &Place,
    ) -> Result<Cell, Refusal> {
        let tablet = self.tablets.deciding(asked(refs, place)?)?;
        check_cell(tablet, place.row.clone(), place.column.clone())
    }

    /// The cell, where this server serves the tablet.
    pub(crate) fn cell_in(
        &self,
        asked: &v1::TabletRef,
        row: Bytes,
        column: Bytes,
    ) -> Result<Cell, Refusal> {
        check_cell(self.tablets.serving(asked)?, row, column)
    }

    /// The cell's state as far as the transaction `start_ts` is concerned, of which something may have been
    /// collected: where nothing is found of it, that isn't known, and no answer.
    pub(crate) fn recalled(
        &self,
        key: &[u8],
        start_ts: Timestamp,
        commit_ts: Option<Timestamp>,
    ) -> Result<CellView, Refusal> {
        let view = self.view(key, start_ts, commit_ts)?;
        self.points.recall(&view, start_ts)?;
        Ok(view)
    }

    pub(crate) fn view(
        &self,
        key: &[u8],
        start_ts: Timestamp,
        commit_ts: Option<Timestamp>,
    ) -> Result<CellView, Error> {
        self.view_knowing(None, key, start_ts, commit_ts)
    }

    /// The same, where the cell's lock may be known.
    pub(crate) fn view_knowing(
        &self,
        lock: Option<Lock>,
        key: &[u8],
        start_ts: Timestamp,
        commit_ts: Option<Timestamp>,
    ) -> Result<CellView, Error> {
        self.probe.loading();
        // Asked all the same in tests, so that every one of them sees that nothing comes in between.
        debug_assert!(
            lock.is_none()
                || mutants::on(Mutant::NoLatches)
                || store::stored_lock(self.engine, key)? == lock,
            "a lock that has changed since it was found"
        );
        let view = store::view(
            self.engine,
            self.filter,
            self.records,
            lock,
            key,
            start_ts,
            commit_ts,
        );
        self.probe.loaded();
        view
    }
}

fn asked<'a>(refs: &'a [v1::TabletRef], place: &Place) -> Result<&'a v1::TabletRef, Refusal> {
    refs.get(place.tablet as usize)
        .ok_or_else(|| Refusal::Invalid(format!("no tablet number {}", place.tablet)))
}

fn check_cell(tablet: &v1::TabletInfo, row: Bytes, column: Bytes) -> Result<Cell, Refusal> {
    let cell = Cell::new(tablets::table(tablet), row, column);
    if let Some(why) = cell.invalid() {
        return Err(Refusal::Invalid(why));
    }
    if !tablets::contains(tablet, &cell.row) {
        return Err(Refusal::Invalid(format!(
            "cell {cell} does not lie in tablet {}",
            tablet.id
        )));
    }
    Ok(cell)
}
