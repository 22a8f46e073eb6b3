//! The barrier and the safe point of a tablet server: what is refused, what is collected, and what is kept.

use std::time::Duration;

use crate::support::{INCARNATION, ME, Server, cell, me, prewrite, tablet};
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::Timestamp;
use percolator_tablet::GcSettingsCopy;
use percolator_tablet::core::TabletCommand;
use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::request_error::Kind;
use percolator_wire::v1::response::Body;

fn points(barrier: u64, safe_point: u64) -> Points {
    Points {
        barrier: Timestamp::from_u64(barrier),
        safe_point: Timestamp::from_u64(safe_point),
        resolved: Timestamp::from_u64(safe_point),
    }
}

fn reach(server: &mut Server, points: Points) {
    let Server { core, replies, .. } = server;
    core.reach(points, replies);
}

fn reported(server: &Server) -> (u64, u64) {
    let report = server.core.report();
    (report.barrier, report.safe_point)
}

fn too_old(body: Body) -> v1::TooOld {
    match body {
        Body::Error(v1::RequestError {
            kind: Some(Kind::TooOld(too_old)),
        }) => too_old,
        other => panic!("not refused as too old: {other:?}"),
    }
}

#[test]
fn the_barrier_is_reported_when_it_is_durable_and_refuses_from_before_that() {
    let mut server = Server::new();
    server.put("b", "1", 10, 20);
    reach(&mut server, points(30, 0));
    assert_eq!(reported(&server), (0, 0));
    let late = server.send(prewrite("b", "2", 29));
    let refused = too_old(server.answer(late).expect("an answer at once"));
    assert_eq!((refused.start_ts, refused.barrier), (29, 30));
    server.settle();
    assert_eq!(reported(&server), (30, 0));
    let get = server.send(Ask::Get(v1::GetRequest {
        start_ts: 29,
        cells: vec![cell("b")],
        ..v1::GetRequest::default()
    }));
    let refused = too_old(server.answer(get).expect("an answer at once"));
    assert_eq!(refused.start_ts, 29);
    assert_eq!(server.value("b", 30).as_deref(), Some("1"));
}

#[test]
fn a_record_of_the_points_takes_nothing_back_that_is_on_its_way() {
    let mut server = Server::new();
    reach(&mut server, points(30, 20));
    // Before that is durable.
    reach(&mut server, points(40, 0));
    server.settle();
    assert_eq!(reported(&server), (40, 20));
    server.start_again();
    assert_eq!(reported(&server), (40, 20));
}

/// Where room is short, what ends something goes before what is new, whichever was decided first.
#[test]
fn a_record_that_waited_for_room_takes_nothing_back() {
    let mut server = Server::new();
    server.send(prewrite("b", "1", 10));
    assert_eq!(server.commit_group_short_of_room(), 1, "there is no room");
    reach(&mut server, points(20, 10));
    let command = TabletCommand::Create {
        tablet: tablet(2, 5, "m", "z"),
        made: false,
        barrier: Timestamp::from_u64(30),
    };
    let Server { core, replies, .. } = &mut server;
    core.command(ME, 7, Some(me(INCARNATION).into()), command, replies);
    reach(&mut server, points(40, 20));
    assert_eq!(server.commit_group_short_of_room(), 2, "points alone");
    // There is room again.
    assert_eq!(server.commit_group(), 1, "the tablet");
    assert_eq!(reported(&server), (40, 20));
    server.start_again();
    assert_eq!(reported(&server), (40, 20));
}

#[test]
fn garbage_is_collected_and_the_outcome_of_its_transactions_is_not_known_then() {
    let mut server = Server::new();
    for (start, commit) in [(10, 11), (12, 13), (14, 15)] {
        server.put("b", "value", start, commit);
    }
    reach(&mut server, points(20, 20));
    server.settle();
    // What a heartbeat later finds.
    reach(&mut server, points(20, 20));
    server.settle();
    assert_eq!(progress(&server), (0, 2));
    assert_eq!(server.value("b", 20).as_deref(), Some("value"));
    let commit = |start_ts, commit_ts| {
        Ask::Commit(v1::CommitRequest {
            start_ts,
            commit_ts,
            cells: vec![cell("b")],
        })
    };
    let again = server.ask(commit(14, 15));
    assert!(
        matches!(again, Body::Commit(_)),
        "its record is there: {again:?}"
    );
    let again = server.ask(commit(12, 13));
    assert_eq!(too_old(again).barrier, 20);
}

/// Of tablet 1: what waits, and what was collected.
fn progress(server: &Server) -> (u64, u64) {
    let progress = server.core.report().progress.expect("a progress");
    let tablet = progress.tablets.iter().find(|tablet| tablet.tablet_id == 1);
    tablet.map_or((0, 0), |tablet| (tablet.waiting, tablet.records))
}

#[test]
fn what_waits_is_counted_and_counted_anew_at_a_start() {
    let mut server = Server::new();
    for (start, commit) in [(10, 11), (12, 13), (14, 15)] {
        server.put("b", "value", start, commit);
    }
    assert_eq!(progress(&server), (2, 0));
    server.start_again();
    assert_eq!(progress(&server), (2, 0));
    assert_eq!(server.core.report().progress.expect("one").oldest, 13);
    reach(&mut server, points(14, 14));
    server.settle();
    assert_eq!(progress(&server), (1, 1));
    assert_eq!(server.value("b", 14).as_deref(), Some("value"));
}

#[test]
fn the_settings_of_the_master_are_kept_for_one_that_has_lost_them() {
    let mut server = Server::new();
    let settings = |revision, retention_ms| GcSettingsCopy {
        revision,
        retention: Some(Duration::from_millis(retention_ms)),
        ..GcSettingsCopy::default()
    };
    let keep = |server: &mut Server, settings| {
        server.core.keep(Some(settings), &mut server.replies);
        server.settle();
    };
    keep(&mut server, settings(2, 5_000));
    keep(&mut server, settings(1, 9_000));
    server.start_again();
    assert_eq!(server.core.report().gc, Some(settings(2, 5_000).into()));
}
