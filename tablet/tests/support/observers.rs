//! Requests about observed columns, and what they are answered.

use std::time::Duration;

use bytes::Bytes;
use percolator_protocol::types::ack_column;
use percolator_tablet::MoveRequest;
use percolator_tablet::core::TabletCommand;
use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::response::Body;

use super::moves::at;
use super::{Server, cell, tablet};

pub(crate) fn observing() -> Server {
    let mut server = Server::new();
    observe(&mut server);
    server
}

pub(crate) fn observe(server: &mut Server) {
    assert!(matches!(server.ask(observe_column("c")), Body::Observe(_)));
}

pub(crate) fn observe_column(column: &'static str) -> Ask {
    Ask::Observe(v1::ObserveRequest {
        column: column.into(),
    })
}

pub(crate) fn ack_cell(row: &'static str) -> v1::CellRef {
    v1::CellRef {
        column: ack_column(b"c"),
        ..cell(row)
    }
}

/// The prewrite of a transaction that acknowledges, and puts these values.
pub(crate) fn acknowledging(
    row: &'static str,
    start_ts: u64,
    values: &[&'static str],
) -> v1::PrewriteRequest {
    let ack = v1::Mutation {
        cell: Some(ack_cell(row)),
        kind: v1::LockKind::Lock.into(),
        value: Bytes::new(),
    };
    let puts = values.iter().map(|value| v1::Mutation {
        cell: Some(cell(row)),
        kind: v1::LockKind::Put.into(),
        value: (*value).into(),
    });
    v1::PrewriteRequest {
        start_ts,
        primary: Some(v1::CellName {
            table_id: 5,
            row: row.into(),
            column: ack_column(b"c"),
        }),
        ttl_ms: 3000,
        mutations: std::iter::once(ack).chain(puts).collect(),
        one_phase: None,
        generation: 0,
        chain: None,
    }
}

pub(crate) fn rejections(body: Body) -> Vec<Option<u64>> {
    let Body::Prewrite(answer) = body else {
        panic!("{body:?}");
    };
    use v1::prewrite_rejection::Reason;
    let reasons = answer.rejections.into_iter().map(|it| it.reason);
    reasons
        .map(|reason| match reason {
            Some(Reason::NotNotified(not)) => Some(not.changed_at),
            _ => None,
        })
        .collect()
}

pub(crate) fn commit(cells: Vec<v1::CellRef>, start_ts: u64, commit_ts: u64) -> Ask {
    Ask::Commit(v1::CommitRequest {
        start_ts,
        commit_ts,
        cells,
    })
}

pub(crate) fn acknowledge(server: &mut Server, row: &'static str, start: u64, commit_ts: u64) {
    let prewrite = Ask::Prewrite(acknowledging(row, start, &[]));
    assert_eq!(rejections(server.ask(prewrite)), []);
    server.ask(commit(vec![ack_cell(row)], start, commit_ts));
}

pub(crate) fn asking(limit: u32, wait_ms: u32, lease_ms: u32) -> Ask {
    Ask::Notifications(v1::NotificationsRequest {
        column: "c".into(),
        limit,
        wait_ms,
        lease_ms,
        ..Default::default()
    })
}

pub(crate) fn rows(body: &Body) -> Vec<(String, u64)> {
    let Body::Notifications(found) = body else {
        panic!("{body:?}");
    };
    let found = found.notifications.iter();
    found
        .map(|it| (String::from_utf8_lossy(&it.row).into_owned(), it.changed_at))
        .collect()
}

pub(crate) fn waiting(server: &mut Server) -> Vec<(String, u64)> {
    // Each answer begins behind the last one.
    let mut all = rows(&server.ask(asking(100, 0, 0)));
    all.sort();
    all
}

pub(crate) fn found(row: &str, at: u64) -> (String, u64) {
    (row.to_owned(), at)
}

/// Hands tablet 1 of the owner over to another server, which is started again before it serves if `restarts`.
pub(crate) fn hand_over(
    owner: &mut Server,
    restarts: bool,
    meanwhile: impl Fn(&mut Server),
) -> Server {
    let mut other = Server::empty();
    let import = TabletCommand::Import {
        tablet: tablet(1, 5, "a", "m"),
        from: at("tablet-0"),
        address: "tablet-0:2".into(),
    };
    assert!(other.command(import).is_none());
    let mut now = Duration::from_secs(1);
    for step in 0..50 {
        now += Duration::from_millis(300);
        let Some(call) = other.core.next_call(now) else {
            break;
        };
        let takes = matches!(call.request, MoveRequest::Take(_));
        let id = owner.send_as_it_is(call.request.clone().into());
        owner.settle();
        let answer = owner.answer(id).expect("an answer");
        let response = Ok(answer.try_into().expect("a move's response"));
        if takes && restarts {
            other.start_again();
            let call = other.core.next_call(now).expect("the same call");
            other.core.asked(now, &call, response, &mut other.replies);
            other.settle();
            return other;
        }
        other.core.asked(now, &call, response, &mut other.replies);
        other.settle();
        if step == 0 {
            meanwhile(owner);
        }
    }
    other
}
