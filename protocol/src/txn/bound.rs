//! The bound of a transaction's commit_ts: the highest min_commit_ts that its prewrites were answered.
//!
//! A commit_ts is taken from the oracle when every cell is locked, so it lies above every snapshot that has read a cell
//! before. This holds by clocks, if an oracle was replaced: its right to grant ends by its own clock, and its
//! successor's begins by another one. Here it holds without any: a lower commit_ts is refused while nothing is
//! decided. After the primary is committed nothing may refuse it any more.

use crate::mutants::{self, Mutant};
use crate::types::Timestamp;

/// So many timestamps below the bound are refused before the transaction is rolled back.
const REFUSED_MAX: u32 = 8;
/// The pause before the next one is asked for is at most so long, in milliseconds.
const PAUSE_MAX_MS: u64 = 1_000;

/// See the module's head.
#[derive(Debug)]
pub(super) struct CommitBound {
    min_commit_ts: Timestamp,
    refused: u32,
}

/// The decision about a timestamp that the oracle granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Commit at it.
    Commit,
    /// Take another one, after a pause.
    TakeAnother { pause_ms: u64 },
    /// Roll the transaction back.
    RollBack,
}

impl CommitBound {
    pub(super) fn at(min_commit_ts: Timestamp) -> Self {
        Self {
            min_commit_ts,
            refused: 0,
        }
    }

    pub(super) fn min_commit_ts(&self) -> Timestamp {
        self.min_commit_ts
    }

    /// A prewrite, or the primary's commit, was answered with this one.
    pub(super) fn raise(&mut self, min_commit_ts: Timestamp) {
        self.min_commit_ts = self.min_commit_ts.max(min_commit_ts);
    }

    /// Decides about a timestamp that the oracle granted. The pause is as long as the oracle's time is behind.
    pub(super) fn judge(&mut self, granted: Timestamp) -> Verdict {
        if granted >= self.min_commit_ts || mutants::on(Mutant::CommitTsNotCompared) {
            return Verdict::Commit;
        }
        self.refused += 1;
        if self.refused > REFUSED_MAX {
            return Verdict::RollBack;
        }
        let behind_ms = self.min_commit_ts.physical_ms() - granted.physical_ms();
        Verdict::TakeAnother {
            pause_ms: behind_ms.min(PAUSE_MAX_MS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_answer_counts_and_the_pause_is_the_distance() {
        let mut bound = CommitBound::at(Timestamp::from_millis(5));
        bound.raise(Timestamp::from_millis(50));
        bound.raise(Timestamp::from_millis(40));
        assert_eq!(bound.min_commit_ts(), Timestamp::from_millis(50));
        let pause = |pause_ms| Verdict::TakeAnother { pause_ms };
        assert_eq!(bound.judge(Timestamp::from_millis(20)), pause(30));
        assert_eq!(bound.judge(Timestamp::from_millis(50)), Verdict::Commit);
        bound.raise(Timestamp::from_millis(9_000));
        assert_eq!(bound.judge(Timestamp::from_millis(60)), pause(PAUSE_MAX_MS));
    }

    #[test]
    fn timestamps_that_stay_below_it_end_the_transaction() {
        let mut bound = CommitBound::at(Timestamp::from_u64(9));
        for _ in 0..REFUSED_MAX {
            let again = Verdict::TakeAnother { pause_ms: 0 };
            assert_eq!(bound.judge(Timestamp::from_u64(8)), again);
        }
        assert_eq!(bound.judge(Timestamp::from_u64(8)), Verdict::RollBack);
    }
}
