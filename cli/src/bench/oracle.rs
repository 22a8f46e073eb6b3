//! Timestamps a second, over one connection.

use std::time::Duration;

use percolator_client::Client;

use super::Figure;
use super::workers::{self, Timed};

pub(super) async fn measure(
    client: &Client,
    requesters: usize,
    duration: Duration,
) -> anyhow::Result<Figure> {
    client.timestamp().await?;
    let client = client.clone();
    workers::run(
        format!("timestamps, {requesters} requesters"),
        requesters,
        duration,
        Timed::OneIn(7),
        move |_| {
            let client = client.clone();
            async move { client.timestamp().await.map(drop) }
        },
    )
    .await
}
