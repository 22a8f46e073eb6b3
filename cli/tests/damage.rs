//! A store that is not what was written to it: its server stops, and answers with nothing that is wrong.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::support::{Cluster, block_on, wait_for};
use percolator_telemetry::endpoint;

const MANIFEST: &str = "\
apiVersion: percolator.dev/v1alpha1
kind: PercolatorCluster
metadata: {name: damaged}
spec: {tablets: {replicas: 1, storage: {engine: redb}}}
";
const MARK: &str = "a value that is long enough to be found";

fn start(folder: &Path) -> (Cluster, PathBuf) {
    let manifest = folder.join("cluster.yaml");
    std::fs::write(&manifest, MANIFEST).expect("a file");
    let (manifest, data_dir) = (manifest.to_string_lossy(), folder.join("data"));
    let cluster = Cluster::start_in(&data_dir, &["--processes", "-f", &manifest]);
    (cluster, data_dir)
}

#[test]
fn a_damaged_store_stops_its_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let (cluster, data_dir) = start(folder.path());
    let rows: String = (0..2000)
        .map(|n| format!("{{\"id\":\"{n:04}\",\"text\":\"{MARK} {n:04}\"}}\n"))
        .collect();
    let import = ["import", "--table", "t", "--key", "id", "-q", "-"];
    cluster.run_with(&import, &rows).ok();
    assert_eq!(cluster.stop().0, 0);

    let file = data_dir.join("tablet-0/store/data.redb");
    let mut bytes = std::fs::read(&file).expect("the store");
    let places: Vec<usize> = bytes
        .windows(MARK.len())
        .enumerate()
        .filter(|(_, part)| *part == MARK.as_bytes())
        .map(|(at, _)| at)
        .collect();
    assert!(places.len() >= 2000, "{} values", places.len());
    for at in &places {
        bytes[at + 5] ^= 0x20;
    }
    let mut store = std::fs::File::create(&file).expect("the store");
    store.write_all(&bytes).expect("written");
    drop(store);

    let (cluster, data_dir) = start(folder.path());
    // It isn't asked again until the request timeout is over: that doesn't help.
    let said = cluster.run(&["scan", "t", "--request-timeout", "10m"]);
    assert!(!said.err.contains("gave up after 600"), "{said:?}");
    assert_eq!(said.code(), 5, "{said:?}");
    assert_eq!(said.out, "", "nothing of it is what was written");
    assert!(
        said.err.contains("is not what was written to it"),
        "{said:?}"
    );
    let log = wait_for("the server to stop", || {
        let log = std::fs::read_to_string(data_dir.join("logs/tablet-0.log")).ok()?;
        log.contains("error: stopped, because its disk failed")
            .then_some(log)
    });
    assert!(log.contains("is not what was written"), "{log}");

    // Started again by then, it may serve other rows; what happened is still told.
    let said = wait_for("status to tell of it", || {
        let said = cluster.run(&["status"]);
        said.out
            .contains("stopped because its disk failed")
            .then_some(said)
    });
    assert_eq!(said.code(), 7, "{said:?}");
    let said = cluster.run(&["get", "t", "0001", "text", "--request-timeout", "10m"]);
    assert_eq!(said.code(), 5, "{said:?}");
    let shown = cluster.metrics_address("master-0");
    let counted = wait_for("the master to count it", || {
        let said = block_on(endpoint::get(&shown, "/metrics")).ok()?;
        let count = "percolator_master_disk_failures_total ";
        said.body
            .lines()
            .find_map(|line| line.strip_prefix(count)?.parse::<u64>().ok())
            .filter(|counted| *counted > 0)
    });
    assert!(counted < 100, "{counted}");
    assert_eq!(cluster.stop().0, 0);
}
