//! An observed column, and observers of it.

use percolator_client::{Client, Observer, ObserverOptions, ObserverWorker};

use super::Cluster;

/// A cluster with the observed column `c` of table `t`, and a client of it.
pub(crate) async fn observed(cluster: &Cluster) -> Client {
    let client = Client::connect(&cluster.master).await.expect("a cluster");
    client.create_table("t", &["m".into()]).await.expect("made");
    client.observe("t", "c").await.expect("observed");
    client
}

/// A worker of that column that gives each change up when its handler has failed once.
pub(crate) async fn start_failing(client: &Client) -> ObserverWorker {
    let fails = Observer::new("t", "c", |_, _| async { Err("it rains".into()) });
    let options = ObserverOptions {
        attempts_max: 1,
        ..ObserverOptions::default()
    };
    let worker = fails.with_options(options).start(client).await;
    worker.expect("a worker")
}
