//! Collection: which records of a cell nobody needs any more (docs/garbage-collection.md).

use bytes::Bytes;

use crate::mutants::{self, Mutant};
use crate::safe_point::Points;
use crate::types::{Effect, Timestamp, Write, WriteKind};

/// The removals of one cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// The removals, and records that are replaced by their fates.
    pub effects: Vec<Effect>,
    /// The timestamps of the fates: these are collected when resolved has passed them.
    pub fates: Vec<Timestamp>,
    /// Records among them.
    pub records: usize,
    /// Bytes of the values that stand in these records.
    pub bytes: usize,
    /// Nothing is left to be removed up to this point.
    pub done: bool,
}

/// Says what may go of a cell's write records, newest first, now that these are the points of collection: nobody
/// reads, prewrites or begins below the safe point any more, and no lock is left of a transaction that began below resolved,
/// but for such as can only commit above it. Records above the safe point may be left out. At most about `most` removals
/// at a time; what is left, the next call finds.
///
/// Of what a snapshot at `safe_point` sees, the newest put stays. Puts and deletes below it go. A delete that
/// nothing lies below any more goes too, by a call of its own: a reader that goes through the records one by
/// one from the oldest on may have seen what the delete hides, and has to find the delete then. Anyone who
/// writes the removals down lets such readers end between two calls. Locks' and rollbacks' records below
/// `safe_point` go: transactions that began below it come no more. Those that stand exactly at it stay for the one
/// that began there, and so does a delete.
///
/// Of a commit at or above resolved ([`Points::needs_fate`]) the fate stays in place of a put or delete that would go: a
/// lock's record. A delete that is the newest stays as it is: a reader goes no further.
///
/// Doing it twice is harmless, and so is stopping between two removals.
///
/// # Errors
/// The first error among the records.
pub fn gc<E>(
    points: Points,
    records: impl Iterator<Item = Result<(Timestamp, Write), E>>,
    most: usize,
) -> Result<Collected, E> {
    let safe_point = points.safe_point;
    let mut collected = Collected::default();
    let mut shown = false;
    let mut last_delete = None;
    for record in records {
        let (commit_ts, write) = record?;
        if commit_ts > safe_point {
            continue;
        }
        if collected.records >= most {
            return Ok(collected);
        }
        let needs_fate = write.kind != WriteKind::Rollback && points.needs_fate(commit_ts);
        let shows = matches!(write.kind, WriteKind::Put | WriteKind::Delete);
        if shows && !shown {
            shown = true;
            if write.kind == WriteKind::Delete && commit_ts < safe_point && !needs_fate {
                last_delete = Some((commit_ts, write));
            }
        } else if commit_ts < safe_point {
            if !needs_fate {
                collected.remove(commit_ts, &write);
            } else if shows {
                collected.replace(commit_ts, write);
            }
        }
    }
    if let Some((commit_ts, write)) = last_delete {
        if collected.records > 0 {
            if mutants::on(Mutant::DeleteCollectedFirst) {
                collected = Collected::default();
                collected.remove(commit_ts, &write);
            }
            return Ok(collected);
        }
        collected.remove(commit_ts, &write);
    }
    collected.done = true;
    Ok(collected)
}

impl Collected {
    /// Leaves the fate of a commit in place of its record.
    pub fn replace(&mut self, commit_ts: Timestamp, write: Write) {
        self.records += 1;
        self.bytes += write.short_value.as_ref().map_or(0, Bytes::len);
        if write.kind == WriteKind::Put && write.short_value.is_none() {
            self.effects.push(Effect::DeleteData(write.start_ts));
        }
        let fate = Write {
            kind: WriteKind::Lock,
            short_value: None,
            ..write
        };
        self.effects.push(Effect::PutWrite(commit_ts, fate));
        self.fates.push(commit_ts);
    }

    /// Adds what is to go besides.
    pub fn extend(&mut self, more: Self) {
        self.effects.extend(more.effects);
        self.fates.extend(more.fates);
        self.records += more.records;
        self.bytes += more.bytes;
        self.done &= more.done;
    }

    fn remove(&mut self, commit_ts: Timestamp, write: &Write) {
        self.records += 1;
        self.bytes += write.short_value.as_ref().map_or(0, Bytes::len);
        self.effects.push(Effect::DeleteWrite(commit_ts));
        if write.kind == WriteKind::Put && write.short_value.is_none() {
            self.effects.push(Effect::DeleteData(write.start_ts));
        }
    }
}
