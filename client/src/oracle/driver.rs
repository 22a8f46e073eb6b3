//! The one task that talks to the oracle: takes a batch, asks, hands over, takes the next.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use percolator_protocol::oracle::Granted;
use percolator_protocol::types::Timestamp;
use percolator_wire::v1::oracle_client::OracleClient;
use percolator_wire::v1::{TimestampsRequest, TimestampsResponse, TraceContext};
use percolator_wire::{leader_of, of_cluster};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Endpoint;

use super::batch::Batch;
use super::places::KnownPlaces;
use super::{OracleError, Place, Shared};
use crate::no_response::{NoResponse, cause, no_response, no_response_of_status};
use crate::ticker::pulse;

/// After a lost stream the first pause, then twice as long each time, up to the longest.
const RETRY_FIRST: Duration = Duration::from_millis(1);
const RETRY_MAX: Duration = Duration::from_millis(500);
/// A connection must be made within this.
const CONNECT: Duration = Duration::from_secs(2);
/// A silent connection is pinged, and lost without a response.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(2);

/// Starts the task on the caller's runtime.
pub(super) fn start(shared: Arc<Shared>, number: u64) -> Result<(), OracleError> {
    let driver = Driver {
        shared,
        number,
        batch: None,
        stream: None,
        places: KnownPlaces::default(),
        last: Timestamp::ZERO,
        retry: RETRY_FIRST,
    };
    // If there is no runtime, the driver is dropped, which notifies the queue.
    let runtime = Handle::try_current().map_err(|_| OracleError::NoRuntime)?;
    runtime.spawn(async move {
        let shared = driver.shared.clone();
        tokio::select! {
            () = driver.run() => {}
            () = pulse(|| shared.queue.pulse()) => {}
        }
    });
    Ok(())
}

struct Driver {
    shared: Arc<Shared>,
    /// Which one it is, of the queue's.
    number: u64,
    /// The batch that is asked for.
    batch: Option<Arc<Batch>>,
    stream: Option<Stream>,
    /// Where to ask next.
    places: KnownPlaces,
    /// The highest timestamp that was granted.
    last: Timestamp,
    retry: Duration,
}

impl Drop for Driver {
    fn drop(&mut self) {
        if let Some(batch) = self.batch.take() {
            batch.finish(Err(OracleError::Stopped));
        }
        self.shared.queue.driver_ended(self.number);
    }
}

impl Driver {
    async fn run(mut self) {
        while let Some(batch) = self.shared.clone().queue.take(self.number).await {
            self.batch = Some(batch.clone());
            let granted = self.ask_for(&batch).await;
            self.batch = None;
            let deadline = self.shared.deadline;
            batch.finish(granted.ok_or_else(|| self.shared.unavailable(deadline)));
        }
    }

    /// Asks for as long as one of the batch's callers waits; the others give up before.
    async fn ask_for(&mut self, batch: &Batch) -> Option<Granted> {
        let deadline = self.shared.deadline;
        if batch.is_over(deadline) {
            return None;
        }
        let (count, traces) = batch.demand();
        let request = TimestampsRequest {
            count,
            traces: traces.into_iter().map(TraceContext::from).collect(),
        };
        tokio::select! {
            granted = self.ask(request) => return Some(granted),
            () = batch.time_out(deadline) => {}
        }
        // Whatever the stream still answers belongs to nobody: it must not be read as the response to a later request.
        self.stream = None;
        self.places.failed(None);
        None
    }

    /// Asks until there is a response. To ask again is harmless: the timestamps of a response that
    /// was lost are nobody's.
    async fn ask(&mut self, request: TimestampsRequest) -> Granted {
        loop {
            match self.attempt(&request).await {
                Ok(granted) => {
                    self.retry = RETRY_FIRST;
                    return granted;
                }
                Err(cause) => {
                    if self.retry == RETRY_FIRST {
                        let address = self.shared.last_asked.lock().address.clone();
                        tracing::debug!(address, cause, "asking the oracle again");
                    }
                    self.shared.last_asked.lock().cause = cause.into();
                    self.stream = None;
                    let pause = self.retry;
                    self.retry = (pause * 2).min(RETRY_MAX);
                    sleep(pause).await;
                }
            }
        }
    }

