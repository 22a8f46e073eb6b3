//! Whatever a person or a peer sends gets a clear answer: what is wrong, where, and what to do.

use crate::support;
use std::net::TcpListener;
use std::path::Path;

use crate::support::server::free_addresses;
use crate::support::{Cluster, CommandOutput, percolator, percolator_with, signal, wait_for};

fn up_with(manifest: &str) -> CommandOutput {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    percolator_with(
        &["up", "-f", "-", "--data-dir", data.to_str().expect("text")],
        manifest,
    )
}

fn manifest(spec: &str) -> String {
    format!(
        "apiVersion: percolator.dev/v1alpha1\nkind: PercolatorCluster\nmetadata:\n  name: demo\nspec:\n{spec}"
    )
}

#[test]
fn a_manifest_with_a_wrong_field_type_or_value() {
    up_with(&manifest("  tablets:\n    replcas: 3\n")).refused(
        2,
        &[
            "spec.tablets.replcas",
            "unknown field",
            "replicas",
            "line 7",
        ],
    );
    up_with(&manifest("  tablets:\n    replicas: three\n"))
        .refused(2, &["spec.tablets.replicas", "line 7"]);
    up_with(&manifest("  tablets:\n    replicas: 0\n")).refused(2, &["spec.tablets.replicas"]);
    up_with(&manifest(
        "  tablets:\n    storage:\n      engine: rocksdb\n",
    ))
    .refused(2, &["rocksdb", "redb", "sled", "memory"]);
    // Everything at once.
    up_with(&manifest(
        "  oracle: {window: 3}\n  tablets:\n    replicas: three\n    storage: {engin: sled, size: 1}\n",
    ))
    .refused(
        2,
        &[
            "line 6: spec.oracle.window",
            "line 8: spec.tablets.replicas",
            "line 9: spec.tablets.storage.engin",
            "line 9: spec.tablets.storage.size",
        ],
    );
    up_with("kind: Pod\napiVersion: v1\nmetadata: {name: x}\n").refused(2, &["PercolatorCluster"]);
    up_with("").refused(2, &["empty"]);
    percolator(&["up", "-f", "/no/such/file.yaml"]).refused(2, &["/no/such/file.yaml"]);
}

/// Nothing is left of a cluster that could not be: neither its folder nor one above it.
#[test]
fn a_port_in_use() {
    // The master's, and the one of a tablet server behind it.
    let (first, taken) = loop {
        let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = taken.local_addr().expect("an address").port();
        let before: Vec<_> = (port - 3..port)
            .map_while(|port| TcpListener::bind(("127.0.0.1", port)).ok())
            .collect();
        if before.len() == 3 {
            break (port - 3, taken);
        }
    };
    let taken = taken.local_addr().expect("an address").port();
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("new/data").display().to_string();
    for (port, mode) in [
        (taken, &[][..]),
        (taken, &["--processes"][..]),
        (first, &[][..]),
        (first, &["--processes"][..]),
    ] {
        let port = port.to_string();
        let arguments = [&["up", "--port", &port, "--data-dir", &data], mode].concat();
        percolator(&arguments).refused(1, &["in use", &taken.to_string(), "another port"]);
        assert!(!folder.path().join("new").exists());
    }
    percolator(&["up", "--port", "65534", "--data-dir", &data]).refused(1, &["not enough ports"]);
    assert!(!folder.path().join("new").exists());
}

/// A second start in the folder of a cluster that runs changes nothing of that.
#[test]
fn a_data_folder_whose_cluster_runs() {
    let cluster = support::Cluster::processes();
    let data = cluster.data_dir.display().to_string();
    let file = |name: &str| std::fs::read_to_string(cluster.data_dir.join(name)).expect(name);
    let before = ["manifest.json", "log-level", "servers.json"].map(file);
    let manifest = cluster.data_dir.join("../other.yaml");
    let text = "apiVersion: percolator.dev/v1alpha1\nkind: PercolatorCluster\nmetadata: {name: local}\n\
                spec: {gc: {retention: 1s}, log: {level: debug}}\n";
    std::fs::write(&manifest, text).expect("writable");
    let manifest = manifest.display().to_string();
    for mode in [&[][..], &["--processes"][..]] {
        let up = ["up", "--port", "0", "-f", &manifest, "--data-dir", &data];
        percolator(&[&up[..], mode].concat()).refused(1, &["in use", &data]);
    }
    assert_eq!(
        ["manifest.json", "log-level", "servers.json"].map(file),
        before
    );
}

