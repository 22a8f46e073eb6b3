//! Whether snapshot isolation can explain a history.
//!
//! By Adya's graphs ("Weak Consistency", 1999): transactions, and who overwrote, read or overwrote the
//! reads of whom; with timestamps also who began after whom had committed. Snapshot isolation holds where
//! every cycle has two anti-dependencies one after the other (Cerone, Gotsman, "Analysing Snapshot
//! Isolation", 2016), nothing was read of aborted or unfinished transactions, and, with timestamps, nobody
//! depends on who committed after they began. Cycles are named as Adya and Jepsen's Elle name them.
//!
//! Where it is known by a clock when transactions were, those that begin after another one was answered lie
//! behind it: strict snapshot isolation.
//!
//! Without timestamps the order of a cell's versions is known as far as transactions read what they then
//! overwrote, as readers saw several writers (`together`), or as real time tells (`later`). So what is found is wrong, and not everything wrong is found.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::graph::{Cycle, Edge, Graph};
use crate::hashed::HashMap;
use crate::transaction::{Op, Transaction};
use crate::versions::{Versions, others, reads};
use crate::{later, locked, recency, together};

/// What kind of wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Writes of two transactions are in two orders (G0).
    DirtyWrite,
    /// Something was read that an aborted transaction wrote (G1a).
    AbortedRead,
    /// Something was read that its transaction overwrote itself (G1b).
    IntermediateRead,
    /// Transactions saw each other's writes in a circle (G1c).
    CircularInformationFlow,
    /// Two transactions read one version and both wrote the next.
    LostUpdate,
    /// A transaction saw a part of another one (G-single).
    ReadSkew,
    /// Two readers saw two writers in two orders.
    LongFork,
    /// A transaction saw, or overwrote, what was committed after its snapshot (G-SIa).
    Interference,
    /// A transaction didn't see what was committed before its snapshot (G-SIb).
    MissedEffects,
    /// A value was read that nobody wrote.
    Invented,
    /// A transaction read a cell otherwise than it had read or written it before (INT).
    InternalRead,
    /// Timestamps that nobody can have: the same one twice, or a commit that isn't above its snapshot.
    Timestamps,
    /// A transaction began after another one was answered, and doesn't lie behind it (real time).
    StaleSnapshot,
    /// A cell was written, or got for update, while another transaction that got it for update was under way.
    LockIgnored,
}

/// Something that snapshot isolation forbids, with the transactions that had a part in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anomaly {
    /// What kind.
    pub kind: Kind,
    /// The cycle, or what was read: lines for people.
    pub shown: Vec<String>,
}

/// What came of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Transactions that were looked at.
    pub transactions: usize,
    /// Reads whose writer couldn't be told: they prove nothing.
    pub ambiguous_reads: usize,
    /// The first that was found.
    pub anomaly: Option<Anomaly>,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DirtyWrite => "dirty write (G0)",
            Self::AbortedRead => "aborted read (G1a)",
            Self::IntermediateRead => "intermediate read (G1b)",
            Self::CircularInformationFlow => "circular information flow (G1c)",
            Self::LostUpdate => "lost update",
            Self::ReadSkew => "read skew (G-single)",
            Self::LongFork => "long fork",
            Self::Interference => "interference (G-SIa)",
            Self::MissedEffects => "missed effects (G-SIb)",
            Self::Invented => "a value that nobody wrote",
            Self::InternalRead => "a read that contradicts its own transaction (INT)",
            Self::Timestamps => "impossible timestamps",
            Self::StaleSnapshot => "stale snapshot (real time)",
            Self::LockIgnored => "a touch of what another one had got for update",
        })
    }
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.shown.join("; "))
    }
}

/// Checks a history. Timestamps are used where they are given.
pub fn check(history: &[Transaction]) -> Report {
    let versions = Versions::new(history);
    let mut report = Report {
        transactions: history.len(),
        ..Report::default()
    };
    report.anomaly = internal_read(history)
        .or_else(|| bad_timestamps(history))
        .or_else(|| bad_read(history, &versions))
        .or_else(|| lost_update(history, &versions))
        .or_else(|| lock_ignored(history, &versions))
        .or_else(|| stale_snapshot(history));
    if report.anomaly.is_some() {
        return report;
    }
    let (graph, ambiguous, interference) = graph(history, &versions);
    report.ambiguous_reads = ambiguous;
    report.anomaly = interference.or_else(|| {
        let cycle = graph.forbidden_cycle()?;
        Some(name_cycle(history, &cycle))
    });
    report
}

