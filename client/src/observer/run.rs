//! The runs of a handler for one change, until one commits or the change is given up.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::FutureExt;
use percolator_protocol::types::{Chain, Timestamp, escape};

use super::dead_letters;
use super::requests::WaitingChange;
use super::worker::Shared;
use super::{Change, Counters, HandlerError};
use crate::doom::Doom;
use crate::error::Conflict;
use crate::transact::{Attempts, OpenTxn};
use crate::transport::Backoff;
use crate::{Error, Txn};

/// One change to be run for.
pub(super) struct Run {
    pub(super) shared: Arc<Shared>,
    pub(super) row: Bytes,
    pub(super) changed_at: Timestamp,
    /// When the first of several changes was made that are run for at once.
    first_at: Timestamp,
    pub(super) chain: Chain,
}

/// The runs for one change until now.
#[derive(Default)]
struct RunHistory {
    has_begun: bool,
    /// What the last of them has found in the cell.
    value: Option<Option<Bytes>>,
    /// How many have found another value than the one before.
    values_before: u32,
    /// How many have failed on this value.
    failures: u32,
}

impl RunHistory {
    /// One has found this.
    fn finds(&mut self, value: &Option<Bytes>) {
        let before = self.value.replace(value.clone());
        if before.is_some_and(|before| before != *value) {
            self.values_before += 1;
            self.failures = 0;
        }
    }
}

/// How a run has ended.
enum RunEnd {
    Committed(Timestamp),
    /// Nothing waits any more.
    Overtaken,
    Unknown,
    /// Another transaction, a server, or a change since: it is no fault of the handler.
    /// Whether it has waited already, for its turn.
    Again(Error, bool),
    Failed(HandlerError),
    /// It has not begun: too many runs are before it in its chain.
    TooDeep,
}

impl RunEnd {
    /// The end of a run whose handler has failed by itself.
    fn of_failure(error: HandlerError) -> Self {
        match error.downcast::<Error>() {
            Ok(error) if is_passing(&error) => Self::Again(*error, false),
            Ok(error) => Self::Failed(error),
            Err(error) => Self::Failed(error),
        }
    }
}

impl Run {
    /// Runs for a change.
    pub(super) fn of(shared: &Arc<Shared>, change: WaitingChange) -> Self {
        Self {
            shared: shared.clone(),
            row: change.row,
            changed_at: change.changed_at,
            first_at: change.first_at,
            chain: change.chain,
        }
    }

    /// Runs the handler until it has committed, or is given up.
    pub(super) async fn until_it_ends(self) {
        let shared = &*self.shared;
        let options = &shared.observer.options;
        let transport = &*shared.client.router.world.transport;
        let counters = &shared.counters;
        let mut backoff = Backoff::new(options.backoff, options.backoff_max);
        let mut attempts = shared.client.attempts();
        let mut history = RunHistory::default();
        loop {
            let end = if self.chain.depth >= options.chain_max {
                RunEnd::TooDeep
            } else {
                self.once(&mut attempts, &mut history).await
            };
            match end {
                RunEnd::Committed(commit_ts) => {
                    let lag_ms = commit_ts
                        .physical_ms()
                        .saturating_sub(self.first_at.physical_ms());
                    counters.lag_ms.store(lag_ms, Ordering::Relaxed);
                    return self.done(&counters.committed, "committed");
                }
                RunEnd::Overtaken => return self.overtaken(),
                RunEnd::Unknown => return self.done(&counters.unknown, "unknown"),
                RunEnd::Again(error, has_waited) => {
                    let row = escape(&self.row);
                    tracing::debug!(table = shared.observer.table, %row, %error, "runs again");
                    if !has_waited {
                        backoff.wait(transport).await;
                    }
                }
                RunEnd::Failed(error) => {
                    history.failures += 1;
                    let failures = history.failures;
                    let row = escape(&self.row);
                    let table = &shared.observer.table;
                    tracing::warn!(table, %row, failures, %error, "the handler failed");
                    if failures >= options.attempts_max
                        && self
                            .give_up(history.value.as_ref(), failures, &error.to_string())
                            .await
                    {
                        return;
                    }
                    backoff.wait(transport).await;
                }
                RunEnd::TooDeep => {
                    if self.give_up(None, 0, &self.too_deep()).await {
                        return;
                    }
                    backoff.wait(transport).await;
                }
            }
            if shared.is_stopping() {
                return shared.give_back(vec![self.row]).await;
            }
            Counters::count(&counters.retries);
            if let Some(metrics) = shared.client.router.metrics() {
                metrics.observer_retries.inc();
            }
        }
    }

