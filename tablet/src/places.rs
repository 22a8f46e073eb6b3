//! Cells as requests name them: by their position in the request's list of tablets.

use std::collections::HashSet;

use bytes::Bytes;
use percolator_protocol::types::limits::REQUEST_CELLS_MAX;
use percolator_protocol::types::{Cell, Tablet, escape};
use percolator_wire::v1;

use crate::Refusal;
use crate::state::State;
use crate::work::invalid;

/// A cell as a request names it: in one of its tablets.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) tablet: u32,
    pub(crate) row: Bytes,
    pub(crate) column: Bytes,
}

impl From<v1::CellRef> for Place {
    fn from(cell: v1::CellRef) -> Self {
        Self {
            tablet: cell.tablet,
            row: cell.row,
            column: cell.column,
        }
    }
}

impl State {
    /// The cell at a place, if this server serves its tablet.
    pub(crate) fn cell(&self, refs: &[v1::TabletRef], place: &Place) -> Result<Cell, Refusal> {
        let asked = asked(refs, place)?;
        self.cell_in(asked, place.row.clone(), place.column.clone())
    }

    /// The cell at a place, for a request that reads or decides how a transaction ended: its tablet may be frozen.
    pub(crate) fn cell_to_decide(
        &self,
        refs: &[v1::TabletRef],
        place: &Place,
    ) -> Result<Cell, Refusal> {
        let asked = asked(refs, place)?;
        let tablet = self.tablets.deciding(asked.id, asked.epoch)?;
        check_cell(tablet, place.row.clone(), place.column.clone())
    }

    /// The cell, if this server serves the tablet.
    pub(crate) fn cell_in(
        &self,
        asked: &v1::TabletRef,
        row: Bytes,
        column: Bytes,
    ) -> Result<Cell, Refusal> {
        check_cell(self.tablets.serving(asked.id, asked.epoch)?, row, column)
    }
}

pub(crate) fn places(cells: Vec<v1::CellRef>) -> Result<Vec<Place>, Refusal> {
    check_count(cells.len())?;
    let places: Vec<Place> = cells.into_iter().map(Place::from).collect();
    check_distinct(places.iter())?;
    Ok(places)
}

/// Refuses a cell that is named twice: every decision is made on the state before the request.
pub(crate) fn check_distinct<'a>(
    places: impl ExactSizeIterator<Item = &'a Place>,
) -> Result<(), Refusal> {
    if places.len() < 2 {
        return Ok(());
    }
    let mut seen = HashSet::with_capacity(places.len());
    for place in places {
        if !seen.insert((place.tablet, &place.row, &place.column)) {
            return Err(invalid(format!(
                "cell {}:{} is named twice in one request",
                escape(&place.row),
                escape(&place.column)
            )));
        }
    }
    Ok(())
}

pub(crate) fn primary(cell: Option<v1::CellRef>) -> Result<Place, Refusal> {
    cell.map(Place::from)
        .ok_or_else(|| invalid("the primary is missing"))
}

pub(crate) fn check_count(cells: usize) -> Result<(), Refusal> {
    if cells == 0 {
        return Err(invalid("a request without cells"));
    }
    if cells > REQUEST_CELLS_MAX {
        return Err(invalid(format!(
            "{cells} cells in one request, the limit is {REQUEST_CELLS_MAX}"
        )));
    }
    Ok(())
}

fn asked<'a>(refs: &'a [v1::TabletRef], place: &Place) -> Result<&'a v1::TabletRef, Refusal> {
    refs.get(place.tablet as usize)
        .ok_or_else(|| Refusal::Invalid(format!("no tablet number {}", place.tablet)))
}

fn check_cell(tablet: &Tablet, row: Bytes, column: Bytes) -> Result<Cell, Refusal> {
    let cell = Cell::new(tablet.table, row, column);
    if let Some(why) = cell.invalid() {
        return Err(Refusal::Invalid(why));
    }
    if !tablet.rows.contains(&cell.row) {
        return Err(Refusal::Invalid(format!(
            "cell {cell} does not lie in tablet {}",
            tablet.id
        )));
    }
    Ok(cell)
}
