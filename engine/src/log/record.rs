//! One record of the log: a whole group of batches.
//!
//! ```text
//! magic u32 | len u32 | crc32c of payload u32 | crc32c of segment u64, offset u64, all before u32 | payload
//! payload: ops, each  column u8 (high bit: delete) | key len u32 [| value len u32] | key [| value]
//! ```
//! Numbers are little endian. The header has a checksum of its own: otherwise a damaged length reads
//! as a record torn at the end of the file; place and segment go into it, so that bytes of a log
//! inside of a value can't be taken for a record.

use bytes::Bytes;

use crate::{Batch, Column, batch::Op};

/// Bytes before the payload.
pub(super) const HEADER_BYTES: usize = 16;

/// With it, finding a header by chance takes 64 bits of luck.
pub(super) const MAGIC: [u8; 4] = *b"PLG1";

const DELETE: u8 = 0x80;

/// The place of a record, which is only valid there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) segment: u64,
    pub(super) offset: u64,
}

/// Writes the record of `group` into `into`, which is emptied first. The group is within
/// [`crate::MAX_GROUP_BYTES`].
pub(super) fn encode(group: &[Batch], place: Place, into: &mut Vec<u8>) {
    into.clear();
    into.extend_from_slice(&[0; HEADER_BYTES]);
    for (column, key, value) in group.iter().flat_map(Batch::ops) {
        match value {
            Some(value) => {
                into.push(column.prefix());
                into.extend_from_slice(&(key.len() as u32).to_le_bytes());
                into.extend_from_slice(&(value.len() as u32).to_le_bytes());
                into.extend_from_slice(key);
                into.extend_from_slice(value);
            }
            None => {
                into.push(column.prefix() | DELETE);
                into.extend_from_slice(&(key.len() as u32).to_le_bytes());
                into.extend_from_slice(key);
            }
        }
    }
    let (header, payload) = into.split_at_mut(HEADER_BYTES);
    header[..4].copy_from_slice(&MAGIC);
    header[4..8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    header[8..12].copy_from_slice(&crc32c::crc32c(payload).to_le_bytes());
    let crc = header_crc(&header[..12], place);
    header[12..].copy_from_slice(&crc.to_le_bytes());
}

fn header_crc(fields: &[u8], place: Place) -> u32 {
    let crc = crc32c::crc32c(&place.segment.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &place.offset.to_le_bytes());
    crc32c::crc32c_append(crc, fields)
}

/// The outcome of reading a record at a place.
pub(super) enum ReadRecord {
    /// A record: its payload, and the bytes of the whole.
    Record { payload: Bytes, bytes: usize },
    /// The header is sound, but the file ends before the record does.
    Short,
    /// The header is not sound (or not all there).
    BadHeader,
    /// The header is sound, the payload is not; the bytes of the whole.
    BadPayload { bytes: usize },
}

/// Reads the record at the beginning of `rest`, which lies at `place`.
pub(super) fn read(rest: &Bytes, place: Place) -> ReadRecord {
    let Some((header, _)) = rest.split_first_chunk::<HEADER_BYTES>() else {
        return ReadRecord::BadHeader;
    };
    let number = |at: usize| {
        u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    if header[..4] != MAGIC || header_crc(&header[..12], place) != number(12) {
        return ReadRecord::BadHeader;
    }
    let bytes = HEADER_BYTES + number(4) as usize;
    if rest.len() < bytes {
        return ReadRecord::Short;
    }
    let payload = &rest[HEADER_BYTES..bytes];
    if crc32c::crc32c(payload) != number(8) {
        return ReadRecord::BadPayload { bytes };
    }
    // A copy: what stays in memory of one record doesn't keep its whole segment there.
    let payload = Bytes::copy_from_slice(payload);
    ReadRecord::Record { payload, bytes }
}

/// The group of a payload whose checksum was right, as one batch; the reason if it is none all the
/// same.
pub(super) fn decode(mut payload: Bytes) -> Result<Batch, String> {
    let mut batch = Batch::default();
    while !payload.is_empty() {
        let tag = payload.split_to(1)[0];
        let column = Column::from_prefix(tag & !DELETE)
            .ok_or_else(|| format!("no column has the byte {tag:#04x}"))?;
        let key_len = take_len(&mut payload)?;
        let value_len = (tag & DELETE == 0)
            .then(|| take_len(&mut payload))
            .transpose()?;
        batch.push(Op {
            column,
            key: take(&mut payload, key_len)?,
            value: value_len.map(|len| take(&mut payload, len)).transpose()?,
        });
    }
    Ok(batch)
}

fn take_len(payload: &mut Bytes) -> Result<usize, String> {
    let bytes = take(payload, 4)?;
    Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize)
}

fn take(payload: &mut Bytes, len: usize) -> Result<Bytes, String> {
    if len > payload.len() {
        return Err(format!(
            "a field of {len} bytes, of which {} are there",
            payload.len()
        ));
    }
    Ok(payload.split_to(len))
}
