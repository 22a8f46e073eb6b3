//! What `percolator status` and `percolator debug bundle` say of real clusters, well and not.

use crate::support;
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

use crate::support::{Cluster, TIMEOUT, block_on, signal, wait_for};
use flate2::read::GzDecoder;
use percolator_client::Client;
use serde_json::Value;

fn status(cluster: &Cluster) -> (i32, Value) {
    let said = cluster.run(&["status", "-o", "json"]);
    let value = serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("{said:?}"));
    (said.code(), value)
}

fn kinds(status: &Value) -> Vec<&str> {
    let problems = status["problems"].as_array().expect("problems");
    problems
        .iter()
        .filter_map(|problem| problem["kind"].as_str())
        .collect()
}

#[test]
fn a_cluster_says_that_it_is_well_and_which_server_is_not() {
    let cluster = Cluster::processes();
    cluster
        .run(&[
            "table",
            "create",
            "accounts",
            "--split-at",
            "h",
            "--split-at",
            "p",
        ])
        .ok();
    let well = wait_for("the proxy in the status", || {
        let (code, well) = status(&cluster);
        assert_eq!((code, kinds(&well)), (0, vec![]), "{well}");
        (well["servers"].as_array().map(Vec::len) == Some(5)).then_some(well)
    });
    assert_eq!(well["healthy"], true);
    let proxy = &well["servers"][1];
    assert_eq!(
        (&proxy["role"], &proxy["server"]),
        (&"proxy".into(), &"proxy-0".into())
    );
    assert_eq!(
        (&proxy["up"], &proxy["sessions"]),
        (&true.into(), &0.into()),
        "{well}"
    );
    assert_eq!(well["tables"][0]["ready"], 3, "{well}");
    let page = cluster.run(&["status"]).ok();
    assert!(page.contains(": healthy\n"), "{page}");

    let pid = cluster.pid("tablet-1");
    cluster.without_restarts(|cluster| {
        signal(pid, "KILL");
        let ill = wait_for("the server to be missed", || {
            let (code, status) = status(cluster);
            let missed = kinds(&status).contains(&"server-down");
            (code == 7 && missed).then_some(status)
        });
        assert_eq!(ill["problems"][0]["about"], "tablet-1", "{ill}");
        assert_eq!(ill["tables"][0]["state"], "partly", "{ill}");
        let said = cluster.run(&["status"]);
        assert_eq!(said.code(), 7, "{said:?}");
        let tells = [
            "tablet-1",
            "down for",
            "its tablets",
            "do: start it again",
            "logs/tablet-1.log",
        ];
        for words in tells {
            assert!(said.out.contains(words), "{words}: {said:?}");
        }
        signal(cluster.pid("tso-0"), "STOP");
        let (code, ill) = status(cluster);
        signal(cluster.pid("tso-0"), "CONT");
        assert_eq!((code, kinds(&ill)[0]), (7, "oracle"), "{ill}");
    });
    wait_for("the cluster to be well again", || {
        (status(&cluster).0 == 0).then_some(())
    });
}

#[test]
fn without_a_master_there_is_no_status() {
    let said = support::percolator(&["-c", "127.0.0.1:1", "status", "--request-timeout", "1s"]);
    said.refused(5, &["127.0.0.1:1"]);
}

#[test]
fn what_holds_collection_back_is_said_with_what_to_do() {
    let cluster = Cluster::threads();
    cluster.run(&["gc", "set", "--pause", "true"]).ok();
    let (code, status) = status(&cluster);
    assert_eq!((code, kinds(&status)), (7, vec!["paused"]), "{status}");
    let action = status["problems"][0]["do"].as_str().expect("words");
    assert_eq!(action, "go on with `percolator gc set --pause false`");
}

/// The files of a bundle, by name.
fn unpacked(path: &std::path::Path) -> BTreeMap<String, String> {
    let file = std::fs::File::open(path).expect("the bundle");
    let mut archive = tar::Archive::new(GzDecoder::new(file));
    let entries = archive.entries().expect("an archive");
    let files = entries.map(|entry| {
        let mut entry = entry.expect("an entry");
        let name = entry.path().expect("a name").display().to_string();
        let mut text = Vec::new();
        entry.read_to_end(&mut text).expect("readable");
        (name, String::from_utf8_lossy(&text).into_owned())
    });
    files.collect()
}

const MARK: &str = "zanzibar4711";

