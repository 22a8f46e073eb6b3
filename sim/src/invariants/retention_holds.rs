//! Within the retention nothing is too old: no tablet server refuses what began less than a retention before the highest
//! timestamp that the oracle has granted (`protocol::safe_point::barrier`). Where the retention grows, what was too old before
//! stays so. This is judged by the oracle's time, and by no client's session: a client that believes itself refused rightly would
//! not complain.

use std::time::Duration;

use percolator_protocol::oracle::Granted;
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::Timestamp;

use super::Invariant;

#[derive(Default)]
pub(super) struct RetentionHolds {
    retention: Duration,
    highest: Timestamp,
    /// What is below this may be refused, by the retentions that there were.
    allowed_ms: u64,
}

impl RetentionHolds {
    fn allow(&mut self) {
        let retention_ms = u64::try_from(self.retention.as_millis()).unwrap_or(u64::MAX);
        let allowed_ms = self.highest.physical_ms().saturating_sub(retention_ms);
        self.allowed_ms = self.allowed_ms.max(allowed_ms);
    }
}

impl Invariant for RetentionHolds {
    fn name(&self) -> &'static str {
        "retention holds"
    }

    fn granted(&mut self, granted: Granted) -> Result<(), String> {
        let last = granted.first.as_u64() + u64::from(granted.count) - 1;
        self.highest = self.highest.max(Timestamp::from_u64(last));
        self.allow();
        Ok(())
    }

    fn retention(&mut self, retention: Duration) -> Result<(), String> {
        self.retention = retention;
        self.allow();
        Ok(())
    }

    fn points(&mut self, server: &str, points: Points) -> Result<(), String> {
        let barrier_ms = points.barrier.physical_ms();
        if barrier_ms > self.allowed_ms {
            return Err(format!(
                "{server} refuses what is below {}, of {} ms ago, and versions are kept for {:?}",
                points.barrier,
                self.highest.physical_ms().saturating_sub(barrier_ms),
                self.retention
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::made_up::assert_broken;
    use super::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    /// With this retention, when the oracle has granted up to this, a barrier.
    fn reaches(
        invariant: &mut RetentionHolds,
        retention_s: u64,
        granted_ms: u64,
        barrier: Timestamp,
    ) -> Result<(), String> {
        invariant.retention(Duration::from_secs(retention_s))?;
        let (first, count) = (at(granted_ms), 1);
        invariant.granted(Granted { first, count })?;
        invariant.points(
            "tablet-0",
            Points {
                barrier,
                safe_point: Timestamp::ZERO,
                resolved: Timestamp::ZERO,
            },
        )
    }

    #[test]
    fn a_barrier_above_one_retention_ago_is_refused() {
        let mut invariant = RetentionHolds::default();
        let mut reaches = |granted, barrier| reaches(&mut invariant, 10, granted, barrier);
        assert_eq!(reaches(15_000, Timestamp::ZERO), Ok(()));
        assert_eq!(reaches(15_000, at(5_000)), Ok(()));
        assert_broken(reaches(15_000, at(5_001)), "of 9999 ms ago");
        assert_eq!(reaches(16_000, at(5_001)), Ok(()));
    }

    #[test]
    fn a_retention_that_grows_holds_from_then_on() {
        let mut invariant = RetentionHolds::default();
        let mut reaches =
            |retention_s, granted, barrier| reaches(&mut invariant, retention_s, granted, barrier);
        assert_eq!(reaches(1, 15_000, at(14_000)), Ok(()));
        assert_eq!(reaches(10, 16_000, at(14_000)), Ok(()));
        assert_broken(reaches(10, 16_000, at(14_001)), "of 1999 ms ago");
    }
}
