//! Entries of the index of garbage, as they are stored. The garbage of one request goes into a few entries, not one for each
//! cell: an engine takes as long for each key as for hundreds of bytes of a value.
//!
//! The key of an entry is the time from which its versions are hidden, 8 bytes, big-endian, and the key of its first cell.
//! Fates, which wait for resolved and not for the safe point (`protocol::safe_point`), come behind all others: the highest bit
//! of their time is set, which no timestamp has for 250 years. The value is a row of items, sorted by their cells' keys. An
//! item has the number of bytes that its cell's key shares with that of the item before (the first one with the entry's), the
//! number of further bytes, these bytes, and the kind of garbage: 0 for "read the cell"; 1 or 2 with the 8 bytes of the hidden
//! version's time and one byte of its value's length; 2 with 8 more, the start_ts of a value that has a key of its own.

use bytes::{Buf, BufMut, Bytes};
use percolator_protocol::actions::Collected;
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::types::{Effect, Timestamp, Write, WriteKind};
use prost::encoding::{decode_varint, encode_varint};

use crate::Error;

/// The most items of one entry.
const ITEMS_MAX: usize = 64;
/// The bit in the key of an entry of fates.
const FATE: u64 = 1 << 63;

/// An entry of the index: the garbage of some cells from one time on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Whether it names fates, which may be removed when resolved has passed its time.
    pub of_fates: bool,
    /// The time of the records that hide the versions, or that are garbage themselves.
    pub ts: Timestamp,
    /// The cells, sorted by their keys.
    pub items: Vec<Item>,
}

/// A cell with garbage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The cell's key.
    pub cell_key: Bytes,
    /// The garbage.
    pub hidden: Hidden,
}

/// The version that a put hides, as its entry names it: it is removed without reading the cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hidden {
    /// No version is named, or there is more: the cell has to be read.
    ReadCell,
    /// This version.
    Version {
        /// The version's time.
        commit_ts: Timestamp,
        /// The start_ts of its transaction, if its value has a key of its own.
        long: Option<Timestamp>,
        /// Otherwise the length of the value; 255 stands for more, too.
        bytes: u8,
    },
}

impl Hidden {
    pub(crate) fn of(commit_ts: Timestamp, write: &Write) -> Self {
        let long = write.kind == WriteKind::Put && write.short_value.is_none();
        let bytes = write.short_value.as_ref().map_or(0, Bytes::len);
        Self::Version {
            commit_ts,
            long: long.then_some(write.start_ts),
            bytes: u8::try_from(bytes).unwrap_or(u8::MAX),
        }
    }

    /// The fate of a transaction that committed then, which has no value.
    pub(crate) fn fate(commit_ts: Timestamp) -> Self {
        Self::Version {
            commit_ts,
            long: None,
            bytes: 0,
        }
    }

    /// What is removed once the hiding version is at or below the safe point: no snapshot at or above that sees the hidden one.
    pub(crate) fn collected(self) -> Option<Collected> {
        let Self::Version {
            commit_ts,
            long,
            bytes,
        } = self
        else {
            return None;
        };
        let mut effects = vec![Effect::DeleteWrite(commit_ts)];
        effects.extend(long.map(Effect::DeleteData));
        Some(Collected {
            effects,
            records: 1,
            bytes: bytes.into(),
            done: true,
            ..Collected::default()
        })
    }

    fn encode(self, out: &mut Vec<u8>) {
        match self {
            Self::ReadCell => out.put_u8(0),
            Self::Version {
                commit_ts,
                long,
                bytes,
            } => {
                out.put_u8(if long.is_some() { 2 } else { 1 });
                out.put_u64(commit_ts.as_u64());
                out.put_u8(bytes);
                if let Some(start_ts) = long {
                    out.put_u64(start_ts.as_u64());
                }
            }
        }
    }

    fn decode(from: &mut Bytes) -> Option<Self> {
        let kind = from.try_get_u8().ok()?;
        if kind == 0 {
            return Some(Self::ReadCell);
        }
        let commit_ts = Timestamp::from_u64(from.try_get_u64().ok()?);
        let bytes = from.try_get_u8().ok()?;
        let long = match kind {
            1 => None,
            2 => Some(Timestamp::from_u64(from.try_get_u64().ok()?)),
            _ => return None,
        };
        Some(Self::Version {
            commit_ts,
            long,
            bytes,
        })
    }
}

