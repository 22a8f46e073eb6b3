//! Notifications of changes on observed columns: which batches write and remove them, who may acknowledge them, and what
//! becomes of them when tablets are split, merged and handed over.

use crate::support;
use std::time::Duration;

use crate::support::observers::*;
use crate::support::{INCARNATION, Server, cell, prewrite, refused};
use bytes::Bytes;
use percolator_engine::Column;
use percolator_protocol::types::ack_column;
use percolator_tablet::core::TabletCommand;
use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::request_error::Kind;
use percolator_wire::v1::response::Body;

#[test]
fn a_change_of_an_observed_column_leaves_a_notification_and_no_other_does() {
    let mut server = Server::new();
    server.put("a", "before", 1, 2);
    observe(&mut server);
    assert_eq!(waiting(&mut server), []);
    server.put("b", "x", 10, 11);
    let mut other = cell("d");
    other.column = "other".into();
    let Ask::Prewrite(mut request) = prewrite("d", "x", 12) else {
        panic!("no prewrite");
    };
    request.mutations[0].cell = Some(other.clone());
    server.ask(Ask::Prewrite(request));
    server.ask(commit(vec![other], 12, 13));
    assert_eq!(waiting(&mut server), [found("b", 11)]);
    // Again: one notification, of the last change.
    server.put("b", "y", 14, 15);
    assert_eq!(waiting(&mut server), [found("b", 15)]);
    server.start_again();
    assert_eq!(waiting(&mut server), [found("b", 15)]);
    server.put("c", "z", 16, 17);
    assert_eq!(waiting(&mut server), [found("b", 15), found("c", 17)]);
}

#[test]
fn it_is_in_the_batch_of_the_write_record() {
    let mut server = observing();
    server.ask(prewrite("b", "x", 10));
    server.send(commit(vec![cell("b")], 10, 11));
    let group = server.core.take_group().expect("a group");
    let columns_of_each = group.iter().map(|batch| {
        let mut columns: Vec<Column> = batch.ops().map(|(column, ..)| column).collect();
        columns.sort_unstable();
        columns
    });
    let with_record: Vec<Vec<Column>> = columns_of_each
        .filter(|columns| columns.contains(&Column::Write))
        .collect();
    assert_eq!(with_record.len(), 1);
    assert!(with_record[0].contains(&Column::Notify), "{with_record:?}");
}

#[test]
fn a_late_copy_of_a_commit_notifies_nobody() {
    let mut server = observing();
    server.put("b", "x", 10, 11);
    acknowledge(&mut server, "b", 12, 13);
    server.ask(commit(vec![cell("b")], 10, 11));
    assert_eq!(waiting(&mut server), []);
}

#[test]
fn a_rollback_beside_a_commit_notifies_nobody() {
    let mut server = observing();
    server.put("b", "x", 10, 11);
    acknowledge(&mut server, "b", 12, 13);
    // Of a transaction that began at the commit_ts: the record is written again, with the rollback in it.
    server.ask(Ask::Rollback(v1::RollbackRequest {
        start_ts: 11,
        cells: vec![cell("b")],
    }));
    assert_eq!(waiting(&mut server), []);
}

#[test]
fn an_acknowledgement_removes_what_its_snapshot_has_seen() {
    let mut server = observing();
    server.put("b", "x", 10, 11);
    acknowledge(&mut server, "b", 12, 13);
    assert_eq!(waiting(&mut server), []);
    assert_eq!(server.content(Column::Notify), []);
    // Nothing of it can be read.
    let id = server.send(Ask::Scan(v1::ScanRequest {
        start_ts: 20,
        ..Default::default()
    }));
    server.settle();
    let Some(Body::Scan(scanned)) = server.answer(id) else {
        panic!("no answer to a scan");
    };
    assert_eq!(scanned.cells.len(), 1);
}

#[test]
fn a_change_that_the_snapshot_has_not_seen_stays() {
    let mut server = observing();
    server.put("b", "x", 10, 11);
    let prewrite = Ask::Prewrite(acknowledging("b", 12, &[]));
    assert_eq!(rejections(server.ask(prewrite)), []);
    server.put("b", "y", 13, 14);
    server.ask(commit(vec![ack_cell("b")], 12, 15));
    assert_eq!(waiting(&mut server), [found("b", 14)]);
    acknowledge(&mut server, "b", 16, 17);
    assert_eq!(waiting(&mut server), []);
}

