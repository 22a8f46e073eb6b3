//! A worker: asks every tablet of the table for changes, one waiting request each, and runs the handler for what they send. As long
//! as it has a change, it has the server give it to nobody else.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use parking_lot::Mutex;
use percolator_protocol::types::{TableId, escape};
use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::response::Body;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::requests::{WaitingChange, millis};
use super::run::Run;
use super::stop_signal::StopSignal;
use super::{Counters, Observer, ObserverOptions, ObserverWorker};
use crate::attempts::Attempt;
use crate::location_cache::{RowQuery, TabletTarget};
use crate::retry::Retry;
use crate::router::Deadline;
use crate::transport::BoxFuture;
use crate::{CellName, Client, Error};

/// How long a server keeps a request that it has nothing for.
const WAIT: Duration = Duration::from_secs(2);
/// How long its response is waited for besides.
const TIMEOUT: Duration = Duration::from_secs(3);
/// The time between two listings of the table's tablets.
const LISTED_EVERY: Duration = Duration::from_secs(5);
/// How often a tablet is asked for locked cells.
const LOCKS_EVERY: Duration = Duration::from_secs(2);
/// Before a tablet is asked again that could not be asked.
const PAUSE: Duration = Duration::from_millis(20);
/// So many times in the time of a lease it is begun anew.
const RENEWALS: u32 = 3;
/// Before a refusal is asked for again.
const PAUSE_REFUSED: Duration = Duration::from_secs(1);
/// Most runs at a time, and changes of one request.
const CONCURRENCY_MAX: usize = 10_000;
const REQUESTED_MAX: usize = 256;

/// What all tasks of a worker share.
pub(super) struct Shared {
    pub(super) client: Client,
    pub(super) observer: Observer,
    pub(super) counters: Arc<Counters>,
    /// Raised when the worker is stopped or dropped, or its table is gone.
    stop: Arc<StopSignal>,
    table: TableId,
    free: Arc<Semaphore>,
    /// The rows whose changes it has, and what came for them since.
    held: Mutex<BTreeMap<Bytes, Option<WaitingChange>>>,
    /// Its number at the servers.
    id: u64,
    last_error: watch::Sender<Option<String>>,
}

/// See [`Observer::start`].
pub(super) async fn start(observer: Observer, client: &Client) -> Result<ObserverWorker, Error> {
    let options = &observer.options;
    if !(1..=CONCURRENCY_MAX).contains(&options.concurrency) {
        let why = format!("an observer's concurrency is 1 to {CONCURRENCY_MAX}");
        return Err(Error::Invalid(why));
    }
    if options.attempts_max == 0
        || options.chain_max == 0
        || !ObserverOptions::is_lease(options.lease)
    {
        let why = "an observer tries a change once at least, has it for 100 ms to 60 s or not for itself (0), and a chain has a run at least";
        return Err(Error::Invalid(why.into()));
    }
    // Whether there are such a table and such an observed column.
    client.observed(&observer.table, &observer.column).await?;
    let request_timeout = client.options().request_timeout;
    let table = client
        .router
        .table(&observer.table, request_timeout)
        .await?;
    let stop = Arc::new(StopSignal::default());
    let (has_stopped, stopped) = watch::channel(false);
    let (last_error, error) = watch::channel(None);
    let counters = Arc::new(Counters::default());
    let shared = Arc::new(Shared {
        client: client.clone(),
        counters: counters.clone(),
        stop: stop.clone(),
        table,
        free: Arc::new(Semaphore::new(options.concurrency)),
        held: Mutex::default(),
        id: client.router.world.transport.random().max(1),
        last_error,
        observer,
    });
    let transport = client.router.world.transport.clone();
    transport.spawn(Box::pin(async move {
        shared.run().await;
        has_stopped.send_replace(true);
    }));
    Ok(ObserverWorker {
        counters,
        stop,
        stopped,
        last_error: error,
    })
}

impl Shared {
    async fn run(self: &Arc<Self>) {
        let work = async {
            self.ask_all().await;
            // Those that have begun.
            let all = u32::try_from(self.observer.options.concurrency).unwrap_or(u32::MAX);
            let _ = self.free.acquire_many(all).await;
        };
        tokio::select! {
            biased;
            () = work => {}
            () = self.renew_leases() => {}
        }
    }

