//! Chains of observers: the runs that a transaction comes from are in the notifications that it leaves, in each way to commit.

use crate::support::observers::*;
use crate::support::{INCARNATION, Server, cell, prewrite, refused};
use percolator_protocol::types::{CHAIN_COLUMNS_MAX, OBSERVED_COLUMN_BYTES_MAX};
use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::request_error::Kind;
use percolator_wire::v1::response::Body;

fn chain(depth: u32) -> v1::Chain {
    v1::Chain {
        depth,
        columns: vec![v1::ChainColumn {
            table_id: 7,
            column: "from".into(),
        }],
        trace: Some(v1::TraceContext::new(u128::MAX - 3, u64::from(depth))),
    }
}

/// The prewrite of a run.
fn run(row: &'static str, start_ts: u64, depth: u32) -> v1::PrewriteRequest {
    match prewrite(row, "x", start_ts) {
        Ask::Prewrite(request) => v1::PrewriteRequest {
            chain: Some(chain(depth)),
            ..request
        },
        other => panic!("{other:?}"),
    }
}

fn chains(server: &mut Server) -> Vec<(String, Option<v1::Chain>)> {
    let Body::Notifications(found) = server.ask(asking(100, 0, 0)) else {
        panic!("no answer");
    };
    let found = found.notifications.into_iter();
    let mut all: Vec<_> = found
        .map(|it| (String::from_utf8_lossy(&it.row).into_owned(), it.chain))
        .collect();
    all.sort_by(|one, other| one.0.cmp(&other.0));
    all
}

#[test]
fn each_way_to_commit_leaves_the_chain() {
    let mut server = observing();
    server.ask(Ask::Prewrite(run("a", 10, 3)));
    server.ask(commit(vec![cell("a")], 10, 11));
    server.ask(Ask::Prewrite(v1::PrewriteRequest {
        one_phase: Some(v1::OnePhase {
            commit_ts: 13,
            incarnation: INCARNATION,
        }),
        ..run("b", 12, 4)
    }));
    // Its client has died: another one resolves it.
    server.ask(Ask::Prewrite(run("c", 14, 5)));
    server.ask(Ask::Resolve(v1::ResolveRequest {
        start_ts: 14,
        commit_ts: 15,
        ..Default::default()
    }));
    // Written again by a later flush.
    for generation in [1, 2] {
        server.ask(Ask::Prewrite(v1::PrewriteRequest {
            generation,
            ..run("d", 16, 6)
        }));
    }
    server.start_again();
    server.ask(commit(vec![cell("d")], 16, 17));
    server.put("e", "x", 18, 19);
    // Of a transaction that is no run, and is sampled.
    let traced = v1::Chain {
        trace: chain(7).trace,
        ..v1::Chain::default()
    };
    server.ask(Ask::Prewrite(v1::PrewriteRequest {
        chain: Some(traced.clone()),
        ..run("f", 20, 0)
    }));
    server.ask(commit(vec![cell("f")], 20, 21));
    let expected = [
        ("a", Some(chain(3))),
        ("b", Some(chain(4))),
        ("c", Some(chain(5))),
        ("d", Some(chain(6))),
        ("e", None),
        ("f", Some(traced)),
    ]
    .map(|(row, chain)| (row.to_owned(), chain));
    assert_eq!(chains(&mut server), expected);
    server.start_again();
    assert_eq!(chains(&mut server), expected);
}

#[test]
fn of_several_changes_the_longest_chain_stays_until_they_are_acknowledged() {
    let mut server = observing();
    for (start, depth) in [(10, 3), (12, 5), (14, 4)] {
        server.ask(Ask::Prewrite(run("a", start, depth)));
        server.ask(commit(vec![cell("a")], start, start + 1));
    }
    server.put("a", "y", 16, 17);
    let waits = |depth| vec![("a".to_owned(), depth)];
    let longest = v1::Chain {
        // Of the last one that is sampled.
        trace: chain(4).trace,
        ..chain(5)
    };
    assert_eq!(chains(&mut server), waits(Some(longest)));
    acknowledge(&mut server, "a", 18, 19);
    server.put("a", "z", 20, 21);
    assert_eq!(chains(&mut server), waits(None));
}

#[test]
fn a_chain_of_another_form_is_refused() {
    let mut server = observing();
    let mut long = run("a", 10, 1);
    let column = long.chain.take().expect("a chain").columns.remove(0);
    let columns = vec![column; CHAIN_COLUMNS_MAX + 1];
    let wide = v1::ChainColumn {
        table_id: 7,
        column: vec![b'x'; OBSERVED_COLUMN_BYTES_MAX + 1].into(),
    };
    for columns in [columns, vec![wide]] {
        let id = server.send(Ask::Prewrite(v1::PrewriteRequest {
            chain: Some(v1::Chain {
                depth: 1,
                columns,
                trace: None,
            }),
            ..long.clone()
        }));
        assert!(matches!(refused(server.answer(id)), Kind::Invalid(_)));
    }
}
