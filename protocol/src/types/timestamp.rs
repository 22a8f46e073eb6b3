//! Timestamps of the oracle.

use std::fmt;

/// A point in the order of transactions: milliseconds since the Unix epoch in the high 46 bits, a
/// counter in the low 18.
///
/// Milliseconds are the precision of a lock's ttl. PD of TiKV splits its timestamps the same way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Width of the counter, in bits.
    pub const LOGICAL_BITS: u32 = 18;
    /// Before every timestamp that an oracle hands out.
    pub const ZERO: Self = Self(0);
    /// After every timestamp that an oracle hands out.
    pub const MAX: Self = Self(u64::MAX);

    /// The first timestamp of a millisecond since the Unix epoch; saturates at [`Self::MAX`]'s.
    pub const fn from_millis(physical_ms: u64) -> Self {
        let max = u64::MAX >> Self::LOGICAL_BITS;
        Self((if physical_ms > max { max } else { physical_ms }) << Self::LOGICAL_BITS)
    }

    /// The timestamp written as this number.
    pub const fn from_u64(value: u64) -> Self {
        Self(value)
    }

    /// The number that stands for it, in the same order.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// Milliseconds since the Unix epoch.
    pub const fn physical_ms(self) -> u64 {
        self.0 >> Self::LOGICAL_BITS
    }

    /// The counter within the millisecond.
    pub const fn logical(self) -> u64 {
        self.0 & ((1 << Self::LOGICAL_BITS) - 1)
    }

    /// The next timestamp; stays at [`Self::MAX`].
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_into_milliseconds_and_counter() {
        let ts = Timestamp::from_u64(Timestamp::from_millis(1_700_000_000_123).as_u64() + 5);
        assert_eq!(ts.physical_ms(), 1_700_000_000_123);
        assert_eq!(ts.logical(), 5);
        assert!(ts.next() > ts);
    }

    #[test]
    fn the_ends_saturate() {
        assert_eq!(Timestamp::MAX.next(), Timestamp::MAX);
        assert_eq!(
            Timestamp::from_millis(u64::MAX).physical_ms(),
            u64::MAX >> 18
        );
    }
}
