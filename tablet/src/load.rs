//! Counts the requests for each tablet: hot rows show as a tablet with many.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use percolator_protocol::types::Tablet;
use percolator_telemetry::names::tablet as names;
use percolator_telemetry::{Bounded, Error, IntCounterVec, Set};
use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;

use crate::probe::{Method, Probe, tablets};
use crate::tablets::Tablets;

/// The load of one tablet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) requests: u64,
    /// Bytes of rows, columns and values.
    pub(crate) bytes: u64,
}

/// The loads of tablets by id: reads, and writes.
pub(crate) type Loads = BTreeMap<u64, [Load; 2]>;

/// Counts a request for the tablets that it names, if they are here.
pub(crate) fn count(
    probe: &dyn Probe,
    here: &Tablets,
    method: Option<Method>,
    request: &v1::Request,
) {
    let Some(method) = method else { return };
    for id in tablets(request).filter(|id| here.get(*id).is_some()) {
        let requests = 1;
        probe.asked(id, method.reads(), Load { requests, bytes: 0 });
    }
    let Some(Ask::Prewrite(prewrite)) = &request.body else {
        return;
    };
    for mutation in &prewrite.mutations {
        let Some(cell) = &mutation.cell else { continue };
        let tablet = request.tablets.get(cell.tablet as usize);
        if let Some(tablet) = tablet.filter(|tablet| here.get(tablet.id).is_some()) {
            let bytes = cell.row.len() + cell.column.len() + mutation.value.len();
            probe.asked(tablet.id, false, Load::of_bytes(bytes));
        }
    }
}

impl Load {
    /// The bytes of a request that is counted elsewhere.
    pub(crate) fn of_bytes(bytes: usize) -> Self {
        Self {
            requests: 0,
            bytes: bytes as u64,
        }
    }

    pub(crate) fn add(&mut self, more: Self) {
        self.requests += more.requests;
        self.bytes += more.bytes;
    }
}

/// The counters of this load.
pub(crate) struct LoadCounters {
    requests: IntCounterVec,
    bytes: IntCounterVec,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Tablets that have counters of their own, and their tables.
    named: BTreeMap<u64, String>,
    /// Not shown yet.
    new: Loads,
}

impl LoadCounters {
    pub(crate) fn new(set: &Set<'_>) -> Result<Self, Error> {
        Ok(Self {
            requests: set.counters(names::TABLET_REQUESTS)?,
            bytes: set.counters(names::TABLET_BYTES)?,
            state: Mutex::default(),
        })
    }

    /// Adds these loads.
    pub(crate) fn more(&self, loads: Loads) {
        let mut state = self.state.lock();
        for (tablet, kinds) in loads {
            let sums = state.new.entry(tablet).or_default();
            sums.iter_mut()
                .zip(kinds)
                .for_each(|(sum, more)| sum.add(more));
        }
    }

    /// Shows the new loads of the tablets that are here, and removes the others' series.
    pub(crate) fn show(&self, here: &[Tablet]) {
        let State { named, new } = &mut *self.state.lock();
        let ids: BTreeSet<u64> = here.iter().map(|tablet| tablet.id).collect();
        named.retain(|id, table| {
            let is_here = ids.contains(id);
            if !is_here {
                self.forget(*id, table);
            }
            is_here
        });
        for tablet in here {
            let Some(kinds) = new.remove(&tablet.id) else {
                continue;
            };
            if named.len() < names::TABLETS_NAMED {
                named
                    .entry(tablet.id)
                    .or_insert_with(|| tablet.table_name.clone());
            }
            let (id, table) = match named.get(&tablet.id) {
                Some(table) => (tablet.id.to_string(), table.as_str()),
                None => (Bounded::OTHER.to_owned(), Bounded::OTHER),
            };
            for (kind, load) in names::LOAD_KINDS.iter().zip(kinds) {
                let labels = [id.as_str(), table, kind];
                self.requests
                    .with_label_values(&labels)
                    .inc_by(load.requests);
                self.bytes.with_label_values(&labels).inc_by(load.bytes);
            }
        }
        new.clear();
    }

    fn forget(&self, id: u64, table: &str) {
        let id = id.to_string();
        for kind in names::LOAD_KINDS {
            let labels = [id.as_str(), table, kind];
            // A series that doesn't exist is an error to ignore.
            let _ = self.requests.remove_label_values(&labels);
            let _ = self.bytes.remove_label_values(&labels);
        }
    }
}

#[cfg(test)]
mod tests {
    use percolator_protocol::types::{Rows, TableId, TabletState};
    use percolator_telemetry::Registry;

    use super::*;

    fn tablets(ids: impl IntoIterator<Item = u64>) -> Vec<Tablet> {
        let of_bank = |id| Tablet {
            id,
            table: TableId(1),
            table_name: "bank".into(),
            rows: Rows::default(),
            epoch: 1,
            state: TabletState::Serving,
        };
        ids.into_iter().map(of_bank).collect()
    }

    fn reads(ids: impl IntoIterator<Item = u64>) -> Loads {
        let load = Load {
            requests: 1,
            bytes: 10,
        };
        ids.into_iter()
            .map(|id| (id, [load, Load::default()]))
            .collect()
    }

    #[test]
    fn only_so_many_tablets_have_names_and_those_that_go_make_room() {
        let registry = Registry::new();
        let set = Set::new(&registry, names::ALL);
        let shown = LoadCounters::new(&set).unwrap();
        let most = names::TABLETS_NAMED as u64;
        shown.more(reads(1..=most + 2));
        // This tablet was here when it was requested.
        shown.more(reads([most + 3]));
        shown.show(&tablets(1..=most + 2));
        let text = percolator_telemetry::text(&registry).unwrap();
        let series = |text: &str| text.matches("tablet_requests_total{").count();
        assert_eq!(series(&text), 2 * (names::TABLETS_NAMED + 1), "{text}");
        for line in [
            "percolator_tablet_tablet_requests_total{kind=\"read\",table=\"bank\",tablet=\"1\"} 1",
            "percolator_tablet_tablet_bytes_total{kind=\"read\",table=\"bank\",tablet=\"1\"} 10",
            "percolator_tablet_tablet_requests_total{kind=\"write\",table=\"bank\",tablet=\"1\"} 0",
            "percolator_tablet_tablet_requests_total{kind=\"read\",table=\"other\",tablet=\"other\"} 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        shown.more(reads([most + 2]));
        shown.show(&tablets([most + 2]));
        let text = percolator_telemetry::text(&registry).unwrap();
        assert_eq!(series(&text), 2 * 2, "{text}");
        let line = format!("table=\"bank\",tablet=\"{}\"}} 1", most + 2);
        assert!(text.contains(&line), "{text}");
    }
}
