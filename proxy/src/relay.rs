//! The relay of timestamps, for clients that are libraries themselves: to the oracle it is one client, whatever number of them it
//! stands for, and what they ask for at a time goes there in one request.
//!
//! Nothing is asked for ahead: a timestamp is requested after the request for it came, as the library does it.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::Stream;
use percolator_client::oracle::{COUNT_MAX, OracleError};
use percolator_client::{Client, TraceParent};
use percolator_wire::check_cluster;
use percolator_wire::v1::oracle_server::Oracle;
use percolator_wire::v1::{TimestampsRequest, TimestampsResponse};
use tokio_stream::StreamExt as _;
use tonic::{Request, Response, Status, Streaming};

use crate::failure::{Failure, Reason};
use crate::pool::SharedPool;
use crate::transactions::Transactions;
use crate::transit::client_of;

/// Timestamps that clients of the relay may wait for at a time. The way to the oracle takes twice as many: sessions need some.
const WAITING_MAX: usize = 8 * COUNT_MAX as usize;

/// The service.
#[derive(Clone)]
pub(crate) struct Relay {
    shared: Arc<Transactions>,
    waiting: SharedPool,
}

impl Relay {
    pub(crate) fn new(shared: Arc<Transactions>) -> Self {
        Self {
            shared,
            waiting: SharedPool::new(WAITING_MAX),
        }
    }

    /// Timestamps for a client, if it doesn't wait for its share already.
    async fn grant(
        &self,
        client: &Client,
        from: IpAddr,
        request: TimestampsRequest,
    ) -> Result<TimestampsResponse, Status> {
        let count = usize::try_from(request.count).unwrap_or(usize::MAX);
        let _waits = self.waiting.take(from, count).map_err(|full| {
            let what = "too many timestamps are asked for at a time: wait for those before";
            Failure::full(Reason::Calls, full, what).status()
        })?;
        let granted = relay(client, request).await?;
        self.shared.metrics.relayed.inc_by(granted.count.into());
        Ok(granted)
    }
}

#[tonic::async_trait]
impl Oracle for Relay {
    type TimestampsStream = Pin<Box<dyn Stream<Item = Result<TimestampsResponse, Status>> + Send>>;

    async fn timestamps(
        &self,
        request: Request<Streaming<TimestampsRequest>>,
    ) -> Result<Response<Self::TimestampsStream>, Status> {
        let client = self.shared.client().map_err(|failure| failure.status())?;
        let (client, from) = (client.clone(), client_of(request.extensions()));
        // Timestamps of another cluster have nothing to do with those of this one.
        check_cluster(request.metadata(), client.known_cluster_id().as_deref())?;
        let this = self.clone();
        let answers = request.into_inner().then(move |request| {
            let (this, client) = (this.clone(), client.clone());
            async move { this.grant(&client, from, request?).await }
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

async fn relay(client: &Client, request: TimestampsRequest) -> Result<TimestampsResponse, Status> {
    let traces: Vec<TraceParent> = request.traces.iter().map(TraceParent::from).collect();
    match client.timestamps(request.count, &traces).await {
        Ok(granted) => Ok(TimestampsResponse {
            first: granted.first.as_u64(),
            count: granted.count,
        }),
        Err(error @ OracleError::Count { .. }) => Err(Status::invalid_argument(error.to_string())),
        // The client asks another relay, or the oracle.
        Err(error) => Err(Status::unavailable(error.to_string())),
    }
}
