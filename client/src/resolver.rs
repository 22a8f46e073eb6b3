//! Locks that are met: asks their primary, and clears them.

use std::sync::Arc;
use std::time::Duration;

use percolator_protocol::actions::Status;
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::txn::{Ending, MetLock, ReadNext, after_status_read};
use percolator_protocol::types::{Timestamp, TraceParent};
use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::response::Body;

use crate::Error;
use crate::retry::Retry;
use crate::router::{CallError, Deadline, Router};
use crate::trace::{Step, Trace};
use crate::transport::{Backoff, BoxFuture, Lost};

const SILENT: &str = "the oracle did not answer in the time that was left";

impl Router {
    /// A timestamp of the oracle, tried until the deadline.
    pub(crate) async fn timestamp(&self, deadline: Deadline) -> Result<Timestamp, CallError> {
        self.timestamp_after(SILENT.to_owned(), deadline).await
    }

    /// A timestamp of the oracle to commit the transaction at, tried until the deadline.
    pub(crate) async fn commit_ts(
        &self,
        start_ts: Timestamp,
        deadline: Deadline,
    ) -> Result<Timestamp, CallError> {
        let ask = |trace| self.world.transport.commit_timestamp(start_ts, trace);
        self.ask_oracle(&ask, SILENT.to_owned(), deadline).await
    }

    /// The same, where `last` is what was seen of it before.
    pub(crate) async fn timestamp_after(
        &self,
        last: String,
        deadline: Deadline,
    ) -> Result<Timestamp, CallError> {
        let ask = |trace| self.world.transport.timestamp(trace);
        self.ask_oracle(&ask, last, deadline).await
    }

    async fn ask_oracle<'a>(
        &'a self,
        ask: &(dyn Fn(Option<TraceParent>) -> BoxFuture<'a, Result<Timestamp, Lost>> + Sync),
        mut last: String,
        deadline: Deadline,
    ) -> Result<Timestamp, CallError> {
        let mut retry = Retry::new(self, deadline);
        loop {
            let step = self.trace.as_ref().map(Trace::taking_a_timestamp);
            let trace = step.as_ref().and_then(Step::context);
            let attempt = ask(trace);
            match deadline.within(&*self.world.transport, attempt).await {
                Some(Ok(ts)) => return Ok(ts),
                Some(Err(lost)) => last = lost.why,
                None => return Err(CallError::GaveUp(last)),
            }
            drop(step);
            retry.pause(last.clone()).await?;
        }
    }

    /// What became of the lock's transaction, where its primary's table may have been deleted: then it was
    /// rolled back, or might as well have been. No transaction with its primary there has committed since
    /// the table's tablets were frozen, and the tablets go when every lock of those that had is resolved
    /// (`protocol::safe_point`). So a lock that is met after that belongs to a transaction that never committed.
    ///
    /// The same where its primary's records may have been collected: the record of a commit goes only after all
    /// locks of its transaction were resolved. Should the lock have been resolved since it was met, then clearing
    /// it as one that was rolled back changes nothing (`protocol::safe_point`).
    pub(crate) async fn check_status(
        &self,
        met: &MetLock,
        push_past: Option<Timestamp>,
        force: bool,
        deadline: Deadline,
    ) -> Result<Status, CallError> {
        match self.primary_status(met, push_past, force, deadline).await {
            Err(CallError::Deleted(_) | CallError::TooOld(_)) => Ok(Status::RolledBack),
            status => status,
        }
    }

    /// What the lock's primary says. The ttl of a lock is judged by the oracle's time.
    pub(crate) async fn primary_status(
        &self,
        met: &MetLock,
        push_past: Option<Timestamp>,
        force: bool,
        deadline: Deadline,
    ) -> Result<Status, CallError> {
        if let Some(metrics) = self.metrics() {
            metrics.locks_met.inc();
        }
        if let Some(trace) = &self.trace {
            trace.met(&met.lock, &self.locations());
        }
        let now = self.timestamp(deadline).await?;
        let build = |primary| {
            Ask::CheckStatus(v1::CheckStatusRequest {
                primary: Some(primary),
                start_ts: met.lock.start_ts.as_u64(),
                now: now.as_u64(),
                push_past: push_past.map_or(0, Timestamp::as_u64),
                force,
                met_ttl_ms: met.lock.ttl_ms,
            })
        };
        match self.call_one(&met.lock.primary, &build, deadline).await? {
            Body::CheckStatus(status) => status.try_into().map_err(malformed),
            _ => Err(unexpected()),
        }
    }

