//! Peers that misbehave: the server answers them, and goes on serving the others.

mod support;

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::tablets_client::TabletsClient;
use support::Cluster;

fn tablet_address(cluster: &Cluster) -> String {
    let servers = std::fs::read_to_string(cluster.data_dir.join("servers.json"))
        .expect("a cluster of processes");
    let servers: serde_json::Value = serde_json::from_str(&servers).expect("JSON");
    servers
        .as_array()
        .and_then(|servers| servers.iter().find(|server| server["server"] == "tablet-0"))
        .and_then(|server| server["address"].as_str())
        .expect("tablet-0")
        .to_owned()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(future)
}

#[test]
fn a_message_that_is_too_large_ends_the_stream_and_nothing_else() {
    let cluster = Cluster::processes();
    cluster.run(&["table", "create", "t"]).ok();
    let address = tablet_address(&cluster);
    block_on(async {
        let mut client = TabletsClient::connect(format!("http://{address}"))
            .await
            .expect("connected");
        let request = v1::Request {
            id: 1,
            tablets: Vec::new(),
            body: Some(Ask::RawPut(v1::RawPutRequest {
                key: "k".into(),
                value: vec![0; 30 << 20].into(),
            })),
        };
        let pack = v1::RequestPack {
            requests: vec![request],
        };
        let mut answers = client
            .serve(tokio_stream::iter([pack]))
            .await
            .expect("a stream")
            .into_inner();
        let end = tokio::time::timeout(support::PATIENCE, answers.message())
            .await
            .expect("an end");
        assert!(matches!(end, Err(_) | Ok(None)), "{end:?}");
    });
    cluster.run(&["put", "t", "a", "c", "1"]).ok();
}

#[test]
fn a_client_that_stops_reading_is_held_and_others_are_served() {
    let cluster = Cluster::processes();
    cluster.run(&["table", "create", "t"]).ok();
    let value = "v".repeat(100_000);
    for row in ["a", "b", "c", "d"] {
        cluster.run(&["put", "t", row, "c", &value]).ok();
    }
    let listed = cluster.run(&["table", "list", "-o", "json"]).ok();
    let table: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
    let tablet = &table["tablets"][0];
    let owner = tablet["server"].as_str().expect("a server").to_owned();
    let servers = std::fs::read_to_string(cluster.data_dir.join("servers.json")).expect("there");
    let servers: serde_json::Value = serde_json::from_str(&servers).expect("JSON");
    let owner = servers
        .as_array()
        .and_then(|servers| servers.iter().find(|server| server["server"] == *owner))
        .expect("the owner")
        .clone();
    let address = owner["address"].as_str().expect("text").to_owned();
    let tablets = vec![v1::TabletRef {
        id: tablet["id"].as_u64().expect("a number"),
        epoch: tablet["epoch"].as_u64().expect("a number"),
    }];
    block_on(async {
        let mut client = TabletsClient::connect(format!("http://{address}"))
            .await
            .expect("connected");
        // Two gigabytes of answers are asked for, and none is read.
        let packs = (0..50_u64).map(move |pack| v1::RequestPack {
            requests: (0..100)
                .map(|number| v1::Request {
                    id: pack * 100 + number,
                    tablets: tablets.clone(),
                    body: Some(Ask::Scan(v1::ScanRequest {
                        start_ts: u64::MAX - 1,
                        ..Default::default()
                    })),
                })
                .collect(),
        });
        let answers = client
            .serve(tokio_stream::iter(packs))
            .await
            .expect("a stream");
        let pid = owner["pid"].as_u64().expect("a number");
        for _ in 0..10 {
            tokio::time::timeout(support::PATIENCE, async {
                cluster.run(&["get", "t", "a", "c"]).ok();
                tokio::task::yield_now().await;
            })
            .await
            .expect("served");
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
            let resident: u64 = status
                .lines()
                .find_map(|line| line.strip_prefix("VmRSS:"))
                .and_then(|size| size.split_whitespace().next())
                .and_then(|size| size.parse().ok())
                .expect("a size");
            assert!(
                resident < 400 << 10,
                "{resident} KiB for a client that doesn't read"
            );
        }
        drop(answers);
    });
}

#[test]
fn bytes_that_are_no_message_end_their_connection_and_nothing_else() {
    let cluster = Cluster::processes();
    cluster.run(&["table", "create", "t"]).ok();
    for address in [tablet_address(&cluster), cluster.master.clone()] {
        for garbage in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            &[0xff; 1000],
            b"PRI * HTTP/2.0",
        ] {
            let mut stream = TcpStream::connect(&address).expect("connected");
            stream
                .set_write_timeout(Some(Duration::from_secs(5)))
                .expect("a timeout");
            // The server may have closed already.
            let _ = stream.write_all(garbage);
        }
    }
    cluster.run(&["put", "t", "a", "c", "1"]).ok();
    assert_eq!(cluster.run(&["get", "t", "a", "c"]).ok(), "1\n");
}
