//! The answer to a prewrite says above what its transaction has to commit: above every snapshot that has read here
//! without meeting its locks.

use crate::support::{INCARNATION, Server, cell, prewrite};
use percolator_protocol::lease::Lease;
use percolator_protocol::types::Timestamp;
use percolator_wire::v1;
use percolator_wire::v1::commit_response::Result as Committed;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::response::Body;

fn get(row: &'static str, ts: u64) -> Ask {
    Ask::Get(v1::GetRequest {
        start_ts: ts,
        cells: vec![cell(row)],
        ..Default::default()
    })
}

fn commit(start_ts: u64, commit_ts: u64) -> Ask {
    Ask::Commit(v1::CommitRequest {
        start_ts,
        commit_ts,
        cells: vec![cell("b")],
    })
}

/// As a secondary: its primary lies elsewhere.
fn secondary(start_ts: u64) -> Ask {
    let Ask::Prewrite(mut request) = prewrite("b", "1", start_ts) else {
        unreachable!("a prewrite");
    };
    request.primary.as_mut().expect("a primary").table_id = 9;
    Ask::Prewrite(request)
}

fn min_commit_ts(body: Option<Body>) -> u64 {
    match body {
        Some(Body::Prewrite(answer)) => {
            assert!(
                answer.rejections.is_empty() && !answer.committed,
                "{answer:?}"
            );
            answer.min_commit_ts
        }
        other => panic!("no answer to a prewrite: {other:?}"),
    }
}

#[test]
fn it_lies_above_start_ts_and_above_what_was_read() {
    let mut server = Server::new();
    let answer = server.ask(secondary(10));
    assert_eq!(min_commit_ts(Some(answer)), 11);
    for (reads, highest) in [
        (get("b", 20), 20),
        (
            Ask::Scan(v1::ScanRequest {
                start_ts: 30,
                ..Default::default()
            }),
            30,
        ),
    ] {
        server.ask(reads);
        // The same request once more, and one on another cell.
        let again = server.ask(secondary(10));
        assert_eq!(min_commit_ts(Some(again)), highest + 1);
    }
    let above = server.ask(prewrite("c", "1", 40));
    assert_eq!(min_commit_ts(Some(above)), 41);
}

#[test]
fn reads_that_come_before_the_locks_are_durable_count() {
    let mut server = Server::new();
    let prewriting = server.send(secondary(10));
    let group = server.core.take_group().expect("a group");
    let read = server.send(get("b", 20));
    let answer = format!("{:?}", server.answer(read));
    assert!(
        answer.contains("Absent"),
        "it doesn't meet the lock: {answer}"
    );
    server.engine.commit(&group).expect("memory");
    server.core.committed(Ok(()), &mut server.replies);
    assert_eq!(min_commit_ts(server.answer(prewriting)), 21);
}

#[test]
fn the_primary_refuses_a_lower_commit_ts_and_a_secondary_none() {
    let mut server = Server::new();
    server.ask(get("b", 20));
    server.ask(prewrite("b", "1", 10));
    let Body::Commit(answer) = server.ask(commit(10, 15)) else {
        panic!("no answer to a commit");
    };
    let too_low = v1::CommitTooLow { min_commit_ts: 21 };
    assert_eq!(answer.result, Some(Committed::TooLow(too_low)));
    let Body::Commit(answer) = server.ask(commit(10, 22)) else {
        panic!("no answer to a commit");
    };
    assert!(matches!(answer.result, Some(Committed::Done(_))));

    let mut server = Server::new();
    server.ask(get("b", 20));
    assert_eq!(min_commit_ts(Some(server.ask(secondary(10)))), 21);
    let Body::Commit(answer) = server.ask(commit(10, 15)) else {
        panic!("no answer to a commit");
    };
    assert!(matches!(answer.result, Some(Committed::Done(_))));
}

#[test]
fn what_earlier_incarnations_have_answered_counts() {
    // It goes to the disk with the next group, whatever that is.
    let mut server = Server::new();
    server.ask(get("b", 20));
    server.put("d", "1", 5, 6);
    server.start_again();
    assert_eq!(min_commit_ts(Some(server.ask(secondary(10)))), 21);
    // Nor does a commit in one phase go below it.
    let Ask::Prewrite(request) = prewrite("c", "1", 11) else {
        unreachable!("a prewrite");
    };
    let one_phase = v1::PrewriteRequest {
        one_phase: Some(v1::OnePhase {
            commit_ts: 15,
            incarnation: INCARNATION + 1,
        }),
        ..request
    };
    assert_eq!(
        min_commit_ts(Some(server.ask(Ask::Prewrite(one_phase)))),
        21
    );
    // One that may go on: the master says how far it may answer.
    let mut server = Server::new();
    server.core.lease(Lease {
        until: Timestamp::MAX,
        commits_above: Timestamp::from_u64(50),
    });
    assert_eq!(min_commit_ts(Some(server.ask(secondary(10)))), 51);
}
