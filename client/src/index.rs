//! Rows of secondary indexes.

use bytes::Bytes;
use percolator_protocol::types::key;

/// A row of a secondary index: the indexed value, then the key of the row it points at, so that rows
/// are ordered by value and those of one value lie together.
pub fn index_row(value: &[u8], row: &[u8]) -> Bytes {
    let mut index = Vec::with_capacity(value.len() + row.len() + 2);
    key::push_component(&mut index, value);
    index.extend_from_slice(row);
    index.into()
}

/// The value and the key in a row of a secondary index; `None` where it isn't one.
pub fn split_index_row(index: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    key::take_component(index).ok()
}
