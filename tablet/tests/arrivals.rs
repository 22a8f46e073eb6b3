//! Commands to get tablets that have the same rows, as of before and after a merge at their owner: one of them is refused, also
//! while the other one is on its way to the disk. What is left of an attempt that is given up would go with its rows otherwise.

use std::time::Duration;

use crate::support::moves::{Two, at, tablets};
use crate::support::{INCARNATION, ME, Server, me, prewrite, refused, tablet};
use percolator_client::Obstacle;
use percolator_engine::Column;
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::{Rows, Tablet, TabletState, Timestamp};
use percolator_tablet::Unanswered;
use percolator_tablet::core::TabletCommand;
use percolator_wire::v1::request_error::Kind;

fn import(id: u64, start_row: &'static str, end_row: &'static str) -> TabletCommand {
    TabletCommand::Import {
        tablet: tablet(id, 5, start_row, end_row),
        from: at("tablet-0"),
        address: "tablet-1:1".into(),
    }
}

fn create(id: u64, start_row: &'static str, end_row: &'static str) -> TabletCommand {
    TabletCommand::Create {
        tablet: Tablet {
            state: TabletState::Serving,
            ..tablet(id, 5, start_row, end_row)
        },
        made: false,
        barrier: percolator_protocol::types::Timestamp::ZERO,
    }
}

