//! The cells that have changed lately in tables that a client follows: a scan for changes reads these and not the table.
//!
//! They are in memory alone, bounded, and begin with the first scan for changes. A tablet that was split, merged or moved has
//! another epoch, and its next scan reads all of it. Each cell is looked up in the engine, so that an extra one does no harm.
//! Cells may be missing only below a known timestamp.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::types::{Tablet, Timestamp, key};

use crate::decision::Decision;

/// The most changes of all tablets together, and the most bytes of their keys.
const CHANGES_MAX: usize = 65_536;
const BYTES_MAX: usize = 16 << 20;

/// The changes of followed tables.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    /// No decided record lies above this.
    high_ts: Timestamp,
    /// The time of each table's last scan for changes: no record that was decided before it lies above.
    tables: BTreeMap<u32, Timestamp>,
    /// The followed tablets by id.
    tablets: BTreeMap<u64, FollowedTablet>,
    changes: BTreeSet<(Timestamp, Bytes)>,
    bytes: usize,
    /// Changes up to this timestamp may have been removed.
    forgotten: Timestamp,
    /// See [`crate::Limits`].
    followed_ms: u64,
}

#[derive(Debug)]
struct FollowedTablet {
    table: u32,
    epoch: u64,
    known_above: Timestamp,
}

impl Recent {
    /// No record of an earlier incarnation lies above `high_ts`.
    pub(crate) fn new(high_ts: Timestamp, followed_ms: u64) -> Self {
        Self {
            high_ts,
            followed_ms,
            ..Self::default()
        }
    }

    /// Adds the changes of a decision, with which no record lies above `high_ts`. A scan may find them stored before the
    /// response is sent.
    pub(crate) fn decided(&mut self, decision: &Decision, high_ts: Timestamp) {
        self.high_ts = high_ts;
        if self.tables.is_empty() {
            return;
        }
        // The mutant stands for a server that relies on the transaction's own client.
        if decision.commits.is_none() && mutants::on(Mutant::RecentForgetsSecondaries) {
            return;
        }
        for version in &decision.memory.versions {
            self.note(&version.cell_key, version.commit_ts);
        }
    }

    fn note(&mut self, cell_key: &Bytes, commit_ts: Timestamp) {
        let table = cell_key.first_chunk().copied().map(u32::from_be_bytes);
        let Some((table, asked)) = table.and_then(|id| Some((id, self.tables.get(&id)?))) else {
            return;
        };
        if commit_ts.physical_ms() > asked.physical_ms() + self.followed_ms {
            return self.end(table);
        }
        let bytes = cell_key.len();
        if self.changes.insert((commit_ts, cell_key.clone())) {
            self.bytes += bytes;
        }
        while self.changes.len() > CHANGES_MAX || self.bytes > BYTES_MAX {
            let Some((ts, cell_key)) = self.changes.pop_first() else {
                return;
            };
            self.bytes -= cell_key.len();
            self.forgotten = self.forgotten.max(ts);
        }
    }

    /// Removes a table that no client follows any more.
    fn end(&mut self, table: u32) {
        self.tables.remove(&table);
        self.tablets.retain(|_, followed| followed.table != table);
        let prefix = table.to_be_bytes();
        let bytes = &mut self.bytes;
        self.changes.retain(|(_, cell_key)| {
            let stays = !cell_key.starts_with(&prefix);
            *bytes -= if stays { 0 } else { cell_key.len() };
            stays
        });
    }

    /// Notes a scan of the tablet for changes. Changes are added from now on.
    pub(crate) fn follow(&mut self, tablet: &Tablet, snapshot: Timestamp) {
        let table = tablet.table.0;
        // A scan of a large table may take long.
        let now = snapshot.max(self.high_ts);
        let asked = self.tables.entry(table).or_insert(now);
        *asked = (*asked).max(now);
        let known = self.tablets.get(&tablet.id);
        if known.is_none_or(|known| known.epoch != tablet.epoch) {
            let followed = FollowedTablet {
                table,
                epoch: tablet.epoch,
                known_above: self.high_ts,
            };
            self.tablets.insert(tablet.id, followed);
        }
    }

