//! How a client behaves, as an application says it.

use std::time::Duration;

use percolator_protocol::types::limits;

/// How a client behaves.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long a call is tried before it fails with [`Error::Timeout`](crate::Error::Timeout). Default: 10 s.
    pub request_timeout: Duration,
    /// How long a transaction that is being committed counts as alive without a sign of its client.
    /// Default: 3 s. It is renewed while the commit goes on.
    pub lock_ttl: Duration,
    /// What a transaction holds in memory of its writes before it flushes them: then their cells are locked with
    /// the new values, and it goes on. While a flush is under way so much again may be written ([`Txn::ready`](crate::Txn::ready)).
    /// In bytes of rows, columns and values, with some 128 bytes for each cell. Default: 16 MiB.
    pub buffer_bytes: usize,
    /// How long [`Client::transact`](crate::Client::transact) begins again after conflicts. Default: 30 s.
    pub retry_for: Duration,
    /// A transaction that takes so long, from its begin to its end, is logged (a warning of
    /// `tracing`), with where the time went and which transactions were in the way. Default: `None`: a library doesn't log
    /// unasked, and only the application knows which time is too long.
    pub slow_transaction: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            request_timeout: Duration::from_secs(10),
            lock_ttl: Duration::from_secs(3),
            buffer_bytes: 16 << 20,
            retry_for: Duration::from_secs(30),
            slow_transaction: None,
        }
    }
}

impl Options {
    pub(crate) fn lock_ttl_ms(&self) -> u64 {
        u64::try_from(self.lock_ttl.as_millis()).unwrap_or(u64::MAX / 2)
    }

    /// Half of what a transaction may hold at the most: as much again is written while it is flushed.
    pub(crate) fn flushed_at(&self) -> usize {
        self.buffer_bytes.min(limits::TRANSACTION_BYTES_MAX / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_has_room_for_as_much_again_while_it_is_flushed() {
        for buffer_bytes in [0, 1 << 20, 1 << 30, usize::MAX] {
            let options = Options {
                buffer_bytes,
                ..Options::default()
            };
            let at = options.flushed_at();
            assert!(
                at <= buffer_bytes && 2 * at <= limits::TRANSACTION_BYTES_MAX,
                "{at}"
            );
        }
    }
}