#[test]
#[expect(clippy::too_many_lines, reason = "one story, told in its order")]
fn a_bundle_says_how_the_cluster_is_and_names_no_cell() {
    let cluster = Cluster::processes();
    let data_dir = cluster.data_dir.display().to_string();
    let folder = tempfile::tempdir().expect("a folder");
    let bundle = |name: &str, more: &[&str]| {
        let path = folder.path().join(name);
        let file = path.display().to_string();
        let arguments = ["debug", "bundle", "--file", &file, "--data-dir", &data_dir];
        cluster
            .run(
                &[
                    &arguments,
                    &["--for", "300ms", "--interval", "100ms"][..],
                    more,
                ]
                .concat(),
            )
            .ok();
        unpacked(&path)
    };
    cluster
        .run(&["table", "create", "cut", "--split-at", MARK])
        .ok();
    // As row, column and value; asked for as a table that isn't there; and locked by a transaction that runs.
    cluster.run(&["put", "cut", MARK, MARK, MARK]).ok();
    cluster.run(&["scan", "cut"]).ok();
    cluster.run(&["get", "cut", MARK, MARK]).ok();
    block_on(async {
        let client = Client::connect(&cluster.master).await.expect("connected");
        let txn = client.begin().await.expect("a transaction");
        for number in 0..20_000 {
            let (row, value) = (format!("{MARK}-{number:06}"), MARK.repeat(80));
            txn.put("cut", row, MARK, value).expect("put");
            txn.ready().await.expect("room");
        }
        // The flush goes on while this waits.
        let since = Instant::now();
        let listed = loop {
            let said = cluster.run(&["txn", "list", "-o", "json"]).ok();
            if said.contains(MARK) {
                break said;
            }
            assert!(since.elapsed() < TIMEOUT, "no locks of a flush: {said}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        // Nothing that our logs say names a cell, but what goes wrong may.
        let log = cluster.data_dir.join("logs/tablet-0.log");
        let mut log = std::fs::File::options()
            .append(true)
            .open(log)
            .expect("a log");
        for line in [
            format!("error: the key {MARK} can't be read"),
            format!(
                "{{\"target\":\"percolator_client\",\"message\":\"x\",\"why\":\"1/{MARK}:c is locked\"}}"
            ),
            format!("{{\"target\":\"another\",\"message\":\"{MARK}\"}}"),
        ] {
            writeln!(log, "{line}").expect("written");
        }
        let files = bundle("plain.tar.gz", &[]);
        for (name, text) in &files {
            assert!(
                !name.contains(MARK) && !text.contains(MARK),
                "{name}: {text}"
            );
        }
        let file = |name: &str| {
            let found = files.get(&format!("percolator-debug/{name}"));
            found.unwrap_or_else(|| panic!("no {name} in {:?}", files.keys()))
        };
        for server in support::SERVERS {
            let times = ["001", "002", "003", "004"].map(|scrape| {
                let page = file(&format!("metrics/{server}-{scrape}.txt"));
                assert!(page.contains("percolator_build_info{"), "{page}");
                page.lines().next().expect("a line").to_owned()
            });
            assert!(
                times[0].starts_with("# at 2") && times.is_sorted(),
                "{times:?}"
            );
            assert!(file("versions.json").contains(server));
            let log = file(&format!("logs/{server}.log"));
            assert!(log.contains("\"target\":\"percolator_"), "{log}");
        }
        let json = |name: &str| -> Value { serde_json::from_str(file(name)).expect("JSON") };
        let txns = json("txn-list.json");
        assert_eq!(
            txns["transactions"].as_array().map(Vec::len),
            Some(1),
            "{txns} {listed}"
        );
        assert_eq!(json("settings.json")["cluster"]["tablets"], 3);
        let tablets = json("tablets.json");
        assert_eq!(
            tablets[0]["tablets_in_order_of_rows"]
                .as_array()
                .map(Vec::len),
            Some(2)
        );
        assert!(json("gc-status.json")["retention_ms"].is_u64());
        assert!(file("status.txt").contains("tablet-2"));

        let with_keys = bundle("keys.tar.gz", &["--with-keys"]);
        let told = |name: &str| with_keys[&format!("percolator-debug/{name}")].contains(MARK);
        assert!(told("tablets.json") && told("txn-list.json") && told("logs/tablet-0.log"));
        let readme = file("README.txt");
        assert!(
            readme.contains("not in it") && !readme.contains("Not in it:"),
            "{readme}"
        );
        assert!(with_keys["percolator-debug/README.txt"].contains("--with-keys was given"));
    });
}

#[test]
fn a_bundle_of_a_cluster_in_one_process_has_metrics_and_settings_and_says_where_logs_are() {
    let cluster = Cluster::threads();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("b.tar.gz");
    let file = path.display().to_string();
    let data_dir = cluster.data_dir.display().to_string();
    let arguments = ["debug", "bundle", "--file", &file, "--data-dir", &data_dir];
    cluster
        .run(&[&arguments[..], &["--for", "0s"]].concat())
        .ok();
    let files = unpacked(&path);
    for name in [
        "settings.json",
        "metrics/master-0-001.txt",
        "metrics/tablet-2-001.txt",
    ] {
        let name = format!("percolator-debug/{name}");
        assert!(files.contains_key(&name), "{name}: {:?}", files.keys());
    }
    let readme = &files["percolator-debug/README.txt"];
    assert!(readme.contains("writes to standard error"), "{readme}");
    let endless = ["--for", "1h", "--interval", "1ms", "--file", "never"];
    cluster
        .run(&[&["debug", "bundle"][..], &endless].concat())
        .refused(2, &["--interval"]);
}

#[test]
fn a_bundle_says_what_is_not_reached_and_replaces_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("b.tar.gz");
    let file = path.display().to_string();
    let arguments = [
        "-c",
        "127.0.0.1:1",
        "debug",
        "bundle",
        "--request-timeout",
        "1s",
        "--file",
        &file,
        "--data-dir",
        "nowhere",
        "--metrics",
        "tablet-0=127.0.0.1:1",
        "--for",
        "1ms",
        "--interval",
        "1ms",
    ];
    support::percolator(&arguments).ok();
    let files = unpacked(&path);
    assert!(
        files["percolator-debug/unreachable.txt"].contains("127.0.0.1:1"),
        "{files:?}"
    );
    assert!(
        files.contains_key("percolator-debug/metrics/tablet-0-002.unreachable.txt"),
        "{files:?}"
    );
    let readme = &files["percolator-debug/README.txt"];
    for words in [
        "the master says: it wasn't reached",
        "some pages of metrics",
        "kubectl get percolatorcluster",
        "kubectl logs -n NAMESPACE",
    ] {
        assert!(readme.contains(words), "{words}: {readme}");
    }
    let before = std::fs::read(&path).expect("the bundle");
    support::percolator(&arguments).refused(1, &["b.tar.gz", "--file"]);
    assert_eq!(std::fs::read(&path).expect("the bundle"), before);
}
