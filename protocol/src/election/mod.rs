//! Which of several replicas leads: an election over one register. The oracle uses it with limits of timestamps
//! ([`OracleReplica`]), and the master with states that lie elsewhere ([`MasterReplica`]).
//!
//! A state machine of one replica. It must not know what a register, a clock or a request is: the time comes in as an
//! argument, loads and swaps go out as commands, and their results come back. The rules and the reasons are in
//! `docs/design/failover.md`:
//!
//! - The leader swaps at least once a second. Its right to lead ends two seconds after it sent the last swap that
//!   succeeded. A standby takes over three seconds after it saw the version change last.
//! - A takeover swaps a new term first. An oracle also swaps a higher limit, and grants from the old one on, with an
//!   [`Oracle`](crate::oracle::Oracle) that is made for this term: no term sees the memory of another one.
//! - Every limit is a swap, so that the late write of a leader that was replaced is a conflict.
//! - A swap whose outcome is unknown is neither done nor failed. A load decides, or a further swap with the same
//!   expected version.
//! - While the register is away, the leader goes on by promises of all replicas that could take over. Each limit is then
//!   durable in its own folder and in theirs before it counts.
//! - The state of masters is too large for their register of the leadership, and lies in another one. While that is away,
//!   each state is durable in the same folders before it counts. The leader lists no other replica until the register has
//!   the newest state.
//! - A leader that ends in order stops leading, and stores no holder; an oracle also stores exactly the next timestamp.

mod core;
mod master;
#[cfg(test)]
mod model;
pub mod mutants;
mod observe;
mod oracle;
mod promises;
#[cfg(test)]
mod scenarios;
mod shown;
mod steps;
mod value;

pub use core::Election;
pub use master::{CopyDecision, CopyRequest, MasterReplica, StateNumber, StateSource};
pub use oracle::OracleReplica;
pub use promises::{PromiseCall, PromiseRecord, PromiseRequest, PromiseRound};
pub use steps::{
    Command, NamedLeader, RequestOutcome, RoleKind, StoredLeadership, SwapResult, Timing,
};
pub use value::{DecodeError, Leadership, Member, Peer, SwapName};
