//! The caller of a method: the address by which a client counts, and the trace that the call is in.

use std::net::IpAddr;
use std::time::SystemTime;

use percolator_client::Client;
use percolator_telemetry::trace::{Remote, Span, Tracer};
use percolator_wire::v1::TraceContext;
use tonic::Request;
use tonic::codegen::http::{Extensions, HeaderMap};

use crate::transit::{Received, client_of};

/// Of one call.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) address: IpAddr,
    /// What its header says; none: it has none that is text.
    traceparent: Option<String>,
    /// What was received of the call, which counts while it is carried out.
    received: Option<Received>,
}

impl Caller {
    /// By what a request has beside its message.
    pub(crate) fn new(extensions: &Extensions, headers: &HeaderMap) -> Self {
        let traceparent = headers.get(TraceContext::HEADER);
        let traceparent = traceparent.and_then(|header| header.to_str().ok());
        Self {
            address: client_of(extensions),
            traceparent: traceparent.map(str::to_owned),
            received: extensions.get().cloned(),
        }
    }

    pub(crate) fn of<T>(request: &Request<T>) -> Self {
        Self::new(request.extensions(), request.metadata().as_ref())
    }

    /// What the call has brought is its session's now, and counts there.
    pub(crate) fn handed_on(&self) {
        if let Some(received) = &self.received {
            received.handed_on();
        }
    }

    /// The way to the cluster for a transaction that this call begins.
    pub(crate) fn client(&self, client: &Client) -> Client {
        client.in_trace(self.traceparent.as_deref().unwrap_or_default())
    }

    /// The call as a part of its trace, if it is sampled.
    pub(crate) fn span(&self, tracer: Option<&Tracer>, method: &'static str) -> Option<Span> {
        let context = TraceContext::of_header(self.traceparent.as_deref()?)?;
        let remote = Remote {
            trace_id: context.trace_id(),
            span_id: context.span_id,
        };
        Some(tracer?.serving(method, remote, SystemTime::now()))
    }

    /// Has another proxy, which is called for this one, go on with the trace.
    pub(crate) fn pass_on<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let traceparent = self.traceparent.as_ref().and_then(|it| it.parse().ok());
        if let Some(traceparent) = traceparent {
            request
                .metadata_mut()
                .insert(TraceContext::HEADER, traceparent);
        }
        request
    }
}
