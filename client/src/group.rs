//! Sorts cells into requests, one for each server.

use std::sync::Arc;

use percolator_protocol::types::Cell;
use percolator_wire::v1;

use crate::location_cache::{LocationCache, UnknownLocation};

/// Cells of one server, for one request.
#[derive(Debug)]
pub(crate) struct RequestGroup {
    pub(crate) address: Arc<str>,
    pub(crate) tablets: Vec<v1::TabletRef>,
    /// Which of the caller's cells, and how the request names them.
    pub(crate) cells: Vec<(usize, v1::CellRef)>,
}

impl RequestGroup {
    fn new(address: &Arc<str>) -> Self {
        Self {
            address: address.clone(),
            tablets: Vec::new(),
            cells: Vec::new(),
        }
    }
}

impl LocationCache {
    /// Sorts cells by server: one request a server, whatever the number of keys.
    pub(crate) fn group<'a>(
        &self,
        cells: impl Iterator<Item = (usize, &'a Cell)>,
        cells_max: usize,
        bytes_max: usize,
        bytes: impl Fn(usize) -> usize,
    ) -> Result<Vec<RequestGroup>, UnknownLocation> {
        let mut full: Vec<RequestGroup> = Vec::new();
        let mut open: Vec<(RequestGroup, usize)> = Vec::new();
        for (index, cell) in cells {
            let (tablet, address) = self.owner_of(cell)?;
            let size = bytes(index) + cell.row.len() + cell.column.len();
            let at = open
                .iter()
                .position(|(group, _)| group.address == *address)
                .unwrap_or_else(|| {
                    open.push((RequestGroup::new(address), 0));
                    open.len() - 1
                });
            let (group, size_so_far) = &mut open[at];
            if group.cells.len() >= cells_max
                || (*size_so_far > 0 && *size_so_far + size > bytes_max)
            {
                full.push(std::mem::replace(group, RequestGroup::new(address)));
                *size_so_far = 0;
            }
            *size_so_far += size;
            let number = group
                .tablets
                .iter()
                .position(|known| known.id == tablet.id)
                .unwrap_or_else(|| {
                    group.tablets.push(v1::TabletRef {
                        id: tablet.id,
                        epoch: tablet.epoch,
                    });
                    group.tablets.len() - 1
                });
            group.cells.push((
                index,
                v1::CellRef {
                    tablet: number as u32,
                    row: cell.row.clone(),
                    column: cell.column.clone(),
                },
            ));
        }
        full.extend(open.into_iter().map(|(group, _)| group));
        Ok(full)
    }
}
