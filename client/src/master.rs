//! The way to the master, or to the one of several that leads.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use percolator_protocol::types::TraceParent;
use percolator_wire::v1;
use percolator_wire::v1::master_client::MasterClient;
use percolator_wire::{MasterAddresses, NoMasterAddress, leader_of, name_cluster, named_cluster};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use crate::no_response::{NoResponse, failed, is_of_the_way, no_response_of_status};
use crate::ticker::STANDS_STILL;
use crate::transport::{MasterError, OneCluster};

/// The master answers within this, or is asked again.
pub(crate) const MASTER_TIMEOUT: Duration = Duration::from_secs(5);
/// Where a standby answers, it leads within this, or something is wrong.
const TAKES_OVER: Duration = Duration::from_secs(10);
/// One of several masters that doesn't answer a request which takes no time is given up after this.
const TIMEOUT_OF_SEVERAL: Duration = Duration::from_secs(2);
/// A connection must be made within this.
const CONNECT: Duration = Duration::from_secs(2);
/// The same where another address can be tried: that of a pod which is gone answers nothing at all.
const CONNECT_TO_SEVERAL: Duration = Duration::from_millis(500);
/// A connection to a master on which something waits is tried so often,
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// and given up if there is no response for so long: its process stands still, or its network is cut. A master that is only busy
/// answers these.
const PING_TIMEOUT: Duration = Duration::from_secs(2);
/// A caller that waited for so long and gives up has met silence, too. A master that can be reached says within that it leads, or not.
const SILENT: Duration = Duration::from_millis(500);
/// The pause when all masters were asked, and none leads: a planned end takes some milliseconds. It doubles each time,
const NO_LEADER_PAUSE: Duration = Duration::from_millis(10);
/// up to this.
const NO_LEADER_PAUSE_MAX: Duration = Duration::from_millis(50);
/// A directory may be this large: some hundred thousand tablets.
const DIRECTORY_BYTES_MAX: usize = 256 << 20;

/// The way to the master, or to the one of several that leads. Clients ask it so rarely, most of them three times a minute,
/// that none keeps a connection: the master would have as many as there are clients, at 23 KiB each.
pub(crate) struct Master {
    addresses: Mutex<MasterAddresses>,
    pub(crate) cluster: OneCluster,
    /// Those who ask at a time share one, to this address.
    shared: Mutex<(String, Weak<Channel>)>,
    /// How long one of several is waited for: twice as long after each silence, as the directory of a large cluster takes
    /// its time.
    timeout_of_several: Mutex<Duration>,
}

/// Sends requests to a master. Each names the client's cluster.
pub(crate) type MasterStub = MasterClient<InterceptedService<Channel, NamesCluster>>;

/// Names this cluster in each request; empty: it isn't known yet.
#[derive(Clone)]
pub(crate) struct NamesCluster(String);

impl Interceptor for NamesCluster {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        name_cluster(request.metadata_mut(), &self.0);
        Ok(request)
    }
}

/// What a request does that is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repetition {
    /// The same as once. A master that doesn't answer is given up soon, if there are several.
    Harmless,
    /// Something else. It goes to another master only if the first one has surely done nothing, and may take long.
    Matters,
}

impl Master {
    /// HOST:PORT, or several of these with commas between. Nothing is sent yet.
    ///
    /// # Errors
    /// It's no address.
    pub(crate) fn new(addresses: &str) -> Result<Self, String> {
        let addresses: MasterAddresses = addresses
            .parse()
            .map_err(|error: NoMasterAddress| error.to_string())?;
        // What is no host is said at once.
        endpoint(addresses.current()).map_err(MasterError::into_message)?;
        Ok(Self {
            addresses: Mutex::new(addresses),
            cluster: OneCluster::default(),
            shared: Mutex::default(),
            timeout_of_several: Mutex::new(TIMEOUT_OF_SEVERAL),
        })
    }

    /// The address that is asked, HOST:PORT: of several, that of the leader, when it has answered.
    pub(crate) fn address(&self) -> String {
        self.addresses.lock().current().to_owned()
    }

    /// All that are known.
    pub(crate) fn addresses(&self) -> String {
        self.addresses.lock().to_string()
    }

    fn channel(&self, address: &str) -> Result<Arc<Channel>, MasterError> {
        let mut shared = self.shared.lock();
        if shared.0 == address
            && let Some(channel) = shared.1.upgrade()
        {
            return Ok(channel);
        }
        let connect = if self.addresses.lock().may_pass(address) {
            CONNECT_TO_SEVERAL
        } else {
            CONNECT
        };
        let endpoint = endpoint(address)?.connect_timeout(connect);
        let channel = Arc::new(endpoint.connect_lazy());
        *shared = (address.to_owned(), Arc::downgrade(&channel));
        Ok(channel)
    }

    fn stub(&self, channel: &Channel) -> MasterStub {
        let cluster_id = self.cluster.id().unwrap_or_default().to_owned();
        let stub = MasterClient::with_interceptor(channel.clone(), NamesCluster(cluster_id));
        stub.max_decoding_message_size(DIRECTORY_BYTES_MAX)
    }

