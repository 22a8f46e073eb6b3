//! What the workload counts.

use std::cell::RefCell;
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
        Self(Rc::new(RefCell::new(Counters {
            clients,
            started: Instant::now(),
            whole: Interval::new(),
            second: Interval::new(),
            checks: 0,
            wrong: 0,
            last_error: None,
        })))
    }

    pub(super) fn committed(&self, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        let mut counters = self.0.borrow_mut();
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
        format!(
            "transfers      {} in {:.1} s by {} clients: {:.0} a second\n\
             latency        p50 {:.2} ms   p99 {:.2} ms   p99.9 {:.2} ms, retries included\n\
             conflicts      {}\n\
             unknown        {}\n\
             failed         {}\n\
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
            self.failed,
        )
    }
}
