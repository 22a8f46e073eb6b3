//! Commands to get tablets that have the same rows, as of before and after a merge at their owner: one of them is refused, also
//! while the other one is on its way to the disk. What is left of an attempt that is given up would go with its rows otherwise.

use crate::support::{INCARNATION, ME, Server, me, refused, tablet};
use percolator_protocol::types::{Tablet, TabletState};
use percolator_tablet::core::TabletCommand;
use percolator_wire::v1;
use percolator_wire::v1::request_error::Kind;

fn import(id: u64, start_row: &'static str, end_row: &'static str) -> TabletCommand {
    TabletCommand::Import {
        tablet: tablet(id, 5, start_row, end_row),
        from: v1::MovedTo {
            server: Some(me(INCARNATION)),
            address: "tablet-0:1".into(),
        },
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
        let to = Some(me(INCARNATION));
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
