//! Trying again until a deadline: the one loop's pause that all calls share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

use crate::location_cache::RowQuery;
use crate::router::{CallError, Deadline, Router};
use crate::transport::{Backoff, MasterError};

/// The reason why a request is sent again.
pub(crate) enum RetryCause {
    /// The server has what it was asked about, and too much else to do.
    Busy(String),
    /// A tablet was split or merged, and where its rows are is known.
    Moved(String),
    /// It may have moved.
    Other(String),
    /// To ask again doesn't help.
    Damaged(String),
}

impl RetryCause {
    /// Of two servers: what decides how it goes on, or what was seen last.
    pub(crate) fn or(self, next: Self) -> Self {
        match (&self, &next) {
            (Self::Damaged(_), _) | (Self::Other(_), Self::Busy(_) | Self::Moved(_)) => self,
            _ => next,
        }
    }
}

impl Default for RetryCause {
    fn default() -> Self {
        Self::Busy(String::new())
    }
}

/// A call that is tried until its deadline, with growing pauses.
pub(crate) struct Retry<'a> {
    router: &'a Router,
    deadline: Deadline,
    backoff: Backoff,
}

/// Of what a client does in the background at a tablet whose server is busy, one request at a time is made again, in turn:
/// were all of them tried again and again by themselves, the server would be kept busy with refusing them.
#[derive(Default)]
pub(crate) struct Turns(Mutex<BTreeMap<u64, Arc<tokio::sync::Mutex<()>>>>);

/// A turn, until it is dropped.
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    tablet: u64,
    _guard: OwnedMutexGuard<()>,
}

impl Turns {
    /// The next turn at this tablet.
    pub(crate) async fn at(&self, tablet: u64) -> Turn<'_> {
        let turn = self.0.lock().entry(tablet).or_default().clone();
        Turn {
            turns: self,
            tablet,
            _guard: turn.lock_owned().await,
        }
    }
}

impl Turn<'_> {
    pub(crate) fn tablet(&self) -> u64 {
        self.tablet
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut turns = self.turns.0.lock();
        // This one's guard, and nobody's else: nobody waits.
        if turns
            .get(&self.tablet)
            .is_some_and(|turn| Arc::strong_count(turn) == 2)
        {
            turns.remove(&self.tablet);
        }
    }
}

impl<'a> Retry<'a> {
    pub(crate) fn new(router: &'a Router, deadline: Deadline) -> Self {
        Self {
            router,
            deadline,
            backoff: Backoff::new(Duration::from_millis(2), Duration::from_millis(250)),
        }
    }

    /// After a try that `last` was seen of: waits a little.
    ///
    /// # Errors
    /// [`CallError::GaveUp`]: no time is left for another one.
    pub(crate) async fn pause(&mut self, last: String) -> Result<(), CallError> {
        let transport = &*self.router.world.transport;
        let waited = self
            .deadline
            .within(transport, self.backoff.wait(transport))
            .await;
        waited.ok_or(CallError::GaveUp(last))
    }

    /// [`Self::pause`], and then asks the master where these rows are: they may have moved from a server that doesn't answer. A busy
    /// server still has them, and its many clients don't all ask the master. If the master is away, the known locations stay.
    ///
    /// # Errors
    /// As [`Self::pause`], and where it doesn't help to ask again; [`CallError::Replaced`].
    pub(crate) async fn pause_and_locate(
        &mut self,
        last: RetryCause,
        wanted: Vec<RowQuery>,
    ) -> Result<(), CallError> {
        let (last, may_have_moved) = match last {
            RetryCause::Busy(last) | RetryCause::Moved(last) => (last, false),
            RetryCause::Other(last) => (last, true),
            RetryCause::Damaged(why) => return Err(CallError::GaveUp(why)),
        };
        self.pause(last).await?;
        if may_have_moved {
            let asked = self.router.find_again(wanted, self.deadline).await;
            if let Err(MasterError::Replaced(replaced)) = asked {
                return Err(CallError::Replaced(replaced));
            }
        }
        Ok(())
    }
}
