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
    /// Nobody may commit at or below this, as the oracle was told.
    bound: u64,
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
        if first <= self.bound {
            return Err(format!(
                "{first} was granted, and nobody may commit up to {}",
                self.bound
            ));
        }
        self.granted = first + u64::from(granted.count) - 1;
        Ok(())
    }

    fn bounded(&mut self, above: Timestamp) -> Result<(), String> {
        self.bound = self.bound.max(above.as_u64());
        Ok(())
    }

    fn received(&mut self, ts: Timestamp, after: Timestamp) -> Result<(), String> {
        if ts <= after {
            return Err(format!("{ts} was received where {after} was known before"));
        }
        Ok(())
    }
}
