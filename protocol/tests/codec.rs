//! The stored forms: what is written reads back, keys are in the order of what they name, and no
//! bytes whatever make a reader panic.

use std::cmp::Reverse;

use bytes::Bytes;
use percolator_protocol::types::{
    CHAIN_COLUMNS_MAX, Cell, Chain, Lock, LockKind, TableId, Timestamp, TraceParent, Write,
    WriteKind, escape, key, unescape,
};
use proptest::prelude::*;

/// Few different bytes, so that one name is often the beginning of another, with the escapes among
/// them.
fn name(min: usize) -> impl Strategy<Value = Bytes> {
    let byte = prop_oneof![
        Just(0),
        Just(1),
        Just(2),
        Just(0xff),
        Just(b'a'),
        any::<u8>()
    ];
    prop::collection::vec(byte, min..5).prop_map(Bytes::from)
}

fn cell() -> impl Strategy<Value = Cell> {
    let table = prop_oneof![3 => 0..2_u32, 1 => any::<u32>(), 1 => Just(u32::MAX)];
    (table, name(1), name(0))
        .prop_map(|(table, row, column)| Cell::new(TableId(table), row, column))
}

fn ts() -> impl Strategy<Value = Timestamp> {
    prop_oneof![0..4_u64, any::<u64>(), u64::MAX - 2..=u64::MAX].prop_map(Timestamp::from_u64)
}

fn value() -> impl Strategy<Value = Option<Bytes>> {
    prop::option::of(prop::collection::vec(any::<u8>(), 0..300).prop_map(Bytes::from))
}

fn lock() -> impl Strategy<Value = Lock> {
    let kind = prop_oneof![
        Just(LockKind::Put),
        Just(LockKind::Delete),
        Just(LockKind::Lock)
    ];
    (
        kind,
        cell(),
        ts(),
        any::<u64>(),
        ts(),
        any::<bool>(),
        any::<u32>(),
        value(),
        prop::option::of(chain()),
    )
        .prop_map(
            |(
                kind,
                primary,
                start_ts,
                ttl_ms,
                min_commit_ts,
                committing,
                generation,
                short_value,
                chain,
            )| Lock {
                kind,
                primary,
                start_ts,
                ttl_ms,
                min_commit_ts,
                committing,
                generation,
                short_value,
                chain: chain.map(Box::new),
            },
        )
}

fn chain() -> impl Strategy<Value = Chain> {
    let columns = prop::collection::vec((any::<u32>(), name(0)), 0..=CHAIN_COLUMNS_MAX);
    let trace = prop::option::of((any::<u128>(), any::<u64>()));
    (any::<u32>(), columns, trace).prop_map(|(depth, columns, trace)| Chain {
        depth,
        trace: trace.map(|(trace_id, span_id)| TraceParent { trace_id, span_id }),
        columns: columns
            .into_iter()
            .map(|(table, column)| (TableId(table), column))
            .collect(),
    })
}

fn write() -> impl Strategy<Value = Write> {
    let kind = prop_oneof![
        Just(WriteKind::Put),
        Just(WriteKind::Delete),
        Just(WriteKind::Lock),
        Just(WriteKind::Rollback),
    ];
    (kind, ts(), value(), any::<bool>()).prop_map(
        |(kind, start_ts, short_value, overlapped_rollback)| Write {
            kind,
            start_ts,
            short_value,
            overlapped_rollback,
        },
    )
}

fn cell_key(cell: &Cell) -> Vec<u8> {
    key::cell(cell.table, &cell.row, &cell.column)
}

