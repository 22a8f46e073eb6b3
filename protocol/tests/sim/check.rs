//! The invariants: after every step, and at the end of every case.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use percolator_protocol::actions::{ScanEnd, Snapshot};
use percolator_protocol::txn::{Ending, Finished};
use percolator_protocol::types::{Cell, LockKind, Mutation, Timestamp, WriteKind};

use super::client::Client;
use super::plan::ReadPlan;
use super::world::World;
use crate::support::store::{ReadResult, Row, ScanRange, Store};

/// Watches the rows while a case runs.
#[derive(Default)]
pub(crate) struct Watch {
    /// Commit records: cell, commit_ts, start_ts.
    committed: BTreeSet<(Cell, Timestamp, Timestamp)>,
}

impl Watch {
    /// Commit records stay, stand above their start_ts, and are the only trace of their transaction
    /// on their cell; so are rollback records. A long value has a lock or a record that owns it.
    pub(crate) fn check(&mut self, store: &Store) -> Result<(), String> {
        let mut committed = BTreeSet::new();
        // Of each transaction on each cell, at most one of: lock, commit record, rollback record.
        let mut traces = BTreeSet::new();
        let mut trace = |cell: &Cell, start_ts: Timestamp| {
            if traces.insert((cell.clone(), start_ts)) {
                Ok(())
            } else {
                Err(format!("{cell} has two traces of transaction {start_ts}"))
            }
        };
        let mut long = BTreeSet::new();
        // Rows come in order: what owns a long value comes before it.
        for (cell, row) in store.rows() {
            match row {
                Row::Lock(lock) => {
                    trace(&cell, lock.start_ts)?;
                    if lock.kind == LockKind::Put && lock.short_value.is_none() {
                        long.insert((cell, lock.start_ts));
                    }
                }
                Row::Write(ts, write) => {
                    trace(&cell, write.start_ts)?;
                    if write.kind == WriteKind::Put && write.short_value.is_none() {
                        long.insert((cell.clone(), write.start_ts));
                    }
                    if write.overlapped_rollback {
                        trace(&cell, ts)?;
                    }
                    if write.kind == WriteKind::Rollback {
                        if ts != write.start_ts {
                            return Err(format!(
                                "{cell}: a rollback of {} at {ts}",
                                write.start_ts
                            ));
                        }
                        continue;
                    }
                    if ts <= write.start_ts {
                        return Err(format!("{cell}: {} committed at {ts}", write.start_ts));
                    }
                    committed.insert((cell, ts, write.start_ts));
                }
                Row::Data(start_ts, _) => {
                    if !long.contains(&(cell.clone(), start_ts)) {
                        return Err(format!("{cell}: nobody owns data@{start_ts}"));
                    }
                }
            }
        }
        if let Some((cell, ts, _)) = self.committed.difference(&committed).next() {
            return Err(format!("{cell}: the commit record at {ts} has gone"));
        }
        self.committed = committed;
        Ok(())
    }
}

/// How the transaction ended on the cell, by its records.
pub(crate) fn ending(store: &Store, cell: &Cell, start_ts: Timestamp) -> Option<Ending> {
    store.writes(cell).find_map(|(ts, write)| {
        if write.start_ts == start_ts && write.kind != WriteKind::Rollback {
            Some(Ending::Committed(ts))
        } else if ts == start_ts && (write.start_ts == start_ts || write.overlapped_rollback) {
            Some(Ending::RolledBack)
        } else {
            None
        }
    })
}

/// A transaction that has committed.
struct Committed<'a> {
    start_ts: Timestamp,
    commit_ts: Timestamp,
    mutations: &'a [Mutation],
}

/// Checks a case that has come to rest: no lock is left, nothing is under way.
pub(crate) fn outcomes(world: &World<'_>) -> Result<(), String> {
    let mut committed = Vec::new();
    for client in &world.clients {
        if client.mutations.is_empty() {
            continue;
        }
        let ending = world.ending(client);
        reported(client, ending)?;
        atomic(&world.store, client, ending)?;
        if let Some(Ending::Committed(commit_ts)) = ending {
            committed.push(Committed {
                start_ts: client.start_ts,
                commit_ts,
                mutations: &client.mutations,
            });
        }
    }
    first_committer_wins(&committed)?;
    for client in &world.clients {
        for (read, found) in &client.found {
            let model = model(&committed, client.start_ts);
            let expected = expected(world, &model, *read);
            if *found != expected {
                return Err(format!(
                    "{read:?} at {} found {found:?}, but it is {expected:?}",
                    client.start_ts
                ));
            }
        }
    }
    read_again(world, &committed)
}

