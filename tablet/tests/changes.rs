//! Scans for changes: every version between two timestamps, whether all records are read for that or only what is known to
//! have changed of late; locks, pages, and what splits and restarts do to that.

use crate::support::observers::commit;
use crate::support::{INCARNATION, Server, cell, prewrite, prewrite_row, refused};
use bytes::Bytes;
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::Timestamp;
use percolator_tablet::Limits;
use percolator_tablet::core::TabletCommand;
use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::request_error::Kind;
use percolator_wire::v1::response::Body;

/// Row, value (`-`: deleted) and commit_ts.
type Found = (String, String, u64);

fn found(row: &str, value: &str, commit_ts: u64) -> Found {
    (row.into(), value.into(), commit_ts)
}

fn request(above: u64, until: u64) -> v1::ScanRequest {
    v1::ScanRequest {
        start_ts: until,
        changed: Some(Box::new(v1::ChangedBetween {
            above,
            until,
            ..Default::default()
        })),
        ..Default::default()
    }
}

/// The same, from where the answer has ended.
fn behind(request: v1::ScanRequest, response: v1::ScanResponse) -> v1::ScanRequest {
    let changed = request.changed.map(|changed| v1::ChangedBetween {
        after_ts: response.resume_ts,
        ..*changed
    });
    v1::ScanRequest {
        after: response.resume,
        changed: changed.map(Box::new),
        ..request
    }
}

/// One answer, and what it has.
fn page(
    server: &mut Server,
    epoch: u64,
    request: v1::ScanRequest,
) -> (v1::ScanResponse, Vec<Found>) {
    let id = server.send_to(1, epoch, Ask::Scan(request));
    server.settle();
    let Some(Body::Scan(response)) = server.answer(id) else {
        panic!("no answer to a scan");
    };
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    let one = |cell: &v1::ScannedCell| {
        let value = if cell.deleted {
            "-".into()
        } else {
            text(&cell.value)
        };
        (text(&cell.row), value, cell.commit_ts)
    };
    let cells = response.cells.iter().map(one).collect();
    (response, cells)
}

/// All that has changed, and how many answers that took.
fn changes_of(server: &mut Server, epoch: u64, above: u64, until: u64) -> (Vec<Found>, usize) {
    let (mut all, mut pages) = (Vec::new(), 0);
    let mut next = request(above, until);
    loop {
        let (response, cells) = page(server, epoch, next.clone());
        pages += 1;
        all.extend(cells);
        assert_eq!(response.locked, []);
        if response.done {
            return (all, pages);
        }
        next = behind(next, response);
    }
}

fn changes(server: &mut Server, above: u64, until: u64) -> Vec<Found> {
    changes_of(server, 1, above, until).0
}

fn delete(server: &mut Server, row: &'static str, start_ts: u64, commit_ts: u64) {
    let Ask::Prewrite(mut request) = prewrite(row, "", start_ts) else {
        unreachable!("a prewrite");
    };
    request.mutations[0].kind = v1::LockKind::Delete.into();
    server.ask(Ask::Prewrite(request));
    server.ask(commit(vec![cell(row)], start_ts, commit_ts));
}

#[test]
fn every_version_between_the_timestamps_is_sent_and_no_other() {
    let mut server = Server::new();
    let long: &'static str = Box::leak("long".repeat(1_000).into_boxed_str());
    server.put("b", "1", 10, 11);
    server.put("b", long, 12, 13);
    delete(&mut server, "b", 14, 15);
    server.put("c", "1", 12, 14);
    server.ask(prewrite("d", "1", 13));
    server.ask(Ask::Rollback(v1::RollbackRequest {
        start_ts: 13,
        cells: vec![cell("d")],
    }));
    let all = [
        found("b", "-", 15),
        found("b", long, 13),
        found("b", "1", 11),
        found("c", "1", 14),
    ];
    // The first scan reads all records. Later ones read what is known, above that what was there before, and all below that.
    for _ in 0..2 {
        assert_eq!(changes(&mut server, 0, 20), all);
        assert_eq!(
            changes(&mut server, 11, 14),
            [all[1].clone(), all[3].clone()]
        );
        assert_eq!(changes(&mut server, 15, 20), []);
    }
    server.put("e", "2", 30, 31);
    server.put("b", "2", 32, 33);
    let late = [found("b", "2", 33), found("e", "2", 31)];
    assert_eq!(changes(&mut server, 20, 40), late);
    assert_eq!(changes(&mut server, 31, 40), late[..1]);
    assert_eq!(changes(&mut server, 20, 32), late[1..]);
    server.start_again_as(INCARNATION + 1);
    assert_eq!(changes(&mut server, 20, 40), late);
    let only = v1::ScanRequest {
        start_ts: 40,
        changed: Some(Box::new(v1::ChangedBetween {
            until: 40,
            columns: vec!["other".into()],
            ..Default::default()
        })),
        ..Default::default()
    };
    assert_eq!(page(&mut server, 1, only).1, []);
}

