//! Notifications of changes on observed columns, and the hidden cells by which observers acknowledge them.

use bytes::Bytes;

use super::limits::COLUMN_BYTES_MAX;
use super::varint::{Reader, put_u64};
use super::{Chain, DecodeError, Timestamp};

/// Changes of a cell that no observer has acknowledged; stored under its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// The first of them was not before this, and some of them by then: a run that begins later sees something new.
    pub first_at: Timestamp,
    /// When the cell changed last.
    pub changed_at: Timestamp,
    /// The runs of observers that the change comes from; of several changes, the longest.
    pub chain: Chain,
}

impl Notification {
    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(10);
        put_u64(&mut out, self.changed_at.as_u64());
        let before = self
            .changed_at
            .as_u64()
            .saturating_sub(self.first_at.as_u64());
        put_u64(&mut out, before);
        if self.chain != Chain::default() {
            self.chain.put(&mut out);
        }
        out
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// The bytes are not of that form.
    pub fn decode(record: Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(record, "notification");
        let (changed_at, before) = (reader.u64()?, reader.u64()?);
        let chain = if reader.is_empty() {
            Chain::default()
        } else {
            Chain::read(&mut reader)?
        };
        reader.end()?;
        Ok(Self {
            first_at: Timestamp::from_u64(changed_at.saturating_sub(before)),
            changed_at: Timestamp::from_u64(changed_at),
            chain,
        })
    }
}

/// The prefix of the columns of acknowledgements. No other cell may be written there.
const ACK_PREFIX: &[u8] = b"\0ack\0";

/// Longest name of an observed column, in bytes.
pub const OBSERVED_COLUMN_BYTES_MAX: usize = COLUMN_BYTES_MAX - ACK_PREFIX.len();

/// The column in which changes of this one are acknowledged, in the same row.
pub fn ack_column(column: &[u8]) -> Bytes {
    Bytes::from([ACK_PREFIX, column].concat())
}

/// The observed column that a column of acknowledgements is of; `None`: it is another column.
pub fn acknowledged_column(column: &[u8]) -> Option<&[u8]> {
    column.strip_prefix(ACK_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{TableId, TraceParent};

    #[test]
    fn notifications_read_back() {
        let chain = Chain::default().then(TableId(7), &Bytes::from("c"));
        for (number, chain) in [
            (0, Chain::default()),
            (7, chain.clone()),
            (
                8,
                Chain {
                    trace: Some(TraceParent {
                        trace_id: u128::MAX - 7,
                        span_id: 9,
                    }),
                    ..Chain::default()
                },
            ),
            (1 << 40, chain.then(TableId(8), &Bytes::new())),
            (u64::MAX, Chain::default()),
        ] {
            let notification = Notification {
                first_at: Timestamp::from_u64(number / 3),
                changed_at: Timestamp::from_u64(number),
                chain,
            };
            let stored = Bytes::from(notification.encode());
            assert_eq!(Notification::decode(stored.clone()), Ok(notification));
            assert!(Notification::decode(stored.slice(..stored.len() - 1)).is_err());
            let longer = [&stored[..], b"x"].concat();
            assert!(Notification::decode(longer.into()).is_err());
        }
    }

    #[test]
    fn a_column_of_acknowledgements_names_the_observed_one() {
        assert_eq!(
            acknowledged_column(&ack_column(b"text")),
            Some(&b"text"[..])
        );
        assert_eq!(acknowledged_column(&ack_column(b"")), Some(&b""[..]));
        assert_eq!(acknowledged_column(b"text"), None);
    }
}
