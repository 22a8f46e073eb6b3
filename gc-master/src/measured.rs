//! The master's requests, counted, timed and traced.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use percolator_telemetry::trace::{Remote, Span, Tracer, key};
use percolator_wire::v1::master_server::Master;
use percolator_wire::v1::{self, TraceContext};
use tonic::{Request, Response, Status};

use crate::metrics::Metrics;
use crate::service::Service;

/// The service behind its measuring.
pub(crate) struct Measured {
    pub(crate) service: Service,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) tracer: Option<Tracer>,
}

impl Measured {
    /// The span of a request that names its trace.
    fn span<T>(&self, method: &'static str, request: &Request<T>) -> Option<Span> {
        let tracer = self.tracer.as_ref()?;
        let header = request.metadata().get(TraceContext::HEADER)?;
        let context = TraceContext::of_header(header.to_str().ok()?)?;
        let remote = Remote {
            trace_id: context.trace_id(),
            span_id: context.span_id,
        };
        Some(tracer.serving(method, remote, SystemTime::now()))
    }

    async fn measure<T>(
        &self,
        method: &'static str,
        span: Option<Span>,
        answer: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let began = Instant::now();
        let result = answer.await;
        if let Some(span) = span {
            span.say(key::RESULT, if result.is_ok() { "ok" } else { "failed" });
        }
        self.metrics
            .answered(method, result.is_ok(), began.elapsed());
        result
    }
}

macro_rules! measured {
    ($($method:ident: $request:ident => $response:ident;)*) => {
        #[tonic::async_trait]
        impl Master for Measured {
            $(async fn $method(
                &self,
                request: Request<v1::$request>,
            ) -> Result<Response<v1::$response>, Status> {
                let span = self.span(stringify!($method), &request);
                self.measure(stringify!($method), span, self.service.$method(request)).await
            })*
        }
    };
}

measured! {
    heartbeat: HeartbeatRequest => HeartbeatResponse;
    locate: LocateRequest => LocateResponse;
    directory: DirectoryRequest => DirectoryResponse;
    session: SessionRequest => SessionResponse;
    gc_status: GcStatusRequest => GcStatusResponse;
    set_gc: SetGcRequest => SetGcResponse;
    transactions: TransactionsRequest => TransactionsResponse;
    release_gc_lock: ReleaseGcLockRequest => ReleaseGcLockResponse;
    create_table: CreateTableRequest => CreateTableResponse;
    delete_table: DeleteTableRequest => DeleteTableResponse;
    split_table: SplitTableRequest => SplitTableResponse;
    merge_table: MergeTableRequest => MergeTableResponse;
    move_tablet: MoveTabletRequest => MoveTabletResponse;
    drain_servers: DrainServersRequest => DrainServersResponse;
    introduce_proxy: IntroduceProxyRequest => IntroduceProxyResponse;
    rebuild: RebuildRequest => RebuildResponse;
}