/// The programs of the servers lie beside the command, or not: then nothing is made, so that the next start is none
/// in a folder of other things.
#[test]
fn a_command_without_the_servers_programs_beside_it() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let alone = folder.path().join("percolator");
    // No copy, which another test's new process may hold open for writing for a moment.
    std::fs::hard_link(support::PERCOLATOR, &alone).expect("a link");
    let data = folder.path().join("data");
    let mut up = std::process::Command::new(&alone);
    up.args(["up", "--port", "0", "--processes", "--data-dir"])
        .arg(&data);
    let said = support::output_of(up);
    said.refused(1, &["percolator-master", "cargo build --release"]);
    assert!(!data.exists());
}

#[test]
fn a_data_folder_that_is_not_ours() {
    // A file where the folder should be: also root can't make a folder there.
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    std::fs::write(&file, "not a folder").expect("writable");
    percolator(&["up", "--data-dir", &file.join("data").display().to_string()])
        .refused(1, &["--data-dir", "file/data"]);
    let other = folder.path().join("other");
    std::fs::create_dir(&other).expect("writable");
    std::fs::write(other.join("thesis.txt"), "years of work").expect("writable");
    percolator(&["up", "--data-dir", &other.display().to_string()])
        .refused(1, &["holds other things", "--data-dir"]);
}

#[test]
fn a_data_folder_in_use_or_of_another_cluster() {
    let folder = tempfile::tempdir().expect("a folder");
    let (one, two) = (folder.path().join("one"), folder.path().join("two"));
    let first = Cluster::start_in(&one, &[]);
    percolator(&[
        "up",
        "--port",
        "0",
        "--data-dir",
        &one.display().to_string(),
    ])
    .refused(1, &["in use"]);
    first.stop();
    Cluster::start_in(&two, &[]).stop();
    // A tablet server's folder of the second cluster in the first one's place.
    std::fs::remove_dir_all(one.join("tablet-1")).expect("there");
    copy(&two.join("tablet-1"), &one.join("tablet-1"));
    percolator(&[
        "up",
        "--port",
        "0",
        "--data-dir",
        &one.display().to_string(),
    ])
    .refused(1, &["tablet-1", "belongs to"]);
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("writable");
    for entry in std::fs::read_dir(from)
        .expect("readable")
        .map(|entry| entry.expect("readable"))
    {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            std::fs::copy(from, to).expect("writable");
        }
    }
}

#[test]
fn another_engine_and_fewer_servers_than_the_folder_has() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    Cluster::start_in(&data, &[]).stop();
    let data = data.display().to_string();
    let arguments = ["up", "-f", "-", "--port", "0", "--data-dir", &data];
    percolator_with(&arguments, &manifest("  tablets:\n    replicas: 2\n")).refused(
        1,
        &["3 tablet servers", "asks for 2", "spec.tablets.replicas"],
    );
    let sled = manifest("  tablets:\n    storage:\n      engine: sled\n");
    percolator_with(&arguments, &sled).refused(1, &["redb", "sled"]);
    let memory = manifest("  tablets:\n    storage:\n      engine: memory\n");
    percolator_with(&arguments, &memory).refused(1, &["redb", "memory", "--data-dir"]);
    // Rows in memory are gone, and the master still knows their tables.
    let other = folder.path().join("other").display().to_string();
    let arguments = [
        "up",
        "-f",
        "-",
        "--port",
        "0",
        "--data-dir",
        &other,
        "--",
        "true",
    ];
    percolator_with(&arguments, &memory).ok();
    percolator_with(&arguments, &memory).refused(1, &["memory", "--ephemeral"]);
}