    /// The keys of the tablet's versions above one timestamp and up to another, within a range of such keys, in their order;
    /// `None`: some may be missing.
    pub(crate) fn versions(
        &self,
        tablet: &Tablet,
        (above, until): (Timestamp, Timestamp),
        (start, end): (&[u8], &[u8]),
    ) -> Option<Vec<Vec<u8>>> {
        let known = self.tablets.get(&tablet.id)?;
        let known_above = known.known_above.max(self.forgotten);
        if known.epoch != tablet.epoch || above < known_above {
            return None;
        }
        if above >= until {
            return Some(Vec::new());
        }
        let from = (above.next(), Bytes::new());
        let between = self.changes.range(from..);
        let between = between.take_while(|(ts, _)| *ts <= until);
        // A version's key begins with its cell's key.
        let may_be_within = |cell_key: &[u8]| {
            cell_key < end && cell_key >= &start[..start.len().min(cell_key.len())]
        };
        let mut keys: Vec<Vec<u8>> = between
            .filter(|(_, cell_key)| may_be_within(cell_key))
            .map(|(ts, cell_key)| key::version(cell_key.to_vec(), *ts))
            .filter(|version| start <= &version[..] && &version[..] < end)
            .collect();
        keys.sort_unstable();
        Some(keys)
    }
}

#[cfg(test)]
mod tests {
    use percolator_protocol::types::{Rows, TableId, TabletState};

    use super::*;

    const TABLE: TableId = TableId(5);

    fn tablet() -> Tablet {
        Tablet {
            id: 1,
            table: TABLE,
            table_name: "t".into(),
            rows: Rows::default(),
            epoch: 1,
            state: TabletState::Serving,
        }
    }

    fn ts(ms: u64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    /// The number of known changes above this time; `None`: some may be missing.
    fn known(recent: &Recent, above: u64) -> Option<usize> {
        let (start, end) = (TABLE.0.to_be_bytes(), (TABLE.0 + 1).to_be_bytes());
        let found = recent.versions(&tablet(), (ts(above), ts(50_000)), (&start, &end));
        found.map(|keys| keys.len())
    }

    /// The changes of a cell at each of these times, each with a key of this many bytes.
    fn changed(times: std::ops::Range<u64>, row_bytes: usize) -> Recent {
        let mut recent = Recent::new(ts(times.start), 60_000);
        recent.follow(&tablet(), ts(times.start));
        let cell = Bytes::from(key::cell(TABLE, &vec![b'r'; row_bytes], b"c"));
        for ms in times.skip(1) {
            recent.note(&cell, ts(ms));
        }
        recent
    }

    #[test]
    fn what_was_forgotten_is_not_known() {
        let most = u64::try_from(CHANGES_MAX).expect("few");
        for beyond in [0, 1, 100] {
            // A millisecond each would take too long for that many: a table is removed by the time of its last scan.
            let mut recent = Recent::new(ts(1), 60_000);
            recent.follow(&tablet(), ts(1));
            for n in 0..most + beyond {
                let row = n.to_be_bytes();
                let cell = Bytes::from(key::cell(TABLE, &row, b"c"));
                recent.note(&cell, ts(2 + n / 2));
            }
            let all = (beyond == 0).then_some(CHANGES_MAX);
            assert_eq!(known(&recent, 1), all, "{beyond} beyond");
            // There are two at each time: one of the last that was removed may be left.
            let from = 2 + beyond / 2;
            let left = known(&recent, from);
            assert!(left.is_some_and(|left| left <= CHANGES_MAX && left > CHANGES_MAX - 4));
        }
    }

    /// A table that a client follows again later begins anew, too.
    #[test]
    fn changes_of_tables_that_are_not_followed_are_removed() {
        let mut recent = changed(10..20, 4);
        assert_eq!(known(&recent, 10), Some(9));
        let cell = Bytes::from(key::cell(TABLE, b"later", b"c"));
        let late = ts(10 + 60_001);
        recent.high_ts = late;
        recent.note(&cell, late);
        assert_eq!((known(&recent, 10), recent.bytes), (None, 0));
        recent.follow(&tablet(), late);
        assert_eq!(known(&recent, 10), None);
        assert_eq!(known(&recent, late.physical_ms()), Some(0));
    }

    #[test]
    fn large_keys_are_forgotten_by_their_bytes() {
        let row_bytes = BYTES_MAX / 4;
        assert_eq!(known(&changed(10..14, row_bytes), 10), Some(3));
        let recent = changed(10..20, row_bytes);
        assert_eq!(known(&recent, 10), None);
        assert_eq!(known(&recent, 16), Some(3));
        assert!(recent.bytes <= BYTES_MAX);
    }
}
