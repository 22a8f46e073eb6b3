//! What a user is told: by messages, by exit codes, by JSON.

use crate::support;
use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::support::server::Stopped;
use crate::support::{Cluster, PERCOLATOR, percolator, signal, wait_for};
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text:?}"))
}

/// What never left the command has not been carried out: that is known.
#[test]
fn a_write_to_a_server_that_is_down_is_no_unknown_commit() {
    let cluster = Cluster::processes();
    cluster.run(&["table", "create", "t"]).ok();
    cluster.run(&["put", "t", "a", "c", "1"]).ok();
    let listed = cluster.run(&["table", "list", "-o", "json"]).ok();
    let table: Value = serde_json::from_str(listed.trim()).expect("JSON");
    let table = table.get(0).unwrap_or(&table);
    let owner = table["tablets"][0]["server"].as_str().expect("a server");
    let pid = cluster.pid(owner);
    cluster.without_restarts(|cluster| {
        support::signal(pid, "KILL");
        wait_for("the process to be gone", || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
            // Its other threads may end a little later than the first, and with the last of them its sockets.
            let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
            let is_last = threads.map_or(true, |threads| threads.count() <= 1);
            stat.map_or(true, |stat| stat.contains(") Z ") && is_last)
                .then_some(())
        });
        let put = ["put", "t", "a", "c", "2", "--request-timeout", "2s"];
        cluster
            .run(&put)
            .refused(5, &["gave up after", "rolled back", "127.0.0.1:"]);
    });
    let value = || cluster.run(&["get", "t", "a", "c"]).out;
    wait_for("the server to be back, with what was committed", || {
        (value().trim() == "1").then_some(())
    });
}

#[test]
fn a_server_that_hangs_is_named_with_its_role_and_shown_as_away() {
    let cluster = Cluster::processes();
    cluster.run(&["table", "create", "t"]).ok();
    cluster.run(&["put", "t", "a", "c", "1"]).ok();
    let listed = || json(&cluster.run(&["table", "list", "-o", "json"]).ok());
    let tablet = &listed()["tablets"][0];
    assert_eq!(tablet["server_alive"], true, "{tablet}");
    let owner = tablet["server"].as_str().expect("text").to_owned();
    let get = ["get", "t", "a", "c"];
    {
        let _stopped = Stopped::new(&cluster, &owner);
        cluster.run(&get).refused(
            5,
            &["the tablet server at 127.0.0.1:", "did not answer for"],
        );
        for command in [
            &["get", "t", "a", "c"][..],
            &["delete", "t", "a"],
            &["scan", "t"],
        ] {
            let said = cluster.run(&[command, &["--request-timeout", "1200ms"]].concat());
            said.refused(5, &["gave up after "]);
        }
        let put = ["put", "t", "a", "c", "2", "--request-timeout", "1200ms"];
        cluster.run(&put).refused(4, &["percolator outcome"]);
        let away = wait_for("the owner to be away", || {
            let tablet = listed()["tablets"][0].clone();
            (tablet["server_alive"] == false).then_some(tablet)
        });
        assert!(away["server_silent_ms"].as_u64() >= Some(1500), "{away}");
        let tablets = cluster.run(&["tablet", "list"]).ok();
        assert!(
            tablets.contains(&format!("{owner}, away for ")),
            "{tablets}"
        );
        let tables = cluster.run(&["table", "list"]).ok();
        assert!(tables.contains("1 of 1 away"), "{tables}");
        assert!(
            tables.contains(&format!("not ready: {owner} away")),
            "{tables}"
        );
        let listed = listed();
        assert_eq!(listed["ready"], false, "{listed}");
        assert_eq!(listed["away"], serde_json::json!([owner]), "{listed}");
    }
    {
        let _stopped = Stopped::new(&cluster, "tso-0");
        cluster
            .run(&get)
            .refused(5, &["the oracle at 127.0.0.1:", "did not answer for"]);
    }
    {
        let _stopped = Stopped::new(&cluster, "master-0");
        let said = cluster.run(&[&get[..], &["--request-timeout", "8s"]].concat());
        said.refused(5, &["the master at 127.0.0.1:", "did not answer for 3 s"]);
        assert_eq!(said.err.matches("unavailable").count(), 1, "{said:?}");
    }
    wait_for("the cluster to serve again", || {
        (cluster.run(&get).code() == 0).then_some(())
    });
}

/// As when packets are lost, or a name isn't resolved yet.
#[test]
fn a_command_waits_for_a_silent_master_until_its_request_timeout() {
    let cluster = Cluster::processes();
    cluster.run(&["table", "create", "t"]).ok();
    let stopped = Stopped::new(&cluster, "master-0");
    std::thread::scope(|threads| {
        threads.spawn(|| {
            // A connection without answers is given up after 3 s.
            std::thread::sleep(Duration::from_secs(5));
            drop(stopped);
        });
        let put = ["put", "t", "a", "c", "1", "--request-timeout", "60s"];
        cluster.run(&put).ok();
    });
}

