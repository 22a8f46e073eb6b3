//! The load of each tablet, in cells a second that are read or written, and the row at which a tablet with much load can be
//! split: about half of the load lies before it.
//!
//! Rates are estimates in memory. They begin anew after a start.

use std::collections::BTreeMap;
use std::time::Duration;

use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;

use crate::tablets::Tablets;

/// The length of a window. Its count then changes the average.
const WINDOW: Duration = Duration::from_secs(5);
/// A window changes the average by the difference divided by this.
const SMOOTHING: u64 = 4;
/// A tablet with less load than the limit divided by this isn't reported.
const REPORTED: u64 = 8;
/// A reported load changes when the average has changed by more than one in this many.
const CHANGED: u64 = 4;
/// The rows of each window that are sampled of a tablet with much load.
const ROWS: usize = 64;
/// With fewer rows no row to split at is reported.
const ROWS_MIN: usize = 32;
/// Each part has at least the load divided by this.
const PART_MIN: usize = 5;

/// The loads of this server's tablets.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    tablets: BTreeMap<u64, Rate>,
    /// The elapsed time of the window.
    window: Duration,
    /// Tablets with more load may be split; zero: none.
    split_load: u64,
}

#[derive(Clone, Debug, Default)]
struct Rate {
    /// Cells in this window.
    cells: u64,
    /// Cells a second, on average.
    average: u64,
    /// The reported average.
    reported: u64,
    /// A sample of the rows of this window.
    rows: Vec<Vec<u8>>,
    /// The rows of this window.
    seen: u64,
    split_at: Vec<u8>,
}

impl Rates {
    /// Sets the cells a second above which a tablet may be split; zero: none.
    pub(crate) fn limit(&mut self, split_load: u64) {
        if std::mem::replace(&mut self.split_load, split_load) != split_load {
            for rate in self.tablets.values_mut() {
                rate.split_at.clear();
                rate.rows.clear();
                rate.seen = 0;
            }
        }
    }

    /// Counts cells of the tablet that are read or written. One of their rows is `row`.
    pub(crate) fn used(&mut self, tablet: u64, cells: u64, row: &[u8]) {
        let split_load = self.split_load;
        let rate = self.tablets.entry(tablet).or_default();
        rate.cells += cells;
        if split_load > 0 && rate.average >= split_load / 2 {
            rate.sample(row);
        }
    }

    /// Lets time pass.
    pub(crate) fn tick(&mut self, elapsed: Duration, here: &Tablets) {
        self.window += elapsed;
        if self.window < WINDOW {
            return;
        }
        let millis = u64::try_from(self.window.as_millis()).unwrap_or(u64::MAX);
        self.window = Duration::ZERO;
        let split_load = self.split_load;
        self.tablets.retain(|id, rate| {
            rate.end_window(millis);
            rate.split_at.clear();
            let rows = std::mem::take(&mut rate.rows);
            rate.seen = 0;
            let Some(tablet) = here.get(*id) else {
                return false;
            };
            if split_load > 0 && rate.average > split_load {
                let rows = rows.into_iter().filter(|row| tablet.rows.contains(row));
                rate.split_at = middle(rows.collect()).unwrap_or_default();
            }
            rate.average > 0
        });
    }

    /// Removes a tablet that is not here any more.
    pub(crate) fn ends(&mut self, id: u64) {
        self.tablets.remove(&id);
    }

    /// Gives each part of a split tablet half of its load.
    pub(crate) fn split(&mut self, first: u64, second: u64) {
        let Some(known) = self.tablets.remove(&first) else {
            return;
        };
        for id in [first, second] {
            let half = Rate {
                average: known.average / 2,
                reported: known.reported / 2,
                ..Rate::default()
            };
            self.tablets.insert(id, half);
        }
    }

    /// Gives the merged tablet the load of both.
    pub(crate) fn merge(&mut self, merged: u64, gone: u64) {
        let Some(other) = self.tablets.remove(&gone) else {
            return;
        };
        let rate = self.tablets.entry(merged).or_default();
        rate.cells += other.cells;
        rate.average += other.average;
        rate.reported += other.reported;
        rate.split_at.clear();
    }

    /// The loads, for the master.
    pub(crate) fn report(&self) -> v1::TabletLoads {
        let least = (self.split_load / REPORTED).max(1);
        let used = self.tablets.iter();
        let used = used.filter(|(_, rate)| rate.reported >= least);
        let loads = used.map(|(id, rate)| v1::TabletLoad {
            tablet_id: *id,
            cells: rate.reported,
            split_at: rate.split_at.clone().into(),
        });
        v1::TabletLoads {
            tablets: loads.collect(),
        }
    }
}

impl Rate {
    fn sample(&mut self, row: &[u8]) {
        self.seen += 1;
        if self.rows.len() < ROWS {
            self.rows.push(row.to_vec());
            return;
        }
        // Each row of the window is sampled with the same probability.
        let chance = self.seen.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let place = usize::try_from(chance % self.seen).unwrap_or(usize::MAX);
        if let Some(kept) = self.rows.get_mut(place) {
            row.clone_into(kept);
        }
    }

    fn end_window(&mut self, millis: u64) {
        let now = std::mem::take(&mut self.cells) * 1_000 / millis.max(1);
        let step = now.abs_diff(self.average).div_ceil(SMOOTHING);
        if now > self.average {
            self.average += step;
        } else {
            self.average -= step;
        }
        if self.average.abs_diff(self.reported) > self.reported / CHANGED {
            self.reported = self.average;
        }
    }
}

