//! How a cluster is, for administrators: `percolator status`, `top` and `debug bundle`.
//!
//! [`survey`] asks the master and the oracle, [`problems`] says of the responses, without asking anybody, what isn't well
//! and what to do about it; [`metrics`] reads what the processes show of themselves.

pub(crate) mod bundle;
mod kubernetes;
pub(crate) mod metrics;
mod missing;
mod page;
mod problems;
mod proxies;
mod redact;
mod servers;
pub(crate) mod status;
pub(crate) mod survey;
pub(crate) mod top;
