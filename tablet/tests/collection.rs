//! Collection by the index, against a model of what snapshots see: whatever was written, rolled back and collected
//! before, no snapshot at or above the safe point sees a difference, the fate of what may be asked for is known, and in the
//! end nothing is left that nobody sees.

use std::collections::BTreeMap;

use crate::support::moves::{Two, taken};
use crate::support::{INCARNATION, Server, cell, me};
use percolator_engine::{Column, Direction};
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::{TableId, Timestamp, Write, key};
use percolator_tablet::MoveRequest;
use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::response::Body;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

const ROWS: [&str; 5] = ["b", "c", "d", "e", "f"];
/// Too long to stand in its record.
const LONG: usize = 400;
/// Keys and values of a fate, with its part of the index: rows and columns of these tests have a byte each.
const FATE_BYTES_MAX: usize = 48;
/// From one transaction to the next.
const STEP: u64 = 10;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Short,
    Long,
    Delete,
    Lock,
}

#[derive(Clone, Debug)]
enum Step {
    /// Rows by number; or what is prewritten is rolled back.
    Write(BTreeMap<usize, Kind>, bool),
    /// Up to so long ago, with locks that may be left from so long before that.
    Collect(u64, u64),
    StartAgain,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let kind = prop_oneof![
        4 => Just(Kind::Short),
        2 => Just(Kind::Long),
        2 => Just(Kind::Delete),
        1 => Just(Kind::Lock),
    ];
    let cells = btree_map(0..ROWS.len(), kind, 1..=ROWS.len());
    let step = prop_oneof![
        8 => (cells, prop::bool::weighted(0.2)).prop_map(|(cells, back)| Step::Write(cells, back)),
        2 => (0..6 * STEP, prop_oneof![Just(0), 0..12 * STEP])
            .prop_map(|(ago, behind)| Step::Collect(ago, behind)),
        1 => Just(Step::StartAgain),
    ];
    vec(step, 1..40)
}

/// What each row showed from when on.
type Model = BTreeMap<usize, Vec<(u64, Option<String>)>>;

struct World {
    server: Server,
    incarnation: u64,
    now: u64,
    safe_point: u64,
    resolved: u64,
    /// Rows of cells, and when they were committed.
    commits: Vec<(usize, u64)>,
    model: Model,
}

impl World {
    fn new() -> Self {
        Self {
            server: Server::new(),
            incarnation: INCARNATION,
            now: 0,
            safe_point: 0,
            resolved: 0,
            commits: Vec::new(),
            model: Model::new(),
        }
    }

    fn write(&mut self, cells: &BTreeMap<usize, Kind>, roll_back: bool) {
        self.now += STEP;
        let (start_ts, commit_ts) = (self.now, self.now + STEP / 2);
        let places: Vec<v1::CellRef> = cells.keys().map(|row| cell(ROWS[*row])).collect();
        let value = |kind: Kind| match kind {
            Kind::Short => format!("at {start_ts}"),
            Kind::Long => format!("{start_ts:0LONG$}"),
            Kind::Delete | Kind::Lock => String::new(),
        };
        let mutation = |(row, kind): (&usize, &Kind)| v1::Mutation {
            cell: Some(cell(ROWS[*row])),
            kind: match kind {
                Kind::Short | Kind::Long => v1::LockKind::Put,
                Kind::Delete => v1::LockKind::Delete,
                Kind::Lock => v1::LockKind::Lock,
            }
            .into(),
            value: value(*kind).into(),
        };
        let prewrite = Ask::Prewrite(v1::PrewriteRequest {
            start_ts,
            primary: Some(v1::CellName {
                table_id: 5,
                row: places[0].row.clone(),
                column: places[0].column.clone(),
            }),
            ttl_ms: 3000,
            mutations: cells.iter().map(mutation).collect(),
            one_phase: None,
            generation: 0,
            chain: None,
        });
        let answer = self.server.ask(prewrite);
        assert!(!matches!(answer, Body::Error(_)), "{answer:?}");
        let end = if roll_back {
            Ask::Rollback(v1::RollbackRequest {
                start_ts,
                cells: places,
            })
        } else {
            Ask::Commit(v1::CommitRequest {
                start_ts,
                commit_ts,
                cells: places,
            })
        };
        let answer = self.server.ask(end);
        assert!(!matches!(answer, Body::Error(_)), "{answer:?}");
        for (row, kind) in cells.iter().filter(|_| !roll_back) {
            self.commits.push((*row, commit_ts));
            let versions = self.model.entry(*row).or_default();
            match kind {
                Kind::Lock => {}
                Kind::Delete => versions.push((commit_ts, None)),
                Kind::Short | Kind::Long => versions.push((commit_ts, Some(value(*kind)))),
            }
        }
    }

