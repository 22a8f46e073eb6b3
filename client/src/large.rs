//! Transactions that are larger than what a client buffers.
//!
//! What is written beyond [`crate::Options::buffer_bytes`] is flushed: prewritten, while the transaction goes on
//! and fills the buffer anew. One flush is under way at a time. Each has a generation, so that a cell may be
//! written again (`protocol::actions::prewrite`). From the first flush on the primary is kept alive, and reads
//! ask the servers for the transaction's own locks too.
//!
//! Which cells were flushed isn't remembered: only between which rows of which tables they lie. In the end the
//! tablets there are asked to resolve what they find of the transaction, piece by piece. Where the client dies,
//! anyone who meets a lock clears it, and in the background the rest of its tablet.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, stream};
use parking_lot::Mutex;
use percolator_protocol::txn::{Ending, MetLock, PrimaryEnd};
use percolator_protocol::types::{Cell, Mutation, TableId, Timestamp};
use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::response::Body;
use tokio::sync::{mpsc, oneshot};

use crate::Error;
use crate::attempts::Attempt;
use crate::commit::{Commit, Flush};
use crate::error::Conflict;
use crate::location_cache::{RowQuery, TabletTarget};
use crate::options::Options;
use crate::pinned::PinnedTables;
use crate::resolver::unexpected;
use crate::retry::{Retry, RetryCause, Turn};
use crate::router::{BackgroundGuard, CallError, Deadline, Router};
use crate::session::GcLockGuard;
use crate::txn::{Inner, Tables};

/// How long the rollback of a primary is tried. What is left then, others roll back when its ttl is over.
const ROLLBACK_TIMEOUT: Duration = Duration::from_secs(5);
/// Tablets in which locks are resolved at a time, piece after piece: servers make them wait where others are there.
const TABLETS_AT_A_TIME: usize = 4;
/// Cells that are made ready for a flush before other tasks of the thread have their turn.
const CELLS_AT_ONCE: usize = 128;
/// How long a piece is tried that a server doesn't answer.
const PIECE_TIMEOUT: Duration = Duration::from_secs(10);
/// Tablets that a client clears of what others have left, at a time.
const CLEARED_MAX: usize = 4;

/// What a transaction wants done with what it has written.
pub(crate) enum Command {
    /// The next flush.
    Flush(Arc<Tables>),
    /// The last one, and the commit.
    Commit {
        rest: Tables,
        held: Option<GcLockGuard>,
        result: oneshot::Sender<Result<Timestamp, Error>>,
    },
    /// To undo all of it, which counts as going on until then.
    Rollback(BackgroundGuard),
}

/// Has the rest written, and all of it committed; `None`: an earlier flush has failed.
pub(crate) async fn commit(
    commands: mpsc::UnboundedSender<Command>,
    rest: Tables,
    held: Option<GcLockGuard>,
) -> Option<Result<Timestamp, Error>> {
    let (result, answer) = oneshot::channel();
    let _ = commands.send(Command::Commit { rest, held, result });
    drop(commands);
    answer.await.ok()
}

/// A transaction that has flushed something.
pub(crate) struct Large {
    router: Arc<Router>,
    start_ts: Timestamp,
    pub(crate) primary: Cell,
    pub(crate) request_timeout: Duration,
    /// The first and the last row of each table that may have its locks.
    touched: Mutex<BTreeMap<TableId, (Bytes, Bytes)>>,
    /// The highest one in the response of a flush: the transaction commits above it.
    min_commit_ts: Mutex<Timestamp>,
    /// The first flush is in place, and the primary with it.
    placed: AtomicBool,
}

impl Large {
    fn touch(&self, mutations: &[Mutation]) {
        let mut touched = self.touched.lock();
        for Mutation { cell, .. } in mutations {
            let row = &cell.row;
            let rows = touched
                .entry(cell.table)
                .or_insert_with(|| (row.clone(), row.clone()));
            if *row < rows.0 {
                rows.0.clone_from(row);
            }
            if *row > rows.1 {
                rows.1.clone_from(row);
            }
        }
    }

    pub(crate) fn min_commit_ts(&self) -> Timestamp {
        *self.min_commit_ts.lock()
    }

    pub(crate) fn raise_min_commit_ts(&self, to: Timestamp) {
        let mut min_commit_ts = self.min_commit_ts.lock();
        *min_commit_ts = to.max(*min_commit_ts);
    }

