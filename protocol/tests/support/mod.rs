//! Shared code of the tests of the rules: a tiny store, rows and outcomes as text, and scripts.

pub(crate) mod args;
pub(crate) mod codec;
pub(crate) mod outcomes;
pub(crate) mod rows;
pub(crate) mod rules;
pub(crate) mod script;
pub(crate) mod store;
pub(crate) mod txn;
