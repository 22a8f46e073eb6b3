//! Which versions of a cell came after which, by real time, where no timestamps say so: a writer that began after
//! another one was answered came later; and so did one whose version was read by somebody who began after the
//! other one was answered. So a version that was seen and is missed later is noticed, also where nobody who wrote
//! has read what was there, and where its own answer was lost.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::graph::{Edge, Graph};
use crate::transaction::{Outcome, Transaction};
use crate::versions::{Versions, reads};

/// Of each version, by cell and writer: the nodes that lead to those who wrote later ones.
#[derive(Debug, Default)]
pub(crate) struct Later<'a>(HashMap<(&'a str, usize), Vec<usize>>);

/// What happens to a writer, in the order in which it counts where times are the same: nobody knows which was first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Begun,
    /// Nobody who begins later has read its version.
    LastRead,
    Answered,
}

/// By which clock, when, what, to whom.
type Moment = (usize, u64, Event, usize);

/// How many nodes [`add_edges`] needs.
pub(crate) fn nodes(versions: &Versions<'_>) -> usize {
    let cells = versions.cells.values();
    cells.map(|cell| cell.unordered.len()).sum()
}

/// Adds a node for each writer, from `first` on, which leads to it and to the next one of its cell that began.
pub(crate) fn add_edges<'a>(
    graph: &mut Graph<'a>,
    mut first: usize,
    history: &'a [Transaction],
    versions: &Versions<'a>,
) -> Later<'a> {
    let mut later = Later::default();
    for (name, moments) in moments(history, versions) {
        let mut begun: BTreeMap<(usize, u64, usize), usize> = BTreeMap::new();
        for (clock, at_us, event, writer) in &moments {
            if *event == Event::Begun {
                graph.add(first, *writer, Edge::Onward);
                begun.insert((*clock, *at_us, *writer), first);
                first += 1;
            }
        }
        let nodes: Vec<_> = begun.iter().collect();
        for pair in nodes.windows(2) {
            if let [((clock, ..), before), ((other, ..), next)] = pair
                && clock == other
            {
                graph.add(**before, **next, Edge::Onward);
            }
        }
        let mut being_read: BTreeSet<(usize, usize)> = BTreeSet::new();
        for (clock, at_us, event, writer) in moments {
            match event {
                Event::Begun => {
                    being_read.insert((clock, writer));
                }
                Event::LastRead => {
                    being_read.remove(&(clock, writer));
                }
                Event::Answered => {
                    let of_clock = being_read.range((clock, 0)..(clock + 1, 0));
                    let seen = of_clock.map(|(_, other)| *other);
                    let next = begun.range((clock, at_us + 1, 0)..(clock + 1, 0, 0)).next();
                    let behind = seen
                        .filter(|other| *other != writer)
                        .chain(next.map(|(_, node)| *node));
                    later.0.insert((name, writer), behind.collect());
                }
            }
        }
    }
    later
}

impl Later<'_> {
    /// The nodes that lead to whoever wrote a later version than this writer's.
    pub(crate) fn behind<'b>(&'b self, cell: &'b str, writer: usize) -> &'b [usize] {
        self.0.get(&(cell, writer)).map_or(&[], Vec::as_slice)
    }
}

/// What happened to the writers of each cell whose order isn't known, in order.
fn moments<'a>(history: &'a [Transaction], versions: &Versions<'a>) -> Vec<(&'a str, Vec<Moment>)> {
    let mut clocks: HashMap<&str, usize> = HashMap::new();
    for of in history.iter().filter_map(|of| of.times.as_ref()) {
        let next = clocks.len();
        clocks.entry(&of.clock).or_insert(next);
    }
    // By which clock it was, and when it began; none: at an older snapshot.
    let began = |at: usize| {
        let of = history[at].times.as_ref()?;
        Some((clocks[of.clock.as_str()], of.began_us?))
    };
    let mut last_reads: HashMap<(&str, usize), u64> = HashMap::new();
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
    let of_cell = |name: &str, writers: &[usize]| {
        let mut moments = Vec::new();
        for writer in writers {
            let Some((clock, began_us)) = began(*writer) else {
                continue;
            };
            let last_read = last_reads.get(&(name, *writer)).copied();
            let last_us = last_read.unwrap_or_default().max(began_us);
            moments.push((clock, began_us, Event::Begun, *writer));
            moments.push((clock, last_us, Event::LastRead, *writer));
            let of = &history[*writer];
            let ended_us = of.times.as_ref().and_then(|times| times.ended_us);
            if let Some(ended_us) = ended_us.filter(|_| of.outcome == Outcome::Committed) {
                moments.push((clock, ended_us, Event::Answered, *writer));
            }
        }
        moments.sort_unstable();
        moments
    };
    versions
        .cells
        .iter()
        .map(|(name, cell)| (*name, of_cell(name, &cell.unordered)))
        .filter(|(_, moments)| !moments.is_empty())
        .collect()
}