    /// Has servers begin the leases of what the worker has anew, again and again.
    async fn renew_leases(&self) {
        let router = &self.client.router;
        let lease = self.observer.options.lease;
        if lease.is_zero() {
            return std::future::pending().await;
        }
        loop {
            router.world.transport.sleep(lease / RENEWALS).await;
            let rows: Vec<Bytes> = self.held.lock().keys().cloned().collect();
            let deadline = router.deadline(TIMEOUT);
            let mut by_tablet = BTreeMap::new();
            for row in rows {
                if let Ok(tablet) = router
                    .place(&RowQuery::of(self.table, &row), deadline)
                    .await
                {
                    let (_, rows) = by_tablet.entry(tablet.id).or_insert((tablet, Vec::new()));
                    rows.push(row);
                }
            }
            for (tablet, rows) in by_tablet.into_values() {
                let ask = Ask::Notifications(v1::NotificationsRequest {
                    column: self.observer.column.clone(),
                    lease_ms: millis(lease),
                    worker: self.id,
                    renewed: rows.clone(),
                    ..v1::NotificationsRequest::default()
                });
                // If it can't be asked, others may run for the same: one of the runs commits.
                let _ = router.send_to(&tablet, ask, deadline).await;
                // A run may have ended before its lease was begun anew: the row's next change would wait for the end of that.
                self.give_back(self.not_held(rows)).await;
            }
        }
    }

    /// Takes these changes, and gives those back whose rows are not run for already: what came for these is run for then.
    fn hold(&self, found: Vec<WaitingChange>) -> Vec<WaitingChange> {
        let mut held = self.held.lock();
        let is_new = |change: &WaitingChange| match held.get_mut(&change.row) {
            Some(since) => {
                *since = Some(change.clone());
                false
            }
            None => held.insert(change.row.clone(), None).is_none(),
        };
        found.into_iter().filter(is_new).collect()
    }

    /// The runs for the row's change have ended; what came for it since.
    fn release(&self, row: &Bytes) -> Option<WaitingChange> {
        let mut held = self.held.lock();
        let since = held.get_mut(row)?.take();
        if since.is_none() {
            held.remove(row);
        }
        since
    }

    /// Those of these rows whose changes the worker hasn't any more.
    fn not_held(&self, mut rows: Vec<Bytes>) -> Vec<Bytes> {
        let held = self.held.lock();
        rows.retain(|row| !held.contains_key(row));
        rows
    }

    /// Until the worker is stopped, or dropped, or its table is gone.
    async fn stopped(&self) {
        self.stop.raised().await;
    }

    /// The table was deleted: there is nothing to ask for any more, also if another one has its name by now.
    fn is_gone(&self) {
        let why = format!("table {} was deleted", self.observer.table);
        self.last_error.send_replace(Some(why));
        self.stop.raise();
    }

    /// Servers could not be asked.
    fn fails(&self, why: String) {
        let is_news = self.last_error.send_if_modified(|last| {
            let is_news = last.as_ref() != Some(&why);
            *last = Some(why.clone());
            is_news
        });
        if is_news {
            let (table, column) = (&self.observer.table, escape(&self.observer.column));
            tracing::warn!(table, %column, why, "changes can't be asked for");
        }
    }

    /// Whether the worker is stopped, or dropped.
    pub(super) fn is_stopping(&self) -> bool {
        self.stop.is_raised()
    }

    /// Asks every tablet until the worker stops. What servers send then is returned to them.
    async fn ask_all(self: &Arc<Self>) {
        let mut asked = BTreeSet::new();
        let mut asking: FuturesUnordered<BoxFuture<'_, (u64, u64)>> = FuturesUnordered::new();
        loop {
            let tablets = tokio::select! {
                biased;
                () = self.stopped() => break,
                tablets = self.tablets() => tablets,
            };
            for tablet in tablets {
                if asked.insert((tablet.id, tablet.epoch)) {
                    asking.push(Box::pin(self.ask_while_it_serves(tablet)));
                }
            }
            tokio::select! {
                biased;
                () = self.stopped() => break,
                Some(ended) = asking.next() => {
                    asked.remove(&ended);
                }
                () = self.client.router.world.transport.sleep(LISTED_EVERY) => {}
            }
        }
        while asking.next().await.is_some() {}
    }