#[test]
fn following_costs_what_has_changed_and_not_the_table() {
    let mut server = Server::within(Limits {
        scan_records: 16,
        ..Limits::default()
    });
    let mut ts = 10;
    let mut put = |server: &mut Server, epoch, row: String| {
        let row = Bytes::from(row);
        let place = v1::CellRef {
            row: row.clone(),
            ..cell("")
        };
        for ask in [prewrite_row(row, "x", ts), commit(vec![place], ts, ts + 1)] {
            let id = server.send_to(1, epoch, ask);
            server.settle();
            let answer = server.answer(id).expect("an answer");
            assert!(!matches!(answer, Body::Error(_)), "{answer:?}");
        }
        ts += 4;
        ts - 2
    };
    let mut reached = 0;
    for number in 0..500 {
        reached = put(&mut server, 1, format!("b{number:03}"));
    }
    let (all, pages) = changes_of(&mut server, 1, 0, reached);
    assert!(all.len() == 500 && pages > 30, "{} in {pages}", all.len());
    // Nothing, and then something.
    assert_eq!(
        changes_of(&mut server, 1, reached, reached + 1),
        (vec![], 1)
    );
    let from = reached;
    for number in [7, 400] {
        reached = put(&mut server, 1, format!("b{number:03}"));
    }
    let (some, pages) = changes_of(&mut server, 1, from, reached);
    assert_eq!((some.len(), pages), (2, 1));
    // From far back on, all is read.
    let (all, pages) = changes_of(&mut server, 1, 10, reached);
    assert!(all.len() == 502 && pages > 30, "{} in {pages}", all.len());
    // Another epoch is another tablet: all of it is read once.
    let split = TabletCommand::Split {
        id: 1,
        epoch: 1,
        row: "b450".into(),
        sibling: 2,
    };
    assert!(server.command(split).is_none());
    let (some, pages) = changes_of(&mut server, 2, from, reached);
    assert!(some.len() == 2 && pages > 20, "{} in {pages}", some.len());
    let from = reached;
    reached = put(&mut server, 2, "b008".into());
    let (some, pages) = changes_of(&mut server, 2, from, reached);
    assert_eq!((some.len(), pages), (1, 1));
}

#[test]
fn a_page_may_end_within_a_cell() {
    let mut server = Server::within(Limits {
        scan_records: 3,
        ..Limits::default()
    });
    let mut expected = Vec::new();
    for version in 0..40 {
        let ts = 10 + 2 * version;
        server.put("b", "x", ts, ts + 1);
        expected.insert(0, found("b", "x", ts + 1));
    }
    server.put("c", "y", 100, 101);
    expected.push(found("c", "y", 101));
    for _ in 0..2 {
        assert_eq!(changes(&mut server, 0, 200), expected);
        // Versions above and below are passed.
        assert_eq!(changes(&mut server, 40, 50), expected[20..25]);
        server.start_again_as(INCARNATION + 1);
    }
}

#[test]
fn a_lock_that_may_commit_below_is_in_the_way() {
    for follows in [false, true] {
        let mut server = Server::new();
        if follows {
            changes(&mut server, 0, 5);
        }
        server.put("b", "1", 10, 11);
        server.ask(prewrite("c", "2", 12));
        server.put("d", "3", 14, 15);
        let (response, cells) = page(&mut server, 1, request(5, 20));
        assert_eq!(cells, [found("b", "1", 11)]);
        assert_eq!(response.locked.len(), 1);
        assert!(!response.done);
        let mut next = behind(request(5, 20), response);
        // One that is known to commit above isn't.
        let past = v1::ScanRequest {
            bypass: vec![12],
            ..next.clone()
        };
        let (response, cells) = page(&mut server, 1, past);
        assert!(response.done && response.locked.is_empty());
        assert_eq!(cells, [found("d", "3", 15)]);
        // It has committed meanwhile.
        server.ask(commit(vec![cell("c")], 12, 17));
        let (response, cells) = page(&mut server, 1, next.clone());
        assert!(response.done);
        assert_eq!(cells, [found("c", "2", 17), found("d", "3", 15)]);
        // What prewrites now commits above the snapshot.
        let Body::Prewrite(answer) = server.ask(prewrite("e", "4", 18)) else {
            panic!("no answer");
        };
        assert!(answer.min_commit_ts > 20);
        next.bypass = vec![18];
        assert_eq!(page(&mut server, 1, next).1.len(), 2);
    }
}

