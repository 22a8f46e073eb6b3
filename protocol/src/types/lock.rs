//! Locks: what a transaction leaves on every cell it will change, until it has committed or rolled
//! back.

use bytes::Bytes;

use crate::mutants::{self, Mutant};

use super::varint::{Reader, put_bytes, put_u64};
use super::{Cell, Chain, DecodeError, TableId, Timestamp};

/// The kind of write of a lock's transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockKind {
    /// Writes a value.
    Put,
    /// Deletes the value.
    Delete,
    /// Changes nothing, but must be the only one to have touched the cell since its snapshot
    /// (`get_for_update`). Readers need not mind it.
    Lock,
}

/// One buffered change of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutation {
    /// The cell.
    pub cell: Cell,
    /// The kind of write.
    pub kind: LockKind,
    /// The value; empty unless `kind` is [`LockKind::Put`], where an empty value is a value.
    pub value: Bytes,
}

/// The lock of a cell; a cell has at most one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    /// The kind of write.
    pub kind: LockKind,
    /// The cell whose state decides for the whole transaction, with its table.
    pub primary: Cell,
    /// The transaction.
    pub start_ts: Timestamp,
    /// The owner counts as alive until `start_ts` + this many milliseconds, by the oracle's time.
    /// Only the primary's counts.
    pub ttl_ms: u64,
    /// The transaction may not commit below this; readers push it past their snapshot instead of
    /// waiting. Only the primary's counts.
    pub min_commit_ts: Timestamp,
    /// The owner tried to commit and has to take a later commit_ts: no more pushing, or a hot
    /// cell's readers could keep it from ever committing.
    pub committing: bool,
    /// Which of its transaction's flushes wrote it, counted from 1: a transaction that flushes may write a cell
    /// again, and only this distinguishes a later write from a late copy of an earlier one. 0: the transaction was
    /// prewritten as a whole.
    pub generation: u32,
    /// The value, when it is short. `None`: no value, or a long one in the data column.
    pub short_value: Option<Bytes>,
    /// The runs of observers that its transaction comes from; `None`: it is no observer's, as most are.
    pub chain: Option<Box<Chain>>,
}

impl Lock {
    /// Whether the owner's ttl is over at `now`, a timestamp of the oracle.
    pub fn expired(&self, now: Timestamp) -> bool {
        expired(self.start_ts, self.ttl_ms, now)
    }

    /// Whether its value lies in the data column.
    pub fn has_long_value(&self) -> bool {
        self.kind == LockKind::Put && self.short_value.is_none()
    }

    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let value = self.short_value.as_deref();
        let mut out = Vec::with_capacity(
            48 + self.primary.row.len() + self.primary.column.len() + value.map_or(0, <[u8]>::len),
        );
        out.push(match self.kind {
            LockKind::Put => b'P',
            LockKind::Delete => b'D',
            LockKind::Lock => b'L',
        });
        out.push(
            u8::from(self.committing)
                | u8::from(value.is_some()) << 1
                | u8::from(self.generation > 0) << 2
                | u8::from(self.chain.is_some()) << 3,
        );
        put_u64(&mut out, u64::from(self.primary.table.0));
        put_bytes(&mut out, &self.primary.row);
        put_bytes(&mut out, &self.primary.column);
        put_u64(&mut out, self.start_ts.as_u64());
        put_u64(&mut out, self.ttl_ms);
        put_u64(&mut out, self.min_commit_ts.as_u64());
        if self.generation > 0 {
            put_u64(&mut out, u64::from(self.generation));
        }
        if let Some(value) = value {
            put_bytes(&mut out, value);
        }
        if let Some(chain) = &self.chain {
            chain.put(&mut out);
        }
        out
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// The bytes are not of that form.
    pub fn decode(record: Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(record, "lock");
        let kind = match reader.byte()? {
            b'P' => LockKind::Put,
            b'D' => LockKind::Delete,
            b'L' => LockKind::Lock,
            _ => return Err(reader.error("has an unknown kind")),
        };
        let flags = reader.byte()?;
        if flags > 15 {
            return Err(reader.error("has unknown flags"));
        }
        let table =
            u32::try_from(reader.u64()?).map_err(|_| reader.error("has a table out of range"))?;
        let lock = Self {
            kind,
            primary: Cell::new(TableId(table), reader.bytes()?, reader.bytes()?),
            start_ts: Timestamp::from_u64(reader.u64()?),
            ttl_ms: reader.u64()?,
            min_commit_ts: Timestamp::from_u64(reader.u64()?),
            committing: flags & 1 != 0,
            generation: match flags & 4 {
                0 => 0,
                _ => u32::try_from(reader.u64()?)
                    .ok()
                    .filter(|generation| *generation > 0)
                    .ok_or_else(|| reader.error("has a generation out of range"))?,
            },
            short_value: if flags & 2 != 0 {
                Some(reader.bytes()?)
            } else {
                None
            },
            chain: match flags & 8 {
                0 => None,
                _ => Some(Box::new(Chain::read(&mut reader)?)),
            },
        };
        reader.end()?;
        Ok(lock)
    }
}

/// Whether a ttl of `ttl_ms` from `start_ts` on is over at `now`. Both are the oracle's, so no
/// machine's clock has a say.
pub fn expired(start_ts: Timestamp, ttl_ms: u64, now: Timestamp) -> bool {
    now.physical_ms() > start_ts.physical_ms().saturating_add(ttl_ms)
        && !mutants::on(Mutant::LocksNeverExpire)
}