    /// This response comes from the client's cluster: that of the first response.
    fn check_cluster<T>(
        &self,
        address: &str,
        answer: &Result<tonic::Response<T>, Status>,
    ) -> Result<(), FailedRequest> {
        let metadata = match answer {
            Ok(answer) => answer.metadata(),
            Err(status) => status.metadata(),
        };
        let Some(theirs) = named_cluster(metadata) else {
            return Ok(());
        };
        if self.cluster.is_another(theirs) && self.addresses.lock().forget(address) {
            let why = NoResponse::Reason(format!("it is one of cluster {theirs} by now"));
            let error = MasterError::Unavailable(failed("master", address, &why));
            return Err(FailedRequest::AskAgain(error));
        }
        self.cluster.check(theirs).map_err(FailedRequest::Final)
    }

    /// Asks it; the connection ends with the last of those who ask. While no master leads, those that are known are asked
    /// again, for as long as one is waited for.
    pub(crate) async fn ask<T, F>(
        &self,
        repetition: Repetition,
        ask: impl Fn(MasterStub) -> F,
    ) -> Result<T, MasterError>
    where
        F: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        let (began, mut asked) = (Instant::now(), 0);
        let mut pause = NO_LEADER_PAUSE;
        loop {
            let address = self.address();
            let error = match self.ask_at(&address, repetition, &ask).await {
                Ok(answer) => return Ok(answer),
                Err(FailedRequest::Final(error)) => return Err(error),
                Err(FailedRequest::AskAgain(error)) => error,
            };
            // A standby's response shows that there are several.
            let (masters, has_standbys, has_next) = {
                let addresses = self.addresses.lock();
                let (masters, has_standbys) = (addresses.count(), addresses.have_standbys());
                // The last one besides may just have been forgotten.
                let has_next = masters > 1 || addresses.current() != address;
                (masters, has_standbys, has_next)
            };
            let limit = if has_standbys {
                TAKES_OVER
            } else {
                MASTER_TIMEOUT
            };
            if !has_next || began.elapsed() >= limit {
                return Err(error);
            }
            asked += 1;
            // A standby, and the leader that it names.
            if asked % (masters + 1) == 0 {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(NO_LEADER_PAUSE_MAX);
            }
        }
    }

    async fn ask_at<T, F>(
        &self,
        address: &str,
        repetition: Repetition,
        ask: impl Fn(MasterStub) -> F,
    ) -> Result<T, FailedRequest>
    where
        F: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        let began = Instant::now();
        let is_alone = !self.addresses.lock().are_several();
        let timeout = self.timeout(repetition, is_alone);
        let channel = match self.channel(address) {
            Ok(channel) => channel,
            // A master has named something else.
            Err(error) if !is_alone => {
                self.addresses.lock().no_answer(address, began, began);
                return Err(FailedRequest::AskAgain(error));
            }
            Err(error) => return Err(FailedRequest::Final(error)),
        };
        let in_flight = InFlightRequest {
            addresses: (repetition == Repetition::Harmless).then_some(&self.addresses),
            address,
            began,
        };
        let asked = tokio::time::timeout(timeout, ask(self.stub(&channel))).await;
        in_flight.answered();
        if let Ok(answer) = &asked {
            self.check_cluster(address, answer)?;
        }
        let silent = |error, was_sent| {
            let now = Instant::now();
            self.addresses.lock().no_answer(address, began, now);
            if was_sent && repetition == Repetition::Matters {
                FailedRequest::Final(error)
            } else {
                FailedRequest::AskAgain(error)
            }
        };
        let status = match asked {
            Ok(Ok(answer)) => {
                *self.timeout_of_several.lock() = TIMEOUT_OF_SEVERAL;
                self.addresses.lock().answered(answer.metadata());
                return Ok(answer.into_inner());
            }
            Ok(Err(status)) => {
                self.addresses.lock().learn(status.metadata());
                status
            }
            Err(_) => return Err(silent(self.timed_out(address, timeout, is_alone), true)),
        };
        let error = MasterError::of(address, &status);
        if let Some(leader) = leader_of(&status) {
            let mut addresses = self.addresses.lock();
            addresses.not_leading(address, leader.as_ref(), Instant::now());
            return Err(FailedRequest::AskAgain(error));
        }
        // What a server has answered has no source.
        if matches!(error, MasterError::Unavailable(_)) && is_of_the_way(&status) {
            return Err(silent(error, !is_unconnected(&status)));
        }
        Err(FailedRequest::Final(error))
    }

    /// How long an attempt at one master may take.
    fn timeout(&self, repetition: Repetition, is_alone: bool) -> Duration {
        match repetition {
            Repetition::Harmless if !is_alone => *self.timeout_of_several.lock(),
            // The connection's own timer is one of the runtime that made it, which may stand still.
            Repetition::Harmless | Repetition::Matters => 2 * MASTER_TIMEOUT,
        }
    }

    /// The error of an attempt that took too long. The next one has a new connection and more time.
    fn timed_out(&self, address: &str, timeout: Duration, is_alone: bool) -> MasterError {
        *self.timeout_of_several.lock() = (2 * timeout).min(2 * MASTER_TIMEOUT);
        *self.shared.lock() = (String::new(), Weak::new());
        MasterError::Unavailable(if is_alone {
            STANDS_STILL.to_owned()
        } else {
            failed("master", address, &NoResponse::Silent(timeout))
        })
    }

    pub(crate) async fn directory(
        &self,
        request: v1::DirectoryRequest,
        trace: Option<TraceParent>,
    ) -> Result<v1::DirectoryResponse, MasterError> {
        let asked = self.ask(Repetition::Harmless, |mut client| async move {
            client.directory(traced(request, trace)).await
        });
        let directory = asked.await?;
        self.cluster.check(&directory.cluster_id)?;
        Ok(directory)
    }

    pub(crate) async fn locate(
        &self,
        request: v1::LocateRequest,
        trace: Option<TraceParent>,
    ) -> Result<v1::LocateResponse, MasterError> {
        let asked = self.ask(Repetition::Harmless, |mut client| {
            let request = traced(request.clone(), trace);
            async move { client.locate(request).await }
        });
        let located = asked.await?;
        self.cluster.check(&located.cluster_id)?;
        Ok(located)
    }
}

