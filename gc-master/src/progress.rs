//! How a tablet server's collection gets on, for people to see.

use std::time::Duration;

use crate::reports::Collected;

/// A rate is that of about this long.
const RATE_OVER: Duration = Duration::from_secs(10);

/// A tablet server's report of its collection.
#[derive(Debug, Default)]
pub(crate) struct ReportedProgress {
    /// The last time.
    pub(crate) last: Collected,
    /// Of all its tablets: versions that wait, and records that it has collected since its start.
    waiting: u64,
    records: u64,
    /// How many records it had collected when a rate was last begun, and when that was.
    since: (Duration, u64),
    per_second: u64,
}

impl ReportedProgress {
    /// `None`: it is as it was.
    pub(crate) fn update(&mut self, now: Duration, progress: Option<Collected>) {
        if let Some(progress) = progress {
            let tablets = || progress.tablets.iter();
            self.waiting = tablets().map(|tablet| tablet.waiting).sum();
            self.records = tablets().map(|tablet| tablet.records).sum();
            self.last = progress;
        }
        let (since, before) = self.since;
        let (passed, records) = (now.saturating_sub(since), self.records());
        if records < before || since.is_zero() {
            // Another start of it.
            self.since = (now, records);
            self.per_second = 0;
        } else if passed >= RATE_OVER {
            let millis = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX);
            self.per_second = (records - before).saturating_mul(1000) / millis;
            self.since = (now, records);
        }
    }

    /// Versions that wait to be collected.
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting
    }

    /// Records that it has collected since its start.
    pub(crate) fn records(&self) -> u64 {
        self.records
    }

    /// Of the last ten seconds or so.
    pub(crate) fn per_second(&self) -> u64 {
        self.per_second
    }
}
