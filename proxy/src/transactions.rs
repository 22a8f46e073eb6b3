//! The calls of a proxy, for both doors: each is admitted by [`Sessions`], and carried out by the client library.

mod beginning;
mod calls;
mod scans;
mod shared;
mod tables;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use percolator_client::{Client, Error, Outcome, Range, Timestamp, Txn, limits};
use tokio::sync::{Notify, mpsc, oneshot, watch};

use crate::caller::Caller;
use crate::failure::{Failure, Reason};
use crate::metrics::Metrics;
use crate::peers::Peers;
use crate::sessions::{CommitStep, KnownEnd, Limits, Refusal, SessionEnd, Sessions};
use crate::token;
use crate::transit::Transit;

use beginning::Beginning;
pub(crate) use calls::Values;
use scans::ScanGuard;
pub(crate) use scans::{Chunk, Entries};
use shared::{ParticipantWrites, Upstream};

/// A proxy that has expired no sessions for so long carries out nothing else either.
const STANDS_STILL: Duration = Duration::from_secs(30);

/// Cells of one BatchGet, and of one Write.
pub(crate) const BATCH_CELLS_MAX: usize = 256;

/// What carries out the calls of a session.
#[derive(Clone)]
pub(crate) struct SessionTxn {
    txn: Txn,
    /// Dropped, or set, when the session has ended.
    ended: Arc<watch::Sender<bool>>,
    participant_writes: ParticipantWrites,
    upstream: Option<Arc<Upstream>>,
}

impl SessionTxn {
    fn new(txn: Txn) -> Self {
        Self {
            txn,
            ended: Arc::new(watch::channel(false).0),
            participant_writes: ParticipantWrites::default(),
            upstream: None,
        }
    }

    fn roll_back(self) {
        self.ended.send_replace(true);
        self.txn.rollback();
    }
}

/// A cell's name, as calls have it.
#[derive(Clone, Debug)]
pub(crate) struct CellAt {
    pub(crate) table: String,
    pub(crate) row: Bytes,
    pub(crate) column: Bytes,
}

/// What a cell is to have.
#[derive(Clone, Debug)]
pub(crate) enum CellChange {
    Put(Bytes),
    Delete,
    /// It stays; the commit fails if another transaction changes it.
    Lock,
}

/// A cell that is to be written.
#[derive(Clone, Debug)]
pub(crate) struct CellWrite {
    pub(crate) cell: CellAt,
    pub(crate) change: CellChange,
}

impl CellWrite {
    fn buffered_bytes(&self) -> usize {
        let value_bytes = match &self.change {
            CellChange::Put(value) => value.len(),
            CellChange::Delete | CellChange::Lock => 0,
        };
        self.cell.buffered_bytes(value_bytes)
    }
}

impl CellAt {
    /// What it takes while it is buffered, with a value of so many bytes.
    fn buffered_bytes(&self, value_bytes: usize) -> usize {
        self.row.len() + self.column.len() + value_bytes + limits::BUFFERED_CELL_BYTES
    }
}

/// A session that has begun.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) session: String,
    pub(crate) start_ts: Timestamp,
    /// Of the cells that were asked for.
    pub(crate) read: Values,
}

/// How a transaction ended, as far as that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KnownOutcome {
    Pending,
    Committed(Timestamp),
    RolledBack,
    Forgotten,
}

/// The proxy's state, shared by all calls.
pub(crate) struct Transactions {
    pub(crate) server: String,
    client: OnceLock<Client>,
    sessions: Mutex<Sessions<SessionTxn>>,
    pub(crate) metrics: Metrics,
    pub(crate) transit: Arc<Transit>,
    began: Instant,
    /// When sessions were last expired, which happens several times a second: after [`Self::began`].
    expired_ms: AtomicU64,
    /// A session has ended.
    ended: Notify,
    peers: Peers,
}

impl Transactions {
    pub(crate) fn new(
        server: String,
        limits: Limits,
        peers: Vec<String>,
        transit: Arc<Transit>,
        metrics: Metrics,
    ) -> Self {
        Self {
            server,
            peers: Peers::new(peers),
            client: OnceLock::new(),
            sessions: Mutex::new(Sessions::new(limits)),
            metrics,
            transit,
            began: Instant::now(),
            expired_ms: AtomicU64::new(0),
            ended: Notify::new(),
        }
    }

    /// The limits.
    pub(crate) fn limits(&self) -> Limits {
        *self.sessions.lock().limits()
    }

