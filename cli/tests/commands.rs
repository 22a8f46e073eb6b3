//! The commands, as a person and as a script use them.

use crate::support;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{Cluster, PERCOLATOR, percolator};
use serde_json::Value;

#[test]
fn cells_are_written_read_scanned_and_deleted() {
    let cluster = Cluster::threads();
    cluster
        .run(&["table", "create", "accounts", "--split-at", "m"])
        .ok();
    let listed = cluster.run(&["table", "list", "-o", "json"]).ok();
    let table: Value = serde_json::from_str(&listed).expect("JSON");
    assert_eq!(table["name"], "accounts");
    assert_eq!(table["tablets"].as_array().map(Vec::len), Some(2));
    assert_eq!(table["tablets"][1]["start_row"], "m");

    let put = ["put", "accounts", "bob", "balance", "10", "owner", "Bob"];
    let committed = cluster.run(&[&put[..], &["-o", "json"]].concat()).ok();
    let committed: Value = serde_json::from_str(&committed).expect("JSON");
    let old = committed["commit_ts"].as_str().expect("a text").to_owned();
    let at: u64 = old.parse().expect("a timestamp");
    cluster
        .run(&["put", "accounts", "zoe", "balance", "5\\x00"])
        .ok();
    cluster
        .run(&["put", "accounts", "bob", "balance", "3"])
        .ok();

    assert_eq!(
        cluster.run(&["get", "accounts", "bob", "balance"]).ok(),
        "3\n"
    );
    let get = ["get", "accounts", "bob", "balance", "--at", &old];
    assert_eq!(cluster.run(&get).ok(), "10\n");
    let before = (at - 1).to_string();
    let get = ["get", "accounts", "bob", "balance", "--at", &before];
    assert_eq!(cluster.run(&get).code(), 7);
    assert_eq!(
        cluster.run(&["get", "accounts", "bob"]).ok(),
        "balance\t3\nowner\tBob\n"
    );

    let all = "bob\tbalance\t3\nbob\towner\tBob\nzoe\tbalance\t5\\x00\n";
    assert_eq!(cluster.run(&["scan", "accounts"]).ok(), all);
    let reversed: String = all.lines().rev().map(|line| format!("{line}\n")).collect();
    assert_eq!(
        cluster.run(&["scan", "accounts", "--reverse"]).ok(),
        reversed
    );
    let first = cluster.run(&["scan", "accounts", "--limit", "1"]).ok();
    assert_eq!(first, "bob\tbalance\t3\nbob\towner\tBob\n");
    let last = cluster
        .run(&["scan", "accounts", "--prefix", "z", "-o", "json"])
        .ok();
    let last: Value = serde_json::from_str(&last).expect("JSON");
    assert_eq!(last["value"], "5\0");
    let range = ["scan", "accounts", "--from", "bob", "--to", "zoe"];
    assert_eq!(cluster.run(&range).ok().lines().count(), 2);

    cluster.run(&["delete", "accounts", "bob", "balance"]).ok();
    assert_eq!(
        cluster.run(&["get", "accounts", "bob", "balance"]).code(),
        7
    );
    cluster.run(&["delete", "accounts", "bob"]).ok();
    assert_eq!(cluster.run(&["scan", "accounts"]).ok().lines().count(), 1);
    cluster.run(&["table", "delete", "accounts", "--yes"]).ok();
    cluster.run(&["table", "create", "accounts"]).ok();
    assert_eq!(
        cluster.run(&["scan", "accounts"]).ok(),
        "",
        "the old table's rows"
    );
}

#[test]
fn several_tables_are_made_up_to_the_first_that_fails() {
    let cluster = Cluster::threads();
    let names = || {
        let listed = cluster.run(&["table", "list", "-o", "json"]).ok();
        let tables = listed.lines().map(|line| {
            let table: Value = serde_json::from_str(line).expect("JSON");
            table["name"].as_str().expect("a name").to_owned()
        });
        tables.collect::<Vec<_>>()
    };
    cluster.run(&["table", "create", "a", "b"]).ok();
    let read = ["table", "create", "-", "--split-at", "m"];
    cluster.run_with(&read, "c\n\n d \n").ok();
    assert_eq!(names(), ["a", "b", "c", "d"]);
    let failed = cluster.run_with(&read, "e\nNo Good\nf\n");
    assert!(failed.err.contains("No Good"), "{failed:#?}");
    assert_ne!(failed.code(), 0);
    assert_eq!(names(), ["a", "b", "c", "d", "e"]);
}

