//! Transactions for applications.

pub mod oracle;
