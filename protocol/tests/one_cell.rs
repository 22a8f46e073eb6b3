//! The rules on one cell, with any timestamps in any order, also such as no oracle hands out: one
//! transaction's commit_ts may be another's start_ts, or be given to two. The fate of a transaction,
//! once decided, stays, and readers see the commits.

use std::collections::BTreeMap;

use crate::support::store::{ReadResult, Store};
use bytes::Bytes;
use percolator_protocol::actions::{
    AlreadyCommitted, CommitRejection, Prewrite, PrewriteRejection, Snapshot, Status, StatusQuery,
};
use percolator_protocol::types::{Cell, LockKind, Mutation, TableId, Timestamp};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Prewrite {
        start: u64,
        kind: LockKind,
        long: bool,
        /// Of a flush; in any order, as late ones come.
        generation: u32,
    },
    Commit {
        start: u64,
        after: u64,
    },
    Rollback {
        start: u64,
    },
    /// Rolls back by force, as an older transaction does.
    Wound {
        start: u64,
    },
}

const LAST: u64 = 10;

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        3 => Just(LockKind::Put),
        1 => Just(LockKind::Delete),
        1 => Just(LockKind::Lock),
    ];
    let start = 1..=LAST;
    prop_oneof![
        5 => (start.clone(), kind, any::<bool>(), 0..4_u32).prop_map(
            |(start, kind, long, generation)| Step::Prewrite { start, kind, long, generation }
        ),
        6 => (start.clone(), 1..4_u64).prop_map(|(start, after)| Step::Commit { start, after }),
        2 => start.clone().prop_map(|start| Step::Rollback { start }),
        1 => start.prop_map(|start| Step::Wound { start }),
    ]
}

#[derive(Clone, Debug)]
enum Fate {
    Committed(u64, Mutation),
    RolledBack,
}

/// The model, and the store.
struct World {
    cell: Cell,
    store: Store,
    fates: BTreeMap<u64, Fate>,
    holder: Option<(u64, Mutation)>,
    /// Of what the holder has written.
    generation: u32,
}

fn ts(number: u64) -> Timestamp {
    Timestamp::from_u64(number)
}

