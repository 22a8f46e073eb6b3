//! What somebody meets who uses it for the first time.

use crate::support;
use std::io::Write as _;
use std::process::Command;

use crate::support::{Cluster, PERCOLATOR, output_of, percolator, wait_for};
use serde_json::Value;

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
        .refused(2, &["cannot read the manifest from /nonexistent.yaml"]);
    for wrong in [
        &["put", "t", "a", "c"][..],
        &["get", "t", "a", "b", "c", "--raw"],
        &["export", "--table", "t", "--columns", "a"],
        &["check-index", "--table", "t", "--index", "a=t"],
    ] {
        nowhere(wrong).refused(2, &[]);
    }
}

/// What no server has made isn't taken for what is left of one.
#[test]
fn a_folder_with_something_of_somebody_else_is_left_alone() {
    for (name, said) in [
        ("letter.txt", "holds letter.txt"),
        ("store", "has a store, and no FORMAT"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let server = folder.path().join("tablet-0");
        std::fs::create_dir(&server).expect("a folder");
        std::fs::write(server.join(name), "x").expect("written");
        let path = folder.path().to_str().expect("text");
        percolator(&["up", "--port", "0", "--data-dir", path, "-q", "--", "true"])
            .refused(1, &[said, "nothing is removed"]);
        let kept = std::fs::read(server.join(name)).expect("it is still there");
        assert_eq!(kept, b"x");
    }
}

/// Each start goes on from the last one's limit; together they aren't a clock that was set back.
#[test]
fn quick_restarts_are_no_clock_that_was_set_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("text");
    let up = ["up", "--port", "0", "--data-dir", path, "-q", "--"];
    for _ in 0..4 {
        percolator(&[&up[..], &["true"]].concat()).ok();
    }
    let said = percolator(&[&up[..], &[support::PERCOLATOR, "status"]].concat());
    assert!(!said.err.contains("set back"), "{said:?}");
    assert!(!said.out.contains("set back"), "{said:?}");
}

/// One index of an import has all of its entries; the other's field is spelt wrong.
#[test]
fn a_field_that_no_row_has_is_told_of_beside_one_whose_entries_changed() {
    let cluster = Cluster::threads();
    let import = |indexes: &[&str], rows: &str| {
        let import = ["import", "--table", "t", "--key", "id", "-"];
        cluster.run_with(&[&import[..], indexes].concat(), rows)
    };
    let kind = ["--index", "kind=by-kind"];
    import(&kind, "{\"id\":\"1\",\"kind\":\"a\"}\n").ok();
    let both = ["--index", "kind=by-kind", "--index", "knid=by-knid"];
    import(&both, "{\"id\":\"1\",\"kind\":\"b\"}\n").refused(1, &["the field knid"]);
}

/// `up` was killed before its first cluster began: what is left holds nothing.
#[test]
fn a_folder_in_which_no_cluster_has_begun_is_taken() {
    for left in [
        &["master-0"][..],
        &["master-0", "tablet-0"],
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
        let master = format!("{folder}/master-0");
        std::fs::remove_dir_all(&master).expect("removed");
        percolator(&up).refused(1, &["master-0"]);
        assert!(!std::path::Path::new(&master).exists());
    }
}

/// The master knows where metrics are: nothing is left out, wherever the command is started.
#[test]
fn status_and_top_see_everything_from_any_folder() {
    for cluster in [Cluster::threads(), Cluster::processes()] {
        let elsewhere = tempfile::tempdir().expect("a folder");
        let run = |arguments: &[&str]| {
            let mut command = cluster.command(arguments);
            command
                .current_dir(&elsewhere)
                .env_remove("PERCOLATOR_DATA_DIR");
            let said: Value = serde_json::from_str(&output_of(command).ok()).expect("JSON");
            said
        };
        let status = run(&["status", "-o", "json"]);
        assert_eq!(status["not_looked_at"], serde_json::json!([]), "{status}");
        let top = run(&["top", "--once", "-o", "json", "--interval", "10ms"]);
        assert_eq!(top["metrics_not_reached"], serde_json::json!({}), "{top}");
        let load_of = top["load_of"].as_object().expect("loads");
        let names: Vec<&String> = load_of.keys().collect();
        assert_eq!(names, ["proxy-0", "tablet-0", "tablet-1", "tablet-2"]);
    }
}

