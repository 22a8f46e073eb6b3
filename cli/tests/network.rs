//! Servers on a real network whose cables are pulled, also those of leaders with standbys, with an oracle whose clock is wrong; and
//! servers behind a network that is late, loses and resets. Snapshot isolation explains what clients saw, and everything goes on
//! afterwards.

use std::process::Child;
use std::time::{Duration, Instant};

use crate::support::clients::{end_recorder, record, wait_for_commits};
use crate::support::network::Network;
use crate::support::proxy::{Storm, Weather};
use crate::support::{Choices, CommandOutput, Deck, SERVERS, rounds, stand_still};
use serde_json::Value;

#[test]
fn snapshot_isolation_explains_what_clients_saw_through_cuts_and_wrong_clocks() {
    #[derive(Clone, Copy)]
    enum Event {
        WrongClock,
        Cut(&'static str),
        Killed(&'static str),
    }
    let mut choices = Choices::from_env();
    let Some(mut network) = Network::new() else {
        return;
    };
    let file = network.folder.path().join("history.jsonl");
    let file = file.to_str().expect("a path of text");
    let mut recorder = record(network.command(&[]), file);
    let mut events = Deck::new(
        [Event::WrongClock; 3]
            .into_iter()
            .chain(SERVERS.map(Event::Cut))
            .chain(SERVERS.map(Event::Killed)),
    );
    for round in rounds(events.len(), 13) {
        wait_for_commits(&mut recorder, file, 20 + choices.below(60));
        match events.draw(&mut choices) {
            Event::WrongClock => {
                // An hour back, an hour ahead (not followed), a few seconds ahead (followed), right again.
                let offset_ms = [-3_600_000, 3_600_000, 4_000, 0][choices.below(4) as usize];
                eprintln!("round {round}: the oracle's clock is wrong by {offset_ms} ms");
                std::fs::write(network.clock_file(), offset_ms.to_string()).expect("a file");
            }
            Event::Killed(server) => {
                eprintln!("round {round}: {server} is killed");
                network.kill(server);
            }
            Event::Cut(server) => {
                // Up to longer than a lock lives, and than a heartbeat may be late.
                let cut = Duration::from_millis(choices.below(4_000));
                eprintln!("round {round}: {server} is cut off for {cut:?}");
                network.link(server, false);
                std::thread::sleep(cut);
                network.link(server, true);
            }
        }
    }
    // No matter who was cut off, every row can be read.
    explained(&mut recorder, file, |arguments| network.run(arguments));
}

/// A leader that is cut off, also from its register, leads no more when another one takes over, and is a standby when it is back.
#[test]
fn others_take_over_from_leaders_that_are_cut_off() {
    let Some(network) = Network::with_standbys() else {
        return;
    };
    let file = network.folder.path().join("history.jsonl");
    let file = file.to_str().expect("a path of text");
    let mut recorder = record(network.command(&[]), file);
    // The master and the oracle in turn, each twice.
    for round in rounds(4, 4) {
        let cut = usize::try_from(round % 2).expect("small");
        wait_for_commits(&mut recorder, file, 10);
        let before = network.leaders();
        network.link(&before[cut], false);
        let began = Instant::now();
        // Only a master makes it, and only timestamps of an oracle that leads bring anything into it.
        let table = format!("t{round}");
        network.run(&["table", "create", &table]).ok();
        network.run(&["put", &table, "row", "c", "1"]).ok();
        eprintln!(
            "round {round}: {} is cut off: a new table is written to after {:.1?}",
            before[cut],
            began.elapsed()
        );
        wait_for_commits(&mut recorder, file, 10);
        network.link(&before[cut], true);
        let after = network.leaders();
        assert_ne!(after[cut], before[cut], "nobody has taken over");
    }
    explained(&mut recorder, file, |arguments| network.run(arguments));
}

#[test]
fn snapshot_isolation_explains_what_clients_saw_through_delays_losses_and_resets() {
    #[derive(Clone, Copy)]
    enum Event {
        Weather,
        Still(&'static str),
        Killed(&'static str),
    }
    let mut choices = Choices::from_env();
    let mut storm = Storm::new(choices.below(u64::MAX));
    let file = storm.folder.path().join("history.jsonl");
    let file = file.to_str().expect("a path of text");
    let mut recorder = record(storm.command(&[]), file);
    let still = SERVERS[usize::try_from(choices.below(5)).expect("small")];
    let mut events = Deck::new(
        [Event::Weather; 6]
            .into_iter()
            .chain([Event::Still(still)])
            .chain(SERVERS.map(Event::Killed)),
    );
    for round in rounds(events.len(), 12) {
        wait_for_commits(&mut recorder, file, 10 + choices.below(30));
        match events.draw(&mut choices) {
            Event::Killed(server) => {
                eprintln!("round {round}: {server} is killed");
                storm.kill(server);
            }
            Event::Still(server) => {
                eprintln!("round {round}: {server} stands still");
                stand_still(storm.pid(server), &mut choices);
            }
            Event::Weather => {
                let weather = Weather {
                    delay_ms: [0, 2, 10, 40][choices.below(4) as usize],
                    lost: [0, 5, 30][choices.below(3) as usize],
                    resets: [0, 5, 20][choices.below(3) as usize],
                };
                eprintln!("round {round}: {weather:?}");
                storm.set(weather);
            }
        }
    }
    storm.set(Weather::default());
    explained(&mut recorder, file, |arguments| storm.run(arguments));
}

/// Ends the recorder; snapshot isolation explains what it saw, also of every row in the end.
fn explained(recorder: &mut Child, file: &str, run: impl Fn(&[&str]) -> CommandOutput) {
    end_recorder(recorder, file);
    let said = run(&["history", "check", "-o", "json", file]);
    eprintln!("{}{}", said.out, said.err);
    let found: Value = serde_json::from_str(&said.ok()).expect("JSON");
    assert!(found["committed"].as_u64() > Some(20), "{found}");
}
