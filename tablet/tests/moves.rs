//! Tablets that are handed over between two servers: what comes along, what stays, and who serves when.

use std::time::Duration;

use crate::support::moves::{Two, ask_at, at, get, not_served, tablets, taken, value};
use crate::support::{INCARNATION, ME, Server, cell, prewrite, refused, tablet};
use percolator_engine::Column;
use percolator_protocol::lease::Lease;
use percolator_protocol::types::TabletState;
use percolator_tablet::core::TabletCommand;
use percolator_tablet::{MoveRequest, ServerLocation, Unanswered};
use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::request_error::Kind;
use percolator_wire::v1::response::Body;

#[test]
fn the_receiver_gets_all_of_a_tablet_and_the_owner_names_it() {
    let mut two = Two::new();
    two.owner.ask(prewrite("d", "locked", 16));
    assert_eq!(two.begin(1), None);
    assert_eq!(two.begin(1), None, "harmless when repeated");
    two.hand_over();
    assert_eq!(tablets(&two.owner), []);
    assert_eq!(tablets(&two.other), [(1, 2)]);
    let other = &mut two.other;
    assert_eq!(value(other, 2, "b", 20).as_deref(), Some("1"));
    assert_eq!(value(other, 2, "c", 20).as_deref(), Some("new"));
    assert_eq!(value(other, 2, "c", 14).as_deref(), Some("old"));
    assert_eq!(other.core.locks(), 1);
    let not = not_served(ask_at(&mut two.owner, 1, get("b", 20)));
    assert_eq!(not.moved_to, Some(at_other().into()));
    assert_eq!((not.known_epoch, not.tablets[0].epoch), (2, 2));
    let departed = two.owner.core.report().departed;
    assert_eq!(departed.len(), 1);

    // Also after restarts of both; and what is left goes when others report it.
    two.owner.start_again();
    two.other.start_again();
    assert_eq!(tablets(&two.owner), []);
    assert_eq!(value(&mut two.other, 2, "c", 20).as_deref(), Some("new"));
    let not = not_served(ask_at(&mut two.owner, 1, get("b", 20)));
    assert_eq!(not.moved_to, Some(at_other().into()));
    two.owner.core.settle(&[1, 77], &mut two.owner.replies);
    two.owner.settle();
    two.owner.settle();
    for column in [Column::Lock, Column::Write, Column::Data] {
        assert_eq!(two.owner.content(column), [], "{column:?}");
    }
    assert_eq!(two.owner.core.report().departed, []);
}

fn at_other() -> ServerLocation {
    ServerLocation {
        address: "tablet-0:2".into(),
        ..at("tablet-0")
    }
}

#[test]
fn what_is_written_meanwhile_follows() {
    let mut two = Two::new();
    two.begin(1);
    let call = two.call();
    // On its way to the disk when the copy is made, and closed with it.
    let commit = two.owner.send(prewrite("e", "late", 17));
    two.carry(&call);
    assert!(two.owner.answer(commit).is_some());
    two.hand_over();
    assert_eq!(two.other.core.locks(), 1);
    let Some(Body::Get(got)) = ask_at(&mut two.other, 2, get("e", 20)) else {
        panic!("no answer");
    };
    let met = &got.results[0].result;
    assert!(
        matches!(met, Some(v1::get_result::Result::Locked(_))),
        "{met:?}"
    );
}

#[test]
fn nobody_serves_it_between_the_last_piece_and_the_decision() {
    let mut two = Two::new();
    two.begin(1);
    let take = two.copy();
    assert!(not_served(ask_at(&mut two.owner, 1, get("b", 20))).moving);
    assert!(not_served(ask_at(&mut two.other, 2, get("b", 20))).moving);
    let other = not_served(ask_at(&mut two.other, 1, get("b", 20)));
    assert!(!other.moving, "it won't come at that epoch");
    // A command finds it closed, too.
    let split = two.owner.command(TabletCommand::Split {
        id: 1,
        epoch: 1,
        row: "h".into(),
        sibling: 2,
    });
    assert!(matches!(refused(split), Kind::Invalid(_)));
    let answer = two.carry(&take);
    assert_eq!(taken(&answer), v1::Taken::Moved);
    assert_eq!(value(&mut two.other, 2, "b", 20).as_deref(), Some("1"));
}