#[test]
fn a_manifest_of_another_cluster_than_the_folders() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data").display().to_string();
    let up = |name: &str| {
        let manifest = format!(
            "apiVersion: percolator.dev/v1alpha1\nkind: PercolatorCluster\nmetadata:\n  name: {name}\n"
        );
        let arguments = [
            "up",
            "-f",
            "-",
            "--port",
            "0",
            "--data-dir",
            &data,
            "--",
            "true",
        ];
        percolator_with(&arguments, &manifest)
    };
    up("one").ok();
    up("one").ok();
    up("two").refused(1, &["is called one", "two", "--data-dir", "metadata.name"]);
    percolator(&["up", "--port", "0", "--data-dir", &data, "--", "true"]).ok();
}

#[test]
fn a_lost_folder_of_any_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    Cluster::start_in(&data, &[]).stop();
    for server in support::SERVERS {
        let away = folder.path().join("away");
        std::fs::rename(data.join(server), &away).expect("there");
        let data_dir = data.display().to_string();
        percolator(&["up", "--port", "0", "--data-dir", &data_dir])
            .refused(1, &[server, "missing", "bring it back"]);
        std::fs::rename(&away, data.join(server)).expect("away");
    }
    for number in 0..3 {
        std::fs::remove_dir_all(data.join(format!("tablet-{number}"))).expect("there");
    }
    percolator(&[
        "up",
        "--port",
        "0",
        "--data-dir",
        &data.display().to_string(),
    ])
    .refused(1, &["tablet-0", "missing", "bring it back"]);
}

#[test]
fn malformed_rows_are_named_by_line() {
    let cluster = Cluster::threads();
    let import = |rows: &str, more: &[&str]| {
        let base = ["import", "--table", "rows", "--key", "id"];
        cluster.run_with(&[&base[..], more, &["-"]].concat(), rows)
    };
    import("{\"id\":\"1\"}\n{\"id\":\n", &[]).refused(1, &["standard input:2"]);
    import("{\"id\":\"1\"}\n[1]\n", &[]).refused(1, &["standard input:2", "object"]);
    import("{\"id\":\"1\"}\n\n{\"name\":\"x\"}\n", &[]).refused(1, &["standard input:3", "id"]);
    import("{\"id\":\"\"}\n", &[]).refused(1, &["standard input:1"]);
    import("id,name\n1,a\n2,b,c\n", &["--format", "csv"]).refused(1, &["standard input:3"]);
    import("id,id\n1,a\n", &["--format", "csv"]).refused(1, &["id"]);
    let long = format!("{{\"id\":\"{}\"}}\n", "k".repeat(5000));
    import(&long, &[]).refused(1, &["standard input:1", "4096"]);
    // The second one would take the first one's place.
    for (one, other) in [("7", "\"7\""), ("\"true\"", "true")] {
        let rows = format!("{{\"id\":{one}}}\n{{\"id\":\"x\"}}\n{{\"id\":{other}}}\n");
        import(&rows, &[]).refused(1, &["standard input:3", "in line 1", "one row"]);
    }
}

/// As within one file: 1 doesn't take the place of "1", which another file, or the first part of this one, had.
#[test]
fn keys_of_another_kind_in_an_earlier_file_are_not_replaced() {
    let cluster = Cluster::threads();
    let import = |rows: &str, more: &[&str]| {
        let base = ["import", "--table", "rows", "--key", "id", "-o", "json"];
        cluster.run_with(&[&base[..], more, &["-"]].concat(), rows)
    };
    import("{\"id\":\"1\",\"n\":1}\n{\"id\":\"x\",\"n\":1}\n", &[]).ok();
    let second = "{\"id\":2,\"n\":2}\n{\"id\":1,\"n\":2}\n{\"id\":\"x\",\"n\":2}\n";
    let words = [
        "line 2",
        "a number or a boolean",
        "the row 1 that is there",
        "delete the row",
    ];
    import(second, &["--concurrency", "1"]).refused(1, &words);
    let said = import(second, &["--skip-bad"]);
    said.refused(1, &["standard input:2: ", "one row"]);
    assert!(
        said.out.contains("\"rows\":2") && said.out.contains("\"skipped\":1"),
        "{said:?}"
    );
    assert_eq!(cluster.run(&["get", "rows", "1", "n"]).ok(), "1\n");
    assert_eq!(cluster.run(&["get", "rows", "x", "n"]).ok(), "2\n");
    // Anyone who means it, can.
    cluster.run(&["delete", "rows", "1"]).ok();
    import(second, &[]).ok();
    assert_eq!(cluster.run(&["get", "rows", "1", "n"]).ok(), "2\n");
}

