//! Timestamps strictly increase, across restarts and clients (paper, section 2.3; ARCHITECTURE, "What
//! always holds", 4): what is granted is above whatever was granted before, and what a client gets is
//! above whatever anybody had when it asked.

use percolator_protocol::oracle::Granted;
use percolator_protocol::types::Timestamp;

use super::Invariant;

#[derive(Default)]
pub(super) struct Timestamps {
    /// The highest that was granted.
    granted: u64,
}

impl Invariant for Timestamps {
    fn name(&self) -> &'static str {
        "timestamps increase"
    }

    fn granted(&mut self, granted: Granted) -> Result<(), String> {
        let first = granted.first.as_u64();
        if first <= self.granted {
            return Err(format!("{first} was granted after {}", self.granted));
        }
        self.granted = first + u64::from(granted.count) - 1;
        Ok(())
    }

    fn received(&mut self, ts: Timestamp, after: Timestamp) -> Result<(), String> {
        if ts <= after {
            return Err(format!("{ts} was received where {after} was known before"));
        }
        Ok(())
    }
}