    /// Clears locks of one transaction, which has ended.
    pub(crate) async fn resolve(
        &self,
        met: &[MetLock],
        ending: Ending,
        deadline: Deadline,
    ) -> Result<(), CallError> {
        let Some(first) = met.first() else {
            return Ok(());
        };
        self.resolved(ending, met.len() as u64);
        let start_ts = first.lock.start_ts.as_u64();
        let build = |cells: Vec<(usize, v1::CellRef)>| {
            let cells = cells.into_iter().map(|(_, cell)| cell).collect();
            match ending {
                Ending::Committed(commit_ts) => Ask::Commit(v1::CommitRequest {
                    start_ts,
                    commit_ts: commit_ts.as_u64(),
                    cells,
                }),
                Ending::RolledBack => Ask::Rollback(v1::RollbackRequest { start_ts, cells }),
            }
        };
        let cell = |at: usize| met[at].cell.clone();
        let all = (0..met.len()).collect();
        // What the servers answer makes no difference: a lock is gone, or it is met again.
        for (_, answer) in self.call(&cell, all, &|_| 0, &build, deadline).await {
            match answer {
                // Gone with its table, or going.
                Ok(_) | Err(CallError::Deleted(_) | CallError::BeingDeleted(_)) => {}
                // Gone so long ago that nothing of it is known.
                Err(CallError::TooOld(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Gets a reader past locks of one transaction. `Some`: ignore that transaction's locks from
    /// now on; `None`: they are gone.
    pub(crate) async fn get_past(
        self: &Arc<Self>,
        all: &[MetLock],
        snapshot: Timestamp,
        deadline: Deadline,
    ) -> Result<Option<Timestamp>, Error> {
        let Some(met) = all.first() else {
            return Ok(None);
        };
        const DOING: &str = "reading past a lock";
        let step = self.step("get_past_lock");
        if let Some(step) = &step {
            step.about(&met.lock, &self.locations());
        }
        let mut backoff = Backoff::new(Duration::from_micros(500), Duration::from_millis(50));
        loop {
            if mutants::on(Mutant::StatusByReadersClock) {
                let now_ms =
                    u64::try_from(self.world.transport.now().as_millis()).unwrap_or(u64::MAX);
                if met.lock.expired(Timestamp::from_millis(now_ms)) {
                    let _ = self.resolve(all, Ending::RolledBack, deadline).await;
                    return Ok(None);
                }
            }
            let status = self
                .check_status(met, Some(snapshot), false, deadline)
                .await
                .map_err(|error| deadline.error(&*self.world.transport, DOING, error))?;
            match after_status_read(status, snapshot) {
                ReadNext::Bypass => {
                    if let Some(metrics) = self.metrics() {
                        metrics.locks_pushed.inc();
                    }
                    return Ok(Some(met.lock.start_ts));
                }
                ReadNext::Resolve(ending) => {
                    self.resolve(all, ending, deadline)
                        .await
                        .map_err(|error| deadline.error(&*self.world.transport, DOING, error))?;
                    self.clear_behind(met, ending);
                    return Ok(None);
                }
                ReadNext::Wait if deadline.passed(&*self.world.transport) => {
                    let locations = self.locations();
                    let last = format!(
                        "cell {} is locked by transaction {} (primary {}), which is being committed",
                        locations.text(&met.cell),
                        met.lock.start_ts,
                        locations.text(&met.lock.primary)
                    );
                    return Err(deadline.error(
                        &*self.world.transport,
                        DOING,
                        CallError::GaveUp(last),
                    ));
                }
                ReadNext::Wait => backoff.wait(&*self.world.transport).await,
            }
        }
    }
}

pub(crate) fn unexpected() -> CallError {
    CallError::GaveUp("the server answered another question than was asked".into())
}

pub(crate) fn malformed(error: percolator_wire::Malformed) -> CallError {
    CallError::GaveUp(error.to_string())
}