/// A request under way, whose caller may give it up before the time of this one is over: the next request goes to the next master
/// then.
struct InFlightRequest<'a> {
    /// None: it doesn't count.
    addresses: Option<&'a Mutex<MasterAddresses>>,
    address: &'a str,
    began: Instant,
}

impl InFlightRequest<'_> {
    fn answered(mut self) {
        self.addresses = None;
    }
}

impl Drop for InFlightRequest<'_> {
    fn drop(&mut self) {
        if let Some(addresses) = self.addresses
            && self.began.elapsed() >= SILENT
        {
            let now = Instant::now();
            addresses.lock().no_answer(self.address, self.began, now);
        }
    }
}

/// A request that a master has not carried out, as far as is known.
enum FailedRequest {
    /// Another one may have one.
    AskAgain(MasterError),
    /// The caller has to decide.
    Final(MasterError),
}

fn endpoint(address: &str) -> Result<Endpoint, MasterError> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"));
    let endpoint = endpoint.map_err(|_| {
        let text = address.to_owned();
        MasterError::Invalid(NoMasterAddress { text }.to_string())
    })?;
    Ok(endpoint
        .timeout(MASTER_TIMEOUT)
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .tcp_nodelay(true))
}

/// Whether the request of this status has surely never left: there is no connection.
fn is_unconnected(status: &tonic::Status) -> bool {
    let source = std::error::Error::source(status);
    std::iter::successors(source, |error| error.source())
        .any(|error| error.downcast_ref::<tonic::ConnectError>().is_some())
}

/// A request that says in which trace it is, if in one.
pub(crate) fn traced<T>(request: T, trace: Option<TraceParent>) -> tonic::Request<T> {
    let mut request = tonic::Request::new(request);
    let header = trace.and_then(|trace| v1::TraceContext::from(trace).header().parse().ok());
    if let Some(header) = header {
        request
            .metadata_mut()
            .insert(v1::TraceContext::HEADER, header);
    }
    request
}

impl MasterError {
    /// Of what the master at this address answered.
    pub fn of(address: &str, status: &tonic::Status) -> Self {
        let message = status.message().to_owned();
        match status.code() {
            // Asking again doesn't help: it has no room for another table, say.
            Code::InvalidArgument | Code::FailedPrecondition | Code::ResourceExhausted => {
                Self::Invalid(message)
            }
            Code::AlreadyExists => Self::AlreadyExists(message),
            Code::NotFound => Self::NotFound(message),
            Code::Unimplemented => Self::Invalid(format!(
                "the server at {address} is not a master; `percolator up` shows where the master is"
            )),
            _ => {
                let has_expired = status.message() == tonic::TimeoutExpired(()).to_string();
                let silence = if has_expired {
                    MASTER_TIMEOUT
                } else {
                    PING_INTERVAL + PING_TIMEOUT
                };
                let why = no_response_of_status(status, silence);
                Self::Unavailable(failed("master", address, &why))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A client without an oracle waits a second for a master that stands still.
    #[tokio::test]
    async fn a_master_that_was_given_up_is_not_asked_again() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = silent.local_addr().unwrap().to_string();
        let master = Master::new(&format!("{address},127.0.0.1:1")).unwrap();
        let ask = || master.directory(v1::DirectoryRequest::default(), None);
        let soon = tokio::time::timeout(SILENT / 10, ask()).await;
        assert!(soon.is_err());
        assert_eq!(master.address(), address, "nobody has waited for it");
        let later = tokio::time::timeout(2 * SILENT, ask()).await;
        assert!(later.is_err());
        assert_eq!(master.address(), "127.0.0.1:1");
    }
}