impl Entry {
    /// The entries for items of any times.
    pub(crate) fn of(of_fates: bool, mut items: Vec<(Timestamp, Item)>) -> Vec<Self> {
        items.sort_unstable_by(|one, other| {
            (one.0, &one.1.cell_key).cmp(&(other.0, &other.1.cell_key))
        });
        let mut entries: Vec<Self> = Vec::new();
        for (ts, item) in items {
            match entries.last_mut() {
                Some(entry) if entry.ts == ts && entry.items.len() < ITEMS_MAX => {
                    entry.items.push(item);
                }
                _ => entries.push(Self {
                    of_fates,
                    ts,
                    items: vec![item],
                }),
            }
        }
        entries
    }

    /// The garbage that the entry names for a cell.
    pub(crate) fn names(&self, cell_key: &[u8]) -> Option<Hidden> {
        let at = self.items.partition_point(|item| item.cell_key < cell_key);
        let item = self.items.get(at)?;
        (item.cell_key == cell_key).then_some(item.hidden)
    }

    /// Adds the items of another entry of the same time and kind. If either of them has to read a cell that both name, the
    /// result has to. Returns the cells that both name.
    pub(crate) fn join(&mut self, other: Self) -> Vec<Bytes> {
        let (both, new): (Vec<Item>, Vec<Item>) = other
            .items
            .into_iter()
            .partition(|item| self.names(&item.cell_key).is_some());
        for named in both.iter().filter(|item| item.hidden == Hidden::ReadCell) {
            let mut items = self.items.iter_mut();
            if let Some(item) = items.find(|item| item.cell_key == named.cell_key) {
                item.hidden = Hidden::ReadCell;
            }
        }
        self.items.extend(new);
        self.items
            .sort_unstable_by(|one, other| one.cell_key.cmp(&other.cell_key));
        both.into_iter().map(|item| item.cell_key).collect()
    }

    /// The entry's key; without items, the first key of its time.
    pub(crate) fn key(&self) -> Vec<u8> {
        let first = self.items.first().map_or(&[][..], |item| &item.cell_key);
        [&Self::first_key(self.of_fates, self.ts), first].concat()
    }

    /// The first key of entries of this time.
    pub fn first_key(of_fates: bool, ts: Timestamp) -> [u8; 8] {
        let fate = if of_fates { FATE } else { 0 };
        (ts.as_u64() & !FATE | fate).to_be_bytes()
    }

    /// Whether an entry with this key names fates, and its time.
    pub fn time_of(key: &[u8]) -> Option<(bool, Timestamp)> {
        let ts = u64::from_be_bytes(*key.first_chunk()?);
        Some((ts & FATE != 0, Timestamp::from_u64(ts & !FATE)))
    }

    pub(crate) fn value(&self) -> Vec<u8> {
        let mut value = Vec::new();
        let mut before = self.items.first().map(|item| &item.cell_key);
        for item in &self.items {
            let shared = before.map_or(0, |before| {
                let pairs = before.iter().zip(item.cell_key.iter());
                pairs.take_while(|(one, other)| one == other).count()
            });
            encode_varint(shared as u64, &mut value);
            let mut more = (item.cell_key.len() - shared) as u64;
            if mutants::on(Mutant::LongKeysCut) {
                more &= 0xff;
            }
            encode_varint(more, &mut value);
            value.extend_from_slice(&item.cell_key[shared..]);
            item.hidden.encode(&mut value);
            before = Some(&item.cell_key);
        }
        value
    }

    /// Decodes a stored entry.
    ///
    /// # Errors
    /// The bytes are no entry.
    pub fn decode(key: &[u8], value: Bytes) -> Result<Self, Error> {
        Self::read(key, value).ok_or_else(|| Error::GarbageEntry { key: key.to_vec() })
    }

