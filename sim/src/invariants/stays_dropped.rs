//! A tablet that its server has dropped never comes back there: its table is deleted, and the fate of its
//! transactions is known to nobody any more (a late order to make it did that once).

use std::collections::{BTreeMap, BTreeSet};

use percolator_wire::v1;

use super::Invariant;

#[derive(Default)]
pub(super) struct StaysDropped {
    owned: BTreeMap<String, BTreeSet<u64>>,
    dropped: BTreeMap<String, BTreeSet<u64>>,
}

impl Invariant for StaysDropped {
    fn name(&self) -> &'static str {
        "stays dropped"
    }

    fn owns(&mut self, server: &str, tablets: &[v1::TabletInfo]) -> Result<(), String> {
        let now: BTreeSet<u64> = tablets.iter().map(|tablet| tablet.id).collect();
        let before = self.owned.insert(server.to_owned(), now.clone());
        let dropped = self.dropped.entry(server.to_owned()).or_default();
        dropped.extend(before.unwrap_or_default().difference(&now));
        match tablets.iter().find(|tablet| dropped.contains(&tablet.id)) {
            Some(tablet) => Err(format!(
                "{server} has dropped tablet {} of table {}, and owns it again",
                tablet.id, tablet.table_name
            )),
            None => Ok(()),
        }
    }
}
