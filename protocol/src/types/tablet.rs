//! A part of a table that one server owns.

use bytes::Bytes;

use super::TableId;

/// A tablet, as its owner has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tablet {
    /// Its number, which no other tablet of the cluster ever has.
    pub id: u64,
    /// Its table.
    pub table: TableId,
    /// Its table's name when the tablet was made.
    pub table_name: String,
    /// Its rows.
    pub rows: Rows,
    /// Which ownership of the tablet this is: requests that name another one are refused.
    pub epoch: u64,
    /// Its state at its owner.
    pub state: TabletState,
}

/// Rows from `start` on, up to and without `end`; an empty `end` means: to the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// The first row.
    pub start: Bytes,
    /// The first row that no longer belongs to it.
    pub end: Bytes,
}

impl Rows {
    /// Whether the row is one of them.
    pub fn contains(&self, row: &[u8]) -> bool {
        row >= &self.start[..] && (self.end.is_empty() || row < &self.end[..])
    }

    /// Those of them from `start` on, up to and without `end`.
    pub fn within(&self, start: &Bytes, end: &Bytes) -> Self {
        let end = match (end.is_empty(), self.end.is_empty()) {
            (true, _) => &self.end,
            (false, true) => end,
            (false, false) => end.min(&self.end),
        };
        Self {
            start: start.max(&self.start).clone(),
            end: end.clone(),
        }
    }

    /// Whether some row is one of both.
    pub fn overlaps(&self, other: &Self) -> bool {
        let begins_before_end = |a: &Self, b: &Self| b.end.is_empty() || a.start < b.end;
        begins_before_end(self, other) && begins_before_end(other, self)
    }

    /// Whether there are no others.
    pub fn are_all(&self) -> bool {
        self.start.is_empty() && self.end.is_empty()
    }
}

/// The state of a tablet at its owner. It only goes forward, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TabletState {
    /// Everything.
    #[default]
    Serving,
    /// Its table is being deleted: the owner reports the fate of transactions, and lets none commit.
    Frozen,
}

impl Tablet {
    /// Whether its table is being deleted.
    pub fn is_frozen(&self) -> bool {
        self.state == TabletState::Frozen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_begin_with_the_first_and_end_before_the_last() {
        let rows = |start: &'static str, end: &'static str| Rows {
            start: Bytes::from(start),
            end: Bytes::from(end),
        };
        let some = rows("b", "d");
        assert!(!some.contains(b"a") && some.contains(b"b") && some.contains(b"c\xff"));
        assert!(!some.contains(b"d") && !some.are_all());
        assert!(rows("b", "").contains(b"\xff") && !rows("b", "").are_all());
        assert!(rows("", "").contains(b"") && rows("", "").are_all());
        let within = |start: &'static str, end: &'static str| {
            some.within(&Bytes::from(start), &Bytes::from(end))
        };
        assert_eq!(within("", ""), some);
        assert_eq!(within("c", "z"), rows("c", "d"));
        assert_eq!(within("a", "c"), rows("b", "c"));
        assert!(some.overlaps(&rows("c", "")) && some.overlaps(&rows("", "")));
        assert!(!some.overlaps(&rows("d", "")) && !some.overlaps(&rows("", "b")));
        assert_eq!(
            rows("", "").within(&Bytes::new(), &Bytes::from("x")),
            rows("", "x")
        );
    }
}
