//! The master's commands, and what is decided about them.

use bytes::Bytes;
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::{Rows, Tablet, Timestamp};

use crate::decision::{Decision, TabletChange};
use crate::latches::{self, RowHash};
use crate::peers::ServerLocation;
use crate::state::State;
use crate::work::invalid;
use crate::{Refusal, moves, observed, tablets};

/// A command of the master.
#[derive(Clone, Debug)]
pub enum TabletCommand {
    /// Own this tablet, in this state.
    Create {
        /// The tablet.
        tablet: Tablet,
        /// The server has reported the tablet before.
        made: bool,
        /// What is below is refused from before the tablet is served.
        barrier: Timestamp,
    },
    /// Forget this tablet of a table that is deleted.
    Drop {
        /// The tablet.
        id: u64,
        /// Its table.
        table: u32,
    },
    /// Cut a tablet in two.
    Split {
        /// The tablet, which keeps the rows before `row`.
        id: u64,
        /// Its epoch.
        epoch: u64,
        /// The first row of the other part.
        row: Bytes,
        /// The id of the other part.
        sibling: u64,
    },
    /// Get this tablet from its owner.
    Import {
        /// The tablet, as its owner has it.
        tablet: Tablet,
        /// Its owner.
        from: ServerLocation,
        /// This server's address.
        address: String,
    },
    /// Make one tablet of two neighbours.
    Merge {
        /// The first one, which gets all rows: its id and its epoch.
        first: (u64, u64),
        /// The second one, which is gone then.
        second: (u64, u64),
    },
}

impl TabletCommand {
    /// The tablets that it changes.
    fn tablets(&self) -> impl Iterator<Item = u64> {
        let (first, second) = match self {
            Self::Create { tablet, .. } | Self::Import { tablet, .. } => (tablet.id, None),
            Self::Drop { id, .. } => (*id, None),
            Self::Split { id, sibling, .. } => (*id, Some(*sibling)),
            Self::Merge { first, second } => (first.0, Some(second.0)),
        };
        std::iter::once(first).chain(second)
    }

    /// Of a split or a merge: the tablets that there are then.
    pub fn cuts(&self) -> Vec<u64> {
        match self {
            Self::Create { .. } | Self::Drop { .. } | Self::Import { .. } => Vec::new(),
            Self::Split { id, sibling, .. } => vec![*id, *sibling],
            Self::Merge { first, .. } => vec![first.0],
        }
    }

    /// The latches. Rows need none: they stay where they are, and a request's decision checks its tablet's epoch again.
    /// Commands by which tablets come here check other arrivals of their table, so that they are decided one at a time.
    pub(crate) fn latches(&self) -> Vec<RowHash> {
        let table = match self {
            Self::Create { tablet, .. } | Self::Import { tablet, .. } => Some(tablet.table),
            Self::Drop { .. } | Self::Split { .. } | Self::Merge { .. } => None,
        };
        let table = table.filter(|_| !mutants::on(Mutant::ArrivalsNotLatched));
        let table = table.map(|table| latches::table(table.0));
        self.tablets().map(latches::tablet).chain(table).collect()
    }

    /// Whether a nearly full disk takes the command: without it no table can be deleted, which makes room.
    pub(crate) fn makes_room(&self) -> bool {
        match self {
            Self::Create { tablet, .. } => tablet.is_frozen(),
            Self::Drop { .. } => true,
            Self::Split { .. } | Self::Merge { .. } | Self::Import { .. } => false,
        }
    }

    pub(crate) fn decide(self, state: &State) -> Result<Decision, Refusal> {
        if let Some(id) = self.tablets().find(|id| state.tablets.is_closed(*id)) {
            return Err(invalid(format!(
                "tablet {id} is about to be handed over to another server"
            )));
        }
        match self {
            Self::Import {
                tablet,
                from,
                address,
            } => moves::import(state, tablet, from, address),
            Self::Create {
                tablet,
                made,
                barrier,
            } => create(state, tablet, made, barrier),
            Self::Drop { id, table } => drop(state, id, table),
            Self::Split {
                id,
                epoch,
                row,
                sibling,
            } => split(state, id, epoch, &row, sibling),
            Self::Merge { first, second } => merge(state, first, second),
        }
    }
}

