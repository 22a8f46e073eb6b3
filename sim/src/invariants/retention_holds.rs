//! Within the retention nothing is too old: no client gets that answer, and no tablet server refuses what began less than a
//! retention before the highest timestamp that the oracle has granted (`protocol::safe_point::barrier`). Where the retention
//! grows, what was too old before stays so. This is judged by the oracle's time and by what administrators asked for and were answered, and neither by a client's
//! session, which would not complain if it believed itself refused rightly, nor by what a master holds for set.

use std::time::Duration;

use percolator_protocol::oracle::Granted;
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::Timestamp;

use super::{Invariant, last_of};

#[derive(Default)]
pub(super) struct RetentionHolds {
    /// What was asked for since the beginning: a request may be carried out late, and twice.
    asked: Option<Duration>,
    /// That of the beginning, until another one is set.
    first: Option<Duration>,
    highest: Timestamp,
    /// What is below this may be refused, by the retentions that there were.
    allowed_ms: u64,
}

impl RetentionHolds {
    /// The shortest that may be in force.
    fn shortest(&self) -> Duration {
        let may_be = self.asked.into_iter().chain(self.first);
        may_be.min().unwrap_or_default()
    }

    /// Whether this timestamp may be refused.
    fn check(&self, ts: Timestamp, what: impl FnOnce() -> String) -> Result<(), String> {
        if ts.physical_ms() <= self.allowed_ms {
            return Ok(());
        }
        Err(format!(
            "{}, of {} ms ago, and versions are kept for {:?}",
            what(),
            self.highest.physical_ms().saturating_sub(ts.physical_ms()),
            self.shortest()
        ))
    }

    fn allow(&mut self) {
        let retention_ms = u64::try_from(self.shortest().as_millis()).unwrap_or(u64::MAX);
        let allowed_ms = self.highest.physical_ms().saturating_sub(retention_ms);
        self.allowed_ms = self.allowed_ms.max(allowed_ms);
    }
}

impl Invariant for RetentionHolds {
    fn name(&self) -> &'static str {
        "retention holds"
    }

    fn granted(&mut self, granted: Granted) -> Result<(), String> {
        self.highest = self.highest.max(last_of(granted));
        self.allow();
        Ok(())
    }

    fn retention_asked(&mut self, retention: Duration) -> Result<(), String> {
        if self.first.is_none() && self.asked.is_none() {
            self.first = Some(retention);
        } else {
            self.asked = Some(self.asked.map_or(retention, |asked| asked.min(retention)));
        }
        self.allow();
        Ok(())
    }

    fn retention_set(&mut self) -> Result<(), String> {
        self.allow();
        self.first = None;
        Ok(())
    }

    fn too_old(&mut self, start_ts: Timestamp) -> Result<(), String> {
        self.check(start_ts, || {
            format!("a client is refused as too old: {start_ts}")
        })
    }

    fn points(&mut self, server: &str, points: Points, _: Option<Duration>) -> Result<(), String> {
        let barrier = points.barrier;
        self.check(barrier, || {
            format!("{server} refuses what is below {barrier}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::made_up::assert_broken;
    use super::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    /// When the oracle has granted up to this, a barrier.
    fn reaches(
        invariant: &mut RetentionHolds,
        granted_ms: u64,
        barrier: Timestamp,
    ) -> Result<(), String> {
        let (first, count) = (at(granted_ms), 1);
        invariant.granted(Granted { first, count })?;
        let points = Points {
            barrier,
            safe_point: Timestamp::ZERO,
            resolved: Timestamp::ZERO,
        };
        invariant.points("tablet-0", points, None)
    }

    fn of(retention_s: u64) -> RetentionHolds {
        let mut invariant = RetentionHolds::default();
        ask(&mut invariant, retention_s);
        invariant
    }

    fn ask(invariant: &mut RetentionHolds, retention_s: u64) {
        let asked = invariant.retention_asked(Duration::from_secs(retention_s));
        assert_eq!(asked, Ok(()));
    }

    #[test]
    fn a_barrier_above_one_retention_ago_is_refused() {
        let mut invariant = of(10);
        let mut reaches = |granted, barrier| reaches(&mut invariant, granted, barrier);
        assert_eq!(reaches(15_000, Timestamp::ZERO), Ok(()));
        assert_eq!(reaches(15_000, at(5_000)), Ok(()));
        assert_broken(reaches(15_000, at(5_001)), "of 9999 ms ago");
        assert_eq!(reaches(16_000, at(5_001)), Ok(()));
    }

    #[test]
    fn a_client_gets_that_answer_only_beyond_one_retention() {
        let mut invariant = of(10);
        assert_eq!(reaches(&mut invariant, 15_000, Timestamp::ZERO), Ok(()));
        assert_eq!(invariant.too_old(at(4_999)), Ok(()));
        assert_broken(invariant.too_old(at(5_001)), "of 9999 ms ago");
    }

    #[test]
    fn a_retention_that_grows_holds_once_it_is_set() {
        let mut invariant = of(1);
        assert_eq!(reaches(&mut invariant, 15_000, at(14_000)), Ok(()));
        ask(&mut invariant, 10);
        assert_eq!(reaches(&mut invariant, 15_500, at(14_500)), Ok(()));
        assert_eq!(invariant.retention_set(), Ok(()));
        assert_eq!(reaches(&mut invariant, 16_000, at(14_500)), Ok(()));
        assert_broken(
            reaches(&mut invariant, 16_000, at(14_501)),
            "of 1499 ms ago",
        );
    }

    #[test]
    fn a_shorter_one_may_be_in_force_from_when_it_is_asked_for() {
        let mut invariant = of(10);
        ask(&mut invariant, 2);
        assert_eq!(reaches(&mut invariant, 15_000, at(13_000)), Ok(()));
        assert_eq!(invariant.retention_set(), Ok(()));
        ask(&mut invariant, 30);
        assert_eq!(invariant.retention_set(), Ok(()));
        // The request for the shorter one may come once more.
        assert_eq!(reaches(&mut invariant, 16_000, at(14_000)), Ok(()));
        assert_broken(reaches(&mut invariant, 16_000, at(14_001)), "kept for 2s");
    }
}
