//! Sends requests to the owners of their cells, and goes on until they're answered: asks the master
//! again where a tablet has moved, and tries again where a response was lost. Every request is harmless
//! when repeated.

use std::collections::{BTreeSet, HashMap};
use std::future::poll_fn;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock, Weak};
use std::task::Poll;
use std::time::Duration;

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use percolator_protocol::safe_point::TooOld;
use percolator_protocol::txn::Ending;
use percolator_protocol::types::{Cell, TableId, Timestamp};
use percolator_telemetry::trace::Tracer;
use percolator_wire::v1;
use percolator_wire::v1::response::Body;
use tokio::sync::watch;

use crate::Error;
use crate::attempts::sort;
use crate::cluster::ReportedServer;
use crate::group::RequestGroup;
use crate::location_cache::{LocationCache, RowQuery, UnknownLocation};
use crate::metrics::Metrics;
use crate::retry::{Retry, RetryCause, Turns};
use crate::session::GcSession;
use crate::trace::Trace;
use crate::transport::{Replaced, Transport};

/// Cells in one request, and bytes of keys and values; a single value may be larger. What is more is cut: others are
/// to wait behind a few milliseconds' work, not behind a whole transaction.
const GROUP_CELLS_MAX: usize = 512;
const GROUP_BYTES_MAX: usize = 512 << 10;

/// The way to the servers, for anyone who calls.
pub(crate) struct Router {
    pub(crate) world: Arc<World>,
    /// The trace of its transaction, if that is traced.
    pub(crate) trace: Option<Trace>,
}

/// The world, and where things are in it.
pub(crate) struct World {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) session: Arc<GcSession>,
    /// Closed when the client is gone.
    pub(crate) ended: watch::Sender<()>,
    pub(crate) locations: RwLock<LocationCache>,
    /// Servers by name, as they were in the last listing of everything.
    pub(crate) servers: RwLock<HashMap<String, ReportedServer>>,
    /// By address: the incarnation in a tablet server's last response that had one. `locations` has the others.
    pub(crate) incarnations: RwLock<HashMap<String, u64>>,
    /// How many commits go on in the background.
    background: watch::Sender<usize>,
    /// What others have left that is cleared in the background: which transaction's, in which tablet.
    pub(crate) clearing: Mutex<BTreeSet<(Timestamp, u64)>>,
    /// Of the rows that its transactions keep.
    pub(crate) cached_bytes: Arc<AtomicUsize>,
    /// Whose turn it is to resolve locks in a tablet.
    pub(crate) turns: Turns,
    /// Where the application wants it.
    pub(crate) measured: OnceLock<Metrics>,
    /// Where the application wants traces.
    pub(crate) tracer: OnceLock<Arc<Tracer>>,
}

/// Counts a commit that goes on in the background, until it is dropped.
pub(crate) struct BackgroundGuard(Arc<Router>);

impl Drop for BackgroundGuard {
    fn drop(&mut self) {
        self.0.world.background.send_modify(|going| *going -= 1);
    }
}

/// The response for some of a call's cells.
pub(crate) type Answered = (Vec<usize>, Result<Body, CallError>);

/// The reason why cells have no response.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// The deadline passed; the last thing that was seen. What became of the request is unknown.
    #[error("{0}")]
    GaveUp(String),
    /// The server says that the request is wrong.
    #[error("{0}")]
    Invalid(String),
    /// The cells' table is being deleted: the server refused, and will for good.
    #[error("table number {} is being deleted", .0.0)]
    BeingDeleted(TableId),
    /// The cells' table was deleted.
    #[error("table number {} was deleted", .0.0)]
    Deleted(TableId),
    /// The transaction is too old for what was asked.
    #[error(transparent)]
    TooOld(TooOld),
    /// The cluster isn't there any more.
    #[error(transparent)]
    Replaced(Replaced),
}

/// When to give up: on the transport's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    pub(crate) start: Duration,
    pub(crate) end: Duration,
}

impl Deadline {
    pub(crate) fn passed(&self, transport: &dyn Transport) -> bool {
        transport.now() >= self.end
    }

    pub(crate) fn left(&self, transport: &dyn Transport) -> Duration {
        self.end.saturating_sub(transport.now())
    }

    /// The same, begun this much earlier.
    pub(crate) fn begun_before(&self, earlier: Duration) -> Self {
        Self {
            start: self.start.saturating_sub(earlier),
            end: self.end.saturating_sub(earlier),
        }
    }

