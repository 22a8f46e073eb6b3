//! Which versions of a cell came after which, by real time, where no timestamps say so: a writer that began after
//! another one was answered came later; and so did one whose version was read by somebody who began after the
//! other one was answered. So a version that was seen and is missed later is noticed, also where nobody who wrote
//! has read what was there, and where its own answer was lost.

use std::ops::Range;

use crate::graph::{Edge, Graph};
use crate::hashed::HashMap;
use crate::transaction::{Outcome, Transaction};
use crate::versions::{Versions, reads};

/// Of each version, by cell and writer: the node that leads to those who wrote later ones.
#[derive(Debug, Default)]
pub(crate) struct Later<'a>(HashMap<(&'a str, usize), usize>);

/// When a version was there at the latest: by which clock, when its writer, or the last who read it, began; the writer.
type Last = (usize, u64, usize);

/// How many nodes [`add_edges`] needs.
pub(crate) fn nodes(versions: &Versions<'_>) -> usize {
    let cells = versions.cells.values();
    cells.map(|cell| 3 * cell.unordered.len()).sum()
}

/// Adds nodes, from `first` on, that lead to the writers of each cell: later than a version are those that were there
/// after its writer was answered, but for itself. In the order in which they were there, these are two ranges, and
/// each of those is a few nodes of a binary tree: there may be as many versions as transactions, and each of them
/// later than half of the others.
pub(crate) fn add_edges<'a>(
    graph: &mut Graph<'a>,
    mut first: usize,
    history: &'a [Transaction],
    versions: &Versions<'a>,
) -> Later<'a> {
    let mut later = Later::default();
    for (name, lasts) in lasts(history, versions) {
        let count = lasts.len();
        let tree = first;
        for node in 1..count {
            graph.add(tree + node, tree + 2 * node, Edge::Onward);
            graph.add(tree + node, tree + 2 * node + 1, Edge::Onward);
        }
        for (at, (clock, _, writer)) in lasts.iter().enumerate() {
            graph.add(tree + count + at, *writer, Edge::Onward);
            let Some(answered_us) = answered_us(&history[*writer]) else {
                continue;
            };
            let from = lasts.partition_point(|(of, us, _)| (*of, *us) <= (*clock, answered_us));
            let to = lasts.partition_point(|(of, ..)| of <= clock);
            let behind = tree + 2 * count + at;
            for range in [from..at.max(from), from.max(at + 1)..to] {
                for node in covering(count, range) {
                    graph.add(behind, tree + node, Edge::Onward);
                }
            }
            later.0.insert((name, *writer), behind);
        }
        first += 3 * count;
    }
    later
}

/// The nodes of a binary tree over so many leaves that together lead to the leaves of a range, and to no others. The
/// root is 1, below `node` are `2 * node` and `2 * node + 1`, and the first leaf is `leaves`.
fn covering(leaves: usize, range: Range<usize>) -> Vec<usize> {
    let (mut from, mut to) = (range.start + leaves, range.end + leaves);
    let mut nodes = Vec::new();
    while from < to {
        if from % 2 == 1 {
            nodes.push(from);
            from += 1;
        }
        if to % 2 == 1 {
            to -= 1;
            nodes.push(to);
        }
        (from, to) = (from / 2, to / 2);
    }
    nodes
}

/// When its client was told that it is committed.
fn answered_us(transaction: &Transaction) -> Option<u64> {
    let ended_us = transaction.times.as_ref()?.ended_us;
    ended_us.filter(|_| transaction.outcome == Outcome::Committed)
}

impl Later<'_> {
    /// The node that leads to the writers of later versions than this writer's.
    pub(crate) fn behind<'b>(&'b self, cell: &'b str, writer: usize) -> Option<usize> {
        self.0.get(&(cell, writer)).copied()
    }
}

