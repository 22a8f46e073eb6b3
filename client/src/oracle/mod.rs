//! Timestamps from the oracle, for any number of callers over one stream.
//!
//! At most one request is in flight. Anyone who asks meanwhile is collected into the next request, so
//! that one message carries thousands of timestamps under load, and one when there is none.
//!
//! **A timestamp is always requested after the call for it began.** Reads at a snapshot rely on it:
//! whatever was committed before the call has a lower timestamp. A batch is therefore closed before
//! its request is sent, and nobody joins it later.
//!
//! While the oracle is away, each caller gives up when it has waited for as long as a call may; the request goes on for those who
//! came later.

mod batch;
mod driver;
mod places;

use std::borrow::Cow;
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use percolator_protocol::oracle::Granted;
use percolator_protocol::types::{Timestamp, TraceParent};

use crate::ticker::{self, Ticked};
use batch::{Queue, Ticket};

/// The most timestamps that one call may ask for; the oracle's own bound for a request.
pub const COUNT_MAX: u32 = 65_536;

/// The reason why there is no timestamp.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OracleError {
    /// The oracle gave none within the deadline, although it was asked again and again.
    #[error("no timestamp within {waited_ms} ms from the oracle at {address}: {cause}")]
    Unavailable {
        /// Where the oracle was asked last; "(address unknown)" if that could not be found out.
        address: String,
        /// What went wrong last.
        cause: String,
        /// How long it was tried, in milliseconds.
        waited_ms: u64,
    },
    /// More callers wait than may.
    #[error("{waiting} timestamps are waited for already; ask again when the oracle answers")]
    Overloaded {
        /// How many are waited for.
        waiting: u32,
    },
    /// A call for none or for too many.
    #[error("{count} timestamps were asked for; ask for 1 to {COUNT_MAX} at a time")]
    Count {
        /// What was asked for.
        count: u32,
    },
    /// The runtime that held the connection ended, or stood still, while the call waited. Calling again connects on
    /// the caller's runtime.
    #[error("the runtime that held the connection to the oracle ended, or stood still")]
    Stopped,
    /// Called outside a tokio runtime.
    #[error("timestamps can be asked for only within a tokio runtime")]
    NoRuntime,
}

impl OracleError {
    /// How long a response was waited for.
    pub fn waited(&self) -> Duration {
        match self {
            Self::Unavailable { waited_ms, .. } => Duration::from_millis(*waited_ms),
            Self::Overloaded { .. } | Self::Count { .. } | Self::Stopped | Self::NoRuntime => {
                Duration::ZERO
            }
        }
    }
}

pub use places::{KnownPlaces, places};

/// Where the oracle is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// HOST:PORT.
    pub address: String,
    /// An oracle of another cluster refuses to answer; empty: the cluster isn't known.
    pub cluster_id: String,
    /// Where other oracles of the same register are, HOST:PORT, in the order in which to ask them; empty: there are none.
    pub others: Vec<String>,
}

impl From<String> for Place {
    fn from(address: String) -> Self {
        Self {
            address,
            cluster_id: String::new(),
            others: Vec::new(),
        }
    }
}

/// Finds out where the oracle is; asked before a connection when none of those that were known grants.
pub type FindPlace = dyn Fn() -> BoxFuture<'static, Result<Place, String>> + Send + Sync;

/// Asks the oracle for timestamps. Clones share one stream.
#[derive(Clone)]
pub struct OracleClient {
    handle: Arc<Handle>,
}

impl fmt::Debug for OracleClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OracleClient").finish_non_exhaustive()
    }
}

/// What the clones share; with the last of them the connection ends.
struct Handle {
    shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.queue.close();
    }
}

/// What the callers and the driver share.
struct Shared {
    queue: Arc<Queue>,
    place: Box<FindPlace>,
    deadline: Duration,
    last_asked: Mutex<LastAsked>,
}