/// Otherwise a cell that changes faster than its handler runs would never be run for.
#[test]
fn a_run_commits_though_its_cell_changes_meanwhile() {
    let mut server = observing();
    server.put("b", "1", 10, 11);
    // Before the acknowledgement, and behind it.
    server.put("b", "2", 13, 14);
    let prewrite = |start| Ask::Prewrite(acknowledging("b", start, &[]));
    assert_eq!(rejections(server.ask(prewrite(12))), []);
    server.put("b", "3", 15, 16);
    server.ask(commit(vec![ack_cell("b")], 12, 17));
    assert_eq!(waiting(&mut server), [found("b", 16)]);
    server.start_again();
    assert_eq!(waiting(&mut server), [found("b", 16)]);
    // What a run behind it has to see is the last one.
    let id = server.send(prewrite(18));
    server.put("b", "4", 19, 20);
    let answer = server.answer(id).expect("an answer");
    assert_eq!(rejections(answer), []);
    server.ask(commit(vec![ack_cell("b")], 18, 21));
    assert_eq!(waiting(&mut server), [found("b", 20)]);
    acknowledge(&mut server, "b", 22, 23);
    assert_eq!(waiting(&mut server), []);
}

#[test]
fn of_two_runs_for_one_change_one_commits() {
    let mut server = observing();
    server.put("b", "x", 10, 11);
    let second = || Ask::Prewrite(acknowledging("b", 13, &[]));
    acknowledge(&mut server, "b", 12, 14);
    // It began before the other one committed: a conflict on the hidden cell.
    assert_eq!(rejections(server.ask(second())), [None]);
    // It begins after that: nothing waits.
    let late = Ask::Prewrite(acknowledging("b", 15, &[]));
    assert_eq!(rejections(server.ask(late)), [Some(0)]);
    // It has not seen what waits.
    server.put("b", "y", 20, 21);
    let early = Ask::Prewrite(acknowledging("b", 16, &[]));
    assert_eq!(rejections(server.ask(early)), [Some(21)]);
    acknowledge(&mut server, "b", 22, 23);
    assert_eq!(waiting(&mut server), []);
}

#[test]
fn a_late_copy_of_an_acknowledgement_finds_its_lock_or_its_record() {
    let mut server = observing();
    server.put("b", "x", 10, 11);
    let prewrite = || Ask::Prewrite(acknowledging("b", 12, &[]));
    assert_eq!(rejections(server.ask(prewrite())), []);
    assert_eq!(rejections(server.ask(prewrite())), []);
    server.ask(commit(vec![ack_cell("b")], 12, 13));
    let Body::Prewrite(answer) = server.ask(prewrite()) else {
        panic!("no answer");
    };
    use v1::prewrite_rejection::Reason;
    let reason = answer.rejections[0].reason.clone();
    assert!(matches!(reason, Some(Reason::Committed(at)) if at.commit_ts == 13));
}

#[test]
fn in_one_phase_the_same_holds() {
    let mut server = observing();
    let one_phase = |request: v1::PrewriteRequest, commit_ts| {
        Ask::Prewrite(v1::PrewriteRequest {
            one_phase: Some(v1::OnePhase {
                commit_ts,
                incarnation: INCARNATION,
            }),
            ..request
        })
    };
    let Ask::Prewrite(change) = prewrite("b", "x", 10) else {
        panic!("no prewrite");
    };
    server.ask(one_phase(change, 11));
    assert_eq!(waiting(&mut server), [found("b", 11)]);
    let run = || one_phase(acknowledging("b", 12, &[]), 13);
    let Body::Prewrite(answer) = server.ask(run()) else {
        panic!("no answer");
    };
    assert!(answer.committed);
    assert_eq!(waiting(&mut server), []);
    let late = one_phase(acknowledging("b", 14, &[]), 15);
    assert_eq!(rejections(server.ask(late)), [Some(0)]);
    assert!(server.content(Column::Lock).is_empty());
}

