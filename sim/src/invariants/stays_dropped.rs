//! A tablet that its server has dropped never comes back there: its table is deleted, and the fate of its
//! transactions is known to nobody any more (a late command to make it did that once). One that was handed over comes back
//! only at a later epoch.

use std::collections::BTreeMap;

use percolator_wire::v1;

use super::Invariant;

#[derive(Default)]
pub(super) struct StaysDropped {
    /// Their epochs.
    owned: BTreeMap<String, BTreeMap<u64, u64>>,
    dropped: BTreeMap<String, BTreeMap<u64, u64>>,
}

impl Invariant for StaysDropped {
    fn name(&self) -> &'static str {
        "stays dropped"
    }

    fn owns(&mut self, server: &str, tablets: &[v1::TabletInfo]) -> Result<(), String> {
        let now = tablets.iter().map(|tablet| (tablet.id, tablet.epoch));
        let now: BTreeMap<u64, u64> = now.collect();
        let before = self.owned.insert(server.to_owned(), now.clone());
        let dropped = self.dropped.entry(server.to_owned()).or_default();
        let gone = before.unwrap_or_default().into_iter();
        dropped.extend(gone.filter(|(id, _)| !now.contains_key(id)));
        let is_back = |tablet: &&v1::TabletInfo| {
            let left_at = dropped.get(&tablet.id);
            left_at.is_some_and(|epoch| tablet.epoch <= *epoch)
        };
        match tablets.iter().find(is_back) {
            Some(tablet) => Err(format!(
                "{server} has dropped tablet {} of table {}, and owns it again",
                tablet.id, tablet.table_name
            )),
            None => Ok(()),
        }
    }
}
