//! Peers that misbehave: the server answers them, and goes on serving the others.

use crate::support;
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::server::resident_kib;
use crate::support::{Cluster, block_on, signal, wait_for};
use percolator_client::{Client, Error, Options, Range};
use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::tablets_client::TabletsClient;
use tokio::sync::Notify;
use tokio_stream::StreamExt;

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

/// The one tablet of a table, and its server.
struct Place {
    table_id: u32,
    tablet: v1::TabletRef,
    address: String,
    pid: u64,
}

fn place_of(cluster: &Cluster, table: &str) -> Place {
    let listed = cluster.run(&["table", "list", "-o", "json"]).ok();
    let table: serde_json::Value = listed
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"))
        .find(|listed| listed["name"] == table)
        .expect("the table");
    let tablet = &table["tablets"][0];
    let servers = std::fs::read_to_string(cluster.data_dir.join("servers.json")).expect("there");
    let servers: serde_json::Value = serde_json::from_str(&servers).expect("JSON");
    let owner = servers
        .as_array()
        .and_then(|servers| {
            let owns = |server: &&serde_json::Value| server["server"] == tablet["server"];
            servers.iter().find(owns)
        })
        .expect("the owner");
    Place {
        table_id: table["id"]
            .as_u64()
            .and_then(|id| u32::try_from(id).ok())
            .expect("a number"),
        tablet: v1::TabletRef {
            id: tablet["id"].as_u64().expect("a number"),
            epoch: tablet["epoch"].as_u64().expect("a number"),
        },
        address: owner["address"].as_str().expect("text").to_owned(),
        pid: owner["pid"].as_u64().expect("a number"),
    }
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
            trace: None,
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
        let end = tokio::time::timeout(support::TIMEOUT, answers.message())
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
    let place = place_of(&cluster, "t");
    let (address, tablets) = (place.address, vec![place.tablet]);
    let (sent, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(Notify::new()));
    let client = {
        let (sent, stop) = (sent.clone(), stop.clone());
        // In a thread of its own: it has to go on sending while others are served.
        std::thread::spawn(move || {
            block_on(async {
                let mut client = TabletsClient::connect(format!("http://{address}"))
                    .await
                    .expect("connected");
                // Requests without end, each for 400 kB, and no answer is read.
                let packs = (0..).map(move |pack: u64| {
                    sent.fetch_add(1, Ordering::Relaxed);
                    v1::RequestPack {
                        requests: (0..100)
                            .map(|number| v1::Request {
                                id: pack * 100 + number,
                                tablets: tablets.clone(),
                                trace: None,
                                body: Some(Ask::Scan(v1::ScanRequest {
                                    start_ts: 1 << 62,
                                    ..Default::default()
                                })),
                            })
                            .collect(),
                    }
                });
                let answers = client
                    .serve(tokio_stream::iter(packs))
                    .await
                    .expect("a stream");
                stop.notified().await;
                drop(answers);
            });
        })
    };
    // It is held: what it can send comes to an end.
    let mut before = (0, Instant::now());
    wait_for("the server to take no more requests", || {
        let now = sent.load(Ordering::Relaxed);
        if now != before.0 {
            before = (now, Instant::now());
        }
        (now > 0 && before.1.elapsed() > Duration::from_secs(2)).then_some(())
    });
    eprintln!("held after {} packs", before.0);
    cluster.run(&["get", "t", "a", "c"]).ok();
    let resident = resident_kib(place.pid);
    assert!(
        resident < 400 << 10,
        "{resident} KiB for a client that doesn't read"
    );
    stop.notify_one();
    client.join().expect("it ends");
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

/// Asked about a secondary, a server would roll it back for its age alone, and tear what is committed.
#[test]
fn an_outcome_is_not_asked_of_a_cell_that_is_not_the_primary() {
    let cluster = Cluster::processes();
    cluster.run(&["table", "create", "first"]).ok();
    cluster.run(&["table", "create", "second"]).ok();
    let (first, second) = (place_of(&cluster, "first"), place_of(&cluster, "second"));
    // The lock of a secondary, by a client that is gone, of a transaction of 1970.
    let prewrite = Ask::Prewrite(v1::PrewriteRequest {
        start_ts: 5,
        primary: Some(v1::CellName {
            table_id: first.table_id,
            row: "a".into(),
            column: "c".into(),
        }),
        ttl_ms: 3000,
        mutations: vec![v1::Mutation {
            cell: Some(v1::CellRef {
                tablet: 0,
                row: "b".into(),
                column: "c".into(),
            }),
            kind: v1::LockKind::Put.into(),
            value: "1".into(),
        }],
        one_phase: None,
        generation: 0,
        chain: None,
    });
    let answer = block_on(async {
        let request = v1::Request {
            id: 1,
            tablets: vec![second.tablet],
            trace: None,
            body: Some(prewrite),
        };
        let pack = v1::RequestPack {
            requests: vec![request],
        };
        let mut client = TabletsClient::connect(format!("http://{}", second.address))
            .await
            .expect("connected");
        let mut answers = client
            .serve(tokio_stream::iter([pack]).chain(tokio_stream::pending()))
            .await
            .expect("a stream")
            .into_inner();
        answers.message().await.expect("an answer")
    });
    eprintln!("{answer:?}");
    let asked =
        |table_id: u32, row: &str| cluster.run(&["outcome", "5", &format!("{table_id}/{row}:c")]);
    asked(second.table_id, "b").refused(2, &["the primary of transaction 5 is"]);
    assert!(asked(first.table_id, "a").ok().contains("rolled back"));
}

/// A process that stands still, until this is dropped.
struct Stopped(u32);

impl Stopped {
    fn new(pid: u32) -> Self {
        signal(pid, "STOP");
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal(self.0, "CONT");
    }
}

/// What the error says of the time is what it took, and that is no less than was asked for.
async fn gives_up<T>(
    doing: &str,
    request_timeout: Duration,
    call: impl Future<Output = Result<T, Error>>,
) {
    let started = Instant::now();
    let result = call.await;
    let took = started.elapsed();
    let said = match result {
        Err(Error::Timeout { after, .. }) => after,
        Err(other) => panic!("{doing}: {other}"),
        Ok(_) => panic!("{doing}: done by a server that stands still"),
    };
    eprintln!("{doing}: {took:?}, which it says was {said:?}");
    assert!(said >= request_timeout * 9 / 10, "{doing}: {said:?}");
    assert!(
        took < said + request_timeout / 2,
        "{doing}: it took {took:?}, and says {said:?}"
    );
}

#[test]
fn whoever_gives_up_says_how_long_it_took() {
    const TIMEOUT: Duration = Duration::from_secs(4);
    let cluster = Cluster::processes();
    for table in ["t", "u"] {
        cluster.run(&["table", "create", table]).ok();
        cluster.run(&["put", table, "a", "c", "1"]).ok();
    }
    let options = Options {
        request_timeout: TIMEOUT,
        retry_for: TIMEOUT,
        ..Options::default()
    };
    let put = |client: Client| async move {
        client
            .transact(|txn| async move { txn.put("t", "a", "c", "2") })
            .await
    };
    block_on(async {
        let client = Client::connect_with(&cluster.master, options)
            .await
            .expect("connected");
        // Two transactions whose snapshots are from before.
        let reader = client.begin().await.expect("begun");
        let writer = client.begin().await.expect("begun");
        reader.get("u", "a", "c").await.expect("a value");
        for table in ["t", "u"] {
            writer.put(table, "b", "c", "2").expect("put");
        }
        {
            let _stopped = Stopped::new(cluster.pid("tso-0"));
            gives_up("begin, no oracle", TIMEOUT, client.begin()).await;
            gives_up("transact, no oracle", TIMEOUT, put(client.clone())).await;
        }
        {
            let pid = u32::try_from(place_of(&cluster, "t").pid).expect("a process");
            let _stopped = Stopped::new(pid);
            gives_up("get", TIMEOUT, reader.get("t", "a", "c")).await;
            let several: [(&str, &[u8], &[u8]); 2] = [("t", b"a", b"c"), ("t", b"a", b"d")];
            gives_up("batch_get", TIMEOUT, reader.batch_get(&several)).await;
            let scan = async { reader.scan("t", Range::all()).await?.collect().await };
            gives_up("scan", TIMEOUT, scan).await;
            gives_up("commit", TIMEOUT, writer.commit()).await;
        }
        wait_for_put(&client).await;
    });
}

/// Everything is there again.
async fn wait_for_put(client: &Client) {
    let started = Instant::now();
    loop {
        let put = client.transact(|txn| async move { txn.put("t", "a", "c", "3") });
        match put.await {
            Ok(()) => return,
            Err(error) => assert!(started.elapsed() < support::TIMEOUT, "{error}"),
        }
    }
}

/// How many connections of this process lead to this port.
fn connections_to(port: u16) -> usize {
    let files = std::fs::read_dir("/proc/self/fd").expect("open files");
    let links = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    let sockets: Vec<String> = links.map(|link| link.display().to_string()).collect();
    let all = std::fs::read_to_string("/proc/net/tcp").expect("connections");
    let of_port = format!(":{port:04X}");
    let is_ours = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (Some(to), Some(state), Some(inode)) = (words.get(2), words.get(3), words.get(9))
        else {
            return false;
        };
        to.ends_with(&of_port) && *state == "01" && sockets.contains(&format!("socket:[{inode}]"))
    };
    all.lines().filter(is_ours).count()
}

/// A master has as many clients as there are processes, and each asks it three times a minute.
#[test]
fn a_client_keeps_no_connection_to_the_master() {
    let cluster = Cluster::processes();
    cluster.run(&["table", "create", "accounts"]).ok();
    let port = cluster.master.rsplit_once(':').expect("a port").1;
    let port = port.parse().expect("a number");
    let stream = TcpStream::connect(&cluster.master).expect("connected");
    assert_eq!(connections_to(port), 1);
    drop(stream);
    block_on(async {
        let client = Client::connect(&cluster.master).await.expect("connected");
        // Its lease is renewed from now on.
        let txn = client.begin().await.expect("begun");
        let read = txn.get("accounts", "a", "b").await;
        assert_eq!(read.expect("a read"), None);
        let began = Instant::now();
        while connections_to(port) > 0 {
            assert!(began.elapsed() < support::TIMEOUT, "it is kept");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let again = txn.get("accounts", "a", "b").await;
        assert_eq!(again.expect("a read"), None);
    });
}
