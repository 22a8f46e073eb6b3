//! The values the rules speak of, and how they are written down.

mod cell;
mod chain;
mod effect;
pub mod key;
pub mod limits;
mod lock;
mod notification;
mod tablet;
mod timestamp;
mod varint;
mod write;

pub use cell::{Cell, TableId, escape, unescape};
pub use chain::{CHAIN_COLUMNS_MAX, Chain, TraceParent};
pub use effect::Effect;
pub use lock::{Lock, LockKind, Mutation, expired};
pub use notification::{Notification, OBSERVED_COLUMN_BYTES_MAX, ack_column, acknowledged_column};
pub use tablet::{Rows, Tablet, TabletState};
pub use timestamp::Timestamp;
pub use write::{Write, WriteKind};

/// Stored bytes that are not what the codec writes: the engine's content is damaged, or is of
/// another version of the format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stored {what} can't be read: {detail}")]
pub struct DecodeError {
    /// The record that was read: "lock", "write record", "key".
    pub what: &'static str,
    /// The reason.
    pub detail: &'static str,
}
