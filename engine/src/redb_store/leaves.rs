//! How sorted puts fill redb's leaves.

use crate::{Key, Value, backend::PageSize};

use super::CHECKSUM_BYTES;

/// By so much the last one of a leaf's puts is longer until the others are there.
pub(super) const FILLER_BYTES: usize = 200;
/// A leaf of redb is a page of 4 KiB with a header; where each key and value ends is kept beside them.
pub(super) const PAGE: PageSize = PageSize {
    bytes: 4096 - 4 - FILLER_BYTES,
    put_bytes: 8 + CHECKSUM_BYTES,
};

/// A put or a delete of a key.
pub(super) type Op<'a> = (&'a Key, Option<&'a Value>);

/// Operations on ascending keys, as many as a leaf holds.
///
/// redb splits a full leaf in its middle, so that of keys that come in ascending order each left half stays as it is, half
/// empty. Where as many as a leaf holds come in descending order, what comes behind the first goes into the left half. That
/// half ends among them, and not before the first of them, where the last key is longer than it will be when the leaf is
/// split. So leaves are nine tenths full (`examples/space.rs`).
pub(super) fn leaves<'a>(ops: &'a [Op<'a>]) -> impl Iterator<Item = &'a [Op<'a>]> {
    let mut bytes = 0;
    ops.chunk_by(move |before, op| {
        let of = |(key, value): &Op<'_>| {
            PAGE.put_bytes + key.len() + value.map_or(0, |value| value.len())
        };
        if bytes == 0 {
            bytes = of(before);
        }
        bytes += of(op);
        // Only ascending keys are all different, so that their order doesn't matter.
        let goes_on = before.0 < op.0 && bytes <= PAGE.bytes;
        if !goes_on {
            bytes = 0;
        }
        goes_on
    })
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;
    use std::path::Path;

    use redb::{ReadableDatabase as _, ReadableTableMetadata as _};

    use super::super::{RedbStore, definition};
    use crate::backend::Store as _;
    use crate::{Batch, Buffered, Column};

    fn open(folder: &Path) -> RedbStore {
        RedbStore::open(folder, 1 << 20).expect("opened")
    }

    /// As an import writes them.
    #[test]
    fn sorted_keys_fill_the_leaves() {
        for longest in [30_usize, 100, 300] {
            let folder = tempfile::tempdir().expect("a folder");
            let store = open(folder.path());
            let buffered = Buffered::new(store, 64 << 20).expect("a buffer");
            for number in 0..12_000_u32 {
                let length =
                    longest / 2 + number.wrapping_mul(2_654_435_761) as usize % (longest / 2);
                let mut batch = Batch::default();
                batch.put(Column::Data, format!("name {number:05}"), vec![7; length]);
                buffered.apply(&[batch]).expect("applied");
            }
            let all = |_| ControlFlow::Continue(());
            buffered.checkpoint(&all).expect("in the store");
            let read = buffered.store.db.begin_read().expect("a snapshot");
            let table = read.open_table(definition(Column::Data)).expect("a table");
            let stats = table.stats().expect("its pages");
            let empty = stats.fragmented_bytes() as f64 / (stats.leaf_pages() * 4096) as f64;
            assert!(empty < 0.2, "{longest}: {empty:.2} of the leaves are empty");
        }
    }

    /// The last one of a key counts, in whatever order they come.
    #[test]
    fn operations_of_one_key_keep_their_order() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = open(folder.path());
        let mut batch = Batch::default();
        for (key, value) in [("a", "1"), ("b", "1"), ("b", "2"), ("c", "1"), ("a", "2")] {
            batch.put(Column::Data, key, value);
        }
        batch.delete(Column::Data, "c");
        store.apply(&[batch]).expect("applied");
        let get = |key: &str| store.get(Column::Data, key.as_bytes()).expect("read");
        assert_eq!(get("a").as_deref(), Some(&b"2"[..]));
        assert_eq!(get("b").as_deref(), Some(&b"2"[..]));
        assert_eq!(get("c"), None);
    }
}
