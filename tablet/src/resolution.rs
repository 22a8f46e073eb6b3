//! Up to where the locks in this server's tablets are resolved (`protocol::safe_point`), and the lock that can't be.
//!
//! Not durable. A server starts with what is resolved in all tablets of the cluster, and scans its locks for the rest.

use std::time::Duration;

use percolator_client::Obstacle;
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::Timestamp;

/// The progress of resolving locks.
#[derive(Debug)]
pub(crate) struct Resolution {
    resolved_ts: Timestamp,
    /// A tablet is about to be served here whose locks were not scanned: the scan under way doesn't count.
    is_held: bool,
    is_void: bool,
    /// The lock that can't be resolved, and since when, by the runner's clock.
    obstacle: Option<(Obstacle, Duration)>,
}

impl Resolution {
    /// The progress of a server that starts with these points.
    pub(crate) fn at(points: Points) -> Self {
        Self {
            resolved_ts: if mutants::on(Mutant::StartsResolved) {
                points.safe_point
            } else {
                points.resolved
            },
            is_held: false,
            is_void: false,
            obstacle: None,
        }
    }

    /// Sets whether the progress is held.
    pub(crate) fn hold(&mut self, held: bool) {
        self.is_held = held && !mutants::on(Mutant::MovedUnresolved);
    }

    /// Discards the scan under way: there are tablets whose locks it may not have read.
    pub(crate) fn restart(&mut self) {
        self.is_void = !mutants::on(Mutant::MovedUnresolved);
    }

    /// No lock of a transaction that began below this is left, except those whose commit lies above it.
    pub(crate) fn resolved_ts(&self) -> Timestamp {
        self.resolved_ts
    }

    /// The durable barrier, if locks below it are not resolved yet.
    pub(crate) fn next(&self, barrier: Timestamp) -> Option<Timestamp> {
        (barrier > self.resolved_ts && !self.is_held).then_some(barrier)
    }

    /// The same; a scan of all locks begins with it.
    pub(crate) fn begin(&mut self, barrier: Timestamp) -> Option<Timestamp> {
        let next = self.next(barrier);
        if next.is_some() {
            self.is_void = false;
        }
        next
    }

    /// Notes the durable barrier. `has_locks`: there is any lock.
    pub(crate) fn barrier_reached(&mut self, barrier: Timestamp, has_locks: bool) {
        if self.is_held {
            return;
        }
        if !has_locks || mutants::on(Mutant::ResolvedWithoutLooking) {
            self.resolved_ts = self.resolved_ts.max(barrier);
            self.obstacle = None;
        }
    }

    /// Notes that every lock below this is resolved.
    pub(crate) fn resolved(&mut self, below: Timestamp) {
        if self.is_held || self.is_void {
            return;
        }
        self.resolved_ts = self.resolved_ts.max(below);
        self.obstacle = None;
    }

    /// Notes a lock that can't be resolved yet.
    pub(crate) fn blocked(&mut self, now: Duration, obstacle: Obstacle) {
        let known = self.obstacle.take();
        let same = known.filter(|(known, _)| known.start_ts == obstacle.start_ts);
        let since = same.map_or(now, |(_, since)| since);
        self.obstacle = Some((obstacle, since));
    }

    /// Whether a lock was found that couldn't be resolved.
    pub(crate) fn is_blocked(&self) -> bool {
        self.obstacle.is_some()
    }

    /// The lock that can't be resolved, and for how long.
    pub(crate) fn obstacle(&self, now: Duration) -> Option<(&Obstacle, Duration)> {
        let (obstacle, since) = self.obstacle.as_ref()?;
        Some((obstacle, now.saturating_sub(*since)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ts(ts: u64) -> Timestamp {
        Timestamp::from_u64(ts)
    }

    #[test]
    fn what_lies_below_the_safe_point_is_resolved_at_the_start() {
        let points = Points {
            barrier: ts(9),
            safe_point: ts(5),
            resolved: ts(5),
        };
        let mut resolution = Resolution::at(points);
        assert_eq!(resolution.resolved_ts(), ts(5));
        assert_eq!(resolution.next(ts(9)), Some(ts(9)));
        resolution.barrier_reached(ts(9), true);
        assert_eq!(resolution.resolved_ts(), ts(5), "locks are to be scanned");
        resolution.resolved(ts(9));
        assert_eq!(resolution.next(ts(9)), None);
        resolution.barrier_reached(ts(11), false);
        assert_eq!(resolution.resolved_ts(), ts(11), "there is no lock at all");
    }

    #[test]
    fn an_obstacle_is_as_old_as_its_transaction_has_been_in_the_way() {
        let obstacle = |start_ts| Obstacle {
            what: "a lock".into(),
            start_ts: ts(start_ts),
        };
        let second = Duration::from_secs;
        let mut resolution = Resolution::at(Points::default());
        resolution.blocked(second(1), obstacle(7));
        resolution.blocked(second(3), obstacle(7));
        let age = |resolution: &Resolution| {
            let obstacle = resolution.obstacle(second(5));
            obstacle.map(|(obstacle, age)| (obstacle.start_ts, age))
        };
        assert_eq!(age(&resolution), Some((ts(7), second(4))));
        resolution.blocked(second(5), obstacle(8));
        assert_eq!(age(&resolution), Some((ts(8), second(0))));
        resolution.resolved(ts(9));
        assert_eq!(age(&resolution), None);
    }
}
