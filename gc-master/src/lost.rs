//! The reports that a master without a state has received from servers, which it refuses.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::events::Heartbeat;

/// A report counts for so long. Servers that are refused send one a second.
pub(crate) const FRESH: Duration = Duration::from_secs(10);

/// What a master without a state knows.
#[derive(Debug, Default)]
pub(crate) struct LostStateReports {
    /// The cluster that its folder belongs to.
    pub(crate) cluster: Option<String>,
    pub(crate) reports: Reports,
}

impl LostStateReports {
    pub(crate) fn of(cluster: Option<String>) -> Self {
        Self {
            cluster,
            ..Self::default()
        }
    }
}

/// What servers have reported to it.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    /// By name and incarnation.
    by_start: BTreeMap<(String, u64), Report>,
}

#[derive(Debug)]
struct Report {
    beat: Heartbeat,
    at: Duration,
}

impl Reports {
    pub(crate) fn take(&mut self, now: Duration, beat: Heartbeat) {
        let starts = (beat.server.clone(), 0)..=(beat.server.clone(), u64::MAX);
        let starts: Vec<_> = self.by_start.range(starts).collect();
        let is_over = |start: u64, report: &Report| {
            beat.replaces.contains(&start)
                || (start == beat.incarnation && beat.leaving)
                || now.saturating_sub(report.at) >= FRESH
        };
        let over = starts
            .into_iter()
            .filter(|((_, start), report)| is_over(*start, report));
        for start in over.map(|(start, _)| start.clone()).collect::<Vec<_>>() {
            self.by_start.remove(&start);
        }
        // A server whose heartbeats aren't answered sends its lists each time.
        if beat.leaving || !beat.has_lists {
            return;
        }
        let start = (beat.server.clone(), beat.incarnation);
        let is_late = |known: &Report| {
            beat.groups < known.beat.groups || beat.lists_version < known.beat.lists_version
        };
        if !self.by_start.get(&start).is_some_and(is_late) {
            self.by_start.insert(start, Report { beat, at: now });
        }
    }

    /// Those that count now.
    pub(crate) fn fresh(&self, now: Duration) -> impl Iterator<Item = &Heartbeat> {
        let reports = self.by_start.values();
        let fresh = reports.filter(move |report| now.saturating_sub(report.at) < FRESH);
        fresh.map(|report| &report.beat)
    }
}