    /// The table's tablets, as far as they can be found.
    async fn tablets(&self) -> Vec<TabletTarget> {
        let router = &self.client.router;
        let (mut tablets, mut row) = (Vec::new(), Bytes::new());
        loop {
            let deadline = router.deadline(TIMEOUT);
            let wanted = RowQuery::of(self.table, &row);
            match router.place(&wanted, deadline).await {
                Ok(tablet) => {
                    row = tablet.end_row.clone();
                    tablets.push(tablet);
                }
                Err(no_place) => {
                    if router.locations().deleted(self.table) {
                        self.is_gone();
                    } else {
                        self.fails(no_place.0);
                        router.world.transport.sleep(PAUSE).await;
                    }
                    return tablets;
                }
            }
            if row.is_empty() {
                return tablets;
            }
        }
    }

    /// Asks one tablet until it is elsewhere, or another one; which it was.
    async fn ask_while_it_serves(self: &Arc<Self>, tablet: TabletTarget) -> (u64, u64) {
        let router = &self.client.router;
        let transport = &*router.world.transport;
        let mut locks_asked = None;
        let is_resolving = Arc::new(AtomicBool::new(false));
        while !self.is_stopping() {
            let now = transport.now();
            let locked = locks_asked.is_none_or(|asked| now >= asked + LOCKS_EVERY)
                && !is_resolving.load(Ordering::Relaxed);
            if locked {
                locks_asked = Some(now);
            }
            let ask = self.changes_request(locked);
            let deadline = router.deadline(WAIT + TIMEOUT);
            match self.answer(&tablet, ask, deadline).await {
                Attempt::Done(Body::Notifications(found)) => {
                    if !found.locked_rows.is_empty() {
                        self.resolve_beside(found.locked_rows, is_resolving.clone());
                    }
                    let changes = found.notifications.into_iter();
                    let changes = changes.filter_map(|change| {
                        let change = WaitingChange::try_from(change);
                        change.map_err(|error| self.fails(error.to_string())).ok()
                    });
                    let begun = self.begin_all(changes.collect()).await;
                    if begun == 0 && transport.now() < now + PAUSE {
                        // As many as may wait there do, or what was sent is run for already and was not leased.
                        transport.sleep(PAUSE).await;
                    }
                }
                Attempt::Busy(why) => {
                    self.fails(why);
                    transport.sleep(PAUSE).await;
                }
                Attempt::Invalid(why) => {
                    self.fails(why);
                    transport.sleep(PAUSE_REFUSED).await;
                    break;
                }
                Attempt::Frozen(_) => {
                    self.is_gone();
                    break;
                }
                attempt => {
                    if let Attempt::Lost(why) | Attempt::NeverSent(why) = &attempt {
                        self.fails(why.clone());
                    }
                    let row = RowQuery::of(self.table, &tablet.start_row);
                    // Whatever is found now, the tablets are listed again.
                    let mut retry = Retry::new(router, deadline);
                    let _ = retry.pause_and_locate(attempt.into(), vec![row]).await;
                    if router.locations().deleted(self.table) {
                        self.is_gone();
                    } else {
                        transport.sleep(PAUSE).await;
                    }
                    break;
                }
            }
        }
        (tablet.id, tablet.epoch)
    }

    /// The request for changes of a tablet; `locked`: for its locked cells, too.
    fn changes_request(&self, locked: bool) -> Ask {
        let options = &self.observer.options;
        Ask::Notifications(v1::NotificationsRequest {
            column: self.observer.column.clone(),
            limit: options.concurrency.min(REQUESTED_MAX) as u32,
            wait_ms: millis(WAIT),
            lease_ms: millis(options.lease),
            locked,
            worker: self.id,
            ..v1::NotificationsRequest::default()
        })
    }

