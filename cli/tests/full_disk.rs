//! A cluster whose data lies on a volume that fills up: new data is refused with a clear error, reads go
//! on, what dead clients left is resolved, and when there's room again everything is there and goes on.

#[path = "../../engine/tests/common/tmpfs.rs"]
mod tmpfs;

use std::path::Path;
use std::process::Stdio;

use crate::support::{Cluster, CommandOutput, block_on, signal, wait_for};
use percolator_telemetry::endpoint::{self, PageResponse};
use serde_json::Value;
use tmpfs::Tmpfs;

const MIB: u64 = 1 << 20;

/// Rows of 1 KiB, a JSON object a line.
fn rows(count: usize) -> String {
    (0..count)
        .map(|i| {
            let text = format!("{i:x}-").repeat(1 << 10);
            format!(
                "{{\"key\":\"row-{i:06}\",\"text\":\"{}\"}}\n",
                &text[..1 << 10]
            )
        })
        .collect()
}

fn transfers(ledger: &Path) -> usize {
    let answers = std::fs::read_to_string(ledger).unwrap_or_default();
    answers.matches("committed").count()
}

fn refused_for_want_of_room(said: &CommandOutput) {
    said.refused(5, &["no space left", "make room"]);
}

#[test]
#[expect(clippy::too_many_lines, reason = "one story, told in its order")]
fn a_full_volume_refuses_new_data_alone_and_loses_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let on_disk = folder.path().join("volume");
    std::fs::create_dir(&on_disk).expect("a folder");
    let Some(volume) = Tmpfs::mount(&on_disk, "256m") else {
        return;
    };
    let cluster = Cluster::start_in(&volume.0.join("data"), &["--processes"]);

    // A load that fills it.
    let file = folder.path().join("rows.jsonl");
    let source = rows(20_000);
    std::fs::write(&file, &source).expect("a writable folder");
    let import = [
        "import",
        "--table",
        "rows",
        "--key",
        "key",
        "--request-timeout",
        "1s",
    ];
    let import = [&import[..], &[file.to_str().expect("a path of text")]].concat();
    cluster
        .run(&["table", "create", "rows", "--split-at", "row-005"])
        .ok();
    volume.leave(72 * MIB);
    let said = cluster.run(&import);
    assert_ne!(said.code(), 0, "{said:#?}");
    assert!(said.err.contains("no space left"), "{said:#?}");
    let loaded = cluster.run(&["export", "--table", "rows"]).ok();
    assert!(loaded.lines().count() < 20_000, "all of it was loaded");
    volume.make_room();

    // Clients that die in the middle of their commits, and then no room for new data.
    let ledger = folder.path().join("transfers.jsonl");
    let text = ledger.to_str().expect("a path of text");
    let bank = [
        "bank",
        "--accounts",
        "200",
        "--clients",
        "16",
        "--duration",
        "10m",
    ];
    let mut bank = cluster
        .command(&[&bank[..], &["--ledger", text]].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the bank runs");
    wait_for("the first transfers", || {
        (transfers(&ledger) > 300).then_some(())
    });
    signal(bank.id(), "STOP");
    volume.leave(40 * MIB);
    signal(bank.id(), "KILL");
    bank.wait().expect("it ends");
    refused_for_want_of_room(&cluster.run(&["put", "rows", "new", "text", "1"]));
    let data = volume.0.join("data");
    let data = data.to_str().expect("a path of text");
    let status = || cluster.run(&["status", "--data-dir", data]);
    let said = wait_for("the status to tell of it", || {
        Some(status()).filter(|said| said.out.contains("its volume is full"))
    });
    assert_eq!(said.code(), 7, "{said:#?}");
    // What was left locked is resolved by the transaction that meets it, also by a server that was started again.
    let verify = ["bank", "--accounts", "200", "-o", "json", "--verify", text];
    let holds = || {
        for arguments in [["scan", "bank"], ["scan", "bank-ledger"]] {
            assert!(!cluster.run(&arguments).ok().is_empty());
        }
        let found: Value = serde_json::from_str(&cluster.run(&verify).ok()).expect("JSON");
        assert!(found["committed"].as_u64() > Some(100), "{found}");
    };
    holds();
    cluster.kill("tablet-1");
    holds();

    // Hardly a byte is left: reads go on, as long as the oracle can write its limit down.
    volume.leave(MIB / 4);
    holds();
    // Not even a rollback finds room. So what was asked for in one phase, and refused, may for all that the
    // client knows be carried out by a late copy of the request: unknown, or too long.
    let said = cluster.run(&["put", "rows", "new", "text", "1"]);
    assert!(matches!(said.code(), 4 | 5), "{said:#?}");

    // Room again: everything is there, and goes on.
    volume.make_room();
    assert_eq!(cluster.run(&["export", "--table", "rows"]).ok(), loaded);
    holds();
    cluster.run(&["put", "rows", "new", "text", "1"]).ok();
    cluster.run(&["delete", "rows", "new"]).ok();
    cluster.run(&import).ok();
    wait_for("no volume to be full", || {
        (!status().out.contains("its volume is full")).then_some(())
    });
    let exported = cluster.run(&["export", "--table", "rows"]).ok();
    assert!(
        exported == source,
        "the rows came out otherwise than they went in"
    );
    let bank = [
        "bank",
        "--accounts",
        "200",
        "--clients",
        "4",
        "--duration",
        "1s",
    ];
    let said = cluster.run(&[&bank[..], &["-o", "json"]].concat());
    let summary: Value = serde_json::from_str(&said.ok()).expect("JSON");
    assert_eq!(summary["wrong_sums"], 0, "{summary}");
    assert_eq!(summary["failed"], 0, "{summary}");
    let (code, said) = cluster.stop();
    assert_eq!(code, 0, "{said}");
}

#[test]
fn a_master_without_room_says_so_before_it_has_to_stop() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(volume) = Tmpfs::mount(folder.path(), "256m") else {
        return;
    };
    let cluster = Cluster::start_in(&volume.0.join("data"), &["--processes"]);
    let address = cluster.metrics_address("master-0");
    // Where the others took the last of it, it may have been started again at that address.
    let wait_for_readyz = |is_it: &dyn Fn(&PageResponse) -> bool, what: &str| {
        wait_for(what, || {
            let answer = block_on(endpoint::get(&address, "/readyz")).ok()?;
            is_it(&answer).then_some(())
        });
    };
    wait_for_readyz(&|answer| answer.status == 200, "a master that is ready");
    volume.leave(128 << 10);
    let is_full =
        |answer: &PageResponse| answer.status == 503 && answer.body.contains(" is full: ");
    wait_for_readyz(&is_full, "a master that has no room");
    volume.make_room();
    wait_for_readyz(
        &|answer| answer.status == 200,
        "a master that has room again",
    );
}
