//! A tablet server resolves its own locks below a point, while the primaries' servers don't answer.

use percolator_client::{LockResolver, Timestamp};
use percolator_protocol::types::Cell;
use percolator_wire::v1;

use crate::cluster::{SERVERS, cell};
use crate::network::{Fault, Kind};
use crate::outcome::Bench;

/// A lock on this cell, whose primary is the other one.
fn lock(start_ts: u64, locked: &Cell, primary: &Cell) -> v1::MetLock {
    v1::MetLock {
        cell: Some(locked.into()),
        primary: Some(primary.into()),
        start_ts,
        ttl_ms: 1,
        kind: v1::LockKind::Put.into(),
        min_commit_ts: start_ts + 1,
        generation: 0,
    }
}

/// The primaries of three locks lie on the second server, and that of a fourth one, in one case, on the first.
#[test]
fn a_lock_whose_primary_does_not_answer_is_in_the_way() {
    let below = Timestamp::from_millis(1);
    for with_another in [false, true] {
        let bench = Bench::new();
        let resolver = LockResolver::over(bench.network.clone());
        let of_silent = [(5, "a"), (6, "b"), (7, "c")];
        let of_silent = of_silent.map(|(start_ts, row)| lock(start_ts, &cell(row), &cell("k")));
        let another = with_another.then(|| lock(8, &cell("d"), &cell("e")));
        let page = |locks: Vec<v1::MetLock>| {
            for met in &locks {
                bench.network.monitor.lists(met, below);
            }
            Ok(v1::LocksBelowResponse {
                locks,
                resume: None,
            })
        };
        bench.network.script(|sent| {
            let is_asked = sent.kind == Kind::CheckStatus && sent.address == SERVERS[1];
            is_asked.then_some(Fault::LoseRequest)
        });
        let mut pages = 0;
        let obstacle = bench.run(resolver.resolve_below(below, |_| {
            pages += 1;
            let another = another.iter().filter(|_| pages == 1);
            page(of_silent.iter().chain(another).cloned().collect())
        }));
        let obstacle = obstacle.expect_err("three can't be resolved");
        let of = obstacle.start_ts.as_u64();
        assert!((5..=7).contains(&of), "{obstacle:?}");
        assert!(obstacle.what.contains("can't be asked"), "{obstacle:?}");

        bench.network.heal();
        let mut pages = 0;
        let resolved = bench.run(resolver.resolve_below(below, |_| {
            pages += 1;
            page(of_silent.iter().filter(|_| pages == 1).cloned().collect())
        }));
        assert_eq!(resolved, Ok(()));
        assert_eq!(
            pages, 2,
            "after a round that resolves some, all are listed again"
        );
    }
}
