//! A commit_ts that lies below what the oracle has granted since, as two oracles with overlapping rights would grant
//! it: above its transaction's start_ts, and granted once.
//!
//! A tablet server that is started again may not know of the last reads that it answered before
//! (`docs/design/failover.md`): what was granted until then is not held back any more.

use std::collections::BTreeSet;

use percolator_client::Timestamp;

use crate::rng::Rng;

/// Timestamps that were granted and held back, to be handed out later.
#[derive(Debug)]
pub struct HeldBack {
    rng: Rng,
    held: BTreeSet<Timestamp>,
    /// Those up to this one are not held back.
    above: Timestamp,
    /// How many were made up.
    made: u64,
    is_on: bool,
}

/// So many are held back at the most.
const HELD_MAX: usize = 8;
/// So many are made up: fewer than a millisecond has room for.
const MADE_MAX: u64 = 1 << 16;

impl HeldBack {
    /// Of this seed; `is_on`: whether it happens at all.
    pub fn new(seed: u64, is_on: bool) -> Self {
        Self {
            rng: Rng::new(seed, "stale commit_ts"),
            held: BTreeSet::new(),
            above: Timestamp::ZERO,
            made: 0,
            is_on,
        }
    }

    /// What the client gets in place of the timestamp that was granted to it. `None`: that one is held back, and
    /// another one is to be asked for.
    pub fn exchange(&mut self, granted: Timestamp, start_ts: Timestamp) -> Option<Timestamp> {
        if !self.is_on || granted <= self.above || self.rng.below(2) == 0 {
            return Some(granted);
        }
        self.held.insert(granted);
        if self.held.len() > HELD_MAX {
            self.held.pop_first();
        }
        let held = self.held.range(start_ts.next()..granted).next().copied();
        if let Some(stale) = held {
            self.held.remove(&stale);
            return Some(stale);
        }
        self.made_up(start_ts, granted)
    }

    /// One that this run's oracle doesn't grant, as its numbers within a millisecond are low.
    fn made_up(&mut self, start_ts: Timestamp, granted: Timestamp) -> Option<Timestamp> {
        let behind = granted.physical_ms().checked_sub(start_ts.physical_ms())?;
        let middle = start_ts.physical_ms() + behind / 2;
        let next = Timestamp::from_millis(middle + 1).as_u64();
        self.made += 1;
        let stale = Timestamp::from_u64(next - self.made);
        let fits = stale > start_ts && stale < granted && stale > self.above;
        (fits && self.made < MADE_MAX).then_some(stale)
    }

    /// A tablet server is started; no client has a higher timestamp.
    pub fn started(&mut self, highest: Timestamp) {
        self.held.clear();
        self.above = highest;
    }

    /// From now on clients get what is granted.
    pub fn stop(&mut self) {
        self.is_on = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_handed_out_once_and_above_its_start() {
        let mut held = HeldBack::new(1, true);
        let mut given = BTreeSet::new();
        let mut stale = 0;
        for ts in 1..500 {
            let (granted, start_ts) = (Timestamp::from_u64(ts), Timestamp::from_u64(ts / 2));
            if let Some(got) = held.exchange(granted, start_ts) {
                assert!(got > start_ts && got <= granted && given.insert(got));
                stale += u32::from(got < granted);
            }
        }
        assert!(stale > 50, "{stale}");
        // Within some milliseconds there is one that nobody was granted.
        let mut held = HeldBack::new(1, true);
        let (start_ts, granted) = (Timestamp::from_millis(7), Timestamp::from_millis(11));
        let got: BTreeSet<Timestamp> = (0..20)
            .filter_map(|_| held.made_up(start_ts, granted))
            .collect();
        assert_eq!(got.len(), 20);
        assert!(got.iter().all(|ts| *ts > start_ts && *ts < granted));
        held.started(Timestamp::from_u64(500));
        let granted = Timestamp::from_u64(500);
        assert_eq!(held.exchange(granted, Timestamp::ZERO), Some(granted));
        held.stop();
        let granted = Timestamp::from_u64(600);
        assert_eq!(held.exchange(granted, Timestamp::ZERO), Some(granted));
    }
}
