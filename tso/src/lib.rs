//! The timestamp oracle: strictly increasing timestamps, across restarts and clock trouble.
//!
//! [`core`] decides, and knows no socket, clock, disk or thread. [`Server`] runs it: it answers
//! requests where it reads them, from memory, and makes limits durable in the background, well
//! ahead of use. With a register it is one of several oracles, of which one leads: `protocol::election` decides.

mod beats;
pub mod clock;
pub mod core;
mod elected;
mod error;
pub mod granting;
mod joining;
mod keeper;
mod leadership;
mod metrics;
pub mod program;
mod register;
mod server;
mod service;

pub use elected::{Elected, Host};
pub use error::Error;
pub use keeper::{Keeper, LimitHost};
pub use server::{Options, Server};
