//! An oracle's heartbeats and the master's responses, as messages.

use percolator_protocol::oracle::Now;
use percolator_protocol::types::Timestamp;
use percolator_wire::v1::{HeartbeatRequest, HeartbeatResponse};

use crate::core::Bounds;
use crate::granting::Granting;

impl Granting {
    /// The progress that a heartbeat reports. `register`: of one of several oracles; 0: it is alone.
    pub fn report(&mut self, now: Now, register: u64) -> HeartbeatRequest {
        let reached = self.reached(now);
        let replica = self.replica().filter(|replica| replica.leads(now));
        HeartbeatRequest {
            high_ts: reached.limit.as_u64(),
            time: reached.time.as_u64(),
            oracle_register: register,
            leads_term: replica.map_or(0, |replica| replica.term()),
            ..HeartbeatRequest::default()
        }
    }

    /// Takes in the master's response to a heartbeat that was sent at this time of the monotonic clock. Returns its bounds.
    pub fn take_response(&mut self, sent_ms: u64, response: &HeartbeatResponse) -> Bounds {
        let bounds = Bounds {
            above: Timestamp::from_u64(response.timestamps_above),
            commits_above: Timestamp::from_u64(response.commits_above),
        };
        self.accepted(sent_ms, response.lease_ms.into(), bounds);
        bounds
    }
}
