//! Tablets that are split, and merged with their neighbour: nothing moves, and nothing is forgotten.

use crate::support;
use crate::support::{INCARNATION, Server, cell, prewrite, refused, tablet};
use percolator_protocol::types::{Rows, TabletState};
use percolator_tablet::core::TabletCommand;
use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::request_error::Kind;
use percolator_wire::v1::response::Body;

fn split(
    server: &mut Server,
    (id, epoch): (u64, u64),
    row: &'static str,
    sibling: u64,
) -> Option<Body> {
    server.command(TabletCommand::Split {
        id,
        epoch,
        row: row.into(),
        sibling,
    })
}

fn merge(server: &mut Server, first: (u64, u64), second: (u64, u64)) -> Option<Body> {
    server.command(TabletCommand::Merge { first, second })
}

fn why(body: Option<Body>) -> String {
    match refused(body) {
        Kind::Invalid(why) => why,
        other => panic!("{other:?}"),
    }
}

/// Its tablets as text, by id: `1@2 [a..h)`.
fn tablets(server: &Server) -> Vec<String> {
    let report = server.core.report().tablets.into_iter();
    let text = |row: &[u8]| String::from_utf8_lossy(row).into_owned();
    let line = |it: v1::TabletInfo| {
        let (start, end) = (text(&it.start_row), text(&it.end_row));
        format!("{}@{} [{start}..{end})", it.id, it.epoch)
    };
    report.map(line).collect()
}

fn get(row: &'static str, start_ts: u64) -> Ask {
    Ask::Get(v1::GetRequest {
        start_ts,
        cells: vec![cell(row)],
        ..Default::default()
    })
}

fn scan(start_ts: u64) -> Ask {
    Ask::Scan(v1::ScanRequest {
        start_ts,
        limit: 100,
        ..Default::default()
    })
}

fn one_phase(row: &'static str, start_ts: u64, commit_ts: u64) -> Ask {
    match prewrite(row, "in one", start_ts) {
        Ask::Prewrite(ask) => Ask::Prewrite(v1::PrewriteRequest {
            one_phase: Some(v1::OnePhase {
                commit_ts,
                incarnation: INCARNATION,
            }),
            ..ask
        }),
        other => other,
    }
}

/// What a request to a tablet is answered.
fn ask_at(server: &mut Server, tablet: u64, epoch: u64, ask: Ask) -> Option<Body> {
    let id = server.send_to(tablet, epoch, ask);
    server.settle();
    server.answer(id)
}

#[test]
fn both_parts_have_their_rows_at_the_next_epoch() {
    let mut server = Server::new();
    server.put("b", "1", 10, 11);
    server.put("k", "2", 10, 12);
    let parts = ["1@2 [a..h)", "2@2 [h..m)"];
    // The second time as its answer was lost.
    for _ in 0..2 {
        assert_eq!(split(&mut server, (1, 1), "h", 2), None);
        assert_eq!(tablets(&server), parts);
    }
    assert_eq!(tablets(&server), parts);
    for start in [false, true] {
        if start {
            server.start_again();
            assert_eq!(tablets(&server), parts, "after a restart");
        }
        for (tablet, row, value) in [(1, "b", "1"), (2, "k", "2")] {
            let Some(Body::Get(got)) = ask_at(&mut server, tablet, 2, get(row, 20)) else {
                panic!("no answer about {row}");
            };
            let found = got.results[0].result.clone();
            let Some(v1::get_result::Result::Found(found)) = found else {
                panic!("{row}: {found:?}");
            };
            assert_eq!(found.value, value);
        }
        let not_its = ask_at(&mut server, 1, 2, get("k", 20));
        assert!(why(not_its).contains("does not lie in tablet 1"));
    }
}

#[test]
fn a_request_at_the_old_epoch_gets_both_parts() {
    let mut server = Server::new();
    server.create(7, "m", "p");
    server.create(8, "q", "");
    split(&mut server, (1, 1), "h", 2);
    let Kind::NotServed(not) = refused(ask_at(&mut server, 1, 1, get("k", 20))) else {
        panic!("served at the old epoch");
    };
    let named: Vec<u64> = not.tablets.iter().map(|it| it.id).collect();
    assert_eq!(named, [1, 2, 7], "up to the first gap");
    // One of a later epoch than this server knows is elsewhere.
    let Kind::NotServed(not) = refused(ask_at(&mut server, 1, 9, get("k", 20))) else {
        panic!("served at a later epoch");
    };
    assert_eq!(not.tablets, []);
}

#[test]
fn a_lock_of_before_is_met_and_committed_after() {
    let mut server = Server::new();
    server.ask(prewrite("k", "2", 10));
    split(&mut server, (1, 1), "h", 2);
    let Some(Body::Get(got)) = ask_at(&mut server, 2, 2, get("k", 20)) else {
        panic!("no answer");
    };
    let met = got.results[0].result.clone();
    assert!(
        matches!(met, Some(v1::get_result::Result::Locked(_))),
        "{met:?}"
    );
    let commit = Ask::Commit(v1::CommitRequest {
        start_ts: 10,
        commit_ts: 12,
        cells: vec![cell("k")],
    });
    let Some(Body::Commit(done)) = ask_at(&mut server, 2, 2, commit) else {
        panic!("no answer");
    };
    assert!(matches!(
        done.result,
        Some(v1::commit_response::Result::Done(_))
    ));
}

