//! Observers: code that runs when data change (paper, section 2.4).
//!
//! ```no_run
//! use percolator_client::{Client, Observer};
//!
//! # async fn f() -> Result<(), percolator_client::Error> {
//! let client = Client::connect("127.0.0.1:7400").await?;
//! client.observe("documents", "text").await?;
//! let worker = Observer::new("documents", "text", |change, txn| async move {
//!     let words = change.value.map_or(0, |text| text.split(|byte| *byte == b' ').count());
//!     txn.put("documents", &change.row, "words", words.to_string())?;
//!     Ok(())
//! })
//! .start(&client)
//! .await?;
//! // Later.
//! worker.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! Each run is one transaction: what it writes, and the acknowledgement of the change, are committed together or not at all. At
//! most one run commits for a change, and none is lost. Several changes of a cell may be one run, which sees the last. What a
//! handler does outside of its transaction may happen more than once.

mod acknowledge;
mod dead_letters;
mod requests;
mod run;
mod stop_signal;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use percolator_protocol::types::{Chain, Timestamp};
use tokio::sync::watch;

use self::stop_signal::StopSignal;
use crate::transact::OpenTxn;
use crate::transport::BoxFuture;
use crate::{Client, Error};

pub use dead_letters::{DEAD_LETTERS, DeadLetter};
pub use requests::{NotificationQuery, ObservedStatus};

/// An observed cell that has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The cell's table.
    pub table: String,
    /// Its row.
    pub row: Bytes,
    /// Its column.
    pub column: Bytes,
    /// What the cell holds at the snapshot of the run. `None`: it was deleted.
    pub value: Option<Bytes>,
    /// When it changed last, as the notification says: at or before the run's snapshot.
    pub changed_at: Timestamp,
    /// How often runs for this change, by this worker, have found another value than the one before: a value that comes back is
    /// a new one.
    pub values_before: u32,
    /// The runs of observers, one because of the other, that the change comes from.
    pub chain: Chain,
}

/// A handler's error, of any type.
pub type HandlerError = Box<dyn std::error::Error + Send + Sync>;

/// What is run for each change. It must not keep the transaction.
pub type Handler =
    Arc<dyn Fn(Change, OpenTxn) -> BoxFuture<'static, Result<(), HandlerError>> + Send + Sync>;

/// How a worker goes about it.
#[derive(Clone, Copy, Debug)]
pub struct ObserverOptions {
    /// Runs at a time. Default: 16.
    pub concurrency: usize,
    /// A change on whose value the handler has failed so often becomes a dead letter. Conflicts, and servers that don't answer,
    /// don't count. Default: 5.
    pub attempts_max: u32,
    /// The pause after a handler's first failure; doubled each time. Default: 100 ms.
    pub backoff: Duration,
    /// The longest pause. Default: 10 s.
    pub backoff_max: Duration,
    /// How long a change that was given to this worker isn't given to others: it is renewed as long as the worker has the change, and
    /// when the worker dies, others take it after that.
    /// Default: 10 s; from 100 ms to 60 s, or zero: others may run for the same at once.
    pub lease: Duration,
    /// Runs in a chain, one because of what the other wrote. A change behind so many becomes a dead letter instead of a run: a
    /// loop of observers is reported and doesn't run for ever. Default: 64.
    pub chain_max: u32,
}

impl ObserverOptions {
    /// The longest lease that servers give.
    pub const LEASE_MAX: Duration = Duration::from_secs(60);
    /// The shortest, besides none: it is renewed three times in its time.
    pub const LEASE_MIN: Duration = Duration::from_millis(100);

    /// Whether a lease may be so long.
    pub fn is_lease(lease: Duration) -> bool {
        lease.is_zero() || (Self::LEASE_MIN..=Self::LEASE_MAX).contains(&lease)
    }
}

impl Default for ObserverOptions {
    fn default() -> Self {
        Self {
            concurrency: 16,
            attempts_max: 5,
            backoff: Duration::from_millis(100),
            backoff_max: Duration::from_secs(10),
            lease: Duration::from_secs(10),
            chain_max: 64,
        }
    }
}

