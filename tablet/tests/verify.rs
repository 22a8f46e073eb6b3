//! The walk that compares the index of garbage with the data: what was damaged is noticed, and nothing else.

use crate::support::{INCARNATION, Server, cell, me, prewrite_row};
use bytes::Bytes;
use percolator_engine::{Batch, Column, Direction};
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::{TableId, Timestamp, key};
use percolator_tablet::Limits;
use percolator_wire::v1;
use percolator_wire::v1::VerifyPart as Part;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::response::Body;

const PARTS: [Part; 3] = [Part::Records, Part::Values, Part::Index];

/// Goes through one part: what was looked at in tablet 1, what is about to be collected, and what is wrong.
fn walk(server: &mut Server, part: Part) -> (u64, u64, Vec<String>) {
    let (mut seen, mut waiting, mut wrong) = (0, 0, Vec::new());
    let mut after = Bytes::new();
    loop {
        let answer = server.ask(Ask::Verify(v1::VerifyRequest {
            to: Some(me(INCARNATION)),
            part: part.into(),
            after,
        }));
        let Body::Verify(looked) = answer else {
            panic!("no answer to a look: {answer:?}");
        };
        for tablet in looked.tablets {
            assert_eq!(tablet.tablet_id, 1);
            assert!(tablet.seen <= 1_200, "{tablet:?}");
            seen += tablet.seen;
            waiting += tablet.waiting;
        }
        let findings = looked.findings.into_iter();
        wrong.extend(findings.map(|finding| format!("{} {}", finding.ts, finding.what)));
        after = looked.resume;
        if after.is_empty() {
            return (seen, waiting, wrong);
        }
    }
}

fn wrong(server: &mut Server) -> Vec<String> {
    PARTS
        .into_iter()
        .flat_map(|part| walk(server, part).2)
        .collect()
}

fn row_key(row: &[u8]) -> Vec<u8> {
    key::cell(TableId(5), row, b"c")
}

fn entry(ts: u64) -> Vec<u8> {
    [&ts.to_be_bytes(), &row_key(b"b")[..]].concat()
}

fn damage(server: &Server, act: impl FnOnce(&mut Batch)) {
    let mut batch = Batch::default();
    act(&mut batch);
    server.engine.commit(&[batch]).expect("memory");
}

fn commit(server: &mut Server, row: Bytes, value: &'static str, start_ts: u64, commit_ts: u64) {
    server.ask(prewrite_row(row.clone(), value, start_ts));
    server.ask(Ask::Commit(v1::CommitRequest {
        start_ts,
        commit_ts,
        cells: vec![v1::CellRef { row, ..cell("") }],
    }));
}

const LONG: &str = match std::str::from_utf8(&[b'x'; 300]) {
    Ok(text) => text,
    Err(_) => "",
};

fn server() -> Server {
    let mut server = Server::new();
    server.put("b", "1", 10, 11);
    server.put("b", LONG, 12, 13);
    server.put("b", "3", 14, 15);
    server.ask(Ask::Rollback(v1::RollbackRequest {
        start_ts: 20,
        cells: vec![cell("b")],
    }));
    server
}

#[test]
fn what_is_whole_is_found_whole_before_and_after_collection() {
    let mut server = server();
    assert_eq!(walk(&mut server, Part::Records), (4, 0, Vec::new()));
    assert_eq!(walk(&mut server, Part::Values), (1, 0, Vec::new()));
    assert_eq!(walk(&mut server, Part::Index), (3, 0, Vec::new()));
    let points = Points {
        barrier: Timestamp::from_u64(18),
        safe_point: Timestamp::from_u64(18),
        resolved: Timestamp::from_u64(18),
    };
    server.core.reach(points, &mut server.replies);
    server.settle();
    server.core.reach(points, &mut server.replies);
    server.settle();
    // The newest version, and a rollback above the safe point.
    assert_eq!(walk(&mut server, Part::Records), (2, 0, Vec::new()));
    assert_eq!(walk(&mut server, Part::Values), (0, 0, Vec::new()));
    assert_eq!(walk(&mut server, Part::Index), (1, 0, Vec::new()));
}

