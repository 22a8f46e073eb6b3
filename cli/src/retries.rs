//! How long a command waits for servers that are away.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use percolator_client::{CellName, Client, Entry, Error, Scan, Timestamp, Txn};

use crate::errors::in_words;

/// Pause before something is tried again; the client has waited itself before that.
const PAUSE: Duration = Duration::from_millis(250);
/// How often it is said that a command waits.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// Gives up when servers have been away for too long.
pub(crate) struct Retries {
    limit: Duration,
    state: Mutex<State>,
}

struct State {
    /// Since when nothing has gone on. A pause of the command's own, as for who reads its output, is none of that.
    failing: Option<Instant>,
    said: Option<Instant>,
}

impl Retries {
    pub(crate) fn new(limit: Duration) -> Self {
        Self {
            limit,
            state: Mutex::new(State {
                failing: None,
                said: None,
            }),
        }
    }

    /// Something has gone on.
    pub(crate) fn progress(&self) {
        self.state.lock().failing = None;
    }

    /// After an error that may pass: waits a little, or gives the error back when the time is over.
    /// `say` tells a person what is waited for.
    pub(crate) async fn wait(&self, error: Error, say: impl FnOnce(&str)) -> Result<(), Error> {
        {
            let mut state = self.state.lock();
            let waited = state.failing.get_or_insert_with(Instant::now).elapsed();
            if waited >= self.limit {
                return Err(error);
            }
            if state.said.is_none_or(|said| said.elapsed() >= SAY_EVERY) {
                state.said = Some(Instant::now());
                let left = self.limit - waited;
                say(&format!(
                    "waiting up to {:.0} s more: {}",
                    left.as_secs_f64(),
                    in_words(&error)
                ));
            }
        }
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }
}

/// Whether the same may succeed when it is tried again, without a change of what is asked.
pub(crate) fn may_pass(error: &Error) -> bool {
    matches!(error, Error::Timeout { .. } | Error::Unavailable(_))
}

/// A snapshot whose reads are retried, for commands that read for longer than a server may be away.
pub(crate) struct Snapshot<'a> {
    pub(crate) txn: Txn,
    retries: Retries,
    say: &'a (dyn Fn(&str) + Sync),
}

impl<'a> Snapshot<'a> {
    /// The snapshot of now, or an earlier one.
    pub(crate) async fn take(
        client: &Client,
        at: Option<u64>,
        limit: Duration,
        say: &'a (dyn Fn(&str) + Sync),
    ) -> Result<Self, Error> {
        let retries = Retries::new(limit);
        let txn = loop {
            let begun = match at {
                Some(at) => client.begin_at(Timestamp::from_u64(at)).await,
                None => client.begin().await,
            };
            match begun {
                Err(error) if may_pass(&error) => retries.wait(error, say).await?,
                begun => break begun?,
            }
        };
        Ok(Self { txn, retries, say })
    }

    /// The next cell of a scan.
    pub(crate) async fn next(&self, scan: &mut Scan) -> Result<Option<Entry>, Error> {
        loop {
            match scan.next().await {
                // A scan goes on where it stood.
                Err(error) if may_pass(&error) => self.retries.wait(error, self.say).await?,
                next => {
                    self.retries.progress();
                    return next;
                }
            }
        }
    }

    /// [`Txn::batch_get`].
    pub(crate) async fn batch_get(
        &self,
        cells: &[CellName<'_>],
    ) -> Result<Vec<Option<bytes::Bytes>>, Error> {
        loop {
            match self.txn.batch_get(cells).await {
                Err(error) if may_pass(&error) => self.retries.wait(error, self.say).await?,
                values => {
                    self.retries.progress();
                    return values;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_an_outage_counts() {
        let limit = Duration::from_millis(600);
        let retries = Retries::new(limit);
        let fails = async || {
            retries
                .wait(Error::Unavailable("away".into()), |_| {})
                .await
        };
        // As where nobody takes what was read.
        std::thread::sleep(limit);
        assert!(fails().await.is_ok());
        retries.progress();
        std::thread::sleep(limit);
        assert!(fails().await.is_ok());
        std::thread::sleep(limit);
        assert!(fails().await.is_err());
    }
}
