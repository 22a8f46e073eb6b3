//! `check-index --repair`, also while the rows are being changed.

use crate::support;
use std::process::Stdio;

use crate::support::Cluster;
use serde_json::Value;

const CHECK: [&str; 5] = ["check-index", "--table", "t", "--index", "kind=by-kind"];

fn rows(kind: impl Fn(u32) -> u32) -> String {
    (0..2000)
        .map(|i| format!("{{\"id\":\"{i:04}\",\"kind\":\"k{}\"}}\n", kind(i)))
        .collect()
}

fn import(cluster: &Cluster, rows: &str) {
    let import = [
        "import",
        "--table",
        "t",
        "--key",
        "id",
        "--index",
        "kind=by-kind",
        "-q",
        "-",
    ];
    cluster.run_with(&import, rows).ok();
}

fn repair(cluster: &Cluster) -> support::CommandOutput {
    cluster.run(&[&CHECK[..], &["--repair"]].concat())
}

#[test]
fn a_broken_index_is_repaired_and_what_is_no_entry_is_left() {
    let cluster = Cluster::threads();
    import(&cluster, &rows(|i| i % 7));
    let agree = repair(&cluster).ok();
    assert!(
        agree.contains("agree") && !agree.contains("repaired"),
        "{agree}"
    );

    // Puts know of no index: 300 values without their entry, and as many entries of none.
    let script: String = (0..300)
        .map(|i| format!("put t {i:04} kind other\n"))
        .collect();
    let script = format!("begin\n{script}delete t 0300 kind\ncommit\n");
    assert_eq!(cluster.run_with(&["shell"], &script).code(), 0);
    let found = cluster.run(&CHECK);
    assert_eq!(found.code(), 7);
    assert!(
        found.out.contains("300 missing, 301 dangling"),
        "{found:#?}"
    );
    let said = repair(&cluster);
    assert_eq!(said.code(), 0, "{said:#?}");
    assert!(
        said.out
            .contains("added: entry of row 0000, kind = other, in by-kind"),
        "{said:#?}"
    );
    assert!(
        said.out
            .contains("repaired: 300 entries added, 301 removed"),
        "{said:#?}"
    );
    cluster.run(&CHECK).ok();

    cluster
        .run(&["put", "by-kind", "somebody's", "note", "1"])
        .ok();
    let said = repair(&cluster);
    assert_eq!(said.code(), 7, "{said:#?}");
    assert!(said.out.contains("1 left"), "{said:#?}");
    cluster.run(&["get", "by-kind", "somebody's", "note"]).ok();

    // Another field's index is not taken for a broken one.
    let said = cluster.run(&[
        "check-index",
        "--table",
        "t",
        "--index",
        "id=by-kind",
        "--repair",
    ]);
    said.refused(1, &["nothing was repaired", "by-kind"]);
    cluster.run(&["delete", "by-kind", "somebody's"]).ok();
    cluster.run(&CHECK).ok();
}

#[test]
fn repairs_and_changes_at_the_same_time_end_in_agreement() {
    let cluster = Cluster::threads();
    import(&cluster, &rows(|i| i % 7));
    let script: String = (0..1000)
        .map(|i| format!("put t {i:04} kind other\n"))
        .collect();
    let break_it = || {
        cluster
            .run_with(&["shell"], &format!("begin\n{script}commit\n"))
            .code()
    };
    assert_eq!(break_it(), 0);
    let file = cluster.data_dir.join("../rows.jsonl");
    for round in 0..3 {
        std::fs::write(&file, rows(|i| i % (round + 2))).expect("writable");
        let mut loading = cluster
            .command(&[
                "import",
                "--table",
                "t",
                "--key",
                "id",
                "--index",
                "kind=by-kind",
                "-q",
            ])
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it runs");
        while loading.try_wait().expect("a child").is_none() {
            let said = cluster.run(&[&CHECK[..], &["--repair", "-o", "json"]].concat());
            let last = said.out.lines().last().expect("a summary");
            let last: Value = serde_json::from_str(last).expect("JSON");
            assert!(last["left"] == 0 || last["agree"] == true, "{said:#?}");
        }
        repair(&cluster).ok();
        cluster.run(&CHECK).ok();
    }
}
