//! Transactions that are begun again until they commit.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::time::Duration;

use percolator_protocol::types::{Cell, Timestamp};
use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::response::Body;

use crate::doom::Doom;
use crate::router::Deadline;
use crate::transport::Backoff;
use crate::txn::Inner;
use crate::{Client, Error, Txn};

/// How long a server is asked for a turn at a cell, at a time.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Cells at which one transaction waits for its turn, at the most.
const CELLS_MAX: usize = 8;

/// A transaction of [`Client::transact`], which commits it when the closure has ended well: all of [`Txn`] but its end, which takes a
/// transaction by value.
#[derive(Clone)]
pub struct OpenTxn(Txn);

impl OpenTxn {
    /// Of a transaction that the caller commits.
    pub(crate) fn lent(txn: &Txn) -> Self {
        Self(txn.lent())
    }
}

impl Deref for OpenTxn {
    type Target = Txn;

    fn deref(&self) -> &Txn {
        &self.0
    }
}

/// Attempts of one transaction, in a loop of the application's own: [`Client::transact`] has such a loop.
///
/// ```no_run
/// # async fn f(client: percolator_client::Client) -> Result<(), percolator_client::Error> {
/// let mut attempts = client.attempts();
/// loop {
///     let txn = client.begin().await?;
///     txn.put("accounts", "joe", "balance", "10")?;
///     let start_ts = txn.start_ts();
///     match txn.commit().await {
///         Err(error) if attempts.again(start_ts, &error).await => {}
///         result => return result.map(drop),
///     }
/// }
/// # }
/// ```
pub struct Attempts {
    client: Client,
    pub(crate) deadline: Deadline,
    backoff: Backoff,
    /// When the first one began.
    first: Option<Timestamp>,
    /// What others had.
    cells: BTreeSet<Cell>,
}

impl Attempts {
    fn new(client: &Client) -> Self {
        Self {
            client: client.clone(),
            deadline: client.router.deadline(client.options.retry_for),
            backoff: Backoff::new(Duration::from_millis(1), Duration::from_millis(100)),
            first: None,
            cells: BTreeSet::new(),
        }
    }

    /// Whether there is to be another attempt behind the one that began at `start_ts` and failed so: the error is one of
    /// a transaction that may be begun again, and the time of [`Options::retry_for`](crate::Options::retry_for) isn't
    /// over. Waits until it is worth it: for a turn at the cells that others had, where those that have tried for longer
    /// come first; or else for a moment.
    pub async fn again(&mut self, start_ts: Timestamp, error: &Error) -> bool {
        match Doom::by(error) {
            Some(doom) => self.after(start_ts, doom).await,
            None => false,
        }
    }

    /// [`Self::again`] for a transaction that has ended, with this error of its commit, or with one of the application's own.
    pub(crate) async fn after_end(&mut self, txn: &Inner, error: Option<&Error>) -> bool {
        match Doom::behind(error, txn.doom()) {
            Some(doom) => self.after(txn.start_ts, doom).await,
            None => false,
        }
    }

    async fn after(&mut self, start_ts: Timestamp, doom: Doom) -> bool {
        let router = &self.client.router;
        if self.deadline.passed(&*router.world.transport) {
            return false;
        }
        if let Some(metrics) = router.metrics() {
            metrics.retries.inc();
        }
        let first = *self.first.get_or_insert(start_ts);
        let mut granted = matches!(doom, Doom::Conflict(_));
        if let Doom::Conflict(conflict) = doom
            && self.cells.len() < CELLS_MAX
        {
            self.cells.insert(conflict.cell().clone());
        }
        // In their order: two that want the same cells don't wait for each other.
        for cell in &self.cells {
            granted &= self.turn(cell, first).await;
        }
        if !granted {
            self.backoff
                .wait(&*self.client.router.world.transport)
                .await;
        }
        // Nothing could be begun any more, and why not would say nothing of what was in the way.
        !self.deadline.passed(&*self.client.router.world.transport)
    }

