//! Measures the core's work. Each request costs a few nanoseconds: it is counted without atomics under the lock that the core
//! has anyway, the clock is read once a turn, and the steps of one request in 16 are timed. A scrape collects the counts.

use std::cell::{RefCell, RefMut};
use std::sync::Arc;

use percolator_telemetry::names::tablet as names;
use percolator_telemetry::{LocalHistogram, LocalIntCounter};
use percolator_wire::v1;
use percolator_wire::v1::check_status_response::Status;
use percolator_wire::v1::commit_response::Result as Committed;
use percolator_wire::v1::get_result::Result as Got;
use percolator_wire::v1::prewrite_rejection::Reason;
use percolator_wire::v1::response::Body;

use crate::Refusal;
use crate::load::{Load, Loads};
use crate::metrics::Metrics;
use crate::probe::{self, Limit, Method, Note, Probe, Step};
use crate::trace::Traces;

/// The steps of one request in this many are timed.
const TIMED_EVERY: u32 = 16;

/// See the module's head.
pub(crate) struct Meter {
    metrics: Arc<Metrics>,
    counted: RefCell<Counted>,
    traces: Option<RefCell<Traces>>,
}

/// How a request ended; its number is its place in [`names::RESULTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Ok,
    Locked,
    Conflict,
    RolledBack,
    TooLow,
    NotServed,
    TooOld,
    NotLeased,
    Busy,
    Invalid,
    Failed,
}

/// Places in [`names::STEPS`].
mod step {
    pub(super) const READ_QUEUE: usize = 0;
    pub(super) const READ_LOAD: usize = 1;
    pub(super) const READ_REPLY: usize = 2;
    pub(super) const QUEUE: usize = 3;
    pub(super) const LATCH: usize = 4;
    pub(super) const LOAD: usize = 5;
    pub(super) const DECIDE: usize = 6;
    pub(super) const GROUP: usize = 7;
    pub(super) const COMMIT: usize = 8;
    pub(super) const REPLY: usize = 9;
}

struct Counted {
    /// When the requests of this turn came.
    came: u64,
    since_timed: u32,
    /// Whether the decision under way is timed, when its load began, and how long it loaded before.
    timing: bool,
    loading: u64,
    loaded: u64,
    /// The requests that were answered in this turn.
    answered: Vec<Note>,
    results: [[u64; names::RESULTS.len()]; names::METHODS.len()],
    durations: Vec<LocalHistogram>,
    steps: Vec<LocalHistogram>,
    latch_waits: LocalIntCounter,
    transactions: Vec<LocalIntCounter>,
    one_phase: LocalIntCounter,
    met_by_reads: LocalIntCounter,
    met_by_writes: LocalIntCounter,
    scan_cells: LocalHistogram,
    scans_cut: LocalIntCounter,
    loads: Loads,
}

impl Meter {
    pub(crate) fn new(metrics: Arc<Metrics>, traces: Option<Traces>) -> Self {
        let local = |method: &&str| metrics.durations.with_label_values(&[*method]).local();
        let met = |by: &str| metrics.locks_met.with_label_values(&[by]).local();
        let counted = Counted {
            came: 0,
            since_timed: 0,
            timing: false,
            loading: 0,
            loaded: 0,
            answered: Vec::new(),
            results: [[0; names::RESULTS.len()]; names::METHODS.len()],
            durations: names::METHODS.iter().map(local).collect(),
            steps: names::STEPS
                .iter()
                .map(|labels| metrics.steps.with_label_values(labels).local())
                .collect(),
            latch_waits: metrics.latch_waits.local(),
            transactions: names::COMMITTED
                .iter()
                .map(|how| metrics.transactions.with_label_values(&[*how]).local())
                .collect(),
            one_phase: metrics.one_phase.local(),
            met_by_reads: met("read"),
            met_by_writes: met("write"),
            scan_cells: metrics.scan_cells.local(),
            scans_cut: metrics.scans_cut.local(),
            loads: Loads::new(),
        };
        Self {
            metrics,
            counted: RefCell::new(counted),
            traces: traces.map(RefCell::new),
        }
    }

