//! What a client needs of the world: peers, time, randomness, and something that runs its background
//! work. The network implements it in `network`; a simulator can too.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::types::{Timestamp, TraceParent};
use percolator_wire::v1;

use crate::oracle::OracleClient;

/// A future that owns, or borrows for `'a`, what it needs.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A request that was not answered, and why.
#[derive(Clone, Debug)]
pub struct Lost {
    /// For people.
    pub why: String,
    /// Nothing of it has left this process, and won't. Otherwise whether it was carried out is unknown.
    pub never_sent: bool,
}

impl Lost {
    /// It may have been carried out.
    pub fn unknown(why: String) -> Self {
        Self {
            why,
            never_sent: false,
        }
    }

    /// It was never sent.
    pub fn never_sent(why: String) -> Self {
        Self {
            why,
            never_sent: true,
        }
    }
}

/// Another cluster is where the client's was: that one was deleted, and this one made since.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the client's cluster, {ours}, was replaced: cluster {theirs} answers in its place, and has other tables. Connect a \
     new client to use that one"
)]
pub struct Replaced {
    /// The client's cluster.
    pub ours: String,
    /// The one that answers.
    pub theirs: String,
}

/// Knows the client's cluster by the master's first response: what is known of tables and tablets is of that one alone.
#[derive(Debug, Default)]
pub struct OneCluster {
    id: OnceLock<String>,
    replaced: OnceLock<Replaced>,
}

impl OneCluster {
    /// A response of the master of this cluster, which has to be the client's.
    ///
    /// # Errors
    /// [`MasterError::Replaced`]: it is another one's.
    pub fn check(&self, cluster_id: &str) -> Result<(), MasterError> {
        self.id.get_or_init(|| cluster_id.to_owned());
        self.check_id(cluster_id)
    }

    /// The response to a session is of the client's cluster, or none is known yet.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn check_session(
        &self,
        response: v1::SessionResponse,
    ) -> Result<v1::SessionResponse, MasterError> {
        self.check_id(&response.cluster_id).map(|()| response)
    }

    fn check_id(&self, theirs: &str) -> Result<(), MasterError> {
        let Some(ours) = self.id.get().filter(|_| self.is_another(theirs)) else {
            return Ok(());
        };
        let replaced = self.replaced.get_or_init(|| Replaced {
            ours: ours.clone(),
            theirs: theirs.to_owned(),
        });
        Err(MasterError::Replaced(replaced.clone()))
    }

    /// Whether this is not the client's cluster, as far as that is known.
    pub(crate) fn is_another(&self, cluster_id: &str) -> bool {
        let is_another = self.id().is_some_and(|ours| ours != cluster_id);
        is_another && !mutants::on(Mutant::ReplacedClusterTaken)
    }

    /// The cluster's id, once it is known.
    pub fn id(&self) -> Option<&str> {
        self.id.get().map(String::as_str)
    }

    /// Another one has answered in its place.
    pub fn replaced(&self) -> Option<Replaced> {
        self.replaced.get().cloned()
    }
}

/// What the master did not do.
#[derive(Clone, Debug)]
pub enum MasterError {
    /// It is another cluster's.
    Replaced(Replaced),
    /// It wasn't reached, or is not ready: trying again is harmless.
    Unavailable(String),
    /// It refuses, for this reason.
    Invalid(String),
    /// What is to be made is there already.
    AlreadyExists(String),
    /// What is named isn't there.
    NotFound(String),
}

impl MasterError {
    /// Its text, for people.
    pub fn into_message(self) -> String {
        match self {
            Self::Unavailable(why)
            | Self::Invalid(why)
            | Self::AlreadyExists(why)
            | Self::NotFound(why) => why,
            Self::Replaced(replaced) => replaced.to_string(),
        }
    }
}

/// Work that goes on with a transport of its own.
pub type Apart = Box<dyn FnOnce(Arc<dyn Transport>) -> BoxFuture<'static, ()> + Send>;

