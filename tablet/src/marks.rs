//! The highest timestamps of things that are told apart by a hash: 8 bytes a mark, and cells that share one
//! merely look newer than they are.

use percolator_protocol::types::Timestamp;

const MARKS: usize = 1 << 16;

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Marks {
    marks: Box<[Timestamp]>,
}

impl Marks {
    /// Each at this timestamp.
    pub(crate) fn at(floor: Timestamp) -> Self {
        Self {
            marks: vec![floor; MARKS].into(),
        }
    }

    /// Something of this hash is as new as this.
    pub(crate) fn raise(&mut self, hash: u64, ts: Timestamp) {
        let mark = &mut self.marks[hash as usize % MARKS];
        *mark = (*mark).max(ts);
    }

    /// Nothing of this hash is newer.
    pub(crate) fn highest(&self, hash: u64) -> Timestamp {
        self.marks[hash as usize % MARKS]
    }
}
