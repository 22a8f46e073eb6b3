//! The proxy: transactions for applications in any language, over gRPC and over HTTP with JSON.
//!
//! A session is one transaction, which the proxy holds for its client. [`sessions`] decides about sessions, and knows no
//! clock and no socket; the calls go through it to the client library. [`Server`] has both doors on one address.

mod caller;
mod connections;
mod error;
pub mod failure;
mod grpc;
mod introduction;
mod json;
mod json_text;
mod metrics;
mod named_bytes;
mod peers;
mod pool;
pub mod program;
mod ranges;
mod relay;
mod server;
pub mod sessions;
pub mod token;
mod transactions;
mod transit;

pub use error::Error;
pub use json::{METHODS, OPENAPI};
pub use server::{Options, Server};
