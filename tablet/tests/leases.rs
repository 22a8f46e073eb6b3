//! Who is sent which notification: requests that wait, leases, and the order of rows.

use std::time::Duration;

use crate::support::cell;
use crate::support::observers::*;
use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::response::Body;

#[test]
fn a_request_waits_for_a_change() {
    let mut server = observing();
    let id = server.send(asking(10, 5000, 1000));
    server.settle();
    assert!(server.answer(id).is_none());
    server.put("b", "x", 10, 11);
    let answer = server.answer(id).expect("an answer");
    assert_eq!(rows(&answer), [found("b", 11)]);
    // Its time.
    let id = server.send(asking(10, 150, 1000));
    for _ in 0..2 {
        server.settle();
    }
    assert_eq!(rows(&server.answer(id).expect("an answer")), []);
}

#[test]
fn what_was_sent_to_one_worker_is_not_sent_to_another_before_its_lease_ends() {
    let mut server = observing();
    server.put("b", "x", 10, 11);
    server.put("c", "x", 12, 13);
    assert_eq!(rows(&server.ask(asking(1, 0, 1000))), [found("b", 11)]);
    assert_eq!(rows(&server.ask(asking(2, 0, 1000))), [found("c", 13)]);
    let id = server.send(asking(2, 5000, 0));
    server.settle();
    assert!(server.answer(id).is_none());
    // Acknowledged, and changed again: it is sent at once.
    acknowledge(&mut server, "c", 14, 15);
    assert!(server.answer(id).is_none());
    server.put("c", "y", 16, 17);
    let answer = server.answer(id).expect("an answer");
    assert_eq!(rows(&answer), [found("c", 17)]);
    let id = server.send(asking(1, 5000, 0));
    server.settle();
    assert_eq!(
        rows(&server.answer(id).expect("an answer")),
        [found("c", 17)]
    );
    server
        .core
        .tick(Duration::from_secs(1), &mut server.replies);
    assert_eq!(waiting(&mut server).len(), 2);
}

#[test]
fn a_lease_that_ends_answers_who_waits() {
    let mut server = observing();
    server.put("b", "x", 10, 11);
    server.ask(asking(1, 0, 1000));
    let id = server.send(asking(1, 9000, 0));
    server.settle();
    assert!(server.answer(id).is_none());
    server
        .core
        .tick(Duration::from_secs(1), &mut server.replies);
    let answer = server.answer(id).expect("an answer");
    assert_eq!(rows(&answer), [found("b", 11)]);
}

#[test]
fn a_lease_that_begins_anew_lasts_on() {
    let mut server = observing();
    server.put("b", "x", 10, 11);
    let of_lease = |returned: &[&'static str], renewed: &[&'static str]| {
        let rows = |rows: &[&'static str]| rows.iter().map(|row| (*row).into()).collect();
        Ask::Notifications(v1::NotificationsRequest {
            column: "c".into(),
            lease_ms: 1000,
            returned: rows(returned),
            renewed: rows(renewed),
            ..Default::default()
        })
    };
    assert_eq!(rows(&server.ask(asking(1, 0, 1000))), [found("b", 11)]);
    for _ in 0..5 {
        let replies = &mut server.replies;
        server.core.tick(Duration::from_millis(800), replies);
        server.ask(of_lease(&[], &["b"]));
        assert_eq!(rows(&server.ask(asking(1, 0, 0))), []);
    }
    server.ask(of_lease(&["b"], &[]));
    assert_eq!(rows(&server.ask(asking(1, 0, 0))), [found("b", 11)]);
}

/// A column without observers must not keep others' changes from being found.
#[test]
fn many_changes_of_another_column_hide_none() {
    let mut server = observing();
    assert!(matches!(server.ask(observe_column("d")), Body::Observe(_)));
    let names: Vec<String> = (0..9_000).map(|number| format!("a{number:05}")).collect();
    for some in names.chunks(1_000) {
        let cells = some.iter().map(|row| v1::CellRef {
            row: row.clone().into(),
            column: "d".into(),
            ..cell("a")
        });
        let weak = v1::NotifyRequest {
            cells: cells.collect(),
            at: 5,
        };
        assert!(matches!(server.ask(Ask::Notify(weak)), Body::Notify(_)));
    }
    let id = server.send(asking(1, 9_000, 0));
    server.settle();
    server.put("b", "x", 10, 11);
    for _ in 0..50 {
        server.settle();
    }
    let answer = server.answer(id).expect("an answer");
    assert_eq!(rows(&answer), [found("b", 11)]);
}

#[test]
fn all_rows_have_their_turn() {
    let mut server = observing();
    for (at, row) in ["b", "c", "d"].into_iter().enumerate() {
        let start = 10 + 2 * at as u64;
        server.put(row, "x", start, start + 1);
    }
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.extend(rows(&server.ask(asking(1, 0, 0))));
    }
    let names: Vec<&str> = seen.iter().map(|(row, _)| row.as_str()).collect();
    assert_eq!(names, ["b", "c", "d", "b"]);
}
