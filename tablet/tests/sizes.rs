//! How large tablets are, and where those can be split that have become too large.

use std::time::Duration;

use crate::support::{Server, prewrite_row, refused};
use percolator_engine::Column;
use percolator_protocol::types::Timestamp;
use percolator_tablet::core::TabletCommand;
use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;

/// A long value has a key of its own.
const LONG: &str = "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789\
                    0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789\
                    0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789";

fn size_of(server: &Server, tablet: u64) -> v1::TabletSize {
    let sizes = server.core.report().sizes.expect("sizes");
    let mut tablets = sizes.tablets.into_iter();
    let found = tablets.find(|size| size.tablet_id == tablet);
    found.expect("the tablet's size")
}

/// Bytes of keys and values in the columns of versions.
fn stored(server: &Server) -> u64 {
    let columns = [Column::Write, Column::Data];
    let pairs = columns.map(|column| server.content(column)).concat();
    pairs
        .iter()
        .map(|(key, value)| (key.len() + value.len()) as u64)
        .sum()
}

/// As many, to five bits.
fn is_about(said: u64, bytes: u64) -> bool {
    said <= bytes && bytes - said <= bytes / 16
}

fn put(server: &mut Server, row: &str, value: &'static str, ts: u64) {
    let Ask::Prewrite(ask) = prewrite_row(row.to_owned().into(), value, ts) else {
        panic!("another request");
    };
    let cells = ask
        .mutations
        .iter()
        .filter_map(|it| it.cell.clone())
        .collect();
    server.ask(Ask::Prewrite(ask));
    server.ask(Ask::Commit(v1::CommitRequest {
        start_ts: ts,
        commit_ts: ts + 1,
        cells,
    }));
}

/// So much time that every walk is over.
fn wait(server: &mut Server) {
    for _ in 0..100 {
        let tick = Duration::from_millis(10);
        server.core.tick(tick, &mut server.replies);
        server.settle();
    }
}

#[test]
fn sizes_follow_what_is_written_and_a_start_knows_them() {
    let mut server = Server::new();
    assert_eq!(size_of(&server, 1).bytes, 0);
    for number in 0..40 {
        put(&mut server, &format!("b{number:02}"), LONG, 10 + 2 * number);
    }
    let bytes = stored(&server);
    assert!(bytes > 40 * 300, "{bytes}");
    assert!(
        is_about(size_of(&server, 1).bytes, bytes),
        "{bytes} {:?}",
        size_of(&server, 1)
    );
    // Nothing was written down of so little: it is counted.
    server.start_again();
    wait(&mut server);
    assert!(
        is_about(size_of(&server, 1).bytes, bytes),
        "{bytes} {:?}",
        size_of(&server, 1)
    );
}

#[test]
fn a_tablet_above_the_limit_reports_the_row_at_half_of_it() {
    let mut server = Server::new();
    for number in 0..60 {
        // The first rows are the long ones.
        let value = if number < 20 { LONG } else { "short" };
        put(
            &mut server,
            &format!("b{number:02}"),
            value,
            10 + 2 * number,
        );
    }
    wait(&mut server);
    assert_eq!(size_of(&server, 1).split_at, "", "there is no limit");
    server.core.split_above(1 << 20, 0);
    wait(&mut server);
    assert_eq!(size_of(&server, 1).split_at, "", "it is below the limit");
    server.core.split_above(3_000, 0);
    wait(&mut server);
    let split_at = size_of(&server, 1).split_at;
    assert!(split_at > *"b08" && split_at < *"b20", "{split_at:?}");
    let bytes = size_of(&server, 1).bytes;
    server.command(TabletCommand::Split {
        id: 1,
        epoch: 1,
        row: split_at,
        sibling: 2,
    });
    let (first, second) = (size_of(&server, 1), size_of(&server, 2));
    assert!(
        is_about(first.bytes + second.bytes, bytes),
        "{first:?} {second:?}"
    );
    // Each is counted again.
    wait(&mut server);
    let (first, second) = (size_of(&server, 1), size_of(&server, 2));
    assert!(
        !first.split_at.is_empty() && !second.split_at.is_empty(),
        "{first:?} {second:?}"
    );
    server.command(TabletCommand::Merge {
        first: (1, 2),
        second: (2, 2),
    });
    assert!(is_about(size_of(&server, 1).bytes, stored(&server)));
}

/// As by hand: nearly all of the tablet lies behind the row.
#[test]
fn both_parts_of_a_tablet_that_is_split_anywhere_are_counted() {
    let mut server = Server::new();
    for number in 0..40 {
        put(&mut server, &format!("b{number:02}"), LONG, 10 + 2 * number);
    }
    let bytes = stored(&server);
    server.command(TabletCommand::Split {
        id: 1,
        epoch: 1,
        row: "b01".into(),
        sibling: 2,
    });
    wait(&mut server);
    let [first, second] = [1, 2].map(|id| size_of(&server, id).bytes);
    assert!(is_about(first, bytes / 40), "{first} of {bytes}");
    assert!(is_about(second, bytes / 40 * 39), "{second} of {bytes}");
}

#[test]
fn one_row_cannot_be_split() {
    let mut server = Server::new();
    server.core.split_above(1_024, 0);
    for number in 0..20 {
        put(&mut server, "b", LONG, 10 + 2 * number);
    }
    wait(&mut server);
    let size = size_of(&server, 1);
    assert_eq!(size.split_at, "", "before row b there is nothing");
    put(&mut server, "a", LONG, 100);
    server.core.split_above(1_025, 0);
    wait(&mut server);
    assert_eq!(size_of(&server, 1).split_at, "b");
    let split = server.command(TabletCommand::Split {
        id: 1,
        epoch: 1,
        row: "b".into(),
        sibling: 2,
    });
    assert_eq!(split, None);
    wait(&mut server);
    assert_eq!(size_of(&server, 2).split_at, "", "all of it is one row");
    let again = server.command(TabletCommand::Split {
        id: 2,
        epoch: 2,
        row: "b".into(),
        sibling: 3,
    });
    refused(again);
}

#[test]
fn what_is_collected_is_taken_off() {
    let mut server = Server::new();
    for number in 0..50 {
        put(&mut server, "b", "a value", 10 + 2 * number);
    }
    let before = size_of(&server, 1).bytes;
    let points = percolator_protocol::safe_point::Points {
        barrier: Timestamp::from_u64(1_000),
        safe_point: Timestamp::from_u64(1_000),
        resolved: Timestamp::from_u64(1_000),
    };
    server.core.reach(points, &mut server.replies);
    server.settle();
    wait(&mut server);
    let (after, stored) = (size_of(&server, 1).bytes, stored(&server));
    assert!(after < before / 4, "{before} {after} {stored}");
}
