//! Collection on random rows, against what it is for: no snapshot at or above the point sees a difference, at
//! no step of the way; and what is left is no more than that needs.

use crate::support::store::{ReadResult, Row, Store};
use percolator_protocol::actions::Snapshot;
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::{Cell, TableId, Timestamp, Write, WriteKind};
use proptest::prelude::*;

const LAST: u64 = 40;

fn ts(ts: u64) -> Timestamp {
    Timestamp::from_u64(ts)
}

/// Everything below the safe point is resolved.
fn points(safe_point: u64) -> Points {
    Points {
        barrier: ts(safe_point),
        safe_point: ts(safe_point),
        resolved: ts(safe_point),
    }
}

fn cell() -> Cell {
    Cell::new(TableId(1), "row", "column")
}

/// Records at every other timestamp: what they are, whether their value is long, whether a rollback lies in
/// them too.
fn rows() -> impl Strategy<Value = Store> {
    let kind = prop_oneof![
        Just(WriteKind::Put),
        Just(WriteKind::Delete),
        Just(WriteKind::Lock),
        Just(WriteKind::Rollback),
    ];
    let record = proptest::option::of((kind, any::<bool>(), any::<bool>()));
    proptest::collection::vec(record, 1..LAST as usize / 2).prop_map(|records| {
        let mut store = Store::default();
        for (number, record) in (1..).zip(records) {
            let Some((kind, long, overlapped)) = record else {
                continue;
            };
            let (start_ts, commit_ts) = (ts(2 * number - 1), ts(2 * number));
            let put = kind == WriteKind::Put;
            let value = format!("{number}");
            if put && long {
                store.put_row(&cell(), Row::Data(start_ts, value.clone().into()));
            }
            let write = match kind {
                WriteKind::Rollback => Write::rollback(commit_ts),
                kind => Write {
                    kind,
                    start_ts,
                    short_value: (put && !long).then(|| value.into()),
                    overlapped_rollback: overlapped,
                },
            };
            store.put_row(&cell(), Row::Write(commit_ts, write));
        }
        store
    })
}

fn seen(store: &Store, from: u64) -> Vec<ReadResult> {
    let get = |at| {
        let snapshot = Snapshot {
            ts: ts(at),
            bypass: &[],
            own: false,
        };
        store.get(snapshot, &cell())
    };
    (from..=LAST + 1).map(get).collect()
}

proptest! {
    #[test]
    fn no_snapshot_at_or_above_the_point_sees_a_difference(
        mut store in rows(),
        safe_point in 1..=LAST,
        most in 1..5_usize,
    ) {
        let before = seen(&store, safe_point);
        let mut rounds = 0;
        loop {
            let collected = store.gc(points(safe_point), &cell(), most);
            prop_assert_eq!(&seen(&store, safe_point), &before);
            if collected.done {
                break;
            }
            rounds += 1;
            prop_assert!(rounds < LAST, "it never ends");
        }
        let left: Vec<(Timestamp, Write)> =
            store.writes(&cell()).filter(|(commit_ts, _)| *commit_ts <= ts(safe_point)).collect();
        // What began at the point still meets what stands there; below, one put at most.
        let below: Vec<_> = left.iter().filter(|(commit_ts, _)| *commit_ts < ts(safe_point)).collect();
        prop_assert!(below.len() <= 1, "{:?}", left);
        prop_assert!(below.iter().all(|(_, write)| write.kind == WriteKind::Put), "{:?}", left);
        let again = store.gc(points(safe_point), &cell(), usize::MAX);
        prop_assert!(again.done && again.records == 0, "{:?}", again);
        // A later point takes what an earlier one has left.
        let after = seen(&store, LAST + 1);
        while !store.gc(points(LAST + 1), &cell(), usize::MAX).done {}
        prop_assert_eq!(seen(&store, LAST + 1), after);
        prop_assert!(store.writes(&cell()).count() <= 1);
    }

    #[test]
    fn the_fate_of_every_commit_stays_until_it_is_resolved(
        mut store in rows(),
        safe_point in 1..=LAST,
        resolved in 1..=LAST,
        most in 1..5_usize,
    ) {
        let resolved = resolved.min(safe_point);
        let before = seen(&store, safe_point);
        let committed = |store: &Store| -> Vec<(Timestamp, Timestamp)> {
            let records = store.writes(&cell());
            let unresolved = records.filter(|(commit_ts, write)| {
                write.kind != WriteKind::Rollback && *commit_ts >= ts(resolved)
            });
            unresolved.map(|(commit_ts, write)| (commit_ts, write.start_ts)).collect()
        };
        let fates = committed(&store);
        let mut at_once = store.clone();
        let now = Points { resolved: ts(resolved), ..points(safe_point) };
        for most in [most, usize::MAX] {
            let mut rounds = 0;
            loop {
                let collected = store.gc(now, &cell(), most);
                prop_assert_eq!(&seen(&store, safe_point), &before);
                prop_assert_eq!(&committed(&store), &fates);
                prop_assert!(collected.fates.iter().all(|at| *at >= ts(resolved)));
                if collected.done {
                    break;
                }
                rounds += 1;
                prop_assert!(rounds < LAST, "it never ends");
            }
        }
        // One version at the most is left below the safe point.
        let versions = store.writes(&cell()).filter(|(commit_ts, write)| {
            *commit_ts < ts(safe_point) && matches!(write.kind, WriteKind::Put | WriteKind::Delete)
        });
        prop_assert!(versions.count() <= 1);
        // Once all is resolved, nothing shows that it was collected in two steps.
        for store in [&mut store, &mut at_once] {
            while !store.gc(points(safe_point), &cell(), usize::MAX).done {}
        }
        prop_assert!(store == at_once);
    }
}