    /// This one, or `request_timeout` from now on, whichever is first.
    pub(crate) fn or_after(&self, transport: &dyn Transport, request_timeout: Duration) -> Self {
        Self {
            start: self.start,
            end: self
                .end
                .min(transport.now().saturating_add(request_timeout)),
        }
    }

    /// Waits for an attempt until then; `None`: it isn't done.
    pub(crate) async fn within<T>(
        &self,
        transport: &dyn Transport,
        attempt: impl Future<Output = T>,
    ) -> Option<T> {
        let left = self.left(transport);
        tokio::select! {
            biased;
            done = attempt => Some(done),
            () = transport.sleep(left) => None,
        }
    }

    /// [`Self::within`], without a timer for an attempt that doesn't wait: it would cost more than the
    /// request. Reads the clock when the transport wakes it ([`Transport::tablet`]). On
    /// failure, how long it has waited since it read the clock first.
    pub(crate) async fn watching<T>(
        &self,
        transport: &dyn Transport,
        attempt: impl Future<Output = T>,
    ) -> Result<T, Duration> {
        let mut attempt = std::pin::pin!(attempt);
        let mut first = true;
        let waits = poll_fn(|cx| match attempt.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if std::mem::take(&mut first) => Poll::Pending,
            Poll::Pending => Poll::Ready(None),
        });
        if let Some(done) = waits.await {
            return Ok(done);
        }
        let since = transport.now();
        // In a box, so that the usual request's future stays small.
        let done = Box::pin(self.within(transport, attempt)).await;
        done.ok_or_else(|| transport.now().saturating_sub(since))
    }

    pub(crate) fn error(
        &self,
        transport: &dyn Transport,
        doing: &'static str,
        error: CallError,
    ) -> Error {
        match error {
            CallError::GaveUp(last) => Error::Timeout {
                after: transport.now().saturating_sub(self.start),
                doing,
                last,
            },
            CallError::Invalid(why) => Error::Invalid(why),
            CallError::TooOld(too_old) => Error::TooOld(too_old),
            CallError::Replaced(replaced) => Error::ClusterReplaced(replaced),
            CallError::BeingDeleted(table) | CallError::Deleted(table) => Error::UnknownTable {
                name: format!("number {}, it was deleted", table.0),
            },
        }
    }
}

impl Router {
    pub(crate) fn new(transport: Arc<dyn Transport>) -> Self {
        let world = World {
            transport,
            session: Arc::default(),
            ended: watch::Sender::new(()),
            locations: RwLock::default(),
            servers: RwLock::default(),
            incarnations: RwLock::default(),
            background: watch::Sender::new(0),
            clearing: Mutex::default(),
            cached_bytes: Arc::default(),
            turns: Turns::default(),
            measured: OnceLock::new(),
            tracer: OnceLock::new(),
        };
        Self {
            world: Arc::new(world),
            trace: None,
        }
    }

    /// The same way, for one transaction.
    pub(crate) fn with_trace(&self, trace: Trace) -> Self {
        Self {
            world: self.world.clone(),
            trace: Some(trace),
        }
    }

    /// Where it leads, for as long as somebody else holds it.
    pub(crate) fn downgrade(&self) -> Weak<World> {
        Arc::downgrade(&self.world)
    }

    /// Where to count, if anybody wants that.
    pub(crate) fn metrics(&self) -> Option<&Metrics> {
        self.world.measured.get()
    }

    /// Counts locks of others that were cleared, if anybody wants that.
    pub(crate) fn resolved(&self, ending: Ending, locks: u64) {
        if let Some(metrics) = self.metrics() {
            metrics.resolved(ending, locks);
        }
    }

    /// Counts a commit as going on.
    pub(crate) fn in_background(self: &Arc<Self>) -> BackgroundGuard {
        self.world.background.send_modify(|going| *going += 1);
        BackgroundGuard(self.clone())
    }

    /// Waits until nothing goes on in the background.
    pub(crate) async fn settled(&self) {
        // The sender is a part of this, so this can't fail.
        let _ = self
            .world
            .background
            .subscribe()
            .wait_for(|going| *going == 0)
            .await;
    }

    pub(crate) fn deadline(&self, request_timeout: Duration) -> Deadline {
        let start = self.world.transport.now();
        Deadline {
            start,
            end: start.saturating_add(request_timeout),
        }
    }

