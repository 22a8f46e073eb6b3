//! The relay of timestamps, for clients that are libraries themselves: to the oracle it is one client, whatever number of them it
//! stands for, and what they ask for at a time goes there in one request.
//!
//! Nothing is asked for ahead: a timestamp is requested after the request for it came, as the library does it.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::Stream;
use percolator_client::Client;
use percolator_client::oracle::OracleError;
use percolator_wire::check_cluster;
use percolator_wire::v1::oracle_server::Oracle;
use percolator_wire::v1::{TimestampsRequest, TimestampsResponse};
use tokio_stream::StreamExt as _;
use tonic::{Request, Response, Status, Streaming};

use crate::transactions::Transactions;

/// The service.
#[derive(Clone)]
pub(crate) struct Relay(pub(crate) Arc<Transactions>);

#[tonic::async_trait]
impl Oracle for Relay {
    type TimestampsStream = Pin<Box<dyn Stream<Item = Result<TimestampsResponse, Status>> + Send>>;

    async fn timestamps(
        &self,
        request: Request<Streaming<TimestampsRequest>>,
    ) -> Result<Response<Self::TimestampsStream>, Status> {
        let shared = self.0.clone();
        let client = shared.client().map_err(|failure| failure.status())?.clone();
        // Timestamps of another cluster have nothing to do with those of this one.
        check_cluster(request.metadata(), client.known_cluster_id().as_deref())?;
        let answers = request.into_inner().then(move |request| {
            let (shared, client) = (shared.clone(), client.clone());
            async move {
                let granted = relay(&client, request?).await?;
                shared.metrics.relayed.inc_by(granted.count.into());
                Ok(granted)
            }
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

async fn relay(client: &Client, request: TimestampsRequest) -> Result<TimestampsResponse, Status> {
    match client.timestamps(request.count, &request.traces).await {
        Ok(granted) => Ok(TimestampsResponse {
            first: granted.first.as_u64(),
            count: granted.count,
        }),
        Err(error @ OracleError::Count { .. }) => Err(Status::invalid_argument(error.to_string())),
        // The client asks another relay, or the oracle.
        Err(error) => Err(Status::unavailable(error.to_string())),
    }
}