#[test]
fn a_run_that_changes_its_own_cell_is_notified_of_that() {
    for order in [[0, 1], [1, 0]] {
        let mut server = observing();
        server.put("b", "x", 10, 11);
        let run = Ask::Prewrite(acknowledging("b", 12, &["again"]));
        assert_eq!(rejections(server.ask(run)), []);
        let cells = order.map(|at| [ack_cell("b"), cell("b")][at].clone());
        server.ask(commit(cells.to_vec(), 12, 13));
        assert_eq!(waiting(&mut server), [found("b", 13)]);
    }
}

#[test]
fn a_large_transactions_locks_notify_when_they_are_resolved() {
    let mut server = observing();
    let Ask::Prewrite(request) = prewrite("b", "x", 10) else {
        panic!("no prewrite");
    };
    server.ask(Ask::Prewrite(v1::PrewriteRequest {
        generation: 1,
        ..request
    }));
    server.ask(Ask::Resolve(v1::ResolveRequest {
        start_ts: 10,
        commit_ts: 11,
        ..Default::default()
    }));
    assert_eq!(waiting(&mut server), [found("b", 11)]);
}

#[test]
fn columns_of_acknowledgements_are_for_nothing_else() {
    let mut server = observing();
    let mut request = acknowledging("b", 10, &[]);
    request.mutations[0].kind = v1::LockKind::Put.into();
    let id = server.send(Ask::Prewrite(request));
    assert!(matches!(refused(server.answer(id)), Kind::Invalid(_)));
    let id = server.send(Ask::Observe(v1::ObserveRequest {
        column: ack_column(b"c"),
    }));
    assert!(matches!(refused(server.answer(id)), Kind::Invalid(_)));
    let id = server.send(Ask::Observe(v1::ObserveRequest {
        column: vec![b'c'; 1024].into(),
    }));
    assert!(matches!(refused(server.answer(id)), Kind::Invalid(_)));
}

#[test]
fn what_is_not_observed_is_refused() {
    let mut server = Server::new();
    let id = server.send(asking(1, 0, 0));
    assert!(matches!(refused(server.answer(id)), Kind::Invalid(_)));
    let weak = Ask::Notify(v1::NotifyRequest {
        cells: vec![cell("b")],
        at: 10,
    });
    let id = server.send(weak);
    assert!(matches!(refused(server.answer(id)), Kind::Invalid(_)));
}

#[test]
fn a_weak_notification_waits_as_others_do() {
    let mut server = observing();
    let weak = |at| {
        Ask::Notify(v1::NotifyRequest {
            cells: vec![cell("b")],
            at,
        })
    };
    assert!(matches!(server.ask(weak(10)), Body::Notify(_)));
    assert!(matches!(server.ask(weak(9)), Body::Notify(_)));
    assert_eq!(waiting(&mut server), [found("b", 10)]);
    acknowledge(&mut server, "b", 10, 11);
    assert_eq!(waiting(&mut server), []);
    // Its copy, which comes when its answer was lost, is no other one.
    assert!(matches!(server.ask(weak(10)), Body::Notify(_)));
    assert_eq!(waiting(&mut server), []);
    assert!(matches!(server.ask(weak(12)), Body::Notify(_)));
    assert_eq!(waiting(&mut server), [found("b", 12)]);
}

