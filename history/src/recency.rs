//! Real time: a transaction that begins after another one was answered lies behind it (strict snapshot
//! isolation). By the timestamps, where they are known; else by a graph's edges from ends to beginnings.

use std::collections::BTreeMap;

use crate::graph::{Edge, Graph};
use crate::transaction::{Outcome, Transaction};

/// A moment of one clock. Beginnings come before ends of the same microsecond: nobody knows which was first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment {
    at_us: u64,
    is_end: bool,
    transaction: usize,
}

/// The moments of each clock in their order.
fn moments(history: &[Transaction]) -> Vec<Vec<Moment>> {
    let mut clocks: BTreeMap<&str, Vec<Moment>> = BTreeMap::new();
    for (transaction, of) in history.iter().enumerate() {
        let Some(times) = &of.times else {
            continue;
        };
        let moments = clocks.entry(&times.clock).or_default();
        // What ran at an older snapshot proves nothing of later ones.
        let Some(began_us) = times.began_us else {
            continue;
        };
        let mut add = |at_us, is_end| {
            moments.push(Moment {
                at_us,
                is_end,
                transaction,
            });
        };
        add(began_us, false);
        if let Some(ended_us) = times.ended_us.filter(|_| of.outcome != Outcome::Unknown) {
            add(ended_us, true);
        }
    }
    for moments in clocks.values_mut() {
        moments.sort_unstable();
    }
    clocks.into_values().collect()
}

/// Whose snapshot is not above a timestamp that was in use before it was asked for: the earlier one, with that
/// timestamp, and the later one.
pub(crate) fn stale_snapshot(history: &[Transaction]) -> Option<(usize, u64, usize)> {
    for moments in moments(history) {
        let mut highest: Option<(u64, usize)> = None;
        for Moment {
            is_end,
            transaction,
            ..
        } in moments
        {
            let of = &history[transaction];
            if is_end {
                highest = highest.max(last_ts(of).map(|ts| (ts, transaction)));
            } else if let (Some((ts, earlier)), Some(start_ts)) = (highest, of.start_ts)
                && start_ts <= ts
            {
                return Some((earlier, ts, transaction));
            }
        }
    }
    None
}

/// The highest timestamp that a transaction had when it ended.
fn last_ts(transaction: &Transaction) -> Option<u64> {
    let commit_ts = transaction.commit_ts.filter(|_| transaction.changes());
    commit_ts.or(transaction.start_ts)
}

/// How many nodes [`add_edges`] needs.
pub(crate) fn nodes(history: &[Transaction]) -> usize {
    moments(history).iter().map(Vec::len).sum()
}

/// Adds a node for each moment, from `first` on, which leads to the next one; ends lead to them, and they to
/// beginnings.
pub(crate) fn add_edges(graph: &mut Graph<'_>, first: usize, history: &[Transaction]) {
    let mut node = first;
    for moments in moments(history) {
        for (at, moment) in moments.iter().enumerate() {
            if moment.is_end {
                graph.add(moment.transaction, node, Edge::RealTime);
            } else {
                graph.add(node, moment.transaction, Edge::RealTime);
            }
            if at + 1 < moments.len() {
                graph.add(node, node + 1, Edge::RealTime);
            }
            node += 1;
        }
    }
}
