//! What the workload counts.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use percolator_client::Error;
use serde::Serialize;

/// Counters that the clients share.
#[derive(Clone)]
pub(super) struct Stats(Rc<RefCell<Counters>>);

struct Counters {
    clients: u32,
    started: Instant,
    whole: Interval,
    second: Interval,
    checks: u64,
    wrong: u64,
    last_error: Option<String>,
    failed_by_kind: BTreeMap<&'static str, u64>,
    stalls: Stalls,
}

/// How long nothing was committed.
struct Stalls {
    /// When the last transfer was committed, or the first one began.
    since: Instant,
    longest: Duration,
}

impl Stalls {
    fn new(now: Instant) -> Self {
        Self {
            since: now,
            longest: Duration::ZERO,
        }
    }

    /// A transfer was committed, or there will be no more.
    fn end(&mut self, now: Instant) {
        let stall = now.saturating_duration_since(self.since);
        self.longest = self.longest.max(stall);
        self.since = now;
    }
}

struct Interval {
    started: Instant,
    /// Of committed transfers with their retries, in microseconds.
    latency: Histogram<u64>,
    conflicts: u64,
    unknown: u64,
    failed: u64,
}

/// What came out.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Summary {
    pub(crate) clients: u32,
    pub(crate) seconds: f64,
    pub(crate) transfers: u64,
    pub(crate) transfers_per_second: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) p999_ms: f64,
    pub(crate) conflicts: u64,
    pub(crate) unknown: u64,
    pub(crate) failed: u64,
    /// The failed ones: timeout, unavailable, too old (which only who reads the sum counts as failed).
    pub(crate) failed_by_kind: BTreeMap<&'static str, u64>,
    /// The longest time in which none of the clients had a transfer committed.
    pub(crate) longest_stall_ms: f64,
    pub(crate) sum_checks: u64,
    pub(crate) wrong_sums: u64,
    pub(crate) sum: i64,
    pub(crate) expected_sum: i64,
}

impl Interval {
    fn new() -> Self {
        // Up to 10 minutes, with two digits: a few kilobytes.
        let latency = Histogram::new_with_bounds(1, 600_000_000, 2)
            .unwrap_or_else(|error| unreachable!("these bounds are those of a histogram: {error}"));
        Self {
            started: Instant::now(),
            latency,
            conflicts: 0,
            unknown: 0,
            failed: 0,
        }
    }

    fn quantile_ms(&self, quantile: f64) -> f64 {
        self.latency.value_at_quantile(quantile) as f64 / 1000.0
    }
}

impl Stats {
    pub(super) fn new(clients: u32) -> Self {
        let started = Instant::now();
        Self(Rc::new(RefCell::new(Counters {
            clients,
            started,
            whole: Interval::new(),
            second: Interval::new(),
            checks: 0,
            wrong: 0,
            last_error: None,
            failed_by_kind: BTreeMap::new(),
            stalls: Stalls::new(started),
        })))
    }

    pub(super) fn committed(&self, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        let mut counters = self.0.borrow_mut();
        counters.stalls.end(Instant::now());
        counters.whole.latency.saturating_record(micros);
        counters.second.latency.saturating_record(micros);
    }

    pub(super) fn conflict(&self) {
        let mut counters = self.0.borrow_mut();
        counters.whole.conflicts += 1;
        counters.second.conflicts += 1;
    }

    pub(super) fn unknown(&self) {
        let mut counters = self.0.borrow_mut();
        counters.whole.unknown += 1;
        counters.second.unknown += 1;
    }

    pub(super) fn failed(&self, error: &Error) {
        let mut counters = self.0.borrow_mut();
        counters.whole.failed += 1;
        counters.second.failed += 1;
        counters.last_error = Some(error.to_string());
        *counters.failed_by_kind.entry(kind(error)).or_default() += 1;
    }

    /// There are no more transfers.
    pub(super) fn stopped(&self) {
        self.0.borrow_mut().stalls.end(Instant::now());
    }

    pub(super) fn checked(&self, right: bool) {
        let mut counters = self.0.borrow_mut();
        counters.checks += 1;
        counters.wrong += u64::from(!right);
    }

