//! The way in: a cluster, seen from an application.

use std::sync::Arc;
use std::time::Duration;

use percolator_protocol::actions::Status;
use percolator_protocol::oracle::Granted;
use percolator_protocol::txn::MetLock;
use percolator_protocol::types::{Cell, Chain, Lock, LockKind, Timestamp, TraceParent};
use percolator_telemetry::trace::Tracer;

use crate::cluster::{Cluster, ReportedServer, Table};
use crate::kind::TxnKind;
use crate::master::MASTER_TIMEOUT;
use crate::metrics::Metrics;
use crate::network::Network;
use crate::options::Options;
use crate::oracle::OracleError;
use crate::router::{CallError, Deadline, Router};
use crate::trace::Cause;
use crate::transport::{MasterError, Replaced, Transport};
use crate::txn::Txn;
use crate::{Error, MetricsError, Registry};

const TAKING_A_TIMESTAMP: &str = "taking a timestamp";
/// An attempt to reach a master that took longer met silence: a refusal comes at once.
const SILENCE: Duration = Duration::from_secs(1);

/// A cluster. Clones share their connections.
#[derive(Clone)]
pub struct Client {
    pub(crate) router: Arc<Router>,
    pub(crate) options: Options,
    /// The span of another process because of which its transactions begin.
    pub(crate) cause: Option<Cause>,
}

/// What became of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is committed.
    Committed(Timestamp),
    /// It was rolled back, now at the latest.
    RolledBack,
    /// Its client is alive and may still commit it. Ask again.
    Pending,
    /// It began so long ago that its records may have been collected: it may be committed, and nobody knows any
    /// more.
    Forgotten,
}

impl Client {
    /// Connects to the cluster whose master is at this address, HOST:PORT; of several masters, with commas between.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it's no address; [`Error::Unavailable`] if nobody answers there.
    pub async fn connect(master: &str) -> Result<Self, Error> {
        Self::connect_with(master, Options::default()).await
    }