#[test]
fn large_values_many_pages_and_own_writes() {
    let cluster = Cluster::threads();
    let value = "v".repeat(100_000);
    cluster
        .run(&["table", "create", "t", "--split-at", "row-0500"])
        .ok();
    let mut rows = String::new();
    for number in 0..3000 {
        rows += &format!("{{\"id\":\"row-{number:04}\",\"n\":{number}}}\n");
    }
    let import = [
        "import", "--table", "t", "--key", "id", "--index", "n=by-n", "-",
    ];
    cluster.run_with(&import, &rows).ok();
    assert_eq!(cluster.run(&["scan", "t"]).ok().lines().count(), 6000);
    assert_eq!(
        cluster
            .run(&["scan", "t", "--reverse"])
            .ok()
            .lines()
            .count(),
        6000
    );
    cluster.run(&["put", "t", "row-0001", "large", &value]).ok();
    assert_eq!(
        cluster.run(&["get", "t", "row-0001", "large"]).ok().len(),
        100_001
    );
    let check = ["check-index", "--table", "t", "--index", "n=by-n"];
    cluster.run(&check).ok();
    // An entry that goes is found to be missing.
    let scan = cluster.run(&["scan", "by-n", "--limit", "1"]).ok();
    let row = scan.split('\t').next().expect("a row").to_owned();
    cluster.run(&["delete", "by-n", &row]).ok();
    let found = cluster.run(&check);
    assert_eq!(found.code(), 7, "{found:#?}");
}

#[test]
fn a_shell_session_of_several_commands() {
    let cluster = Cluster::threads();
    cluster.run(&["table", "create", "t"]).ok();
    let script =
        "begin\nput t a c 1\nget t a c\nput t b c 'two words'\nscan t\ncommit\nget t b c\n";
    let said = cluster.run_with(&["shell"], script);
    assert_eq!(said.code(), 0, "{said:#?}");
    assert!(said.out.contains("two words"), "{said:#?}");
    let said = cluster.run_with(&["shell"], "begin\nput t a c 2\nrollback\nget t a c\n");
    assert!(
        said.out.contains('1') && !said.out.contains('2'),
        "{said:#?}"
    );
    let said = cluster.run_with(&["shell"], "get t a c\nfrobnicate\nget t a c\n");
    assert_eq!(said.code(), 2, "{said:#?}");
    assert!(said.err.contains("line 2"), "{said:#?}");
}

/// Of time of the processor, not of the clock: once it took a minute of it, as each put looked at all before it.
#[test]
fn a_transaction_with_many_cells_of_one_row_is_soon_typed() {
    let cluster = Cluster::threads();
    cluster.run(&["table", "create", "t"]).ok();
    let script = cluster.data_dir.join("../script");
    let puts: String = (0..30_000)
        .map(|number| format!("put t row c{number} v\n"))
        .collect();
    std::fs::write(&script, format!("begin\n{puts}status\nrollback\n")).expect("writable");
    let mut limited = Command::new("sh");
    limited
        .args(["-c", "ulimit -t 15; exec \"$0\" -c \"$1\" shell"])
        .args([PERCOLATOR, &cluster.master])
        .stdin(std::fs::File::open(&script).expect("readable"));
    let said = support::output_of(limited).ok();
    assert!(said.contains("30000 put"), "{said}");
}

