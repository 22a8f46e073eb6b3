//! What logs tell, and what they don't.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::Duration;

use crate::support::{Cluster, SERVERS, block_on, wait_for};
use percolator_client::{Client, Options};
use percolator_wire::v1;
use percolator_wire::v1::master_client::MasterClient;
use percolator_wire::v1::tablets_client::TabletsClient;
use serde_json::Value;

const MARK: &str = "zanzibar4711";

fn log(cluster: &Cluster, server: &str) -> String {
    let file = cluster.data_dir.join("logs").join(format!("{server}.log"));
    std::fs::read_to_string(file).unwrap_or_default()
}

/// The objects of a log, or of standard error, with this message.
fn told(text: &str, message: &str) -> Vec<Value> {
    let lines = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let is_it = |line: &Value| line["message"] == message;
    lines.filter(is_it).collect()
}

#[test]
fn no_log_tells_what_cells_hold_and_slow_requests_say_where_their_time_went() {
    let variables = [
        ("PERCOLATOR_LOG", "trace"),
        ("PERCOLATOR_TABLET_SLOW_REQUESTS", "0s"),
    ];
    let cluster = Cluster::start_with(&["--processes"], &variables);
    let table = ["table", "create", "cut", "--split-at", MARK];
    cluster.run(&table).ok();
    cluster.run(&["put", "cut", MARK, MARK, MARK]).ok();
    cluster.run(&["scan", "cut"]).ok();
    cluster.run(&["get", "cut", MARK, MARK]).ok();
    cluster.run(&["delete", "cut", MARK, MARK]).ok();
    let mut slow = Vec::new();
    wait_for("a prewrite that is told of", || {
        let logs = ["tablet-0", "tablet-1", "tablet-2"].map(|server| log(&cluster, server));
        slow = logs
            .iter()
            .flat_map(|log| told(log, "slow request"))
            .collect();
        slow.iter()
            .any(|line| line["method"] == "prewrite")
            .then_some(())
    });
    let prewrite = slow.iter().find(|line| line["method"] == "prewrite");
    let prewrite = prewrite.expect("it was just there");
    assert_eq!(
        (&prewrite["table"], &prewrite["result"]),
        (&"cut".into(), &"ok".into())
    );
    let steps = prewrite["steps"].as_str().expect("words");
    for step in [
        "queue", "latch", "load", "decide", "group", "commit", "reply",
    ] {
        assert!(steps.contains(&format!("{step} ")), "{prewrite}");
    }
    for server in SERVERS {
        let log = log(&cluster, server);
        assert!(log.contains("\"TRACE\""), "{server} tells little: {log}");
        // It lies between two tablets, which the master tells the servers.
        let line = log.lines().find(|line| line.contains(MARK));
        assert_eq!(line, None, "{server}");
    }
}

