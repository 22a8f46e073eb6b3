//! Reports of one transaction: the spans of its trace, if it is sampled, and a line of the log, if it was slow. A transaction
//! that needs neither has no trace.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use percolator_protocol::types::{Lock, Timestamp, TraceParent};
use percolator_telemetry::Limited;
use percolator_telemetry::trace::{Remote, Span, Tracer, key};
use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;

use crate::attempts::Attempt;
use crate::location_cache::LocationCache;
use crate::router::Router;
use crate::transport::Transport;

/// Where servers are slow, every transaction is.
static SLOW: Limited = Limited::new();
/// Transactions in the way that a line names.
const OWNERS_MAX: usize = 4;
/// Tablets of a request that a span names.
const TABLETS_MAX: usize = 8;
/// The span of a transaction.
const TRANSACTION: &str = "transaction";

/// The spans and the times of a transaction.
pub(crate) struct Trace {
    transport: Arc<dyn Transport>,
    /// Where it is sampled.
    sampled: Option<(Arc<Tracer>, Span)>,
    /// A transaction that takes as long is logged.
    slow: Option<Duration>,
    began: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    start_ts: Timestamp,
    /// Of steps of one kind, in the order of their names.
    steps: BTreeMap<&'static str, Busy>,
    /// Of all of them: the rest is the application's time.
    any: Busy,
    owners: BTreeMap<Timestamp, String>,
    owners_more: usize,
    ended: bool,
}

/// For how long something was under way, however often at a time.
#[derive(Clone, Copy, Default)]
struct Busy {
    times: u32,
    now: u32,
    since: Duration,
    total: Duration,
}

impl Busy {
    fn begin(&mut self, at: Duration) {
        self.times += 1;
        if self.now == 0 {
            self.since = at;
        }
        self.now += 1;
    }

    fn end(&mut self, at: Duration) {
        self.now -= 1;
        if self.now == 0 {
            self.total += at.saturating_sub(self.since);
        }
    }

    fn until(mut self, at: Duration) -> Duration {
        if self.now > 0 {
            self.now = 1;
            self.end(at);
        }
        self.total
    }
}

/// The span of another process because of which a transaction begins, and in whose trace it is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cause {
    /// Of the transaction that made the change that an observer runs for.
    Change(TraceParent),
    /// Of the call that it is made for; `None`: that one isn't sampled.
    Call(Option<TraceParent>),
}

impl Cause {
    /// The call with this W3C header.
    pub(crate) fn of_call(traceparent: &str) -> Self {
        let call = v1::TraceContext::of_header(traceparent);
        Self::Call(call.as_ref().map(TraceParent::from))
    }
}

/// The W3C header of this span.
pub(crate) fn header(parent: TraceParent) -> String {
    v1::TraceContext::from(parent).header()
}

fn remote(TraceParent { trace_id, span_id }: TraceParent) -> Remote {
    Remote { trace_id, span_id }
}

impl Trace {
    /// The trace of a transaction that is about to begin. `None`: it is neither sampled nor timed.
    fn begin(
        transport: &Arc<dyn Transport>,
        tracer: Option<&Arc<Tracer>>,
        slow: Option<Duration>,
        cause: Option<Cause>,
    ) -> Option<Self> {
        let sampled = tracer.and_then(|tracer| {
            let span = match cause {
                Some(Cause::Change(change)) => tracer.following(TRANSACTION, remote(change))?,
                Some(Cause::Call(call)) => tracer.called(TRANSACTION, remote(call?))?,
                None => tracer.root(TRANSACTION)?,
            };
            Some((tracer.clone(), span))
        });
        if sampled.is_none() && slow.is_none() {
            return None;
        }
        Some(Self {
            transport: transport.clone(),
            sampled,
            slow,
            began: transport.now(),
            state: Mutex::default(),
        })
    }

    /// How requests name it, where it is sampled.
    pub(crate) fn context(&self) -> Option<TraceParent> {
        let (_, span) = self.sampled.as_ref()?;
        Some(context(span))
    }

    /// It has begun here.
    pub(crate) fn begun(&self, start_ts: Timestamp) {
        self.state.lock().start_ts = start_ts;
        if let Some((_, span)) = &self.sampled {
            span.say(key::START_TS, start_ts.to_string());
        }
    }

