//! Keeps the durable limit of an oracle that is alone ahead of use, in the background. The server and the simulator each bring a
//! [`LimitHost`].

use std::convert::Infallible;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{pending, select};
use percolator_server::{DurableValue, Error, Folder};

use crate::core::Store;
use crate::service::Shared;

/// After a failed write the first pause, then twice as long each time, up to the longest.
const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(1);

/// The oracle whose limits are kept, and the place where they are durable.
pub trait LimitHost: Send + Sync {
    /// The limit to make durable now, if one is due.
    fn store(&self) -> Option<Store>;

    /// Writes a limit.
    ///
    /// # Errors
    /// It may not be durable.
    fn write(&self, store: Store) -> impl Future<Output = Result<(), Error>> + Send;

    /// This limit is durable.
    fn stored(&self, store: Store);

    /// The last limit may not be durable, for this reason.
    fn not_stored(&self, why: String);

    /// Waits.
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send;

    /// Ends when a request waits for a limit.
    fn exhausted(&self) -> impl Future<Output = ()> + Send;
}

/// Stores limits before they are reached.
#[derive(Debug)]
pub struct Keeper<H> {
    host: H,
    /// How often it checks whether a limit is due.
    interval: Duration,
}

impl<H: LimitHost> Keeper<H> {
    /// For limits that are this far ahead of use.
    pub fn new(host: H, window_ms: u64) -> Self {
        Self {
            host,
            // A limit is due when half of the window is left: checks are closer than that.
            interval: Duration::from_millis((window_ms / 8).max(1)),
        }
    }

    /// Makes the next limit durable if one is due.
    ///
    /// # Errors
    /// It may not be durable.
    pub async fn extend(&self) -> Result<(), Error> {
        let Some(store) = self.host.store() else {
            return Ok(());
        };
        let written = self.host.write(store).await;
        match &written {
            Ok(()) => self.host.stored(store),
            Err(error) => self.host.not_stored(error.to_string()),
        }
        written
    }

    /// Extends the limit whenever it is due; never ends.
    pub async fn run(&self) -> Infallible {
        let mut is_failing = false;
        let mut retry = RETRY_FIRST;
        loop {
            let pause = match self.extend().await {
                Ok(()) => {
                    if is_failing {
                        tracing::info!("limits are durable again");
                    }
                    (is_failing, retry) = (false, RETRY_FIRST);
                    self.interval
                }
                Err(error) => {
                    if !is_failing {
                        tracing::error!(
                            %error,
                            "a limit cannot be made durable; serving what is left below the last \
                             one, and trying again"
                        );
                    }
                    is_failing = true;
                    let pause = retry;
                    retry = (retry * 2).min(RETRY_MAX);
                    pause
                }
            };
            let exhausted = async {
                // While the disk fails its pauses hold: requests that wait would not help it.
                if is_failing {
                    pending().await
                } else {
                    self.host.exhausted().await;
                }
            };
            select(pin!(self.host.sleep(pause)), pin!(exhausted)).await;
        }
    }
}

/// The limit of a server, in its folder.
pub(crate) struct FolderLimit {
    pub(crate) shared: Arc<Shared>,
    pub(crate) file: Arc<dyn DurableValue + Send + Sync>,
    pub(crate) folder: Arc<Folder>,
}

impl fmt::Debug for FolderLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FolderLimit").finish_non_exhaustive()
    }
}

impl LimitHost for FolderLimit {
    fn store(&self) -> Option<Store> {
        self.shared.store()
    }

    /// Writes on another thread: requests are answered meanwhile.
    async fn write(&self, store: Store) -> Result<(), Error> {
        let began = Instant::now();
        let (file, stall) = (self.file.clone(), self.shared.stall.clone());
        // The folder stays locked until the write is over, even if the caller is gone:
        // it must not overtake what the next owner of the folder writes.
        let folder = self.folder.clone();
        let write = tokio::task::spawn_blocking(move || {
            let writing = stall.writing();
            let result = file.store(&store.value());
            drop(writing);
            drop(folder);
            result
        });
        let written = write.await.unwrap_or_else(|error| {
            Err(Error::File {
                action: "write",
                path: self.folder.path().to_owned(),
                cause: std::io::Error::other(error),
            })
        });
        let metrics = &self.shared.metrics;
        metrics.limit_written(written.is_ok(), began.elapsed());
        written
    }

    fn stored(&self, store: Store) {
        self.shared.stored(store);
    }

    fn not_stored(&self, why: String) {
        self.shared.not_stored(why);
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    async fn exhausted(&self) {
        self.shared.exhausted().await;
    }
}
