//! A master that has lost its state, while money and tables are there: nothing is begun over them, and a person has it rebuilt.

mod support;

use std::time::Duration;

use serde_json::Value;
use support::{Cluster, wait_for};

const BANK: [&str; 7] = ["bank", "--accounts", "100", "--clients", "4", "-o", "json"];
const SERVERS: [&str; 3] = ["tablet-0", "tablet-1", "tablet-2"];

fn json(cluster: &Cluster, arguments: &[&str]) -> Value {
    let said = cluster.run(arguments).ok();
    serde_json::from_str(&said).expect("JSON")
}

fn barrier(cluster: &Cluster) -> u64 {
    let status = json(cluster, &["gc", "status", "-o", "json"]);
    let text = status["barrier"].as_str().expect("a timestamp");
    text.parse().expect("a number")
}

/// The names and ids of the tables.
fn tables(cluster: &Cluster) -> Vec<(String, u64)> {
    let list = cluster.run(&["table", "list", "-o", "json"]).ok();
    let table = |line: &str| {
        let table: Value = serde_json::from_str(line).expect("JSON");
        let name = table["name"].as_str().expect("a name").to_owned();
        (name, table["id"].as_u64().expect("an id"))
    };
    list.lines().map(table).collect()
}

fn log(cluster: &Cluster, server: &str) -> String {
    let file = cluster.data_dir.join("logs").join(format!("{server}.log"));
    std::fs::read_to_string(file).unwrap_or_default()
}

fn rebuild<'a>(servers: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    let named = servers.iter().flat_map(|server| ["--server", *server]);
    let command = ["master", "rebuild"].into_iter().chain(named);
    command.chain(more.iter().copied()).collect()
}

/// The master's folder goes, and it and the servers say what is wrong.
fn lose_folder(cluster: &Cluster) {
    let folder = cluster.data_dir.join("gc-master-0");
    std::fs::remove_dir_all(folder).expect("removed");
    cluster.kill("gc-master-0");
    for server in SERVERS {
        wait_for(&format!("the word of {server}"), || {
            let says = "was lost. Nothing is begun over it";
            let log = log(cluster, server);
            (log.contains(says) && log.contains("percolator master rebuild")).then_some(())
        });
    }
    cluster.run(&["table", "create", "new"]).refused(
        5,
        &["this master has no state", "percolator master rebuild"],
    );
}

#[test]
fn a_master_that_loses_its_folder_is_rebuilt_by_a_person() {
    let cluster = Cluster::processes();
    cluster.run(&["gc", "set", "--retention", "1s"]).ok();
    cluster.run(&["table", "create", "gone"]).ok();
    cluster.run(&["table", "delete", "gone", "--yes"]).ok();
    cluster
        .run(&["table", "create", "notes", "--split-at", "m"])
        .ok();
    cluster.run(&["put", "notes", "zoe", "text", "kept"]).ok();
    let ledger = cluster.data_dir.join("../ledger.jsonl");
    let ledger = ledger.to_str().expect("text");
    let moves = ["--duration", "1s", "--ledger", ledger];
    cluster.run(&[&BANK[..], &moves].concat()).ok();
    // The newest points are lost if no tablet server has them.
    wait_for("a safe point at every tablet server", || {
        let status = json(&cluster, &["gc", "status", "-o", "json"]);
        let servers = status["servers"].as_array()?;
        let has_one = |server: &Value| server["safe_point"].as_str().is_some_and(|it| it != "0");
        servers.iter().all(has_one).then_some(())
    });
    let before = tables(&cluster);

    lose_folder(&cluster);

    let shown = wait_for("all servers to report", || {
        let said = cluster.run(&rebuild(&SERVERS, &[]));
        said.status.success().then_some(said)
    });
    for word in ["notes", "bank", "retention 1s", "tso-0"] {
        assert!(shown.out.contains(word), "{word}: {shown:?}");
    }
    assert!(shown.err.contains("say --yes"), "{shown:?}");
    cluster
        .run(&rebuild(&SERVERS[..2], &["--yes"]))
        .refused(7, &["mend the problems first"]);
    let unheard = [&SERVERS[..], &["tablet-9"]].concat();
    cluster
        .run(&rebuild(&unheard, &["--yes"]))
        .refused(7, &["mend the problems first"]);
    let names = cluster.data_dir.join("../names.txt");
    std::fs::write(&names, SERVERS.join("\n")).expect("written");
    let names = names.to_str().expect("text");
    let from = ["master", "rebuild", "--servers-from", names, "--yes"];
    let said = cluster.run(&from);
    assert!(said.status.success(), "{said:?}");
    assert!(said.err.contains("the state is written"), "{said:?}");

    // Servers wait for leases that nobody knows any more.
    wait_for("the row", || {
        let said = cluster.run(&["get", "notes", "zoe", "text"]);
        (said.out == "kept\n").then_some(())
    });
    assert_eq!(tables(&cluster), before);
    let collected = barrier(&cluster);
    assert!(collected > 0, "what servers know isn't forgotten");
    cluster.run(&[&BANK[..], &moves].concat()).ok();
    cluster.run(&["bank", "--verify", ledger]).ok();
    cluster.run(&["table", "create", "new"]).ok();
    let highest = before.iter().map(|(_, id)| *id).max();
    let now = tables(&cluster);
    let new = now.iter().find(|(name, _)| name == "new").expect("made");
    assert!(Some(new.1) > highest, "{now:?}");
    cluster.run(&["table", "delete", "notes", "--yes"]).ok();
    cluster.run(&from).refused(2, &["has the state of cluster"]);
    // It waits for sessions that nobody knows any more.
    let since = std::time::Instant::now();
    while barrier(&cluster) <= collected {
        assert!(
            since.elapsed() < Duration::from_secs(240),
            "it stands still"
        );
        std::thread::sleep(Duration::from_millis(500));
    }
    // It starts as any other.
    cluster.kill("gc-master-0");
    wait_for("the money", || {
        let said = cluster.run(&["bank", "--verify", ledger]);
        said.status.success().then_some(())
    });
}