    /// [`Self::connect`], with options.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub async fn connect_with(master: &str, options: Options) -> Result<Self, Error> {
        Self::connect_through(master, &[], options).await
    }

    /// Whether a cluster is there, and which one. If the master neither refuses nor answers, packets may have been lost, of the
    /// lookup of its name too: it is asked again while there is time. Several masters have been asked again by then.
    pub(crate) async fn reached(&self) -> Result<(), Error> {
        let deadline = self.deadline();
        let mut silence = None;
        loop {
            let asked = self.router.world.transport.now();
            let error = match self.router.reach(deadline).await {
                Ok(()) => return Ok(()),
                Err(MasterError::Invalid(why)) => return Err(Error::Invalid(why)),
                Err(error) => error,
            };
            let now = self.router.world.transport.now();
            let error = match silence.take() {
                // The last attempt was cut short by the deadline, and says less.
                Some(earlier) if now >= deadline.end => earlier,
                _ if now < deadline.end
                    && (SILENCE..MASTER_TIMEOUT).contains(&now.saturating_sub(asked)) =>
                {
                    silence = Some(error);
                    continue;
                }
                _ => error,
            };
            return Err(Error::Unavailable(format!(
                "{}; is a cluster running there? `percolator up` starts one. Of several masters, name all, with commas between",
                error.into_message()
            )));
        }
    }

    /// A client over another transport than the network.
    pub fn over(transport: Arc<dyn Transport>, options: Options) -> Self {
        Self {
            router: Arc::new(Router::new(transport)),
            options,
            cause: None,
        }
    }

    /// Its options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Another cluster has answered in the place of this client's, as far as a call has met it: nothing of the client works any
    /// more.
    pub fn replaced(&self) -> Option<Replaced> {
        self.router.world.transport.replaced()
    }

    /// Begins a transaction at a snapshot of now.
    ///
    /// # Errors
    /// [`Error::Timeout`] where the oracle isn't reached.
    pub async fn begin(&self) -> Result<Txn, Error> {
        if let Some(traced) = self.traced() {
            // In a box, so that the usual call's future stays small.
            return Box::pin(self.begin_on(traced, self.deadline())).await;
        }
        let held = self.router.hold();
        let asked = self.router.world.transport.now();
        let start_ts = self.timestamp().await?;
        self.count_begun(asked);
        let router = self.router.clone();
        Ok(Txn::new(router, self.options, start_ts, asked, held))
    }

    /// [`Self::begin`], for a run of an observer: a part of the trace in which the change was written.
    pub(crate) async fn begin_for(&self, chain: &Chain) -> Result<Txn, Error> {
        let cause = chain.trace.map(Cause::Change);
        let slow = self.options.slow_transaction;
        match cause.and_then(|_| self.router.traced(slow, cause)) {
            Some(traced) => self.begin_on(traced, self.deadline()).await,
            None => self.begin().await,
        }
    }

    /// [`Self::begin`], by a deadline that began earlier.
    pub(crate) async fn begin_by(&self, deadline: Deadline) -> Result<Txn, Error> {
        let deadline =
            deadline.or_after(&*self.router.world.transport, self.options.request_timeout);
        let router = self.traced().unwrap_or_else(|| self.router.clone());
        self.begin_on(router, deadline).await
    }

    async fn begin_on(&self, router: Arc<Router>, deadline: Deadline) -> Result<Txn, Error> {
        let held = router.hold();
        let asked = self.router.world.transport.now();
        let start_ts = router
            .timestamp(deadline)
            .await
            .map_err(|error| self.failed(deadline, TAKING_A_TIMESTAMP, error))?;
        self.count_begun(asked);
        if let Some(trace) = &router.trace {
            trace.begun(start_ts);
        }
        Ok(Txn::new(router, self.options, start_ts, asked, held))
    }

    fn count_begun(&self, since: Duration) {
        if let Some(metrics) = self.router.metrics() {
            metrics.began(self.router.world.transport.now().saturating_sub(since));
        }
    }

    /// Begins a transaction at an earlier snapshot, that only reads: a start_ts is the name of its writer
    /// with it, and this one may be somebody else's.
    ///
    /// # Errors
    /// [`Error::NoSnapshot`] if the oracle hasn't handed out the timestamp yet: what is to be committed
    /// below it isn't settled.
    pub async fn begin_at(&self, snapshot: Timestamp) -> Result<Txn, Error> {
        self.begin_earlier(snapshot, TxnKind::Reads).await
    }

    /// A timestamp of the oracle: everything committed before this call lies below it.
    ///
    /// # Errors
    /// [`Error::Timeout`] where the oracle isn't reached.
    pub async fn timestamp(&self) -> Result<Timestamp, Error> {
        let transport = &*self.router.world.transport;
        let failed = |deadline| move |error| self.failed(deadline, TAKING_A_TIMESTAMP, error);
        let Some(oracle) = transport.oracle() else {
            let deadline = self.deadline();
            let tried = self.router.timestamp(deadline).await;
            return tried.map_err(failed(deadline));
        };
        let lost = match oracle.timestamp().await {
            Ok(ts) => return Ok(ts),
            Err(lost) => lost,
        };
        let again = async {
            let deadline = self.deadline().begun_before(lost.waited());
            let tried = self
                .router
                .timestamp_after(lost.to_string(), deadline)
                .await;
            tried.map_err(failed(deadline))
        };
        // In a box, so that the usual call's future stays small.
        Box::pin(again).await
    }

    /// Whether what began here, with this client, is surely readable now: the lease that the master has granted
    /// covers it, and lasts. As long as clocks don't go slow, such a transaction is not
    /// [`Error::TooOld`]; without a lease it may be all the same that it isn't.
    pub fn is_covered(&self, start_ts: Timestamp) -> bool {
        let now = self.router.world.transport.lease_clock();
        self.router.world.session.is_covered(start_ts, now)
    }

    /// Waits until the cells of every commit of this client are in place. A commit returns when it is
    /// decided and durable, and the rest follows in the background; a program that ends before that
    /// leaves locks, which are in the way of others until they have cleared them. Nor does what has ended hold up
    /// garbage collection after this, as it would until the client's lease is over.
    pub async fn settle(&self) {
        self.router.settled().await;
        self.router.let_go().await;
    }

    /// What became of a transaction, by its primary: for a response that was lost
    /// ([`Error::Unknown`]). A transaction whose ttl is over is rolled back by this.
    ///
    /// # Errors
    /// [`Error::Timeout`] where the primary's server or the oracle isn't reached; [`Error::UnknownTable`];
    /// [`Error::NoTransaction`] where the oracle hasn't handed out the timestamp yet.
    pub async fn outcome(&self, start_ts: Timestamp, primary: &Cell) -> Result<Outcome, Error> {
        let no_transaction = |why| Err(Error::NoTransaction { start_ts, why });
        if start_ts == Timestamp::ZERO {
            return no_transaction("timestamps are above 0".to_owned());
        }
        // A server can't distinguish a timestamp that was never handed out from one still under way, or refuses it as above its lease.
        let now = self.timestamp().await?;
        if start_ts > now {
            return no_transaction(format!(
                "its timestamp was not handed out yet, the oracle is at {now}"
            ));
        }
        let deadline = self.deadline();
        if !self.router.knows_table(primary.table, deadline).await {
            return Err(Error::UnknownTable {
                name: format!("number {}", primary.table.0),
            });
        }
        let met = MetLock {
            cell: primary.clone(),
            lock: Lock {
                kind: LockKind::Put,
                primary: primary.clone(),
                start_ts,
                ttl_ms: self.options.lock_ttl_ms(),
                min_commit_ts: Timestamp::ZERO,
                committing: false,
                generation: 0,
                short_value: None,
                chain: None,
            },
        };
        let deadline = self.deadline();
        let status = self
            .router
            .primary_status(&met, None, false, deadline)
            .await
            .map_err(|error| self.failed(deadline, "asking for an outcome", error));
        let status = match status {
            Err(Error::TooOld(_)) => return Ok(Outcome::Forgotten),
            status => status?,
        };
        Ok(match status {
            Status::Committed(commit_ts) => Outcome::Committed(commit_ts),
            Status::RolledBack => Outcome::RolledBack,
            Status::Alive { .. } | Status::PrimaryPending => Outcome::Pending,
        })
    }

    /// This client with other options, over the same connections: for one call that may take longer, say.
    #[must_use]
    pub fn with_options(&self, options: Options) -> Self {
        Self {
            options,
            ..self.clone()
        }
    }

    /// The cluster as its master lists it now: its servers and tables.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn cluster(&self) -> Result<Cluster, Error> {
        self.listing().await
    }

    /// The tables, by name. [`Self::cluster`] also has those that are being deleted.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn tables(&self) -> Result<Vec<Table>, Error> {
        let mut tables = self.cluster().await?.tables;
        tables.retain(|table| !table.deleting);
        Ok(tables)
    }

    /// The servers that have reported to the master, and whether they are alive.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn servers(&self) -> Result<Vec<ReportedServer>, Error> {
        Ok(self.listing().await?.servers)
    }

    /// The cluster's id.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn cluster_id(&self) -> Result<String, Error> {
        Ok(self.listing().await?.id)
    }

    async fn listing(&self) -> Result<Cluster, Error> {
        self.router
            .listing(self.deadline())
            .await
            .map_err(|error| Error::Unavailable(error.into_message()))
    }

    pub(crate) fn deadline(&self) -> Deadline {
        self.router.deadline(self.options.request_timeout)
    }

    fn failed(&self, deadline: Deadline, doing: &'static str, error: CallError) -> Error {
        let error = deadline.error(&*self.router.world.transport, doing, error);
        self.router.by_cause(error)
    }

    /// [`Self::connect_with`], with timestamps from one of these relays, HOST:PORT each, such as the proxies of the cluster. If
    /// none of them answers, they come from the oracle.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub async fn connect_through(
        master: &str,
        relays: &[String],
        options: Options,
    ) -> Result<Self, Error> {
        let network = Network::through(master, relays, options.request_timeout);
        let client = Self::over(Arc::new(network.map_err(Error::Invalid)?), options);
        client.reached().await.map(|()| client)
    }

    /// `count` timestamps in a row, all higher than any that was granted before this call began: what a relay hands on. `traces`:
    /// of the callers that get them; the request to the oracle names the first few.
    ///
    /// # Errors
    /// [`OracleError`].
    pub async fn timestamps(
        &self,
        count: u32,
        traces: &[TraceParent],
    ) -> Result<Granted, OracleError> {
        match self.router.world.transport.oracle() {
            Some(oracle) => oracle.timestamps_for(count, traces).await,
            None => Err(OracleError::Stopped),
        }
    }

    /// The cluster's id, once the master has answered.
    pub fn known_cluster_id(&self) -> Option<String> {
        self.router.world.transport.cluster_id()
    }

    /// Sends spans of the transactions of this client and its clones to the provider, as far as it samples them. Each transaction
    /// is a trace, or a part of its caller's trace, with a span for each step and those of the servers below them.
    /// `docs/tracing.md` names them. A client without a provider makes no spans. False: the client has a provider already, and
    /// keeps it.
    pub fn trace<P>(&self, provider: &P) -> bool
    where
        P: opentelemetry::trace::TracerProvider,
        P::Tracer: Send + Sync + 'static,
        <P::Tracer as opentelemetry::trace::Tracer>::Span: Send + Sync + 'static,
    {
        let tracer = Arc::new(Tracer::of(provider));
        self.router.world.tracer.set(tracer).is_ok()
    }

    /// This client, for a transaction that is made because of a call of another process: with [`Self::trace`], it is a part of the
    /// trace that the call is in. `traceparent`: what the call says of that in its W3C header; one that samples nothing, or is none,
    /// makes no span of the transaction.
    pub fn in_trace(&self, traceparent: &str) -> Self {
        Self {
            cause: Some(Cause::of_call(traceparent)),
            ..self.clone()
        }
    }

    /// The router of a transaction that begins now, if that is traced.
    pub(crate) fn traced(&self) -> Option<Arc<Router>> {
        self.router
            .traced(self.options.slow_transaction, self.cause)
    }

    /// Counts from now on what this client, its clones and their transactions do, as `docs/metrics.md` says, and shows
    /// it in the application's registry. Without it nothing is counted.
    ///
    /// # Errors
    /// The registry has another client's metrics, or this client has shown its own already.
    pub fn measure(&self, registry: &Registry) -> Result<(), MetricsError> {
        let metrics = Metrics::new(registry)?;
        let first = self.router.world.measured.set(metrics).is_ok();
        if first {
            Ok(())
        } else {
            Err(MetricsError::AlreadyReg)
        }
    }
}