#[test]
fn an_owner_without_requests_serves_on_and_the_receiver_gives_up() {
    let mut two = Two::new();
    two.begin(1);
    let take = two.copy();
    two.owner
        .core
        .tick(Duration::from_secs(3), &mut two.owner.replies);
    assert_eq!(value(&mut two.owner, 1, "b", 20).as_deref(), Some("1"));
    assert_eq!(taken(&two.carry(&take)), v1::Taken::Stays);
    let report = two.other.core.report();
    assert_eq!(report.arriving[0].failure, "it stays at tablet-0");
    two.other.settle();
    assert_eq!(two.other.content(Column::Write), [], "what came is removed");
    // Again, and this time it is taken.
    two.begin(1);
    two.hand_over();
    assert_eq!(tablets(&two.other), [(1, 2)]);
}

#[test]
fn restarts_are_settled_by_what_the_owner_has_written() {
    // The owner forgets the attempt.
    let mut two = Two::new();
    two.begin(1);
    let take = two.copy();
    two.owner.start_again();
    assert_eq!(taken(&two.carry(&take)), v1::Taken::Stays);
    assert_eq!(tablets(&two.owner), [(1, 1)]);

    // It has decided, and the receiver gets the response after its own restart.
    let mut two = Two::new();
    two.begin(1);
    let take = two.copy();
    let id = two.owner.send_as_it_is(take.request.into());
    two.owner.settle();
    two.owner.answer(id).expect("an answer that is lost");
    two.owner.start_again();
    two.other.start_again();
    assert_eq!(tablets(&two.other), []);
    assert!(two.other.core.missing(&[1]).is_empty(), "it isn't lost");
    let take = two.call();
    assert_eq!(taken(&two.carry(&take)), v1::Taken::Moved);
    assert_eq!(value(&mut two.other, 2, "c", 20).as_deref(), Some("new"));

    // A copy that isn't complete is given up with a restart.
    let mut two = Two::new();
    two.begin(1);
    two.other.start_again();
    two.other.settle();
    let report = two.other.core.report();
    assert_eq!(report.arriving[0].failure, "this server was started again");

    // The owner serves on, and merges it with its neighbour: there is no tablet of that id any more.
    let mut two = Two::new();
    two.owner.create(9, "A", "a");
    two.begin(1);
    let take = two.copy();
    two.owner
        .core
        .tick(Duration::from_secs(3), &mut two.owner.replies);
    let merged = two.owner.command(TabletCommand::Merge {
        first: (9, 1),
        second: (1, 1),
    });
    assert_eq!(merged, None);
    assert_eq!(taken(&two.carry(&take)), v1::Taken::Stays);

    // An owner whose folder is another one doesn't know, and nothing is removed.
    let mut two = Two::new();
    two.begin(1);
    let take = two.copy();
    two.owner = Server::empty();
    assert_eq!(taken(&two.carry(&take)), v1::Taken::Unspecified);
    assert!(!two.other.content(Column::Write).is_empty());
    assert!(two.other.core.report().arriving[0].complete);
}

#[test]
fn a_tablet_comes_back_with_nothing_of_before() {
    let mut two = Two::new();
    // In its memory from now on.
    assert_eq!(value(&mut two.owner, 1, "b", 20).as_deref(), Some("1"));
    two.begin(1);
    two.hand_over();
    let id = two.other.send_to(1, 2, prewrite("b", "2", 30));
    two.other.settle();
    two.other.answer(id);
    let commit = Ask::Commit(v1::CommitRequest {
        start_ts: 30,
        commit_ts: 31,
        cells: vec![cell("b")],
    });
    ask_at(&mut two.other, 2, commit);
    // The other way round.
    let mut back = Two {
        owner: two.other,
        other: two.owner,
        now: two.now,
    };
    let Kind::Invalid(why) = refused(back.begin(2)) else {
        panic!("rows of before are still there");
    };
    assert!(why.contains("still to be removed"), "{why}");
    back.other.core.settle(&[1], &mut back.other.replies);
    back.other.settle();
    back.other.settle();
    assert_eq!(back.begin(2), None);
    back.hand_over();
    assert_eq!(tablets(&back.other), [(1, 3)]);
    assert_eq!(value(&mut back.other, 3, "b", 40).as_deref(), Some("2"));
    // A late command to make it doesn't, where it was.
    let late = back.owner.own(tablet(1, 5, "a", "m"));
    let Kind::Invalid(why) = refused(late) else {
        panic!("made again");
    };
    assert!(why.contains("was handed over"), "{why}");
}