/// Both commands come before a group is durable. What the second one is answered.
fn second(first: TabletCommand, second: TabletCommand) -> String {
    let mut server = Server::empty();
    for (id, command) in [(1, first), (2, second)] {
        let to = Some(me(INCARNATION).into());
        server
            .core
            .command(ME, id, to, command, &mut server.replies);
    }
    server.settle();
    assert_eq!(server.answer(1), None);
    match refused(server.answer(2)) {
        Kind::Invalid(why) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn tablets_of_the_same_rows_do_not_arrive_at_once() {
    let why = second(import(7, "c", "m"), import(8, "a", "m"));
    assert!(
        why.contains("getting tablet 7, which has the same rows"),
        "{why}"
    );
}

#[test]
fn a_tablet_is_not_made_whose_rows_arrive() {
    let why = second(import(7, "c", "m"), create(8, "a", "m"));
    assert!(why.contains("getting its rows with tablet 7"), "{why}");
    let why = second(create(8, "a", "m"), import(7, "c", "m"));
    assert!(why.contains("tablet 8"), "{why}");
}

#[test]
fn what_a_full_disk_refuses_rests_and_is_given_up_in_the_end() {
    let mut two = Two::new();
    two.begin(1);
    let call = two.call();
    two.ask(&call);
    assert_eq!(two.other.refuse_group(), 1);
    assert_eq!(two.other.refuse_group(), 0, "it would be refused at once");
    let tick = Duration::from_secs(1);
    for second in 1..10 {
        two.other.core.tick(tick, &mut two.other.replies);
        assert_eq!(two.other.refuse_group(), 1, "after {second} s");
    }
    assert!(two.other.core.is_arriving());
    two.other.core.tick(tick, &mut two.other.replies);
    // To give it up needs some of what is kept back.
    while two.other.commit_group_short_of_room() > 0 {}
    assert!(!two.other.core.is_arriving());
    let report = two.other.core.report();
    assert_eq!(report.arriving[0].failure, "this server's disk is full");
    // There is room again.
    two.other.settle();
    two.owner
        .core
        .tick(Duration::from_secs(11), &mut two.owner.replies);
    two.begin(1);
    two.hand_over();
    assert_eq!(tablets(&two.other), [(1, 2)]);
}

#[test]
fn a_refused_step_is_given_up_if_another_server_has_the_tablet() {
    let mut two = Two::new();
    two.begin(1);
    let call = two.call();
    two.ask(&call);
    assert_eq!(two.other.refuse_group(), 1);
    two.other
        .core
        .settle_arrivals(&[(1, 1)], &mut two.other.replies);
    two.other.settle();
    assert!(!two.other.core.is_arriving());
    let failure = two.other.core.report().arriving[0].failure.clone();
    assert!(failure.contains("another server has it"), "{failure}");
}

/// Both have this barrier, and the other one, which has no locks, has said that all below it are resolved.
fn ahead(barrier: u64, locked: &'static str) -> Two {
    let mut two = Two::new();
    two.owner.create(2, "m", "z");
    let id = two.owner.send_to(
        if locked < "m" { 1 } else { 2 },
        1,
        prewrite(locked, "old", 12),
    );
    two.owner.settle();
    assert!(two.owner.answer(id).is_some());
    two.raise_barrier_of_owner(barrier);
    let points = Points {
        barrier: Timestamp::from_u64(barrier),
        ..Points::default()
    };
    two.other.core.reach(points, &mut two.other.replies);
    two.other.settle();
    let obstacle = Obstacle {
        what: "its primary's server is away".into(),
        start_ts: Timestamp::from_u64(12),
    };
    two.owner
        .core
        .locks_resolved(two.now, points.barrier, Err(obstacle));
    let resolved = |server: &Server| server.core.report().resolved_ts;
    assert_eq!((resolved(&two.owner), resolved(&two.other)), (0, barrier));
    two
}

#[test]
fn locks_of_other_tablets_keep_none_from_being_handed_over() {
    let mut two = ahead(14, "p");
    two.begin(1);
    two.hand_over();
    assert_eq!(tablets(&two.other), [(1, 2)]);
    assert_eq!(two.other.core.report().resolved_ts, 14);
}

#[test]
fn a_tablet_with_locks_that_are_too_old_for_the_other_one_is_not_copied() {
    let mut two = ahead(14, "d");
    two.begin(1);
    let call = two.call();
    two.ask(&call);
    two.other.settle();
    assert_eq!(two.other.content(Column::Write), []);
    let failure = two.other.core.report().arriving[0].failure.clone();
    assert!(failure.contains("old locks"), "{failure}");
    assert_eq!(tablets(&two.owner), [(1, 1), (2, 1)]);
}

#[test]
fn of_attempts_that_failed_the_newest_are_remembered() {
    let mut server = Server::empty();
    let rows: Vec<String> = (0..=66).map(|row| format!("{row:03}")).collect();
    // The lowest numbers fail last.
    for (nth, id) in (100..164).chain([1, 2]).enumerate() {
        let rows = Rows {
            start: rows[nth].clone().into(),
            end: rows[nth + 1].clone().into(),
        };
        let tablet = Tablet {
            id,
            rows,
            ..tablet(id, 5, "", "")
        };
        server.command(TabletCommand::Import {
            tablet,
            from: at("tablet-0"),
            address: "tablet-1:1".into(),
        });
        let call = server.core.next_call(Duration::ZERO).expect("a call");
        server.core.asked(
            Duration::ZERO,
            &call,
            Err(Unanswered::OtherServer),
            &mut server.replies,
        );
        server.settle();
    }
    let failed: Vec<u64> = server
        .core
        .report()
        .arriving
        .iter()
        .map(|it| it.tablet_id)
        .collect();
    assert_eq!(failed.len(), 64);
    assert_eq!(failed[..3], [1, 2, 102]);
}

#[test]
fn an_owner_that_answers_now_and_then_is_not_given_up() {
    let mut two = Two::new();
    two.begin(1);
    let lose = |two: &mut Two| {
        let call = two.call();
        let lost = Err(Unanswered::Lost("no answer".into()));
        two.other
            .core
            .asked(two.now, &call, lost, &mut two.other.replies);
        two.other.settle();
    };
    lose(&mut two);
    two.now += Duration::from_secs(29);
    let call = two.call();
    two.carry(&call);
    two.now += Duration::from_secs(5);
    lose(&mut two);
    assert!(two.other.core.is_arriving());
    two.hand_over();
}
