//! What is told of single requests: spans of those whose clients trace them, and a line of the log for slow ones.
//! Both are made of what the meter has timed anyway, when the request is answered.

use std::time::{Duration, SystemTime};

use percolator_protocol::types::Timestamp;
use percolator_telemetry::Limited;
use percolator_telemetry::names::tablet as names;
use percolator_telemetry::trace::{Remote, Tracer, key};
use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;
use slab::Slab;

use crate::probe::{Method, Note, tablets};

/// Requests under way of which something is told; of more, the others are left out.
const TOLD_MAX: usize = 4096;
/// Tablets that are named of a request.
const TABLETS_MAX: usize = 8;

static SLOW: Limited = Limited::new();

/// Of which requests something is told.
#[derive(Debug)]
pub(crate) struct Traces {
    tracer: Option<Tracer>,
    /// A request that takes as long is told in the log. In nanoseconds.
    slow: Option<u64>,
    told: Slab<TracedRequest>,
}

/// A request, as far as it is told of.
#[derive(Debug)]
struct TracedRequest {
    /// Its sender's span, where that is sampled.
    remote: Option<Remote>,
    start_ts: u64,
    tablets: Vec<u64>,
    table: String,
    /// Each with its beginning and its end, as the meter counts time.
    steps: Vec<(&'static str, u64, u64)>,
    result: &'static str,
}

impl Traces {
    /// `None`: nothing is ever told.
    pub(crate) fn new(tracer: Option<Tracer>, slow: Option<Duration>) -> Option<Self> {
        let slow = slow.map(|slow| u64::try_from(slow.as_nanos()).unwrap_or(u64::MAX));
        (tracer.is_some() || slow.is_some()).then(|| Self {
            tracer,
            slow,
            told: Slab::new(),
        })
    }

    /// Whether something is told of the request: its number here.
    pub(crate) fn came(&mut self, request: &v1::Request) -> Option<u32> {
        let of = |trace: &v1::TraceContext| Remote {
            trace_id: trace.trace_id(),
            span_id: trace.span_id,
        };
        let remote = self.tracer.as_ref().and(request.trace.as_deref()).map(of);
        if (remote.is_none() && self.slow.is_none()) || self.told.len() >= TOLD_MAX {
            return None;
        }
        let told = TracedRequest {
            remote,
            start_ts: start_ts(request),
            tablets: tablets(request).take(TABLETS_MAX).collect(),
            table: String::new(),
            steps: Vec::with_capacity(names::STEPS.len()),
            result: "",
        };
        u32::try_from(self.told.insert(told)).ok()
    }

    /// The request is about rows of this table.
    pub(crate) fn of_table(&mut self, at: u32, table: &str) {
        let told = &mut self.told[at as usize];
        if told.table.split(',').all(|known| known != table) {
            if !told.table.is_empty() {
                told.table.push(',');
            }
            told.table.push_str(table);
        }
    }

    /// A step of the request.
    pub(crate) fn step(&mut self, at: u32, name: &'static str, from: u64, to: u64) {
        self.told[at as usize].steps.push((name, from, to));
    }

    /// How it ended.
    pub(crate) fn answered(&mut self, at: u32, result: &'static str) {
        self.told[at as usize].result = result;
    }

