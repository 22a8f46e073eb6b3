//! Decides about the master's commands.

use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::{Tablet, Timestamp};

use crate::decision::{Decision, TabletChange};
use crate::state::State;
use crate::work::invalid;
use crate::{Refusal, tablets};

/// To forget a tablet of a table that is deleted.
pub(crate) fn drop(state: &State, id: u64, table: u32) -> Result<Decision, Refusal> {
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
        decision.tablet_change = Some(TabletChange::Drop { id, table });
    }
    Ok(decision)
}

/// To own a tablet in the state that it has here, and to refuse what is below the barrier. `made`: this server has
/// said that it has it.
pub(crate) fn create(
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
    if state.tablets.get(tablet.id).is_none() {
        // An order that is late.
        let deleted = state.tablets.is_deleted(tablet.table.0);
        if deleted && !mutants::on(Mutant::LateCreateAccepted) {
            return Err(invalid(format!(
                "table {} was deleted, tablet {} of it is not made again",
                tablet.table.0, tablet.id
            )));
        }
        if made {
            return Err(invalid(format!(
                "tablet {} of table {} ({}) is lost: this server has said that it has it, and its folder is \
                 another one now; bring the folder back, or delete the table with --give-up-lost",
                tablet.id, tablet.table.0, tablet.table_name
            )));
        }
    }
    let new = match state.tablets.get(tablet.id) {
        // The master has to hear of it first: its rows may be others.
        Some(known) if known.epoch > tablet.epoch && freeze => {
            return Err(invalid(format!(
                "tablet {} is at epoch {}, it can't be frozen at {}",
                tablet.id, known.epoch, tablet.epoch
            )));
        }
        // Frozen is for good: a command to make the tablet that is late doesn't undo it.
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
        _ => Some(tablet),
    };
    let mut decision = Decision::new();
    if let Some(tablet) = new {
        decision.batch = tablets::record(&tablet);
        decision.tablet_change = Some(TabletChange::Insert(tablet));
        let raised = state.points.highest().raised(Points {
            barrier,
            ..Points::default()
        });
        if raised != state.points.highest() {
            decision.raise(raised);
        }
    }
    Ok(decision)
}
