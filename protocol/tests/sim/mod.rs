//! A small world for the rules: clients that run the coordinator, servers that run the rules on the
//! tiny store, and between them messages that are delayed, doubled, reordered or lost.

pub(crate) mod check;
pub(crate) mod client;
pub(crate) mod plan;
pub(crate) mod reading;
pub(crate) mod request;
pub(crate) mod world;
