//! The highest timestamps of things that are told apart by a hash: 8 bytes a mark, and cells that share one
//! merely look newer than they are.

use percolator_protocol::types::Timestamp;

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Marks {
    marks: Box<[Timestamp]>,
}

impl Marks {
    /// So many, a power of two, each at this timestamp.
    pub(crate) fn at(floor: Timestamp, marks: usize) -> Self {
        Self {
            marks: vec![floor; marks.next_power_of_two()].into(),
        }
    }

    fn place(&self, hash: u64) -> usize {
        hash as usize & (self.marks.len() - 1)
    }

    /// Something of this hash is as new as this.
    pub(crate) fn raise(&mut self, hash: u64, ts: Timestamp) {
        let place = self.place(hash);
        let mark = &mut self.marks[place];
        *mark = (*mark).max(ts);
    }

    /// Nothing of this hash is newer.
    pub(crate) fn highest(&self, hash: u64) -> Timestamp {
        self.marks[self.place(hash)]
    }
}
