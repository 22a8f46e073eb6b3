//! Which versions of a cell came after which, as readers tell that saw several writers: who saw anything of a
//! transaction saw all of it, so what it read of another cell that this one wrote is the same version or a later one.
//! Nobody has to have read what they overwrote for that.

use std::collections::BTreeMap;

use crate::hashed::{HashMap, HashSet};
use crate::transaction::{Op, Transaction};
use crate::versions::{Versions, reads};

/// Of a version, by cell and writer: who is known to have written later ones, and a reader that tells so.
pub(crate) type Together<'a> = BTreeMap<(&'a str, usize), BTreeMap<usize, usize>>;

/// Of the cells whose versions' order isn't known.
pub(crate) fn seen<'a>(history: &'a [Transaction], versions: &Versions<'a>) -> Together<'a> {
    let mut together = Together::new();
    if versions
        .cells
        .values()
        .all(|cell| cell.unordered.is_empty())
    {
        return together;
    }
    let written: Vec<HashSet<&str>> = history.iter().map(written).collect();
    for (at, transaction) in history.iter().enumerate() {
        let sources: HashMap<&str, usize> = reads(transaction)
            .filter_map(|(cell, value)| {
                let writer = versions.source(history, at, cell, value)??;
                Some((cell, writer))
            })
            .collect();
        let writers: HashSet<usize> = sources.values().copied().collect();
        for before in writers {
            // Both wrote the cell, and the reader saw the other one's.
            let mut see = |cell: &'a str, after: usize| {
                let unordered = &versions.cells.get(cell).expect("it was written").unordered;
                if before != after && !unordered.is_empty() {
                    let known = together.entry((cell, before)).or_default();
                    known.entry(after).or_insert(at);
                }
            };
            // One of them may have thousands of cells.
            if written[before].len() < sources.len() {
                for cell in &written[before] {
                    if let Some(after) = sources.get(cell) {
                        see(cell, *after);
                    }
                }
            } else {
                for (cell, after) in &sources {
                    if let Some(cell) = written[before].get(cell) {
                        see(cell, *after);
                    }
                }
            }
        }
    }
    together
}

fn written(transaction: &Transaction) -> HashSet<&str> {
    let cells = transaction.ops.iter().filter_map(|op| match op {
        Op::Write(cell, _) => Some(cell.as_str()),
        Op::Read(..) | Op::Lock(_) => None,
    });
    cells.collect()
}
