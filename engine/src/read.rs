//! Reading: the same for an engine as it is now and for a snapshot of it.

use std::ops::Bound;

use crate::{Column, Error};

/// A key: 1 to [`crate::MAX_KEY_BYTES`] bytes, ordered as bytes are.
pub type Key = bytes::Bytes;

/// A value: any bytes, also none.
pub type Value = bytes::Bytes;

/// The pairs of a scan. After an error there is nothing more.
pub type Scan<'a> = Box<dyn Iterator<Item = Result<(Key, Value), Error>> + 'a>;

/// Which way a scan goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the smallest key up.
    Forward,
    /// From the largest key down.
    Reverse,
}

/// Reads of an engine as it is now, or of a snapshot.
pub trait Read {
    /// The value of `key`.
    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Value>, Error>;

    /// The pairs with `start <= key < end`, in the order of `direction`. An empty `end` means to the
    /// end of the column; no pairs if `end` is not above `start`.
    ///
    /// A scan of a snapshot is exactly the snapshot. A scan of a live engine goes in chunks: each
    /// chunk has whole batches, a later chunk may know of later batches.
    fn scan<'a>(
        &'a self,
        column: Column,
        start: &[u8],
        end: &[u8],
        direction: Direction,
    ) -> Result<Scan<'a>, Error>;

    /// The first pair with `start <= key < end` (an empty `end` as in [`Read::scan`]): what a
    /// versioned read does all the time.
    fn first(
        &self,
        column: Column,
        start: &[u8],
        end: &[u8],
    ) -> Result<Option<(Key, Value)>, Error> {
        self.scan(column, start, end, Direction::Forward)?
            .next()
            .transpose()
    }
}

/// An engine as it was at one moment, between two batches. Hold it only as long as needed: it costs
/// memory.
pub trait Snapshot: Read + Send {}

/// True if no key can lie in `[start, end)`.
pub(crate) fn is_empty_range(start: &[u8], end: &[u8]) -> bool {
    !end.is_empty() && start >= end
}

/// `[start, end)` as the standard library's maps take it.
pub(crate) fn bounds<'a>(start: &'a [u8], end: &'a [u8]) -> (Bound<&'a [u8]>, Bound<&'a [u8]>) {
    let end = if end.is_empty() {
        Bound::Unbounded
    } else {
        Bound::Excluded(end)
    };
    (Bound::Included(start), end)
}

/// The smallest key above `key`.
pub(crate) fn successor(key: &[u8]) -> Key {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next.into()
}