    /// The last second in one line; begins a new one.
    pub(super) fn line(&self, elapsed: Duration) -> String {
        let mut counters = self.0.borrow_mut();
        let second = std::mem::replace(&mut counters.second, Interval::new());
        let rate = second.latency.len() as f64 / second.started.elapsed().as_secs_f64();
        let sums = match (counters.checks, counters.wrong) {
            (0, _) => "not checked yet".to_owned(),
            (checks, 0) => format!("right {checks} times"),
            (checks, wrong) => format!("WRONG {wrong} of {checks} times"),
        };
        let error = match counters.last_error.take() {
            Some(error) => format!("  {} failed, the last: {error}", second.failed),
            None => String::new(),
        };
        format!(
            "{:4.0} s  {rate:7.0} transfers/s  p50 {:6.2} ms  p99 {:6.2} ms  conflicts {}  unknown {}  sum {sums}{error}",
            elapsed.as_secs_f64(),
            second.quantile_ms(0.5),
            second.quantile_ms(0.99),
            second.conflicts,
            second.unknown,
        )
    }

    pub(super) fn summary(&self, sum: i64, expected_sum: i64) -> Summary {
        let counters = self.0.borrow();
        let seconds = counters.started.elapsed().as_secs_f64();
        let whole = &counters.whole;
        Summary {
            clients: counters.clients,
            seconds,
            transfers: whole.latency.len(),
            transfers_per_second: whole.latency.len() as f64 / seconds,
            p50_ms: whole.quantile_ms(0.5),
            p99_ms: whole.quantile_ms(0.99),
            p999_ms: whole.quantile_ms(0.999),
            conflicts: whole.conflicts,
            unknown: whole.unknown,
            failed: whole.failed,
            failed_by_kind: counters.failed_by_kind.clone(),
            longest_stall_ms: counters.stalls.longest.as_secs_f64() * 1000.0,
            sum_checks: counters.checks + 1,
            wrong_sums: counters.wrong + u64::from(sum != expected_sum),
            sum,
            expected_sum,
        }
    }
}

impl Summary {
    /// Whether no money was lost or made.
    pub(crate) fn holds(&self) -> bool {
        self.wrong_sums == 0
    }

    pub(super) fn text(&self) -> String {
        let verdict = if self.holds() {
            format!(
                "{} at each of {} snapshots: no money was lost or made",
                self.sum, self.sum_checks
            )
        } else {
            format!(
                "WRONG at {} of {} snapshots; at the end {}, expected {}",
                self.wrong_sums, self.sum_checks, self.sum, self.expected_sum
            )
        };
        let kinds: Vec<String> = self
            .failed_by_kind
            .iter()
            .map(|(kind, count)| format!("{count} {kind}"))
            .collect();
        let failed = if kinds.is_empty() {
            self.failed.to_string()
        } else {
            format!("{}: {}", self.failed, kinds.join(", "))
        };
        format!(
            "transfers      {} in {:.1} s by {} clients: {:.0} a second\n\
             latency        p50 {:.2} ms   p99 {:.2} ms   p99.9 {:.2} ms, retries included\n\
             conflicts      {}\n\
             unknown        {}\n\
             failed         {failed}\n\
             longest stall  {:.2} s without a transfer\n\
             sum            {verdict}",
            self.transfers,
            self.seconds,
            self.clients,
            self.transfers_per_second,
            self.p50_ms,
            self.p99_ms,
            self.p999_ms,
            self.conflicts,
            self.unknown,
            self.longest_stall_ms / 1000.0,
        )
    }
}

/// What an error is called where they are counted.
fn kind(error: &Error) -> &'static str {
    match error {
        Error::Timeout { .. } => "timeout",
        Error::Unavailable(_) => "unavailable",
        Error::TooOld(_) => "too old",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_stall_is_between_commits_or_before_the_first_or_after_the_last() {
        let at = |start: Instant, seconds: u64| start + Duration::from_secs(seconds);
        for (ends, longest) in [
            (&[][..], 0),
            (&[7], 7),
            (&[7, 8, 10], 7),
            (&[1, 2, 9, 10], 7),
            (&[1, 2, 9], 7),
        ] {
            let start = Instant::now();
            let mut stalls = Stalls::new(start);
            for end in ends {
                stalls.end(at(start, *end));
            }
            assert_eq!(stalls.longest, Duration::from_secs(longest), "{ends:?}");
        }
    }

    #[test]
    fn failures_are_told_by_kind() {
        let stats = Stats::new(1);
        assert!(stats.summary(0, 0).text().contains("failed         0\n"));
        let away = || Error::Unavailable("gone".into());
        let late = Error::Timeout {
            after: Duration::from_secs(1),
            doing: "waiting",
            last: "nothing".into(),
        };
        for error in [away(), late, away()] {
            stats.failed(&error);
        }
        let summary = stats.summary(0, 0);
        let counts = [("timeout", 1), ("unavailable", 2)];
        assert_eq!(summary.failed_by_kind, BTreeMap::from(counts));
        let text = summary.text();
        assert!(
            text.contains("failed         3: 1 timeout, 2 unavailable\n"),
            "{text}"
        );
    }
}
