//! Timestamps by way of proxies: in one order with those of the oracle itself, of one cluster alone, and also when a proxy is killed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::http::Http;
use crate::support::sessions::shown;
use crate::support::{Cluster, block_on, signal};
use percolator_client::{Client, Options, Timestamp};
use percolator_wire::of_cluster;
use percolator_wire::v1::TimestampsRequest;
use percolator_wire::v1::oracle_client::OracleClient;
use tokio_stream::StreamExt as _;
use tonic::Code;
use tonic::transport::Endpoint;

const ROUNDS: u32 = 500;

async fn through(cluster: &Cluster, relays: &[String]) -> Client {
    let options = Options::default();
    let connected = Client::connect_through(&cluster.master, relays, options).await;
    connected.expect("connected")
}

/// How many timestamps the proxy has taken for others.
async fn relayed(cluster: &Cluster) -> f64 {
    let metrics = cluster.metrics_address("proxy-0");
    let value = shown(&metrics, "percolator_proxy_relayed_timestamps_total").await;
    value.expect("a number")
}

/// A relay that had some in store would hand out one that is lower than one that the oracle handed out before.
#[test]
fn a_relay_asks_for_each_timestamp_when_it_is_asked() {
    let cluster = Cluster::threads();
    cluster.run(&["table", "create", "t"]).ok();
    let relays = [cluster.proxy()];
    block_on(async {
        let direct = Client::connect(&cluster.master).await.expect("connected");
        let by_relay = through(&cluster, &relays).await;
        let mut last = Timestamp::ZERO;
        for round in 0..ROUNDS {
            for client in [&direct, &by_relay] {
                let timestamp = client.timestamp().await.expect("a timestamp");
                assert!(
                    timestamp > last,
                    "{timestamp} after {last} in round {round}"
                );
                last = timestamp;
            }
        }
        let relayed = relayed(&cluster).await;
        assert!(relayed >= ROUNDS.into(), "they came by the relay");
        // Many at a time, in one range each.
        let granted = by_relay.timestamps(1000, &[]).await.expect("timestamps");
        assert!(granted.first > last);
        let next = direct.timestamp().await.expect("a timestamp");
        assert!(next.as_u64() >= granted.first.as_u64() + 1000);
        // What one of them commits, the other one sees.
        for number in 0..20_u32 {
            let (writer, reader) = match number % 2 {
                0 => (&by_relay, &direct),
                _ => (&direct, &by_relay),
            };
            let value = number.to_string();
            let put = |txn: percolator_client::OpenTxn| {
                let value = value.clone();
                async move { txn.put("t", "r", "c", value) }
            };
            writer.transact(put).await.expect("committed");
            let txn = reader.begin().await.expect("begun");
            let read = txn.get("t", "r", "c").await.expect("read");
            assert_eq!(read.as_deref(), Some(value.as_bytes()));
        }
    });
}

#[test]
fn a_relay_answers_clients_of_its_own_cluster_alone() {
    let cluster = Cluster::threads();
    let ask = async |cluster_id: &str, count: u32| {
        let address = format!("http://{}", cluster.proxy());
        let mut oracle = OracleClient::connect(address).await.expect("connected");
        let request = TimestampsRequest {
            count,
            traces: Vec::new(),
        };
        let requests = tokio_stream::iter([request]);
        let mut answers = oracle
            .timestamps(of_cluster(requests, cluster_id))
            .await?
            .into_inner();
        answers.message().await
    };
    block_on(async {
        let client = Client::connect(&cluster.master).await.expect("connected");
        let ours = client.cluster_id().await.expect("an id");
        assert_eq!(client.known_cluster_id(), Some(ours.clone()));
        let granted = ask(&ours, 3).await.expect("timestamps").expect("an answer");
        assert_eq!(granted.count, 3);
        let refused = ask("another", 1).await.expect_err("refused");
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        let refused = ask(&ours, 0).await.expect_err("refused");
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    });
}

/// Asks for as many timestamps as one request may, on many streams, as soon as the last ones are there: how often it was refused.
async fn ask_for_more_and_more(proxy: &str, cluster_id: &str, is_over: &AtomicBool) -> u32 {
    let endpoint = Endpoint::from_shared(format!("http://{proxy}")).expect("an address");
    let endpoint = endpoint.local_address(Some([127, 0, 0, 2].into()));
    let channel = endpoint.connect().await.expect("connected");
    let streams = (0..64).map(|_| async {
        let mut refused = 0;
        while !is_over.load(Ordering::Relaxed) {
            let request = TimestampsRequest {
                count: 65_536,
                traces: Vec::new(),
            };
            let requests = of_cluster(tokio_stream::iter(vec![request; 100]), cluster_id);
            let asked = OracleClient::new(channel.clone())
                .timestamps(requests)
                .await;
            let Ok(answers) = asked else { continue };
            let mut answers = answers.into_inner();
            while let Some(answer) = answers.next().await {
                if let Err(status) = answer {
                    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
                    refused += 1;
                }
            }
        }
        refused
    });
    futures_util::future::join_all(streams)
        .await
        .into_iter()
        .sum()
}

#[test]
fn a_client_that_asks_for_more_and_more_leaves_timestamps_for_sessions() {
    let cluster = Cluster::processes();
    let proxy = cluster.proxy();
    let is_over = AtomicBool::new(false);
    let cluster_id = block_on(async {
        let client = Client::connect(&cluster.master).await.expect("connected");
        client.cluster_id().await.expect("an id")
    });
    let refused = std::thread::scope(|scope| {
        let others = scope.spawn(|| {
            let sessions = Http::new(&proxy);
            let began = |_| sessions.post("begin", "{}");
            let answers: Vec<_> = (0..100).map(began).collect();
            is_over.store(true, Ordering::Relaxed);
            answers
        });
        let refused = block_on(ask_for_more_and_more(&proxy, &cluster_id, &is_over));
        for (status, answer) in others.join().expect("no panic") {
            assert_eq!(status, 200, "{answer}");
        }
        refused
    });
    assert!(refused > 0, "it has asked for no more than its share");
}

#[test]
fn clients_go_on_when_their_relay_is_killed_or_stands_still() {
    let cluster = Cluster::processes();
    // Nobody is at the first one.
    let relays = ["127.0.0.1:1".to_owned(), cluster.proxy()];
    block_on(async {
        let client = through(&cluster, &relays).await;
        let mut last = client.timestamp().await.expect("a timestamp");
        assert!(relayed(&cluster).await > 0.0, "they came by the relay");
        let pid = cluster.pid("proxy-0");
        for how in ["STOP", "KILL"] {
            signal(pid, how);
            for _ in 0..20 {
                let timestamp = client.timestamp().await.expect("a timestamp");
                assert!(timestamp > last, "{timestamp} after {last}");
                last = timestamp;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    });
}
