//! Large transactions at a tablet server: what they read of their own, and how their locks are found and resolved.

use crate::support::{Server, cell, prewrite, prewrite_row, refused};
use percolator_tablet::Limits;
use percolator_wire::v1;
use percolator_wire::v1::get_result::Result as Got;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::request_error::Kind;
use percolator_wire::v1::response::Body;

const ROWS: [&str; 7] = ["b", "c", "d", "e", "f", "g", "h"];
const START: u64 = 10;

/// A flush of one row; the primary is b.
fn flush(row: &'static str, value: &'static str, generation: u32) -> Ask {
    let (Ask::Prewrite(of_primary), Ask::Prewrite(request)) =
        (prewrite("b", "", START), prewrite(row, value, START))
    else {
        unreachable!("prewrites");
    };
    Ask::Prewrite(v1::PrewriteRequest {
        primary: of_primary.primary,
        generation,
        ..request
    })
}

fn flushed(limits: Limits) -> Server {
    let mut server = Server::within(limits);
    server.put("c", "before", 4, 5);
    for row in ROWS {
        server.ask(flush(row, "1", 1));
    }
    server
}

fn own_scan(server: &mut Server, reverse: bool, limit: u32) -> (Vec<(String, String)>, bool) {
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let Body::Scan(page) = server.ask(Ask::Scan(v1::ScanRequest {
            start_ts: START,
            own: true,
            reverse,
            limit,
            after,
            ..Default::default()
        })) else {
            panic!("no answer to a scan");
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        found.extend(
            page.cells
                .iter()
                .map(|cell| (text(&cell.row), text(&cell.value))),
        );
        after = page.resume;
        if page.done || page.rolled_back.is_some() {
            return (found, page.rolled_back.is_some());
        }
    }
}

fn resolve(
    server: &mut Server,
    commit_ts: u64,
    after: Option<v1::CellName>,
) -> v1::ResolveResponse {
    let Body::Resolve(answer) = server.ask(Ask::Resolve(v1::ResolveRequest {
        start_ts: START,
        commit_ts,
        after,
        ..Default::default()
    })) else {
        panic!("no answer");
    };
    answer
}

#[test]
fn it_sees_what_it_has_flushed_in_pieces_of_any_size() {
    // Records between the locks, more than one request reads.
    for (scan_records, scan_locks) in [(1, 1), (2, 3), (2048, 2), (3, 1024), (2048, 1024)] {
        let mut server = flushed(Limits {
            scan_records,
            scan_locks,
            ..Limits::default()
        });
        server.put("bb", "other", 6, 7);
        server.put("cc", "other", 6, 7);
        server.put("i", "other", 6, 7);
        server.ask(flush("d", "2", 2));
        // Late.
        server.ask(flush("d", "1", 1));
        let wanted: Vec<(String, String)> = [
            ("b", "1"),
            ("bb", "other"),
            ("c", "1"),
            ("cc", "other"),
            ("d", "2"),
            ("e", "1"),
            ("f", "1"),
            ("g", "1"),
            ("h", "1"),
            ("i", "other"),
        ]
        .map(|(row, value)| (row.to_owned(), value.to_owned()))
        .into();
        for limit in [1, 2, 0] {
            assert_eq!(own_scan(&mut server, false, limit), (wanted.clone(), false));
            let mut reversed = own_scan(&mut server, true, limit);
            reversed.0.reverse();
            assert_eq!(reversed, (wanted.clone(), false));
        }
        // Another reader at that timestamp doesn't.
        assert_eq!(server.value("c", START).as_deref(), Some("before"));
    }
}

