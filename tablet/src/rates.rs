//! How much each tablet is used now, in cells a second that are read or written, and where one that is used much can be
//! split: at the row that about half of that lies before.
//!
//! All of it is in memory, and a guess: after a start it begins anew.

use std::collections::BTreeMap;
use std::time::Duration;

use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;

use crate::tablets::Tablets;

/// Cells are counted for so long, then they change the average.
const WINDOW: Duration = Duration::from_secs(5);
/// A window changes the average by one in so many of the difference.
const SMOOTHING: u64 = 4;
/// A tablet with less than one in so many of the limit isn't reported.
const REPORTED: u64 = 8;
/// What is reported changes when the average has changed by more than one in so many.
const CHANGED: u64 = 4;
/// Of a tablet that is used much, so many rows are kept of each window, at random.
const ROWS: usize = 64;
/// With fewer rows, nothing is said of where to split.
const ROWS_MIN: usize = 32;
/// A part has at least one in so many of the whole.
const PART_MIN: usize = 5;

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    tablets: BTreeMap<u64, Rate>,
    /// How much of the window is over.
    window: Duration,
    /// A tablet that is used more may be split; zero: none is.
    split_load: u64,
}

#[derive(Clone, Debug, Default)]
struct Rate {
    /// In this window.
    cells: u64,
    /// Cells a second, on average.
    average: u64,
    /// The same, as it is reported.
    reported: u64,
    /// Some rows of this window.
    rows: Vec<Vec<u8>>,
    /// Of so many.
    seen: u64,
    split_at: Vec<u8>,
}

impl Rates {
    /// A tablet that is used more, in cells a second, may be split; zero: none is.
    pub(crate) fn limit(&mut self, split_load: u64) {
        if std::mem::replace(&mut self.split_load, split_load) != split_load {
            for rate in self.tablets.values_mut() {
                rate.split_at.clear();
                rate.rows.clear();
                rate.seen = 0;
            }
        }
    }

    /// So many cells of the tablet are read or written, and this is one of their rows.
    pub(crate) fn used(&mut self, tablet: u64, cells: u64, row: &[u8]) {
        let split_load = self.split_load;
        let rate = self.tablets.entry(tablet).or_default();
        rate.cells += cells;
        if split_load > 0 && rate.average >= split_load / 2 {
            rate.sample(row);
        }
    }

    /// So much time has passed since the last call.
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

    /// The tablet is not here any more.
    pub(crate) fn ends(&mut self, id: u64) {
        self.tablets.remove(&id);
    }

    /// The second tablet has some rows of the first one now. Each is taken for half of it.
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

    /// The tablet has the rows of another one as well, which is gone.
    pub(crate) fn merge(&mut self, whole: u64, gone: u64) {
        let Some(other) = self.tablets.remove(&gone) else {
            return;
        };
        let rate = self.tablets.entry(whole).or_default();
        rate.cells += other.cells;
        rate.average += other.average;
        rate.reported += other.reported;
        rate.split_at.clear();
    }

    /// For the master.
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
        // Each row of the window is kept with the same chance.
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

/// The row that about half of these lie before; none: most of them are one row, or there are too few.
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

/// Counts what the request uses of tablets that are here. What a scan reads is counted when that is known.
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

    /// Each of these rows is used so often a second, for so many windows.
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
    fn a_tablet_that_is_used_much_says_where_half_of_that_lies() {
        let here = here(&[(1, "", "")]);
        let mut rates = Rates::default();
        rates.limit(100);
        use_rows(&mut rates, &here, &["a", "b", "c", "d"], 100, 20);
        let (id, cells, split_at) = reported(&rates).remove(0);
        assert!((300..=400).contains(&cells), "{cells}");
        assert_eq!((id, &*split_at), (1, "c"));
        // Once it is used less, it isn't to be split any more, and then it isn't reported.
        use_rows(&mut rates, &here, &["a", "b"], 10, 10);
        assert_eq!(reported(&rates)[0].2, "");
        use_rows(&mut rates, &here, &[], 0, 30);
        assert_eq!(reported(&rates), []);
    }

    #[test]
    fn one_row_that_everybody_wants_is_no_reason_to_split() {
        let here = here(&[(1, "b", "")]);
        let mut rates = Rates::default();
        rates.limit(100);
        use_rows(&mut rates, &here, &["m"; 20], 20, 10);
        assert_eq!(reported(&rates)[0].2, "");
        // Rows that aren't the tablet's don't count.
        use_rows(&mut rates, &here, &["m", "a"], 200, 10);
        assert_eq!(reported(&rates)[0].2, "");
        // Nor does a part that is too small.
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
        let whole = reported(&rates);
        assert_eq!((whole.len(), whole[0].1), (1, before / 2 * 2));
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