    /// The cluster is reached.
    pub(crate) fn connected(&self, client: Client) {
        // It connects once.
        let _ = self.client.set(client);
    }

    /// The reason why no session can begin here.
    pub(crate) fn ready(&self) -> Result<(), String> {
        if self.sessions.lock().is_stopping() {
            return Err("the proxy stops".into());
        }
        match self.client.get().map(Client::replaced) {
            None => Err("the proxy has not reached the cluster's master yet".into()),
            Some(Some(replaced)) => Err(format!("start the proxy again: {replaced}")),
            Some(None) => Ok(()),
        }
    }

    /// The reason why nothing goes on here: the task that carries out the calls stands still.
    pub(crate) fn lives(&self) -> Result<(), String> {
        let last = Duration::from_millis(self.expired_ms.load(Ordering::Relaxed));
        let silence = self.now().saturating_sub(last);
        if silence < STANDS_STILL {
            return Ok(());
        }
        Err(format!(
            "the proxy has stood still for {} s",
            silence.as_secs()
        ))
    }

    /// Brings the gauges up to date.
    pub(crate) fn show(&self) {
        let sessions = self.sessions.lock();
        let whole = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.metrics.sessions.set(whole(sessions.open()));
        self.metrics.buffered_bytes.set(whole(sessions.bytes()));
        self.metrics.transit_bytes.set(whole(self.transit.bytes()));
    }

    /// Begins a session of a client, and reads these cells.
    pub(crate) async fn begin(
        &self,
        caller: &Caller,
        snapshot: Option<Timestamp>,
        cells: &[CellAt],
    ) -> Result<Begun, Failure> {
        check_count(cells.len())?;
        let client = caller.client(self.client()?);
        let from = caller.address;
        let mut beginning = Beginning::place(self, from)?;
        let txn = match snapshot {
            None => client.begin().await?,
            Some(snapshot) => client.begin_at(snapshot).await?,
        };
        let start_ts = txn.start_ts();
        let session = token::write(start_ts, &self.server, rand::random());
        let txn = SessionTxn::new(txn);
        beginning.is_done = true;
        let now = self.now();
        self.sessions.lock().begun(now, from, session.clone(), txn);
        self.metrics.begun.inc();
        Ok(Begun {
            read: self.first_values(&session, cells).await?,
            session,
            start_ts,
        })
    }

    /// Buffers all of them, in this order. If one is refused, those before it are buffered.
    pub(crate) async fn write(&self, session: &str, writes: &[CellWrite]) -> Result<(), Failure> {
        check_count(writes.len())?;
        let (txn, _call) = self.call(session)?;
        self.buffer(session, &txn.txn, writes).await
    }

    async fn buffer(&self, session: &str, txn: &Txn, writes: &[CellWrite]) -> Result<(), Failure> {
        for (number, write) in writes.iter().enumerate() {
            let CellWrite { cell, change } = write;
            let written = async {
                let failed = |error| self.failed(session, error);
                // A wrong name is reported now, not by the commit.
                txn.check_table(&cell.table).await.map_err(failed)?;
                self.check_room(session, write.buffered_bytes())?;
                match change {
                    CellChange::Put(value) => {
                        txn.put(&cell.table, &cell.row, &cell.column, value.clone())
                    }
                    CellChange::Delete => txn.delete(&cell.table, &cell.row, &cell.column),
                    CellChange::Lock => txn.lock(&cell.table, &cell.row, &cell.column),
                }
                .map_err(failed)
            };
            let written = written.await;
            self.written(session, txn);
            if writes.len() > 1 {
                written.map_err(|failure| failure.with("write", number))?;
            } else {
                written?;
            }
        }
        Ok(())
    }

    /// The cells of the range, chunk by chunk, as they are taken. A task reads at most one chunk ahead, and drops what it
    /// holds when the session ends, whatever its reader does.
    pub(crate) async fn scan(
        self: &Arc<Self>,
        session: &str,
        table: &str,
        range: Range,
    ) -> Result<mpsc::Receiver<Chunk>, Failure> {
        let (txn, client) = match self.sessions.lock().scan(self.now(), session) {
            Ok(scan) => scan,
            Err(refusal) => return Err(self.refused(session, refusal)),
        };
        let mut guard = ScanGuard {
            of: self.clone(),
            session: session.to_owned(),
            client,
            own: self.transit.counted(client),
        };
        let scan = match txn.txn.scan(table, range).await {
            Ok(scan) => scan,
            Err(error) => return Err(self.failed(session, error)),
        };
        // A copy of its own: the session may write others in their place.
        guard.own.take(scan.own_bytes()).map_err(|mut failure| {
            failure.message.push_str(
                "; a scan holds a copy of what its session has written in its range: commit before, or scan fewer rows",
            );
            failure
        })?;
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(scans::produce(scan, txn.ended.subscribe(), guard, sender));
        Ok(receiver)
    }