/// Reads of what the transaction itself read or wrote otherwise (Cerone and Gotsman's axiom INT).
fn internal_read(history: &[Transaction]) -> Option<Anomaly> {
    for transaction in history {
        let mut known: HashMap<&str, (&str, Option<&str>)> = HashMap::default();
        for op in &transaction.ops {
            match op {
                Op::Write(cell, value) => {
                    known.insert(cell, ("written", value.as_deref()));
                }
                Op::Read(cell, value) => {
                    let (how, before) = *known.entry(cell).or_insert(("read", value.as_deref()));
                    if before != value.as_deref() {
                        let who = label(transaction);
                        return Some(Anomaly {
                            kind: Kind::InternalRead,
                            shown: vec![format!(
                                "{who} read {cell} = {value:?}, and had {how} {before:?} before"
                            )],
                        });
                    }
                }
                Op::Lock(_) => {}
            }
        }
    }
    None
}

/// Timestamps that are no oracle's, of those that wrote or locked; who only reads may do so at any snapshot.
fn bad_timestamps(history: &[Transaction]) -> Option<Anomaly> {
    let (mut starts, mut commits) = (BTreeMap::new(), BTreeMap::new());
    for (at, transaction) in history.iter().enumerate() {
        if !transaction.changes() {
            continue;
        }
        let found = |shown: String| {
            let kind = Kind::Timestamps;
            let shown = vec![shown];
            Some(Anomaly { kind, shown })
        };
        let who = label(transaction);
        if let (Some(start_ts), Some(commit_ts)) = (transaction.start_ts, transaction.commit_ts)
            && commit_ts <= start_ts
        {
            return found(format!(
                "{who} committed at {commit_ts}, which isn't above its snapshot"
            ));
        }
        let of = [
            ("began", &mut starts, transaction.start_ts),
            ("committed", &mut commits, transaction.commit_ts),
        ];
        for (what, known, ts) in of {
            if let Some(ts) = ts
                && let Some(other) = known.insert(ts, at)
            {
                let other = label(&history[other]);
                return found(format!("{other} and {who} both {what} at {ts}"));
            }
        }
    }
    commits.iter().find_map(|(ts, committed)| {
        let (committed, began) = (&history[*committed], &history[*starts.get(ts)?]);
        let kind = Kind::Timestamps;
        let shown = format!(
            "{} committed at {ts}, where {} began",
            label(committed),
            label(began)
        );
        Some(Anomaly {
            kind,
            shown: vec![shown],
        })
    })
}

/// Reads of what was never committed.
fn bad_read(history: &[Transaction], versions: &Versions<'_>) -> Option<Anomaly> {
    for (at, transaction) in history.iter().enumerate() {
        let first = |writers: Option<&Vec<usize>>| others(writers?.iter(), at).next();
        for (cell, value) in reads(transaction) {
            let known = versions.cells.get(cell);
            let Some(text) = value else { continue };
            let found = |kind, whose: Option<usize>| {
                let read = format!("{} read {cell} = {text:?}", label(transaction));
                let written = whose.map(|at| format!("written by {}", label(&history[at])));
                Some(Anomaly {
                    kind,
                    shown: std::iter::once(read).chain(written).collect(),
                })
            };
            let Some(known) = known else {
                return found(Kind::Invented, None);
            };
            if first(known.writers.get(&value)).is_some() {
                continue;
            }
            if let Some(writer) = first(known.aborted.get(&value)) {
                return found(Kind::AbortedRead, Some(writer));
            }
            return match first(known.intermediate.get(&value)) {
                Some(writer) => found(Kind::IntermediateRead, Some(writer)),
                None => found(Kind::Invented, None),
            };
        }
    }
    None
}

/// Two that read one version and wrote the next, where only that tells the order.
fn lost_update(history: &[Transaction], versions: &Versions<'_>) -> Option<Anomaly> {
    for (name, cell) in &versions.cells {
        for (before, next) in &cell.next {
            if let [first, second, ..] = next[..] {
                let before =
                    before.map_or_else(|| "the first".to_owned(), |at| label(&history[at]));
                return Some(Anomaly {
                    kind: Kind::LostUpdate,
                    shown: vec![format!(
                        "{} and {} both read {before}'s version of {name} and wrote the next",
                        label(&history[first]),
                        label(&history[second])
                    )],
                });
            }
        }
    }
    None
}

/// Two that were under way at the same time, and of which one had got for update what the other one touched.
fn lock_ignored(history: &[Transaction], versions: &Versions<'_>) -> Option<Anomaly> {
    let (cell, earlier, later) = locked::overlap(history, versions)?;
    let (earlier, later) = (&history[earlier], &history[later]);
    let did = |who: &Transaction| {
        if locked::locks(who).contains(cell) {
            "got for update"
        } else {
            "wrote"
        }
    };
    Some(Anomaly {
        kind: Kind::LockIgnored,
        shown: vec![format!(
            "{} {} {cell}, and had not committed when {} began, which {} it",
            label(earlier),
            did(earlier),
            label(later),
            did(later)
        )],
    })
}