fn version_key(cell: &Cell, ts: Timestamp) -> Vec<u8> {
    key::version(cell_key(cell), ts)
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn locks_read_back(lock in lock()) {
        let record = lock.encode();
        prop_assert_eq!(Lock::decode(record.clone().into()), Ok(lock));
        // A part of it, or more than it, is damage.
        for length in 0..record.len() {
            prop_assert!(Lock::decode(Bytes::copy_from_slice(&record[..length])).is_err());
        }
        prop_assert!(Lock::decode([&record[..], &[0]].concat().into()).is_err());
    }

    #[test]
    fn write_records_read_back(write in write(), at in any::<u64>()) {
        let at = Timestamp::from_u64(at);
        let record = write.encode(at);
        prop_assert_eq!(Write::decode(at, record.clone().into()), Ok(write));
        for length in 0..record.len() {
            prop_assert!(Write::decode(at, Bytes::copy_from_slice(&record[..length])).is_err());
        }
        prop_assert!(Write::decode(at, [&record[..], &[0]].concat().into()).is_err());
    }

    #[test]
    fn keys_read_back(cell in cell(), ts in ts()) {
        let key = version_key(&cell, ts);
        let (cell_part, version) = key::split_version(&key).unwrap();
        prop_assert_eq!(version, ts);
        prop_assert_eq!(cell_part, cell_key(&cell));
        prop_assert_eq!(key::decode_cell(cell_part), Ok(cell));
    }

    #[test]
    fn keys_are_in_order(a in cell(), b in cell(), at in ts(), bt in ts()) {
        let names = (&a, Reverse(at)).cmp(&(&b, Reverse(bt)));
        prop_assert_eq!(version_key(&a, at).cmp(&version_key(&b, bt)), names);
        prop_assert_eq!(cell_key(&a).cmp(&cell_key(&b)), a.cmp(&b));
    }

    /// A cell's key, all of its versions, the key behind it, the next cell.
    #[test]
    fn cells_have_ends(a in cell(), b in cell(), ts in ts()) {
        let behind = key::behind_cell(cell_key(&a));
        prop_assert!(cell_key(&a) < version_key(&a, Timestamp::MAX));
        prop_assert!(version_key(&a, ts) < behind);
        if b != a {
            prop_assert_eq!(version_key(&b, ts) < behind, b < a);
            prop_assert_eq!(cell_key(&b) < behind, b < a);
        }
    }

    /// A row's bound splits the keys between rows, never inside of one.
    #[test]
    fn rows_have_bounds(a in cell(), b in cell(), at in ts()) {
        let bound = key::row_bound(a.table, &a.row);
        let before = (b.table, &b.row) < (a.table, &a.row);
        prop_assert_eq!(version_key(&b, at) < bound, before);
        prop_assert_eq!(cell_key(&b) < bound, before);
        // As the end of a range it is the same; an empty row ends the table.
        prop_assert_eq!(key::rows_end(a.table, &a.row), bound);
        let end = key::rows_end(a.table, b"");
        prop_assert_eq!(end.is_empty(), a.table.0 == u32::MAX);
        prop_assert_eq!(end.is_empty() || version_key(&b, at) < end, b.table <= a.table);
        let start = key::row_bound(a.table, b"");
        prop_assert_eq!(version_key(&b, at) < start, b.table < a.table);
    }

    #[test]
    fn components_keep_their_order(a in name(0), b in name(0), behind_a in name(0), behind_b in name(0)) {
        let push = |bytes: &Bytes, behind: &Bytes| {
            let mut key = Vec::new();
            key::push_component(&mut key, bytes);
            key.extend_from_slice(behind);
            key
        };
        let key = push(&a, &behind_a);
        prop_assert_eq!(
            key.cmp(&push(&b, &behind_b)),
            (&a, &behind_a).cmp(&(&b, &behind_b))
        );
        let (component, rest) = key::take_component(&key).unwrap();
        prop_assert_eq!((component, rest), (a.to_vec(), &behind_a[..]));
    }

    /// Any bytes are refused, or decode to what would have been written.
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..60), kind in "[PDLR]") {
        let mut likely = kind.into_bytes();
        likely.push(bytes.first().map_or(0, |byte| byte % 5));
        likely.extend_from_slice(&bytes);
        for bytes in [bytes, likely] {
            let record = Bytes::from(bytes.clone());
            if let Ok(lock) = Lock::decode(record.clone()) {
                prop_assert_eq!(Lock::decode(lock.encode().into()), Ok(lock));
            }
            let at = Timestamp::from_u64(bytes.len() as u64);
            if let Ok(write) = Write::decode(at, record) {
                prop_assert_eq!(Write::decode(at, write.encode(at).into()), Ok(write));
            }
            if let Ok(cell) = key::decode_cell(&bytes) {
                prop_assert_eq!(cell_key(&cell), bytes.clone());
            }
            if let Ok((component, rest)) = key::take_component(&bytes) {
                let mut key = Vec::new();
                key::push_component(&mut key, &component);
                key.extend_from_slice(rest);
                prop_assert_eq!(key, bytes.clone());
            }
            let _ = key::split_version(&bytes);
            let _ = key::behind_cell(bytes.clone());
            prop_assert_eq!(unescape(&escape(&bytes)), Ok(bytes));
        }
    }

    #[test]
    fn any_text_is_unescaped_or_refused(text in "[\\\\xnrt0-9a-fä ]{0,12}") {
        if let Ok(bytes) = unescape(&text) {
            prop_assert_eq!(unescape(&escape(&bytes)), Ok(bytes));
        }
    }
}
