//! What a client's lease covers, no tablet server refuses before the lease ends (`gc-master/src/sessions.rs`): no barrier passes the
//! floor. By the world's time, from when the lease was asked for to its end, and by what the client was answered: whether it
//! believes that it has a lease doesn't count. A lease is a length of time, so it is a promise as long as no clock went
//! fast or slow. The client lets go of a floor as soon as it asks for a higher one.

use std::collections::BTreeMap;
use std::time::Duration;

use percolator_protocol::safe_point::Points;
use percolator_protocol::types::Timestamp;

use super::Invariant;

#[derive(Default)]
pub(super) struct GrantedLeases {
    /// By the numbers of their sessions.
    leases: BTreeMap<u64, Lease>,
}

struct Lease {
    floor: Timestamp,
    until: Duration,
}

impl Invariant for GrantedLeases {
    fn name(&self) -> &'static str {
        "granted leases hold"
    }

    fn lease_asked(&mut self, session: u64, floor: Timestamp) -> Result<(), String> {
        if floor == Timestamp::ZERO {
            self.leases.remove(&session);
        } else if let Some(lease) = self.leases.get_mut(&session) {
            lease.floor = lease.floor.max(floor);
        }
        Ok(())
    }

    fn lease_granted(
        &mut self,
        session: u64,
        floor: Timestamp,
        barrier: Timestamp,
        until: Duration,
    ) -> Result<(), String> {
        if floor == Timestamp::ZERO || barrier > floor {
            // It was given back, or covers nothing yet.
            self.leases.remove(&session);
            return Ok(());
        }
        let before = self.leases.get(&session);
        let (floor, until) = before.map_or((floor, until), |before| {
            (floor.max(before.floor), until.max(before.until))
        });
        self.leases.insert(session, Lease { floor, until });
        Ok(())
    }

    fn points(
        &mut self,
        server: &str,
        points: Points,
        time: Option<Duration>,
    ) -> Result<(), String> {
        let Some(now) = time else { return Ok(()) };
        self.leases.retain(|_, lease| lease.until > now);
        match self
            .leases
            .iter()
            .find(|(_, lease)| lease.floor < points.barrier)
        {
            None => Ok(()),
            Some((session, lease)) => Err(format!(
                "{server} refuses what is below {}, and session {session:x} has a lease at {} for {} ms more",
                points.barrier,
                lease.floor,
                (lease.until - now).as_millis()
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::made_up::{assert_broken, ts};
    use super::*;

    const SESSION: u64 = 7;
    const SECOND: Duration = Duration::from_secs(1);

    fn granted(floor: u64, until: Duration) -> GrantedLeases {
        let mut invariant = GrantedLeases::default();
        let granted = invariant.lease_granted(SESSION, ts(floor), ts(5), until);
        assert_eq!(granted, Ok(()));
        invariant
    }

    fn reaches(
        invariant: &mut GrantedLeases,
        barrier: u64,
        time: Option<Duration>,
    ) -> Result<(), String> {
        let points = Points {
            barrier: ts(barrier),
            ..Points::default()
        };
        invariant.points("tablet-0", points, time)
    }

    #[test]
    fn no_barrier_passes_a_floor_before_the_lease_ends() {
        let mut invariant = granted(10, 2 * SECOND);
        assert_eq!(reaches(&mut invariant, 10, Some(SECOND)), Ok(()));
        assert_broken(reaches(&mut invariant, 11, Some(SECOND)), "session 7");
        assert_eq!(reaches(&mut invariant, 11, None), Ok(()));
        assert_eq!(reaches(&mut invariant, 11, Some(2 * SECOND)), Ok(()));
    }

    #[test]
    fn a_client_lets_go_of_a_floor_when_it_asks_for_another() {
        let mut invariant = granted(10, 2 * SECOND);
        assert_eq!(invariant.lease_asked(SESSION, ts(8)), Ok(()));
        assert_broken(reaches(&mut invariant, 11, Some(SECOND)), "a lease at 10");
        assert_eq!(invariant.lease_asked(SESSION, ts(20)), Ok(()));
        assert_eq!(reaches(&mut invariant, 20, Some(SECOND)), Ok(()));
        assert_broken(reaches(&mut invariant, 21, Some(SECOND)), "a lease at 20");
        assert_eq!(invariant.lease_asked(SESSION, Timestamp::ZERO), Ok(()));
        assert_eq!(reaches(&mut invariant, 30, Some(SECOND)), Ok(()));
    }
}
