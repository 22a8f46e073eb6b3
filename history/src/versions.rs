//! The versions of each cell, and their order: by commit_ts; one whose answer was lost stands where its snapshot
//! does, as nobody else can have written the cell between that and its commit. Without timestamps it is known
//! as far as anyone who read a version and wrote the next one tells.

use std::collections::BTreeMap;

use crate::deletions::{self, Deletions};
use crate::hashed::{HashMap, HashSet};
use crate::transaction::{Op, Outcome, Transaction};

/// A version: who wrote it. The first one, which was there before anybody wrote, is nobody's.
pub(crate) type Writer = Option<usize>;

/// What is known of one cell.
#[derive(Debug, Default)]
pub(crate) struct Cell<'a> {
    /// Who wrote a value last of all in their transaction, and may be committed.
    pub(crate) writers: HashMap<Option<&'a str>, Vec<usize>>,
    /// Of the values that several wrote, and of deletions, where each of those stands, in order; left out where
    /// that isn't known of all of them.
    pub(crate) places: HashMap<Option<&'a str>, BTreeMap<Place, usize>>,
    /// Who wrote a value, and is aborted.
    pub(crate) aborted: HashMap<Option<&'a str>, Vec<usize>>,
    /// Who wrote a value, and another one after it.
    pub(crate) intermediate: HashMap<Option<&'a str>, Vec<usize>>,
    /// Of each version, the ones that follow it directly, as far as it is known; more than one where
    /// several transactions read it and wrote the next.
    pub(crate) next: BTreeMap<Writer, Vec<usize>>,
    /// Where timestamps tell of some only: of each version that they tell of, and of the first, the next one that
    /// they tell of; others may lie between.
    pub(crate) next_known: BTreeMap<Writer, usize>,
    /// Who wrote it and is committed, by commit_ts, where that is known.
    pub(crate) commits: Vec<(u64, usize)>,
    /// Who wrote it and is committed, where their order isn't known of all: all that is known of each is that
    /// it came after the first version.
    pub(crate) unordered: Vec<usize>,
}

impl Cell<'_> {
    /// Whose versions are known to follow a version, whether directly or not.
    pub(crate) fn behind(&self, before: Writer) -> impl Iterator<Item = usize> {
        let next = self.next.get(&before).into_iter().flatten();
        next.chain(self.next_known.get(&before)).copied()
    }
}

/// All cells.
#[derive(Debug)]
pub(crate) struct Versions<'a> {
    pub(crate) cells: HashMap<&'a str, Cell<'a>>,
    /// Whether the transaction is committed: it was answered so, or somebody has seen it.
    pub(crate) committed: Vec<bool>,
    /// Who deleted what was read as absent, where that is known otherwise than by the order of deletions.
    deletions: Deletions<'a>,
}

impl<'a> Versions<'a> {
    pub(crate) fn new(history: &'a [Transaction]) -> Self {
        let mut versions = Self {
            cells: HashMap::default(),
            committed: history
                .iter()
                .map(|transaction| transaction.outcome == Outcome::Committed)
                .collect(),
            deletions: Deletions::default(),
        };
        for (at, transaction) in history.iter().enumerate() {
            for (cell, value, is_last) in writes(transaction) {
                let cell = versions.cells.entry(cell).or_default();
                if is_last && history[at].outcome == Outcome::Aborted {
                    cell.aborted.entry(value).or_default().push(at);
                } else if is_last {
                    cell.writers.entry(value).or_default().push(at);
                } else {
                    cell.intermediate.entry(value).or_default().push(at);
                }
            }
        }
        for cell in versions.cells.values_mut() {
            cell.places = places(history, cell);
        }
        versions.see_unknown(history);
        versions.arrange(history);
        versions
    }

    /// What was read was committed, whatever its client knows of it.
    fn see_unknown(&mut self, history: &'a [Transaction]) {
        for (at, transaction) in history.iter().enumerate() {
            for (cell, value) in reads(transaction) {
                let Some(known) = self.cells.get(cell) else {
                    continue;
                };
                // Of several that wrote it nobody knows which one was seen.
                if let (Some(Some(writer)), Some(_)) = (source_of(known, at, value), value)
                    && history[writer].outcome == Outcome::Unknown
                {
                    self.committed[writer] = true;
                }
            }
        }
        self.deletions = deletions::seen(history, &self.cells);
        for deleter in self.deletions.values() {
            self.committed[*deleter] = true;
        }
    }

    fn arrange(&mut self, history: &'a [Transaction]) {
        for cell in self.cells.values_mut() {
            let mut writers: Vec<usize> = cell
                .writers
                .values()
                .flatten()
                .copied()
                .filter(|at| self.committed[*at])
                .collect();
            writers.sort_unstable();
            let mut placed: Vec<_> = writers
                .iter()
                .filter_map(|at| Some((place(&history[*at])?, *at)))
                .collect();
            placed.sort_unstable();
            let commits = placed.iter().filter(|((_, is_start), _)| !is_start);
            cell.commits = commits.map(|((ts, _), at)| (*ts, *at)).collect();
            let before = std::iter::once(None).chain(placed.iter().map(|(_, at)| Some(*at)));
            let next = before.zip(placed.iter().map(|(_, at)| *at));
            if placed.len() == writers.len() {
                cell.next = next.map(|(before, at)| (before, vec![at])).collect();
                continue;
            }
            cell.next_known = next.collect();
            cell.unordered = writers;
        }
        // Who read a version and wrote another wrote the next one: snapshot isolation wants it so, and two of them
        // are a lost update.
        for (at, transaction) in history.iter().enumerate() {
            let mut known: HashSet<&str> = HashSet::default();
            for (name, value) in reads(transaction).filter(|(name, _)| known.insert(name)) {
                if let Some(cell) = self.cells.get_mut(name)
                    && cell.unordered.binary_search(&at).is_ok()
                    && let Some(before) = source_of(cell, at, value)
                {
                    cell.next.entry(before).or_default().push(at);
                }
            }
        }
    }