#[test]
fn an_export_without_the_names_of_rows_counts_them_once_and_ends_with_1() {
    let cluster = Cluster::threads();
    cluster.run(&["table", "create", "t"]).ok();
    for row in ["ann", "bob"] {
        cluster.run(&["put", "t", row, "balance", "1"]).ok();
    }
    // This one holds its own name, so that the others aren't given a field for theirs.
    cluster.run(&["put", "t", "ada", "name", "ada"]).ok();
    for format in ["jsonl", "csv"] {
        let export = ["export", "--table", "t", "-q", "--format", format];
        let said = cluster.run(&export);
        said.refused(1, &["rows written without their name: 2", "first is ann"]);
        assert_eq!(said.err.matches("--key FIELD").count(), 1, "{said:?}");
        assert!(said.out.contains("balance"), "{said:?}");
        let said = cluster.run(&[&export[..], &["--key", "id"]].concat());
        assert!(!said.err.contains("--key"), "{said:?}");
        assert!(said.ok().contains("ann"));
    }
    // Who names the columns has them, and the key that is asked for.
    let named = ["export", "--table", "t", "--format", "csv", "--columns"];
    let said = cluster.run(&[&named[..], &["balance"]].concat());
    assert!(!said.err.contains("--key"), "{said:?}");
    assert_eq!(said.ok(), "balance\n\"\"\n1\n1\n");
    let said = cluster.run(&[&named[..], &["balance", "--key", "id"]].concat());
    assert_eq!(said.ok(), "id,balance\nada,\nann,1\nbob,1\n");
    let rows = "{\"id\":\"x\",\"n\":1}\n{\"id\":7,\"n\":2}\n";
    let import = ["import", "--table", "u", "--key", "id", "-"];
    cluster.run_with(&import, rows).ok();
    cluster.run(&["export", "--table", "u"]).ok();
}

/// A field that no row has agrees with an index that has no entries: anyone who typed it wrong has to hear of it.
#[test]
fn a_check_of_a_field_that_no_row_has_says_so() {
    let cluster = Cluster::threads();
    let import = ["import", "--table", "u", "--key", "id", "-"];
    cluster.run_with(&import, "{\"id\":\"x\",\"n\":1}\n").ok();
    cluster.run(&["table", "create", "by-n"]).ok();
    let check = ["check-index", "-q", "--table", "u", "--index"];
    let said = cluster.run(&[&check[..], &["m=by-n"]].concat());
    assert!(
        said.err.contains("no row of table u has field m"),
        "{said:?}"
    );
    said.ok();
    let said = cluster.run(&[&check[..], &["n=by-n"]].concat());
    said.refused(7, &[]);
    assert!(!said.err.contains("no row"), "{said:?}");
}