/// Peers, time, randomness, background work.
pub trait Transport: Send + Sync + 'static {
    /// Sends a request to the tablet server at this address. Its id is set on the way. Anyone who waits for
    /// the response is woken now and then, where deadlines matter: it has no timer of its own.
    fn tablet(
        &self,
        address: &str,
        request: v1::Request,
    ) -> BoxFuture<'_, Result<v1::Response, Lost>>;
    /// A timestamp of the oracle, asked for after this call began; for a transaction in this trace, if in one.
    fn timestamp(&self, trace: Option<TraceParent>) -> BoxFuture<'_, Result<Timestamp, Lost>>;
    /// A commit_ts for the transaction that began at `start_ts`: a timestamp as any other. The simulator also grants such
    /// as two oracles with overlapping rights would.
    fn commit_timestamp(
        &self,
        _start_ts: Timestamp,
        trace: Option<TraceParent>,
    ) -> BoxFuture<'_, Result<Timestamp, Lost>> {
        self.timestamp(trace)
    }
    /// What [`Self::timestamp`] asks, where it is one of these: thousands of callers share a request to it, and
    /// a box around each one's wait and a reading of the clock would cost a third of the caller's part.
    fn oracle(&self) -> Option<&OracleClient> {
        None
    }
    /// The cluster's id, once the master has answered.
    fn cluster_id(&self) -> Option<String> {
        None
    }
    /// Renews the lease of a client's transactions at the master; for one in this trace, if that is why.
    fn session(
        &self,
        request: v1::SessionRequest,
        trace: Option<TraceParent>,
    ) -> BoxFuture<'_, Result<v1::SessionResponse, MasterError>>;
    /// Where rows are; for a transaction in this trace, if in one.
    fn locate(
        &self,
        request: v1::LocateRequest,
        trace: Option<TraceParent>,
    ) -> BoxFuture<'_, Result<v1::LocateResponse, MasterError>>;
    /// Where everything is, for people and tools.
    fn directory(
        &self,
        trace: Option<TraceParent>,
    ) -> BoxFuture<'_, Result<v1::DirectoryResponse, MasterError>>;
    /// Makes a table.
    fn create_table(
        &self,
        request: v1::CreateTableRequest,
    ) -> BoxFuture<'_, Result<v1::CreateTableResponse, MasterError>>;
    /// Deletes a table.
    fn delete_table(
        &self,
        request: v1::DeleteTableRequest,
    ) -> BoxFuture<'_, Result<v1::DeleteTableResponse, MasterError>>;
    /// Cuts tablets of a table.
    fn split_table(
        &self,
        request: v1::SplitTableRequest,
    ) -> BoxFuture<'_, Result<v1::SplitTableResponse, MasterError>>;
    /// Makes one tablet of two.
    fn merge_table(
        &self,
        request: v1::MergeTableRequest,
    ) -> BoxFuture<'_, Result<v1::MergeTableResponse, MasterError>>;
    /// Hands a tablet over to another server.
    fn move_tablet(
        &self,
        request: v1::MoveTabletRequest,
    ) -> BoxFuture<'_, Result<v1::MoveTabletResponse, MasterError>>;
    /// Says whether tablet servers are to have no tablets.
    fn drain_servers(
        &self,
        request: v1::DrainServersRequest,
    ) -> BoxFuture<'_, Result<v1::DrainServersResponse, MasterError>>;
    /// Another cluster has answered in the place of the client's.
    fn replaced(&self) -> Option<Replaced> {
        None
    }
    /// Time since some fixed point; never goes back.
    fn now(&self) -> Duration;
    /// [`Self::now`] for leases: it also runs while the machine is suspended.
    fn lease_clock(&self) -> Duration {
        self.now()
    }
    /// Runs what has to go on while the application's own runtime stands still, with connections of its own.
    ///
    /// # Errors
    /// The work, which has to go on with this transport: there is no other place.
    fn spawn_apart(&self, work: Apart) -> Result<(), Apart> {
        Err(work)
    }
    /// Waits.
    fn sleep(&self, duration: Duration) -> BoxFuture<'_, ()>;
    /// A random number.
    fn random(&self) -> u64;
    /// Runs a future in the background.
    fn spawn(&self, future: BoxFuture<'static, ()>);
}

/// How long to wait before the next attempt: doubled each time, up to a bound, and between half and
/// all of that at random, so that those who met don't meet again.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    max: Duration,
}

impl Backoff {
    pub(crate) fn new(first: Duration, max: Duration) -> Self {
        Self { next: first, max }
    }

    pub(crate) async fn wait(&mut self, transport: &dyn Transport) {
        let micros = u64::try_from(self.next.as_micros())
            .unwrap_or(u64::MAX)
            .max(2);
        let jittered = micros / 2 + transport.random() % (micros / 2);
        self.next = (self.next * 2).min(self.max);
        transport.sleep(Duration::from_micros(jittered)).await;
    }
}
