//! A tablet server resolves its own locks below a point, while the primaries' servers don't answer.

use std::time::Duration;

use percolator_client::{LockResolver, Timestamp};
use percolator_protocol::types::Cell;
use percolator_wire::v1;
use percolator_wire::v1::request_error::Kind as Refused;

use crate::cluster::{SERVERS, cell};
use crate::faults::{harmful, harmless};
use crate::network::{Fault, Kind};
use crate::outcome::{Bench, new, old};
use crate::reads::{InTheWay, leave_locks};

/// Rows on both servers; the first one's cell is the primary.
const ROWS: [&str; 3] = ["a", "k", "q"];

/// Resolves the locks of one server after the other, as each does for itself. What is in the way, if anything.
fn resolve_all(bench: &Bench, resolver: &LockResolver) -> Vec<String> {
    let below = bench.cluster.timestamp();
    let mut in_the_way = Vec::new();
    for server in SERVERS {
        let resolved = resolver.resolve_below(below, |_| {
            let page = bench.cluster.locks_below(server, below);
            for met in &page.locks {
                bench.network.monitor.lists(met, below);
            }
            Ok(page)
        });
        in_the_way.extend(bench.run(resolved).err().map(|obstacle| obstacle.what));
    }
    in_the_way
}

/// Whatever becomes of one message, or of all from one on: what the locks hide is decided once, and none is left in the end.
#[test]
fn a_servers_locks_are_resolved_rightly_whatever_becomes_of_a_message() {
    for how in [InTheWay::Committed, InTheWay::Dead] {
        // What is too old has no locks any more: nobody says that of one.
        let faults = harmless().into_iter().chain(harmful());
        for fault in faults.filter(|it| !matches!(it, Fault::Refuse(Refused::TooOld(_)))) {
            for at in 0..8 {
                for stays in [false, true] {
                    let bench = Bench::new();
                    bench.fill(&ROWS);
                    leave_locks(&bench, how, &ROWS);
                    bench.run(bench.sleep(Duration::from_secs(5)));
                    let resolver = LockResolver::over(bench.network.clone());
                    let (injected, first) = (fault.clone(), bench.network.log().len());
                    bench.network.script(move |sent| {
                        let number = sent.number - first;
                        let is_it = number == at || stays && number > at;
                        is_it.then(|| injected.clone())
                    });
                    resolve_all(&bench, &resolver);
                    bench.network.heal();
                    bench.run(bench.sleep(Duration::from_secs(60)));
                    let name = format!("{how:?}, {fault:?} at {at}, stays: {stays}");
                    assert_eq!(resolve_all(&bench, &resolver), [""; 0], "{name}");
                    assert_eq!(bench.cluster.locks(), 0, "{name}");
                    for row in ROWS {
                        let expected = match how {
                            InTheWay::Committed => new(row),
                            _ => old(row),
                        };
                        assert_eq!(bench.cluster.value(&cell(row)), Some(expected), "{name}");
                    }
                }
            }
        }
    }
}

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