/// Fails if the JSON has a number that readers round to another one.
fn assert_exact(json: &Value, from: &str) {
    match json {
        Value::Number(number) => {
            let number = number.as_f64().expect("a number");
            assert!(number.abs() <= 2_f64.powi(53), "{number} in {from}");
        }
        Value::Array(values) => values.iter().for_each(|json| assert_exact(json, from)),
        Value::Object(fields) => fields.values().for_each(|json| assert_exact(json, from)),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

#[test]
fn no_number_in_json_is_one_that_readers_of_json_round() {
    let cluster = Cluster::threads();
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (ledger, history) = (file("ledger.jsonl"), file("history.jsonl"));
    let exact = |arguments: &[&str], input: &str, texts: &[&str]| -> Value {
        let said = cluster.run_with(&[arguments, &["-o", "json"]].concat(), input);
        assert!([0, 7].contains(&said.code()), "{arguments:?}: {said:#?}");
        assert!(!said.out.is_empty(), "{arguments:?}");
        let lines: Vec<Value> = said.out.lines().map(json).collect();
        for line in &lines {
            assert_exact(line, &format!("{arguments:?}: {line}"));
        }
        for text in texts {
            let found = lines.iter().find_map(|line| line[*text].as_str());
            let found = found.unwrap_or_else(|| panic!("{text} is no text in {lines:?}"));
            found.parse::<u64>().expect("a timestamp");
        }
        lines.into_iter().next().unwrap_or_default()
    };
    let table = exact(&["table", "create", "t"], "", &[])["id"].clone();
    exact(&["table", "list"], "", &[]);
    let put = exact(&["put", "t", "a", "c", "1"], "", &["start_ts", "commit_ts"]);
    let at = put["commit_ts"].as_str().expect("a text");
    exact(&["get", "t", "a", "c", "--at", at], "", &[]);
    exact(&["get", "t", "a"], "", &[]);
    exact(&["scan", "t"], "", &[]);
    exact(&["delete", "t", "a"], "", &["start_ts", "commit_ts"]);
    let start_ts = put["start_ts"].as_str().expect("a text");
    let primary = format!("{table}/a:c");
    exact(&["outcome", start_ts, &primary], "", &["commit_ts"]);
    let script = "tables\nbegin\nput t a c 1\nstatus\ncommit\nscan t\n";
    exact(&["shell"], script, &["start_ts", "commit_ts"]);
    exact(&["shell", "--at", at], "status\n", &["at"]);
    let import = [
        "import", "--table", "u", "--key", "id", "--index", "n=by-n", "-",
    ];
    exact(&import, "{\"id\":\"x\",\"n\":1}\n", &[]);
    let check = ["check-index", "--table", "u", "--index", "n=by-n"];
    exact(&check, "", &["snapshot"]);
    cluster.run(&["put", "by-n", "wrong", "", ""]).ok();
    exact(&check, "", &["snapshot"]);
    exact(&[&check[..], &["--repair"]].concat(), "", &["snapshot"]);
    exact(&["export", "--table", "u"], "", &[]);
    let bank = ["bank", "--accounts", "10", "--clients", "2", "--duration"];
    exact(
        &[&bank[..], &["200ms", "--ledger", &ledger]].concat(),
        "",
        &[],
    );
    exact(&["bank", "--verify", &ledger], "", &[]);
    let record = ["history", "record", "--duration", "200ms", &history];
    cluster.run(&record).ok();
    exact(&["history", "check", &history], "", &[]);
    exact(&["table", "delete", "t", "--yes"], "", &[]);
    for file in [ledger, history] {
        let written = std::fs::read_to_string(&file).expect("a file of text");
        assert!(!written.is_empty(), "{file}");
        written
            .lines()
            .for_each(|line| assert_exact(&json(line), &file));
    }
}

#[test]
fn a_table_that_is_there_as_it_is_asked_for_will_do() {
    let cluster = Cluster::threads();
    let create = ["table", "create", "t", "--split-at", "m", "-o", "json"];
    let all: Vec<_> = (0..8)
        .map(|_| {
            let mut command = cluster.command(&create);
            std::thread::spawn(move || command.output().expect("it runs"))
        })
        .collect();
    let said: Vec<_> = all
        .into_iter()
        .map(|one| one.join().expect("no panic"))
        .collect();
    assert!(said.iter().all(|said| said.status.success()), "{said:?}");
    let made: Vec<_> = said
        .iter()
        .map(|one| json(&String::from_utf8_lossy(&one.stdout)))
        .collect();
    for one in &made {
        assert_eq!((&one["id"], &one["ready"]), (&made[0]["id"], &true.into()));
    }
    cluster.run(&create).ok();
    for cuts in [
        &["--split-at", "n"][..],
        &[],
        &["--split-at", "b", "--split-at", "m"],
    ] {
        let said = cluster.run(&[&["table", "create", "t"][..], cuts].concat());
        said.refused(
            6,
            &["a table t already, cut at m,", "this asks for one that is"],
        );
    }
}

#[test]
fn scripts_can_tell_no_value_from_no_table_and_from_failures() {
    let cluster = Cluster::threads();
    cluster.run(&["table", "create", "t"]).ok();
    let code = |arguments: &[&str]| cluster.run(arguments).code();
    assert_eq!(code(&["get", "t", "a", "c"]), 7);
    assert_eq!(code(&["get", "t", "a"]), 7);
    assert_eq!(code(&["get", "nosuch", "a", "c"]), 6);
    assert_eq!(code(&["scan", "nosuch"]), 6);
    assert_eq!(code(&["table", "delete", "nosuch", "--yes"]), 6);
    let cut_otherwise = ["table", "create", "t", "--split-at", "m"];
    assert_eq!(code(&cut_otherwise), 6);
    assert_eq!(code(&["history", "check", "/no/such/file"]), 1);
    let said = cluster.run_with(&["shell"], "get nosuch a c\n");
    said.refused(6, &["line 1", "no table \"nosuch\""]);
    for line in [
        "foo",
        "put t r c",
        "put t r \\xzz v",
        "put t r c 1 c 2",
        "get 't",
        "begin --at 99999999999999999999",
    ] {
        let said = cluster.run_with(&["shell"], &format!("get t a c\n{line}\n"));
        said.refused(2, &["line 2"]);
        let said = cluster.run_with(&["shell"], &format!("begin\n{line}\n"));
        said.refused(2, &["line 2"]);
    }
    // The name is looked at before the commit.
    let said = cluster.run_with(&["shell"], "begin\nput nosuch a c 1\ncommit\n");
    said.refused(6, &["line 2", "no table \"nosuch\""]);
    let help = percolator(&["--help"]).ok();
    for code in 0..=7 {
        let told = help.lines().any(|line| {
            let mut words = line.split_whitespace();
            words.next() == Some(&code.to_string()) && words.next().is_some()
        });
        assert!(told, "no exit code {code} in\n{help}");
    }
}

#[test]
fn an_outcome_that_nobody_can_have_asked_for_is_refused() {
    let cluster = Cluster::threads();
    cluster.run(&["table", "create", "t"]).ok();
    let put = ["put", "t", "a", "c", "1", "-o", "json"];
    let put = json(&cluster.run(&put).ok());
    let start_ts = put["start_ts"].as_str().expect("a text").to_owned();
    let table = json(&cluster.run(&["table", "list", "-o", "json"]).ok());
    let primary = format!("{}/a:c", table["id"]);
    let known = cluster.run(&["outcome", &start_ts, &primary]).ok();
    let named = cluster.run(&["outcome", &start_ts, "t/a:c"]).ok();
    assert!(
        named.starts_with("committed at") && named == known,
        "{named}"
    );
    cluster
        .run(&["outcome", &start_ts, "nosuch/a:c"])
        .refused(6, &["no table \"nosuch\""]);
    cluster
        .run(&["outcome", &start_ts, "a:c"])
        .refused(2, &["TABLE/ROW:COLUMN"]);
    let future = u64::MAX.to_string();
    let said = cluster.run(&["outcome", &future, &primary]);
    said.refused(2, &[&future, "not handed out", "the oracle is at"]);
    cluster
        .run(&["outcome", "0", &primary])
        .refused(2, &["timestamps are above 0"]);
}

#[test]
fn an_address_that_is_none_is_told_the_form_and_an_example() {
    for address in [
        "not an address",
        "localhost",
        ":7400",
        "localhost:",
        "localhost:74000",
        "http://localhost:7400",
        "::1:7400",
        "",
    ] {
        percolator(&["-c", address, "get", "t", "r", "c"]).refused(
            2,
            &[
                &format!("{address:?}"),
                "HOST:PORT",
                "127.0.0.1:7400",
                "[::1]:7400",
            ],
        );
    }
}

/// The bytes of what is printed are those of one error: no reason stands there twice.
#[test]
fn a_file_that_is_no_history_is_refused_with_its_reason_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("history.jsonl");
    std::fs::write(&file, "{}\n").expect("writable");
    let said = percolator(&["history", "check", file.to_str().expect("text")]);
    said.refused(1, &["line 1"]);
    assert_eq!(said.err.matches("missing field").count(), 1, "{said:?}");
}

#[test]
fn an_oracle_that_has_lost_its_folder_is_refused_by_its_master() {
    let folder = tempfile::tempdir().expect("a folder");
    let cluster = Cluster::start_in(folder.path(), &[]);
    wait_for("the master to know that its oracle has joined", || {
        let stored = std::fs::read(folder.path().join("master-0/directory")).ok()?;
        let gzip = stored.windows(2).position(|it| it == [0x1f, 0x8b])?;
        let mut state = Vec::new();
        // What follows it in the file is no part of it.
        let mut decoder = flate2::bufread::GzDecoder::new(&stored[gzip..]);
        decoder.read_to_end(&mut state).ok()?;
        let state: Value = serde_json::from_slice(&state).ok()?;
        (state["servers"]["tso-0"]["adopted"] == true).then_some(())
    });
    cluster.stop();
    let program = |name: &str| Command::new(Path::new(PERCOLATOR).with_file_name(name));
    let mut master = program("percolator-master")
        .arg("--data-dir")
        .arg(folder.path().join("master-0"))
        .args(["--listen", "127.0.0.1:0"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("it runs");
    let mut line = String::new();
    let stdout = master.stdout.take().expect("a pipe");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).expect("a line");
    let address = line.trim().strip_prefix("listening on ").expect("a line");
    let said = program("percolator-tso")
        .arg("--data-dir")
        .arg(folder.path().join("empty"))
        .args(["--listen", "127.0.0.1:0", "--master", address])
        .stderr(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("it runs");
    let pid = said.id();
    let watch = std::thread::spawn(move || said.wait_with_output().expect("it ends"));
    let mut tries = 0;
    // One that serves on would do so for good.
    wait_for("the oracle to end", || {
        tries += 1;
        (watch.is_finished() || tries > 1500).then_some(())
    });
    signal(pid, "TERM");
    let said = watch.join().expect("no panic");
    signal(master.id(), "TERM");
    master.wait().expect("it ends");
    let err = String::from_utf8_lossy(&said.stderr);
    assert_eq!(said.status.code(), Some(1), "{err}");
    assert!(err.contains("has forgotten which timestamps"), "{err}");
    assert!(err.contains("bring its folder or volume back"), "{err}");
}
