//! Keeps the durable limit ahead of use, in the background.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use percolator_server::{DurableValue, Error, Folder};

use crate::core::Store;
use crate::service::Shared;

/// After a failed write the first pause, then twice as long each time, up to the longest.
const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(1);

/// Stores limits before they are reached.
pub(crate) struct Keeper {
    shared: Arc<Shared>,
    truth: Arc<dyn DurableValue + Send + Sync>,
    folder: Arc<Folder>,
    /// How often it looks whether a limit is due.
    look: Duration,
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").field("look", &self.look).finish()
    }
}

impl Keeper {
    pub(crate) fn new(
        shared: Arc<Shared>,
        truth: Arc<dyn DurableValue + Send + Sync>,
        folder: Arc<Folder>,
        window_ms: u64,
    ) -> Self {
        Self {
            shared,
            truth,
            folder,
            // A limit is due when half of the window is left: looks are closer than that.
            look: Duration::from_millis((window_ms / 8).max(1)),
        }
    }

    /// Makes the next limit durable if one is due.
    pub(crate) async fn extend(&self) -> Result<(), Error> {
        let Some(store) = self.shared.store() else {
            return Ok(());
        };
        let began = Instant::now();
        let written = self.write(store).await;
        let took = began.elapsed();
        self.shared.metrics.limit_written(written.is_ok(), took);
        match written {
            Ok(()) => {
                self.shared.stored(store);
                Ok(())
            }
            Err(error) => {
                self.shared.not_stored(error.to_string());
                Err(error)
            }
        }
    }

    /// Writes on another thread: requests are answered meanwhile.
    async fn write(&self, store: Store) -> Result<(), Error> {
        let (truth, stall) = (self.truth.clone(), self.shared.stall.clone());
        // The folder stays locked until the write is over, even if nobody waits for it any more:
        // it must not overtake what the next owner of the folder writes.
        let folder = self.folder.clone();
        let write = tokio::task::spawn_blocking(move || {
            let writing = stall.writing();
            let result = truth.store(&store.value());
            drop(writing);
            drop(folder);
            result
        });
        write.await.unwrap_or_else(|error| {
            Err(Error::File {
                action: "write",
                path: self.folder.path().to_owned(),
                cause: std::io::Error::other(error),
            })
        })
    }

    /// Extends the limit whenever it's due; never ends.
    pub(crate) async fn run(&self) -> Result<Infallible, crate::Error> {
        let mut failing = false;
        let mut retry = RETRY_FIRST;
        loop {
            let pause = match self.extend().await {
                Ok(()) => {
                    if failing {
                        tracing::info!("limits are durable again");
                    }
                    (failing, retry) = (false, RETRY_FIRST);
                    self.look
                }
                Err(error) => {
                    if !failing {
                        tracing::error!(
                            %error,
                            "a limit cannot be made durable; serving what is left below the last \
                             one, and trying again"
                        );
                    }
                    failing = true;
                    let pause = retry;
                    retry = (retry * 2).min(RETRY_MAX);
                    pause
                }
            };
            let exhausted = async {
                // While the disk fails its pauses hold: requests that wait would not help it.
                if failing {
                    std::future::pending().await
                } else {
                    self.shared.exhausted().await
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = exhausted => {}
            }
        }
    }
}
