//! A tablet whose table is being deleted, and the locks of its transactions elsewhere.

use crate::support::{INCARNATION, ME, Server, cell, me, prewrite, refused, tablet};
use percolator_protocol::types::{Tablet, TabletState, Timestamp};
use percolator_tablet::core::TabletCommand;
use percolator_wire::v1;
use percolator_wire::v1::check_status_response::Status;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::request_error::Kind;
use percolator_wire::v1::response::Body;

fn frozen(id: u64, table: u32) -> Tablet {
    Tablet {
        state: TabletState::Frozen,
        ..tablet(id, table, "a", "m")
    }
}

fn check(start_ts: u64, force: bool) -> Ask {
    Ask::CheckStatus(v1::CheckStatusRequest {
        primary: Some(cell("b")),
        start_ts,
        now: 1 << 30,
        push_past: 0,
        force,
        met_ttl_ms: 3000,
    })
}

fn commit(start_ts: u64, commit_ts: u64) -> Ask {
    Ask::Commit(v1::CommitRequest {
        start_ts,
        commit_ts,
        cells: vec![cell("b")],
    })
}

/// A lock in tablet 2, of table 6, with its primary in this table's row.
fn secondary(row: &'static str, primary_table: u32, start_ts: u64) -> Ask {
    let Ask::Prewrite(mut ask) = prewrite(row, "v", start_ts) else {
        panic!("a prewrite");
    };
    ask.primary = Some(v1::CellName {
        table_id: primary_table,
        row: "b".into(),
        column: "c".into(),
    });
    Ask::Prewrite(ask)
}

fn status(answer: Option<Body>) -> Status {
    match answer {
        Some(Body::CheckStatus(answer)) => answer.status.expect("a status"),
        other => panic!("{other:?}"),
    }
}

/// The requests that a frozen tablet refuses.
fn refused_requests() -> [Ask; 7] {
    let get_one = v1::GetOneRequest {
        tablet_id: 1,
        epoch: 1,
        start_ts: 25,
        row: "b".into(),
        column: "c".into(),
        bypass: Vec::new(),
    };
    let mut one_phase = prewrite("d", "1", 40);
    if let Ask::Prewrite(ask) = &mut one_phase {
        ask.one_phase = Some(v1::OnePhase {
            commit_ts: 50,
            incarnation: INCARNATION,
        });
    }
    [
        Ask::GetOne(get_one),
        Ask::Get(v1::GetRequest {
            start_ts: 25,
            cells: vec![cell("b")],
            ..Default::default()
        }),
        Ask::Scan(v1::ScanRequest {
            start_ts: 25,
            ..Default::default()
        }),
        prewrite("c", "1", 40),
        one_phase,
        commit(30, 35),
        Ask::KeepAlive(v1::KeepAliveRequest {
            primary: Some(cell("b")),
            start_ts: 30,
            ttl_ms: 9000,
        }),
    ]
}

#[test]
fn a_frozen_tablet_reports_how_transactions_ended_and_commits_none() {
    let mut server = Server::new();
    server.put("b", "1", 10, 20);
    server.ask(prewrite("b", "2", 30));
    assert!(server.own(frozen(1, 5)).is_none());
    // Twice: with the tablet as it is, and as another start finds it.
    for _ in 0..2 {
        assert_eq!(
            server.core.report().tablets[0].state(),
            v1::TabletState::Frozen,
            "the master gets it"
        );
        for ask in refused_requests() {
            let id = server.send(ask.clone());
            let kind = refused(server.answer(id));
            assert!(
                matches!(&kind, Kind::NotServed(not) if not.frozen && not.known_epoch == 1),
                "{ask:?}: {kind:?}"
            );
        }
        let answer = server.ask(check(10, true));
        assert!(matches!(status(Some(answer)), Status::Committed(at) if at.commit_ts == 20));
        server.start_again_as(INCARNATION);
    }
    // A command to make it that comes late doesn't thaw it.
    assert!(server.own(tablet(1, 5, "a", "m")).is_none());
    assert_eq!(
        server.core.report().tablets[0].state(),
        v1::TabletState::Frozen
    );
    let answer = server.ask(check(30, true));
    assert!(matches!(status(Some(answer)), Status::RolledBack(_)));
    let rollback = Ask::Rollback(v1::RollbackRequest {
        start_ts: 60,
        cells: vec![cell("b")],
    });
    let answer = server.ask(rollback);
    assert!(matches!(answer, Body::Rollback(answer) if answer.committed.is_none()));
    assert_eq!(server.core.locks(), 0);
    server.drop_tablet(1);
    server.settle();
    assert_eq!(server.left(), 0);
}