#[test]
fn a_request_that_waits_for_its_row_while_its_tablet_is_split_is_refused() {
    let mut server = Server::new();
    let first = server.send(prewrite("k", "1", 10));
    let waits = server.send(prewrite("k", "2", 11));
    // Decided behind the first one, and durable with it.
    let command = TabletCommand::Split {
        id: 1,
        epoch: 1,
        row: "h".into(),
        sibling: 2,
    };
    let to = Some(support::me(INCARNATION).into());
    server
        .core
        .command(support::ME, 0, to, command, &mut server.replies);
    server.settle();
    assert!(matches!(server.answer(first), Some(Body::Prewrite(_))));
    assert!(matches!(refused(server.answer(waits)), Kind::NotServed(_)));
}

/// A scan of before the split, or the merge, has seen that a row isn't there: no commit may go below it.
#[test]
fn scans_of_before_count_in_both_parts_and_in_the_whole() {
    let mut server = Server::new();
    ask_at(&mut server, 1, 1, scan(50));
    split(&mut server, (1, 1), "h", 2);
    let Some(Body::Prewrite(done)) = ask_at(&mut server, 2, 2, one_phase("k", 30, 40)) else {
        panic!("no answer");
    };
    assert!(
        !done.committed,
        "committed below a scan of before the split"
    );

    let mut server = Server::new();
    server.create(2, "m", "p");
    ask_at(&mut server, 2, 1, scan(50));
    assert_eq!(merge(&mut server, (1, 1), (2, 1)), None);
    assert_eq!(tablets(&server), ["1@2 [a..p)"]);
    let Some(Body::Prewrite(done)) = ask_at(&mut server, 1, 2, one_phase("n", 30, 40)) else {
        panic!("no answer");
    };
    assert!(
        !done.committed,
        "committed below a scan of before the merge"
    );
    let Some(Body::Prewrite(done)) = ask_at(&mut server, 1, 2, one_phase("o", 55, 60)) else {
        panic!("no answer");
    };
    assert!(done.committed);
}

#[test]
fn what_was_split_is_merged_again_above_both_epochs() {
    let mut server = Server::new();
    split(&mut server, (1, 1), "h", 2);
    split(&mut server, (2, 2), "k", 3);
    assert_eq!(tablets(&server), ["1@2 [a..h)", "2@3 [h..k)", "3@3 [k..m)"]);
    assert_eq!(merge(&mut server, (1, 2), (2, 3)), None);
    let whole = ["1@4 [a..k)", "3@3 [k..m)"];
    assert_eq!(tablets(&server), whole);
    // Again, as its answer was lost.
    assert_eq!(merge(&mut server, (1, 2), (2, 3)), None);
    server.start_again();
    assert_eq!(tablets(&server), whole);
}

#[test]
fn a_split_that_is_impossible_is_refused_with_a_reason() {
    let mut server = Server::new();
    server.create(4, "p", "");
    server.create(6, "m", "o");
    let frozen = percolator_protocol::types::Tablet {
        state: TabletState::Frozen,
        rows: Rows::default(),
        ..tablet(5, 9, "", "")
    };
    server.own(frozen);
    let splits = [
        (split(&mut server, (9, 1), "h", 20), "tablet 9 is not here"),
        (
            split(&mut server, (1, 2), "h", 20),
            "at epoch 1, and not at 2",
        ),
        (split(&mut server, (1, 1), "a", 20), "and not the first"),
        (split(&mut server, (1, 1), "m", 20), "one of its rows"),
        (split(&mut server, (1, 1), "h", 4), "a tablet 4 already"),
        (split(&mut server, (5, 1), "h", 20), "is being deleted"),
        (merge(&mut server, (1, 1), (4, 1)), "does not begin where"),
        (merge(&mut server, (6, 1), (4, 1)), "does not begin where"),
        (merge(&mut server, (4, 1), (1, 1)), "does not begin where"),
        (
            merge(&mut server, (1, 2), (4, 1)),
            "at epoch 1, and not at 2",
        ),
        (merge(&mut server, (1, 1), (9, 1)), "tablet 9 is not here"),
    ];
    for (answer, words) in splits {
        let why = why(answer);
        assert!(why.contains(words), "{why}");
    }
}

#[test]
fn a_late_command_to_make_a_tablet_does_not_undo_its_split() {
    let mut server = Server::new();
    split(&mut server, (1, 1), "h", 2);
    let parts = ["1@2 [a..h)", "2@2 [h..m)"];
    for late in [tablet(1, 5, "a", "m"), tablet(1, 5, "a", "z")] {
        assert_eq!(server.own(late), None);
        assert_eq!(tablets(&server), parts);
        server.start_again_as(INCARNATION);
        assert_eq!(tablets(&server), parts, "after a restart");
    }
}

#[test]
fn a_tablet_that_was_merged_does_not_come_back_by_a_late_command() {
    let mut server = Server::new();
    server.create(2, "m", "p");
    merge(&mut server, (1, 1), (2, 1));
    for restarts in [false, true] {
        let late = server.own(tablet(2, 5, "m", "p"));
        let why = why(late);
        assert!(why.contains("its rows are those of tablet 1"), "{why}");
        assert_eq!(tablets(&server), ["1@2 [a..p)"]);
        // Its id isn't given again.
        assert_eq!(server.core.report().highest_tablet_id, 2);
        if !restarts {
            server.start_again_as(INCARNATION);
        }
    }
}
