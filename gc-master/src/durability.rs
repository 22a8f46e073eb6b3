//! How far the state of a directory is durable, and the two tasks that make it so: one writes it to its register, and one makes
//! copies in the folders of all masters while the register doesn't take it.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::select;
use parking_lot::Mutex;
use percolator_protocol::election::StateNumber;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::candidate::{Candidate, Host};
use crate::served::Served;
use crate::stored::{PersistError, StateStore};

/// How far the state of a directory is durable.
#[derive(Debug, Default)]
pub struct Durability {
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
    pub fn changed(&self) {
        {
            let mut progress = self.progress.lock();
            progress.changes += 1;
            progress.is_unwritten = true;
        }
        self.written.notify_one();
        self.copied.notify_one();
    }

    /// How many changes there were.
    pub fn changes(&self) -> u64 {
        self.progress.lock().changes
    }

    /// Nothing is shown from now on, and nothing may change any more.
    pub fn close(&self) {
        self.progress.lock().is_closed = true;
        self.wake();
    }

    /// # Errors
    /// It is closed.
    pub fn check(&self) -> Result<(), Closed> {
        if self.progress.lock().is_closed {
            Err(Closed)
        } else {
            Ok(())
        }
    }

    /// Wakes those who wait for [`Self::progressed`]: of something beside the durable state.
    pub fn wake(&self) {
        self.progressed.notify_waiters();
    }

    /// Ends with the next progress after this call.
    pub fn progressed(&self) -> Notified<'_> {
        self.progressed.notified()
    }

    /// Waits until the state after so many changes is durable.
    ///
    /// # Errors
    /// It is closed before.
    pub async fn shown(&self, changes: u64) -> Result<(), Closed> {
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
    pub fn durable(&self, changes: u64) {
        {
            let mut progress = self.progress.lock();
            progress.durable = changes.max(progress.durable);
        }
        self.wake();
    }
}

/// A directory whose state is to be durable.
pub trait Durable: Sync {
    /// The directory, and how far its state is durable.
    fn served(&self) -> &Served;

    /// The register has answered after so long: whether it has this state.
    fn written(&self, _state: &[u8], _is_stored: bool, _took: Duration) {}

    /// This state is durable, and about to be shown.
    ///
    /// # Errors
    /// It may not be shown.
    fn becomes_durable(&self, number: StateNumber) -> Result<(), PersistError>;
}

/// Makes each new state durable, until one can't be; never ends before. One of several masters makes copies in the folders of all
/// while the register doesn't take it. When this is dropped, nothing is shown any more.
pub async fn persist<H: Host>(
    directory: &impl Durable,
    store: StateStore,
    candidate: Option<&Candidate<H>>,
) -> PersistError {
    let _closes = Closes(directory.served().durability());
    let term = store.term();
    let writing = pin!(write(directory, store, candidate));
    let Some(candidate) = candidate else {
        return writing.await;
    };
    let copying = pin!(copy(directory, term, candidate));
    select(writing, copying).await.factor_first().0
}

async fn write<H: Host>(
    directory: &impl Durable,
    mut store: StateStore,
    candidate: Option<&Candidate<H>>,
) -> PersistError {
    let (term, durability) = (store.term(), directory.served().durability());
    loop {
        let is_unwritten = durability.take_unwritten();
        let Some((changes, state)) = is_unwritten.then(|| directory.served().newest()).flatten()
        else {
            durability.written.notified().await;
            continue;
        };
        let since = Instant::now();
        let stored = store.store(changes, &state).await;
        directory.written(&state, stored.is_ok(), since.elapsed());
        match stored {
            // The folders of all masters that could take over have it, or a later one; or nobody is answered now, and the
            // right to answer may come back.
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
        if let Err(error) = show(directory, number) {
            return error;
        }
    }
}

/// Makes copies of states that the register has not taken in time. Ends if one that is durable may not be shown.
async fn copy<H: Host>(
    directory: &impl Durable,
    term: u64,
    candidate: &Candidate<H>,
) -> PersistError {
    let durability = directory.served().durability();
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
        let Some((changes, state)) = directory.served().newest() else {
            continue;
        };
        let number = StateNumber {
            term,
            number: changes,
        };
        match candidate.copy(number, &Arc::new(state)).await {
            Ok(()) => {
                if let Err(error) = show(directory, number) {
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

fn show(directory: &impl Durable, number: StateNumber) -> Result<(), PersistError> {
    directory.becomes_durable(number)?;
    directory.served().durability().durable(number.number);
    Ok(())
}

/// Closes it when it is dropped.
struct Closes<'a>(&'a Durability);

impl Drop for Closes<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}
