//! Traces of single requests: spans of those whose clients sample them, and a line of the log for slow ones. Both are made
//! when the request is answered, from the times that the meter takes anyway.

use std::time::{Duration, SystemTime};

use percolator_protocol::types::Timestamp;
use percolator_telemetry::Limited;
use percolator_telemetry::names::tablet as names;
use percolator_telemetry::trace::{Remote, Tracer, key};
use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;
use slab::Slab;

use crate::probe::{Method, Note, tablets};

/// The most requests that are traced at a time.
const TRACED_MAX: usize = 4096;
/// The most tablets that a trace names.
const TABLETS_MAX: usize = 8;

static SLOW: Limited = Limited::new();

/// The requests under way that are traced.
#[derive(Debug)]
pub(crate) struct Traces {
    tracer: Option<Tracer>,
    /// A request that takes this many nanoseconds is logged.
    slow: Option<u64>,
    requests: Slab<TracedRequest>,
}

/// A request that is traced.
#[derive(Debug)]
struct TracedRequest {
    /// The sender's span, if it is sampled.
    remote: Option<Remote>,
    start_ts: u64,
    tablets: Vec<u64>,
    table: String,
    /// Each with its beginning and its end, as the meter counts time.
    steps: Vec<(&'static str, u64, u64)>,
    result: &'static str,
}

impl Traces {
    /// `None`: no request is traced or logged.
    pub(crate) fn new(tracer: Option<Tracer>, slow: Option<Duration>) -> Option<Self> {
        let slow = slow.map(|slow| u64::try_from(slow.as_nanos()).unwrap_or(u64::MAX));
        (tracer.is_some() || slow.is_some()).then(|| Self {
            tracer,
            slow,
            requests: Slab::new(),
        })
    }

    /// Begins to trace the request, and returns its number, unless nothing would use the trace.
    pub(crate) fn came(&mut self, request: &v1::Request) -> Option<u32> {
        let of = |trace: &v1::TraceContext| Remote {
            trace_id: trace.trace_id(),
            span_id: trace.span_id,
        };
        let remote = self.tracer.as_ref().and(request.trace.as_deref()).map(of);
        if (remote.is_none() && self.slow.is_none()) || self.requests.len() >= TRACED_MAX {
            return None;
        }
        let traced = TracedRequest {
            remote,
            start_ts: start_ts(request),
            tablets: tablets(request).take(TABLETS_MAX).collect(),
            table: String::new(),
            steps: Vec::with_capacity(names::STEPS.len()),
            result: "",
        };
        u32::try_from(self.requests.insert(traced)).ok()
    }

    /// Notes that the request is about rows of this table.
    pub(crate) fn of_table(&mut self, at: u32, table: &str) {
        let traced = &mut self.requests[at as usize];
        if traced.table.split(',').all(|known| known != table) {
            if !traced.table.is_empty() {
                traced.table.push(',');
            }
            traced.table.push_str(table);
        }
    }

    /// Adds a step of the request.
    pub(crate) fn step(&mut self, at: u32, name: &'static str, from: u64, to: u64) {
        self.requests[at as usize].steps.push((name, from, to));
    }

    /// Notes the result of the request.
    pub(crate) fn answered(&mut self, at: u32, result: &'static str) {
        self.requests[at as usize].result = result;
    }

    /// Ends the trace: the response was handed to the connection.
    pub(crate) fn ended(&mut self, at: u32, method: Method, note: &Note, now: u64) {
        let traced = self.requests.remove(at as usize);
        let method = names::METHODS[method as usize];
        if let (Some(tracer), Some(remote)) = (&self.tracer, traced.remote) {
            traced.trace(tracer, remote, method, (note.came, now));
        }
        let took = now.saturating_sub(note.came);
        if self.slow.is_some_and(|slow| took >= slow)
            && let Some(left_out) = SLOW.admit()
        {
            let steps = traced.steps.iter();
            let steps =
                steps.map(|(name, from, to)| format!("{name} {} ms", milliseconds(to - from)));
            tracing::warn!(
                method,
                start_ts = %Timestamp::from_u64(traced.start_ts),
                table = traced.table,
                tablet = traced.tablet(),
                took_ms = milliseconds(took),
                result = traced.result,
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

/// The transaction of the request; zero: it has none.
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

/// Milliseconds, rounded to a hundredth.
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
    fn without_tracer_and_threshold_no_request_is_traced() {
        assert!(Traces::new(None, None).is_none());
        let mut traces = Traces {
            tracer: None,
            slow: None,
            requests: Slab::new(),
        };
        // The client samples the request, and this server sends no spans.
        let sampled = v1::Request {
            trace: Some(Box::new(v1::TraceContext::new(1, 2))),
            ..request()
        };
        assert_eq!(traces.came(&sampled), None);
    }

    #[test]
    fn traces_end_with_their_requests_and_their_number_is_limited() {
        let mut traces = Traces::new(None, Some(Duration::MAX)).unwrap();
        let note = Note::default();
        let traced: Vec<u32> = (0..TRACED_MAX)
            .map(|_| traces.came(&request()).unwrap())
            .collect();
        assert_eq!(traces.came(&request()), None);
        for at in traced {
            traces.of_table(at, "bank");
            traces.of_table(at, "bank");
            traces.step(at, "queue", 1, 2);
            traces.answered(at, "ok");
            let traced = &traces.requests[at as usize];
            assert_eq!(
                (traced.table.as_str(), traced.tablet().as_str()),
                ("bank", "7")
            );
            traces.ended(at, Method::Get, &note, 3);
        }
        assert!(traces.requests.is_empty());
        assert!(traces.came(&request()).is_some());
    }
}
