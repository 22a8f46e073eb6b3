//! What a server answers within its lease: nothing that the one in its place could contradict.

use crate::support::{INCARNATION, Server, cell, prewrite, refused};
use percolator_protocol::lease::Lease;
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::Timestamp;
use percolator_tablet::GcSettingsCopy;
use percolator_wire::v1;
use percolator_wire::v1::commit_response::Result as Committed;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::request_error::Kind;
use percolator_wire::v1::response::Body;

fn lease(until: u64, commits_above: u64) -> Lease {
    Lease {
        until: Timestamp::from_u64(until),
        commits_above: Timestamp::from_u64(commits_above),
    }
}

fn commit(start_ts: u64, commit_ts: u64, row: &'static str) -> Ask {
    Ask::Commit(v1::CommitRequest {
        start_ts,
        commit_ts,
        cells: vec![cell(row)],
    })
}

fn check(start_ts: u64, now: u64) -> Ask {
    Ask::CheckStatus(v1::CheckStatusRequest {
        primary: Some(cell("b")),
        start_ts,
        now,
        ..v1::CheckStatusRequest::default()
    })
}

/// Every kind of request that depends on a timestamp, with that timestamp.
fn all(ts: u64) -> Vec<Ask> {
    let one_phase = match prewrite("e", "1", ts - 1) {
        Ask::Prewrite(prewrite) => Ask::Prewrite(v1::PrewriteRequest {
            one_phase: Some(v1::OnePhase {
                commit_ts: ts,
                incarnation: INCARNATION,
            }),
            ..prewrite
        }),
        other => other,
    };
    vec![
        Ask::GetOne(v1::GetOneRequest {
            tablet_id: 1,
            epoch: 1,
            start_ts: ts,
            row: "b".into(),
            column: "c".into(),
            bypass: Vec::new(),
        }),
        Ask::Get(v1::GetRequest {
            start_ts: ts,
            cells: vec![cell("b")],
            ..v1::GetRequest::default()
        }),
        Ask::Get(v1::GetRequest {
            start_ts: ts,
            cells: vec![cell("b")],
            whole_rows: true,
            ..v1::GetRequest::default()
        }),
        Ask::Scan(v1::ScanRequest {
            start_ts: ts,
            ..v1::ScanRequest::default()
        }),
        prewrite("d", "1", ts),
        one_phase,
        commit(10, ts, "b"),
        check(10, ts),
    ]
}

#[test]
fn nothing_above_the_lease_is_answered() {
    let mut server = Server::new();
    server.ask(prewrite("b", "1", 10));
    server.start_again_without_lease();
    for (until, asked) in [(0, 15), (99, 100)] {
        server.core.lease(lease(until, 0));
        for ask in all(asked) {
            let id = server.send(ask.clone());
            match refused(server.answer(id)) {
                // One-phase commits name an earlier start_ts, which is checked first.
                Kind::NotLeased(not) => assert!(
                    not.lease == until && until < not.asked && not.asked <= asked,
                    "{ask:?}: {not:?}"
                ),
                other => panic!("{ask:?}: {other:?}"),
            }
        }
    }
    assert_eq!(
        server.commit_group(),
        0,
        "a refused request wrote something"
    );
    server.core.lease(lease(100, 0));
    for ask in all(100) {
        let id = server.send(ask.clone());
        server.settle();
        let answer = server.answer(id);
        assert!(
            !matches!(answer, Some(Body::Error(_)) | None),
            "{ask:?}: {answer:?}"
        );
    }
    // An older answer of the master's takes nothing back; a silent master does.
    server.core.lease(lease(50, 0));
    let read = || all(100).remove(0);
    assert!(matches!(server.ask(read()), Body::GetOne(_)));
    server.core.lapse();
    let id = server.send(read());
    assert!(matches!(refused(server.answer(id)), Kind::NotLeased(_)));
    server.core.lease(lease(100, 0));
    assert!(matches!(server.ask(read()), Body::GetOne(_)));
}