/// A snapshot that isn't above what was answered before it was asked for.
fn stale_snapshot(history: &[Transaction]) -> Option<Anomaly> {
    let (earlier, ts, later) = recency::stale_snapshot(history)?;
    Some(Anomaly {
        kind: Kind::StaleSnapshot,
        shown: vec![
            step(history, earlier, Edge::RealTime, later),
            format!("its snapshot isn't above {ts}"),
        ],
    })
}

/// A transaction that isn't committed is there too, as one that only read: its snapshot has to be right all the same.
#[expect(clippy::too_many_lines, reason = "one graph, edge by edge")]
fn graph<'a>(
    history: &'a [Transaction],
    versions: &Versions<'a>,
) -> (Graph<'a>, usize, Option<Anomaly>) {
    let timed: Vec<(u64, bool, usize)> = times(history, versions);
    // Behind the transactions: one node for each moment, which leads to the next one, and one for all
    // writers of each cell; then those of `later`.
    let real_time = history.len() + timed.len();
    let writers = real_time + recency::nodes(history);
    let begun = writers + versions.cells.len();
    let seen = begun + later::nodes(versions);
    let together = together::seen(history, versions);
    let mut graph = Graph::new(seen + together.len());
    recency::add_edges(&mut graph, real_time, history);
    let later = later::add_edges(&mut graph, begun, history, versions);
    for (moment, (_, is_start, at)) in timed.iter().enumerate() {
        let node = history.len() + moment;
        if *is_start {
            graph.add(node, *at, Edge::Start);
        } else {
            graph.add(*at, node, Edge::Start);
        }
        if moment + 1 < timed.len() {
            graph.add(node, node + 1, Edge::Start);
        }
    }
    let mut interference = None;
    let mut depends = |graph: &mut Graph<'a>, from: usize, to: usize, edge: Edge<'a>| {
        if let (Some(committed), Some(began)) = (committed_at(&history[from]), history[to].start_ts)
            && committed > began
            && from != to
            && interference.is_none()
        {
            interference = Some(Anomaly {
                kind: Kind::Interference,
                shown: vec![
                    step(history, from, edge, to),
                    format!("{committed} is above the snapshot {began}"),
                ],
            });
        }
        // No later than that, where nobody was told when.
        if history[from].commit_ts.is_none()
            && let Some(began) = history[to].start_ts
        {
            let moment =
                timed.partition_point(|(ts, is_start, _)| (*ts, *is_start) < (began, true));
            graph.add(from, history.len() + moment, Edge::Start);
        }
        graph.add(from, to, edge);
    };
    let mut absent: HashMap<&str, usize> = HashMap::default();
    for (number, (name, cell)) in versions.cells.iter().enumerate() {
        absent.insert(name, writers + number);
        for writer in &cell.unordered {
            graph.add(writers + number, *writer, Edge::Onward);
        }
        let known: BTreeSet<_> = cell.next.keys().chain(cell.next_known.keys()).collect();
        for before in known {
            for next in cell.behind(*before) {
                if let Some(before) = before {
                    depends(&mut graph, *before, next, Edge::Ww(name));
                }
            }
        }
        // Who read that it was not there and wrote it was the first.
        if let Some([first]) = cell.next.get(&None).map(Vec::as_slice) {
            for other in others(cell.unordered.iter(), *first) {
                depends(&mut graph, *first, other, Edge::Later(name));
            }
        }
    }
    // Of each version that readers tell of, a node that leads to the later ones.
    let mut behind: HashMap<(&str, usize), usize> = HashMap::default();
    for (node, ((name, before), after)) in (seen..).zip(&together) {
        behind.insert((name, *before), node);
        for (after, reader) in after {
            graph.add(node, *after, Edge::Onward);
            depends(&mut graph, *before, *after, Edge::Together(name, *reader));
        }
    }
    let mut ambiguous = 0;
    for (at, transaction) in history.iter().enumerate() {
        // Who commits after it got a cell for update is before the next writer.
        let locks = locked::locks(transaction);
        for (cell, value) in reads(transaction) {
            let has_lock = versions.committed[at] && locks.contains(cell);
            let Some(source) = versions.source(history, at, cell, value) else {
                match versions.overwritten_by(history, at, cell, value) {
                    Some(overwriter) => graph.add(at, overwriter, Edge::Overwritten(cell)),
                    None => ambiguous += 1,
                }
                continue;
            };
            if let Some(writer) = source {
                depends(&mut graph, writer, at, Edge::Wr(cell));
                let seen = behind.get(&(cell, writer)).copied();
                for node in later.behind(cell, writer).into_iter().chain(seen) {
                    graph.add(at, node, Edge::Overwritten(cell));
                }
            } else if let Some(writers) = absent.get(cell) {
                // Of the writers this is none of them: who locks a cell doesn't write it.
                let edge = if has_lock {
                    Edge::Locked(cell)
                } else {
                    Edge::Absent(cell)
                };
                graph.add(at, *writers, edge);
            }
            let known = versions.cells.get(cell);
            let next = known.into_iter().flat_map(|known| known.behind(source));
            for next in next {
                if has_lock {
                    depends(&mut graph, at, next, Edge::Locked(cell));
                } else {
                    graph.add(at, next, Edge::Rw(cell));
                }
            }
        }
    }
    (graph, ambiguous, interference)
}

