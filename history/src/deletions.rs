//! Who deleted what was read as absent, where nobody was told that they committed, or nothing says when: anyone who reads
//! a cell as absent after somebody had written it has seen a deletion, and where only one transaction can have
//! made it, that one is committed.
//!
//! That a writer came before the reader is known by their timestamps, by the reader's having seen another write of it,
//! or by its having been answered before the reader began. Without any of these the cell may not yet have been written,
//! and the read proves nothing.

use std::collections::BTreeSet;
use std::ops::Bound;

use crate::hashed::{HashMap, HashSet};
use crate::transaction::{Op, Outcome, Transaction};
use crate::versions::{Cell, others, reads, source_of};

/// By reader and cell, who deleted it.
pub(crate) type Deletions<'a> = HashMap<(usize, &'a str), usize>;

/// What is known of those who wrote a value into a cell.
#[derive(Default)]
struct Puts<'a> {
    /// When they were committed, of those that were answered so.
    commit_ts: BTreeSet<u64>,
    /// The first of those that were answered, by clock.
    answered_us: HashMap<&'a str, u64>,
    /// All of them.
    writers: HashSet<usize>,
}

/// The deletions that were seen.
pub(crate) fn seen<'a>(
    history: &'a [Transaction],
    cells: &HashMap<&'a str, Cell<'a>>,
) -> Deletions<'a> {
    let puts = puts(history, cells);
    let mut seen = Deletions::default();
    for (reader, transaction) in history.iter().enumerate() {
        let mut read_of: Option<HashSet<usize>> = None;
        for (name, value) in reads(transaction) {
            let (None, Some(cell), Some(puts)) = (value, cells.get(name), puts.get(name)) else {
                continue;
            };
            let read_of = read_of.get_or_insert_with(|| sources(history, cells, reader));
            let began = transaction.times.as_ref();
            let began = began.and_then(|times| Some((times.clock.as_str(), times.began_us?)));
            let answered = began.is_some_and(|(clock, began_us)| {
                let first = puts.answered_us.get(clock);
                first.is_some_and(|ended_us| *ended_us < began_us)
            });
            let snapshot = transaction.start_ts;
            let put_ts = snapshot.and_then(|ts| puts.commit_ts.range(..=ts).next_back());
            if put_ts.is_none() && !answered && puts.writers.is_disjoint(read_of) {
                continue;
            }
            if let Some(deleter) = only_deleter(cell, reader, snapshot, put_ts.copied()) {
                seen.insert((reader, name), deleter);
            }
        }
    }
    seen
}

/// Who deleted the cell before this snapshot, and after this put, if it can only be one.
fn only_deleter(
    cell: &Cell<'_>,
    reader: usize,
    snapshot: Option<u64>,
    put_ts: Option<u64>,
) -> Option<usize> {
    if let (Some(places), Some(snapshot)) = (cell.places.get(&None), snapshot) {
        let from = put_ts.map_or(Bound::Unbounded, |ts| Bound::Excluded((ts, false)));
        let mut between = places.range((from, Bound::Excluded((snapshot, true))));
        let (_, deleter) = between.next()?;
        return between.next().is_none().then_some(*deleter);
    }
    let mut deleters = others(cell.writers.get(&None).into_iter().flatten(), reader);
    let deleter = deleters.next()?;
    deleters.next().is_none().then_some(deleter)
}

/// Of the cells that anybody deleted.
fn puts<'a>(
    history: &'a [Transaction],
    cells: &HashMap<&'a str, Cell<'a>>,
) -> HashMap<&'a str, Puts<'a>> {
    let mut puts: HashMap<&str, Puts<'a>> = HashMap::default();
    for (name, cell) in cells {
        if !cell.writers.contains_key(&None) {
            continue;
        }
        let of_cell = puts.entry(*name).or_default();
        for (value, writers) in &cell.writers {
            let put = writers.iter().filter(|_| value.is_some());
            for writer in put.map(|at| &history[*at]) {
                if writer.outcome != Outcome::Committed {
                    continue;
                }
                of_cell.commit_ts.extend(writer.commit_ts);
                if let Some(times) = &writer.times
                    && let Some(ended_us) = times.ended_us
                {
                    let first = of_cell.answered_us.entry(&times.clock).or_insert(ended_us);
                    *first = ended_us.min(*first);
                }
            }
        }
    }
    // Also what they deleted again themselves.
    for (at, transaction) in history.iter().enumerate() {
        for op in &transaction.ops {
            if let Op::Write(cell, Some(_)) = op
                && let Some(of_cell) = puts.get_mut(cell.as_str())
            {
                of_cell.writers.insert(at);
            }
        }
    }
    puts
}

/// Those from whom a transaction has read.
fn sources(
    history: &[Transaction],
    cells: &HashMap<&str, Cell<'_>>,
    reader: usize,
) -> HashSet<usize> {
    reads(&history[reader])
        .filter_map(|(name, value)| source_of(cells.get(name)?, reader, value)?)
        .collect()
}