    /// It is counted how it has ended.
    fn done(&self, counter: &AtomicU64, end: &'static str) {
        Counters::count(counter);
        if let Some(metrics) = self.shared.client.router.metrics() {
            metrics.observed(end);
        }
    }

    fn overtaken(&self) {
        self.done(&self.shared.counters.overtaken, "overtaken");
    }

    /// Makes the change a dead letter, unless others have acknowledged it, or the cell holds something else than what runs failed
    /// on. Whether it is done with.
    async fn give_up(
        &self,
        failed_on: Option<&Option<Bytes>>,
        attempts: u32,
        reason: &str,
    ) -> bool {
        let counters = &self.shared.counters;
        match dead_letters::write(self, failed_on, attempts, reason).await {
            Ok(None) => return false,
            Ok(Some(_)) => self.done(&counters.dead_letters, "dead_letter"),
            Err(Error::Conflict(Conflict::NotNotified {
                changed_at: None, ..
            })) => self.overtaken(),
            Err(_) => return false,
        }
        true
    }

    fn too_deep(&self) -> String {
        let locations = self.shared.client.router.locations();
        let columns = self.chain.columns.iter();
        let columns = columns
            .map(|(table, column)| format!("{:?} of {}", escape(column), locations.named(*table)));
        format!(
            "a chain of {} runs of observers, one because of the other, perhaps a loop: of columns {}",
            self.chain.depth,
            columns.collect::<Vec<_>>().join(", ")
        )
    }

    async fn once(&self, attempts: &mut Attempts, history: &mut RunHistory) -> RunEnd {
        let observer = &self.shared.observer;
        let txn = match self.shared.client.begin_for(&self.chain).await {
            Ok(txn) => txn,
            Err(error) => return RunEnd::Again(error, false),
        };
        if let Some(metrics) = self.shared.client.router.metrics()
            && !std::mem::replace(&mut history.has_begun, true)
        {
            metrics.run_began(self.first_at, txn.start_ts());
        }
        let mut change = Change {
            table: observer.table.clone(),
            row: self.row.clone(),
            column: observer.column.clone(),
            value: None,
            changed_at: self.changed_at,
            values_before: 0,
            chain: self.chain.clone(),
        };
        let acknowledged = async {
            txn.follow(&change).await?;
            self.acknowledge(&txn).await
        };
        change.value = match acknowledged.await {
            Ok(value) => value,
            Err(error) => return RunEnd::Again(error, false),
        };
        history.finds(&change.value);
        change.values_before = history.values_before;
        let inner = txn.inner.clone();
        let handler = AssertUnwindSafe(async {
            let run = (observer.handler)(change, OpenTxn::lent(&txn));
            run.await
        });
        let step = inner.router.step("handler");
        let handled = handler.catch_unwind().await;
        drop(step);
        let failure = match handled {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error),
            Err(panic) => Some(format!("the handler panicked: {}", panicked(&*panic)).into()),
        };
        if let Some(error) = failure {
            txn.rollback();
            // A conflict that the handler has met is none of its faults, whatever it made of it.
            if Doom::behind(None, inner.doom()).is_some() {
                let has_waited = attempts.after_end(&inner, None).await;
                return RunEnd::Again(Error::Ended, has_waited);
            }
            return RunEnd::of_failure(error);
        }
        match txn.commit().await {
            Ok(commit_ts) => RunEnd::Committed(commit_ts),
            Err(Error::Conflict(Conflict::NotNotified {
                changed_at: None, ..
            })) => RunEnd::Overtaken,
            Err(Error::Unknown { .. }) => RunEnd::Unknown,
            Err(error) if error.retryable() => {
                // Not for a turn where a change came that the snapshot has not seen.
                let is_late = matches!(error, Error::Conflict(Conflict::NotNotified { .. }));
                let has_waited = attempts.after_end(&inner, Some(&error)).await;
                RunEnd::Again(error, has_waited && !is_late)
            }
            Err(error) if is_passing(&error) => RunEnd::Again(error, false),
            Err(error) => RunEnd::Failed(Box::new(error)),
        }
    }

    /// Acknowledges the change with the transaction; what the cell holds.
    pub(super) async fn acknowledge(&self, txn: &Txn) -> Result<Option<Bytes>, Error> {
        let observer = &self.shared.observer;
        txn.acknowledge(&observer.table, &self.row, &observer.column)
            .await
    }

    pub(super) fn row(&self) -> &Bytes {
        &self.row
    }
}

/// Whether the error is of the cluster, and may not be there the next time.
fn is_passing(error: &Error) -> bool {
    error.retryable() || matches!(error, Error::Timeout { .. } | Error::Unavailable(_))
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("for a reason that is no text")
}
