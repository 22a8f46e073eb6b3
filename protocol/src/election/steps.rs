//! The events and commands of an election.

use super::value::Leadership;
use crate::oracle::Granted;

/// The times of an election, in milliseconds of a monotonic clock that goes on while the machine sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// After the last swap that succeeded, the leader sends the next one.
    pub renew_ms: u64,
    /// The leader's right ends so long after it sent a swap that succeeded.
    pub right_ms: u64,
    /// A standby takes over when the version has not changed for so long. Clocks may differ in speed by the ratio of this
    /// to `right_ms`.
    pub takeover_ms: u64,
    /// How often a standby loads.
    pub poll_ms: u64,
    /// The pause after a load or a swap that failed.
    pub retry_ms: u64,
    /// How often the leader asks for promises. One holds for `right_ms`, and binds for `takeover_ms`.
    pub promise_ms: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            renew_ms: 1_000,
            right_ms: 2_000,
            takeover_ms: 3_000,
            poll_ms: 50,
            retry_ms: 100,
            promise_ms: 200,
        }
    }
}

/// The register's value with its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredLeadership {
    /// The version to expect in the next swap.
    pub version: u64,
    /// The value.
    pub value: Leadership,
}

/// A command to the register. One at a time is under way:
/// [`Election::loaded`](super::Election::loaded) or [`Election::swapped`](super::Election::swapped) must follow, or those of
/// the [`OracleReplica`](super::OracleReplica).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Load the value.
    Load,
    /// Replace the value, if it has the expected version; none expects that there never was a value.
    Swap {
        /// The version.
        expected: Option<u64>,
        /// The new value.
        value: Leadership,
    },
}

/// How a swap ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapResult {
    /// The value was replaced, and has this version.
    Done(u64),
    /// The register had another version. This swap never happens.
    Conflict,
    /// This swap never happens, for a reason that may pass.
    NotDone,
    /// The answer was lost: it happened, or did not, or will.
    Unknown,
}

/// The answer to a request for timestamps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// Timestamps that nobody else has.
    Granted(Granted),
    /// Everything below the durable limit is used up: ask again when a swap is done.
    Wait,
    /// This replica may grant nothing.
    NotLeader {
        /// The leader, if another replica leads, as far as this one knows.
        leader: Option<NamedLeader>,
    },
}

/// The leader that another replica names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedLeader {
    /// Its address: HOST:PORT.
    pub address: String,
    /// For so long, in milliseconds, the replica has not seen it renew its right.
    pub silent_ms: u64,
}

/// The role of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleKind {
    /// It watches the leader.
    Standby,
    /// It has sent the swap of a takeover, and doesn't know the outcome.
    Candidate,
    /// Its value is the register's, as far as it knows.
    Leader,
    /// It leads no more, and stores that nobody does.
    HandingOver,
    /// It takes part no more.
    Left,
}