    /// Buffers these writes, and commits. One that comes twice is carried out once. Goes on to its end also if the caller
    /// doesn't wait.
    pub(crate) async fn commit(
        self: &Arc<Self>,
        caller: &Caller,
        session: &str,
        writes: Vec<CellWrite>,
    ) -> Result<Timestamp, Failure> {
        check_count(writes.len())?;
        // From here on no other call writes anything, nor another copy of this one.
        let step = self.sessions.lock().commit(self.now(), session);
        let txn = match step {
            Ok(CommitStep::Begin(txn)) => txn,
            Ok(CommitStep::Done(commit_ts)) => return Ok(commit_ts),
            Err(refusal) => return Err(self.refused(session, refusal)),
        };
        let (answer, answered) = oneshot::channel();
        let (this, caller, session) = (self.clone(), caller.clone(), session.to_owned());
        tokio::spawn(async move {
            let result = match this.buffer(&session, &txn.txn, &writes).await {
                Ok(()) => {
                    drop(writes);
                    caller.handed_on();
                    this.commit_buffered(&session, txn).await
                }
                Err(failure) => {
                    let now = this.now();
                    this.sessions.lock().commit_not_begun(now, &session);
                    Err(failure)
                }
            };
            // Nobody may wait any more.
            let _ = answer.send(result);
        });
        answered.await.unwrap_or_else(|_| {
            Err(Failure::new(
                Reason::Committing,
                "the commit was not waited for; ask again for its outcome",
            ))
        })
    }

    async fn commit_buffered(&self, session: &str, txn: SessionTxn) -> Result<Timestamp, Failure> {
        if let Err(failure) = Self::add_participant_writes(&txn) {
            let end = SessionEnd::Aborted;
            self.sessions
                .lock()
                .finish(self.now(), session, end.clone());
            self.roll_back(txn, &end);
            return Err(failure);
        }
        let result = txn.txn.commit().await;
        let end = match &result {
            Ok(commit_ts) => SessionEnd::Committed(*commit_ts),
            Err(Error::Unknown {
                start_ts, primary, ..
            }) => SessionEnd::Unknown {
                start_ts: *start_ts,
                primary: primary.clone(),
            },
            // Whatever else it is says that nothing of it is or will be visible.
            Err(_) => SessionEnd::Aborted,
        };
        txn.ended.send_replace(true);
        self.metrics.session_ended(&end);
        self.sessions.lock().finish(self.now(), session, end);
        self.ended.notify_waiters();
        result.map_err(Failure::from)
    }