#[test]
fn a_session_at_a_snapshot_only_reads() {
    let cluster = Cluster::threads();
    cluster.run(&["table", "create", "t"]).ok();
    let script = "put t a one 1 two 'more words' '' ''\nscan t\n";
    let said = cluster.run_with(&["shell", "-o", "json"], script).ok();
    let lines: Vec<Value> = said
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(lines.len(), 4, "{said}");
    assert_eq!(lines[3]["value"], "more words");
    let at = lines[0]["commit_ts"].as_str().expect("a text").to_owned();
    let said = cluster.run_with(&["shell"], "put t a one 2\nput t a one 3 two\n");
    said.refused(2, &["line 2", "column two has no value"]);
    let said = cluster.run_with(&["shell", "--at", &at], "get t a one\nstatus\nscan t\n");
    assert_eq!(
        said.ok(),
        format!("1\nthe session only reads, as of {at}\na\t\t\na\tone\t1\na\ttwo\tmore words\n")
    );
    for line in ["begin", "put t a one 3", "delete t a one", "commit"] {
        let said = cluster.run_with(&["shell", "--at", &at], &format!("{line}\n"));
        said.refused(1, &["only reads", &at]);
    }
    let said = cluster.run(&["shell", "--at", &u64::MAX.to_string()]);
    said.refused(2, &["no snapshot"]);
    assert_eq!(cluster.run(&["get", "t", "a", "one"]).ok(), "2\n");
    // Anyone who asks for a transaction of a table that isn't there needn't wait.
    let said = cluster.run(&["outcome", &at, "77/a:one"]);
    said.refused(6, &["there is no table", "number 77"]);
}

#[test]
fn banks_on_one_new_table_get_along_and_verify_explains_itself() {
    let cluster = Cluster::threads();
    let bank = ["bank", "--accounts", "3000", "--clients", "2", "--duration"];
    let banks: Vec<_> = (0..4)
        .map(|_| {
            cluster
                .command(&[&bank[..], &["500ms", "-o", "json"]].concat())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("it runs")
        })
        .collect();
    for bank in banks {
        let said = bank.wait_with_output().expect("it ends");
        assert!(said.status.success(), "{said:?}");
    }
    let ledger = cluster.data_dir.join("../ledger.jsonl");
    let ledger = ledger.to_str().expect("text");
    let with_ledger = [&bank[..], &["200ms", "--ledger", ledger]].concat();
    cluster.run(&with_ledger).ok();
    let said = cluster.run(&["bank", "--verify", ledger]);
    said.refused(7, &["WRONG", "without --ledger", "bank-ledger"]);
}