#[test]
fn entries_missing_in_the_index_are_noticed() {
    for (ts, says) in [
        (13, "13 this version hides older ones"),
        (15, "15 this version hides older ones"),
        (20, "20 this record is not in the index"),
    ] {
        let mut server = server();
        damage(&server, |batch| batch.delete(Column::Garbage, entry(ts)));
        let found = wrong(&mut server);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(says), "{found:?}");
    }
}

/// What collection would use without reading the data.
#[test]
fn an_entry_that_names_another_version_is_noticed() {
    // An item that shares its key with its entry, and names a version of this time, with a short value of one byte or a
    // long one.
    let item = |commit_ts: u64, long: Option<u64>| {
        let shared = u8::try_from(row_key(b"b").len()).expect("short");
        let kind = if long.is_some() { 2 } else { 1 };
        let mut item = vec![shared, 0, kind];
        item.extend(commit_ts.to_be_bytes());
        item.push(u8::from(long.is_none()));
        item.extend(long.iter().flat_map(|ts| ts.to_be_bytes()));
        item
    };
    for (at, said, is_wrong) in [
        (13, item(11, None), false),
        (15, item(13, Some(12)), false),
        // Itself, the newest, one that is hidden already, and a value of another transaction.
        (13, item(13, None), true),
        (13, item(15, None), true),
        (15, item(11, None), true),
        (15, item(13, None), true),
        (15, item(13, Some(10)), true),
    ] {
        let mut server = server();
        damage(&server, |batch| batch.put(Column::Garbage, entry(at), said));
        let found = wrong(&mut server);
        let names = format!("{at} the index says that this version hides another");
        assert_eq!(found.len(), usize::from(is_wrong), "{found:?}");
        assert!(found.iter().all(|it| it.starts_with(&names)), "{found:?}");
    }
}

#[test]
fn an_entry_of_no_record_and_a_value_of_none_are_noticed() {
    let mut server = server();
    damage(&server, |batch| {
        // An item that shares its key with its entry, "look".
        let shared = u8::try_from(row_key(b"b").len()).expect("short");
        batch.put(Column::Garbage, entry(17), vec![shared, 0, 0]);
        let orphan = key::version(row_key(b"d"), Timestamp::from_u64(16));
        batch.put(Column::Data, orphan, b"lost".to_vec());
    });
    let found = wrong(&mut server);
    assert_eq!(
        found,
        [
            "16 this value belongs to no record and to no lock: it is never collected",
            "17 this entry of the index is of no record",
        ]
    );
}

#[test]
fn a_value_that_is_missing_is_noticed_and_one_that_is_locked_is_none() {
    let mut server = server();
    server.ask(prewrite_row(Bytes::from_static(b"e"), LONG, 30));
    assert_eq!(wrong(&mut server), Vec::<String>::new());
    let value = key::version(row_key(b"b"), Timestamp::from_u64(12));
    damage(&server, |batch| batch.delete(Column::Data, value));
    assert_eq!(
        wrong(&mut server),
        ["13 the value of this version is missing"]
    );
}

#[test]
fn a_walk_in_many_pieces_sees_everything_once() {
    let mut server = Server::new();
    for number in 0..700_u64 {
        let row = Bytes::from(format!("b{number:04}"));
        for version in 0..3 {
            let start_ts = 10 + 10 * version;
            commit(&mut server, row.clone(), LONG, start_ts, start_ts + 1);
        }
    }
    assert_eq!(walk(&mut server, Part::Records), (2100, 0, Vec::new()));
    assert_eq!(walk(&mut server, Part::Values), (2100, 0, Vec::new()));
    assert_eq!(walk(&mut server, Part::Index), (1400, 0, Vec::new()));
}

/// As that of a row that serves as a mutex: a piece ends within it, and the next one knows what its records hide.
#[test]
fn a_cell_with_more_records_than_a_piece_is_walked_in_pieces() {
    const RECORDS: u64 = 3_500;
    // Below all of them, among them, and above.
    for put in [50, 1_500, 10_000] {
        let mut server = server();
        server.put("b", LONG, put, put + 1);
        let mut records = 5;
        for start_ts in (100..100 + RECORDS).filter(|ts| *ts != put && *ts != put + 1) {
            server.ask(Ask::Rollback(v1::RollbackRequest {
                start_ts,
                cells: vec![cell("b")],
            }));
            records += 1;
        }
        assert_eq!(walk(&mut server, Part::Records), (records, 0, Vec::new()));
        assert_eq!(walk(&mut server, Part::Values), (2, 0, Vec::new()));
        damage(&server, |batch| {
            batch.delete(Column::Garbage, entry(put + 1))
        });
        let found = wrong(&mut server);
        let says = format!("{} this version hides older ones", put + 1);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(&says), "{found:?}");
    }
}