#[test]
fn a_tablet_that_changes_otherwise_stays() {
    let mut two = Two::new();
    two.begin(1);
    let call = two.call();
    two.carry(&call);
    // The first piece closes a small tablet: wait until it is served again.
    two.owner
        .core
        .tick(Duration::from_secs(3), &mut two.owner.replies);
    let frozen = percolator_protocol::types::Tablet {
        state: TabletState::Frozen,
        ..tablet(1, 5, "a", "m")
    };
    assert_eq!(two.owner.own(frozen), None);
    let call = two.call();
    let Body::PullTablet(chunk) = two.carry(&call) else {
        panic!("another answer");
    };
    assert!(!chunk.over.is_empty());
    assert_eq!(tablets(&two.other), []);
}

#[test]
fn a_copy_ends_without_responses_and_at_once_when_the_owner_restarts() {
    let mut two = Two::new();
    two.begin(1);
    for _ in 0..120 {
        let call = two.call();
        let lost = Err(Unanswered::Lost("no answer".into()));
        two.other
            .core
            .asked(two.now, &call, lost, &mut two.other.replies);
        two.other.settle();
        if !two.other.core.is_arriving() {
            break;
        }
    }
    let failure = two.other.core.report().arriving[0].failure.clone();
    assert!(failure.contains("has not answered"), "{failure}");
    two.begin(1);
    let call = two.call();
    two.other.core.asked(
        two.now,
        &call,
        Err(Unanswered::OtherServer),
        &mut two.other.replies,
    );
    two.other.settle();
    let failure = two.other.core.report().arriving[0].failure.clone();
    assert_eq!(failure, "tablet-0 was started again");
}

#[test]
fn the_receiver_refuses_what_the_owner_refused() {
    let mut two = Two::new();
    two.raise_barrier_of_owner(14);
    two.begin(1);
    two.hand_over();
    let too_old = refused(ask_at(&mut two.other, 2, get("b", 12)));
    assert!(matches!(too_old, Kind::TooOld(_)), "{too_old:?}");
    assert_eq!(ME, 7);
}

#[test]
fn left_rows_are_removed_when_a_full_disk_has_room_again_without_writes() {
    let mut two = Two::new();
    two.begin(1);
    two.hand_over();
    two.owner.core.settle(&[1], &mut two.owner.replies);
    // That it may go is written down; then there is no room for what removes it.
    assert_eq!(two.owner.commit_group_short_of_room(), 1);
    assert!(two.owner.refuse_group() > 0);
    assert_eq!(
        two.owner.commit_group(),
        0,
        "a full disk would refuse it at once"
    );
    two.owner.settle();
    two.owner.settle();
    assert_eq!(two.owner.content(Column::Write), []);
}

#[test]
fn what_the_owner_refuses_when_it_hands_over_is_refused_from_then_on() {
    let mut two = Two::new();
    two.begin(1);
    let take = two.copy();
    // Behind the last chunk. The owner may report now that no lock below this is left or will come, which the receiver doesn't
    // know.
    two.raise_barrier_of_owner(14);
    assert_eq!(two.owner.core.report().barrier, 14);
    assert_eq!(taken(&two.carry(&take)), v1::Taken::Moved);
    let late = refused(ask_at(&mut two.other, 2, prewrite("d", "late", 12)));
    assert!(matches!(late, Kind::TooOld(_)), "{late:?}");
    two.other.start_again();
    assert_eq!(two.other.core.report().barrier, 14);
}