/// Commits that are decided when the command arrives are seen by later requests, and no other commits.
#[test]
fn a_commit_under_way_is_durable_before_its_status_is_reported() {
    let mut server = Server::new();
    server.ask(prewrite("b", "1", 10));
    let command = TabletCommand::Create {
        tablet: frozen(1, 5),
        made: true,
        barrier: Timestamp::ZERO,
    };
    let meant = Some(me(INCARNATION).into());
    server
        .core
        .command(ME, 99, meant, command, &mut server.replies);
    let freezing = server.core.take_group().expect("a group");
    // The tablet isn't frozen yet: the record is on its way.
    let committed = server.send(commit(10, 20));
    let result = server.engine.commit(&freezing);
    server.core.committed(result, &mut server.replies);
    // The master has its answer now, and the commit is still on its way.
    assert!(server.replies.iter().any(|reply| reply.response.id == 99));
    assert!(server.answer(committed).is_none());
    let asked = server.send(check(10, true));
    assert!(server.answer(asked).is_none(), "it waits for the commit");
    server.settle();
    assert!(server.answer(committed).is_some());
    assert!(matches!(
        status(server.answer(asked)),
        Status::Committed(at) if at.commit_ts == 20
    ));
}

#[test]
fn a_tablet_that_has_changed_is_not_frozen_as_it_was() {
    let mut server = Server::new();
    let newer = Tablet {
        epoch: 2,
        ..tablet(1, 5, "a", "g")
    };
    assert!(server.own(newer).is_none());
    let answer = server.own(frozen(1, 5));
    assert!(matches!(refused(answer), Kind::Invalid(why) if why.contains("epoch 2")));
    assert_eq!(
        server.core.report().tablets[0].state(),
        v1::TabletState::Serving
    );
}

#[test]
fn the_locks_of_old_transactions_are_listed_in_order_and_page_by_page() {
    const ROWS: [&str; 4] = ["b", "c", "d", "e"];
    let mut server = Server::new();
    for (id, table) in [(2, 6), (3, 7), (4, 8)] {
        assert!(server.own(tablet(id, table, "a", "m")).is_none());
    }
    let mut lock = |tablet, ask| {
        let id = server.send_to(tablet, 1, ask);
        server.settle();
        let answer = server.answer(id);
        assert!(matches!(answer, Some(Body::Prewrite(answer)) if answer.rejections.is_empty()));
    };
    for row in ROWS {
        lock(2, secondary(row, 5, 10));
    }
    // It began at the point, and not below it.
    lock(2, secondary("f", 5, 14));
    lock(3, secondary("b", 5, 12));
    lock(4, secondary("b", 5, 13));
    // Those of a table that is being deleted go with its rows.
    assert!(server.own(frozen(4, 8)).is_none());
    let ask = |server: &mut Server, after| {
        let id = server.send(Ask::LocksBelow(v1::LocksBelowRequest {
            below: 14,
            after,
            to: Some(me(INCARNATION)),
        }));
        match server.answer(id) {
            Some(Body::LocksBelow(locks)) => locks,
            other => panic!("{other:?}"),
        }
    };
    let names = |locks: &v1::LocksBelowResponse| {
        let name = |lock: &v1::MetLock| {
            let cell = lock.cell.clone().expect("a cell");
            let row = String::from_utf8_lossy(&cell.row).into_owned();
            format!("{} {row} {}", cell.table_id, lock.start_ts)
        };
        locks.locks.iter().map(name).collect::<Vec<_>>()
    };
    let all = ask(&mut server, None);
    assert_eq!(
        names(&all),
        ["6 b 10", "6 c 10", "6 d 10", "6 e 10", "7 b 12"]
    );
    assert_eq!(all.resume, None);
    let behind = ask(&mut server, all.locks[2].cell.clone());
    assert_eq!(names(&behind), ["6 e 10", "7 b 12"]);
}