    /// A part of it begins.
    pub(crate) fn step(&self, name: &'static str) -> Step<'_> {
        let now = self.transport.now();
        let mut state = self.state.lock();
        state.any.begin(now);
        state.steps.entry(name).or_default().begin(now);
        drop(state);
        let span = self
            .sampled
            .as_ref()
            .map(|(tracer, span)| tracer.asking(name, span));
        Step {
            trace: self,
            name,
            span,
        }
    }

    /// A timestamp is taken.
    pub(crate) fn taking_a_timestamp(&self) -> Step<'_> {
        let begun = self.state.lock().start_ts != Timestamp::ZERO;
        self.step(if begun { "timestamp" } else { "begin" })
    }

    /// A request is sent.
    pub(crate) fn asking(
        &self,
        address: &str,
        request: &v1::Request,
        locations: &LocationCache,
    ) -> Step<'_> {
        let step = self.step(self.name_of(request));
        if let Some(span) = &step.span {
            span.say(key::SERVER, address.to_owned());
            let tablets: Vec<u64> = match &request.body {
                Some(Ask::GetOne(get)) => vec![get.tablet_id],
                _ => request.tablets.iter().map(|tablet| tablet.id).collect(),
            };
            let named = tablets.iter().take(TABLETS_MAX);
            span.say(key::TABLET, listed(named.map(u64::to_string)));
            let tables = locations.tables_of(&tablets);
            if !tables.is_empty() {
                span.say(key::TABLE, listed(tables.into_iter().map(str::to_owned)));
            }
        }
        step
    }

    fn name_of(&self, request: &v1::Request) -> &'static str {
        let state = self.state.lock();
        match &request.body {
            Some(Ask::GetOne(_) | Ask::Get(_)) => "get",
            Some(Ask::Scan(_)) => "scan",
            Some(Ask::Prewrite(prewrite)) if prewrite.generation != 0 => "flush",
            Some(Ask::Prewrite(prewrite)) if prewrite.one_phase.is_some() => "commit_one_phase",
            Some(Ask::Prewrite(_)) => "prewrite",
            // Of another transaction's locks.
            Some(Ask::Commit(v1::CommitRequest { start_ts, .. }))
            | Some(Ask::Rollback(v1::RollbackRequest { start_ts, .. }))
            | Some(Ask::Resolve(v1::ResolveRequest { start_ts, .. }))
                if *start_ts != state.start_ts.as_u64() =>
            {
                "resolve"
            }
            // The primary's is the decision, after which the application has its response.
            Some(Ask::Commit(_)) if state.ended => "commit_secondaries",
            Some(Ask::Commit(_)) => "commit_primary",
            Some(Ask::Rollback(_)) => "rollback",
            Some(Ask::Resolve(_)) => "resolve_own",
            Some(Ask::CheckStatus(_)) => "check_status",
            Some(Ask::KeepAlive(_)) => "keep_alive",
            Some(Ask::WaitForCell(_)) => "wait_for_cell",
            Some(Ask::Notifications(_)) => "notifications",
            Some(Ask::Observe(_)) => "observe",
            Some(Ask::Unobserve(_)) => "unobserve",
            Some(Ask::Notify(_)) => "notify",
            _ => "other",
        }
    }

    /// A lock of another transaction is in the way.
    pub(crate) fn met(&self, lock: &Lock, locations: &LocationCache) {
        let mut state = self.state.lock();
        let known = state.owners.contains_key(&lock.start_ts);
        if !known && state.owners.len() >= OWNERS_MAX {
            state.owners_more += 1;
        } else if !known {
            let table = locations.named(lock.primary.table);
            state.owners.insert(lock.start_ts, table);
        }
    }

    /// The transaction has ended so. Only the first end counts.
    pub(crate) fn ended(&self, result: &'static str) {
        let now = self.transport.now();
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.ended, true) {
            return;
        }
        if let Some((_, span)) = &self.sampled {
            span.say(key::RESULT, result);
            if !state.owners.is_empty() {
                let owners = state.owners.keys().map(Timestamp::to_string);
                span.say(key::OWNER_START_TS, listed(owners));
                span.say(key::OWNER_TABLE, listed(state.owners.values().cloned()));
            }
            span.end(std::time::SystemTime::now());
        }
        let took = now.saturating_sub(self.began);
        if self.slow.is_some_and(|slow| took >= slow)
            && let Some(left_out) = SLOW.admit()
        {
            let steps = Steps {
                state: &state,
                now,
                took,
            };
            tracing::warn!(
                start_ts = %state.start_ts,
                took_ms = milliseconds(took),
                result,
                steps = %steps,
                in_the_way = %Owners(&state),
                left_out,
                "slow transaction"
            );
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // Nobody committed it.
        self.ended("dropped");
    }
}