#[test]
fn what_waits_is_counted() {
    let mut server = observing();
    server.put("b", "x", 10, 11);
    server.put("c", "x", 12, 13);
    let Body::Notifications(found) = server.ask(Ask::Notifications(v1::NotificationsRequest {
        column: "c".into(),
        count: true,
        ..Default::default()
    })) else {
        panic!("no answer");
    };
    assert_eq!((found.waiting, found.oldest, found.locked), (2, 11, 0));
    assert!(found.notifications.is_empty() && found.resume.is_none());
    // What is locked may be about to change.
    server.ask(prewrite("d", "x", 14));
    let count = |server: &mut Server, from: Option<v1::CellName>| {
        let ask = v1::NotificationsRequest {
            column: "c".into(),
            count: true,
            from,
            ..Default::default()
        };
        match server.ask(Ask::Notifications(ask)) {
            Body::Notifications(found) => (found.waiting, found.oldest, found.locked),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(count(&mut server, None), (2, 11, 1));
    let from = v1::CellName {
        table_id: 5,
        row: "c".into(),
        column: "c".into(),
    };
    assert_eq!(count(&mut server, Some(from)), (1, 13, 0));
}

#[test]
fn a_lock_whose_owner_may_be_dead_is_named() {
    let mut server = observing();
    let locked = |server: &mut Server| {
        let id = server.send(Ask::Notifications(v1::NotificationsRequest {
            column: "c".into(),
            limit: 1,
            wait_ms: 1000,
            locked: true,
            ..Default::default()
        }));
        let answer = server.answer(id).map(|body| match body {
            Body::Notifications(found) => found.locked_rows,
            other => panic!("{other:?}"),
        });
        server
            .core
            .tick(Duration::from_secs(2), &mut server.replies);
        answer
    };
    // Nothing is locked: it waits.
    assert_eq!(locked(&mut server), None);
    server.ask(prewrite("b", "x", 10));
    assert_eq!(locked(&mut server), Some(vec![Bytes::from("b")]));
    server.ask(commit(vec![cell("b")], 10, 11));
    acknowledge(&mut server, "b", 12, 13);
    assert_eq!(locked(&mut server), None);
}

#[test]
fn both_parts_of_a_split_are_observed_and_so_is_the_whole() {
    let mut server = observing();
    server.put("b", "x", 10, 11);
    let split = TabletCommand::Split {
        id: 1,
        epoch: 1,
        row: "e".into(),
        sibling: 2,
    };
    // Who waits at the tablet of before is sent away.
    let id = server.send(asking(1, 9000, 1000));
    let waits = server.send(asking(1, 9000, 1000));
    assert!(server.answer(id).is_some() && server.answer(waits).is_none());
    assert!(server.command(split).is_none());
    server.settle();
    assert!(matches!(refused(server.answer(waits)), Kind::NotServed(_)));
    server.start_again();
    let put = |server: &mut Server, tablet, epoch, row, start| {
        server.send_to(tablet, epoch, prewrite(row, "x", start));
        server.settle();
        server.send_to(tablet, epoch, commit(vec![cell(row)], start, start + 1));
        server.settle();
    };
    let ask = |server: &mut Server, tablet, epoch| {
        let id = server.send_to(tablet, epoch, asking(9, 0, 0));
        server.settle();
        rows(&server.answer(id).expect("an answer"))
    };
    put(&mut server, 2, 2, "f", 12);
    assert_eq!(ask(&mut server, 1, 2), [found("b", 11)]);
    assert_eq!(ask(&mut server, 2, 2), [found("f", 13)]);
    let merge = TabletCommand::Merge {
        first: (1, 2),
        second: (2, 2),
    };
    server.core.command(
        7,
        0,
        Some(support::me(INCARNATION + 1).into()),
        merge,
        &mut server.replies,
    );
    server.settle();
    server.start_again();
    put(&mut server, 1, 3, "g", 14);
    let all = [found("b", 11), found("f", 13), found("g", 15)];
    assert_eq!(ask(&mut server, 1, 3), all);
}

#[test]
fn a_dropped_tablet_leaves_nothing_of_it() {
    let mut server = observing();
    server.put("b", "x", 10, 11);
    server.drop_tablet(1);
    server.settle();
    assert_eq!(server.content(Column::Notify), []);
    let meta = server.content(Column::Meta);
    assert!(!meta.iter().any(|(key, _)| key.starts_with(b"observed/")));
}

#[test]
fn notifications_go_where_their_tablet_goes() {
    for restarts in [false, true] {
        let mut owner = observing();
        // Two chunks at least.
        let long: &'static str = Box::leak("long".repeat(300_000).into_boxed_str());
        owner.put("k", long, 1, 2);
        owner.put("l", long, 3, 4);
        acknowledge(&mut owner, "k", 5, 6);
        acknowledge(&mut owner, "l", 7, 8);
        owner.put("b", "x", 10, 11);
        owner.put("c", "x", 12, 13);
        let mut other = hand_over(&mut owner, restarts, |owner| {
            owner.put("d", "x", 14, 15);
            acknowledge(owner, "b", 16, 17);
        });
        let mut ask = |ask| {
            let id = other.send_to(1, 2, ask);
            other.settle();
            other.answer(id).expect("an answer")
        };
        let all = [found("c", 13), found("d", 15)];
        assert_eq!(rows(&ask(asking(9, 0, 0))), all, "restarts: {restarts}");
        // It is observed there as well.
        ask(prewrite("e", "x", 20));
        ask(commit(vec![cell("e")], 20, 21));
        assert_eq!(rows(&ask(asking(9, 0, 0))).len(), 3);
        // The same change is run for once.
        let done = Ask::Prewrite(acknowledging("b", 22, &[]));
        assert_eq!(rejections(ask(done)), [Some(0)]);
        // Nothing of it is left at the owner.
        let meta = owner.content(Column::Meta);
        assert!(!meta.iter().any(|(key, _)| key.starts_with(b"observed/")));
        owner.core.settle(&[1], &mut owner.replies);
        owner.settle();
        assert_eq!(owner.content(Column::Notify), []);
    }
}

fn of_worker(wait_ms: u32, request: v1::NotificationsRequest) -> Ask {
    Ask::Notifications(v1::NotificationsRequest {
        column: "c".into(),
        wait_ms,
        lease_ms: 60_000,
        worker: 7,
        ..request
    })
}

#[test]
fn a_worker_that_stops_is_sent_nothing_more() {
    let mut server = observing();
    let asks = |limit| v1::NotificationsRequest {
        limit,
        ..Default::default()
    };
    let waits = server.send(of_worker(10_000, asks(10)));
    let other = server.send(asking(10, 10_000, 0));
    server.settle();
    assert!(server.answer(waits).is_none());
    let stops = v1::NotificationsRequest {
        stops: true,
        ..Default::default()
    };
    let stopped = server.send(of_worker(0, stops));
    for id in [waits, stopped] {
        assert_eq!(rows(&server.answer(id).expect("an answer")), []);
    }
    assert!(server.answer(other).is_none(), "another worker waits");
    server.put("b", "x", 10, 11);
    assert_eq!(
        rows(&server.answer(other).expect("an answer")),
        [found("b", 11)]
    );
    assert_eq!(waiting(&mut server), [found("b", 11)]);
}

#[test]
fn changes_that_a_worker_returns_are_sent_to_others() {
    let mut server = observing();
    server.put("b", "x", 10, 11);
    server.put("c", "x", 12, 13);
    let asks = v1::NotificationsRequest {
        limit: 10,
        ..Default::default()
    };
    let sent = server.ask(of_worker(0, asks));
    assert_eq!(rows(&sent), [found("b", 11), found("c", 13)]);
    let other = server.send(asking(10, 10_000, 0));
    assert!(server.answer(other).is_none(), "they are leased");
    let returns = v1::NotificationsRequest {
        returned: vec!["c".into()],
        ..Default::default()
    };
    server.ask(of_worker(0, returns));
    let sent = server.answer(other).expect("an answer");
    assert_eq!(rows(&sent), [found("c", 13)]);
}

/// Its lease ends with the acknowledgement, not when it would have run out.
#[test]
fn a_change_behind_an_acknowledgement_is_sent_at_once() {
    let mut server = observing();
    server.put("b", "x", 10, 11);
    let asks = v1::NotificationsRequest {
        limit: 10,
        ..Default::default()
    };
    let sent = server.ask(of_worker(0, asks));
    assert_eq!(rows(&sent), [found("b", 11)]);
    let other = server.send(asking(10, 10_000, 0));
    server.settle();
    let prewrite = Ask::Prewrite(acknowledging("b", 12, &[]));
    assert_eq!(rejections(server.ask(prewrite)), []);
    server.put("b", "y", 13, 14);
    assert!(server.answer(other).is_none(), "it is leased");
    server.ask(commit(vec![ack_cell("b")], 12, 15));
    let sent = server.answer(other).expect("an answer");
    assert_eq!(rows(&sent), [found("b", 14)]);
}