#[test]
fn a_file_without_a_good_row_leaves_no_table_behind() {
    let cluster = Cluster::threads();
    let import = |rows: &str, more: &[&str]| {
        let base = ["import", "--table", "rows", "--key", "id", "--index"];
        cluster.run_with(&[&base[..], &["n=by-n"], more, &["-"]].concat(), rows)
    };
    let csv = ["--format", "csv"];
    import("[1]\n{\"id\":1}\n", &[]).refused(1, &["standard input:1"]);
    import("{\"id\":1,\"x\":nope}\n", &[]).refused(1, &["true, false or null"]);
    let bad = "{\n".repeat(200);
    import(&bad, &["--skip-bad"]).refused(1, &["standard input:20", "only counted"]);
    import("", &csv).refused(1, &["is empty"]);
    let words = ["has no \"id\"", "begins with a header row", "as in id,n"];
    import("name,n\n1,2\n", &csv).refused(1, &words);
    for (rows, more) in [("", &[][..]), ("\n", &[]), ("id,n\n", &csv)] {
        let said = import(rows, more);
        assert!(
            said.err.contains("has no rows; no table is made"),
            "{said:?}"
        );
        said.ok();
    }
    assert_eq!(cluster.run(&["table", "list"]).ok(), "");
    import("{\n{\"id\":1,\"n\":2}\n", &["--skip-bad"]).refused(1, &["standard input:1"]);
    assert_eq!(cluster.run(&["table", "list"]).ok().lines().count(), 3);
    // An index of a field that no row has is a slip of somebody's.
    let said = import("{\"id\":1,\"m\":2}\n", &[]);
    assert!(said.err.contains("has the field n,"), "{said:?}");
    said.ok();
}

#[test]
fn a_file_that_is_not_there_is_not_taken_for_one_of_a_wrong_format() {
    let cluster = Cluster::threads();
    let import = ["import", "--table", "rows", "--key", "id"];
    for (file, why) in [("/no/such/file", "No such file"), ("/", "is a directory")] {
        let said = cluster.run(&[&import[..], &[file]].concat());
        said.refused(1, &[&format!("cannot read {file}"), why]);
    }
}

#[test]
fn a_bank_of_another_size_is_left_alone() {
    let cluster = Cluster::threads();
    let bank = |accounts: &str| {
        let bank = ["bank", "--clients", "2", "--duration", "100ms"];
        cluster.run(&[&bank[..], &["--accounts", accounts]].concat())
    };
    let made = bank("2");
    assert!(
        made.err.contains("made 2 accounts in table bank"),
        "{made:?}"
    );
    made.ok();
    for other in ["20", "2000"] {
        let accounts = format!("the {other} accounts");
        bank(other).refused(1, &[&accounts, "it has 2 cells"]);
    }
    assert_eq!(cluster.run(&["scan", "bank"]).ok().lines().count(), 2);
    let again = bank("2");
    assert!(
        again.err.contains("has its 2 accounts already"),
        "{again:?}"
    );
    again.ok();
    // Neither the balances of somebody who isn't a bank, nor other columns.
    for (table, column, value) in [("words", "balance", "much"), ("other", "name", "1")] {
        cluster.run(&["table", "create", table]).ok();
        cluster.run(&["put", table, "bob", column, value]).ok();
        let cell = format!("bob:{column}");
        cluster
            .run(&["bank", "--table", table, "--duration", "100ms"])
            .refused(
                1,
                &[&format!("table {table} is not a bank's"), &cell, "--table"],
            );
    }
}

#[test]
fn a_cluster_that_is_not_there() {
    let [address] = free_addresses().map(|address| address.to_string());
    percolator(&["-c", &address, "get", "t", "r", "c"])
        .refused(5, &[&address, "refused", "percolator up"]);
    percolator(&["-c", "not an address", "get", "t", "r", "c"]).refused(2, &["HOST:PORT"]);
}

