//! A tablet that its server has dropped never comes back there: its table is deleted, and the fate of its
//! transactions is known to nobody any more (a late order to make it did that once).

use std::collections::{BTreeMap, BTreeSet};

use percolator_wire::v1;

use super::Invariant;
use crate::world::NodeId;

#[derive(Default)]
pub(super) struct StaysDropped {
    owned: BTreeMap<NodeId, BTreeSet<u64>>,
    dropped: BTreeSet<(NodeId, u64)>,
}

impl Invariant for StaysDropped {
    fn name(&self) -> &'static str {
        "stays dropped"
    }

    fn owns(&mut self, server: NodeId, tablets: &[v1::TabletInfo]) -> Result<(), String> {
        let now: BTreeSet<u64> = tablets.iter().map(|tablet| tablet.id).collect();
        let before = self.owned.insert(server, now.clone()).unwrap_or_default();
        self.dropped
            .extend(before.difference(&now).map(|id| (server, *id)));
        match tablets
            .iter()
            .find(|tablet| self.dropped.contains(&(server, tablet.id)))
        {
            Some(tablet) => Err(format!(
                "server {server} has dropped tablet {} of table {}, and owns it again",
                tablet.id, tablet.table_name
            )),
            None => Ok(()),
        }
    }
}