    /// The traces, and the request's number there, if it is traced.
    fn traced(&self, note: &Note) -> Option<(RefMut<'_, Traces>, u32)> {
        Some((self.traces.as_ref()?.borrow_mut(), note.traced?))
    }
}

impl Probe for Meter {
    fn turn_began(&self, came: u64) {
        self.counted.borrow_mut().came = came;
    }

    fn turn_ended(&self) {
        let counted = &mut *self.counted.borrow_mut();
        if counted.answered.is_empty() {
            return;
        }
        let now = self.metrics.now();
        for note in counted.answered.drain(..) {
            let Some(method) = note.method else { continue };
            counted.durations[method as usize].observe(seconds(note.came, now));
            if note.timed {
                let reply = if method.reads() {
                    step::READ_REPLY
                } else {
                    step::REPLY
                };
                counted.steps[reply].observe(seconds(note.last, now));
            }
            if let Some((mut traces, at)) = self.traced(&note) {
                traces.step(at, "reply", note.last, now);
                traces.ended(at, method, &note, now);
            }
        }
    }

    fn came(&self, method: Option<Method>, request: Option<&v1::Request>) -> Note {
        let mut counted = self.counted.borrow_mut();
        counted.since_timed += 1;
        let timed = counted.since_timed >= TIMED_EVERY;
        if timed {
            counted.since_timed = 0;
        }
        Note {
            method,
            timed,
            came: counted.came,
            last: counted.came,
            traced: match &self.traces {
                Some(traces) => request
                    .filter(|_| method.is_some())
                    .and_then(|request| traces.borrow_mut().came(request)),
                None => None,
            },
        }
    }

    fn of_table(&self, note: &Note, table: &str) {
        if let Some((mut traces, at)) = self.traced(note) {
            traces.of_table(at, table);
        }
    }

    fn asked(&self, tablet: u64, reads: bool, load: Load) {
        let loads = &mut self.counted.borrow_mut().loads;
        let [read, written] = loads.entry(tablet).or_default();
        if reads { read } else { written }.add(load);
    }

    fn ended(&self, note: &mut Note, ended: Step) {
        let (true, Some(method)) = (note.timed || note.traced.is_some(), note.method) else {
            return;
        };
        let counted = &mut *self.counted.borrow_mut();
        let now = self.metrics.now();
        let last = note.last;
        let observe = |step: usize, from: u64, to: u64| {
            if note.timed {
                counted.steps[step].observe(seconds(from, to));
            }
            if let Some((mut traces, at)) = self.traced(note) {
                traces.step(at, names::STEPS[step][1], from, to);
            }
        };
        match (ended, method.reads()) {
            (Step::Queue, true) => observe(step::READ_QUEUE, last, now),
            (Step::Queue, false) => observe(step::QUEUE, last, now),
            (Step::Decide, true) => observe(step::READ_LOAD, last, now),
            (Step::Latch, _) => {
                observe(step::LATCH, last, now);
                (counted.timing, counted.loaded) = (true, 0);
            }
            (Step::Decide, false) => {
                let loaded = last + std::mem::take(&mut counted.loaded);
                observe(step::LOAD, last, loaded);
                // The decision without its loads.
                observe(step::DECIDE, loaded, now);
                counted.timing = false;
            }
            (Step::Group, _) => observe(step::GROUP, last, now),
            (Step::Commit, _) => observe(step::COMMIT, last, now),
        }
        note.last = now;
    }

    fn loading(&self) {
        let mut counted = self.counted.borrow_mut();
        if counted.timing {
            counted.loading = self.metrics.now();
        }
    }

    fn loaded(&self) {
        let mut counted = self.counted.borrow_mut();
        if counted.timing {
            counted.loaded += self.metrics.now().saturating_sub(counted.loading);
        }
    }

    fn waits_for_rows(&self) {
        self.counted.borrow_mut().latch_waits.inc();
    }