    async fn attempt(&mut self, request: &TimestampsRequest) -> Result<Granted, String> {
        let count = request.count;
        if self.stream.is_none() && self.places.is_empty() {
            self.read_directory().await?;
        }
        let limit = self.places.timeout();
        let asked = timeout(limit, self.response(request)).await;
        let answer = asked.unwrap_or_else(|_| {
            let waited_ms = limit.as_millis();
            Err(format!("it did not answer for {waited_ms} ms").into())
        });
        let TimestampsResponse { first, count: got } = answer.map_err(|failed| {
            self.places.failed(failed.leader);
            failed.cause
        })?;
        if !(1..=count).contains(&got) || first.checked_add(u64::from(got)).is_none() {
            self.places.failed(None);
            return Err(format!(
                "it answered {count} timestamps with {first} + {got}"
            ));
        }
        // Never hand out what breaks the order, no matter who is at fault.
        let first = Timestamp::from_u64(first);
        if first <= self.last {
            self.places.failed(None);
            return Err(format!("it answered {first} after {}", self.last));
        }
        self.last = Timestamp::from_u64(first.as_u64() + u64::from(got) - 1);
        self.places.granted();
        Ok(Granted { first, count: got })
    }

    /// Learns where the oracles are. A master that is away as well must not keep a client from the other oracles.
    async fn read_directory(&mut self) -> Result<(), String> {
        let limit = self.places.directory_timeout();
        let read = timeout(limit, (self.shared.place)()).await;
        let read = read.unwrap_or_else(|_| Err("the directory was not read in time".to_owned()));
        match read {
            Ok(place) => self.places.learn(place),
            Err(_) if self.places.recall() => {}
            Err(cause) => return Err(cause),
        }
        Ok(())
    }

    /// What the oracle answers whose turn it is.
    async fn response(
        &mut self,
        request: &TimestampsRequest,
    ) -> Result<TimestampsResponse, AskError> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => {
                let place = self
                    .places
                    .current()
                    .ok_or("no oracle is known".to_owned())?;
                self.shared
                    .last_asked
                    .lock()
                    .address
                    .clone_from(&place.address);
                self.stream.insert(Stream::open(&place).await?)
            }
        };
        self.shared.last_asked.lock().cause = Cow::Borrowed("it did not answer");
        stream.ask(request.clone()).await
    }
}

/// The reason why an oracle granted nothing.
struct AskError {
    cause: String,
    /// The oracle that leads, by what a standby answered.
    leader: Option<String>,
}

impl From<String> for AskError {
    fn from(cause: String) -> Self {
        let leader = None;
        Self { cause, leader }
    }
}

impl From<tonic::Status> for AskError {
    fn from(status: tonic::Status) -> Self {
        Self {
            cause: lost(&status),
            leader: leader_of(&status).flatten().map(|leader| leader.address),
        }
    }
}

/// A stream to the oracle, with at most one request on it.
struct Stream {
    requests: mpsc::Sender<TimestampsRequest>,
    responses: Streaming<TimestampsResponse>,
}

impl Stream {
    async fn open(place: &Place) -> Result<Self, AskError> {
        let channel = Endpoint::from_shared(format!("http://{}", place.address))
            .map_err(|error| format!("this is no HOST:PORT: {}", cause(&error)))?
            .connect_timeout(CONNECT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .connect()
            .await
            .map_err(|error| text(no_response(&error, CONNECT)))?;
        let (requests, receiver) = mpsc::channel(1);
        let responses = OracleClient::new(channel)
            .timestamps(of_cluster(ReceiverStream::new(receiver), &place.cluster_id))
            .await?
            .into_inner();
        Ok(Self {
            requests,
            responses,
        })
    }

    async fn ask(&mut self, request: TimestampsRequest) -> Result<TimestampsResponse, AskError> {
        let ended = || "the stream ended".to_owned();
        let sent = self.requests.send(request).await;
        let response = self.responses.message().await;
        match response {
            Ok(Some(response)) => sent.map(|()| response).map_err(|_| ended().into()),
            Ok(None) => Err(ended().into()),
            Err(status) => Err(status.into()),
        }
    }
}

fn lost(status: &tonic::Status) -> String {
    text(no_response_of_status(
        status,
        KEEPALIVE_INTERVAL + KEEPALIVE_TIMEOUT,
    ))
}

/// The cause alone: the error's text names the oracle before.
fn text(cause: NoResponse) -> String {
    match cause {
        NoResponse::Silent(time) => format!("it did not answer for {} s", time.as_secs()),
        NoResponse::Reason(reason) => reason,
    }
}