#[test]
fn more_locks_than_one_answer_holds_are_gone_through() {
    let mut server = Server::new();
    assert!(server.own(tablet(2, 6, "a", "m")).is_none());
    let Ask::Prewrite(mut many) = secondary("b", 5, 10) else {
        panic!("a prewrite");
    };
    let first = many.mutations.remove(0);
    many.mutations = (0..2500)
        .map(|number| {
            let mut mutation = first.clone();
            mutation.cell = Some(v1::CellRef {
                row: format!("b{number:04}").into(),
                ..cell("")
            });
            mutation
        })
        .collect();
    let id = server.send_to(2, 1, Ask::Prewrite(many));
    server.settle();
    assert!(server.answer(id).is_some());
    let (mut after, mut counts) = (None, Vec::new());
    loop {
        let id = server.send(Ask::LocksBelow(v1::LocksBelowRequest {
            below: 11,
            after: after.take(),
            to: Some(me(INCARNATION)),
        }));
        let Some(Body::LocksBelow(locks)) = server.answer(id) else {
            panic!("no locks");
        };
        counts.push(locks.locks.len());
        after = locks.resume;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(counts, [512, 512, 512, 512, 452]);
}

#[test]
fn an_order_to_make_a_tablet_of_a_deleted_table_is_refused_also_after_a_start() {
    let mut server = Server::new();
    assert!(server.own(frozen(1, 5)).is_none());
    assert!(
        server
            .command(TabletCommand::Drop { id: 1, table: 5 })
            .is_none()
    );
    for _ in 0..2 {
        let late = server.own(tablet(1, 5, "a", "m"));
        assert!(matches!(refused(late), Kind::Invalid(why) if why.contains("table 5 was deleted")));
        let report = server.core.report();
        assert_eq!(report.deleted_tables, [5]);
        assert!(report.tablets.is_empty());
        server.start_again_as(INCARNATION);
    }
}

#[test]
fn a_tablet_that_is_lost_is_not_frozen_by_making_an_empty_one() {
    let mut server = Server::new();
    let answer = server.command(TabletCommand::Create {
        tablet: frozen(9, 5),
        made: true,
        barrier: Timestamp::ZERO,
    });
    assert!(matches!(refused(answer), Kind::Invalid(why) if why.contains("tablet 9")));
    assert_eq!(server.core.report().tablets.len(), 1);
}

#[test]
fn commands_for_another_server_or_incarnation_are_refused() {
    let mut server = Server::new();
    let other = v1::Addressee {
        server: "tablet-1".into(),
        ..me(INCARNATION)
    };
    for meant in [Some(other), Some(me(INCARNATION + 1)), None] {
        let command = TabletCommand::Drop { id: 1, table: 5 };
        server.core.command(
            ME,
            99,
            meant.clone().map(Into::into),
            command,
            &mut server.replies,
        );
        let kind = refused(server.answer(99));
        assert!(
            matches!(&kind, Kind::OtherServer(is) if is.meant == meant),
            "{kind:?}"
        );
        let id = server.send(Ask::LocksBelow(v1::LocksBelowRequest {
            below: 11,
            to: meant.clone(),
            ..v1::LocksBelowRequest::default()
        }));
        let kind = refused(server.answer(id));
        assert!(
            matches!(&kind, Kind::OtherServer(is) if is.answers == Some(me(INCARNATION))),
            "{kind:?}"
        );
    }
    assert_eq!(server.core.report().tablets.len(), 1);
}