/// Decides to drop a tablet of a table that is deleted.
fn drop(state: &State, id: u64, table: u32) -> Result<Decision, Refusal> {
    let mut decision = Decision::new();
    let tablet = state.tablets.get(id);
    if let Some(known) = tablet.filter(|known| known.table.0 != table) {
        return Err(invalid(format!(
            "tablet {id} belongs to table {}, not to {table}",
            known.table.0
        )));
    }
    if tablet.is_some() || !state.tablets.is_deleted(table) {
        decision.batch = tablets::drop_record(tablet, table);
        observed::remove_record(&mut decision.batch, &state.observed, id);
        decision.tablet_change = Some(TabletChange::Drop { id, table });
    }
    Ok(decision)
}

/// Decides to own a tablet in this state, and to refuse what lies below the barrier. `made`: this server has reported the tablet
/// before.
fn create(
    state: &State,
    tablet: Tablet,
    made: bool,
    barrier: Timestamp,
) -> Result<Decision, Refusal> {
    if tablet.id == 0 || tablet.table.0 == 0 || tablet.epoch == 0 {
        return Err(invalid(
            "a tablet needs an id, a table and an epoch above 0",
        ));
    }
    let freeze = tablet.is_frozen();
    let new = match state.tablets.get(tablet.id) {
        None => {
            check_new(state, &tablet, made)?;
            Some(tablet)
        }
        // The master has to know the epoch first: the tablet may have other rows.
        Some(known) if known.epoch > tablet.epoch && freeze => {
            return Err(invalid(format!(
                "tablet {} is at epoch {}, it can't be frozen at {}",
                tablet.id, known.epoch, tablet.epoch
            )));
        }
        // A tablet stays frozen: a late command to make it doesn't undo that.
        Some(known) if known.epoch >= tablet.epoch => {
            let is_behind = known.state < tablet.state && freeze;
            is_behind.then(|| Tablet {
                state: tablet.state,
                ..known.clone()
            })
        }
        Some(known) if known.is_frozen() => Some(Tablet {
            state: known.state.max(tablet.state),
            ..tablet
        }),
        Some(_) => Some(tablet),
    };
    let mut decision = Decision::new();
    if let Some(tablet) = new {
        decision.batch = tablets::record(&tablet);
        tablets::note_id(&mut decision.batch, &state.tablets, tablet.id);
        decision.tablet_change = Some(TabletChange::Insert(tablet));
        let news = state.points.news(Points {
            barrier,
            ..Points::default()
        });
        if let Some(raised) = news {
            decision.raise(raised);
        }
    }
    Ok(decision)
}

/// Checks that a tablet that isn't here may be made: the command may be late, or the server may have lost the tablet.
fn check_new(state: &State, tablet: &Tablet, made: bool) -> Result<(), Refusal> {
    let id = tablet.id;
    let deleted = state.tablets.is_deleted(tablet.table.0);
    if deleted && !mutants::on(Mutant::LateCreateAccepted) {
        return Err(invalid(format!(
            "table {} was deleted, tablet {id} of it is not made again",
            tablet.table.0
        )));
    }
    if let Some(other) = state.tablets.overlapping(tablet.table.0, &tablet.rows) {
        return Err(invalid(format!(
            "tablet {id} is not made: its rows are those of tablet {}, with which it was merged",
            other.id
        )));
    }
    if state.tablets.has_left(id, tablet.epoch) {
        return Err(invalid(format!(
            "tablet {id} was handed over to another server"
        )));
    }
    if let Some(other) = state.arriving.overlapping(tablet) {
        return Err(invalid(format!(
            "tablet {id} is not made: this server is getting its rows with tablet {}",
            other.id
        )));
    }
    if let Some(other) = state.tablets.left_over(tablet) {
        return Err(invalid(format!(
            "tablet {id} is not made: rows of tablet {}, which was here before, are still to be removed",
            other.id
        )));
    }
    if made {
        return Err(invalid(format!(
            "tablet {id} of table {} ({}) is lost: this server has reported it before, and has another folder \
             now; bring the folder back, or delete the table with --accept-data-loss",
            tablet.table.0, tablet.table_name
        )));
    }
    Ok(())
}