#[test]
fn everything_is_there_after_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    for engine in ["redb", "sled"] {
        let data = data.join(engine);
        let file = folder.path().join(format!("{engine}.yaml"));
        let spec = format!("  tablets:\n    storage:\n      engine: {engine}\n");
        std::fs::write(&file, manifest(&spec)).expect("writable");
        let file = file.display().to_string();
        let cluster = Cluster::start_in(&data, &["-f", &file]);
        cluster
            .run(&["table", "create", "t", "--split-at", "m"])
            .ok();
        cluster.run(&["put", "t", "a", "c", "one"]).ok();
        cluster.run(&["put", "t", "z\\x00", "c", "two"]).ok();
        let (code, said) = cluster.stop();
        assert_eq!(code, 0, "{said}");
        let cluster = Cluster::start_in(&data, &["-f", &file, "--processes"]);
        let cells = cluster.run(&["scan", "t"]).ok();
        assert_eq!(cells, "a\tc\tone\nz\\x00\tc\ttwo\n");
        let (code, said) = cluster.stop();
        assert_eq!(code, 0, "{said}");
    }
}

#[test]
fn up_runs_a_command_and_ends_with_its_status() {
    // Standard output is the command's alone, also in JSON.
    let json = ["up", "--ephemeral", "-o", "json", "--", "echo", "mine"];
    let said = percolator(&json);
    let running: Vec<&str> = said
        .err
        .lines()
        .filter(|line| line.starts_with('['))
        .collect();
    assert!(
        running.len() == 1 && running[0].contains("master-0"),
        "{said:#?}"
    );
    assert_eq!(said.ok(), "mine\n");
    let up = ["up", "--ephemeral", "-q", "--"];
    let said = percolator(&[&up[..], &["percolator", "table", "create", "t"]].concat());
    assert_eq!(said.code(), 0, "{said:#?}");
    let said = percolator(&[&up[..], &["sh", "-c", "echo $PERCOLATOR_CLUSTER; exit 7"]].concat());
    assert_eq!(said.code(), 7, "{said:#?}");
    assert!(said.out.contains("127.0.0.1:"), "{said:#?}");
    percolator(&[&up[..], &["no-such-program"]].concat()).refused(127, &["no-such-program"]);
    percolator(&[&up[..], &["/etc/passwd"]].concat()).refused(126, &["/etc/passwd"]);
}

/// On a terminal the command gets Ctrl-C too; where only `up` is told, it tells the command.
#[test]
fn up_that_is_told_to_stop_lets_its_command_end_and_ends_with_its_status() {
    let folder = tempfile::tempdir().expect("a folder");
    for (script, code) in [
        (
            "trap 'echo told; exit 7' TERM; echo runs; while :; do sleep 0.05; done",
            7,
        ),
        ("echo runs; exec sleep 100", 128 + 15),
    ] {
        let out = folder.path().join("out");
        let mut up = std::process::Command::new(support::PERCOLATOR)
            .args(["up", "--ephemeral", "--port", "0", "--", "sh", "-c", script])
            .stdout(std::fs::File::create(&out).expect("a file"))
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("the command runs");
        let said = || std::fs::read_to_string(&out).unwrap_or_default();
        wait_for("the command", || said().contains("runs").then_some(()));
        signal(up.id(), "INT");
        let status = up.wait().expect("it ends");
        assert_eq!(status.code(), Some(code), "{}", said());
        assert_eq!(said().contains("told"), code == 7);
    }
}

#[test]
fn a_cluster_without_one_of_its_folders() {
    let folder = tempfile::tempdir().expect("a folder");
    Cluster::start_in(folder.path(), &[]).stop();
    for server in ["master-0", "tso-0", "tablet-1"] {
        let (there, away) = (folder.path().join(server), folder.path().join("away"));
        std::fs::rename(&there, &away).expect("moved");
        let data_dir = folder.path().to_str().expect("a path of text");
        percolator(&["up", "--port", "0", "--data-dir", data_dir]).refused(
            1,
            &[
                &format!("the folder of {server} is missing"),
                "bring it back",
            ],
        );
        std::fs::rename(&away, &there).expect("moved back");
    }
    Cluster::start_in(folder.path(), &[]).stop();
}
