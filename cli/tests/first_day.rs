//! What somebody meets who uses it for the first time.

mod support;

use std::process::Command;

use serde_json::Value;
use support::{Cluster, PERCOLATOR, percolator};

#[test]
fn values_go_in_and_out_byte_for_byte() {
    let cluster = Cluster::threads();
    cluster.run(&["table", "create", "t"]).ok();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("photo");
    let bytes = b"\xff\xd8 C:\\temp\n";
    std::fs::write(&file, bytes).expect("written");
    let file = file.to_str().expect("text");
    cluster.run(&["put", "t", "a", "c", "--file", file]).ok();
    let raw = Command::new(PERCOLATOR)
        .args(["-c", &cluster.master, "get", "t", "a", "c", "--raw"])
        .output()
        .expect("it runs");
    assert_eq!(raw.stdout, bytes);
    cluster
        .run_with(&["put", "t", r"C:\\x", "c", "--file", "-"], r"C:\temp")
        .ok();
    let scanned = cluster.run(&["scan", "t", "-o", "json"]).ok();
    let scanned: Vec<Value> = scanned
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(
        scanned,
        [
            serde_json::json!({"row": r"C:\x", "column": "c", "value": r"C:\temp"}),
            serde_json::json!({"row": "a", "column": "c", "value_base64": "/9ggQzpcdGVtcAo="}),
        ]
    );
    for wrong in [
        &["get", "t", "a", "c", "d", "--raw"][..],
        &["get", "t", "a", "c", "--raw", "-o", "json"],
        &["put", "t", "a", "c", "1", "--file", file],
        &["put", "t", "a", "c", "--file", "/nonexistent"],
        &["put", "t", "a", "c"],
    ] {
        cluster.run(wrong).refused(2, &[]);
    }
}

/// What can be found wrong without a cluster is.
#[test]
fn files_are_looked_at_before_the_network() {
    let nowhere = |arguments: &[&str]| {
        let began = std::time::Instant::now();
        let said = percolator(&[&["-c", "127.0.0.1:1"], arguments].concat());
        assert!(!said.err.contains("waiting"), "{said:?}");
        assert!(began.elapsed().as_secs() < 30, "{said:?}");
        said
    };
    let import = ["import", "--table", "t", "--key", "id"];
    nowhere(&[&import[..], &["/nonexistent.csv"]].concat())
        .refused(1, &["cannot read /nonexistent.csv"]);
    let folder = tempfile::tempdir().expect("a folder");
    let rows = folder.path().join("rows.txt");
    std::fs::write(&rows, "").expect("written");
    let rows = rows.to_str().expect("text");
    nowhere(&[&import[..], &[rows]].concat()).refused(2, &["--format"]);
    nowhere(&["up", "-f", "/nonexistent.yaml"])
        .refused(2, &["cannot read the manifest /nonexistent.yaml"]);
}

/// `up` was killed before its first cluster began: what is left holds nothing.
#[test]
fn a_folder_in_which_no_cluster_has_begun_is_taken() {
    for left in [
        &["gc-master-0"][..],
        &["gc-master-0", "tablet-0"],
        &["tablet-1", "tso-0"],
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        for server in left {
            let server = folder.path().join(server);
            std::fs::create_dir(&server).expect("a folder");
            std::fs::write(server.join("LOCK"), "").expect("written");
        }
        let folder = folder.path().to_str().expect("text");
        let up = [
            "up",
            "--port",
            "0",
            "--data-dir",
            folder,
            "-q",
            "--",
            "true",
        ];
        percolator(&up).ok();
        percolator(&up).ok();
        // One that has begun is not taken for new, whatever is missing.
        std::fs::remove_file(format!("{folder}/CLUSTER")).expect("removed");
        let master = format!("{folder}/gc-master-0");
        std::fs::remove_dir_all(&master).expect("removed");
        percolator(&up).refused(1, &["gc-master-0"]);
        assert!(!std::path::Path::new(&master).exists());
    }
}
