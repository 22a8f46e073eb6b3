//! The pace of work that no caller expects within milliseconds: garbage, and the writes and locks of large transactions. An
//! idle server does it as fast as it can. Beside other requests it has a small share of each second, in small pieces, so that
//! no request waits long behind one. Collection also keeps up with the garbage that is made.

use std::time::Duration;

/// The length of a tick while work waits for its turn.
pub(crate) const TICK: Duration = Duration::from_millis(2);
/// The server counts as busy for this long after a request.
const BESIDE: Duration = Duration::from_millis(100);
/// Entries that may be collected in a second beside other requests: one or two hundredths of its time.
const ENTRIES_A_SECOND: i64 = 6_400;
/// For this many new entries one more than these may be collected.
const MADE: i64 = 4;
/// The least entries of one piece beside other requests.
const ENTRIES_BESIDE: usize = 16;
/// The least entries of one piece on an idle server.
const ENTRIES_ALONE: usize = 256;
/// The most unused credit. More at once would delay requests.
const CREDIT_MAX: usize = 256;
/// Waiting flushes have their turn within 120 ms. Twelve requests of 16 cells, as many as one client sends at a time, don't
/// raise the pace. More clients raise it, so that their requests don't time out.
const FLUSH_WAITS_A_SECOND: i64 = 1_000 / 120;
/// The cells at once: a few ticks' share, because ticks may be late, and at least this many.
const FLUSH_AT_ONCE: i64 = 16;
const FLUSH_TICKS_A_SECOND: i64 = 200;
/// Credit is counted in millionths.
const ONE: i64 = 1_000_000;

/// The credit for work.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Cells of large transactions in a second.
    flush_cells_a_second: i64,
    /// Entries, in millionths.
    credit: i64,
    /// Entries that were made since the last piece, and about how many are made between two pieces.
    made: usize,
    usual: usize,
    /// Cells of large transactions, in millionths; negative after a request that was larger than the credit.
    flushes: i64,
    /// How long the server still counts as busy.
    beside: Duration,
}

impl Pace {
    /// Gives large transactions this many cells a second beside other requests.
    pub(crate) fn new(large_cells_a_second: u32) -> Self {
        Self {
            flush_cells_a_second: large_cells_a_second.into(),
            credit: 0,
            made: 0,
            usual: 0,
            flushes: 0,
            beside: Duration::ZERO,
        }
    }

    /// Notes a request of another kind.
    pub(crate) fn asked(&mut self) {
        self.beside = BESIDE;
    }

    pub(crate) fn made(&mut self, entries: usize) {
        self.credit += count(entries) * ONE * (MADE + 1) / MADE;
        self.made += entries;
    }

    /// Lets time pass while this many cells of large transactions wait for their turn.
    pub(crate) fn tick(&mut self, elapsed: Duration, waiting: usize) {
        self.beside = self.beside.saturating_sub(elapsed);
        // A second fills any credit.
        let micros = i64::from(elapsed.min(Duration::from_secs(1)).as_micros() as u32);
        self.credit += micros * ENTRIES_A_SECOND;
        let a_second = self
            .flush_cells_a_second
            .max(count(waiting) * FLUSH_WAITS_A_SECOND);
        let at_once = (a_second / FLUSH_TICKS_A_SECOND).max(FLUSH_AT_ONCE);
        self.flushes = (self.flushes + micros * a_second).min(at_once * ONE);
    }

    /// The entries of the next piece, if there may be one now. It is larger if many are made, because it goes with a group, and
    /// the number of groups is limited.
    pub(crate) fn piece(&mut self) -> Option<usize> {
        self.usual = (3 * self.usual + std::mem::take(&mut self.made)).div_ceil(4);
        let large = 2 * self.usual;
        self.credit = self.credit.min(count(large.max(CREDIT_MAX)) * ONE);
        if self.is_alone() {
            return Some(ENTRIES_ALONE.max(large));
        }
        let may = usize::try_from(self.credit / ONE).unwrap_or(0);
        (may >= ENTRIES_BESIDE).then(|| may.min(large.max(ENTRIES_BESIDE)))
    }