    /// Waits for a turn. Nothing depends on it: where it can't be had, the next attempt is made without.
    async fn turn(&self, cell: &Cell, waiter: Timestamp) -> bool {
        let router = &self.client.router;
        let left = self.deadline.left(&*router.world.transport).min(WAIT_MAX);
        let timeout_ms = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
        let ask = |cell| {
            Ask::WaitForCell(v1::WaitForCellRequest {
                cell: Some(cell),
                waiter: waiter.as_u64(),
                timeout_ms,
            })
        };
        let answer = router.call_one(cell, &ask, router.deadline(left)).await;
        matches!(answer, Ok(Body::WaitForCell(turn)) if turn.granted)
    }
}

impl Client {
    /// For a transaction that is begun again by the application itself, for as long as
    /// [`Options::retry_for`](crate::Options::retry_for) from now on.
    pub fn attempts(&self) -> Attempts {
        Attempts::new(self)
    }

    /// Runs a transaction and commits it; begins it again while others are first ([`Attempts`]), until the deadline of
    /// [`Options::retry_for`](crate::Options::retry_for), by which the last one has begun. Returns what the
    /// closure returned. The closure reads and writes; it can't end the transaction, but by an error, which rolls it back:
    ///
    /// ```compile_fail,E0507
    /// # async fn f(client: percolator_client::Client) -> Result<(), percolator_client::Error> {
    /// client
    ///     .transact(|txn| async move { txn.commit().await.map(drop) })
    ///     .await
    /// # }
    /// ```
    ///
    /// A clone of it can't either: its commit is [`Error::Invalid`], and commits nothing.
    ///
    /// # Errors
    /// The closure's, or the commit's. An [`Error::Unknown`] isn't retried: it may be committed.
    pub async fn transact<T, F, Fut>(&self, work: F) -> Result<T, Error>
    where
        F: FnMut(OpenTxn) -> Fut,
        Fut: Future<Output = Result<T, Error>>,
    {
        self.try_transact(work).await
    }

    /// [`Self::transact`] with an error type of the application's own: `?` turns this library's errors into it. Whether the
    /// transaction is begun again depends on what it met, not on what the closure made of that.
    ///
    /// ```no_run
    /// # use percolator_client::{Client, Error};
    /// #[derive(Debug, thiserror::Error)]
    /// enum TransferError {
    ///     #[error("bob has only {0}")]
    ///     TooLittle(u32),
    ///     #[error(transparent)]
    ///     Database(#[from] Error),
    /// }
    ///
    /// # async fn f(client: Client) -> Result<(), TransferError> {
    /// client
    ///     .try_transact(|txn| async move {
    ///         let bob = txn.get("accounts", "bob", "balance").await?;
    ///         match bob.map_or(0, |balance| balance.len() as u32) {
    ///             poor @ 0..10 => Err(TransferError::TooLittle(poor)),
    ///             _ => Ok(txn.delete("accounts", "bob", "balance")?),
    ///         }
    ///     })
    ///     .await
    /// # }
    /// ```
    ///
    /// # Errors
    /// The closure's, or the commit's as the closure's type.
    pub async fn try_transact<T, E, F, Fut>(&self, mut work: F) -> Result<T, E>
    where
        E: From<Error>,
        F: FnMut(OpenTxn) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let mut attempts = self.attempts();
        loop {
            let txn = self.begin_by(attempts.deadline).await?;
            let inner = txn.inner.clone();
            let (error, again) = match work(OpenTxn(txn.lent())).await {
                Ok(output) => match txn.commit().await {
                    Ok(_) => return Ok(output),
                    Err(error) => {
                        let again = attempts.after_end(&inner, Some(&error)).await;
                        (error.into(), again)
                    }
                },
                Err(error) => {
                    drop(txn);
                    (error, attempts.after_end(&inner, None).await)
                }
            };
            if !again {
                return Err(error);
            }
        }
    }
}