/// The row before which about half of these lie; `None`: most of them are one row, or there are too few.
fn middle(mut rows: Vec<Vec<u8>>) -> Option<Vec<u8>> {
    if rows.len() < ROWS_MIN {
        return None;
    }
    rows.sort_unstable();
    let half = rows.len() / 2;
    let least = rows.len() / PART_MIN;
    let is_edge = |at: &usize| rows[at - 1] != rows[*at];
    let edges = (least.max(1)..=rows.len() - least).filter(is_edge);
    let at = edges.min_by_key(|at| at.abs_diff(half))?;
    Some(rows.swap_remove(at))
}

/// Counts the cells of a request for tablets that are here. A scan's cells are counted when they are read.
pub(crate) fn count(rates: &mut Rates, here: &Tablets, request: &v1::Request) {
    let mut of_cell = |id: u64, row: &[u8]| {
        if here.get(id).is_some() {
            rates.used(id, 1, row);
        }
    };
    let of_place = |cell: &v1::CellRef| {
        if let Some(tablet) = request.tablets.get(cell.tablet as usize) {
            of_cell(tablet.id, &cell.row);
        }
    };
    match &request.body {
        Some(Ask::GetOne(get)) => of_cell(get.tablet_id, &get.row),
        Some(Ask::Get(get)) => get.cells.iter().for_each(of_place),
        Some(Ask::Commit(commit)) => commit.cells.iter().for_each(of_place),
        Some(Ask::Prewrite(prewrite)) => {
            let cells = prewrite.mutations.iter();
            cells.filter_map(|it| it.cell.as_ref()).for_each(of_place);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use percolator_protocol::types::{Rows, TableId, TabletState};

    use super::*;

    fn here(rows: &[(u64, &'static str, &'static str)]) -> Tablets {
        let mut tablets = Tablets::default();
        for (id, start, end) in rows {
            tablets.insert(percolator_protocol::types::Tablet {
                id: *id,
                table: TableId(1),
                table_name: "t".into(),
                rows: Rows {
                    start: (*start).into(),
                    end: (*end).into(),
                },
                epoch: 1,
                state: TabletState::Serving,
            });
        }
        tablets
    }

    /// Uses each of these rows `often` times a second, for this many windows.
    fn use_rows(rates: &mut Rates, here: &Tablets, rows: &[&str], often: u64, windows: u32) {
        for _ in 0..windows {
            for _ in 0..5 {
                for _ in 0..often {
                    rows.iter().for_each(|row| rates.used(1, 1, row.as_bytes()));
                }
                rates.tick(Duration::from_secs(1), here);
            }
        }
    }

    fn reported(rates: &Rates) -> Vec<(u64, u64, String)> {
        let tablets = rates.report().tablets.into_iter();
        let text = |row: bytes::Bytes| String::from_utf8_lossy(&row).into_owned();
        tablets
            .map(|it| (it.tablet_id, it.cells, text(it.split_at)))
            .collect()
    }

    #[test]
    fn a_tablet_with_much_load_reports_the_row_at_half_of_it() {
        let here = here(&[(1, "", "")]);
        let mut rates = Rates::default();
        rates.limit(100);
        use_rows(&mut rates, &here, &["a", "b", "c", "d"], 100, 20);
        let (id, cells, split_at) = reported(&rates).remove(0);
        assert!((300..=400).contains(&cells), "{cells}");
        assert_eq!((id, &*split_at), (1, "c"));
        // With less load there is no row to split at, and then the tablet isn't reported.
        use_rows(&mut rates, &here, &["a", "b"], 10, 10);
        assert_eq!(reported(&rates)[0].2, "");
        use_rows(&mut rates, &here, &[], 0, 30);
        assert_eq!(reported(&rates), []);
    }

    #[test]
    fn one_hot_row_is_no_reason_to_split() {
        let here = here(&[(1, "b", "")]);
        let mut rates = Rates::default();
        rates.limit(100);
        use_rows(&mut rates, &here, &["m"; 20], 20, 10);
        assert_eq!(reported(&rates)[0].2, "");
        // Rows of other tablets don't count.
        use_rows(&mut rates, &here, &["m", "a"], 200, 10);
        assert_eq!(reported(&rates)[0].2, "");
        // A part that is too small doesn't count.
        let mut uneven = vec!["m"; 20];
        uneven[0] = "c";
        use_rows(&mut rates, &here, &uneven, 20, 10);
        assert_eq!(reported(&rates)[0].2, "");
    }

    #[test]
    fn parts_have_half_each_and_a_whole_has_both() {
        let tablets = here(&[(1, "", ""), (2, "m", "")]);
        let mut rates = Rates::default();
        rates.limit(100);
        use_rows(&mut rates, &tablets, &["a", "x"], 100, 20);
        let before = reported(&rates)[0].1;
        rates.split(1, 2);
        let parts = reported(&rates);
        assert_eq!(parts.len(), 2);
        assert!(parts.iter().all(|part| part.1 == before / 2), "{parts:?}");
        rates.merge(1, 2);
        let merged = reported(&rates);
        assert_eq!((merged.len(), merged[0].1), (1, before / 2 * 2));
        rates.ends(1);
        assert_eq!(reported(&rates), []);
    }

    #[test]
    fn small_changes_are_not_reported() {
        let here = here(&[(1, "", "")]);
        let mut rates = Rates::default();
        rates.limit(100);
        use_rows(&mut rates, &here, &["a"], 400, 30);
        let before = reported(&rates);
        use_rows(&mut rates, &here, &["a"], 420, 10);
        assert_eq!(reported(&rates), before);
        use_rows(&mut rates, &here, &["a"], 800, 30);
        assert_ne!(reported(&rates), before);
    }
}