    /// What is known of where things are. Nothing is learnt while it is held.
    pub(crate) fn locations(&self) -> RwLockReadGuard<'_, LocationCache> {
        self.world.locations.read()
    }

    /// The error by its cause, where that is that the cluster isn't there any more.
    pub(crate) fn by_cause(&self, error: Error) -> Error {
        match (&error, self.world.transport.replaced()) {
            (Error::Timeout { .. } | Error::Unavailable(_) | Error::TooOld(_), Some(replaced)) => {
                Error::ClusterReplaced(replaced)
            }
            _ => error,
        }
    }

    /// Sends the cells at `indices` to their servers, one request a server, and again until each has a
    /// response. `build` makes a request's body of the cells that it carries; `bytes` says how many bytes
    /// a cell's value has in it.
    pub(crate) async fn call(
        &self,
        cell: &(dyn Fn(usize) -> Cell + Sync),
        indices: Vec<usize>,
        bytes: &(dyn Fn(usize) -> usize + Sync),
        build: &(dyn Fn(Vec<(usize, v1::CellRef)>) -> v1::request::Body + Sync),
        deadline: Deadline,
    ) -> Vec<Answered> {
        let mut answered = Vec::with_capacity(1);
        let mut waiting = indices;
        let mut retry = Retry::new(self, deadline);
        let mut is_first = true;
        loop {
            let cells: Vec<(usize, Cell)> = waiting.iter().map(|at| (*at, cell(*at))).collect();
            let wanted = || {
                let cells = cells.iter();
                cells
                    .map(|(_, cell)| RowQuery::of(cell.table, &cell.row))
                    .collect()
            };
            let group = || {
                let cells = cells.iter().map(|(at, cell)| (*at, cell));
                self.locations()
                    .group(cells, GROUP_CELLS_MAX, GROUP_BYTES_MAX, bytes)
            };
            let mut grouped = group();
            if grouped.is_err() && std::mem::take(&mut is_first) {
                // A master that is away leaves it as it is.
                let _ = self.find(wanted(), deadline).await;
                grouped = group();
            }
            let mut frozen = Vec::new();
            let (mut again, last) = match grouped {
                Ok(groups) => {
                    let attempts = self.attempts(groups, build, deadline).await;
                    sort(attempts, &mut answered, &mut frozen)
                }
                Err(no_place) => (waiting, RetryCause::Other(no_place.0)),
            };
            if again.is_empty() {
                return answered;
            }
            // Cut as before: a server may have had a piece whose response was lost.
            again.sort_unstable();
            if let Err(gave_up) = retry.pause_and_locate(last, wanted()).await {
                answered.push((again, Err(gave_up)));
                return answered;
            }
            waiting = again;
            {
                let locations = self.locations();
                waiting.retain(|at| {
                    let table = cell(*at).table;
                    let gone = if locations.deleted(table) {
                        CallError::Deleted(table)
                    } else if frozen.contains(at) && locations.being_deleted(table) {
                        CallError::BeingDeleted(table)
                    } else {
                        return true;
                    };
                    answered.push((vec![*at], Err(gone)));
                    false
                });
                if waiting.is_empty() {
                    return answered;
                }
            }
        }
    }

    /// [`Self::call`] for one cell.
    pub(crate) async fn call_one(
        &self,
        cell: &Cell,
        build: &(dyn Fn(v1::CellRef) -> v1::request::Body + Sync),
        deadline: Deadline,
    ) -> Result<Body, CallError> {
        let build = |cells: Vec<(usize, v1::CellRef)>| {
            build(
                cells
                    .into_iter()
                    .next()
                    .map(|(_, cell)| cell)
                    .unwrap_or_default(),
            )
        };
        self.call(&|_| cell.clone(), vec![0], &|_| 0, &build, deadline)
            .await
            .pop()
            .map_or_else(
                || Err(CallError::GaveUp("no answer".into())),
                |(_, result)| result,
            )
    }

    /// The one request that all of these cells make, where one server has them, and the incarnation of that
    /// server as far as it is known.
    ///
    /// # Errors
    /// The place of one of them isn't known.
    pub(crate) fn one_server<'a>(
        &self,
        cells: impl Iterator<Item = (usize, &'a Cell)>,
        bytes: &(dyn Fn(usize) -> usize + Sync),
    ) -> Result<Option<(RequestGroup, u64)>, UnknownLocation> {
        let locations = self.locations();
        let mut groups = locations.group(cells, GROUP_CELLS_MAX, GROUP_BYTES_MAX, bytes)?;
        let Some(group) = groups.pop().filter(|_| groups.is_empty()) else {
            return Ok(None);
        };
        let reported = self.world.incarnations.read().get(&*group.address).copied();
        let incarnation = reported.or_else(|| locations.incarnation(&group.address));
        Ok(incarnation.map(|incarnation| (group, incarnation)))
    }
}