/// When a transaction was committed, or, where only its snapshot is known, at the earliest.
pub(crate) fn committed_at(transaction: &Transaction) -> Option<u64> {
    let earliest = (transaction.start_ts).map(|start_ts| start_ts.saturating_add(1));
    transaction.commit_ts.or(earliest)
}

/// Starts and commits in their order: when, whether it is a start, whose.
fn times(history: &[Transaction], versions: &Versions<'_>) -> Vec<(u64, bool, usize)> {
    let mut times = BTreeSet::new();
    for (at, transaction) in history.iter().enumerate() {
        if let Some(start_ts) = transaction.start_ts {
            times.insert((start_ts, true, at));
        }
        let writes = |op: &Op| matches!(op, Op::Write(..));
        if let Some(commit_ts) = transaction.commit_ts
            && versions.committed[at]
            && transaction.ops.iter().any(writes)
        {
            times.insert((commit_ts, false, at));
        }
    }
    times.into_iter().collect()
}

fn name_cycle(history: &[Transaction], cycle: &Cycle<'_>) -> Anomaly {
    let count =
        |wanted: fn(&Edge<'_>) -> bool| cycle.iter().filter(|(_, edge)| wanted(edge)).count();
    let rw = count(|edge| edge.is_anti_dependency());
    let locked = count(|edge| matches!(edge, Edge::Locked(_)));
    let together = count(|edge| matches!(edge, Edge::Together(..)));
    let starts = count(|edge| matches!(edge, Edge::Start));
    let real_time = count(|edge| matches!(edge, Edge::RealTime));
    let wr = count(|edge| matches!(edge, Edge::Wr(_)));
    let shown: Vec<String> = cycle
        .iter()
        .enumerate()
        // The nodes between the transactions say nothing to people.
        .filter(|(_, (from, _))| *from < history.len())
        .map(|(at, (from, edge))| {
            let to = (1..=cycle.len())
                .map(|ahead| cycle[(at + ahead) % cycle.len()].0)
                .find(|node| *node < history.len())
                .unwrap_or(*from);
            step(history, *from, *edge, to)
        })
        .collect();
    let kind = match (rw, starts, wr) {
        _ if locked > 0 => Kind::LockIgnored,
        (0 | 1, ..) if real_time > 0 => Kind::StaleSnapshot,
        (0, 0, _) if together > 0 => Kind::ReadSkew,
        (0, 0, 0) => Kind::DirtyWrite,
        (0, 0, _) => Kind::CircularInformationFlow,
        (0, ..) => Kind::Interference,
        (1, 0, 0) if shown.len() == 2 => Kind::LostUpdate,
        (1, 0, _) => Kind::ReadSkew,
        (1, ..) => Kind::MissedEffects,
        _ => Kind::LongFork,
    };
    Anomaly { kind, shown }
}

fn step(history: &[Transaction], from: usize, edge: Edge<'_>, to: usize) -> String {
    let (from, to) = (label(&history[from]), label(&history[to]));
    match edge {
        Edge::Together(cell, reader) => {
            let reader = label(&history[reader]);
            format!(
                "{from} wrote {cell}, and {to} a later version: {reader} saw that, and something of {from}"
            )
        }
        Edge::Ww(cell) => format!("{from} wrote {cell}, and {to} wrote it next"),
        Edge::Wr(cell) => format!("{from} wrote {cell}, and {to} read that"),
        Edge::Later(cell) => format!("{from} wrote {cell}, and {to} wrote a later version"),
        Edge::Rw(cell) => format!("{from} read {cell}, and {to} wrote the next version"),
        Edge::Absent(cell) => format!("{from} read that {cell} was not there, and {to} wrote it"),
        Edge::Overwritten(cell) => format!("{from} read {cell}, and {to} wrote a later version"),
        Edge::Locked(cell) => {
            format!("{from} got {cell} for update, and {to} wrote the next version")
        }
        Edge::Onward => format!("{from} comes before {to}"),
        Edge::Start => format!("{from} had committed when {to} began"),
        Edge::RealTime => format!("{from} was answered before {to} began"),
    }
}

fn label(transaction: &Transaction) -> String {
    match transaction.start_ts {
        Some(start_ts) => format!("{}@{start_ts}", transaction.client),
        None => transaction.client.clone(),
    }
}