/// What was decided and refused is not known to the disk, and is decided again with the chunk.
#[test]
fn the_owners_barrier_arrives_though_a_full_disk_refuses_the_last_chunk_once() {
    let mut two = Two::new();
    two.raise_barrier_of_owner(14);
    two.begin(1);
    let mut refused_once = false;
    let take = loop {
        let call = two.call();
        if matches!(call.request, MoveRequest::Take(_)) {
            break call;
        }
        two.ask(&call);
        refused_once |= two.other.commit_group_short_of_room() > 0;
        two.other.settle();
    };
    assert!(refused_once, "each chunk");
    assert_eq!(taken(&two.carry(&take)), v1::Taken::Moved);
    assert_eq!(two.other.core.report().barrier, 14);
    two.other.start_again();
    assert_eq!(two.other.core.report().barrier, 14);
}

/// Another start of it may have the tablet, and have committed to it since the last chunk.
#[test]
fn an_owner_whose_lease_has_lapsed_does_not_hand_over() {
    let mut two = Two::new();
    two.begin(1);
    let take = two.copy();
    two.owner.core.lapse();
    assert_eq!(taken(&two.carry(&take)), v1::Taken::Unspecified);
    assert_eq!(tablets(&two.owner), [(1, 1)]);
    two.owner.core.lease(Lease::UNLIMITED);
    two.hand_over();
}

#[test]
fn chunks_of_two_copies_are_not_put_together() {
    let mut two = Two::new();
    two.begin(1);
    let first = two.call();
    two.carry(&first);
    // The owner gets no requests, serves on, and a client writes.
    two.owner
        .core
        .tick(Duration::from_secs(3), &mut two.owner.replies);
    two.owner.put("b", "2", 30, 31);
    // A second copy of the first request is late: it begins another copy of the tablet, which the receiver doesn't know.
    let late = two.owner.send_as_it_is(first.request.into());
    assert!(two.owner.answer(late).is_some());
    let next = two.call();
    let Body::PullTablet(chunk) = two.carry(&next) else {
        panic!("another answer");
    };
    assert!(!chunk.over.is_empty(), "{chunk:?}");
    assert_eq!(tablets(&two.other), []);
    // The copy without requests ends, and a new attempt has all.
    two.owner
        .core
        .tick(Duration::from_secs(3), &mut two.owner.replies);
    two.begin(1);
    two.hand_over();
    assert_eq!(value(&mut two.other, 2, "b", 40).as_deref(), Some("2"));
}

#[test]
fn an_attempt_ends_though_its_tablet_was_merged_and_has_left_since() {
    let mut two = Two::new();
    two.owner.create(9, "A", "a");
    two.begin(1);
    let take = two.copy();
    two.owner
        .core
        .tick(Duration::from_secs(3), &mut two.owner.replies);
    let merged = two.owner.command(TabletCommand::Merge {
        first: (9, 1),
        second: (1, 1),
    });
    assert_eq!(merged, None);
    // A third server gets the whole.
    let waits = std::mem::replace(&mut two.other, Server::empty());
    let begun = two.other.command(TabletCommand::Import {
        tablet: percolator_protocol::types::Tablet {
            epoch: 2,
            ..tablet(9, 5, "A", "m")
        },
        from: at("tablet-0"),
        address: "tablet-0:2".into(),
    });
    assert_eq!(begun, None);
    two.hand_over();
    two.owner.core.settle(&[9], &mut two.owner.replies);
    two.owner.start_again_as(INCARNATION);
    two.owner.settle();
    assert_eq!(tablets(&two.owner), []);
    two.other = waits;
    assert_eq!(taken(&two.carry(&take)), v1::Taken::Stays);
    assert!(!two.other.core.is_arriving());
    // Nor is the part made again by a late command.
    let Kind::Invalid(why) = refused(two.owner.own(tablet(1, 5, "a", "m"))) else {
        panic!("made again");
    };
    assert!(why.contains("handed over"), "{why}");
}

