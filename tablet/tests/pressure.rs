//! The server's core when the disk is full, a tablet is dropped under load, or too much waits.

use crate::support::{Server, cell, prewrite, prewrite_row, refused};
use percolator_tablet::Limits;
use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::request_error::Kind;
use percolator_wire::v1::response::Body;

/// On a disk that is full for new data alone: what ends a transaction goes on, also where it shared a group
/// with what is refused, and neither kind keeps the other one waiting.
#[test]
fn locks_are_resolved_while_new_data_is_refused() {
    let mut server = Server::new();
    server.ask(prewrite("b", "1", 10));
    server.ask(prewrite("c", "1", 11));
    let new = server.send(prewrite("d", "1", 12));
    let commit = server.send(Ask::Commit(v1::CommitRequest {
        start_ts: 10,
        commit_ts: 20,
        cells: vec![cell("b")],
    }));
    let status = server.send(Ask::CheckStatus(v1::CheckStatusRequest {
        start_ts: 11,
        now: 1 << 62,
        primary: Some(cell("c")),
        ..Default::default()
    }));
    assert_eq!(server.commit_group_short_of_room(), 3);
    assert!(matches!(
        refused(server.answer(new)),
        Kind::Failed(failed) if !failed.unknown && failed.message.contains("no space")
    ));
    // New ones that come meanwhile neither spoil the others' group nor wait for ever.
    let late = server.send(prewrite("e", "1", 30));
    assert_eq!(server.commit_group_short_of_room(), 2);
    assert!(matches!(
        server.answer(commit),
        Some(Body::Commit(answer)) if matches!(answer.result, None | Some(v1::commit_response::Result::Done(_)))
    ));
    assert!(matches!(server.answer(status), Some(Body::CheckStatus(_))));
    assert_eq!(server.commit_group_short_of_room(), 1);
    assert!(matches!(refused(server.answer(late)), Kind::Failed(_)));
    assert_eq!(server.commit_group_short_of_room(), 0);
    assert_eq!(server.core.locks(), 0);
    assert_eq!(server.value("b", 40).as_deref(), Some("1"));
    assert_eq!(server.value("d", 40), None);
    server.put("d", "later", 50, 60);
    assert_eq!(server.value("d", 60).as_deref(), Some("later"));
}

/// A server with a tablet that was dropped, and rows of it that are still there.
fn dropped() -> Server {
    let mut server = Server::new();
    server.put("b", "1", 10, 20);
    server.create(2, "m", "z");
    server.drop_tablet(1);
    assert_eq!(server.commit_group(), 1, "the tablet is dropped");
    server
}

#[test]
fn rows_of_a_dropped_tablet_go_from_a_disk_that_is_full_for_new_data() {
    let mut server = dropped();
    let new = server.send_to(2, 1, prewrite("n", "1", 10));
    while server.commit_group_short_of_room() > 0 {}
    assert!(matches!(refused(server.answer(new)), Kind::Failed(_)));
    assert_eq!(server.left(), 1, "the other tablet's record");
}

#[test]
fn rows_of_a_dropped_tablet_wait_for_room() {
    let mut server = dropped();
    // The clean-up is refused, and isn't tried again and again.
    assert_eq!(server.refuse_group(), 1);
    for _ in 0..3 {
        assert_eq!(server.refuse_group(), 0, "tried again at once");
    }
    assert!(server.left() > 0);
    let next = server.send_to(2, 1, prewrite("n", "1", 10));
    server.settle();
    assert!(server.answer(next).is_some());
    let resolved = server.send_to(
        2,
        1,
        Ask::Rollback(v1::RollbackRequest {
            start_ts: 10,
            cells: vec![cell("n")],
        }),
    );
    server.settle();
    assert!(server.answer(resolved).is_some());
    // What is left is the other tablet's record, and its rollback.
    assert_eq!(server.left(), 2);
}

