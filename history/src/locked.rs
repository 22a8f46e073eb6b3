//! What was got for update counts as touched: of two transactions that were under way at the same time, of which one
//! committed after it had got a cell for update, the other one may not have written that, nor got it for update.

use std::collections::BTreeMap;

use crate::check::committed_at;
use crate::hashed::HashSet;
use crate::transaction::{Op, Transaction};
use crate::versions::Versions;

/// The cells that the transaction got for update, and didn't write.
pub(crate) fn locks(transaction: &Transaction) -> HashSet<&str> {
    let mut locks = HashSet::default();
    for op in &transaction.ops {
        if let Op::Lock(cell) = op {
            locks.insert(cell.as_str());
        }
    }
    if !locks.is_empty() {
        for op in &transaction.ops {
            if let Op::Write(cell, _) = op {
                locks.remove(cell.as_str());
            }
        }
    }
    locks
}

/// By the timestamps: a cell, and two committed transactions that touched it, where the second one began before the
/// first one had committed, and one of them only got it for update.
pub(crate) fn overlap<'a>(
    history: &'a [Transaction],
    versions: &Versions<'a>,
) -> Option<(&'a str, usize, usize)> {
    // Only of cells that somebody got for update; when they were committed, when they began, who, and whether they
    // didn't write it.
    let mut touches: BTreeMap<&str, Vec<(u64, u64, usize, bool)>> = BTreeMap::new();
    for transaction in history {
        for op in &transaction.ops {
            if let Op::Lock(cell) = op {
                touches.entry(cell).or_default();
            }
        }
    }
    for (at, transaction) in history.iter().enumerate() {
        let (Some(start_ts), Some(commit_ts)) = (transaction.start_ts, committed_at(transaction))
        else {
            continue;
        };
        if !versions.committed[at] {
            continue;
        }
        let locks = locks(transaction);
        for op in &transaction.ops {
            if let Op::Write(cell, _) | Op::Lock(cell) = op
                && let Some(touches) = touches.get_mut(cell.as_str())
            {
                touches.push((commit_ts, start_ts, at, locks.contains(cell.as_str())));
            }
        }
    }
    for (cell, mut touches) in touches {
        touches.sort_unstable();
        touches.dedup();
        // Where any two overlap, so do two that follow each other.
        for pair in touches.windows(2) {
            if let [
                (commit_ts, _, earlier, first_locks),
                (_, start_ts, later, next_locks),
            ] = pair
                && commit_ts > start_ts
                && (*first_locks || *next_locks)
            {
                return Some((cell, *earlier, *later));
            }
        }
    }
    None
}