/// The versions of each cell whose order isn't known, in the order in which they were there.
fn lasts<'a>(history: &'a [Transaction], versions: &Versions<'a>) -> Vec<(&'a str, Vec<Last>)> {
    let mut clocks: HashMap<&str, usize> = HashMap::default();
    for of in history.iter().filter_map(|of| of.times.as_ref()) {
        let next = clocks.len();
        clocks.entry(&of.clock).or_insert(next);
    }
    // By which clock it was, and when it began; none: at an older snapshot.
    let began = |at: usize| {
        let of = history[at].times.as_ref()?;
        Some((clocks[of.clock.as_str()], of.began_us?))
    };
    let mut last_reads: HashMap<(&str, usize), u64> = HashMap::default();
    for (at, transaction) in history.iter().enumerate() {
        let Some((clock, began_us)) = began(at) else {
            continue;
        };
        for (cell, value) in reads(transaction) {
            if let Some(Some(writer)) = versions.source(history, at, cell, value)
                && began(writer).is_some_and(|(of, _)| of == clock)
            {
                let last = last_reads.entry((cell, writer)).or_default();
                *last = began_us.max(*last);
            }
        }
    }
    let of_cell = |name: &'a str, writers: &[usize]| {
        let last = |writer: &usize| {
            let (clock, began_us) = began(*writer)?;
            let read_us = last_reads.get(&(name, *writer)).copied();
            Some((clock, read_us.unwrap_or_default().max(began_us), *writer))
        };
        let mut lasts: Vec<Last> = writers.iter().filter_map(last).collect();
        lasts.sort_unstable();
        lasts
    };
    let cells = versions.cells.iter();
    let cells = cells.map(|(name, cell)| (*name, of_cell(name, &cell.unordered)));
    cells.filter(|(_, lasts)| !lasts.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::check;
    use crate::transaction::{Op, Times};

    /// One that is under way from `began_us` to `ended_us`, and does this to the cell `x`.
    fn transaction(began_us: u64, ended_us: u64, op: Op) -> Transaction {
        Transaction {
            client: format!("c{began_us}"),
            start_ts: None,
            commit_ts: None,
            outcome: Outcome::Committed,
            times: Some(Times {
                clock: "c".to_owned(),
                began_us: Some(began_us),
                ended_us: Some(ended_us),
            }),
            ops: vec![op],
        }
    }

    /// One after the other, so many write and nobody has read; then each of their versions is read, the first one last.
    fn blind_writes(count: u64) -> Vec<Transaction> {
        let value = |of: u64| Some(of.to_string());
        let cell = || "x".to_owned();
        let writes = (0..count).map(|at| (at, Op::Write(cell(), value(at))));
        let reads = (0..count).map(|at| (count + at, Op::Read(cell(), value(count - 1 - at))));
        let all = writes.chain(reads);
        all.map(|(at, op)| transaction(2 * at, 2 * at + 1, op))
            .collect()
    }

    /// Each version is there after each other one was answered, so that all come before all.
    #[test]
    fn a_wrong_history_of_blind_writes_takes_no_square_of_memory() {
        const COUNT: u64 = 100_000;
        let history = blind_writes(COUNT);
        let versions = Versions::new(&history);
        let first = history.len();
        let mut graph = Graph::new(first + nodes(&versions));
        let later = add_edges(&mut graph, first, &history, &versions);
        assert_eq!(later.0.len() as u64, COUNT);
        let edges = graph.edges() as u64;
        assert!(edges < 40 * COUNT, "{edges} edges");
        drop((graph, later, versions));
        let anomaly = check(&history)
            .anomaly
            .expect("the last one reads the first version");
        assert!(
            anomaly.to_string().contains("wrote a later version"),
            "{anomaly}"
        );
    }

    #[test]
    fn later_is_who_was_there_after_the_answer_but_for_itself() {
        // Also where there are as many as no tree is full of.
        for count in 1..20 {
            let history = blind_writes(count);
            let versions = Versions::new(&history);
            let mut graph = Graph::new(history.len() + nodes(&versions));
            let later = add_edges(&mut graph, history.len(), &history, &versions);
            for writer in 0..count as usize {
                let behind = later.behind("x", writer).expect("it was answered");
                let mut reached = graph.reached(behind);
                reached.retain(|node| *node < history.len());
                let others: Vec<usize> = (0..count as usize).filter(|at| *at != writer).collect();
                assert_eq!(
                    reached.into_iter().collect::<Vec<_>>(),
                    others,
                    "of {count}"
                );
            }
        }
    }

    #[test]
    fn a_range_is_covered_by_few_nodes_and_nothing_else() {
        for leaves in 1..40 {
            for (from, to) in
                (0..=leaves).flat_map(|from| (from..=leaves).map(move |to| (from, to)))
            {
                let nodes = covering(leaves, from..to);
                assert!(nodes.len() <= 12, "{nodes:?}");
                let mut open = nodes;
                let mut found = Vec::new();
                while let Some(node) = open.pop() {
                    match node.checked_sub(leaves) {
                        Some(leaf) => found.push(leaf),
                        None => open.extend([2 * node, 2 * node + 1]),
                    }
                }
                found.sort_unstable();
                assert_eq!(found, (from..to).collect::<Vec<_>>(), "of {leaves}");
            }
        }
    }
}
