//! The plan of one case: transactions, and a schedule that picks the next event.

use std::collections::BTreeMap;

use bytes::Bytes;
use percolator_protocol::types::{Cell, LockKind, Mutation, TableId};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

/// One case.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// How many of the cells are used, 1 to 4.
    pub(crate) cells: usize,
    /// Which server has which cell, a bit a cell.
    pub(crate) servers: u8,
    pub(crate) txns: Vec<TxnPlan>,
    /// A client whose messages are overtaken by those of the others.
    pub(crate) slow: usize,
    pub(crate) steps: Vec<Step>,
    /// Whether what is still under way at the end arrives before the locks are cleared.
    pub(crate) drain: bool,
    /// Whether transactions on one server try to commit in one phase.
    pub(crate) one_phase: bool,
    /// Whether the oracle grants a commit_ts that lies below what it has granted since, if it has held one back.
    pub(crate) stale: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct TxnPlan {
    pub(crate) reads: Vec<ReadPlan>,
    /// By cell, modulo the number of cells; none for one that only reads.
    pub(crate) writes: BTreeMap<usize, WritePlan>,
    /// Which of the mutations is the primary, modulo their number.
    pub(crate) primary: usize,
    /// Goes on by itself from one read to the next and to the commit; else steps make it go on.
    pub(crate) eager: bool,
    pub(crate) ttl_ms: u64,
    /// It flushes every cell, and then writes it again.
    pub(crate) flushes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ReadPlan {
    Cell(usize),
    Scan { reverse: bool, limit: usize },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum WritePlan {
    Put,
    PutEmpty,
    PutLong,
    Delete,
    /// A `get_for_update`.
    Lock,
}

/// One thing that happens. Numbers pick a client or a message, modulo how many there are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// A client goes on: begins, reads, starts to commit.
    Client(usize),
    /// A message arrives.
    Deliver(usize),
    /// The oldest message arrives, if there is one that isn't the slow client's.
    DeliverOldest,
    /// The newest one arrives instead: one client gets far ahead of the others.
    DeliverNewest,
    /// A message gets a double.
    Double(usize),
    /// A message is lost; anyone who waits for it asks again.
    Lose(usize),
    /// The client that waits for this message gives up on it; the message stays under way.
    GiveUp(usize),
    /// A client dies; what it has sent stays under way.
    Kill(usize),
    /// The application drops a transaction.
    Cancel(usize),
    /// A client renews its primary's ttl.
    KeepAlive(usize),
    /// Time passes.
    Pass { ms: u64 },
}

impl Plan {
    pub(crate) fn cell(&self, index: usize) -> Cell {
        match index % self.cells {
            0 => Cell::new(TableId(1), "ann", ""),
            1 => Cell::new(TableId(1), "bob", ""),
            2 => Cell::new(TableId(1), "bob", "age"),
            _ => Cell::new(TableId(2), "joe", ""),
        }
    }

    pub(crate) fn all_cells(&self) -> Vec<Cell> {
        (0..self.cells).map(|index| self.cell(index)).collect()
    }

    pub(crate) fn server(&self, cell: &Cell) -> u8 {
        let at = self.all_cells().iter().position(|other| other == cell);
        self.servers >> at.unwrap_or(0) & 1
    }

    /// The mutations of a transaction, its primary first. Each writes values of its own.
    pub(crate) fn mutations(&self, txn: usize) -> Vec<Mutation> {
        let plan = &self.txns[txn];
        let by_cell: BTreeMap<usize, WritePlan> = plan
            .writes
            .iter()
            .map(|(index, write)| (index % self.cells, *write))
            .collect();
        let mut mutations: Vec<Mutation> = by_cell
            .into_iter()
            .map(|(index, write)| {
                let value = format!("t{txn}c{index}");
                let (kind, value) = match write {
                    WritePlan::Put => (LockKind::Put, Bytes::from(value)),
                    WritePlan::PutEmpty => (LockKind::Put, Bytes::new()),
                    WritePlan::PutLong => (LockKind::Put, value.repeat(100).into()),
                    WritePlan::Delete => (LockKind::Delete, Bytes::new()),
                    WritePlan::Lock => (LockKind::Lock, Bytes::new()),
                };
                Mutation {
                    cell: self.cell(index),
                    kind,
                    value,
                }
            })
            .collect();
        if !mutations.is_empty() {
            let primary = plan.primary % mutations.len();
            mutations.swap(0, primary);
        }
        mutations
    }
}

/// The value that a flush writes before the mutation: nobody sees it.
pub(crate) fn early(mutation: &Mutation) -> Mutation {
    let (kind, value) = match mutation.kind {
        // As strong as what comes before it, so that it would be seen.
        LockKind::Lock => (LockKind::Lock, Bytes::new()),
        LockKind::Put if mutation.value.is_empty() => (LockKind::Delete, Bytes::new()),
        LockKind::Put if mutation.value.len() < 100 => (LockKind::Put, "early".repeat(100).into()),
        LockKind::Put | LockKind::Delete => (LockKind::Put, "early".into()),
    };
    Mutation {
        cell: mutation.cell.clone(),
        kind,
        value,
    }
}

/// Half of the cases: anything. The other half: a slow writer among quick readers, because a writer
/// that is pushed while it commits, and read again after that, is rare otherwise.
pub(crate) fn plan() -> impl Strategy<Value = Plan> {
    let anything = prop_oneof![1 => vec(txn(), 2), 4 => vec(txn(), 3..=5)];
    let readers = vec(reads(), 2..=5).prop_map(|all| {
        let reader = |reads| TxnPlan {
            reads,
            eager: true,
            ..TxnPlan::default()
        };
        all.into_iter().map(reader).collect::<Vec<_>>()
    });
    let one_writer = (txn(), readers).prop_map(|(mut writer, mut txns)| {
        writer.reads.clear();
        writer.eager = true;
        txns.insert(0, writer);
        txns
    });
    let txns = prop_oneof![
        (anything, 0..6_usize),
        one_writer.prop_map(|txns| (txns, 0)),
    ];
    (
        1..=4_usize,
        any::<u8>(),
        txns,
        vec(step(), 30..200),
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(
            |(cells, servers, (txns, slow), steps, drain, one_phase, stale)| Plan {
                cells,
                servers,
                txns,
                slow,
                steps,
                drain,
                one_phase,
                stale,
            },
        )
}

fn reads() -> impl Strategy<Value = Vec<ReadPlan>> {
    let read = prop_oneof![
        2 => (0..4_usize).prop_map(ReadPlan::Cell),
        1 => (any::<bool>(), 1..=4_usize)
            .prop_map(|(reverse, limit)| ReadPlan::Scan { reverse, limit }),
    ];
    vec(read, 0..5)
}

fn txn() -> impl Strategy<Value = TxnPlan> {
    let write = prop_oneof![
        4 => Just(WritePlan::Put),
        1 => Just(WritePlan::PutEmpty),
        2 => Just(WritePlan::PutLong),
        2 => Just(WritePlan::Delete),
        2 => Just(WritePlan::Lock),
    ];
    let writes = prop_oneof![
        1 => Just(BTreeMap::new()),
        4 => btree_map(0..4_usize, write, 1..=4),
    ];
    let flushes = prop::bool::weighted(0.3);
    let way = (0..4_usize, any::<bool>(), 5..40_u64, flushes);
    (reads(), writes, way).prop_map(
        |(reads, writes, (primary, eager, ttl_ms, flushes))| TxnPlan {
            reads,
            writes,
            primary,
            eager,
            ttl_ms,
            flushes,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => (0..8_usize).prop_map(Step::Client),
        28 => (0..64_usize).prop_map(Step::Deliver),
        12 => Just(Step::DeliverOldest),
        28 => Just(Step::DeliverNewest),
        5 => (0..64_usize).prop_map(Step::Double),
        4 => (0..64_usize).prop_map(Step::Lose),
        2 => (0..64_usize).prop_map(Step::GiveUp),
        1 => (0..8_usize).prop_map(Step::Kill),
        1 => (0..8_usize).prop_map(Step::Cancel),
        2 => (0..8_usize).prop_map(Step::KeepAlive),
        3 => (1..30_u64).prop_map(|ms| Step::Pass { ms }),
    ]
}
