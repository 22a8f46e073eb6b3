//! The port at which a long command shows what the client library does.

use std::net::SocketAddr;

use percolator_client::Client;
use percolator_telemetry::Registry;
use percolator_telemetry::endpoint::{self, Endpoint, Pages};

use crate::output::Output;

/// Shows the client's metrics, until the value is dropped. `role`: the command.
pub(crate) fn show(
    client: &Client,
    address: SocketAddr,
    role: &'static str,
    output: Output,
) -> anyhow::Result<Endpoint> {
    let listener = endpoint::listen(address)?;
    let registry = Registry::new();
    client.measure(&registry)?;
    output.note(&format!("metrics on {}", listener.address()));
    Ok(listener.serve(Pages {
        registry,
        role,
        refresh: Box::new(|| {}),
        ready: Box::new(|| Ok(())),
        healthy: Box::new(|| Ok(())),
    })?)
}