    fn read(key: &[u8], mut value: Bytes) -> Option<Self> {
        let ((of_fates, ts), first) = (Self::time_of(key)?, key.get(8..)?);
        let mut items: Vec<Item> = Vec::new();
        while value.has_remaining() {
            let before = items.last().map_or(first, |item| &item.cell_key);
            let mut number = || usize::try_from(decode_varint(&mut value).ok()?).ok();
            let (shared, more) = (number()?, number()?);
            if more > value.len() {
                return None;
            }
            let cell_key = [before.get(..shared)?, &value.split_to(more)].concat();
            let hidden = Hidden::decode(&mut value)?;
            items.push(Item {
                cell_key: cell_key.into(),
                hidden,
            });
        }
        let begins_with_first = items.first()?.cell_key == first;
        begins_with_first.then_some(Self {
            of_fates,
            ts,
            items,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(cell_key: &str, hidden: Hidden) -> Item {
        Item {
            cell_key: cell_key.to_owned().into(),
            hidden,
        }
    }

    #[test]
    fn entries_come_back_as_they_were() {
        let ts = Timestamp::from_u64;
        let version = |long| Hidden::Version {
            commit_ts: ts(7),
            long,
            bytes: 200,
        };
        let items = vec![
            (ts(9), item("table row-2", version(None))),
            (ts(9), item("table row-1", version(Some(ts(6))))),
            (ts(8), item("table row-1", Hidden::ReadCell)),
            (ts(9), item("table", Hidden::ReadCell)),
        ];
        let entries = Entry::of(false, items.clone());
        let of = |entry: &Entry| {
            let keys = entry.items.iter().map(|item| item.cell_key.clone());
            (entry.ts.as_u64(), keys.collect::<Vec<_>>())
        };
        let all: Vec<_> = entries.iter().map(of).collect();
        assert_eq!(all[0], (8, vec!["table row-1".into()]));
        let sorted = ["table", "table row-1", "table row-2"].map(Bytes::from);
        assert_eq!(all[1], (9, sorted.to_vec()));
        for entry in entries.into_iter().chain(Entry::of(true, items)) {
            let stored = (entry.key(), Bytes::from(entry.value()));
            assert_eq!(Entry::decode(&stored.0, stored.1.clone()).ok(), Some(entry));
            for cut in 0..stored.1.len() {
                let read = Entry::decode(&stored.0, stored.1.slice(..cut));
                assert_ne!(
                    read.ok().map(|entry| entry.value()),
                    Some(stored.1.to_vec())
                );
            }
        }
    }

    #[test]
    fn an_entry_that_takes_anothers_items_says_what_says_more() {
        let ts = Timestamp::from_u64(9);
        let version = Hidden::fate(ts);
        let entry = |items: &[(&str, Hidden)]| Entry {
            of_fates: true,
            ts,
            items: items
                .iter()
                .map(|(key, hidden)| item(key, *hidden))
                .collect(),
        };
        let mut one = entry(&[("b", Hidden::ReadCell), ("c", version), ("e", version)]);
        let other = entry(&[("b", version), ("c", Hidden::ReadCell), ("d", version)]);
        assert_eq!(one.join(other), ["b", "c"]);
        let joined = [
            ("b", Hidden::ReadCell),
            ("c", Hidden::ReadCell),
            ("d", version),
            ("e", version),
        ];
        assert_eq!(one, entry(&joined));
    }

    #[test]
    fn many_cells_make_several_entries() {
        let cell = |number| {
            (
                Timestamp::from_u64(5),
                item(&format!("{number:05}"), Hidden::ReadCell),
            )
        };
        let entries = Entry::of(false, (0..1000).map(cell).collect());
        assert_eq!(entries.len(), 1000_usize.div_ceil(ITEMS_MAX));
        let bytes: usize = entries.iter().map(|entry| entry.value().len()).sum();
        assert!(
            bytes < 5 * 1000,
            "{bytes}: keys share what they have in common"
        );
        let items: usize = entries.iter().map(|entry| entry.items.len()).sum();
        assert_eq!(items, 1000);
    }

    #[test]
    fn what_is_no_entry_is_refused() {
        for (key, value) in [
            (&b"short"[..], &b""[..]),
            (b"12345678", b""),
            (b"12345678cell", b"\x05\x00\x00"),
            (b"12345678cell", b"\x04\x00\x03"),
            (
                b"12345678cell",
                b"\x04\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00",
            ),
            (b"12345678cell", b"\x03\x01z\x00"),
        ] {
            assert!(Entry::decode(key, Bytes::from_static(value)).is_err());
        }
    }
}