#[test]
fn a_slow_transaction_is_told_with_its_steps_and_who_was_in_the_way() {
    let cluster = Cluster::threads();
    cluster.run(&["table", "create", "accounts"]).ok();
    let quick = cluster.run(&["put", "accounts", "a", "b", "c"]);
    assert_eq!(told(&quick.err, "slow transaction"), Vec::<Value>::new());

    let slow = ["--slow-transactions", "0s"];
    let said = cluster.run(&[&slow, &["put", "accounts", "a", "b", "c"][..]].concat());
    let lines = told(&said.err, "slow transaction");
    let [line] = &lines[..] else {
        panic!("{said:?}")
    };
    assert_eq!(
        (&line["result"], &line["in_the_way"]),
        (&"committed".into(), &"nobody".into())
    );
    let steps = line["steps"].as_str().expect("words");
    for step in [
        "begin",
        "commit_one_phase",
        "safe_point_check",
        "application",
    ] {
        assert!(steps.contains(&format!("{step} ")), "{line}");
    }

    block_on(async {
        let options = Options {
            buffer_bytes: 1,
            ..Options::default()
        };
        let client = Client::connect_with(&cluster.master, options).await;
        let txn = client.expect("connected").begin().await.expect("begun");
        txn.put("accounts", MARK, MARK, MARK).expect("put");
        let owner = format!("{} (accounts)", txn.start_ts());
        // Its lock is there when its flush is.
        let met = loop {
            let get = ["get", "accounts", MARK, MARK];
            let said = cluster.run(&[&slow, &get[..]].concat());
            assert!(!said.err.contains(MARK), "{said:?}");
            let lines = told(&said.err, "slow transaction");
            if let Some(met) = lines
                .into_iter()
                .find(|line| line["in_the_way"] != "nobody")
            {
                break met;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert_eq!(met["in_the_way"], owner, "{met}");
        let steps = met["steps"].as_str().expect("words");
        assert!(
            steps.contains("get_past_lock ") && steps.contains("check_status "),
            "{met}"
        );
        txn.rollback();
    });
}

/// Lines that a server may tell while something floods it: ten of a kind in ten seconds.
const LINES_MAX: usize = 60;

/// A tablet server that says with each heartbeat that it has rows of others, and a table that nobody knows.
async fn disagree(master: &str, times: u32) {
    let client = Client::connect(master).await.expect("connected");
    let cluster_id = client.cluster_id().await.expect("an id");
    let known = client.tables().await.expect("tables").remove(0);
    let whole = |id, table_id, name: &str| v1::TabletInfo {
        id,
        table_id,
        table_name: name.into(),
        epoch: 1,
        state: v1::TabletState::Serving.into(),
        ..v1::TabletInfo::default()
    };
    let mut master = MasterClient::connect(format!("http://{master}"))
        .await
        .expect("connected");
    for number in 0..=times {
        let unknown = 1_000 + number;
        // First it joins, and has nothing.
        let joins = number == 0;
        let beat = v1::HeartbeatRequest {
            cluster_id: if joins {
                String::new()
            } else {
                cluster_id.clone()
            },
            role: v1::Role::Tablet.into(),
            server: "tablet-9".into(),
            address: "127.0.0.1:1".into(),
            incarnation: 1,
            lists_version: 1,
            tablets: if joins {
                Vec::new()
            } else {
                vec![
                    whole(5_000, known.id, &known.name),
                    whole(unknown.into(), unknown, &format!("t{unknown}")),
                ]
            },
            ..v1::HeartbeatRequest::default()
        };
        master.heartbeat(beat).await.expect("taken");
    }
}

/// Requests that make no sense, and bytes that are none.
async fn pester(address: &str, times: u64) {
    let requests = (0..times).map(|id| v1::Request {
        id,
        tablets: vec![v1::TabletRef { id, epoch: 1 }],
        ..v1::Request::default()
    });
    let requests = requests.collect();
    let mut client = TabletsClient::connect(format!("http://{address}"))
        .await
        .expect("connected");
    let pack = tokio_stream::iter([v1::RequestPack { requests }]);
    let mut answers = client.serve(pack).await.expect("a stream").into_inner();
    while let Ok(Some(_)) = answers.message().await {}
}

#[test]
fn a_peer_that_floods_servers_does_not_fill_their_logs() {
    let cluster = Cluster::processes();
    cluster.run(&["table", "create", "accounts"]).ok();
    let file = std::fs::read(cluster.data_dir.join("servers.json")).expect("servers.json");
    let servers: Vec<Value> = serde_json::from_slice(&file).expect("a list");
    let lines = || SERVERS.map(|server| log(&cluster, server).lines().count());
    let before = lines();
    for server in &servers {
        for address in [&server["address"], &server["metrics"]] {
            let address = address.as_str().expect("an address");
            for garbage in [&[0xff; 1000][..], b"PRI * HTTP/2.0\r\n\r\nXX"].repeat(100) {
                let mut stream = TcpStream::connect(address).expect("connected");
                // The server may have closed already.
                let _ = stream.write_all(garbage);
            }
        }
        if server["role"] == "tablet" {
            let address = server["address"].as_str().expect("an address");
            block_on(pester(address, 10_000));
        }
    }
    block_on(disagree(&cluster.master, 300));
    for kind in ["the report is ignored", "has not carried out a command"] {
        wait_for(kind, || {
            log(&cluster, "master-0").contains(kind).then_some(())
        });
    }
    for ((server, before), after) in SERVERS.iter().zip(before).zip(lines()) {
        let log = log(&cluster, server);
        assert!(
            after - before <= LINES_MAX,
            "{server}: {before} to {after} lines\n{log}"
        );
    }
}
