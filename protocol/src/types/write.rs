//! Write records: what became of a transaction on a cell.

use bytes::Bytes;

use super::varint::{Reader, put_bytes, put_u64};
use super::{DecodeError, Timestamp};

/// The kind of a write record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteKind {
    /// A value was committed.
    Put,
    /// A deletion was committed: a marker, nothing is removed in place.
    Delete,
    /// A `get_for_update` was committed: no change, but older transactions conflict with it
    /// (docs/design/transactions.md).
    Lock,
    /// The transaction was rolled back; a late prewrite of it finds this. Stands at start_ts.
    Rollback,
}

/// A record in the write column, stored at its commit_ts (a rollback's at its start_ts).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Its kind.
    pub kind: WriteKind,
    /// The transaction, and the timestamp of its value in the data column.
    pub start_ts: Timestamp,
    /// The value, when it is short. `None`: no value, or a long one in the data column.
    pub short_value: Option<Bytes>,
    /// Another transaction, whose start_ts is this record's timestamp, was rolled back on this cell.
    /// Two records can't stand at one timestamp, and losing either is wrong; an oracle that never
    /// hands out a timestamp twice makes this rare, not impossible: commit_ts come from clients.
    pub overlapped_rollback: bool,
}

impl Write {
    /// The record of a rollback.
    pub fn rollback(start_ts: Timestamp) -> Self {
        Self {
            kind: WriteKind::Rollback,
            start_ts,
            short_value: None,
            overlapped_rollback: false,
        }
    }

    /// The stored form, of a record at `at`. It has start_ts as the distance to that: there are as many records as
    /// cells, and a distance takes four bytes where a timestamp takes nine.
    pub fn encode(&self, at: Timestamp) -> Vec<u8> {
        let value = self.short_value.as_deref();
        let mut out = Vec::with_capacity(13 + value.map_or(0, <[u8]>::len));
        let kind = match self.kind {
            WriteKind::Put => 0,
            WriteKind::Delete => 1,
            WriteKind::Lock => 2,
            WriteKind::Rollback => 3,
        };
        let flags = u8::from(self.overlapped_rollback) | u8::from(value.is_some()) << 1;
        out.push(flags << 2 | kind);
        put_u64(&mut out, at.as_u64().wrapping_sub(self.start_ts.as_u64()));
        if let Some(value) = value {
            put_bytes(&mut out, value);
        }
        out
    }

    /// Reads the stored form of a record at `at`.
    ///
    /// # Errors
    /// The bytes are not of that form.
    pub fn decode(at: Timestamp, record: Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(record, "write record");
        let first = reader.byte()?;
        let kind = match first & 3 {
            0 => WriteKind::Put,
            1 => WriteKind::Delete,
            2 => WriteKind::Lock,
            _ => WriteKind::Rollback,
        };
        let flags = first >> 2;
        if flags > 3 {
            return Err(reader.error("has unknown flags"));
        }
        let write = Self {
            kind,
            start_ts: Timestamp::from_u64(at.as_u64().wrapping_sub(reader.u64()?)),
            short_value: if flags & 2 != 0 {
                Some(reader.bytes()?)
            } else {
                None
            },
            overlapped_rollback: flags & 1 != 0,
        };
        reader.end()?;
        Ok(write)
    }
}