    /// [`Self::resolve`], while changes are asked for: the server that knows what became of the locks may be away.
    fn resolve_beside(self: &Arc<Self>, rows: Vec<Bytes>, is_resolving: Arc<AtomicBool>) {
        is_resolving.store(true, Ordering::Relaxed);
        let shared = self.clone();
        let transport = self.client.router.world.transport.clone();
        let work = async move {
            tokio::select! {
                biased;
                () = shared.stopped() => {}
                () = shared.resolve(rows) => {}
                () = shared.client.router.world.transport.sleep(TIMEOUT) => {}
            }
            is_resolving.store(false, Ordering::Relaxed);
        };
        transport.spawn(Box::pin(work));
    }

    /// Reads cells that are locked: of a transaction that has committed, and whose client died before it said so there, this
    /// leaves the notification.
    async fn resolve(&self, rows: Vec<Bytes>) {
        let (table, column) = (&*self.observer.table, &*self.observer.column);
        let cells: Vec<CellName<'_>> = rows.iter().map(|row| (table, &row[..], column)).collect();
        let read = async {
            let txn = self.client.begin().await?;
            txn.batch_get(&cells).await
        };
        if let Err(error) = read.await {
            self.fails(error.to_string());
        }
    }

    /// The response to a request for notifications. If the worker stops meanwhile, the server is asked to answer now: what
    /// it sends later would be leased to a worker that is gone.
    async fn answer(&self, tablet: &TabletTarget, ask: Ask, deadline: Deadline) -> Attempt {
        let router = &self.client.router;
        let mut answer = pin!(router.send_to(tablet, ask, deadline));
        tokio::select! {
            biased;
            attempt = &mut answer => return attempt,
            () = self.stopped() => {}
        }
        let stops = Ask::Notifications(v1::NotificationsRequest {
            column: self.observer.column.clone(),
            worker: self.id,
            stops: true,
            ..v1::NotificationsRequest::default()
        });
        // Without a response to this one, the other comes when its time is over.
        let (attempt, _) = tokio::join!(answer, router.send_to(tablet, stops, deadline));
        attempt
    }

    /// Begins a run for each change, and returns those that it may not begin any more. How many have begun.
    async fn begin_all(self: &Arc<Self>, found: Vec<WaitingChange>) -> usize {
        let mut begun = 0;
        let mut found = self.hold(found).into_iter();
        while let Some(change) = found.next() {
            let free = tokio::select! {
                biased;
                () = self.stopped() => None,
                free = self.free.clone().acquire_owned() => free.ok(),
            };
            let Some(permit) = free else {
                let rows = std::iter::once(change).chain(found);
                let rows: Vec<Bytes> = rows.map(|change| change.row).collect();
                self.held.lock().retain(|row, _| !rows.contains(row));
                self.give_back(rows).await;
                return begun;
            };
            self.begin(change, permit);
            begun += 1;
        }
        begun
    }

    /// Others get these changes before their leases end.
    pub(super) async fn give_back(&self, rows: Vec<Bytes>) {
        let Some(first) = rows.first().cloned() else {
            return;
        };
        let ask = |_: &TabletTarget| {
            Ask::Notifications(v1::NotificationsRequest {
                column: self.observer.column.clone(),
                worker: self.id,
                returned: rows.clone(),
                ..v1::NotificationsRequest::default()
            })
        };
        let router = &self.client.router;
        let deadline = router.deadline(TIMEOUT);
        // If it can't be asked, the leases end by themselves.
        let _ = router.ask_tablet(self.table, &first, &ask, deadline).await;
    }

    /// Begins a run.
    fn begin(self: &Arc<Self>, change: WaitingChange, permit: OwnedSemaphorePermit) {
        let shared = self.clone();
        self.client
            .router
            .world
            .transport
            .spawn(Box::pin(async move {
                let running = shared.client.router.metrics();
                let running = running.map(|it| &it.observer_running);
                running.inspect(|running| running.inc());
                let mut next = Some(change);
                while let Some(change) = next {
                    let row = change.row.clone();
                    if shared.is_stopping() {
                        shared.give_back(vec![row.clone()]).await;
                    } else {
                        Run::of(&shared, change).until_it_ends().await;
                    }
                    next = shared.release(&row);
                }
                running.inspect(|running| running.dec());
                drop(permit);
            }));
    }
}
