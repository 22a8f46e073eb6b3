//! Collection comes to its end (docs/garbage-collection.md): once nobody holds it back and the retention is over, the
//! safe point has passed what happened before, no index entry lies below it, each cell has only what a snapshot at the
//! safe point or above may need, and of dropped tables nothing is left. `liveness` waits for that, and calls these.

use std::collections::BTreeSet;

use bytes::Bytes;
use percolator_engine::Column;
use percolator_protocol::types::{DecodeError, Lock, Timestamp, Write, WriteKind, key};
use percolator_tablet::index::Entry;

use crate::watch::{Content, Holding, pairs};

/// Columns whose keys begin with the number of their table.
const OF_TABLES: [Column; 4] = [Column::Lock, Column::Write, Column::Data, Column::Notify];

/// Why collection on this server has not ended at a safe point above `past`; `None`: it has. Cheap, as it is asked
/// after every event.
pub(super) fn unfinished(holding: &Holding<'_>, past: Timestamp) -> Option<String> {
    let Holding { server, points, .. } = holding;
    let safe_point = points.safe_point;
    if points.resolved <= past {
        return Some(format!(
            "the safe point of {server} is {safe_point} and locks are resolved up to {}, which is not above {past}",
            points.resolved
        ));
    }
    let point = |of_fates| {
        if of_fates {
            points.resolved
        } else {
            safe_point
        }
    };
    for of_fates in [false, true] {
        if let Some(entry) = oldest_entry(holding.content, of_fates)
            && entry < point(of_fates)
        {
            return Some(format!(
                "{server} has an index entry at {entry}, below its points {points:?}"
            ));
        }
    }
    if let Some(table) = holding.owned.frozen() {
        return Some(format!(
            "{server} has frozen tablets of table {table}, and the safe point is {safe_point}"
        ));
    }
    let (column, table) = dropped(holding)?;
    let column = column.name();
    Some(format!(
        "{server} has keys of table {table}, of rows that it doesn't own, in column {column}"
    ))
}

fn oldest_entry(content: &Content, of_fates: bool) -> Option<Timestamp> {
    let from = Bytes::copy_from_slice(&Entry::first_key(of_fates, Timestamp::ZERO));
    let ((column, key), _) = content.range((Column::Garbage, from)..).next()?;
    let (found, ts) = Entry::time_of(key)?;
    (*column == Column::Garbage && found == of_fates).then_some(ts)
}

/// A table that has keys here of rows that lie in no tablet.
fn dropped(holding: &Holding<'_>) -> Option<(Column, u32)> {
    for column in OF_TABLES {
        let mut from = Bytes::new();
        while let Some(((found, key), _)) = holding.content.range((column, from)..).next()
            && *found == column
        {
            let Some(tablet) = holding.owned.at(key) else {
                return Some((column, u32::from_be_bytes(*key.first_chunk::<4>()?)));
            };
            from = Bytes::copy_from_slice(&tablet.end);
        }
    }
    None
}