/// Checks that the outcome returned to the application is true.
fn reported(client: &Client, ending: Option<Ending>) -> Result<(), String> {
    let right = match &client.outcome {
        Some(Finished::Committed(ts)) => ending == Some(Ending::Committed(*ts)),
        Some(Finished::Aborted(_)) => !matches!(ending, Some(Ending::Committed(_))),
        Some(Finished::Unknown | Finished::Flushed { .. }) | None => true,
    };
    if right {
        return Ok(());
    }
    let (start_ts, outcome) = (client.start_ts, &client.outcome);
    Err(format!(
        "{start_ts} received {outcome:?}, but it is {ending:?}"
    ))
}

/// A transaction has ended in the same way on all of its cells.
fn atomic(store: &Store, client: &Client, primary: Option<Ending>) -> Result<(), String> {
    for mutation in &client.mutations {
        let here = ending(store, &mutation.cell, client.start_ts);
        let right = match primary {
            Some(Ending::Committed(_)) => here == primary,
            // It may never have come here.
            _ => !matches!(here, Some(Ending::Committed(_))),
        };
        if !right {
            return Err(format!(
                "{}: {primary:?} on its primary, {here:?} on {}",
                client.start_ts, mutation.cell
            ));
        }
    }
    Ok(())
}

/// No two committed transactions that overlap in time have written, or locked, the same cell.
fn first_committer_wins(committed: &[Committed<'_>]) -> Result<(), String> {
    for (index, one) in committed.iter().enumerate() {
        for other in &committed[index + 1..] {
            if one.commit_ts < other.start_ts || other.commit_ts < one.start_ts {
                continue;
            }
            let shared = one.mutations.iter().find(|mutation| {
                let theirs = other.mutations.iter();
                theirs.clone().any(|their| their.cell == mutation.cell)
            });
            if let Some(mutation) = shared {
                return Err(format!(
                    "{}..{} and {}..{} have both committed {}",
                    one.start_ts, one.commit_ts, other.start_ts, other.commit_ts, mutation.cell
                ));
            }
        }
    }
    Ok(())
}

/// The expected result of a snapshot, by a plain model.
fn model(committed: &[Committed<'_>], snapshot: Timestamp) -> BTreeMap<Cell, Bytes> {
    let mut seen: Vec<_> = committed
        .iter()
        .filter(|txn| txn.commit_ts <= snapshot)
        .collect();
    seen.sort_by_key(|txn| txn.commit_ts);
    let mut model = BTreeMap::new();
    for mutation in seen.into_iter().flat_map(|txn| txn.mutations) {
        match mutation.kind {
            LockKind::Put => {
                model.insert(mutation.cell.clone(), mutation.value.clone());
            }
            LockKind::Delete => {
                model.remove(&mutation.cell);
            }
            LockKind::Lock => {}
        }
    }
    model
}

fn expected(
    world: &World<'_>,
    model: &BTreeMap<Cell, Bytes>,
    read: ReadPlan,
) -> Vec<(Cell, Bytes)> {
    let all = model
        .iter()
        .map(|(cell, value)| (cell.clone(), value.clone()));
    match read {
        ReadPlan::Cell(cell) => {
            let cell = world.plan.cell(cell);
            all.filter(|(other, _)| *other == cell).collect()
        }
        ReadPlan::Scan {
            reverse: true,
            limit,
        } => all.rev().take(limit).collect(),
        ReadPlan::Scan {
            reverse: false,
            limit,
        } => all.take(limit).collect(),
    }
}

/// Every snapshot still sees the same, by gets and by scans both ways.
fn read_again(world: &World<'_>, committed: &[Committed<'_>]) -> Result<(), String> {
    let mut times = BTreeSet::from([Timestamp::MAX]);
    for txn in committed {
        times.insert(txn.commit_ts);
        times.insert(Timestamp::from_u64(txn.commit_ts.as_u64() - 1));
    }
    for ts in times {
        let model = model(committed, ts);
        let snapshot = Snapshot {
            ts,
            bypass: &[],
            own: false,
        };
        for cell in world.plan.all_cells() {
            let seen = world.store.get(snapshot, &cell);
            let expected = model
                .get(&cell)
                .cloned()
                .map_or(ReadResult::Absent, ReadResult::Value);
            if seen != expected {
                return Err(format!("{cell} at {ts} is {seen:?}, not {expected:?}"));
            }
        }
        for reverse in [false, true] {
            let range = ScanRange {
                reverse,
                ..ScanRange::default()
            };
            let limit = usize::MAX;
            let scanned = world.store.scan(snapshot, &range);
            let expected = expected(world, &model, ReadPlan::Scan { reverse, limit });
            if scanned != (expected, ScanEnd::Done) {
                return Err(format!("a scan at {ts} finds {scanned:?}"));
            }
        }
    }
    Ok(())
}