/// Where some of the manifest's tablet servers haven't joined yet, the cluster isn't well, and a first table isn't made on the
/// others alone.
#[test]
fn servers_that_have_not_joined_are_missed() {
    let cluster = Cluster::processes();
    let manifest = cluster.data_dir.join("manifest.json");
    let as_it_was = std::fs::read(&manifest).expect("it's there");
    std::fs::write(&manifest, r#"{"tabletServers": 4}"#).expect("written");
    let kinds = || {
        let status = cluster.run(&["status", "-o", "json"]);
        let status: Value = serde_json::from_str(&status.out).expect("JSON");
        let problems = status["problems"].as_array().cloned();
        problems
            .into_iter()
            .flatten()
            .map(|problem| problem["kind"].to_string())
            .collect::<Vec<_>>()
    };
    wait_for("the missing server in the status", || {
        kinds()
            .contains(&"\"servers-missing\"".to_owned())
            .then_some(())
    });
    let status = cluster.run(&["status"]);
    assert_eq!(status.code(), 7, "{status:?}");
    assert!(
        status.out.contains("3 of the 4 tablet servers"),
        "{status:?}"
    );
    cluster
        .run(&["table", "create", "t", "--request-timeout", "2s"])
        .refused(5, &["3 of 4 have joined"]);
    std::fs::write(&manifest, as_it_was).expect("written");
    cluster.run(&["table", "create", "t"]).ok();
    wait_for("a healthy cluster", || kinds().is_empty().then_some(()));
}

/// A file as other programs write it, and what is read of it by an index.
#[test]
fn a_compressed_array_is_imported_and_read_by_its_index() {
    let cluster = Cluster::threads();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("animals.json.gz");
    let written = std::fs::File::create(&file).expect("a file");
    let mut written = flate2::write::GzEncoder::new(written, flate2::Compression::fast());
    let animals = r#"[
        {"name": "ant", "kind": "insect", "legs": 6},
        {"name": "cat", "kind": "mammal", "legs": 4},
        {"name": "bee", "kind": "insect", "legs": 6}
    ]"#;
    written.write_all(animals.as_bytes()).expect("written");
    written.finish().expect("written");
    let import = ["import", "--table", "animals", "--key", "name"];
    let file = file.to_str().expect("text");
    let with = |index: &str| cluster.run(&[&import[..], &["--index", index, file]].concat());
    with("kind=by-kind").ok();
    // A misspelt field is no success.
    with("knid=by-knid").refused(1, &["knid"]);
    let insects = cluster
        .run(&["scan", "animals", "--index", "by-kind=insect"])
        .ok();
    let rows: Vec<&str> = insects
        .lines()
        .filter_map(|line| line.split('\t').next())
        .collect();
    assert_eq!(rows, ["ant", "ant", "ant", "bee", "bee", "bee"]);
    let scan = |arguments: &[&str]| {
        cluster
            .run(&[&["scan", "animals"], arguments].concat())
            .ok()
    };
    let last = scan(&["--index", "by-kind=insect", "--reverse", "--limit", "1"]);
    assert_eq!(last.lines().count(), 3, "{last}");
    assert!(last.starts_with("bee\t"), "{last}");
    assert_eq!(scan(&["--index", "by-kind=fish"]), "");
    assert_eq!(scan(&["--limit", "2"]).lines().count(), 6);
    cluster
        .run(&["scan", "nosuch", "--index", "by-kind=fish"])
        .refused(6, &["nosuch"]);
    cluster
        .run(&["scan", "animals", "--index", "animals=a"])
        .ok();
}

#[test]
fn rows_are_exported_with_their_names() {
    let cluster = Cluster::threads();
    cluster.run(&["table", "create", "t"]).ok();
    cluster.run(&["put", "t", "bob", "age", "7"]).ok();
    cluster.run(&["put", "t", "joe", "age", "8"]).ok();
    let lines = cluster.run(&["export", "--table", "t"]).ok();
    assert_eq!(
        lines,
        "{\"row\":\"bob\",\"age\":7}\n{\"row\":\"joe\",\"age\":8}\n"
    );
    let csv = cluster
        .run(&["export", "--table", "t", "--format", "csv"])
        .ok();
    assert_eq!(csv, "row,age\nbob,7\njoe,8\n");
    let import = ["import", "--table", "t2", "--key", "row", "-"];
    cluster.run_with(&import, &lines).ok();
    assert_eq!(cluster.run(&["get", "t2", "joe", "age"]).ok(), "8\n");
}

/// What can't be undone is asked about, or said twice.
#[test]
fn a_table_is_deleted_by_who_means_it() {
    let cluster = Cluster::threads();
    cluster.run(&["table", "create", "t"]).ok();
    cluster
        .run_with(&["table", "delete", "t"], "y\n")
        .refused(2, &["add --yes"]);
    assert!(cluster.run(&["table", "list"]).ok().contains("t "));
    cluster.run(&["table", "delete", "t", "--yes"]).ok();
}

/// What is wrong, and of what.
#[test]
fn results_that_can_not_be_written_and_times_before_all_clusters_are_named() {
    let cluster = Cluster::threads();
    cluster.run(&["table", "create", "t"]).ok();
    cluster.run(&["put", "t", "a", "c", "1"]).ok();
    let mut get = cluster.command(&["get", "t", "a", "c"]);
    get.stdout(std::fs::File::create("/dev/full").expect("opened"));
    let said = get.output().expect("it runs");
    assert_eq!(said.status.code(), Some(1));
    let error = String::from_utf8_lossy(&said.stderr);
    assert!(error.contains("cannot write the results"), "{error}");
    cluster
        .run(&["get", "t", "a", "c", "--at", "1"])
        .refused(2, &["no oracle has handed it out"]);
}