impl Shared {
    /// The error of a caller that has waited for so long.
    fn unavailable(&self, waited: Duration) -> OracleError {
        let last = self.last_asked.lock();
        OracleError::Unavailable {
            address: last.address.clone(),
            cause: last.cause.clone().into_owned(),
            waited_ms: u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// Where the oracle was asked last, and what went wrong last.
struct LastAsked {
    address: String,
    cause: Cow<'static, str>,
}

impl OracleClient {
    /// How long a call waits for an oracle that does not answer.
    pub const DEADLINE: Duration = Duration::from_secs(10);

    /// A client that connects with its first call, to wherever `place` says then.
    pub fn new(
        place: impl Fn() -> BoxFuture<'static, Result<Place, String>> + Send + Sync + 'static,
    ) -> Self {
        Self::with_deadline(place, Self::DEADLINE)
    }

    /// The same with another deadline than [`Self::DEADLINE`].
    pub fn with_deadline(
        place: impl Fn() -> BoxFuture<'static, Result<Place, String>> + Send + Sync + 'static,
        deadline: Duration,
    ) -> Self {
        let queue = Arc::new(Queue::default());
        ticker::watch(Arc::downgrade(&queue) as Weak<dyn Ticked>);
        let shared = Arc::new(Shared {
            queue,
            place: Box::new(place),
            deadline,
            last_asked: Mutex::new(LastAsked {
                address: "(address unknown)".to_owned(),
                cause: "it was not asked yet".into(),
            }),
        });
        Self {
            handle: Arc::new(Handle { shared }),
        }
    }

    /// A timestamp that is higher than any that was granted before this call began.
    ///
    /// A lost connection is made again and the timestamp asked for again, until the deadline. To
    /// drop the call wastes at most the timestamp.
    ///
    /// # Errors
    /// [`OracleError`].
    pub async fn timestamp(&self) -> Result<Timestamp, OracleError> {
        Ok(self.granted(1, &[]).await?.first)
    }

    /// [`Self::timestamp`], for a transaction in this trace.
    pub(crate) async fn traced_timestamp(
        &self,
        trace: Option<TraceParent>,
    ) -> Result<Timestamp, OracleError> {
        Ok(self.granted(1, trace.as_slice()).await?.first)
    }

    /// `count` timestamps in a row, all higher than any that was granted before this call began.
    ///
    /// # Errors
    /// [`OracleError::Count`] if `count` is 0 or more than [`COUNT_MAX`], and others.
    pub async fn timestamps(&self, count: u32) -> Result<Granted, OracleError> {
        self.timestamps_for(count, &[]).await
    }

    /// [`Self::timestamps`], for callers in these traces.
    pub(crate) async fn timestamps_for(
        &self,
        count: u32,
        traces: &[TraceParent],
    ) -> Result<Granted, OracleError> {
        if !(1..=COUNT_MAX).contains(&count) {
            return Err(OracleError::Count { count });
        }
        self.granted(count, traces).await
    }

    async fn granted(&self, count: u32, traces: &[TraceParent]) -> Result<Granted, OracleError> {
        let mut ticket = None;
        poll_fn(|cx| self.poll_granted(cx, count, traces, &mut ticket)).await
    }

    fn poll_granted(
        &self,
        cx: &mut Context<'_>,
        count: u32,
        traces: &[TraceParent],
        ticket: &mut Option<Ticket>,
    ) -> Poll<Result<Granted, OracleError>> {
        let shared = &self.handle.shared;
        let mut since = None;
        if let Some(waiting) = ticket {
            match waiting.poll(cx) {
                Poll::Ready(Ok(Some(granted))) => return Poll::Ready(Ok(granted)),
                Poll::Pending if waiting.since.elapsed() < shared.deadline => return Poll::Pending,
                // The batch goes on for those who came later.
                Poll::Pending | Poll::Ready(Err(OracleError::Unavailable { .. })) => {
                    let waited = waiting.since.elapsed();
                    return Poll::Ready(Err(shared.unavailable(waited)));
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                // The oracle granted fewer than the batch asked for: this caller asks again.
                Poll::Ready(Ok(None)) => since = Some(waiting.since),
            }
        }
        let joined = match shared.queue.join(cx.waker(), count, traces, since) {
            Ok(joined) => joined,
            Err(error) => return Poll::Ready(Err(error)),
        };
        *ticket = Some(joined.ticket);
        if let Some(number) = joined.new_driver
            && let Err(error) = driver::start(shared.clone(), number)
        {
            return Poll::Ready(Err(error));
        }
        Poll::Pending
    }
}