#[test]
fn its_locks_are_found_and_committed_piece_by_piece() {
    let mut server = flushed(Limits {
        resolve_locks: 3,
        ..Limits::default()
    });
    // Another transaction's lock stays.
    server.ask(prewrite("ee", "other", 11));
    server.ask(Ask::Commit(v1::CommitRequest {
        start_ts: START,
        commit_ts: 20,
        cells: vec![cell("b")],
    }));
    let first = resolve(&mut server, 20, None);
    assert_eq!(first.resolved, 3);
    assert_eq!(server.core.locks(), 4);
    let second = resolve(&mut server, 20, first.resume.clone());
    assert_eq!(second.resolved, 3);
    // Again is harmless, and so is what comes late.
    assert_eq!(resolve(&mut server, 20, first.resume).resolved, 0);
    let last = resolve(&mut server, 20, second.resume);
    assert_eq!((last.resolved, last.resume), (0, None));
    assert_eq!(server.core.locks(), 1);
    for row in ROWS {
        assert_eq!(server.value(row, 20).as_deref(), Some("1"));
    }
    server.ask(flush("c", "2", 2));
    assert_eq!(server.value("c", 30).as_deref(), Some("1"));
}

#[test]
fn a_piece_ends_by_the_locks_of_others_that_it_looks_at_too() {
    let mut server = flushed(Limits {
        resolve_locks: 1,
        ..Limits::default()
    });
    const OTHERS: usize = 200;
    for row in 0..OTHERS {
        // Between the second row and the third.
        server.ask(prewrite_row(format!("c{row:03}").into(), "other", 11));
    }
    let (mut pieces, mut after) = (Vec::new(), None);
    loop {
        let piece = resolve(&mut server, 0, after);
        pieces.push(piece.resolved);
        after = piece.resume;
        if after.is_none() {
            break;
        }
    }
    // Each reads at most 64 locks.
    assert_eq!(pieces, [1, 1, 0, 0, 0, 1, 1, 1, 1, 1, 0]);
    assert_eq!(server.core.locks(), OTHERS);
}

#[test]
fn a_piece_that_has_waited_for_its_rows_looks_at_them_again() {
    let mut server = flushed(Limits::default());
    // On its way to the disk while the locks are read.
    server.send(flush("d", "2", 2));
    let asked = server.send(Ask::Resolve(v1::ResolveRequest {
        start_ts: START,
        commit_ts: 20,
        ..Default::default()
    }));
    assert!(server.answer(asked).is_none(), "d's row is taken");
    server.settle();
    let Some(Body::Resolve(answer)) = server.answer(asked) else {
        panic!("no answer");
    };
    assert_eq!(answer.resolved, 7);
    assert_eq!(server.value("d", 20).as_deref(), Some("2"));
    assert_eq!(server.value("e", 20).as_deref(), Some("1"));
}

#[test]
fn rolled_back_it_reads_that_and_nothing_else() {
    let mut server = flushed(Limits::default());
    let own = Ask::Get(v1::GetRequest {
        start_ts: START,
        cells: vec![cell("c"), cell("k")],
        own: true,
        ..Default::default()
    });
    let rolled_back = resolve(&mut server, 0, None);
    assert_eq!((rolled_back.resolved, rolled_back.resume), (7, None));
    assert_eq!(server.core.locks(), 0);
    let Body::Get(got) = server.ask(own) else {
        panic!("no answer to a get");
    };
    let results: Vec<_> = got.results.into_iter().map(|got| got.result).collect();
    assert!(matches!(
        results[..],
        [Some(Got::RolledBack(_)), Some(Got::Absent(_))]
    ));
    assert_eq!(own_scan(&mut server, false, 0), (vec![], true));
    assert_eq!(server.value("c", 30).as_deref(), Some("before"));
    // A late flush leaves a lock that can be found again.
    server.ask(flush("k", "1", 1));
    assert_eq!(resolve(&mut server, 0, None).resolved, 1);
    assert_eq!(server.core.locks(), 0);
}

#[test]
fn what_is_not_served_is_not_resolved() {
    let mut server = flushed(Limits::default());
    let ask = Ask::Resolve(v1::ResolveRequest {
        start_ts: START,
        ..Default::default()
    });
    let id = server.send_to(1, 2, ask);
    server.settle();
    refused(server.answer(id));
    assert_eq!(server.core.locks(), ROWS.len());
}