    /// `behind`: locks of transactions from so long before may be left somewhere.
    fn collect(&mut self, safe_point: u64, behind: u64) {
        self.safe_point = self.safe_point.max(safe_point);
        self.resolved = self.resolved.max(self.safe_point.saturating_sub(behind));
        let safe_point = Timestamp::from_u64(self.safe_point);
        let points = Points {
            barrier: safe_point,
            safe_point,
            resolved: Timestamp::from_u64(self.resolved),
        };
        // One that was asked something lately takes its time.
        for _ in 0..3 {
            let Server { core, replies, .. } = &mut self.server;
            core.reach(points, replies);
            self.server.settle();
        }
    }

    /// Every snapshot that may still be read shows what the model does.
    fn look(&mut self) {
        let times = self.model.values().flatten().map(|(ts, _)| *ts);
        let mut times: Vec<u64> = times.filter(|ts| *ts >= self.safe_point).collect();
        times.extend([self.safe_point.max(1), self.now + STEP]);
        for ts in times {
            for (row, versions) in &self.model {
                let seen = versions
                    .iter()
                    .rev()
                    .find(|(commit_ts, _)| *commit_ts <= ts);
                let seen = seen.and_then(|(_, value)| value.clone());
                let row = ROWS[*row];
                assert_eq!(self.server.value(row, ts), seen, "row {row} at {ts}");
            }
        }
    }

    /// Of every commit whose locks may be left somewhere the fate is known: its start_ts, and its commit_ts.
    fn ask_for_fates(&mut self) {
        let unresolved = self.commits.clone().into_iter();
        for (row, commit_ts) in unresolved.filter(|(_, at)| *at >= self.resolved) {
            let key = key::version(
                key::cell(TableId(5), ROWS[row].as_bytes(), b"c"),
                Timestamp::from_u64(commit_ts),
            );
            let stored = self.server.engine.get(Column::Write, &key);
            let stored = stored.expect("readable").expect("its record, or its fate");
            let write = Write::decode(Timestamp::from_u64(commit_ts), stored).expect("a record");
            assert_eq!(write.start_ts.as_u64(), commit_ts - STEP / 2);
        }
    }

    /// What the walk through everything finds.
    fn wrong(&mut self) -> Vec<String> {
        let mut wrong = Vec::new();
        for part in [
            v1::VerifyPart::Records,
            v1::VerifyPart::Values,
            v1::VerifyPart::Index,
        ] {
            let answer = self.server.ask(Ask::Verify(v1::VerifyRequest {
                to: Some(me(self.incarnation)),
                part: part.into(),
                after: "".into(),
            }));
            let Body::Verify(looked) = answer else {
                panic!("no answer to a look: {answer:?}");
            };
            let findings = looked.findings.into_iter();
            wrong.extend(findings.map(|finding| format!("{} {}", finding.ts, finding.what)));
        }
        wrong
    }

    fn count(&self, column: Column) -> usize {
        let pairs = self
            .server
            .engine
            .scan(column, &[], &[], Direction::Forward);
        pairs.expect("readable").count()
    }
}

proptest! {
    #[test]
    fn no_snapshot_misses_a_version_and_nothing_is_left(steps in steps()) {
        let mut world = World::new();
        for step in &steps {
            match step {
                Step::Write(cells, roll_back) => world.write(cells, *roll_back),
                Step::Collect(ago, behind) => {
                    world.collect((world.now + STEP).saturating_sub(*ago), *behind);
                }
                Step::StartAgain => {
                    world.server.start_again();
                    world.incarnation = INCARNATION + 1;
                }
            }
            world.look();
            world.ask_for_fates();
            prop_assert_eq!(world.wrong(), Vec::<String>::new());
        }
        world.now += 2 * STEP;
        world.collect(world.now, 0);
        world.look();
        let newest = world.model.values().filter_map(|versions| versions.last());
        let shown: Vec<&String> = newest.filter_map(|(_, value)| value.as_ref()).collect();
        let long = shown.iter().filter(|value| value.len() == LONG).count();
        prop_assert_eq!(world.count(Column::Write), shown.len());
        prop_assert_eq!(world.count(Column::Data), long);
        prop_assert_eq!(world.count(Column::Garbage), 0);
    }
}

