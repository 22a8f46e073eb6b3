//! Spans of traces: what clients and servers report of a sampled transaction. A span has attributes with the keys of
//! [`key`], and never a row, a column or a value.

use std::time::SystemTime;

use opentelemetry::global::BoxedTracer;
use opentelemetry::trace::{
    SpanBuilder, SpanContext, SpanId, SpanKind, TraceContextExt, TraceFlags, TraceId, TraceState,
    Tracer as _, TracerProvider,
};
use opentelemetry::{Context, KeyValue, Value};

/// The keys of spans and of lines of a log, the same everywhere.
pub mod key {
    /// The transaction's start_ts.
    pub const START_TS: &str = "start_ts";
    /// A table's name.
    pub const TABLE: &str = "table";
    /// Numbers of tablets, the first few.
    pub const TABLET: &str = "tablet";
    /// The role of the process: client, tso, tablet, master, proxy or operator.
    pub const ROLE: &str = "role";
    /// The server's stable name; of a client, the address that it asks: HOST:PORT.
    pub const SERVER: &str = "server";
    /// How it ended, as the metrics call it.
    pub const RESULT: &str = "result";
    /// How many timestamps.
    pub const COUNT: &str = "count";
    /// The transaction in the way: where it began.
    pub const OWNER_START_TS: &str = "owner_start_ts";
    /// The table of the primary of the transaction in the way.
    pub const OWNER_TABLE: &str = "owner_table";
}

/// A span of another process, as a request says it: the trace's id and the span's own. It is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The trace's id.
    pub trace_id: u128,
    /// The span's.
    pub span_id: u64,
}

impl Remote {
    fn context(self) -> Context {
        Context::new().with_remote_span_context(SpanContext::new(
            TraceId::from(self.trace_id),
            SpanId::from(self.span_id),
            TraceFlags::SAMPLED,
            true,
            TraceState::NONE,
        ))
    }
}

/// Makes spans.
#[derive(Debug)]
pub struct Tracer(BoxedTracer);

impl Tracer {
    /// Of this provider, an application's or [`crate::otlp`]'s.
    pub fn of<P>(provider: &P) -> Self
    where
        P: TracerProvider,
        P::Tracer: Send + Sync + 'static,
        <P::Tracer as opentelemetry::trace::Tracer>::Span: Send + Sync + 'static,
    {
        Self(BoxedTracer::new(Box::new(provider.tracer("percolator"))))
    }

    /// A span below the one that this thread is in, or the first of its trace. `None`: the trace isn't sampled.
    pub fn root(&self, name: &'static str) -> Option<Span> {
        let span = self.0.build(SpanBuilder::from_name(name));
        let span = Span(Context::new().with_span(span));
        span.0.span().span_context().is_sampled().then_some(span)
    }

    /// A span of a server's work for a request, which began then.
    pub fn serving(&self, name: &'static str, parent: Remote, began: SystemTime) -> Span {
        let builder = SpanBuilder::from_name(name)
            .with_kind(SpanKind::Server)
            .with_start_time(began);
        self.build(builder, &parent.context())
    }

    /// A span that follows from one of another process, some time later. `None`: it isn't sampled here.
    pub fn following(&self, name: &'static str, parent: Remote) -> Option<Span> {
        let builder = SpanBuilder::from_name(name).with_kind(SpanKind::Consumer);
        let span = self.build(builder, &parent.context());
        span.0.span().span_context().is_sampled().then_some(span)
    }

    /// A span of work that goes on from now on because of a call, whose span is given. `None`: it isn't sampled here.
    pub fn called(&self, name: &'static str, caller: Remote) -> Option<Span> {
        let span = self.build(SpanBuilder::from_name(name), &caller.context());
        span.0.span().span_context().is_sampled().then_some(span)
    }

    /// A span of a client's request to a server, from now on.
    pub fn asking(&self, name: &'static str, parent: &Span) -> Span {
        let builder = SpanBuilder::from_name(name).with_kind(SpanKind::Client);
        self.build(builder, &parent.0)
    }

    /// A part of a span, from one time to another.
    pub fn step(&self, name: &'static str, parent: &Span, from: SystemTime, to: SystemTime) {
        let builder = SpanBuilder::from_name(name).with_start_time(from);
        self.build(builder, &parent.0).end(to);
    }

    fn build(&self, builder: SpanBuilder, parent: &Context) -> Span {
        Span(Context::new().with_span(self.0.build_with_context(builder, parent)))
    }
}

/// Something that takes time. It ends when it is dropped, or earlier by a call.
#[derive(Debug)]
pub struct Span(Context);

impl Span {
    /// How a request names it.
    pub fn remote(&self) -> Remote {
        let span = self.0.span();
        let context = span.span_context();
        Remote {
            trace_id: u128::from_be_bytes(context.trace_id().to_bytes()),
            span_id: u64::from_be_bytes(context.span_id().to_bytes()),
        }
    }

    /// Says more of it.
    pub fn say(&self, key: &'static str, value: impl Into<Value>) {
        self.0.span().set_attribute(KeyValue::new(key, value));
    }

    /// It ended then; later ends don't count.
    pub fn end(&self, at: SystemTime) {
        self.0.span().end_with_timestamp(at);
    }
}
