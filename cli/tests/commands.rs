//! The commands, as a person and as a script use them.

use crate::support;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{Cluster, PERCOLATOR, percolator};

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