    fn limited(&self, limit: Limit) {
        let name = names::LIMITS[limit as usize];
        self.metrics.limit_hits.with_label_values(&[name]).inc();
    }

    fn answered(&self, note: Note, result: &Result<Option<Body>, Refusal>) {
        let Some(method) = note.method else { return };
        let counted = &mut *self.counted.borrow_mut();
        let outcome = match result {
            Ok(Some(body)) => self.count(counted, body),
            Ok(None) => Outcome::Ok,
            Err(refusal) => refused(refusal),
        };
        counted.results[method as usize][outcome as usize] += 1;
        if let Some((mut traces, at)) = self.traced(&note) {
            traces.answered(at, names::RESULTS[outcome as usize]);
        }
        counted.answered.push(note);
    }

    fn transaction(&self, how: probe::CommitKind) {
        self.counted.borrow().transactions[how as usize].inc();
    }

    fn flush(&self) {
        let counted = &mut *self.counted.borrow_mut();
        let by_method = counted.results.iter_mut().zip(names::METHODS);
        for (results, method) in by_method {
            for (count, result) in results.iter_mut().zip(names::RESULTS) {
                let counter = self.metrics.requests.with_label_values(&[*method, *result]);
                counter.inc_by(std::mem::take(count));
            }
        }
        self.metrics.loads.more(std::mem::take(&mut counted.loads));
        let histograms = counted.durations.iter().chain(&counted.steps);
        histograms.for_each(LocalHistogram::flush);
        counted.scan_cells.flush();
        counted.transactions.iter().for_each(LocalIntCounter::flush);
        for counter in [
            &counted.latch_waits,
            &counted.one_phase,
            &counted.met_by_reads,
            &counted.met_by_writes,
            &counted.scans_cut,
        ] {
            counter.flush();
        }
    }
}

impl Meter {
    /// Counts what a response shows. Returns how the request ended.
    fn count(&self, counted: &mut Counted, body: &Body) -> Outcome {
        match body {
            Body::GetOne(got) => met(&counted.met_by_reads, usize::from(got.locked.is_some())),
            Body::Get(got) => {
                let locked = |got: &&v1::GetResult| matches!(got.result, Some(Got::Locked(_)));
                met(
                    &counted.met_by_reads,
                    got.results.iter().filter(locked).count(),
                )
            }
            Body::Scan(scan) => {
                counted.scan_cells.observe(scan.cells.len() as f64);
                counted.scans_cut.inc_by(scan.resume.is_some().into());
                met(&counted.met_by_reads, scan.locked.len())
            }
            Body::Prewrite(prewrite) => {
                counted.one_phase.inc_by(prewrite.committed.into());
                let reasons = prewrite.rejections.iter().map(|one| one.reason.as_ref());
                let locked = |reason: &Option<&Reason>| matches!(reason, Some(Reason::Locked(_)));
                let locked = met(
                    &counted.met_by_writes,
                    reasons.clone().filter(locked).count(),
                );
                // A reason that can't be cleared counts before a lock.
                let worst = reasons.flatten().find_map(|reason| match reason {
                    Reason::Conflict(_) | Reason::NotNotified(_) => Some(Outcome::Conflict),
                    Reason::RolledBack(_) | Reason::Committed(_) => Some(Outcome::RolledBack),
                    Reason::Locked(_) => None,
                });
                worst.unwrap_or(locked)
            }
            Body::Commit(commit) => match &commit.result {
                Some(Committed::LockMissing(_)) => Outcome::RolledBack,
                Some(Committed::TooLow(_) | Committed::Taken(_)) => Outcome::TooLow,
                Some(Committed::Done(_)) | None => Outcome::Ok,
            },
            Body::CheckStatus(answer) => {
                let status = match &answer.status {
                    Some(Status::Committed(_)) => 0,
                    Some(Status::RolledBack(_)) => 1,
                    Some(Status::Alive(_)) => 2,
                    Some(Status::Pending(_)) | None => 3,
                };
                let counters = &self.metrics.status_checks;
                counters.with_label_values(&[names::STATUSES[status]]).inc();
                Outcome::Ok
            }
            _ => Outcome::Ok,
        }
    }
}