/// The rest of its version may be collected between two pieces: a fate hides nothing.
#[test]
fn a_version_that_becomes_a_fate_between_two_pieces_is_hidden_by_nothing() {
    let mut server = Server::within(Limits {
        verify_pairs: 1,
        ..Limits::default()
    });
    server.put("b", "1", 10, 11);
    server.put("b", "2", 12, 13);
    let piece = |server: &mut Server, after| {
        let answer = server.ask(Ask::Verify(v1::VerifyRequest {
            to: Some(me(INCARNATION)),
            part: Part::Records.into(),
            after,
        }));
        let Body::Verify(looked) = answer else {
            panic!("no answer to a look: {answer:?}");
        };
        assert_eq!(looked.findings, []);
        looked.resume
    };
    let after = piece(&mut server, Bytes::new());
    let points = Points {
        barrier: Timestamp::from_u64(18),
        safe_point: Timestamp::from_u64(18),
        resolved: Timestamp::ZERO,
    };
    for _ in 0..2 {
        server.core.reach(points, &mut server.replies);
        server.settle();
    }
    assert_eq!(
        walk(&mut server, Part::Records).0,
        2,
        "the fate is there yet"
    );
    piece(&mut server, after);
}

#[test]
fn a_walk_goes_on_only_where_a_piece_has_ended() {
    let mut server = server();
    for after in [&b"short"[..], b"longer than a version of a cell is"] {
        let answer = server.ask(Ask::Verify(v1::VerifyRequest {
            to: Some(me(INCARNATION)),
            part: Part::Records.into(),
            after: Bytes::from_static(after),
        }));
        let said = format!("{answer:?}");
        assert!(said.contains("begin anew"), "{said}");
    }
}

/// Cells of one request share an entry of the index; which one a cell's hidden version is in is found.
#[test]
fn what_a_request_of_many_cells_hides_is_found_and_collected() {
    let mut server = Server::new();
    let row = |number: u32| Bytes::from(format!("b{number:04}"));
    let write = |server: &mut Server, numbers: &[u32], start_ts: u64| {
        for number in numbers {
            server.ask(prewrite_row(row(*number), "value", start_ts));
        }
        server.ask(Ask::Commit(v1::CommitRequest {
            start_ts,
            commit_ts: start_ts + 1,
            cells: numbers
                .iter()
                .map(|number| v1::CellRef {
                    row: row(*number),
                    ..cell("")
                })
                .collect(),
        }));
    };
    let all: Vec<u32> = (0..200).collect();
    write(&mut server, &all, 10);
    // In two requests of the same transaction, whose cells lie among each other.
    let (odd, even): (Vec<u32>, Vec<u32>) = all.iter().partition(|number| *number % 2 == 1);
    write(&mut server, &odd, 20);
    write(&mut server, &even, 20);
    let entries = |server: &Server| {
        let pairs = server
            .engine
            .scan(Column::Garbage, &[], &[], Direction::Forward);
        pairs.expect("readable").count()
    };
    assert_eq!(entries(&server), 4);
    assert_eq!(walk(&mut server, Part::Records), (400, 0, Vec::new()));
    assert_eq!(walk(&mut server, Part::Index), (200, 0, Vec::new()));
    let points = Points {
        barrier: Timestamp::from_u64(22),
        safe_point: Timestamp::from_u64(22),
        resolved: Timestamp::from_u64(22),
    };
    for _ in 0..2 {
        server.core.reach(points, &mut server.replies);
        server.settle();
    }
    assert_eq!(entries(&server), 0);
    assert_eq!(walk(&mut server, Part::Records), (200, 0, Vec::new()));
    assert_eq!(wrong(&mut server), Vec::<String>::new());
}
