//! Notifications that no worker has leased, of columns of tablets whose entries were all read once. Workers are served from
//! here: an engine that buffers writes passes all lately removed entries before it finds the few that are left.

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;
use std::time::Duration;

use bytes::Bytes;
use percolator_protocol::types::Tablet;

/// The most keys of one column of a tablet. Beyond that its entries are read again.
const KEYS_MAX: usize = 65_536;
/// Entries are read again after this time.
const KNOWN_FOR: Duration = Duration::from_secs(10);

/// A tablet, and a column.
pub(super) type TabletColumn = (u64, Bytes);

/// The unleased notifications of some columns.
#[derive(Debug, Default)]
pub(super) struct Unleased {
    places: HashMap<TabletColumn, UnleasedKeys>,
}

/// The keys of all unleased notifications of a column, and perhaps of others.
#[derive(Debug)]
struct UnleasedKeys {
    /// The tablet when its entries were read: with other rows it has other entries.
    tablet: Tablet,
    keys: BTreeSet<Bytes>,
    until: Duration,
}

impl Unleased {
    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Notes that all entries of a column were read, and none is unleased.
    pub(super) fn none(&mut self, place: TabletColumn, tablet: &Tablet, now: Duration) {
        let known = UnleasedKeys {
            tablet: tablet.clone(),
            keys: BTreeSet::new(),
            until: now + KNOWN_FOR,
        };
        self.places.insert(place, known);
    }

    /// Adds a notification of the column that may wait, and isn't leased.
    pub(super) fn add(&mut self, place: &TabletColumn, cell_key: Bytes) {
        let Some(known) = self.places.get_mut(place) else {
            return;
        };
        known.keys.insert(cell_key);
        if known.keys.len() > KEYS_MAX {
            self.places.remove(place);
        }
    }

    /// Takes some of a column's keys, from the key `after` on and then from the first one. `None`: its entries have to be read.
    pub(super) fn take(
        &mut self,
        place: &TabletColumn,
        tablet: &Tablet,
        now: Duration,
        after: &[u8],
        most: usize,
    ) -> Option<Vec<Bytes>> {
        let known = self.places.get_mut(place)?;
        let is_the_same = (known.tablet.epoch, &known.tablet.rows) == (tablet.epoch, &tablet.rows);
        if !is_the_same || known.until <= now {
            self.places.remove(place);
            return None;
        }
        let behind = (Bound::Included(after), Bound::Unbounded);
        let before = (Bound::Unbounded, Bound::Excluded(after));
        let in_turn = known.keys.range::<[u8], _>(behind);
        let in_turn = in_turn.chain(known.keys.range::<[u8], _>(before));
        let taken: Vec<Bytes> = in_turn.take(most).cloned().collect();
        for key in &taken {
            known.keys.remove(key);
        }
        Some(taken)
    }

    /// Removes columns whose tablets are not here any more, or whose time is over.
    pub(super) fn retain(&mut self, now: Duration, is_here: impl Fn(u64) -> bool) {
        self.places
            .retain(|(tablet, _), known| is_here(*tablet) && now < known.until);
    }
}

#[cfg(test)]
mod tests {
    use percolator_protocol::types::{Rows, TableId, TabletState};

    use super::*;

    fn tablet(epoch: u64, end: &'static str) -> Tablet {
        Tablet {
            id: 1,
            table: TableId(1),
            table_name: "t".into(),
            rows: Rows {
                start: Bytes::new(),
                end: end.into(),
            },
            epoch,
            state: TabletState::Serving,
        }
    }

    fn place() -> TabletColumn {
        (1, "c".into())
    }

    #[test]
    fn keys_are_taken_in_turn_and_once() {
        let (mut unleased, now, tablet) = (Unleased::default(), Duration::ZERO, tablet(1, "m"));
        unleased.add(&place(), "lost".into());
        assert_eq!(unleased.take(&place(), &tablet, now, b"", 9), None);
        unleased.none(place(), &tablet, now);
        for key in ["a", "c", "b", "d"] {
            unleased.add(&place(), key.into());
        }
        let mut take =
            |after: &str, most| unleased.take(&place(), &tablet, now, after.as_bytes(), most);
        assert_eq!(take("c", 3), Some(vec!["c".into(), "d".into(), "a".into()]));
        assert_eq!(take("c", 3), Some(vec!["b".into()]));
        assert_eq!(take("c", 3), Some(vec![]));
    }

    #[test]
    fn entries_are_read_again_for_other_rows_and_after_some_time() {
        let now = Duration::ZERO;
        for (other, later) in [
            (tablet(2, "m"), now),
            (tablet(1, "n"), now),
            (tablet(1, "m"), KNOWN_FOR),
        ] {
            let mut unleased = Unleased::default();
            unleased.none(place(), &tablet(1, "m"), now);
            assert_eq!(unleased.take(&place(), &other, later, b"", 1), None);
            assert!(unleased.is_empty());
            unleased.none(place(), &tablet(1, "m"), now);
            unleased.retain(later, |_| true);
            assert_eq!(unleased.is_empty(), later == KNOWN_FOR);
        }
    }

    #[test]
    fn too_many_keys_are_read_from_the_engine() {
        let mut unleased = Unleased::default();
        unleased.none(place(), &tablet(1, "m"), Duration::ZERO);
        for key in 0..=KEYS_MAX {
            assert!(!unleased.is_empty(), "{key}");
            unleased.add(&place(), format!("{key}").into());
        }
        assert!(unleased.is_empty());
    }
}