/// The server before this one may have answered reads up to there, that missed what is committed now.
#[test]
fn no_primary_is_committed_below_an_earlier_lease() {
    let mut server = Server::new();
    server.ask(prewrite("b", "1", 10));
    server.core.lease(lease(1_000, 50));
    let Body::Commit(answer) = server.ask(commit(10, 50, "b")) else {
        panic!("no answer to a commit");
    };
    assert!(
        matches!(&answer.result, Some(Committed::TooLow(low)) if low.min_commit_ts == 51),
        "{answer:?}"
    );
    let Body::Commit(answer) = server.ask(commit(10, 51, "b")) else {
        panic!("no answer to a commit");
    };
    assert!(
        matches!(answer.result, Some(Committed::Done(_))),
        "{answer:?}"
    );
}

#[test]
fn nothing_is_committed_in_one_phase_below_an_earlier_lease() {
    let mut server = Server::new();
    server.core.lease(lease(1_000, 50));
    for (row, commit_ts, expected) in [("b", 50, false), ("d", 51, true)] {
        let Ask::Prewrite(ask) = prewrite(row, "1", 10) else {
            panic!("no prewrite");
        };
        let ask = v1::PrewriteRequest {
            one_phase: Some(v1::OnePhase {
                commit_ts,
                incarnation: INCARNATION,
            }),
            ..ask
        };
        let Body::Prewrite(answer) = server.ask(Ask::Prewrite(ask)) else {
            panic!("no answer to a prewrite");
        };
        assert_eq!(answer.committed, expected, "{commit_ts}: {answer:?}");
        assert!(answer.rejections.is_empty(), "{answer:?}");
    }
}

/// Its primary, elsewhere, has been committed there: readers here ask that one.
#[test]
fn a_secondary_is_committed_below_an_earlier_lease() {
    let mut server = Server::new();
    let Ask::Prewrite(ask) = prewrite("b", "1", 10) else {
        panic!("no prewrite");
    };
    server.ask(Ask::Prewrite(v1::PrewriteRequest {
        primary: Some(v1::CellName {
            table_id: 9,
            row: "p".into(),
            column: "c".into(),
        }),
        ..ask
    }));
    server.core.lease(lease(1_000, 50));
    let Body::Commit(answer) = server.ask(commit(10, 20, "b")) else {
        panic!("no answer to a commit");
    };
    assert!(
        matches!(answer.result, Some(Committed::Done(_))),
        "{answer:?}"
    );
}

#[test]
fn a_group_that_only_locks_is_counted_durably() {
    let mut server = Server::new();
    let reached = |server: &Server| {
        let report = server.core.report();
        (report.high_ts, report.groups)
    };
    server.put("a", "1", 5, 6);
    let (high_ts, groups) = reached(&server);
    assert!(high_ts == 6 && groups > 0, "{high_ts} {groups}");
    server.ask(prewrite("b", "1", 10));
    assert_eq!(reached(&server), (6, groups + 1));
    // A group that was refused isn't there.
    let id = server.send(prewrite("c", "1", 11));
    server.commit_group_short_of_room();
    server.answer(id);
    assert_eq!(reached(&server), (6, groups + 1));
    server.start_again();
    assert_eq!(reached(&server), (6, groups + 1));
}

/// By that the master decides whether the folder is an older one: what the start writes by itself would hide it.
#[test]
fn a_start_reports_what_it_found_in_its_folder() {
    let mut server = Server::new();
    server.start_again();
    let found = server.core.groups();
    let settings = GcSettingsCopy {
        revision: 1,
        ..GcSettingsCopy::default()
    };
    server.core.keep(Some(settings), &mut server.replies);
    server.settle();
    let report = server.core.report();
    assert_eq!(report.groups_found, Some(found));
    assert!(report.groups > found && report.groups == server.core.groups());
}

/// An older folder that is started again and again would catch up otherwise with what the master knows of the server.
#[test]
fn a_start_that_no_master_has_accepted_writes_nothing() {
    let mut server = Server::new();
    server.put("b", "1", 10, 11);
    server.put("b", "2", 20, 21);
    let points = Points {
        barrier: Timestamp::from_u64(30),
        safe_point: Timestamp::from_u64(30),
        ..Points::default()
    };
    server.core.reach(points, &mut server.replies);
    assert_eq!(server.commit_group(), 1);
    let groups = server.core.groups();
    server.start_again_without_lease();
    for _ in 0..10 {
        server.settle();
        assert_eq!(server.core.groups(), groups);
    }
    server.core.lease(lease(40, 0));
    server.settle();
    assert!(server.core.groups() > groups, "the garbage is collected");
}