    /// Its answer was handed to its connection now.
    pub(crate) fn ended(&mut self, at: u32, method: Method, note: &Note, now: u64) {
        let told = self.told.remove(at as usize);
        let method = names::METHODS[method as usize];
        if let (Some(tracer), Some(remote)) = (&self.tracer, told.remote) {
            told.trace(tracer, remote, method, (note.came, now));
        }
        let took = now.saturating_sub(note.came);
        if self.slow.is_some_and(|slow| took >= slow)
            && let Some(left_out) = SLOW.admit()
        {
            let steps = told.steps.iter();
            let steps =
                steps.map(|(name, from, to)| format!("{name} {} ms", milliseconds(to - from)));
            tracing::warn!(
                method,
                start_ts = %Timestamp::from_u64(told.start_ts),
                table = told.table,
                tablet = told.tablet(),
                took_ms = milliseconds(took),
                result = told.result,
                steps = steps.collect::<Vec<_>>().join(", "),
                left_out,
                "slow request"
            );
        }
    }
}

impl TracedRequest {
    fn trace(
        &self,
        tracer: &Tracer,
        remote: Remote,
        method: &'static str,
        (came, now): (u64, u64),
    ) {
        // The meter's clock has no date, and a date's clock may be set.
        let date = SystemTime::now();
        let at = |time: u64| date - Duration::from_nanos(now.saturating_sub(time));
        let span = tracer.serving(method, remote, at(came));
        if self.start_ts != 0 {
            span.say(
                key::START_TS,
                Timestamp::from_u64(self.start_ts).to_string(),
            );
        }
        span.say(key::TABLET, self.tablet());
        if !self.table.is_empty() {
            span.say(key::TABLE, self.table.clone());
        }
        span.say(key::RESULT, self.result);
        for (name, from, to) in &self.steps {
            tracer.step(name, &span, at(*from), at(*to));
        }
        span.end(date);
    }

    fn tablet(&self) -> String {
        let tablets: Vec<String> = self.tablets.iter().map(u64::to_string).collect();
        tablets.join(",")
    }
}

/// Which transaction the request is of; zero: of none.
fn start_ts(request: &v1::Request) -> u64 {
    match &request.body {
        Some(Ask::GetOne(get)) => get.start_ts,
        Some(Ask::Get(get)) => get.start_ts,
        Some(Ask::Scan(scan)) => scan.start_ts,
        Some(Ask::Prewrite(prewrite)) => prewrite.start_ts,
        Some(Ask::Commit(commit)) => commit.start_ts,
        Some(Ask::Rollback(rollback)) => rollback.start_ts,
        Some(Ask::CheckStatus(check)) => check.start_ts,
        Some(Ask::KeepAlive(keep_alive)) => keep_alive.start_ts,
        Some(Ask::Resolve(resolve)) => resolve.start_ts,
        _ => 0,
    }
}

/// To a hundredth.
fn milliseconds(nanoseconds: u64) -> f64 {
    (nanoseconds as f64 / 1e4).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> v1::Request {
        v1::Request {
            body: Some(Ask::GetOne(v1::GetOneRequest {
                tablet_id: 7,
                start_ts: 5,
                ..v1::GetOneRequest::default()
            })),
            ..v1::Request::default()
        }
    }

    #[test]
    fn nothing_is_told_where_nobody_wants_to_know() {
        assert!(Traces::new(None, None).is_none());
        let mut traces = Traces {
            tracer: None,
            slow: None,
            told: Slab::new(),
        };
        // Its client samples it, and this server sends nothing.
        let sampled = v1::Request {
            trace: Some(Box::new(v1::TraceContext::new(1, 2))),
            ..request()
        };
        assert_eq!(traces.came(&sampled), None);
    }

    #[test]
    fn requests_are_forgotten_when_they_are_answered_and_only_so_many_are_told_of() {
        let mut traces = Traces::new(None, Some(Duration::MAX)).unwrap();
        let note = Note::default();
        let told: Vec<u32> = (0..TOLD_MAX)
            .map(|_| traces.came(&request()).unwrap())
            .collect();
        assert_eq!(traces.came(&request()), None);
        for at in told {
            traces.of_table(at, "bank");
            traces.of_table(at, "bank");
            traces.step(at, "queue", 1, 2);
            traces.answered(at, "ok");
            let told = &traces.told[at as usize];
            assert_eq!((told.table.as_str(), told.tablet().as_str()), ("bank", "7"));
            traces.ended(at, Method::Get, &note, 3);
        }
        assert!(traces.told.is_empty());
        assert!(traces.came(&request()).is_some());
    }
}