#[test]
fn completions_come_out() {
    for shell in ["bash", "zsh", "fish"] {
        let script = percolator(&["completions", shell]).ok();
        assert!(script.contains("PERCOLATOR_COMPLETE"), "{script}");
    }
    // Nobody reads them to the end.
    let mut completions = Command::new(PERCOLATOR)
        .args(["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    drop(completions.stdout.take());
    let said = completions.wait_with_output().expect("it ends");
    assert!(said.status.success() && said.stderr.is_empty(), "{said:?}");
}

#[test]
fn a_shell_completes_commands_and_the_names_of_tables() {
    let cluster = Cluster::threads();
    cluster.run(&["table", "create", "accounts"]).ok();
    let completed = |words: &[&str]| {
        let said = Command::new(PERCOLATOR)
            .env("PERCOLATOR_COMPLETE", "fish")
            .args(["--", "percolator", "-c", &cluster.master])
            .args(words)
            .output()
            .expect("it runs");
        assert!(said.status.success(), "{said:?}");
        let lines = String::from_utf8(said.stdout).expect("text");
        let names = lines.lines().filter_map(|line| line.split('\t').next());
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(completed(&["ch"]).contains(&"check-index".to_owned()));
    assert_eq!(completed(&["get", "a"]), ["accounts"]);
    assert_eq!(completed(&["table", "delete", "acc"]), ["accounts"]);
    assert_eq!(completed(&["export", "--table", ""]), ["accounts"]);
}

#[test]
fn several_columns_are_read_at_once() {
    let cluster = Cluster::threads();
    cluster.run(&["table", "create", "t"]).ok();
    let put = ["put", "t", "bob", "a", "1", "b", "2", "c", "3"];
    cluster.run(&put).ok();
    assert_eq!(
        cluster.run(&["get", "t", "bob", "c", "a"]).ok(),
        "c\t3\na\t1\n"
    );
    let said = cluster.run(&["get", "t", "bob", "a", "d"]);
    assert_eq!((said.code(), &said.out[..]), (7, "a\t1\n"), "{said:?}");
    assert!(said.err.contains("no value in column d"), "{said:?}");
    let said = cluster.run(&["get", "t", "bob", "a", "d", "-o", "json"]);
    assert_eq!(said.code(), 7, "{said:?}");
    let lines: Vec<serde_json::Value> = said
        .out
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(
        (&lines[0]["value"], &lines[1]["value"]),
        (&"1".into(), &serde_json::Value::Null)
    );
}

#[test]
fn a_csv_file_has_every_column_or_those_that_are_named() {
    let cluster = Cluster::threads();
    cluster.run(&["table", "create", "t"]).ok();
    cluster.run(&["put", "t", "ann", "a", "1", "b", "2"]).ok();
    cluster.run(&["put", "t", "bob", "a", "3", "c", "4"]).ok();
    let export = ["export", "--table", "t", "--format", "csv", "--key", "id"];
    let said = cluster.run(&export).ok();
    assert_eq!(said, "id,a,b,c\nann,1,2,\nbob,3,,4\n");
    let said = cluster.run(&[&export[..], &["--columns", "id,b"]].concat());
    assert!(said.err.contains("3 cells of columns"), "{said:?}");
    assert_eq!(said.ok(), "id,b\nann,2\nbob,\n");
    cluster.run(&["table", "create", "none"]).ok();
    let export = ["export", "--table", "none", "--format", "csv"];
    assert_eq!(cluster.run(&export).ok(), "");
    let export = [&export[..], &["--columns", "a,b"]].concat();
    assert_eq!(cluster.run(&export).ok(), "a,b\n");
}

#[test]
fn flags_of_servers_can_come_from_the_environment() {
    for (server, prefix, needed) in [
        ("percolator-tso", "PERCOLATOR_TSO_", "DATA_DIR"),
        ("percolator-master", "PERCOLATOR_MASTER_", "DATA_DIR"),
        ("percolator-tablet", "PERCOLATOR_TABLET_", "DATA_DIR"),
        ("percolator-proxy", "PERCOLATOR_PROXY_", "MASTER"),
    ] {
        let program = Path::new(PERCOLATOR).with_file_name(server);
        let help = Command::new(&program).arg("--help").output();
        let help = String::from_utf8_lossy(&help.expect("it runs").stdout).into_owned();
        assert!(help.contains("Example"), "{server}: {help}");
        for flag in [needed, "LISTEN", "SERVER"] {
            assert!(
                help.contains(&format!("{prefix}{flag}=")),
                "{server}: {help}"
            );
        }
        // Read before the folder is looked at.
        let said = Command::new(&program)
            .env(format!("{prefix}{needed}"), "nowhere")
            .env(format!("{prefix}LISTEN"), "no address")
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(said.contains("no address"), "{server}: {said}");
    }
}

#[test]
fn a_reader_of_results_that_goes_away_ends_the_command_quietly() {
    let cluster = Cluster::threads();
    cluster.run(&["table", "create", "t"]).ok();
    let rows: String = (0..5000)
        .map(|number| format!("{{\"id\":\"{number}\"}}\n"))
        .collect();
    cluster
        .run_with(&["import", "--table", "t", "--key", "id", "-"], &rows)
        .ok();
    let mut scan = Command::new(PERCOLATOR)
        .args(["-c", &cluster.master, "scan", "t"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    drop(scan.stdout.take());
    let said = scan.wait_with_output().expect("it ends");
    assert!(said.status.success(), "{said:?}");
    assert!(said.stderr.is_empty(), "{said:?}");
}

#[test]
fn a_table_that_is_made_again_is_found_and_locks_on_a_deleted_one_are_in_nobodys_way() {
    let cluster = Cluster::processes();
    cluster.run(&["table", "create", "aaa"]).ok();
    cluster.run(&["table", "create", "bbb"]).ok();
    // Rows with their primary in aaa and secondaries in bbb, by a client that is killed in the middle.
    let rows: String = (0..200_000)
        .map(|number| format!("{{\"id\":\"{number}\"}}\n"))
        .collect();
    let file = cluster.data_dir.join("../rows.jsonl");
    std::fs::write(&file, rows).expect("writable");
    let file = file.to_str().expect("text");
    let mut import = cluster
        .command(&[
            "import", "--table", "aaa", "--key", "id", "--index", "id=bbb", "-q", file,
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it runs");
    support::wait_for("some rows", || {
        let first = cluster.run(&["scan", "bbb", "--limit", "1"]);
        (first.code() == 0 && !first.out.is_empty()).then_some(())
    });
    import.kill().expect("killed");
    import.wait().expect("it ends");
    cluster.run(&["table", "delete", "aaa", "--yes"]).ok();
    cluster.run(&["scan", "bbb"]).ok();
    // A session that knew the old table finds the new one.
    cluster.run(&["table", "create", "aaa"]).ok();
    let script = "put bbb x c 1\nget aaa x c\n";
    assert_eq!(cluster.run_with(&["shell"], script).code(), 0);
}

#[test]
fn a_row_larger_than_an_answer_is_read_cell_by_cell() {
    let cluster = Cluster::threads();
    cluster.run(&["table", "create", "t"]).ok();
    let value = "v".repeat(1 << 20);
    let fields: Vec<String> = (0..12)
        .map(|number| format!("\"c{number:02}\":\"{value}\""))
        .collect();
    let row = format!("{{\"id\":\"row\",{}}}\n", fields.join(","));
    // Over the limit of a line, so in two.
    let (one, two) = (fields[..6].join(","), fields[6..].join(","));
    assert!(row.len() > 8 << 20);
    for fields in [one, two] {
        let columns: Vec<&str> = fields.split(',').collect();
        for column in columns {
            let (name, value) = column.split_once(':').expect("a field");
            let script = format!(
                "put t row {} {}\n",
                name.trim_matches('"'),
                value.trim_matches('"')
            );
            assert_eq!(cluster.run_with(&["shell"], &script).code(), 0);
        }
    }
    let script: String = std::iter::once("begin\n".to_owned())
        .chain((0..12).map(|number| format!("get t row c{number:02}\n")))
        .collect();
    let said = cluster.run_with(&["shell"], &script);
    assert_eq!(said.code(), 0, "{}", said.err);
    assert!(said.out.len() > 12 << 20);
}

#[test]
fn a_bank_that_is_stopped_says_what_it_has_done() {
    let cluster = Cluster::threads();
    let bank = cluster
        .command(&[
            "bank",
            "--accounts",
            "50",
            "--clients",
            "4",
            "--duration",
            "10m",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    support::wait_for("transfers", || {
        let rows = cluster.run(&["scan", "bank", "--limit", "50"]).out;
        let moved = rows.lines().any(|row| !row.ends_with("\t100"));
        (rows.lines().count() == 50 && moved).then_some(())
    });
    support::signal(bank.id(), "TERM");
    let said = bank.wait_with_output().expect("it ends");
    let out = String::from_utf8_lossy(&said.stdout);
    assert!(said.status.success(), "{said:?}");
    for words in ["failed         0\n", "longest stall", "no money was lost"] {
        assert!(out.contains(words), "{words}: {out}");
    }
}

/// A script around the shell can tell a conflict from a mistake.
#[test]
fn a_shell_that_loses_a_conflict_ends_with_its_exit_code() {
    let cluster = Cluster::threads();
    cluster.run(&["table", "create", "t"]).ok();
    let mut shell = cluster
        .command(&["shell"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it runs");
    let mut stdin = shell.stdin.take().expect("a pipe");
    let mut out = BufReader::new(shell.stdout.take().expect("a pipe"));
    stdin
        .write_all(b"begin\nput t a c 1\nstatus\n")
        .expect("written");
    // It has begun when it answers.
    out.read_line(&mut String::new()).expect("an answer");
    cluster.run(&["put", "t", "a", "c", "2"]).ok();
    stdin.write_all(b"commit\n").expect("written");
    drop(stdin);
    assert_eq!(shell.wait().expect("it ends").code(), Some(3));
}

#[test]
fn what_belongs_to_another_table_is_not_called_wrong() {
    let cluster = Cluster::threads();
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (ledger, first, second) = (file("ledger"), file("first"), file("second"));
    let bank = ["bank", "--accounts", "10", "--clients", "2", "--duration"];
    let with_ledger = ["200ms", "--table", "other", "--ledger", &ledger];
    cluster.run(&[&bank[..], &with_ledger].concat()).ok();
    cluster
        .run(&["bank", "--verify", &ledger])
        .refused(1, &["line 1", "bank on table other", "--table other"]);
    cluster
        .run(&["bank", "--table", "other", "--verify", &ledger])
        .ok();
    let record = ["history", "record", "--clients", "2", "--duration", "200ms"];
    cluster.run(&[&record[..], &[&first]].concat()).ok();
    cluster
        .run(&[&record[..], &[&second]].concat())
        .refused(1, &["table history", "--table"]);
    // The same history goes on.
    cluster.run(&[&record[..], &[&first]].concat()).ok();
    cluster.run(&["history", "check", &first]).ok();
}

#[test]
fn export_does_not_put_a_column_in_the_place_of_the_row() {
    let cluster = Cluster::threads();
    cluster.run(&["table", "create", "people"]).ok();
    cluster
        .run(&["put", "people", "bob", "age", "8", "name", "bob"])
        .ok();
    for format in ["jsonl", "csv"] {
        let export = ["export", "--table", "people", "--format", format, "--key"];
        cluster
            .run(&[&export[..], &["age"]].concat())
            .refused(1, &["row bob", "age", "--key"]);
        let said = cluster.run(&[&export[..], &["name"]].concat()).ok();
        assert!(said.contains("bob"), "{said}");
    }
}

/// As in an image.
#[test]
fn the_command_is_each_server_under_its_name() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let itself = folder.path().join("percolator");
    // No copy: what another test starts meanwhile would hold it open for writing, and it could not be run.
    std::fs::hard_link(PERCOLATOR, &itself).expect("a link");
    for server in ["master", "tso", "tablet", "proxy"].map(|role| format!("percolator-{role}")) {
        let program = folder.path().join(&server);
        std::os::unix::fs::symlink("percolator", &program).expect("a link");
        let said = Command::new(&program).arg("--version").output();
        let said = String::from_utf8(said.expect("it runs").stdout).expect("text");
        assert!(said.starts_with(&format!("{server} ")), "{said}");
    }
    let table = ["percolator", "table", "create", "t"];
    let said = Command::new(&itself)
        .args(["up", "--ephemeral", "--processes", "--"])
        .args(table)
        .output()
        .expect("it runs");
    assert!(said.status.success(), "{said:?}");
}

#[test]
fn a_bank_waits_for_a_master_that_is_not_there_yet() {
    let cluster = Cluster::processes();
    let bank = cluster.without_restarts(|cluster| {
        support::signal(cluster.pid("master-0"), "KILL");
        cluster
            .run(&["table", "list"])
            .refused(5, &["percolator up"]);
        // Who has no time to lose says so at once, and who was told to.
        cluster
            .run(&["export", "--table", "bank", "--request-timeout", "0s"])
            .refused(5, &["percolator up"]);
        let mut bank = cluster
            .command(&["bank", "--accounts", "10", "--duration", "200ms"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut said = String::new();
        BufReader::new(bank.stderr.take().expect("a pipe"))
            .read_line(&mut said)
            .expect("a line");
        assert!(said.contains("waiting up to"), "{said}");
        bank
    });
    let ended = bank.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(
        ended.status.success() && said.contains("no money was lost or made"),
        "{ended:?}"
    );
}