impl World {
    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Prewrite {
                start,
                kind,
                long,
                generation,
            } => self.prewrite(start, kind, long, generation),
            Step::Commit { start, after } => self.commit(start, start + after),
            Step::Rollback { start } => {
                let result = self.store.rollback(ts(start), &self.cell);
                match self.fates.get(&start) {
                    Some(Fate::Committed(at, _)) => {
                        let commit_ts = ts(*at);
                        assert_eq!(result, Err(AlreadyCommitted { commit_ts }));
                    }
                    _ => {
                        assert_eq!(result, Ok(()));
                        self.rolled_back(start);
                    }
                }
            }
            Step::Wound { start } => {
                let status = self.status(start, true);
                match self.fates.get(&start) {
                    Some(Fate::Committed(at, _)) => assert_eq!(status, Status::Committed(ts(*at))),
                    _ => {
                        assert_eq!(status, Status::RolledBack);
                        self.rolled_back(start);
                    }
                }
            }
        }
    }

    fn rolled_back(&mut self, start: u64) {
        self.fates.insert(start, Fate::RolledBack);
        self.holder.take_if(|(holder, _)| *holder == start);
    }

    fn prewrite(&mut self, start: u64, kind: LockKind, long: bool, generation: u32) {
        let value = match kind {
            LockKind::Put => format!("{start}.{generation},").repeat(if long { 200 } else { 1 }),
            LockKind::Delete | LockKind::Lock => String::new(),
        };
        let mutation = Mutation {
            cell: self.cell.clone(),
            kind,
            value: Bytes::from(value),
        };
        let txn = Prewrite {
            start_ts: ts(start),
            primary: self.cell.clone(),
            ttl_ms: 1,
            generation,
            chain: None,
        };
        let prewritten = self.store.prewrite(&txn, std::slice::from_ref(&mutation));
        let rejection = prewritten.err().and_then(|rejections| {
            let first = rejections.into_iter().next();
            first.map(|(_, rejection)| rejection)
        });
        let newest = self.fates.iter().filter_map(|(other, fate)| match fate {
            Fate::Committed(at, _) if *at >= start => Some((*at, *other)),
            _ => None,
        });
        let expected = match (self.fates.get(&start), &self.holder, newest.max()) {
            (Some(Fate::Committed(at, _)), ..) => Some(PrewriteRejection::Committed(ts(*at))),
            (Some(Fate::RolledBack), ..) => Some(PrewriteRejection::RolledBack),
            (None, Some((holder, _)), _) if *holder == start => {
                if generation > self.generation && kind != LockKind::Lock {
                    self.holder = Some((start, mutation));
                    self.generation = generation;
                }
                None
            }
            (None, Some(_), _) => {
                assert!(matches!(rejection, Some(PrewriteRejection::Locked(_))));
                return;
            }
            (None, None, Some((at, other))) => Some(PrewriteRejection::Conflict {
                with_start_ts: ts(other),
                with_commit_ts: ts(at),
            }),
            (None, None, None) => {
                self.holder = Some((start, mutation));
                self.generation = generation;
                None
            }
        };
        assert_eq!(rejection, expected);
    }

    fn commit(&mut self, start: u64, at: u64) {
        let result = self.store.commit(ts(start), ts(at), &self.cell);
        let taken = self.fates.iter().find_map(|(other, fate)| match fate {
            Fate::Committed(theirs, _) if *theirs == at => Some(ts(*other)),
            _ => None,
        });
        let expected = match (self.fates.get(&start), taken) {
            (Some(Fate::Committed(..)), _) => Ok(()),
            (Some(Fate::RolledBack), _) => Err(CommitRejection::LockMissing { rolled_back: true }),
            (None, _)
                if self
                    .holder
                    .as_ref()
                    .is_none_or(|(holder, _)| *holder != start) =>
            {
                Err(CommitRejection::LockMissing { rolled_back: false })
            }
            (None, Some(by)) => Err(CommitRejection::Taken { by }),
            (None, None) => {
                if let Some((_, mutation)) = self.holder.take() {
                    self.fates.insert(start, Fate::Committed(at, mutation));
                }
                Ok(())
            }
        };
        assert_eq!(result, expected);
    }

    fn status(&mut self, start: u64, force: bool) -> Status {
        let query = StatusQuery {
            start_ts: ts(start),
            now: ts(LAST),
            push_past: None,
            force,
            met_ttl_ms: 1,
        };
        let status = self.store.check_status(&self.cell, &query);
        status.expect("it is its own primary")
    }

    /// Every fate stays, and every snapshot sees the commits at or below it.
    fn check(&mut self) {
        for (start, fate) in self.fates.clone() {
            let expected = match fate {
                Fate::Committed(at, _) => Status::Committed(ts(at)),
                Fate::RolledBack => Status::RolledBack,
            };
            assert_eq!(self.status(start, false), expected, "of {start}");
        }
        let holder: Vec<Timestamp> = self.holder.iter().map(|(start, _)| ts(*start)).collect();
        for at in 0..LAST + 5 {
            let snapshot = Snapshot {
                ts: ts(at),
                bypass: &holder,
                own: false,
            };
            let seen = self.fates.values().filter_map(|fate| match fate {
                Fate::Committed(theirs, mutation)
                    if *theirs <= at && mutation.kind != LockKind::Lock =>
                {
                    Some((theirs, mutation))
                }
                _ => None,
            });
            let expected = match seen.max_by_key(|(theirs, _)| **theirs) {
                Some((_, put)) if put.kind == LockKind::Put => ReadResult::Value(put.value.clone()),
                _ => ReadResult::Absent,
            };
            assert_eq!(self.store.get(snapshot, &self.cell), expected, "at {at}");
            // The transaction itself sees what it has written, and whether that is gone.
            let own = Snapshot {
                own: true,
                ..snapshot
            };
            let expected = match (&self.holder, self.fates.get(&at)) {
                (Some((holder, mutation)), _) if *holder == at => match mutation.kind {
                    LockKind::Put => ReadResult::Value(mutation.value.clone()),
                    LockKind::Delete => ReadResult::Absent,
                    LockKind::Lock => expected,
                },
                (_, Some(Fate::RolledBack)) => ReadResult::RolledBack,
                _ => expected,
            };
            assert_eq!(self.store.get(own, &self.cell), expected, "its own at {at}");
        }
        self.store.forget_reads();
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn fates_stay(steps in prop::collection::vec(step(), 1..60)) {
        let mut world = World {
            cell: Cell::new(TableId(1), "bob", ""),
            store: Store::default(),
            fates: BTreeMap::new(),
            holder: None,
            generation: 0,
        };
        for step in &steps {
            world.apply(step);
            world.check();
        }
    }
}
