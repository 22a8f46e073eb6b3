//! The server's core, without socket, clock or thread: requests in, groups and answers out.

use crate::support::{INCARNATION, Server, cell, poisoned, prewrite, refused};
use percolator_engine::{Batch, Column};
use percolator_wire::v1;
use percolator_wire::v1::get_result::Result as Got;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::request_error::Kind;
use percolator_wire::v1::response::Body;

#[test]
fn what_is_decided_while_a_group_is_on_its_way_makes_the_next_one() {
    let mut server = Server::new();
    let first = server.send(prewrite("b", "1", 10));
    let group = server.core.take_group().expect("a group");
    assert_eq!(group.len(), 1);
    let others: Vec<u64> = ["c", "d", "e"]
        .into_iter()
        .map(|row| server.send(prewrite(row, "1", 11)))
        .collect();
    assert!(server.core.take_group().is_none(), "one group at a time");
    assert!(
        server.answer(first).is_none(),
        "answered before it is durable"
    );
    let result = server.engine.commit(&group);
    server.core.committed(result, &mut server.replies);
    assert!(server.answer(first).is_some());
    assert_eq!(server.commit_group(), 3);
    for id in others {
        assert!(server.answer(id).is_some());
    }
}

#[test]
fn a_row_that_is_being_written_is_decided_about_by_one_request_after_the_other() {
    let mut server = Server::new();
    let one = server.send(prewrite("b", "1", 10));
    let two = server.send(prewrite("b", "2", 11));
    assert_eq!(server.commit_group(), 1);
    assert!(matches!(
        server.answer(one),
        Some(Body::Prewrite(answer)) if answer.rejections.is_empty()
    ));
    // The second one saw the first one's lock, although both were sent before it was durable.
    assert!(matches!(
        server.answer(two),
        Some(Body::Prewrite(answer)) if answer.rejections.len() == 1
    ));
    assert_eq!(server.core.locks(), 1);
}

#[test]
fn snapshots_see_what_was_committed_at_or_below_them_also_from_the_cache() {
    let mut server = Server::new();
    server.put("b", "old", 10, 20);
    for _ in 0..2 {
        assert_eq!(server.value("b", 19), None);
        assert_eq!(server.value("b", 20).as_deref(), Some("old"));
    }
    server.ask(prewrite("b", "new", 30));
    assert_eq!(server.value("b", 29).as_deref(), Some("old"));
    // Its commit will lie above its start, so only snapshots above that have to ask.
    assert_eq!(server.value("b", 30).as_deref(), Some("old"));
    assert!(matches!(server.get("b", 31), Got::Locked(_)));
    server.ask(Ask::Commit(v1::CommitRequest {
        start_ts: 30,
        commit_ts: 40,
        cells: vec![cell("b")],
    }));
    for _ in 0..2 {
        assert_eq!(server.value("b", 39).as_deref(), Some("old"));
        assert_eq!(server.value("b", 40).as_deref(), Some("new"));
    }
    // A rollback record above the newest version hides nothing.
    server.ask(Ask::Rollback(v1::RollbackRequest {
        start_ts: 50,
        cells: vec![cell("b")],
    }));
    assert_eq!(server.value("b", 60).as_deref(), Some("new"));
}

/// A rollback that has to be kept inside another transaction's old record must not make that record
/// look like the newest one.
#[test]
fn a_rollback_inside_an_old_record_leaves_the_newest_version_alone() {
    let mut server = Server::new();
    server.put("b", "old", 10, 20);
    server.put("b", "new", 30, 40);
    server.ask(Ask::Rollback(v1::RollbackRequest {
        start_ts: 20,
        cells: vec![cell("b")],
    }));
    assert_eq!(server.value("b", 50).as_deref(), Some("new"));
    assert_eq!(server.value("b", 25).as_deref(), Some("old"));
}

#[test]
fn nothing_is_written_or_locked_when_the_disk_is_full_and_later_all_goes_on() {
    let mut server = Server::new();
    let refused_one = server.send(prewrite("b", "1", 10));
    let waiting = server.send(prewrite("b", "1", 11));
    assert_eq!(server.refuse_group(), 1);
    assert!(matches!(
        refused(server.answer(refused_one)),
        Kind::Failed(failed) if !failed.unknown && failed.message.contains("no space")
    ));
    server.settle();
    assert!(matches!(
        server.answer(waiting),
        Some(Body::Prewrite(answer)) if answer.rejections.is_empty()
    ));
    assert!(server.core.failed().is_none());
}

#[test]
fn a_lost_write_is_unknown_and_stops_the_server() {
    let mut server = Server::new();
    let lost = server.send(prewrite("b", "1", 10));
    assert_eq!(server.fail_group(poisoned()), 1);
    assert!(matches!(
        refused(server.answer(lost)),
        Kind::Failed(failed) if failed.unknown
    ));
    assert!(server.core.failed().is_some());
    let after = server.send(prewrite("c", "1", 11));
    assert!(matches!(refused(server.answer(after)), Kind::Failed(_)));
    assert!(server.core.take_group().is_none());
}