/// Rows of dropped tablets go while others are written, a bounded piece with each group.
#[test]
fn rows_of_a_dropped_tablet_go_under_load_too() {
    let mut server = Server::new();
    server.create(2, "m", "z");
    for i in 0..1000 {
        let row = format!("b{i:03}");
        let id = server.send(prewrite_row(row.clone().into(), "1", 10 + i));
        server.send(Ask::Commit(v1::CommitRequest {
            start_ts: 10 + i,
            commit_ts: 5000 + i,
            cells: vec![v1::CellRef {
                row: row.into(),
                ..cell("b")
            }],
        }));
        if i % 100 == 0 {
            server.settle();
            assert!(server.answer(id).is_some());
        }
    }
    server.settle();
    // One that is decided before the tablet is gone, and durable after it.
    server.drop_tablet(1);
    let drop = server.core.take_group().expect("a group");
    let late = server.send(prewrite("k", "1", 9000));
    let result = server.engine.commit(&drop);
    server.core.committed(result, &mut server.replies);
    assert_eq!(server.commit_group(), 1, "the late one goes first");
    assert!(server.left() > 1000);
    let mut groups = 0;
    // The other tablet's record, and a lock of each group.
    while server.left() > 1 + groups {
        let row = format!("n{groups}").into();
        server.send_to(2, 1, prewrite_row(row, "1", 10_000));
        let left = server.left();
        assert_eq!(server.commit_group(), 2, "a piece goes with each group");
        assert!(left - server.left() <= 100, "a piece is bounded");
        groups += 1;
    }
    assert!(server.answer(late).is_some());
    assert!(groups > 10, "all at once");
    assert_eq!(server.core.locks(), groups, "of tablet 2 alone");
}

#[test]
fn requests_that_wait_for_a_row_are_bounded_by_their_bytes() {
    let mut server = Server::new();
    let value = bytes::Bytes::from(vec![1; 4 << 20]);
    let ask = |start_ts| match prewrite("b", "", start_ts) {
        Ask::Prewrite(mut request) => {
            request.mutations[0].value = value.clone();
            Ask::Prewrite(request)
        }
        other => other,
    };
    let ids: Vec<u64> = (10..60).map(|ts| server.send(ask(ts))).collect();
    let refusals: Vec<String> = ids
        .iter()
        .filter_map(|id| server.answer(*id))
        .map(|answer| match refused(Some(answer)) {
            Kind::Busy(why) => why,
            other => panic!("{other:?}"),
        })
        .collect();
    // The first one is decided, and 16 of 4 MiB wait.
    assert_eq!(refusals.len(), 33, "{:?}", refusals.first());
    assert!(refusals[0].contains("wait"), "{}", refusals[0]);
    // A request for the wrong server is not refused as busy.
    let elsewhere = server.send_to(9, 1, ask(70));
    let kind = refused(server.answer(elsewhere));
    assert!(matches!(kind, Kind::NotServed(_)), "{kind:?}");
    server.settle();
    // They were answered, and there's room again.
    let again = [server.send(ask(90)), server.send(ask(91))];
    server.settle();
    for id in again {
        assert!(matches!(server.answer(id), Some(Body::Prewrite(_))));
    }
}

/// A request with many rows lets all who waited for them go on at once.
#[test]
fn decided_batches_are_bounded_by_their_bytes_also_of_requests_that_waited() {
    let mut server = Server::within(Limits {
        decided_bytes: 500,
        ..Limits::default()
    });
    let rows: Vec<String> = (0..50).map(|row| format!("b{row:02}")).collect();
    let places = rows.iter().map(|row| v1::CellRef {
        row: row.clone().into(),
        ..cell("")
    });
    let all = server.send(Ask::Rollback(v1::RollbackRequest {
        start_ts: 5,
        cells: places.collect(),
    }));
    let first = server.core.take_group().expect("a group");
    let ids: Vec<u64> = rows
        .iter()
        .map(|row| server.send(prewrite_row(row.clone().into(), "1", 10)))
        .collect();
    assert_eq!(server.core.usage().queued.count, rows.len());
    let result = server.engine.commit(&first);
    server.core.committed(result, &mut server.replies);
    let mut groups = 0;
    loop {
        let decided = server.core.usage().decided;
        assert!(
            decided.bytes - decided.largest_bytes < 500,
            "{} bytes are decided",
            decided.bytes
        );
        if server.commit_group() == 0 {
            break;
        }
        groups += 1;
    }
    assert!(groups > 2, "{groups} groups");
    assert!(server.answer(all).is_some());
    for id in ids {
        assert!(matches!(server.answer(id), Some(Body::Prewrite(_))));
    }
    assert_eq!(server.core.locks(), rows.len());
}
