//! Servers on a real network whose cables are pulled, with an oracle whose clock is wrong: snapshot
//! isolation explains what clients saw, and everything goes on when the cables are back.

mod support;

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use support::network::Network;
use support::{Choices, SERVERS, lines, rounds, signal, wait_for};

#[test]
fn snapshot_isolation_explains_what_clients_saw_through_cuts_and_wrong_clocks() {
    let mut choices = Choices::from_env();
    let Some(mut network) = Network::new() else {
        return;
    };
    let file = network.folder.path().join("history.jsonl");
    let file = file.to_str().expect("a path of text");
    let mut recorder = network
        .command(&["history", "record", "--clients", "12", "--lists", "12"])
        .args(["--duration", "10m", file])
        .stdout(Stdio::null())
        .spawn()
        .expect("the recorder runs");
    for round in 0..rounds(12) {
        let target = lines(file) + 100 + usize::try_from(choices.below(300)).expect("small");
        wait_for("transactions", || (lines(file) > target).then_some(()));
        assert!(
            recorder.try_wait().expect("a child").is_none(),
            "the recorder ended"
        );
        let server = SERVERS[usize::try_from(choices.below(5)).expect("small")];
        match choices.below(5) {
            0 => {
                // An hour back, an hour ahead (not followed), a few seconds ahead (followed), right again.
                let offset_ms = [-3_600_000, 3_600_000, 4_000, 0][choices.below(4) as usize];
                eprintln!("round {round}: the oracle's clock is wrong by {offset_ms} ms");
                std::fs::write(network.clock_file(), offset_ms.to_string()).expect("a file");
            }
            1 => {
                eprintln!("round {round}: {server} is killed");
                network.kill(server);
            }
            _ => {
                // Up to longer than a lock lives, and than a heartbeat may be late.
                let cut = Duration::from_millis(choices.below(4_000));
                eprintln!("round {round}: {server} is cut off for {cut:?}");
                network.link(server, false);
                std::thread::sleep(cut);
                network.link(server, true);
            }
        }
    }
    signal(recorder.id(), "KILL");
    recorder.wait().expect("it ends");
    let said = network.run(&["history", "check", "-o", "json", file]);
    eprintln!("{}{}", said.out, said.err);
    let found: Value = serde_json::from_str(&said.ok()).expect("JSON");
    assert!(found["committed"].as_u64() > Some(1000), "{found}");
    // Whoever was cut off, every row can be read.
    network.run(&["scan", "history"]).ok();
}
