//! Unsigned LEB128 numbers and length-prefixed bytes, as stored in lock and write records.

use bytes::{Buf, Bytes};

use super::DecodeError;

pub(super) fn put_u64(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value as u8) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u64(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads fields off the front of a stored record.
pub(super) struct Reader {
    rest: Bytes,
    what: &'static str,
}

impl Reader {
    pub(super) fn new(record: Bytes, what: &'static str) -> Self {
        Self { rest: record, what }
    }

    pub(super) fn error(&self, detail: &'static str) -> DecodeError {
        DecodeError {
            what: self.what,
            detail,
        }
    }

    pub(super) fn byte(&mut self) -> Result<u8, DecodeError> {
        if self.rest.is_empty() {
            return Err(self.error("ends too early"));
        }
        Ok(self.rest.get_u8())
    }

    pub(super) fn u64(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.error("a number is too long"))
    }

    pub(super) fn bytes(&mut self) -> Result<Bytes, DecodeError> {
        let length = usize::try_from(self.u64()?).unwrap_or(usize::MAX);
        if length > self.rest.len() {
            return Err(self.error("ends too early"));
        }
        Ok(self.rest.split_to(length))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn end(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(self.error("is too long"))
        }
    }
}