/// A part of a transaction, until this is dropped.
pub(crate) struct Step<'a> {
    trace: &'a Trace,
    name: &'static str,
    span: Option<Span>,
}

impl Step<'_> {
    /// How requests name it, where it is sampled.
    pub(crate) fn context(&self) -> Option<TraceParent> {
        self.span.as_ref().map(context)
    }

    /// It is about this lock's transaction.
    pub(crate) fn about(&self, lock: &Lock, locations: &LocationCache) {
        if let Some(span) = &self.span {
            span.say(key::OWNER_START_TS, lock.start_ts.to_string());
            span.say(key::OWNER_TABLE, locations.named(lock.primary.table));
        }
    }

    /// A request has ended so.
    pub(crate) fn answered(self, attempt: &Attempt) {
        if let Some(span) = &self.span {
            span.say(key::RESULT, attempt.result());
        }
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        let now = self.trace.transport.now();
        let mut state = self.trace.state.lock();
        state.any.end(now);
        if let Some(busy) = state.steps.get_mut(self.name) {
            busy.end(now);
        }
    }
}

fn context(span: &Span) -> TraceParent {
    let Remote { trace_id, span_id } = span.remote();
    TraceParent { trace_id, span_id }
}

/// Where the time went: `get 3x 1.2 ms, commit_primary 4.0 ms, application 0.1 ms`.
struct Steps<'a> {
    state: &'a State,
    now: Duration,
    took: Duration,
}

impl fmt::Display for Steps<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, busy) in &self.state.steps {
            write!(f, "{name} ")?;
            if busy.times > 1 {
                write!(f, "{}x ", busy.times)?;
            }
            write!(f, "{} ms, ", milliseconds(busy.until(self.now)))?;
        }
        let application = self.took.saturating_sub(self.state.any.until(self.now));
        write!(f, "application {} ms", milliseconds(application))
    }
}

/// The transactions that were in the way: `4711 (accounts)`.
struct Owners<'a>(&'a State);

impl fmt::Display for Owners<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.owners.is_empty() {
            return f.write_str("nobody");
        }
        let owners = self.0.owners.iter();
        f.write_str(&listed(owners.map(|(ts, table)| format!("{ts} ({table})"))))?;
        match self.0.owners_more {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

fn listed(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(",")
}

/// To a tenth.
fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10_000.0).round() / 10.0
}

impl Router {
    /// This router, for one traced transaction. `None`: the transaction is neither sampled nor timed.
    pub(crate) fn traced(&self, slow: Option<Duration>, cause: Option<Cause>) -> Option<Arc<Self>> {
        let tracer = self.world.tracer.get();
        if tracer.is_none() && slow.is_none() {
            return None;
        }
        let trace = Trace::begin(&self.world.transport, tracer, slow, cause)?;
        Some(Arc::new(self.with_trace(trace)))
    }

    /// Begins a step of the transaction, if that is traced.
    pub(crate) fn step(&self, name: &'static str) -> Option<Step<'_>> {
        self.trace.as_ref().map(|trace| trace.step(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn what_goes_on_several_times_at_once_takes_its_time_once() {
        let mut busy = Busy::default();
        busy.begin(MS);
        busy.begin(2 * MS);
        busy.end(3 * MS);
        assert_eq!(busy.until(4 * MS), 3 * MS);
        busy.end(5 * MS);
        busy.begin(9 * MS);
        busy.end(10 * MS);
        assert_eq!((busy.times, busy.until(20 * MS)), (3, 5 * MS));
    }

    #[test]
    fn the_time_in_which_nothing_was_under_way_is_the_applications() {
        let mut state = State::default();
        for (name, from, to) in [("get", 1, 3), ("get", 2, 4), ("prewrite", 7, 8)] {
            state.any.begin(from * MS);
            let step = state.steps.entry(name).or_default();
            step.begin(from * MS);
            if name == "get" && from == 1 {
                continue;
            }
            // The two reads end together.
            for _ in 0..step.now {
                step.end(to * MS);
                state.any.end(to * MS);
            }
        }
        let steps = Steps {
            state: &state,
            now: 10 * MS,
            took: 10 * MS,
        };
        assert_eq!(
            steps.to_string(),
            "get 2x 3 ms, prewrite 1 ms, application 6 ms"
        );
        assert_eq!(Owners(&state).to_string(), "nobody");
        state.owners.insert(Timestamp::from_u64(7), "bank".into());
        state.owners_more = 2;
        assert_eq!(Owners(&state).to_string(), "7 (bank) and 2 more");
    }
}
