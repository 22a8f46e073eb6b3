//! Tables, for as long as a transaction lasts.

use std::time::Duration;

use parking_lot::Mutex;
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::types::TableId;

use crate::Error;
use crate::router::Router;

/// The tables that a transaction uses, by the names that they had when it used them first. A table that is deleted
/// and created again under its name meanwhile is another one: the transaction would read and write half of either.
#[derive(Default)]
pub(crate) struct PinnedTables(Mutex<Vec<(String, TableId)>>);

impl PinnedTables {
    fn get(&self, name: &str) -> Option<TableId> {
        if mutants::on(Mutant::TablesNotPinned) {
            return None;
        }
        let pinned = self.0.lock();
        let of_name = pinned.iter().find(|(pinned, _)| pinned == name);
        of_name.map(|(_, table)| *table)
    }

    /// The one that was first stays, also if two calls resolve the name at a time.
    pub(crate) fn pin(&self, name: &str, table: TableId) -> TableId {
        let mut pinned = self.0.lock();
        if mutants::on(Mutant::TablesNotPinned) {
            pinned.clear();
        }
        if let Some((_, first)) = pinned.iter().find(|(pinned, _)| pinned == name) {
            return *first;
        }
        pinned.push((name.to_owned(), table));
        table
    }

    /// All that are in use.
    pub(crate) fn all(&self) -> Vec<(String, TableId)> {
        self.0.lock().clone()
    }

    /// Pins the table, if the router knows it already.
    pub(crate) fn pin_known(&self, router: &Router, name: &str) {
        if self.get(name).is_none()
            && let Some(table) = router.locations().table(name)
        {
            self.pin(name, table);
        }
    }

    /// The table of this name.
    pub(crate) async fn table(
        &self,
        router: &Router,
        name: &str,
        request_timeout: Duration,
    ) -> Result<TableId, Error> {
        match self.get(name) {
            Some(table) => Ok(table),
            None => Ok(self.pin(name, router.table(name, request_timeout).await?)),
        }
    }
}
