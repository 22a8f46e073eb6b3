//! The rules of Percolator transactions, pure: no I/O, no clock, no randomness, no logging.
//! Time and everything that was loaded come in as arguments; effects and typed rejections go out.

pub mod oracle;
pub mod types;
