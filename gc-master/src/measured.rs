//! The master's requests, counted and timed.

use std::sync::Arc;
use std::time::Instant;

use percolator_wire::v1;
use percolator_wire::v1::master_server::Master;
use tonic::{Request, Response, Status};

use crate::metrics::Metrics;
use crate::service::Service;

/// The service behind its measuring.
pub(crate) struct Measured {
    pub(crate) service: Service,
    pub(crate) metrics: Arc<Metrics>,
}

impl Measured {
    async fn measure<T>(
        &self,
        method: &str,
        answer: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let began = Instant::now();
        let result = answer.await;
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
                self.measure(stringify!($method), self.service.$method(request)).await
            })*
        }
    };
}

measured! {
    heartbeat: HeartbeatRequest => HeartbeatResponse;
    directory: DirectoryRequest => DirectoryResponse;
    session: SessionRequest => SessionResponse;
    gc_status: GcStatusRequest => GcStatusResponse;
    set_gc: SetGcRequest => SetGcResponse;
    transactions: TransactionsRequest => TransactionsResponse;
    release_gc_lock: ReleaseGcLockRequest => ReleaseGcLockResponse;
    create_table: CreateTableRequest => CreateTableResponse;
    delete_table: DeleteTableRequest => DeleteTableResponse;
}
