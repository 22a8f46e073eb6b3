//! The values the rules speak of, and how they are written down.

mod timestamp;

pub use timestamp::Timestamp;
