//! Trying again until a deadline: the one loop's pause that all calls share.

use std::sync::Arc;
use std::time::Duration;

use crate::directory::Directory;
use crate::router::{CallError, Deadline, Router};
use crate::transport::Backoff;

/// A call that is tried until its deadline, with growing pauses.
pub(crate) struct Retry<'a> {
    router: &'a Router,
    deadline: Deadline,
    backoff: Backoff,
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
        let transport = &*self.router.transport;
        let waited = self
            .deadline
            .within(transport, self.backoff.wait(transport))
            .await;
        waited.ok_or(CallError::GaveUp(last))
    }

    /// [`Self::pause`], and then asks the master where things are: whoever doesn't answer may have moved.
    /// `None`: the master is away, which leaves us with what we know.
    ///
    /// # Errors
    /// As [`Self::pause`].
    pub(crate) async fn look_again(
        &mut self,
        last: String,
    ) -> Result<Option<Arc<Directory>>, CallError> {
        self.pause(last).await?;
        Ok(self.router.refresh_by(self.deadline).await.ok())
    }
}
