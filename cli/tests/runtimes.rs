//! A client that outlives the tokio runtime on which it connected, as in tests that share one.

use std::sync::mpsc;

use crate::support::{Cluster, TIMEOUT, block_on};
use percolator_client::Client;

/// Does this on a runtime of its own, which ends then, in a thread, so that a hang fails the test.
fn on_a_runtime<T: Send + 'static>(
    what: &str,
    work: impl AsyncFnOnce() -> T + Send + 'static,
) -> T {
    let (sender, done) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = sender.send(block_on(work()));
    });
    done.recv_timeout(TIMEOUT)
        .unwrap_or_else(|error| panic!("{what}: {error}"))
}

async fn add_one(client: &Client) -> u64 {
    let txn = client.begin().await.expect("begun");
    let value = txn.get("t", "a", "c").await.expect("read");
    let value = value.map_or(0, |value| {
        let text = String::from_utf8(value.to_vec()).expect("text");
        text.parse().expect("a number")
    });
    txn.put("t", "a", "c", (value + 1).to_string())
        .expect("put");
    txn.commit().await.expect("committed");
    value + 1
}

#[test]
fn a_client_goes_on_when_the_runtime_that_connected_it_has_ended() {
    let cluster = Cluster::threads();
    cluster.run(&["table", "create", "t"]).ok();
    let master = cluster.master.clone();
    let client = on_a_runtime("connecting", async move || {
        let client = Client::connect(&master).await.expect("connected");
        assert_eq!(add_one(&client).await, 1);
        client
    });
    for round in 2..6 {
        let client = client.clone();
        let found = on_a_runtime("a transaction on another runtime", async move || {
            add_one(&client).await
        });
        assert_eq!(found, round);
    }
}

/// As in an application that has a runtime for each call, and keeps them.
#[test]
fn a_client_goes_on_when_nobody_drives_the_runtime_that_connected_it() {
    let cluster = Cluster::threads();
    cluster.run(&["table", "create", "t"]).ok();
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime")
    };
    let idle = runtime();
    let client = idle.block_on(async {
        let client = Client::connect(&cluster.master).await.expect("connected");
        assert_eq!(add_one(&client).await, 1);
        client
    });
    for round in 2..4 {
        let client = client.clone();
        let found = on_a_runtime("a transaction on another runtime", async move || {
            add_one(&client).await
        });
        assert_eq!(found, round);
    }
    // What it held was taken over: it goes on as well.
    assert_eq!(idle.block_on(add_one(&client)), 4);
}
