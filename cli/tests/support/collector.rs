//! An OpenTelemetry collector that keeps what it is sent.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use prost::Message as _;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

/// A span, as it was sent.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) role: String,
    pub(crate) name: String,
    pub(crate) trace: String,
    pub(crate) id: String,
    /// Empty: it is the first one of its trace.
    pub(crate) parent: String,
    /// In nanoseconds since 1970.
    pub(crate) began: u64,
    pub(crate) ended: u64,
    pub(crate) says: BTreeMap<String, String>,
}

/// The collector, until the test ends.
#[derive(Clone, Default)]
pub(crate) struct Collector {
    kept: Arc<Mutex<Kept>>,
    pub(crate) endpoint: String,
}

#[derive(Default)]
struct Kept {
    spans: Vec<Span>,
    bytes: Vec<u8>,
}

impl Collector {
    /// Listens, on a thread of its own.
    pub(crate) fn start() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a socket");
        let address = listener.local_addr().expect("an address");
        let collector = Self {
            endpoint: format!("http://{address}"),
            ..Self::default()
        };
        let service = TraceServiceServer::new(collector.clone());
        std::thread::spawn(move || {
            crate::support::block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
                tonic::transport::Server::builder()
                    .serve_with_incoming(service, TcpListenerStream::new(listener))
                    .await
                    .expect("it serves");
            });
        });
        collector
    }

    /// What came until now.
    pub(crate) fn spans(&self) -> Vec<Span> {
        self.kept.lock().expect("no panic").spans.clone()
    }

    /// Whether any of what came has these bytes in it.
    pub(crate) fn has(&self, bytes: &str) -> bool {
        let kept = self.kept.lock().expect("no panic");
        let mut windows = kept.bytes.windows(bytes.len());
        windows.any(|window| window == bytes.as_bytes())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn says(attributes: Vec<KeyValue>) -> BTreeMap<String, String> {
    let said = |value: Option<Value>| match value {
        Some(Value::StringValue(text)) => text,
        other => format!("{other:?}"),
    };
    let pair = |pair: KeyValue| (pair.key, said(pair.value.and_then(|value| value.value)));
    attributes.into_iter().map(pair).collect()
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let request = request.into_inner();
        let mut kept = self.kept.lock().expect("no panic");
        kept.bytes.extend(request.encode_to_vec());
        for of_resource in request.resource_spans {
            let about = says(of_resource.resource.unwrap_or_default().attributes);
            let role = about.get("role").cloned().unwrap_or_default();
            let spans = of_resource.scope_spans.into_iter();
            for span in spans.flat_map(|scope| scope.spans) {
                kept.spans.push(Span {
                    role: role.clone(),
                    name: span.name,
                    trace: hex(&span.trace_id),
                    id: hex(&span.span_id),
                    parent: hex(&span.parent_span_id),
                    began: span.start_time_unix_nano,
                    ended: span.end_time_unix_nano,
                    says: says(span.attributes),
                });
            }
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}