#[test]
fn to_find_nothing_to_resolve_is_next_to_no_work() {
    let waiting = |start_ts| {
        let mut server = flushed(Limits::default());
        // The server is busy.
        server.send(Ask::Get(v1::GetRequest {
            start_ts: 5,
            cells: vec![cell("c")],
            ..Default::default()
        }));
        for _ in 0..10 {
            server.send(Ask::Resolve(v1::ResolveRequest {
                start_ts,
                ..Default::default()
            }));
        }
        server.core.usage().flushes.count
    };
    assert_eq!(waiting(START + 1), 0);
    assert!(waiting(START) > 0, "these find locks");
}

#[test]
fn flushes_that_wait_for_their_turn_use_no_other_requests_limit() {
    let mut server = Server::within(Limits {
        queued_bytes: 300,
        ..Limits::default()
    });
    // The server is busy.
    assert_eq!(server.value("c", 5), None);
    let sent: Vec<u64> = (0..60)
        .map(|_| {
            server.send(Ask::Get(v1::GetRequest {
                start_ts: 5,
                cells: vec![cell("c")],
                ..Default::default()
            }));
            let id = server.send(flush("d", "1", 1));
            while server.commit_group() > 0 {}
            id
        })
        .collect();
    let answers: Vec<_> = sent.iter().map(|id| server.answer(*id)).collect();
    let waiting = answers.iter().filter(|answer| answer.is_none()).count();
    assert!((1..30).contains(&waiting), "{waiting} wait");
    let busy = answers.into_iter().flatten().filter_map(|body| match body {
        Body::Error(error) => error.kind,
        _ => None,
    });
    let busy: Vec<_> = busy.collect();
    assert!(!busy.is_empty(), "no more may wait");
    for kind in busy {
        assert!(matches!(&kind, Kind::Busy(_)), "{kind:?}");
    }
    // A request for the wrong server is not refused as busy.
    let elsewhere = server.send_to(9, 1, flush("d", "1", 1));
    let kind = refused(server.answer(elsewhere));
    assert!(matches!(kind, Kind::NotServed(_)), "{kind:?}");
    // Who writes a row still does.
    let write = server.send(prewrite("e", "other", 11));
    while server.commit_group() > 0 {}
    let answer = server.answer(write);
    assert!(matches!(answer, Some(Body::Prewrite(_))), "{answer:?}");
    // And none of those that wait is forgotten.
    server.settle();
    server.settle();
    let waited = sent.iter().filter_map(|id| server.answer(*id)).count();
    assert_eq!(waited, waiting);
}

/// How many flushes of one row each wait for their turn behind this request and a first one.
fn wait_behind(ask: Ask) -> usize {
    let limits = Limits {
        large_cells_a_second: 1,
        ..Limits::default()
    };
    let mut server = Server::within(limits);
    server.settle();
    server.ask(flush("b", "1", 1));
    server.send(ask);
    for row in &ROWS[1..] {
        server.send(flush(row, "1", 2));
    }
    server.core.usage().flushes.count
}

#[test]
fn large_values_are_as_much_work_as_many_cells() {
    let waits_behind = |value: &'static str| {
        let mut server = Server::within(Limits::default());
        server.settle();
        // The server is busy.
        server.send(Ask::Get(v1::GetRequest {
            start_ts: 5,
            cells: vec![cell("c")],
            ..Default::default()
        }));
        server.send(flush("b", value, 1));
        server.send(flush("c", "1", 1));
        server.core.usage().flushes.count
    };
    assert_eq!(waits_behind("1"), 0);
    assert_eq!(waits_behind("1".repeat(1 << 20).leak()), 1);
}

#[test]
fn what_it_reads_itself_does_not_slow_it_down() {
    let get = |own| {
        Ask::Get(v1::GetRequest {
            start_ts: START,
            cells: vec![cell("b")],
            own,
            ..Default::default()
        })
    };
    let scan = |own| {
        Ask::Scan(v1::ScanRequest {
            start_ts: START,
            own,
            ..Default::default()
        })
    };
    assert_eq!(wait_behind(get(true)), 0);
    assert_eq!(wait_behind(scan(true)), 0);
    // Others do.
    assert!(wait_behind(get(false)) > 0);
    assert!(wait_behind(scan(false)) > 0);
}