    pub(crate) async fn rollback_primary(&self) -> PrimaryEnd {
        let build = |primary| {
            Ask::Rollback(v1::RollbackRequest {
                start_ts: self.start_ts.as_u64(),
                cells: vec![primary],
            })
        };
        let deadline = self.router.deadline(ROLLBACK_TIMEOUT);
        match self.router.call_one(&self.primary, &build, deadline).await {
            Ok(Body::Rollback(response)) => match response.committed {
                Some(committed) => PrimaryEnd::Committed(Timestamp::from_u64(committed.commit_ts)),
                None => PrimaryEnd::RolledBack,
            },
            _ => PrimaryEnd::Unanswered,
        }
    }

    /// Resolves all of its locks. What can't be now, others do when they meet it.
    pub(crate) async fn resolve_all(&self, ending: Ending) {
        let touched = self.touched.lock().clone();
        for (table, (first, last)) in touched {
            let rows = (first, Bytes::from([&last[..], b"\0"].concat()));
            let (router, start_ts) = (&self.router, self.start_ts);
            if let Err(why) = router.resolve_rows(start_ts, ending, table, rows).await {
                tracing::debug!(%start_ts, %why, "left for others to clear");
            }
        }
    }

    async fn rollback(&self) {
        self.rollback_primary().await;
        self.resolve_all(Ending::RolledBack).await;
    }
}

/// What goes on beside a transaction, from its first flush to its end.
pub(crate) struct Driver {
    pub(crate) txn: Weak<Inner>,
    pub(crate) router: Arc<Router>,
    pub(crate) options: Options,
    pub(crate) start_ts: Timestamp,
    pub(crate) began: Duration,
    pub(crate) tables: Arc<PinnedTables>,
    pub(crate) chain: Option<v1::Chain>,
}

impl Driver {
    /// Until the transaction is committed, or gone: then what it has flushed is rolled back.
    pub(crate) async fn run(self, mut commands: mpsc::UnboundedReceiver<Command>) {
        self.router.world.session.flushes(self.start_ts);
        let large = Mutex::new(None);
        tokio::select! {
            biased;
            () = self.carry_out(&mut commands, &large) => {}
            () = self.keep_alive(&large) => {
                drop(commands);
                self.roll_back(&large).await;
            }
        }
    }

    async fn carry_out(
        &self,
        commands: &mut mpsc::UnboundedReceiver<Command>,
        large: &Mutex<Option<Arc<Large>>>,
    ) {
        let mut generation = 0;
        while let Some(command) = commands.recv().await {
            generation += 1;
            match command {
                Command::Flush(_) if self.txn.strong_count() == 0 => break,
                Command::Flush(tables) => {
                    let flushed = match self.flush(&tables, generation, None, large).await {
                        Ok(flush) => flush.run().await,
                        Err(error) => {
                            self.failed(error);
                            break;
                        }
                    };
                    if let Err(error) = flushed {
                        // It has rolled everything back.
                        return self.failed(error);
                    }
                    if let Some(large) = &*large.lock() {
                        large.placed.store(true, Ordering::Relaxed);
                    }
                    if let Some(txn) = self.txn.upgrade() {
                        if let Some(metrics) = self.router.metrics() {
                            metrics.flushes.inc();
                        }
                        txn.flushed();
                    }
                }
                Command::Rollback(_going) => return self.roll_back(large).await,
                Command::Commit { rest, held, result } => {
                    match self.flush(&rest, generation, Some(held), large).await {
                        Ok(last) => return last.start(result),
                        Err(error) => {
                            self.roll_back(large).await;
                            let _ = result.send(Err(error));
                            return;
                        }
                    }
                }
            }
        }
        self.roll_back(large).await;
    }

