//! The snapshots of readers. For commits in one phase (`protocol::actions::one_phase`): the highest snapshots that have read a
//! cell, a row or a tablet, and the cells whose commit is on its way to the disk, for which readers wait. For prewrites
//! (`protocol::actions::min_commit_ts`): the highest snapshot that has read anything here. A commit_ts from the oracle lies
//! above all of these, so that one number is enough.
//!
//! Most of it ends with the server. A request to commit in one phase names the incarnation that its client knew before it took
//! the commit_ts, and snapshots of earlier incarnations are older than that. The highest snapshot goes to the disk with each
//! group, and a server that starts continues from there.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::types::Timestamp;

use crate::latches::Identity;
use crate::marks::Marks;

/// The timestamp cache of this server.
#[derive(Debug)]
pub(crate) struct Readers {
    /// By the hash of a cell or a row.
    marks: Marks,
    /// The highest snapshot of all.
    highest: Timestamp,
    /// By the tablet's id: the highest snapshot that has scanned in it.
    scans: HashMap<u64, Timestamp>,
    /// By the hash of the cell's key: the lowest commit_ts under way, and of how many cells.
    under_way: HashMap<u64, (Timestamp, u32), BuildHasherDefault<Identity>>,
}

impl Readers {
    /// `before`: the highest snapshot of earlier incarnations, as far as it is known.
    pub(crate) fn new(before: Timestamp, marks: usize) -> Self {
        // The mutant stands for a server that relies on what it remembers.
        let known = if mutants::on(Mutant::OnePhaseOfAnotherLife) {
            Timestamp::ZERO
        } else {
            before
        };
        Self {
            marks: Marks::at(known, marks),
            highest: before,
            scans: HashMap::new(),
            under_way: HashMap::default(),
        }
    }

    /// Notes that a snapshot reads a cell or a row, by its hash.
    pub(crate) fn read(&mut self, hash: u64, snapshot: Timestamp) {
        self.highest = self.highest.max(snapshot);
        self.marks.raise(hash, snapshot);
    }

    /// Notes that a snapshot reads any rows of the tablet.
    pub(crate) fn scan(&mut self, tablet: u64, snapshot: Timestamp) {
        self.highest = self.highest.max(snapshot);
        let mark = self.scans.entry(tablet).or_insert(Timestamp::ZERO);
        *mark = (*mark).max(snapshot);
    }

    /// Notes a snapshot that has read rows at their former server.
    pub(crate) fn was_read(&mut self, snapshot: Timestamp) {
        self.highest = self.highest.max(snapshot);
    }

    /// No snapshot above this one has read anything here.
    pub(crate) fn highest(&self) -> Timestamp {
        self.highest
    }

    /// Gives the second part of a split tablet the mark of the first. A correct commit_ts lies above it, because its client
    /// took it when it knew the new epoch. This doesn't rely on that.
    pub(crate) fn split(&mut self, tablet: u64, sibling: u64) {
        if let Some(scanned) = self.scans.get(&tablet).copied() {
            self.scans.insert(sibling, scanned);
        }
    }

    /// Gives the merged tablet the mark of the one that is gone.
    pub(crate) fn merge(&mut self, tablet: u64, gone: u64) {
        if let Some(scanned) = self.scans.remove(&gone) {
            let mark = self.scans.entry(tablet).or_insert(Timestamp::ZERO);
            *mark = (*mark).max(scanned);
        }
    }

    /// Removes a tablet that is not here any more.
    pub(crate) fn forget(&mut self, tablet: u64) {
        self.scans.remove(&tablet);
    }

    /// The number of scanned tablets.
    pub(crate) fn scanned_tablets(&self) -> usize {
        self.scans.len()
    }

    /// No snapshot above this one has read a cell or a row with one of these hashes, or scanned this tablet.
    pub(crate) fn read_ts(&self, hashes: [u64; 2], tablet: u64) -> Timestamp {
        let scanned = self.scans.get(&tablet).copied();
        hashes
            .iter()
            .map(|hash| self.marks.highest(*hash))
            .fold(scanned.unwrap_or(Timestamp::ZERO), Timestamp::max)
    }

