//! How fast garbage is collected. A server that nobody asks anything collects as fast as it can. Beside others it
//! may do so many entries in each tick of a clock, and so many more as are made: a small share of its time, and
//! still garbage doesn't pile up for good.

use std::time::Duration;

/// How long a tick takes.
pub(crate) const TICK: Duration = Duration::from_millis(10);
/// Entries that may be collected in each tick: a hundredth or two of its time.
const ENTRIES_A_TICK: usize = 64;
/// For so many entries that are made one more may be collected than that.
const MADE: usize = 4;
/// Entries of one piece beside other requests, at least.
const ENTRIES_BESIDE: usize = 16;
/// And where there are none.
const ENTRIES_ALONE: usize = 256;
/// What isn't collected when it may be is collected later, as far as it is no more than this: more than that at once
/// would be felt.
const CREDIT_MAX: usize = 256;

/// What may be collected now.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Entries, times [`MADE`].
    credit: usize,
    /// Entries that were made since the last piece could be taken, and about how many are made from one to the next.
    made: usize,
    usual: usize,
    /// Since the last tick somebody has asked for something.
    asked: bool,
    /// Or in the tick before that.
    busy: bool,
}

impl Pace {
    pub(crate) fn asked(&mut self) {
        self.asked = true;
        self.busy = true;
    }

    pub(crate) fn made(&mut self, entries: usize) {
        self.credit += entries * (MADE + 1);
        self.made += entries;
    }

    pub(crate) fn tick(&mut self) {
        self.busy = std::mem::take(&mut self.asked);
        self.credit += ENTRIES_A_TICK * MADE;
    }

    /// Entries of the next piece, if there may be one now. It is larger where many are made, as a piece goes with a
    /// group, and there are only so many of those.
    pub(crate) fn piece(&mut self) -> Option<usize> {
        self.usual = (3 * self.usual + std::mem::take(&mut self.made)).div_ceil(4);
        let large = 2 * self.usual;
        self.credit = self.credit.min(MADE * large.max(CREDIT_MAX));
        if !self.busy {
            return Some(ENTRIES_ALONE.max(large));
        }
        let may = self.credit / MADE;
        (may >= ENTRIES_BESIDE).then(|| may.min(large.max(ENTRIES_BESIDE)))
    }

    /// A piece of so many entries was taken.
    pub(crate) fn spent(&mut self, entries: usize) {
        self.credit = self.credit.saturating_sub(entries * MADE);
    }
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
    fn who_asks_all_the_time_leaves_collection_a_share() {
        let mut pace = Pace::default();
        let mut entries = 0;
        for _ in 0..100 {
            pace.asked();
            pace.tick();
            entries += collected(&mut pace, 100);
        }
        assert!((6_000..=6_400).contains(&entries), "{entries} in 100 ticks");
    }

    #[test]
    fn garbage_does_not_pile_up_whatever_is_made() {
        for at_a_time in [1, 10, 1_000, 5_000] {
            let mut pace = Pace::default();
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
    fn nobody_asks_it_goes_on_at_once() {
        let mut pace = Pace::default();
        assert_eq!(collected(&mut pace, 10), 10 * ENTRIES_ALONE);
        pace.asked();
        assert_eq!(collected(&mut pace, 10), 0);
        pace.tick();
        assert_eq!(
            collected(&mut pace, 1),
            ENTRIES_BESIDE,
            "someone asked in this tick"
        );
        pace.tick();
        assert_eq!(collected(&mut pace, 1), ENTRIES_ALONE);
    }
}
