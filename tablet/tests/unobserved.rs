//! The end of the observation of a column: what becomes of notifications that wait, and who knows of it.

use crate::support::observers::*;
use crate::support::{Server, cell, prewrite, prewrite_row, refused};
use percolator_engine::Column;
use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::request_error::Kind;
use percolator_wire::v1::response::Body;

fn ask_unobserve() -> Ask {
    let column = "c".into();
    Ask::Unobserve(v1::UnobserveRequest { column, from: None })
}

/// Whether the column was observed, and whether notifications may be left.
fn unobserve(server: &mut Server) -> (bool, bool) {
    match server.ask(ask_unobserve()) {
        Body::Unobserve(answer) => (answer.was_observed, answer.more),
        other => panic!("{other:?}"),
    }
}

fn assert_not_observed(server: &mut Server) {
    let id = server.send(asking(10, 0, 0));
    server.settle();
    match refused(server.answer(id)) {
        Kind::Invalid(why) => assert!(why.contains("not observed"), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_waits_goes_and_later_changes_leave_nothing() {
    let mut server = observing();
    server.put("b", "x", 10, 11);
    // A worker waits for more.
    server.ask(asking(10, 0, 5_000));
    let waits = server.send(asking(10, 5_000, 0));
    server.settle();
    assert!(server.answer(waits).is_none());
    assert_eq!(unobserve(&mut server), (true, true));
    assert!(matches!(refused(server.answer(waits)), Kind::Invalid(_)));
    assert_eq!(unobserve(&mut server), (false, false));
    assert_eq!(server.content(Column::Notify), []);
    server.put("b", "y", 12, 13);
    server.put("c", "y", 14, 15);
    assert_eq!(server.content(Column::Notify), []);
    assert_not_observed(&mut server);
    server.start_again();
    assert_not_observed(&mut server);
    // Observed again: only what changes from then on.
    observe(&mut server);
    assert_eq!(waiting(&mut server), []);
    server.put("b", "z", 16, 17);
    assert_eq!(waiting(&mut server), [found("b", 17)]);
}

#[test]
fn a_run_that_has_begun_commits_no_more_unless_it_is_prewritten() {
    let mut server = observing();
    server.put("b", "x", 10, 11);
    server.put("c", "x", 10, 11);
    let prewritten = Ask::Prewrite(acknowledging("b", 12, &[]));
    assert_eq!(rejections(server.ask(prewritten)), []);
    unobserve(&mut server);
    let late = Ask::Prewrite(acknowledging("c", 12, &[]));
    assert_eq!(rejections(server.ask(late)), [Some(0)]);
    let committed = server.ask(commit(vec![ack_cell("b")], 12, 15));
    let Body::Commit(committed) = committed else {
        panic!("{committed:?}");
    };
    use v1::commit_response::Result::Done;
    assert!(matches!(committed.result, Some(Done(_))), "{committed:?}");
    assert_eq!(unobserve(&mut server), (false, false));
}

#[test]
fn commits_that_were_decided_before_are_found_by_the_request_after_the_next_one() {
    let mut server = observing();
    for row in ["b", "c"] {
        server.ask(prewrite(row, "x", 10));
    }
    let end = server.send(ask_unobserve());
    let ends = server
        .core
        .take_group()
        .expect("the end of the observation");
    // Decided while that is on its way to the disk.
    server.send(commit(vec![cell("b")], 10, 11));
    server.commit_taken(&ends);
    let answered = server.answer(end);
    assert!(matches!(answered, Some(Body::Unobserve(it)) if it.was_observed && it.more));
    let second = server.core.take_group().expect("the commit");
    // It reads before that is durable.
    let looks = server.send(ask_unobserve());
    assert!(server.answer(looks).is_none(), "the commit isn't durable");
    server.commit_taken(&second);
    server.settle();
    assert!(matches!(server.answer(looks), Some(Body::Unobserve(it)) if !it.more));
    assert_eq!(server.content(Column::Notify).len(), 1);
    assert_eq!(unobserve(&mut server), (false, true));
    assert_eq!(unobserve(&mut server), (false, false));
    assert_eq!(server.content(Column::Notify), []);
    // This one was decided after it.
    server.ask(commit(vec![cell("c")], 10, 13));
    assert_eq!(server.content(Column::Notify), []);
}

#[test]
fn many_notifications_go_in_pieces_and_those_of_other_columns_stay() {
    let mut server = observing();
    let other = Ask::Observe(v1::ObserveRequest { column: "d".into() });
    server.ask(other);
    let in_d = |row| v1::CellRef {
        column: "d".into(),
        ..cell(row)
    };
    let Ask::Prewrite(mut request) = prewrite("b", "x", 5) else {
        panic!("no prewrite");
    };
    request.mutations[0].cell = Some(in_d("b"));
    server.ask(Ask::Prewrite(request));
    server.ask(commit(vec![in_d("b")], 5, 6));
    for number in 0..1_500_u64 {
        let row = bytes::Bytes::from(format!("b{number:04}"));
        let start_ts = 10 + 2 * number;
        server.ask(prewrite_row(row.clone(), "x", start_ts));
        let place = v1::CellRef { row, ..cell("") };
        server.ask(commit(vec![place], start_ts, start_ts + 1));
    }
    assert_eq!(unobserve(&mut server), (true, true));
    assert_eq!(server.content(Column::Notify).len(), 477);
    assert_eq!(unobserve(&mut server), (false, true));
    assert_eq!(unobserve(&mut server), (false, false));
    assert_eq!(server.content(Column::Notify).len(), 1);
    assert_not_observed(&mut server);
}

fn knows_of_observed(server: &Server) -> bool {
    let meta = server.content(Column::Meta);
    meta.iter().any(|(key, _)| key.starts_with(b"observed/"))
}

#[test]
fn the_server_that_gets_the_tablet_does_not_observe_either() {
    for restarts in [false, true] {
        let mut owner = observing();
        // Two chunks at least.
        let long: &'static str = Box::leak("long".repeat(300_000).into_boxed_str());
        owner.put("k", long, 1, 2);
        owner.put("l", long, 3, 4);
        let mut other = hand_over(&mut owner, restarts, |owner| {
            unobserve(owner);
            assert_eq!(unobserve(owner), (false, false));
        });
        assert!(!knows_of_observed(&owner) && !knows_of_observed(&other));
        assert_eq!(other.content(Column::Notify), []);
        let mut ask = |ask| {
            let id = other.send_to(1, 2, ask);
            other.settle();
            other.answer(id).expect("an answer")
        };
        ask(prewrite("e", "x", 20));
        ask(commit(vec![cell("e")], 20, 21));
        let Body::Unobserve(again) = ask(ask_unobserve()) else {
            panic!("no answer");
        };
        assert_eq!((again.was_observed, again.more), (false, false));
        assert_eq!(other.content(Column::Notify), []);
    }
}

#[test]
fn notifications_of_other_columns_are_passed_in_pieces() {
    const OTHERS: u64 = 5_000;
    let mut server = observing();
    server.ask(Ask::Observe(v1::ObserveRequest { column: "d".into() }));
    let place = |row: String, column: &'static str| v1::CellRef {
        row: row.into(),
        column: column.into(),
        ..cell("")
    };
    let mut notify = |cells, at| {
        let weak = server.ask(Ask::Notify(v1::NotifyRequest { cells, at }));
        assert!(matches!(weak, Body::Notify(_)), "{weak:?}");
    };
    for thousand in 0..OTHERS / 1_000 {
        let rows = (0..1_000).map(|row| place(format!("b{thousand}{row:03}"), "d"));
        notify(rows.collect(), 10);
    }
    notify(vec![place("c".into(), "c")], 10);
    let mut ask = |from| {
        let column = "c".into();
        match server.ask(Ask::Unobserve(v1::UnobserveRequest { column, from })) {
            Body::Unobserve(answer) => answer,
            other => panic!("{other:?}"),
        }
    };
    let first = ask(None);
    assert!(first.was_observed && first.more);
    let from = first.resume.expect("more behind the first piece");
    assert_eq!(
        (&from.row[..], &from.column[..]),
        (&b"b4096"[..], &b"d"[..])
    );
    let second = ask(Some(from));
    assert!(second.more && !second.was_observed && second.resume.is_none());
    // Once more from the beginning, as commits may have left some.
    let third = ask(None);
    assert!(!third.more && third.resume.is_some());
    let fourth = ask(third.resume);
    assert!(!fourth.more && fourth.resume.is_none());
    assert_eq!(server.content(Column::Notify).len(), OTHERS as usize);
}