/// A handler, and the column whose changes it is run for.
#[derive(Clone)]
pub struct Observer {
    table: String,
    column: Bytes,
    handler: Handler,
    options: ObserverOptions,
}

impl Observer {
    /// Runs `handler` for changes of this column. It may run again for a change when its transaction meets a conflict.
    pub fn new<F, Fut>(table: &str, column: impl AsRef<[u8]>, handler: F) -> Self
    where
        F: Fn(Change, OpenTxn) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), HandlerError>> + Send + 'static,
    {
        Self {
            table: table.to_owned(),
            column: Bytes::copy_from_slice(column.as_ref()),
            handler: Arc::new(move |change, txn| Box::pin(handler(change, txn))),
            options: ObserverOptions::default(),
        }
    }

    /// The same with these options.
    pub fn with_options(mut self, options: ObserverOptions) -> Self {
        self.options = options;
        self
    }

    /// Begins to run the handler, until [`ObserverWorker::stop`]. Any number of workers, of any number of processes, share the
    /// changes of a column.
    ///
    /// # Errors
    /// [`Error::UnknownTable`]; [`Error::Invalid`]: the column is not observed ([`Client::observe`]), or an option is out of
    /// range; [`Error::Timeout`].
    pub async fn start(self, client: &Client) -> Result<ObserverWorker, Error> {
        worker::start(self, client).await
    }
}

/// What a worker has done since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObserverCounts {
    /// Runs that have committed.
    pub committed: u64,
    /// Runs that were begun again, for conflicts or failures of the handler or of servers.
    pub retries: u64,
    /// Changes that were given up, with a dead letter.
    pub dead_letters: u64,
    /// Changes that others had acknowledged before.
    pub overtaken: u64,
    /// Runs whose outcome is unknown: their commit was not answered. The change comes again if it is not acknowledged.
    pub unknown: u64,
    /// How long the last change had waited when its run committed, in milliseconds by the oracle's time.
    pub lag_ms: u64,
}

#[derive(Debug, Default)]
struct Counters {
    committed: AtomicU64,
    retries: AtomicU64,
    dead_letters: AtomicU64,
    overtaken: AtomicU64,
    unknown: AtomicU64,
    lag_ms: AtomicU64,
}

impl Counters {
    fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn read(&self) -> ObserverCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ObserverCounts {
            committed: read(&self.committed),
            retries: read(&self.retries),
            dead_letters: read(&self.dead_letters),
            overtaken: read(&self.overtaken),
            unknown: read(&self.unknown),
            lag_ms: read(&self.lag_ms),
        }
    }
}

/// An observer that runs in the background. When it is dropped, it begins nothing more.
pub struct ObserverWorker {
    counters: Arc<Counters>,
    stop: Arc<StopSignal>,
    stopped: watch::Receiver<bool>,
    last_error: watch::Receiver<Option<String>>,
}

impl ObserverWorker {
    /// What it has done.
    pub fn counts(&self) -> ObserverCounts {
        self.counters.read()
    }

    /// The last error of a request for changes.
    pub fn last_error(&self) -> Option<String> {
        self.last_error.borrow().clone()
    }

    /// Until the worker has ended by itself, because its table was deleted: why.
    pub async fn ended(&self) -> String {
        let mut stopped = self.stopped.clone();
        let _ = stopped.wait_for(|stopped| *stopped).await;
        self.last_error().unwrap_or_default()
    }

    /// Begins nothing more, and waits for the runs that have begun. Changes that it was given and has not begun are returned:
    /// others get them at once.
    pub async fn stop(mut self) -> ObserverCounts {
        self.stop.raise();
        // An error says that the worker is gone.
        let _ = self.stopped.wait_for(|stopped| *stopped).await;
        self.counters.read()
    }
}

impl Drop for ObserverWorker {
    fn drop(&mut self) {
        self.stop.raise();
    }
}