    pub(crate) fn rollback(&self, session: &str) -> Result<(), Failure> {
        let rolled_back = self.sessions.lock().rollback(self.now(), session);
        match rolled_back {
            Ok(Some(txn)) => {
                self.roll_back(txn, &SessionEnd::RolledBack);
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(refusal) => Err(self.refused(session, refusal)),
        }
    }

    pub(crate) async fn outcome(&self, session: &str) -> Result<KnownOutcome, Failure> {
        let known = self.sessions.lock().outcome(session);
        match known {
            Ok(KnownEnd::Open) => Ok(KnownOutcome::Pending),
            Ok(KnownEnd::Ended(SessionEnd::Committed(commit_ts))) => {
                Ok(KnownOutcome::Committed(commit_ts))
            }
            Ok(KnownEnd::Ended(SessionEnd::Unknown { start_ts, primary })) => {
                let (outcome, end) = match self.client()?.outcome(start_ts, &primary).await? {
                    Outcome::Committed(commit_ts) => (
                        KnownOutcome::Committed(commit_ts),
                        Some(SessionEnd::Committed(commit_ts)),
                    ),
                    Outcome::RolledBack => (KnownOutcome::RolledBack, Some(SessionEnd::Aborted)),
                    Outcome::Pending => (KnownOutcome::Pending, None),
                    Outcome::Forgotten => (KnownOutcome::Forgotten, None),
                };
                if let Some(end) = end {
                    self.sessions.lock().found_out(session, end);
                }
                Ok(outcome)
            }
            // The manager's session knows.
            Ok(KnownEnd::Ended(end @ (SessionEnd::Finished | SessionEnd::HandOverUnknown))) => {
                Err(Refusal::Ended(end).into())
            }
            Ok(KnownEnd::Ended(_)) => Ok(KnownOutcome::RolledBack),
            Err(refusal) => Err(self.refused(session, refusal)),
        }
    }

    /// Rolls back what has expired, now and then, and says in the log when the cluster is gone; never ends.
    pub(crate) async fn expire(&self) {
        let every = self.limits().idle_max / 8;
        let every = every.clamp(Duration::from_millis(10), Duration::from_millis(250));
        let mut is_gone = false;
        loop {
            tokio::time::sleep(every).await;
            let replaced = self.client.get().and_then(Client::replaced);
            if let Some(replaced) = replaced.filter(|_| !is_gone) {
                tracing::warn!(%replaced, "nothing begins here until the proxy is started again");
                is_gone = true;
            }
            let now = self.now();
            let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
            self.expired_ms.store(now_ms, Ordering::Relaxed);
            let expired = self.sessions.lock().expire(now);
            for (txn, end) in expired {
                self.roll_back(txn, &end);
            }
        }
    }

    /// Begins no session any more. Those that are there may end within the grace; then they are rolled back. Commits
    /// end by themselves.
    pub(crate) async fn stop(&self, grace: Duration) {
        self.sessions.lock().stop();
        let _ = tokio::time::timeout(grace, self.emptied()).await;
        let left = self.sessions.lock().end_all(self.now());
        if !left.is_empty() {
            tracing::info!(
                sessions = left.len(),
                "sessions are rolled back: the proxy stops"
            );
        }
        for txn in left {
            self.roll_back(txn, &SessionEnd::Stopped);
        }
        if let Some(client) = self.client.get() {
            let _ = tokio::time::timeout(client.options().request_timeout, self.emptied()).await;
            client.settle().await;
        }
    }

    async fn emptied(&self) {
        loop {
            let ended = self.ended.notified();
            if self.sessions.lock().is_empty() {
                return;
            }
            ended.await;
        }
    }

    fn roll_back(&self, txn: SessionTxn, end: &SessionEnd) {
        self.metrics.session_ended(end);
        txn.roll_back();
        self.ended.notify_waiters();
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// The way to the cluster.
    pub(crate) fn client(&self) -> Result<&Client, Failure> {
        self.client.get().ok_or_else(|| {
            let message = "the proxy has not reached the cluster's master yet";
            Failure::new(Reason::Unavailable, message)
        })
    }

    fn check_room(&self, session: &str, bytes: usize) -> Result<(), Failure> {
        let checked = self.sessions.lock().check_room(session, bytes);
        checked.map_err(|refusal| self.refused(session, refusal))
    }

    fn written(&self, session: &str, txn: &Txn) {
        let bytes = txn.buffered_bytes();
        self.sessions.lock().written(session, bytes);
    }

    /// What a client is answered whose session can't be used.
    fn refused(&self, session: &str, refusal: Refusal) -> Failure {
        if refusal != Refusal::Unknown {
            return refusal.into();
        }
        match token::read(session) {
            None => Failure::new(
                Reason::Invalid,
                "this is not the token of a session: Begin returns one",
            ),
            Some(token) if token.proxy != self.server => {
                let message = format!(
                    "the session is one of {}: call that proxy. If it has ended, so has the session: begin again",
                    token.proxy
                );
                let failure = Failure::new(Reason::OtherProxy, message);
                failure.with("proxy", token.proxy)
            }
            Some(token) => Failure::from(refusal).with("start_ts", token.start_ts),
        }
    }

    /// What a client is answered whose call has failed.
    fn failed(&self, session: &str, error: Error) -> Failure {
        if error.retryable() {
            // Nothing of it can be committed any more.
            let end = SessionEnd::Aborted;
            let aborted = self.sessions.lock().abort(self.now(), session, end.clone());
            if let Some(txn) = aborted {
                self.roll_back(txn, &end);
            }
            return error.into();
        }
        let why = match error {
            // Somebody has ended it while the call was under way.
            Error::Ended => self.sessions.lock().why_gone(session),
            _ => None,
        };
        match why {
            Some(refusal) => self.refused(session, refusal),
            None => error.into(),
        }
    }
}

fn check_count(cells: usize) -> Result<(), Failure> {
    if cells <= BATCH_CELLS_MAX {
        return Ok(());
    }
    let message = format!("{cells} cells; the limit is {BATCH_CELLS_MAX} for each call");
    Err(Failure::new(Reason::Invalid, message))
}