    /// Who wrote what was read; `None` where that can't be told.
    pub(crate) fn source(
        &self,
        history: &[Transaction],
        reader: usize,
        cell: &str,
        value: Option<&str>,
    ) -> Option<Writer> {
        let Some(known) = self.cells.get(cell) else {
            return value.is_none().then_some(None);
        };
        if let Some(found) = source_of(known, reader, value) {
            return Some(found);
        }
        // Several wrote that value, or deleted the cell: by the snapshot.
        let placed = || {
            let snapshot = history[reader].start_ts?;
            let places = known.places.get(&value)?;
            // A lost answer's commit lies above its start_ts.
            match (places.range(..(snapshot, true)).next_back(), value) {
                // Whether it was committed, and whether before the snapshot, nobody knows.
                (Some(((_, is_start), at)), _) if *is_start || !self.committed[*at] => None,
                (Some((_, at)), _) => Some(Some(*at)),
                (None, None) => Some(None),
                // All of them were committed later: it is one of those.
                (None, Some(_)) => others(places.values(), reader).next().map(Some),
            }
        };
        let deleted = || {
            let deleter = self.deletions.get(&(reader, cell));
            deleter.filter(|_| value.is_none()).map(|at| Some(*at))
        };
        placed().or_else(deleted)
    }

    /// Who overwrote what was read before the reader's snapshot, whichever it was of several that may have been
    /// committed: each of those that were under way before the snapshot began before this one's commit, so that it
    /// was committed before it, or not at all.
    pub(crate) fn overwritten_by(
        &self,
        history: &[Transaction],
        reader: usize,
        cell: &str,
        value: Option<&str>,
    ) -> Option<usize> {
        let known = self.cells.get(cell)?;
        let snapshot = history[reader].start_ts?;
        let places = known.places.get(&value)?;
        let ((last, _), _) = places.range(..(snapshot, true)).next_back()?;
        let before = known.commits.partition_point(|(ts, _)| *ts <= snapshot);
        let (ts, overwriter) = known.commits[..before].last()?;
        (ts > last).then_some(*overwriter)
    }
}

/// [`Cell::places`]. A lost answer hides only itself: where it was committed, then before those that stand behind it.
fn places<'a>(
    history: &[Transaction],
    cell: &Cell<'a>,
) -> HashMap<Option<&'a str>, BTreeMap<Place, usize>> {
    let placed = |at: &usize| Some((place(&history[*at])?, *at));
    cell.writers
        .iter()
        .filter(|(value, writers)| value.is_none() || writers.len() > 1)
        .filter_map(|(value, writers)| {
            Some((*value, writers.iter().map(placed).collect::<Option<_>>()?))
        })
        .collect()
}

/// A timestamp, and whether it is a start_ts, behind which the commit lies.
pub(crate) type Place = (u64, bool);

/// Where a transaction stands among those that wrote the same cell: at its commit_ts, or right behind its
/// start_ts. Snapshot isolation wants the others' commits outside of what lies between the two ("first
/// committer wins"); where they aren't, anyone who reads the one misses the effects of the other.
fn place(transaction: &Transaction) -> Option<Place> {
    let commit = transaction.commit_ts.map(|ts| (ts, false));
    commit.or(transaction.start_ts.map(|ts| (ts, true)))
}

/// Who wrote a value that was read, where only one can have.
pub(crate) fn source_of(cell: &Cell<'_>, reader: usize, value: Option<&str>) -> Option<Writer> {
    let mut writers = others(cell.writers.get(&value).into_iter().flatten(), reader);
    match (writers.next(), writers.next(), value) {
        (Some(one), None, Some(_)) => Some(Some(one)),
        (None, _, None) => Some(None),
        _ => None,
    }
}

/// Those of whom a transaction may have read: not itself, as it writes a cell only after [`reads`] of it.
pub(crate) fn others<'a>(
    writers: impl Iterator<Item = &'a usize>,
    reader: usize,
) -> impl Iterator<Item = usize> {
    writers.copied().filter(move |at| *at != reader)
}

/// What a transaction read before it wrote the cell itself.
pub(crate) fn reads(transaction: &Transaction) -> impl Iterator<Item = (&str, Option<&str>)> {
    let mut own: HashSet<&str> = HashSet::default();
    transaction.ops.iter().filter_map(move |op| match op {
        Op::Read(cell, value) if !own.contains(cell.as_str()) => {
            Some((cell.as_str(), value.as_deref()))
        }
        Op::Write(cell, _) => {
            own.insert(cell);
            None
        }
        _ => None,
    })
}

/// What a transaction wrote: the cell, the value, and whether it is the last one there.
fn writes(transaction: &Transaction) -> impl Iterator<Item = (&str, Option<&str>, bool)> {
    let last: HashMap<&str, usize> = transaction
        .ops
        .iter()
        .enumerate()
        .filter_map(|(at, op)| match op {
            Op::Write(cell, _) => Some((cell.as_str(), at)),
            _ => None,
        })
        .collect();
    transaction
        .ops
        .iter()
        .enumerate()
        .filter_map(move |(at, op)| match op {
            Op::Write(cell, value) => {
                let is_last = last.get(cell.as_str()) == Some(&at);
                Some((cell.as_str(), value.as_deref(), is_last))
            }
            _ => None,
        })
}