/// The fates of one transaction come in two pieces, which name the same cell, and are looked at again in one: what is left
/// of both by then has the same key.
#[test]
fn fates_of_two_pieces_that_are_left_stay_both() {
    let deletes = |rows: &[usize]| rows.iter().map(|row| (*row, Kind::Delete)).collect();
    let [first, second, third] = [0, 1, 2];
    let mut world = World::new();
    world.write(&BTreeMap::from([(third, Kind::Short)]), false);
    world.write(&deletes(&[first, second, third]), false);
    world.collect(world.now + STEP - 1, u64::MAX);
    world.write(&deletes(&[second]), false);
    world.collect(world.now + STEP, u64::MAX);
    world.now += 2 * STEP;
    world.collect(world.now, 0);
    assert_eq!(world.wrong(), Vec::<String>::new());
    assert_eq!(world.count(Column::Write), 0);
    assert_eq!(world.count(Column::Garbage), 0);
}

/// Bytes of all keys and values, after so many puts to each row, of which some server has locks or not.
fn bytes_after(puts: u64, is_unresolved: bool) -> usize {
    let mut world = World::new();
    let cells: BTreeMap<usize, Kind> = (0..ROWS.len()).map(|row| (row, Kind::Long)).collect();
    for _ in 0..puts {
        world.write(&cells, false);
        let behind = if is_unresolved { u64::MAX } else { 0 };
        world.collect(world.now + STEP, behind);
    }
    let columns = [Column::Lock, Column::Write, Column::Data, Column::Garbage];
    let bytes = |column: &Column| -> usize {
        let content = world.server.content(*column);
        content
            .iter()
            .map(|(key, value)| key.len() + value.len())
            .sum()
    };
    columns.iter().map(bytes).sum()
}

/// What a server that is down costs the others: no values, and so many bytes for each put that is hidden meanwhile.
#[test]
fn a_fate_is_small_whatever_its_value_was() {
    const PUTS: u64 = 101;
    let (without, with) = (bytes_after(PUTS, false), bytes_after(PUTS, true));
    assert_eq!(
        without,
        bytes_after(1, false),
        "nothing is left of hidden puts"
    );
    let hidden = (PUTS as usize - 1) * ROWS.len();
    let bytes = (with - without) / hidden;
    eprintln!("a fate has {bytes} bytes, of a value of {LONG}");
    assert!(bytes <= FATE_BYTES_MAX, "{bytes}");
}

/// The record that it hides comes with the copy, before or behind it.
#[test]
fn what_is_overwritten_while_it_moves_is_collected_at_the_other_one() {
    const ROWS: [&str; 8] = ["b", "c", "d", "e", "f", "g", "h", "i"];
    for move_bytes in [40, 80, 160, 240, 320, 400, 480] {
        let limits = percolator_tablet::Limits {
            move_bytes,
            ..percolator_tablet::Limits::default()
        };
        let mut two = Two {
            owner: Server::within(limits),
            ..Two::new()
        };
        for row in ROWS {
            two.owner.put(row, "old", 10, 11);
        }
        two.begin(1);
        // One of the rows that were copied changes before each of the next chunks.
        let mut rows = ROWS.iter();
        let mut ts = 20;
        let take = loop {
            let call = two.call();
            if matches!(call.request, MoveRequest::Take(_)) {
                break call;
            }
            two.carry(&call);
            if let Some(row) = rows.next() {
                two.owner.put(row, "new", ts, ts + 1);
                ts += 10;
            }
        };
        assert_eq!(taken(&two.carry(&take)), v1::Taken::Moved);
        let all = percolator_protocol::types::Timestamp::from_u64(1_000);
        let points = percolator_protocol::safe_point::Points {
            barrier: all,
            safe_point: all,
            resolved: all,
        };
        two.other.core.reach(points, &mut two.other.replies);
        for _ in 0..4 {
            two.other.settle();
        }
        let left = two.other.content(Column::Write).len();
        assert_eq!(left, ROWS.len(), "chunks of {move_bytes} bytes");
    }
}
