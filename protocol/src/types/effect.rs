//! The effects of a rule on a cell.

use bytes::Bytes;

use super::{Lock, Timestamp, Write};

/// One change of one cell's stored state. The effects of one decision are written in one atomic
/// batch, or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Set the cell's lock.
    PutLock(Lock),
    /// Remove the cell's lock.
    DeleteLock,
    /// Set the write record at a timestamp.
    PutWrite(Timestamp, Write),
    /// Remove the write record at a timestamp.
    DeleteWrite(Timestamp),
    /// Set the long value at a start_ts.
    PutData(Timestamp, Bytes),
    /// Remove the long value at a start_ts.
    DeleteData(Timestamp),
}