/// Where collection has ended, each cell has only what it may have.
///
/// # Errors
/// What is there and should not be, or is missing.
pub(super) fn check(holding: &Holding<'_>) -> Result<(), String> {
    let Holding { server, points, .. } = holding;
    let safe_point = points.safe_point;
    let unreadable = |error: DecodeError| error.to_string();
    let mut values: BTreeSet<(Bytes, Timestamp)> = BTreeSet::new();
    for (cell_key, value) in pairs(holding.content, Column::Lock) {
        let lock = Lock::decode(value.clone()).map_err(unreadable)?;
        values.insert((cell_key.clone(), lock.start_ts));
    }
    // The cell of the last record, and whether a put of it lies below the safe point.
    let mut last: (Bytes, bool) = Default::default();
    for (key, value) in pairs(holding.content, Column::Write) {
        let (cell_key, ts) = key::split_version(key).map_err(unreadable)?;
        let write = Write::decode(ts, value.clone()).map_err(unreadable)?;
        if last.0 != cell_key {
            last = (key.slice_ref(cell_key), false);
        }
        if write.kind == WriteKind::Put && write.short_value.is_none() {
            let data = key::version(cell_key.to_vec(), write.start_ts);
            if !holding.content.contains_key(&(Column::Data, data.into())) {
                let cell = key::decode_cell(cell_key).map_err(unreadable)?;
                return Err(format!(
                    "{server} has no value of the put of cell {cell} at {ts}"
                ));
            }
            values.insert((last.0.clone(), write.start_ts));
        }
        if ts >= safe_point || (ts >= points.resolved && write.kind == WriteKind::Lock) {
            continue;
        }
        let is_newest = !last.1
            && (write.kind == WriteKind::Put
                || write.kind == WriteKind::Delete && ts >= points.resolved);
        last.1 = true;
        if !is_newest {
            let cell = key::decode_cell(cell_key).map_err(unreadable)?;
            return Err(format!(
                "{server} has not collected the {:?} of cell {cell} at {ts}, and its safe point is {safe_point}",
                write.kind
            ));
        }
    }
    for (key, _) in pairs(holding.content, Column::Data) {
        let (cell_key, start_ts) = key::split_version(key).map_err(unreadable)?;
        if !values.contains(&(key.slice_ref(cell_key), start_ts)) {
            let cell = key::decode_cell(cell_key).map_err(unreadable)?;
            return Err(format!(
                "{server} has a value of transaction {start_ts} on cell {cell}, which no record or lock names"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use percolator_protocol::safe_point::Points;
    use percolator_protocol::types::{Cell, TableId};
    use percolator_wire::v1;

    use super::super::made_up::{assert_broken, ts};
    use super::*;
    use crate::owned::Owned;

    const TABLE: u32 = 7;
    const LONG: &str = "long";

    fn cell_key() -> Vec<u8> {
        let cell = Cell::new(TableId(TABLE), "row", "column");
        key::cell(cell.table, &cell.row, &cell.column)
    }

    /// The tablets of these tables, and whether they are in use.
    fn owned(tables: &[(u32, bool)]) -> Owned {
        let tablets = tables.iter().map(|(table, in_use)| v1::TabletInfo {
            table_id: *table,
            state: if *in_use {
                v1::TabletState::Serving.into()
            } else {
                v1::TabletState::Frozen.into()
            },
            ..v1::TabletInfo::default()
        });
        Owned::of(&tablets.collect::<Vec<_>>())
    }

    /// A put whose value is short, or has a key of its own.
    fn put(start_ts: u64, value: &str) -> Write {
        Write {
            kind: WriteKind::Put,
            start_ts: ts(start_ts),
            short_value: (value != LONG).then(|| Bytes::copy_from_slice(value.as_bytes())),
            overlapped_rollback: false,
        }
    }

    fn content(records: &[(u64, Write)]) -> Content {
        let stored = records.iter().map(|(at, write)| {
            let place = key::version(cell_key(), ts(*at));
            ((Column::Write, place.into()), write.encode(ts(*at)).into())
        });
        stored.collect()
    }

    fn points(safe_point: u64) -> Points {
        Points {
            barrier: ts(safe_point),
            safe_point: ts(safe_point),
            resolved: ts(safe_point),
        }
    }

    fn said(content: &Content, safe_point: u64) -> Result<(), String> {
        let owned = owned(&[(TABLE, true)]);
        let holding = Holding {
            server: "tablet-0",
            content,
            owned: &owned,
            points: points(safe_point),
        };
        match unfinished(&holding, ts(50)) {
            Some(why) => Err(why),
            None => check(&holding),
        }
    }

    #[test]
    fn of_a_cell_only_the_newest_put_stays_below_the_safe_point() {
        let two = content(&[(20, put(10, "old")), (90, put(80, "new"))]);
        assert_eq!(said(&two, 60), Ok(()));
        assert_broken(said(&two, 100), "has not collected the Put");
        // What hides it stands at the safe point: the entry for it lies not below.
        assert_eq!(said(&two, 90), Ok(()));
        let rolled_back = content(&[(20, put(10, "it")), (30, Write::rollback(ts(30)))]);
        assert_broken(said(&rolled_back, 60), "has not collected the Rollback");
        let kind = WriteKind::Delete;
        let deleted = Write {
            kind,
            short_value: None,
            ..put(10, "")
        };
        assert_broken(said(&content(&[(20, deleted)]), 60), "the Delete");
    }

    #[test]
    fn a_safe_point_that_stays_and_entries_below_it_are_no_end() {
        let mut content = content(&[(20, put(10, "it"))]);
        assert_broken(said(&content, 50), "which is not above 50");
        let entry = |at: u64| (Column::Garbage, Bytes::from(at.to_be_bytes().to_vec()));
        content.insert(entry(60), Bytes::new());
        assert_eq!(said(&content, 60), Ok(()));
        assert_broken(said(&content, 61), "an index entry at 60");
    }

    #[test]
    fn every_long_value_has_its_record_and_every_record_its_value() {
        let mut content = content(&[(20, put(10, LONG))]);
        assert_broken(said(&content, 60), "has no value of the put");
        let value = |start_ts| (Column::Data, key::version(cell_key(), ts(start_ts)).into());
        content.insert(value(10), Bytes::from_static(b"value"));
        assert_eq!(said(&content, 60), Ok(()));
        content.insert(value(11), Bytes::from_static(b"value"));
        assert_broken(said(&content, 60), "a value of transaction 11");
    }

    #[test]
    fn a_table_that_is_deleted_is_dropped_in_the_end() {
        let content = Content::new();
        let owned = owned(&[(TABLE, true), (TABLE + 1, false)]);
        let holding = Holding {
            server: "tablet-0",
            content: &content,
            owned: &owned,
            points: points(60),
        };
        let why = unfinished(&holding, ts(50));
        assert_broken(why.map_or(Ok(()), Err), "frozen tablets of table 8");
    }

    #[test]
    fn nothing_is_left_of_a_dropped_table() {
        let mut content = content(&[(20, put(10, "it"))]);
        let other = key::cell(TableId(TABLE + 1), b"row", b"column");
        content.insert(
            (Column::Data, key::version(other, ts(10)).into()),
            Bytes::new(),
        );
        assert_broken(said(&content, 60), "keys of table 8");
    }
}
