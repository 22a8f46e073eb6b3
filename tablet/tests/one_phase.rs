//! Commits in one phase, as the server's core carries them out: what readers see while one is on its way
//! to the disk, and what another incarnation of the server knows.

use crate::support::{INCARNATION, Server, cell, poisoned, prewrite, refused};
use percolator_engine::Column;
use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::request_error::Kind;
use percolator_wire::v1::response::Body;

fn one_phase(row: &'static str, value: &'static str, start_ts: u64, commit_ts: u64) -> Ask {
    let Ask::Prewrite(request) = prewrite(row, value, start_ts) else {
        unreachable!("a prewrite");
    };
    Ask::Prewrite(v1::PrewriteRequest {
        one_phase: Some(v1::OnePhase {
            commit_ts,
            incarnation: INCARNATION,
        }),
        ..request
    })
}

fn get(row: &'static str, ts: u64, whole_rows: bool) -> Ask {
    Ask::Get(v1::GetRequest {
        start_ts: ts,
        cells: vec![cell(row)],
        whole_rows,
        ..Default::default()
    })
}

fn scan(ts: u64) -> Ask {
    Ask::Scan(v1::ScanRequest {
        start_ts: ts,
        ..Default::default()
    })
}

/// Sends it, and says whether it was committed; prewritten otherwise.
fn committed(server: &mut Server, request: Ask) -> bool {
    let Body::Prewrite(answer) = server.ask(request) else {
        panic!("no answer to a prewrite");
    };
    assert!(answer.rejections.is_empty(), "{answer:?}");
    answer.committed
}

#[test]
fn one_group_makes_it_durable_and_no_lock_is_left() {
    let mut server = Server::new();
    assert!(committed(&mut server, one_phase("b", "1", 10, 12)));
    assert_eq!(server.core.locks(), 0);
    assert_eq!(server.value("b", 11), None);
    assert_eq!(server.value("b", 12).as_deref(), Some("1"));
}

#[test]
fn readers_above_it_wait_until_it_can_be_read_and_others_do_not() {
    for reads in [
        get("b", 12, false),
        get("b", 12, true),
        scan(12),
        scan(1000),
    ] {
        let mut server = Server::new();
        server.put("b", "old", 5, 6);
        let writing = server.send(one_phase("b", "new", 10, 12));
        let held = server.send(reads);
        let older = server.send(get("b", 11, false));
        let other = server.send(get("c", 12, false));
        assert!(server.answer(older).is_some() && server.answer(other).is_some());
        // Also while the engine has it already, and the server doesn't know yet.
        let group = server.core.take_group().expect("a group");
        server.engine.commit(&group).expect("memory");
        let later = server.send(get("b", 13, false));
        assert!(server.answer(held).is_none() && server.answer(later).is_none());
        server.core.committed(Ok(()), &mut server.replies);
        assert!(matches!(server.answer(writing), Some(Body::Prewrite(answer)) if answer.committed));
        for id in [held, later] {
            let answer = format!("{:?}", server.answer(id).expect("an answer"));
            assert!(answer.contains("new"), "{answer}");
        }
    }
}

#[test]
fn a_snapshot_that_has_read_is_not_passed_below() {
    for (reads, at) in [
        (get("b", 20, false), 20),
        (get("b", 20, true), 20),
        (scan(20), 20),
    ] {
        let mut server = Server::new();
        server.put("b", "old", 5, 6);
        server.ask(reads.clone());
        assert!(!committed(&mut server, one_phase("b", "new", 10, at)));
        assert_eq!(server.core.locks(), 1, "prewritten instead");
        server.ask(Ask::Rollback(v1::RollbackRequest {
            start_ts: 10,
            cells: vec![cell("b")],
        }));
        assert!(committed(&mut server, one_phase("b", "new", 11, at + 1)));
        assert_eq!(server.value("b", at).as_deref(), Some("old"));
    }
}

#[test]
fn what_fails_on_the_disk_lets_its_readers_go() {
    let mut server = Server::new();
    server.put("b", "old", 5, 6);
    let writing = server.send(one_phase("b", "new", 10, 12));
    let held = server.send(get("b", 12, false));
    assert_eq!(server.refuse_group(), 1);
    assert!(matches!(server.answer(writing), Some(Body::Error(_))));
    let answer = format!("{:?}", server.answer(held).expect("an answer"));
    assert!(answer.contains("old"), "{answer}");
}

/// The log may have the group, and then the next process has it too.
#[test]
fn a_server_whose_disk_failed_answers_no_reads_from_its_cache() {
    let mut server = Server::new();
    server.put("b", "old", 5, 6);
    server.ask(get("b", 7, false));
    let writing = server.send(one_phase("b", "new", 10, 12));
    assert_eq!(server.fail_group(poisoned()), 1);
    assert!(matches!(
        refused(server.answer(writing)),
        Kind::Failed(failed) if failed.unknown
    ));
    for reads in [get("b", 13, false), get("b", 13, true), scan(13)] {
        let read = server.send(reads);
        assert!(matches!(refused(server.answer(read)), Kind::Failed(_)));
    }
}

#[test]
fn another_incarnation_prewrites_and_reports_its_number() {
    let mut server = Server::new();
    server.start_again();
    let Body::Prewrite(answer) = server.ask(one_phase("b", "new", 10, 12)) else {
        panic!("no answer to a prewrite");
    };
    assert!(!answer.committed && answer.rejections.is_empty());
    assert_eq!(answer.incarnation, INCARNATION + 1);
    assert_eq!(server.core.locks(), 1);
    let records = server.engine.get(Column::Write, b"").expect("memory");
    assert!(records.is_none());
}

#[test]
fn all_or_nothing() {
    let mut server = Server::new();
    // Somebody has read the second cell, at a snapshot above.
    server.ask(get("c", 12, false));
    let Ask::Prewrite(mut request) = one_phase("b", "new", 10, 12) else {
        unreachable!("a prewrite");
    };
    let mut second = request.mutations[0].clone();
    second.cell = Some(cell("c"));
    request.mutations.push(second);
    assert!(!committed(&mut server, Ask::Prewrite(request)));
    assert_eq!(server.core.locks(), 2);
}
