//! Many that want to write the same row.

use crate::support::{Cluster, block_on};
use percolator_client::{Bytes, Client, Error};

const WORKERS: u32 = 32;
const EACH: u32 = 5;

async fn increment(client: &Client) -> Result<(), Error> {
    client
        .transact(|txn| async move {
            let count = txn.get("t", "row", "count").await?;
            let count: u32 = match count {
                Some(count) => String::from_utf8_lossy(&count).parse().expect("a number"),
                None => 0,
            };
            txn.put("t", "row", "count", Bytes::from((count + 1).to_string()))?;
            Ok(())
        })
        .await
}

/// Each waits for its turn at the tablet server, also where the clients know nothing of each other.
#[test]
fn everybody_has_a_turn_at_a_hot_row() {
    let cluster = Cluster::processes();
    cluster.run(&["table", "create", "t"]).ok();
    block_on(async {
        let workers = (0..WORKERS).map(|_| async {
            let client = Client::connect(&cluster.master).await?;
            for _ in 0..EACH {
                increment(&client).await?;
            }
            Ok::<_, Error>(())
        });
        futures_util::future::try_join_all(workers)
            .await
            .expect("everybody commits");
    });
    let count = cluster.run(&["get", "t", "row", "count"]).ok();
    assert_eq!(count.trim(), (WORKERS * EACH).to_string());
    let waited = "percolator_tablet_requests_total{method=\"wait_for_cell\",result=\"ok\"}";
    let shown: f64 = (0..3)
        .map(|tablet| {
            let address = cluster.metrics_address(&format!("tablet-{tablet}"));
            let page = block_on(percolator_telemetry::endpoint::get(&address, "/metrics"))
                .expect("metrics")
                .body;
            let value = page.lines().find_map(|line| line.strip_prefix(waited));
            value.map_or(0.0, |value| value.trim().parse().expect("a number"))
        })
        .sum();
    assert!(shown > 0.0, "nobody waited for a turn");
}