#[test]
fn requests_that_are_wrong_say_what_is_wrong() {
    let mut server = Server::new();
    let other = server.send_to(1, 2, prewrite("b", "1", 10));
    assert!(matches!(
        refused(server.answer(other)),
        Kind::NotServed(not) if not.known_epoch == 1 && not.asked_epoch == 2
    ));
    let unknown = server.send_to(9, 1, prewrite("b", "1", 10));
    assert!(matches!(
        refused(server.answer(unknown)),
        Kind::NotServed(not) if not.known_epoch == 0
    ));
    let twice = v1::RollbackRequest {
        start_ts: 10,
        cells: vec![cell("b"), cell("b")],
    };
    let below = v1::CommitRequest {
        start_ts: 10,
        commit_ts: 10,
        cells: vec![cell("b")],
    };
    for (ask, words) in [
        (prewrite("z", "1", 10), "does not lie in tablet 1"),
        (prewrite("", "1", 10), "row is empty"),
        (prewrite("b", "1", 0), "start_ts"),
        (Ask::Rollback(twice), "named twice"),
        (Ask::Commit(below), "not above"),
        (Ask::Commit(v1::CommitRequest::default()), "start_ts"),
        (
            Ask::Prewrite(v1::PrewriteRequest {
                start_ts: 5,
                ..Default::default()
            }),
            "primary",
        ),
        (
            Ask::RawGet(v1::RawGetRequest { key: "k".into() }),
            "raw access is off",
        ),
        (raw_put("k", "v"), "raw access is off"),
    ] {
        let id = server.send(ask.clone());
        match refused(server.answer(id)) {
            Kind::Invalid(why) => assert!(why.contains(words), "{words:?} not in {why:?}"),
            other => panic!("{ask:?}: {other:?}"),
        }
    }
    assert_eq!(server.commit_group(), 0, "a wrong request wrote something");
}

/// The key of a cell's record, as the engine has it, put by the benchmark's plain write.
#[test]
fn plain_writes_touch_nothing_of_transactions() {
    let mut server = Server::new();
    server.put("b", "1", 10, 20);
    server.allow_raw();
    for column in [Column::Lock, Column::Write, Column::Data, Column::Garbage] {
        let before = server.content(column);
        let keys = [b"b".to_vec(), vec![0; 8]].into_iter();
        for key in keys.chain(before.iter().map(|(key, _)| key.clone())) {
            let id = server.send(raw_put(key.clone(), "v"));
            server.settle();
            assert!(matches!(server.answer(id), Some(Body::RawPut(_))));
            let id = server.send(Ask::RawGet(v1::RawGetRequest { key: key.into() }));
            match server.answer(id) {
                Some(Body::RawGet(got)) => assert_eq!(got.value.as_deref(), Some(&b"v"[..])),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(server.content(column), before, "{column:?}");
    }
}

fn raw_put(key: impl Into<bytes::Bytes>, value: &'static str) -> Ask {
    Ask::RawPut(v1::RawPutRequest {
        key: key.into(),
        value: value.into(),
    })
}

#[test]
fn a_dropped_tablet_is_served_no_more_and_its_rows_go() {
    let mut server = Server::new();
    server.put("b", "1", 10, 20);
    server.ask(prewrite("c", "1", 30));
    server.drop_tablet(1);
    server.settle();
    server.replies.clear();
    let id = server.send(prewrite("b", "1", 40));
    assert!(matches!(refused(server.answer(id)), Kind::NotServed(_)));
    assert!(server.core.report().tablets.is_empty());
    assert_eq!(server.core.locks(), 0);
    assert_eq!(server.left(), 0);
}

#[test]
fn locks_and_tablets_are_there_after_a_restart() {
    let mut server = Server::new();
    server.put("b", "1", 10, 20);
    server.ask(prewrite("c", "2", 30));
    server.start_again_as(INCARNATION);
    assert_eq!(server.core.locks(), 1);
    assert!(matches!(server.get("c", 40), Got::Locked(_)));
    assert_eq!(server.value("b", 40).as_deref(), Some("1"));
}

/// A transaction that began before the restart, and before a commit: also a server that has just started
/// knows that there's something to look for.
#[test]
fn conflicts_are_found_after_a_restart() {
    for is_kept in [true, false] {
        let mut server = Server::new();
        server.put("b", "1", 10, 20);
        if !is_kept {
            // As a store of before it was kept.
            let mut batch = Batch::default();
            batch.delete(Column::Meta, "reached");
            server.engine.commit(&[batch]).expect("memory");
        }
        server.start_again();
        for (start_ts, conflicts) in [(15, 1), (20, 1), (21, 0)] {
            let Body::Prewrite(answer) = server.ask(prewrite("b", "2", start_ts)) else {
                panic!("no answer to a prewrite");
            };
            assert_eq!(answer.rejections.len(), conflicts, "{start_ts}: {answer:?}");
        }
    }
}

/// A rollback record stops a late prewrite, whatever else shares its mark.
#[test]
fn rollback_records_are_found() {
    let mut server = Server::new();
    server.ask(Ask::Rollback(v1::RollbackRequest {
        start_ts: 15,
        cells: vec![cell("b")],
    }));
    for incarnation in [INCARNATION, INCARNATION + 1] {
        let Body::Prewrite(answer) = server.ask(prewrite("b", "2", 15)) else {
            panic!("no answer to a prewrite");
        };
        assert_eq!(answer.rejections.len(), 1, "{answer:?}");
        server.start_again_as(incarnation);
    }
}
