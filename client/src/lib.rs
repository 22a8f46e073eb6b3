//! Transactions for applications.
