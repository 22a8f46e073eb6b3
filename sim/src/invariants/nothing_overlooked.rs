//! Collection goes by an index alone, so whatever may be collected one day has an entry there: a put that hides
//! an older version, and every record that is no put (`tablet/src/garbage.rs`).

use std::collections::{BTreeMap, BTreeSet};

use percolator_engine::Column;
use percolator_protocol::types::{Timestamp, Write, WriteKind, key};
use percolator_tablet::index::Entry;

use super::Invariant;
use crate::end::End;
use crate::watch::{Content, pairs};

pub(crate) const NAME: &str = "nothing is overlooked";

pub(super) struct NothingOverlooked;

impl Invariant for NothingOverlooked {
    fn name(&self) -> &'static str {
        NAME
    }

    fn at_end(&mut self, end: &End<'_>) -> Result<(), String> {
        for (server, content) in end.contents {
            let owned = end.owned.get(server);
            let in_use = |key: &[u8]| {
                owned
                    .and_then(|owned| owned.at(key))
                    .is_some_and(|tablet| tablet.is_in_use)
            };
            check(content, in_use).map_err(|why| format!("{server}: {why}"))?;
        }
        Ok(())
    }
}

fn check(content: &Content, in_use: impl Fn(&[u8]) -> bool) -> Result<(), String> {
    let mut entries = BTreeSet::new();
    for (key, value) in pairs(content, Column::Garbage) {
        let entry = Entry::decode(key, value.clone()).map_err(|error| error.to_string())?;
        let items = entry.items.into_iter();
        entries.extend(items.map(|item| (entry.ts, item.cell_key)));
    }
    let mut cells: BTreeMap<Vec<u8>, Vec<(Timestamp, WriteKind)>> = BTreeMap::new();
    for (key, value) in pairs(content, Column::Write) {
        let unreadable = |error: percolator_protocol::types::DecodeError| error.to_string();
        let (cell, ts) = key::split_version(key).map_err(unreadable)?;
        let write = Write::decode(ts, value.clone()).map_err(unreadable)?;
        cells
            .entry(cell.to_vec())
            .or_default()
            .push((ts, write.kind));
    }
    for (cell_key, records) in cells {
        let cell = key::decode_cell(&cell_key).map_err(|error| error.to_string())?;
        if !in_use(&cell_key) {
            continue;
        }
        // Newest first.
        for (at, (ts, kind)) in records.iter().enumerate() {
            let shows = |kind: &WriteKind| matches!(kind, WriteKind::Put | WriteKind::Delete);
            let hides = records[at + 1..].iter().any(|(_, older)| shows(older));
            let entry = (*ts, cell_key.clone().into());
            if (*kind != WriteKind::Put || hides) && !entries.contains(&entry) {
                return Err(format!(
                    "the {kind:?} of cell {cell} at {ts} is in no index: it will never be collected"
                ));
            }
        }
    }
    Ok(())
}