/// The master has not accepted its folder, which may be from before it handed the tablet over.
#[test]
fn an_owner_without_a_lease_does_not_say_that_a_tablet_stays() {
    let mut two = Two::new();
    two.begin(1);
    let take = two.copy();
    two.owner.start_again_without_lease();
    assert_eq!(taken(&two.carry(&take)), v1::Taken::Unspecified);
    assert!(two.other.core.report().arriving[0].complete);
    two.owner.core.lease(Lease::UNLIMITED);
    let take = two.call();
    assert_eq!(taken(&two.carry(&take)), v1::Taken::Stays);
}

/// It doesn't know yet what readers at its earlier incarnations were promised.
#[test]
fn an_owner_without_a_lease_hands_out_nothing() {
    let mut two = Two::new();
    two.owner.ask(prewrite("d", "locked", 16));
    two.owner.start_again_without_lease();
    two.begin(1);
    let call = two.call();
    two.carry(&call);
    two.owner.core.lease(Lease {
        commits_above: percolator_protocol::types::Timestamp::from_u64(50),
        ..Lease::UNLIMITED
    });
    two.hand_over();
    let commit = Ask::Commit(v1::CommitRequest {
        start_ts: 16,
        commit_ts: 40,
        cells: vec![cell("d")],
    });
    let Some(Body::Commit(answer)) = ask_at(&mut two.other, 2, commit) else {
        panic!("no answer");
    };
    let is_too_low = matches!(answer.result, Some(v1::commit_response::Result::TooLow(_)));
    assert!(is_too_low, "a reader at 45 has not seen it: {answer:?}");
}

#[test]
fn a_full_disk_takes_it_that_a_tablet_is_served() {
    let mut two = Two::new();
    two.begin(1);
    let take = two.copy();
    // Its owner gives it away: only the receiver can serve it.
    two.ask(&take);
    assert_eq!(two.other.commit_group_short_of_room(), 1);
    assert_eq!(tablets(&two.other), [(1, 2)]);
}

#[test]
fn a_copy_is_given_up_when_the_master_knows_that_another_server_has_the_tablet() {
    let mut two = Two::new();
    two.begin(1);
    // Its owner never answers that.
    two.copy();
    for (epoch, is_arriving) in [(2, true), (1, false)] {
        let (settled, other) = ([(1, epoch)], &mut two.other);
        other.core.settle_arrivals(&settled, &mut other.replies);
        other.settle();
        assert_eq!(other.core.is_arriving(), is_arriving, "epoch {epoch}");
    }
    assert_eq!(two.other.content(Column::Write), [], "what came is removed");
    two.other.start_again();
    assert!(!two.other.core.is_arriving());
}

#[test]
fn the_next_chunk_is_requested_while_one_is_written() {
    let limits = percolator_tablet::Limits {
        move_bytes: 1,
        ..percolator_tablet::Limits::default()
    };
    let mut two = Two {
        owner: Server::within(limits),
        ..Two::new()
    };
    let rows = ["b", "c", "d", "e"];
    for row in rows {
        two.owner.put(row, row, 10, 11);
    }
    two.begin(1);
    let mut asked = Vec::new();
    // Nothing of it becomes durable at the server that gets it.
    while let Some(call) = {
        two.now += Duration::from_millis(300);
        two.other.core.next_call(two.now)
    } {
        let MoveRequest::Pull(pull) = &call.request else {
            panic!("{call:?}");
        };
        asked.push(pull.chunk);
        let id = two.owner.send_as_it_is(call.request.clone().into());
        two.owner.settle();
        let answer = two.owner.answer(id).expect("an answer");
        // The second answer is lost once: it is asked for by the same number.
        let is_lost = asked == [1, 2];
        let answer = if is_lost {
            Err(Unanswered::Lost("the network".into()))
        } else {
            Ok(answer.try_into().expect("a chunk"))
        };
        let other = &mut two.other;
        other.core.asked(two.now, &call, answer, &mut other.replies);
    }
    assert_eq!(asked, [1, 2, 2], "one ahead, and no more");
    two.other.settle();
    two.hand_over();
    for row in rows {
        assert_eq!(value(&mut two.other, 2, row, 20).as_deref(), Some(row));
    }
}