/// Decides to cut a tablet in two at a row. Stored cells, latches and marks go by rows, and don't change.
fn split(
    state: &State,
    id: u64,
    epoch: u64,
    row: &Bytes,
    sibling: u64,
) -> Result<Decision, Refusal> {
    let known = serving(state, id)?;
    let other = state.tablets.get(sibling);
    if known.rows.end == *row && other.is_some_and(|other| other.rows.start == *row) {
        return Ok(Decision::new());
    }
    check_epoch(known, epoch)?;
    if sibling == 0 || other.is_some() || state.tablets.dropped(sibling).is_some() {
        return Err(invalid(format!("there is a tablet {sibling} already")));
    }
    if known.rows.start >= *row || !known.rows.contains(row) {
        return Err(invalid(format!(
            "tablet {id} can't be split there: the row has to be one of its rows, and not the first"
        )));
    }
    let part = |id, start: &Bytes, end: &Bytes| Tablet {
        id,
        rows: Rows {
            start: start.clone(),
            end: end.clone(),
        },
        epoch: epoch + 1,
        ..known.clone()
    };
    let first = part(id, &known.rows.start, row);
    let second = part(sibling, row, &known.rows.end);
    let mut decision = Decision::new();
    decision.batch = tablets::record(&first);
    tablets::add_record(&mut decision.batch, &second);
    tablets::note_id(&mut decision.batch, &state.tablets, sibling);
    let columns = state.observed.columns(id);
    if !columns.is_empty() {
        observed::put_record(&mut decision.batch, sibling, second.table.0, columns);
    }
    decision.tablet_change = Some(TabletChange::Split { first, second });
    Ok(decision)
}

/// Decides to make one tablet of two neighbours.
fn merge(state: &State, first: (u64, u64), second: (u64, u64)) -> Result<Decision, Refusal> {
    let left = serving(state, first.0)?;
    if state.tablets.get(second.0).is_none() && left.epoch > first.1 {
        return Ok(Decision::new());
    }
    let right = serving(state, second.0)?;
    check_epoch(left, first.1)?;
    check_epoch(right, second.1)?;
    if left.table != right.table || left.rows.end.is_empty() || left.rows.end != right.rows.start {
        return Err(invalid(format!(
            "tablet {} does not begin where tablet {} ends",
            right.id, left.id
        )));
    }
    let merged = Tablet {
        rows: Rows {
            start: left.rows.start.clone(),
            end: right.rows.end.clone(),
        },
        epoch: left.epoch.max(right.epoch) + 1,
        ..left.clone()
    };
    let mut decision = Decision::new();
    decision.batch = tablets::record(&merged);
    tablets::remove_record(&mut decision.batch, right.id);
    // A late command doesn't make it again. A receiver that waits for it gets the outcome that it stays, wherever the merged
    // tablet is then.
    let gone = Tablet {
        epoch: merged.epoch,
        ..right.clone()
    };
    tablets::put_settled(&mut decision.batch, &gone);
    observed::remove_record(&mut decision.batch, &state.observed, right.id);
    let columns = state.observed.merged(left.id, right.id);
    if !columns.is_empty() {
        observed::put_record(&mut decision.batch, left.id, left.table.0, columns);
    }
    decision.tablet_change = Some(TabletChange::Merge {
        merged,
        gone: right.id,
    });
    Ok(decision)
}

/// The tablet, if it serves.
fn serving(state: &State, id: u64) -> Result<&Tablet, Refusal> {
    let known = state.tablets.get(id);
    let known = known.ok_or_else(|| invalid(format!("tablet {id} is not here")))?;
    if known.is_frozen() {
        return Err(invalid(format!(
            "the table of tablet {id} is being deleted"
        )));
    }
    Ok(known)
}

fn check_epoch(known: &Tablet, epoch: u64) -> Result<(), Refusal> {
    if known.epoch == epoch {
        return Ok(());
    }
    Err(invalid(format!(
        "tablet {} is at epoch {}, and not at {epoch}",
        known.id, known.epoch
    )))
}