fn met(counter: &LocalIntCounter, locks: usize) -> Outcome {
    counter.inc_by(locks as u64);
    match locks {
        0 => Outcome::Ok,
        _ => Outcome::Locked,
    }
}

fn refused(refusal: &Refusal) -> Outcome {
    match refusal {
        Refusal::NotServed(_) | Refusal::OtherServer { .. } => Outcome::NotServed,
        Refusal::TooOld(_) => Outcome::TooOld,
        Refusal::NotLeased(_) => Outcome::NotLeased,
        Refusal::Invalid(_) => Outcome::Invalid,
        Refusal::Busy(_) => Outcome::Busy,
        Refusal::Engine { .. } => Outcome::Failed,
    }
}

/// Seconds between two readings of the clock, which counts nanoseconds.
fn seconds(from: u64, to: u64) -> f64 {
    to.saturating_sub(from) as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_outcomes_are_numbered_as_they_are_named() {
        let method = |method: Method| names::METHODS[method as usize];
        assert_eq!(method(Method::CheckStatus), "check_status");
        assert_eq!(method(Method::Command), "command");
        assert_eq!(names::METHODS.len(), Method::Notify as usize + 1);
        let result = |outcome: Outcome| names::RESULTS[outcome as usize];
        assert_eq!(result(Outcome::TooLow), "too_low");
        assert_eq!(result(Outcome::Failed), "failed");
        assert_eq!(names::RESULTS.len(), Outcome::Failed as usize + 1);
        let how = probe::CommitKind::Large as usize;
        assert_eq!(names::COMMITTED[how], "large");
        assert_eq!(names::COMMITTED.len(), how + 1);
        assert_eq!(names::LIMITS[Limit::DecidedBytes as usize], "decided_bytes");
        assert_eq!(names::LIMITS.len(), Limit::Reads as usize + 1);
        assert_eq!(names::STEPS[step::READ_REPLY], ["read", "reply"]);
        assert_eq!(names::STEPS[step::GROUP], ["write", "group"]);
        assert_eq!(names::STEPS.len(), step::REPLY + 1);
    }

    #[test]
    fn what_is_answered_is_seen_with_its_time_once_it_is_flushed() {
        let metrics = Arc::new(Metrics::new(64 << 20).unwrap());
        let meter = Meter::new(metrics.clone(), None);
        meter.turn_began(metrics.now());
        // The client samples the request, and the meter has no traces.
        let sampled = v1::Request {
            trace: Some(Box::new(v1::TraceContext::new(1, 2))),
            ..v1::Request::default()
        };
        for _ in 0..TIMED_EVERY {
            let mut note = meter.came(Some(Method::Commit), Some(&sampled));
            assert_eq!(note.traced, None);
            for step in [
                Step::Queue,
                Step::Latch,
                Step::Decide,
                Step::Group,
                Step::Commit,
            ] {
                meter.ended(&mut note, step);
            }
            let too_low = v1::CommitTooLow { min_commit_ts: 7 };
            let commit = v1::CommitResponse {
                result: Some(Committed::TooLow(too_low)),
            };
            meter.answered(note, &Ok(Some(Body::Commit(commit))));
        }
        meter.turn_ended();
        meter.flush();
        let text = percolator_telemetry::text(&metrics.registry).unwrap();
        let one = "percolator_tablet_step_duration_seconds_count{kind=\"write\",step";
        for line in [
            "percolator_tablet_requests_total{method=\"commit\",result=\"too_low\"} 16".to_owned(),
            "percolator_tablet_request_duration_seconds_count{method=\"commit\"} 16".to_owned(),
            format!("{one}=\"load\"}} 1"),
            format!("{one}=\"commit\"}} 1"),
            format!("{one}=\"reply\"}} 1"),
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