    /// `last`: the commit comes behind it.
    async fn flush(
        &self,
        tables: &Tables,
        generation: u32,
        last: Option<Option<GcLockGuard>>,
        known: &Mutex<Option<Arc<Large>>>,
    ) -> Result<Commit, Error> {
        let request_timeout = self.options.request_timeout;
        let mut mutations = Vec::new();
        for (name, cells) in tables {
            let table = self
                .tables
                .table(&self.router, name, request_timeout)
                .await?;
            for ((row, column), write) in cells {
                mutations.push(Mutation {
                    cell: Cell::new(table, row.clone(), column.clone()),
                    kind: write.kind,
                    value: write.value.clone(),
                });
                if mutations.len().is_multiple_of(CELLS_AT_ONCE) {
                    tokio::task::yield_now().await;
                }
            }
        }
        let invalid = |mutation: &Mutation| mutation.cell.invalid();
        if let Some(why) = mutations.iter().find_map(invalid) {
            return Err(Error::Invalid(why));
        }
        let mut known = known.lock();
        let large = match (&*known, mutations.first()) {
            (Some(large), _) => large.clone(),
            (None, Some(first)) => Arc::new(Large {
                router: self.router.clone(),
                start_ts: self.start_ts,
                primary: first.cell.clone(),
                request_timeout,
                touched: Mutex::default(),
                min_commit_ts: Mutex::default(),
                placed: AtomicBool::new(false),
            }),
            (None, None) => return Err(Error::Ended),
        };
        *known = Some(large.clone());
        large.touch(&mutations);
        Ok(Commit {
            router: self.router.clone(),
            start_ts: self.start_ts,
            began: self.began,
            mutations,
            chain: self.chain.clone(),
            flush: Some(Flush {
                large,
                generation,
                last: last.is_some(),
            }),
            ttl_ms: self.options.lock_ttl_ms(),
            deadline: self.router.deadline(request_timeout),
            last_seen: Mutex::default(),
            held: Mutex::new(last.flatten()),
        })
    }

    /// Renews the primary's ttl while the transaction goes on; ends when that has been rolled back or goes with its
    /// table, and the transaction knows it.
    async fn keep_alive(&self, large: &Mutex<Option<Arc<Large>>>) {
        let ttl_ms = self.options.lock_ttl_ms();
        let every = Duration::from_millis((ttl_ms / 3).max(1));
        let mut pause = every;
        loop {
            self.router.world.transport.sleep(pause).await;
            pause = every;
            let large = large.lock().clone();
            let placed = |large: &Arc<Large>| large.placed.load(Ordering::Relaxed);
            let Some(large) = large.filter(placed) else {
                continue;
            };
            // Of each attempt: the ttl counts from when this one is sent.
            let build = |primary| {
                let elapsed = self.router.world.transport.now().saturating_sub(self.began);
                let elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX / 2);
                Ask::KeepAlive(v1::KeepAliveRequest {
                    primary: Some(primary),
                    start_ts: self.start_ts.as_u64(),
                    ttl_ms: ttl_ms + elapsed_ms,
                })
            };
            // An attempt that hangs leaves time for another one before the ttl is over.
            let deadline = self.router.deadline(every);
            let kept = self.router.call_one(&large.primary, &build, deadline);
            let error = match kept.await {
                Ok(Body::KeepAlive(kept)) if !kept.alive => {
                    let cell = large.primary.clone();
                    Error::Conflict(Conflict::RolledBack { cell })
                }
                // It can't be committed any more, and what it still locked would be in the way of the deletion.
                Err(gone @ (CallError::Deleted(_) | CallError::BeingDeleted(_))) => {
                    deadline.error(&*self.router.world.transport, "writing", gone)
                }
                Ok(_) => continue,
                Err(_) => {
                    pause = every / 4;
                    continue;
                }
            };
            // Before anything of the transaction goes, as a commit does that waits for its response.
            return self.failed(error);
        }
    }

    fn failed(&self, error: Error) {
        if let Some(txn) = self.txn.upgrade() {
            txn.failed_with(error);
        }
    }

    async fn roll_back(&self, large: &Mutex<Option<Arc<Large>>>) {
        let large = large.lock().clone();
        if let Some(large) = large {
            let _going = self.router.in_background();
            large.rollback().await;
        }
    }
}

impl Router {
    /// Resolves what locks a transaction that has ended has in these rows, from the first up to and without the
    /// second one; where that is empty, to the table's end. How many they were.
    pub(crate) async fn resolve_rows(
        &self,
        start_ts: Timestamp,
        ending: Ending,
        table: TableId,
        (start, end): (Bytes, Bytes),
    ) -> Result<u64, CallError> {
        // Those that are not known follow in one of the parts.
        let cuts: Vec<Bytes> = self
            .locations()
            .tablets(table)
            .map(|tablet| tablet.rows.start.clone())
            .filter(|row| *row > start && (end.is_empty() || *row < end))
            .collect();
        let starts = std::iter::once(start).chain(cuts.clone());
        let ends = cuts.into_iter().chain([end]);
        let parts = starts
            .zip(ends)
            .map(|(start, end)| self.resolve_part(start_ts, ending, table, start, end));
        let parts: Vec<_> = parts.collect();
        let mut parts = stream::iter(parts).buffer_unordered(TABLETS_AT_A_TIME);
        let mut result = Ok(0);
        while let Some(part) = parts.next().await {
            result = result.and_then(|sum| Ok(sum + part?));
        }
        result
    }

