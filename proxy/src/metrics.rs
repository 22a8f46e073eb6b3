//! What the proxy counts, and what it says of calls that are traced.

use std::time::Instant;

use percolator_telemetry::names::proxy as names;
use percolator_telemetry::trace::{Span, Tracer, key};
use percolator_telemetry::{Error, HistogramVec, IntCounter, IntCounterVec, IntGauge};
use percolator_telemetry::{Registry, Set};
use tonic::Code;

use crate::caller::Caller;
use crate::failure::Failure;
use crate::sessions::{Expiry, SessionEnd};

/// The proxy's metrics.
pub(crate) struct Metrics {
    pub(crate) registry: Registry,
    pub(crate) sessions: IntGauge,
    pub(crate) begun: IntCounter,
    ended: IntCounterVec,
    requests: IntCounterVec,
    request_seconds: HistogramVec,
    pub(crate) buffered_bytes: IntGauge,
    pub(crate) transit_bytes: IntGauge,
    pub(crate) refused: IntCounter,
    pub(crate) connections: IntGauge,
    pub(crate) connections_refused: IntCounter,
    pub(crate) relayed: IntCounter,
    tracer: Option<Tracer>,
}

impl Metrics {
    pub(crate) fn new(tracer: Option<Tracer>) -> Result<Self, Error> {
        let registry = Registry::new();
        let set = Set::new(&registry, names::ALL);
        let metrics = Self {
            sessions: set.gauge(names::SESSIONS)?,
            begun: set.counter(names::BEGUN)?,
            ended: set.counters(names::ENDED)?,
            requests: set.counters(names::REQUESTS)?,
            request_seconds: set.histograms(names::REQUEST_SECONDS)?,
            buffered_bytes: set.gauge(names::BUFFERED_BYTES)?,
            transit_bytes: set.gauge(names::TRANSIT_BYTES)?,
            refused: set.counter(names::REFUSED)?,
            connections: set.gauge(names::CONNECTIONS)?,
            connections_refused: set.counter(names::CONNECTIONS_REFUSED)?,
            relayed: set.counter(names::RELAYED)?,
            registry: registry.clone(),
            tracer,
        };
        set.finish();
        Ok(metrics)
    }

    /// A session has ended.
    pub(crate) fn session_ended(&self, end: &SessionEnd) {
        let end = match end {
            SessionEnd::Committed(_) => "committed",
            SessionEnd::RolledBack => "rolled_back",
            SessionEnd::Aborted => "aborted",
            SessionEnd::Expired(Expiry::Idle) => "idle",
            SessionEnd::Expired(Expiry::Total) => "too_long",
            SessionEnd::Stopped => "stopped",
            SessionEnd::Finished => "finished",
            SessionEnd::ParticipantLost => "participant_lost",
            SessionEnd::ManagerGone => "manager_gone",
            SessionEnd::HandOverUnknown | SessionEnd::Unknown { .. } => "unknown",
        };
        self.ended.with_label_values(&[end]).inc();
    }

    /// Counts a call from now on to its end.
    pub(crate) fn call(&self, method: &'static str, caller: &Caller) -> CountedCall<'_> {
        CountedCall {
            metrics: self,
            span: caller.span(self.tracer.as_ref(), method),
            method,
            began: Instant::now(),
            code: "cancelled",
        }
    }
}

/// A call that is counted when it ends; if it is dropped, its client gave up.
pub(crate) struct CountedCall<'a> {
    metrics: &'a Metrics,
    span: Option<Span>,
    method: &'static str,
    began: Instant,
    code: &'static str,
}

impl CountedCall<'_> {
    /// The call has ended.
    pub(crate) fn ended<T>(mut self, result: &Result<T, Failure>) {
        self.code = match result.as_ref().err() {
            None => "ok",
            Some(failure) => code(failure.reason.code()),
        };
    }
}

impl Drop for CountedCall<'_> {
    fn drop(&mut self) {
        if let Some(span) = &self.span {
            span.say(key::RESULT, self.code);
        }
        let (metrics, method) = (self.metrics, self.method);
        let labels = [method, self.code];
        metrics.requests.with_label_values(&labels).inc();
        let took = self.began.elapsed().as_secs_f64();
        let seconds = metrics.request_seconds.with_label_values(&[method]);
        seconds.observe(took);
    }
}

/// A code's name in metrics.
fn code(code: Code) -> &'static str {
    match code {
        Code::Ok => "ok",
        Code::Cancelled => "cancelled",
        Code::Aborted => "aborted",
        Code::FailedPrecondition => "failed_precondition",
        Code::NotFound => "not_found",
        Code::AlreadyExists => "already_exists",
        Code::InvalidArgument => "invalid_argument",
        Code::ResourceExhausted => "resource_exhausted",
        Code::Unavailable => "unavailable",
        Code::Unknown => "unknown",
        _ => "internal",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Reason;

    #[test]
    fn every_code_that_a_reason_has_is_declared() {
        for reason in Reason::ALL {
            let name = code(reason.code());
            assert!(names::CODES.contains(&name), "{reason:?}: {name}");
        }
    }
}