#[test]
fn a_lock_that_comes_while_its_cell_is_read_sends_no_version_twice() {
    for follows in [false, true] {
        let mut server = Server::within(Limits {
            scan_records: 1,
            ..Limits::default()
        });
        if follows {
            changes(&mut server, 0, 5);
        }
        for ts in [10, 20, 30] {
            server.put("b", "x", ts, ts + 1);
        }
        // Decided before the scan begins, so that the lock doesn't know of it, and not yet on the disk.
        server.send(prewrite("b", "y", 40));
        let first = server.send(Ask::Scan(request(5, 50)));
        let Some(Body::Scan(response)) = server.answer(first) else {
            panic!("no answer");
        };
        assert_eq!(response.cells.len(), 1);
        assert_eq!(response.cells[0].commit_ts, 31);
        server.settle();
        let mut next = behind(request(5, 50), response);
        let (response, none) = page(&mut server, 1, next.clone());
        assert_eq!((none, response.locked.len()), (vec![], 1));
        next = behind(next, response);
        next.bypass = vec![40];
        let (response, older) = page(&mut server, 1, next.clone());
        assert_eq!(older, [found("b", "x", 21)]);
        next = behind(next, response);
        assert_eq!(page(&mut server, 1, next).1, [found("b", "x", 11)]);
    }
}

#[test]
fn a_commit_on_its_way_to_the_disk_is_not_passed() {
    let mut server = Server::new();
    changes(&mut server, 0, 5);
    // In one phase: the scan waits.
    let Ask::Prewrite(prewrite_b) = prewrite("b", "1", 10) else {
        unreachable!("a prewrite");
    };
    server.send(Ask::Prewrite(v1::PrewriteRequest {
        one_phase: Some(v1::OnePhase {
            commit_ts: 11,
            incarnation: INCARNATION,
        }),
        ..prewrite_b
    }));
    let waits = server.send(Ask::Scan(request(5, 20)));
    assert!(server.answer(waits).is_none());
    server.settle();
    let Some(Body::Scan(answer)) = server.answer(waits) else {
        panic!("no answer");
    };
    assert_eq!(answer.cells.len(), 1);
    // In two: its lock is in the way as long as it isn't durable.
    server.ask(prewrite("c", "1", 30));
    server.send(commit(vec![cell("c")], 30, 31));
    let group = server.core.take_group().expect("the commit");
    let looks = server.send(Ask::Scan(request(20, 40)));
    let Some(Body::Scan(answer)) = server.answer(looks) else {
        panic!("no answer");
    };
    assert!(answer.cells.is_empty() && answer.locked.len() == 1);
    // The engine has it, and the server doesn't know that yet.
    server.engine.commit(&group).expect("durable");
    let looks = server.send(Ask::Scan(request(20, 40)));
    let Some(Body::Scan(answer)) = server.answer(looks) else {
        panic!("no answer");
    };
    assert!(answer.locked.is_empty() && answer.done);
    assert_eq!(answer.cells.len(), 1);
}

#[test]
fn what_may_have_been_collected_is_refused() {
    let mut server = Server::new();
    server.put("b", "1", 10, 11);
    let points = Points {
        barrier: Timestamp::from_u64(30),
        ..Points::default()
    };
    server.core.reach(points, &mut server.replies);
    server.settle();
    assert_eq!(changes(&mut server, 30, 40), []);
    let id = server.send(Ask::Scan(request(29, 40)));
    match refused(server.answer(id)) {
        Kind::TooOld(too_old) => assert_eq!((too_old.start_ts, too_old.barrier), (29, 30)),
        other => panic!("{other:?}"),
    }
    for wrong in [
        request(41, 40),
        v1::ScanRequest {
            start_ts: 40,
            ..request(30, 41)
        },
        v1::ScanRequest {
            reverse: true,
            ..request(30, 40)
        },
    ] {
        let id = server.send(Ask::Scan(wrong));
        assert!(matches!(refused(server.answer(id)), Kind::Invalid(_)));
    }
}