    /// The same, one piece after the other.
    async fn resolve_part(
        &self,
        start_ts: Timestamp,
        ending: Ending,
        table: TableId,
        mut at: Bytes,
        end: Bytes,
    ) -> Result<u64, CallError> {
        let commit_ts = match ending {
            Ending::Committed(commit_ts) => commit_ts.as_u64(),
            Ending::RolledBack => 0,
        };
        let mut after = None;
        let mut resolved = 0;
        let mut deadline = self.deadline(PIECE_TIMEOUT);
        let mut retry = Retry::new(self, deadline);
        // Once the server was busy, until it has done a piece.
        let mut turn: Option<Turn<'_>> = None;
        loop {
            // It may have been split before where this has come to.
            let reached = after.as_ref().map_or(&at, |cell: &v1::CellName| &cell.row);
            let wanted = RowQuery::of(table, reached);
            let request = v1::ResolveRequest {
                start_ts: start_ts.as_u64(),
                commit_ts,
                start_row: at.clone(),
                end_row: end.clone(),
                after: after.clone(),
            };
            let (tablet, attempt) = self.resolve_piece(&wanted, request, deadline).await;
            let last = match (tablet, attempt) {
                (Some(tablet), Attempt::Done(Body::Resolve(piece))) => {
                    deadline = self.deadline(PIECE_TIMEOUT);
                    retry = Retry::new(self, deadline);
                    turn = None;
                    after = piece.resume;
                    resolved += u64::from(piece.resolved);
                    if after.is_none() {
                        let last_row = &tablet.end_row;
                        if last_row.is_empty() || (!end.is_empty() && *last_row >= end) {
                            return Ok(resolved);
                        }
                        at.clone_from(last_row);
                    }
                    continue;
                }
                (_, Attempt::Done(_)) => return Err(unexpected()),
                (_, Attempt::Invalid(why)) => return Err(CallError::Invalid(why)),
                (_, Attempt::TooOld(too_old)) => return Err(CallError::TooOld(too_old)),
                // Anyone who deletes the table resolves what is left of its transactions elsewhere.
                (_, Attempt::Frozen(_)) => return Ok(resolved),
                (Some(tablet), Attempt::Busy(why)) => {
                    if turn.as_ref().is_none_or(|turn| turn.tablet() != tablet.id) {
                        drop(turn.take());
                        let next = self.world.turns.at(tablet.id);
                        turn = deadline.within(&*self.world.transport, next).await;
                    }
                    RetryCause::Busy(why)
                }
                (_, attempt) => attempt.into(),
            };
            retry.pause_and_locate(last, vec![wanted]).await?;
            if self.locations().deleted(table) {
                return Ok(resolved);
            }
        }
    }

    /// Has the tablet of this row resolve the next piece.
    async fn resolve_piece(
        &self,
        row: &RowQuery,
        request: v1::ResolveRequest,
        deadline: Deadline,
    ) -> (Option<TabletTarget>, Attempt) {
        let tablet = match self.place(row, deadline).await {
            Ok(tablet) => tablet,
            Err(unknown) => return (None, Attempt::Again(unknown.0)),
        };
        let until = self.deadline(PIECE_TIMEOUT);
        let attempt = self.send_to(&tablet, Ask::Resolve(request), until).await;
        (Some(tablet), attempt)
    }

    /// Where a lock of a large transaction that has ended was met, there are likely to be more. Clears its
    /// tablet of them, in the background, a few tablets at a time.
    pub(crate) fn clear_behind(self: &Arc<Self>, met: &MetLock, ending: Ending) {
        if met.lock.generation == 0 {
            return;
        }
        let (start_ts, table) = (met.lock.start_ts, met.cell.table);
        let wanted = RowQuery::of(table, &met.cell.row);
        let Ok(tablet) = self.locations().locate(&wanted) else {
            return;
        };
        let key = (start_ts, tablet.id);
        let rows = (tablet.start_row.clone(), tablet.end_row.clone());
        {
            let mut clearing = self.world.clearing.lock();
            if clearing.len() >= CLEARED_MAX || !clearing.insert(key) {
                return;
            }
        }
        let router = self.clone();
        let clear = async move {
            match router.resolve_rows(start_ts, ending, table, rows).await {
                Ok(cleared) => router.resolved(ending, cleared),
                Err(why) => tracing::debug!(%start_ts, %why, "left for others to clear"),
            }
            router.world.clearing.lock().remove(&key);
        };
        self.world.transport.spawn(clear.boxed());
    }
}