    /// Notes a piece of this many entries.
    pub(crate) fn spent(&mut self, entries: usize) {
        self.credit = (self.credit - count(entries) * ONE).max(0);
    }

    /// Whether the server is idle but for this work.
    pub(crate) fn is_alone(&self) -> bool {
        self.beside.is_zero()
    }

    /// Whether a request of a large transaction may be carried out now.
    pub(crate) fn may_flush(&self) -> bool {
        self.is_alone() || self.flushes > 0
    }

    /// Notes a request of a large transaction with this many cells.
    pub(crate) fn spent_flush(&mut self, cells: usize) {
        self.flushes = if self.is_alone() {
            // Work on an idle server is no debt.
            self.flushes.min(0)
        } else {
            self.flushes - count(cells) * ONE
        };
    }
}

/// A number of entries or cells in memory.
fn count(of: usize) -> i64 {
    i64::try_from(of).unwrap_or(i64::MAX / ONE / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Collects what may be, in pieces.
    fn collected(pace: &mut Pace, pieces: usize) -> usize {
        let mut collected = 0;
        for _ in 0..pieces {
            let Some(entries) = pace.piece() else { break };
            pace.spent(entries);
            collected += entries;
        }
        collected
    }

    #[test]
    fn constant_requests_leave_collection_a_share() {
        for tick in [TICK, 7 * TICK] {
            let mut pace = Pace::new(1_600);
            let (mut entries, mut passed) = (0, Duration::ZERO);
            while passed < Duration::from_secs(1) {
                pace.asked();
                pace.tick(tick, 0);
                entries += collected(&mut pace, 100);
                passed += tick;
            }
            assert!((6_000..=6_500).contains(&entries), "{entries} in a second");
        }
    }

    #[test]
    fn garbage_does_not_pile_up_whatever_is_made() {
        for at_a_time in [1, 10, 1_000, 5_000] {
            let mut pace = Pace::new(1_600);
            let mut waiting = 100_000;
            for _ in 0..200_000 / at_a_time {
                pace.asked();
                pace.made(at_a_time);
                waiting += at_a_time;
                // A group, and a piece along with it.
                waiting -= collected(&mut pace, 1);
            }
            assert!(waiting < 100_000, "{waiting} wait, {at_a_time} at a time");
        }
    }

    #[test]
    fn an_idle_server_collects_at_once() {
        let mut pace = Pace::new(1_600);
        assert_eq!(collected(&mut pace, 10), 10 * ENTRIES_ALONE);
        pace.asked();
        assert_eq!(collected(&mut pace, 10), 0);
        pace.tick(Duration::from_millis(3), 0);
        assert_eq!(collected(&mut pace, 2), ENTRIES_BESIDE, "someone has asked");
        pace.tick(BESIDE, 0);
        assert_eq!(collected(&mut pace, 1), ENTRIES_ALONE);
    }

    #[test]
    fn large_transactions_have_a_share_beside_others_and_all_of_it_alone() {
        for cells in [1, 16, 1_000] {
            let mut pace = Pace::new(1_600);
            assert!(pace.may_flush(), "alone");
            pace.spent_flush(1_000_000);
            let (mut done, mut passed) = (0, Duration::ZERO);
            while passed < Duration::from_secs(10) {
                pace.asked();
                pace.tick(TICK, 0);
                while pace.may_flush() {
                    pace.spent_flush(cells);
                    done += cells;
                }
                passed += TICK;
            }
            assert!(
                (15_000..=17_000).contains(&done),
                "{done}, {cells} at a time"
            );
            pace.tick(BESIDE, 0);
            assert!(pace.may_flush(), "alone again");
        }
    }

    #[test]
    fn no_large_transaction_waits_for_long_however_many_there_are() {
        let mut pace = Pace::new(1_600);
        let (mut waiting, mut passed) = (100_000, Duration::ZERO);
        while waiting > 1_000 {
            pace.asked();
            pace.tick(TICK, waiting);
            while pace.may_flush() {
                pace.spent_flush(16);
                waiting -= 16;
            }
            passed += TICK;
        }
        assert!(passed < Duration::from_secs(1), "{passed:?}");
    }
}
