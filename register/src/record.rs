//! How a value is stored: with its write's name, and a checksum of both.

use crate::WriteId;

const MARK: &[u8; 4] = b"PRG1";
const ID: usize = MARK.len();
const CHECKSUM: usize = ID + 16;
const VALUE: usize = CHECKSUM + 4;

/// A value as it is stored: the mark `PRG1`, the write's name (16 bytes), the CRC-32C of the name and the value (4 bytes, little
/// endian), the value. Stores that people can edit are no better than a disk: what they hold is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRecord {
    /// The swap that stored it.
    pub write: WriteId,
    /// The value.
    pub value: Vec<u8>,
}

impl StoredRecord {
    /// What is stored beside the value, in bytes.
    pub const HEADER_BYTES: usize = VALUE;

    /// The bytes to store; the value may come in parts.
    pub fn encode(write: WriteId, value: &[&[u8]]) -> Vec<u8> {
        let len = value.iter().map(|part| part.len()).sum::<usize>();
        let mut bytes = Vec::with_capacity(VALUE + len);
        bytes.extend_from_slice(MARK);
        bytes.extend_from_slice(&write.0);
        bytes.extend_from_slice(&[0; 4]);
        for part in value {
            bytes.extend_from_slice(part);
        }
        let checksum = checksum(&write, &bytes[VALUE..]);
        bytes[CHECKSUM..VALUE].copy_from_slice(&checksum);
        bytes
    }

    /// Whether these first bytes of what is stored are those of a value that begins with `start` and was stored by this write.
    /// Each value has a write of its own.
    pub(crate) fn begins(bytes: &[u8], write: WriteId, start: &[u8]) -> bool {
        let mark = bytes.strip_prefix(MARK);
        let behind = mark.and_then(|bytes| bytes.strip_prefix(&write.0));
        behind.is_some() && bytes.get(VALUE..VALUE + start.len()) == Some(start)
    }

    /// What was stored.
    ///
    /// # Errors
    /// Why these bytes were not stored by a register.
    pub fn decode(mut bytes: Vec<u8>) -> Result<Self, String> {
        if bytes.len() < VALUE {
            return Err(format!("it has only {} bytes", bytes.len()));
        }
        let value = bytes.split_off(VALUE);
        let (mark, rest) = bytes.split_at(ID);
        if mark != MARK {
            return Err("it does not begin as a register does".to_owned());
        }
        let (id, sum) = rest.split_at(CHECKSUM - ID);
        let mut write = WriteId([0; 16]);
        write.0.copy_from_slice(id);
        if sum != checksum(&write, &value) {
            return Err("its checksum does not match".to_owned());
        }
        Ok(Self { write, value })
    }
}

fn checksum(write: &WriteId, value: &[u8]) -> [u8; 4] {
    crc32c::crc32c_append(crc32c::crc32c(&write.0), value).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_stored_is_read_and_every_change_is_noticed() {
        let write = WriteId([7; 16]);
        for value in [&b""[..], b"value"] {
            let whole = StoredRecord::encode(write, &[value]);
            let decoded = StoredRecord::decode(whole.clone()).unwrap();
            assert_eq!((decoded.write, &*decoded.value), (write, value));
            for at in 0..whole.len() {
                let mut flipped = whole.clone();
                flipped[at] ^= 0x10;
                StoredRecord::decode(flipped).unwrap_err();
                StoredRecord::decode(whole[..at].to_vec()).unwrap_err();
            }
        }
    }

    #[test]
    fn parts_of_a_value_are_one_value() {
        let write = WriteId([7; 16]);
        let whole = StoredRecord::encode(write, &[b"one", b"", b"two"]);
        assert_eq!(whole, StoredRecord::encode(write, &[b"onetwo"]));
    }
}