    /// Holds readers of a cell, by its hash, whose commit is on its way to the disk.
    pub(crate) fn hold(&mut self, hash: u64, commit_ts: Timestamp) {
        let (lowest, cells) = self.under_way.entry(hash).or_insert((commit_ts, 0));
        *lowest = (*lowest).min(commit_ts);
        *cells += 1;
    }

    /// Releases the readers of a cell: its commit is durable, or failed.
    pub(crate) fn release(&mut self, hash: u64) {
        if let Some((_, cells)) = self.under_way.get_mut(&hash) {
            *cells -= 1;
            if *cells == 0 {
                self.under_way.remove(&hash);
            }
        }
    }

    /// Whether no commit is under way.
    pub(crate) fn idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Whether the snapshot has to wait for a commit of the cell of this hash.
    pub(crate) fn waits_for(&self, hash: u64, snapshot: Timestamp) -> bool {
        let under_way = self.under_way.get(&hash);
        under_way.is_some_and(|(commit_ts, _)| *commit_ts <= snapshot)
            && !mutants::on(Mutant::OnePhaseNotAwaited)
    }

    /// Whether the snapshot has to wait for any commit.
    pub(crate) fn waits_for_any(&self, snapshot: Timestamp) -> bool {
        self.under_way
            .values()
            .any(|(commit_ts, _)| *commit_ts <= snapshot)
            && !mutants::on(Mutant::OnePhaseNotAwaited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ts(ts: u64) -> Timestamp {
        Timestamp::from_u64(ts)
    }

    #[test]
    fn the_highest_snapshot_of_cell_row_and_tablet_counts() {
        let mut readers = Readers::new(Timestamp::ZERO, 1 << 8);
        assert_eq!(readers.read_ts([1, 2], 9), Timestamp::ZERO);
        readers.read(1, ts(5));
        readers.read(1, ts(3));
        assert_eq!(readers.read_ts([1, 2], 9), ts(5));
        readers.read(2, ts(6));
        assert_eq!(readers.read_ts([1, 2], 9), ts(6));
        readers.scan(9, ts(7));
        assert_eq!(readers.read_ts([1, 2], 9), ts(7));
        assert_eq!(readers.read_ts([3, 4], 8), Timestamp::ZERO);
        assert_eq!(readers.highest(), ts(7));
        assert_eq!(readers.scanned_tablets(), 1);
        readers.split(9, 10);
        readers.scan(10, ts(9));
        readers.split(8, 11);
        let both = |readers: &Readers| [9, 10].map(|tablet| readers.read_ts([3, 4], tablet));
        assert_eq!(both(&readers), [ts(7), ts(9)]);
        readers.merge(9, 10);
        assert_eq!(both(&readers), [ts(9), Timestamp::ZERO]);
        readers.merge(9, 10);
        readers.forget(9);
        assert_eq!(readers.scanned_tablets(), 0);
    }

    #[test]
    fn what_earlier_incarnations_have_read_counts() {
        let mut readers = Readers::new(ts(5), 1 << 8);
        assert_eq!(
            (readers.highest(), readers.read_ts([1, 2], 9)),
            (ts(5), ts(5))
        );
        readers.read(1, ts(4));
        assert_eq!(readers.highest(), ts(5));
        readers.scan(9, ts(8));
        assert_eq!(
            (readers.highest(), readers.read_ts([1, 2], 7)),
            (ts(8), ts(5))
        );
    }

    #[test]
    fn cells_of_one_hash_hold_readers_until_the_last_is_done() {
        let mut readers = Readers::new(Timestamp::ZERO, 1 << 8);
        readers.hold(1, ts(8));
        readers.hold(1, ts(5));
        assert!(readers.waits_for(1, ts(5)) && readers.waits_for_any(ts(5)));
        assert!(!readers.waits_for(1, ts(4)) && !readers.waits_for_any(ts(4)));
        readers.release(1);
        assert!(readers.waits_for(1, ts(8)));
        readers.release(1);
        assert!(readers.idle() && !readers.waits_for_any(Timestamp::MAX));
    }
}
