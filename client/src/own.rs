//! What a transaction has written, as its own reads see it.

use bytes::Bytes;
use percolator_protocol::types::limits::VALUE_BYTES_MAX;
use percolator_protocol::types::{Cell, LockKind, TableId};

use crate::Error;

pub(crate) struct Write {
    pub(crate) kind: LockKind,
    pub(crate) value: Bytes,
}

/// A cell that the transaction has written, as its reads see it.
#[derive(Clone, Debug)]
pub(crate) enum OwnWrite {
    Value(Bytes),
    Deleted,
}

impl OwnWrite {
    pub(crate) fn value(self) -> Option<Bytes> {
        match self {
            Self::Value(value) => Some(value),
            Self::Deleted => None,
        }
    }
}

impl Write {
    /// What the transaction itself reads; `None`: what was there before.
    pub(crate) fn seen(&self) -> Option<OwnWrite> {
        match self.kind {
            LockKind::Put => Some(OwnWrite::Value(self.value.clone())),
            LockKind::Delete => Some(OwnWrite::Deleted),
            LockKind::Lock => None,
        }
    }
}

/// The cell, of a table that is not known yet.
pub(crate) fn checked_cell(row: &[u8], column: &[u8]) -> Result<Cell, Error> {
    let cell = Cell::new(
        TableId(0),
        Bytes::copy_from_slice(row),
        Bytes::copy_from_slice(column),
    );
    match cell.invalid() {
        Some(why) => Err(Error::Invalid(why)),
        None => Ok(cell),
    }
}

pub(crate) fn check_value(value: &[u8]) -> Result<(), Error> {
    if value.len() > VALUE_BYTES_MAX {
        return Err(Error::Invalid(format!(
            "the value is {} bytes long, the limit is {VALUE_BYTES_MAX}",
            value.len()
        )));
    }
    Ok(())
}
