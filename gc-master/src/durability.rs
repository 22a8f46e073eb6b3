//! How far the state of a directory is durable, and the two tasks that make it durable: one writes it to its register, and one copies
//! it into the folders of all masters while the register doesn't take it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::select;
use parking_lot::Mutex;
use percolator_protocol::election::StateNumber;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::candidate::{Candidate, Host};
use crate::runner::{Runner, RunnerHost};
use crate::stored::{PersistError, StateStore};

/// How far the state of a directory is durable.
#[derive(Debug, Default)]
pub(crate) struct Durability {
    progress: Mutex<Progress>,
    /// There is something to write.
    written: Notify,
    /// There is something that may have to be copied.
    copied: Notify,
    /// For who waits until something is durable.
    progressed: Notify,
}

#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// Changes of the durable state so far.
    changes: u64,
    /// The state after so many changes is durable.
    durable: u64,
    /// Nobody has begun to write the newest state yet.
    is_unwritten: bool,
    /// Nothing more will be durable: the state in memory may be ahead of the durable one, and nothing of it may be shown.
    is_closed: bool,
}

/// Nothing of a directory is shown any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

impl Durability {
    /// The state has changed. To be called before anybody else may read it.
    pub(crate) fn changed(&self) {
        {
            let mut progress = self.progress.lock();
            progress.changes += 1;
            progress.is_unwritten = true;
        }
        self.written.notify_one();
        self.copied.notify_one();
    }

    /// How many changes there were.
    pub(crate) fn changes(&self) -> u64 {
        self.progress.lock().changes
    }

    /// Nothing is shown from now on, and nothing may change any more.
    pub(crate) fn close(&self) {
        self.progress.lock().is_closed = true;
        self.wake();
    }

    /// # Errors
    /// It is closed.
    pub(crate) fn check(&self) -> Result<(), Closed> {
        if self.progress.lock().is_closed {
            Err(Closed)
        } else {
            Ok(())
        }
    }

    /// Wakes those who wait for [`Self::progressed`]: of something beside the durable state.
    pub(crate) fn wake(&self) {
        self.progressed.notify_waiters();
    }

    /// Ends with the next progress after this call.
    pub(crate) fn progressed(&self) -> Notified<'_> {
        self.progressed.notified()
    }

    /// Waits until the state after so many changes is durable.
    ///
    /// # Errors
    /// It is closed before.
    pub(crate) async fn shown(&self, changes: u64) -> Result<(), Closed> {
        loop {
            let progressed = self.progressed();
            {
                let progress = self.progress.lock();
                if progress.durable >= changes {
                    return Ok(());
                }
                if progress.is_closed {
                    return Err(Closed);
                }
            }
            progressed.await;
        }
    }

    fn take_unwritten(&self) -> bool {
        std::mem::take(&mut self.progress.lock().is_unwritten)
    }

    fn write_again(&self) {
        self.progress.lock().is_unwritten = true;
    }

    fn is_durable(&self, changes: u64) -> bool {
        self.progress.lock().durable >= changes
    }

    /// The state after so many changes is durable.
    pub(crate) fn durable(&self, changes: u64) {
        {
            let mut progress = self.progress.lock();
            progress.durable = changes.max(progress.durable);
        }
        self.wake();
    }
}

impl<R: RunnerHost> Runner<R> {
    /// Makes each new state durable, until a write fails; never ends before. One of several masters copies the state into the folders
    /// of all while the register doesn't take it. The directory is closed when this is dropped.
    pub(crate) async fn persist<H: Host>(
        &self,
        store: StateStore,
        candidate: Option<&Candidate<H>>,
    ) -> PersistError {
        let _closes = ClosesOnDrop(self.durability());
        let writing = pin!(self.write_states(store, candidate));
        let Some(candidate) = candidate else {
            return writing.await;
        };
        let copying = pin!(self.copy_states(candidate));
        select(writing, copying).await.factor_first().0
    }

    async fn write_states<H: Host>(
        &self,
        mut store: StateStore,
        candidate: Option<&Candidate<H>>,
    ) -> PersistError {
        let (term, durability) = (store.term(), self.durability());
        loop {
            let is_unwritten = durability.take_unwritten();
            let Some((changes, state)) = is_unwritten.then(|| self.newest()).flatten() else {
                durability.written.notified().await;
                continue;
            };
            let since = Instant::now();
            let stored = store.store(changes, &state).await;
            self.host().written(&state, stored.is_ok(), since.elapsed());
            match stored {
                // Either the folders of all masters that could take over have this state or a later one. Or this master may not
                // answer now, and its right may come back.
                Err(error)
                    if error.passes()
                        && (durability.is_durable(changes)
                            || candidate.is_some_and(|it| !it.may_act())) =>
                {
                    tracing::debug!(%error, changes, "the register doesn't have the newest state");
                    durability.write_again();
                    continue;
                }
                Err(error) => return error,
                Ok(()) => {}
            }
            let number = StateNumber {
                term,
                number: changes,
            };
            if let Some(candidate) = candidate {
                candidate.stored(number);
            }
            if let Err(error) = self.became_durable(number) {
                return error;
            }
        }
    }

    /// Copies states that the register has not taken in time. Ends if one that is durable may not be shown.
    async fn copy_states<H: Host>(&self, candidate: &Candidate<H>) -> PersistError {
        let durability = self.durability();
        loop {
            let changes = durability.changes();
            if durability.is_durable(changes) {
                durability.copied.notified().await;
                continue;
            }
            candidate.pause(candidate.register_timeout()).await;
            if durability.is_durable(changes) {
                continue;
            }
            let Some((changes, state)) = self.newest() else {
                continue;
            };
            let number = StateNumber {
                term: self.term(),
                number: changes,
            };
            match candidate.copy(number, &Arc::new(state)).await {
                Ok(()) => {
                    if let Err(error) = self.became_durable(number) {
                        return error;
                    }
                }
                Err(error) => {
                    tracing::debug!(error, changes, "a state is not durable in folders");
                    candidate.pause(candidate.copy_retry()).await;
                }
            }
        }
    }

    fn became_durable(&self, number: StateNumber) -> Result<(), PersistError> {
        self.read_unshown(|directory, _| self.host().becomes_durable(directory, number))?;
        self.durability().durable(number.number);
        Ok(())
    }
}

/// Closes a directory when it is dropped.
struct ClosesOnDrop<'a>(&'a Durability);

impl Drop for ClosesOnDrop<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}
