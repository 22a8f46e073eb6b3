//! The rows that a tablet server says that it owns.

use percolator_protocol::types::{TableId, key};
use percolator_wire::v1;

/// See the module's head.
#[derive(Clone, Debug, Default)]
pub struct Owned(Vec<OwnedTablet>);

/// One of its tablets.
#[derive(Clone, Debug)]
pub(crate) struct OwnedTablet {
    pub(crate) table: u32,
    pub(crate) is_in_use: bool,
    /// Of its keys, in every column that has rows.
    start: Vec<u8>,
    pub(crate) end: Vec<u8>,
}

impl Owned {
    pub(crate) fn of(tablets: &[v1::TabletInfo]) -> Self {
        let tablets = tablets.iter().map(|tablet| {
            let table = TableId(tablet.table_id);
            OwnedTablet {
                table: tablet.table_id,
                is_in_use: tablet.state() == v1::TabletState::Serving,
                start: key::row_bound(table, &tablet.start_row),
                end: key::rows_end(table, &tablet.end_row),
            }
        });
        Self(tablets.collect())
    }

    /// The tablet that has this key.
    pub(crate) fn at(&self, key: &[u8]) -> Option<&OwnedTablet> {
        let has_it = |tablet: &&OwnedTablet| key >= &tablet.start[..] && key < &tablet.end[..];
        self.0.iter().find(has_it)
    }

    /// A table that is being deleted and has tablets here.
    pub(crate) fn frozen(&self) -> Option<u32> {
        let frozen = self.0.iter().find(|tablet| !tablet.is_in_use);
        frozen.map(|tablet| tablet.table)
    }
}
