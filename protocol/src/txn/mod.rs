//! The commit of a client, as a state machine: events in, commands out. It knows no network, no
//! servers and no time; anyone who runs it turns commands into requests and answers into events.
//!
//! The way: prewrite everything (in parallel), take a commit_ts, commit the primary: that is the
//! decision. The secondaries follow in the background. Where one server has every cell, it is asked to do
//! both phases in one step (`actions::one_phase`). Locks in the way are cleared by their own
//! primary's state, and between two live transactions the older one wins (wound-die,
//! docs/design/transactions.md).

mod bound;
mod coordinator;
mod finished;
mod obstacle;

pub use coordinator::{Command, Coordinator, Event, PrimaryEnd, Step};
pub use finished::{AbortReason, Finished};
pub use obstacle::{Ending, MetLock, ReadNext, after_status_read};
