//! The highest timestamps of cells or rows by their hashes, 8 bytes a mark. Those that share a mark only look newer than they
//! are.

use percolator_protocol::types::Timestamp;

/// A table of marks.
#[derive(Debug)]
pub(crate) struct Marks {
    marks: Box<[Timestamp]>,
}

impl Marks {
    /// Makes this many marks, a power of two, each at this timestamp.
    pub(crate) fn at(floor: Timestamp, marks: usize) -> Self {
        Self {
            marks: vec![floor; marks.next_power_of_two()].into(),
        }
    }

    fn place(&self, hash: u64) -> usize {
        hash as usize & (self.marks.len() - 1)
    }

    /// Raises the mark of this hash.
    pub(crate) fn raise(&mut self, hash: u64, ts: Timestamp) {
        let place = self.place(hash);
        let mark = &mut self.marks[place];
        *mark = (*mark).max(ts);
    }

    /// The mark of this hash: nothing of it is newer.
    pub(crate) fn highest(&self, hash: u64) -> Timestamp {
        self.marks[self.place(hash)]
    }
}
