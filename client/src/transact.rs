//! Transactions that are begun again until they commit.

use std::ops::Deref;
use std::time::Duration;

use crate::transport::Backoff;
use crate::{Client, Error, Txn};

/// A transaction of [`Client::transact`], which commits it when the closure has ended well: all of [`Txn`] but its end.
#[derive(Clone)]
pub struct OpenTxn(Txn);

impl Deref for OpenTxn {
    type Target = Txn;

    fn deref(&self) -> &Txn {
        &self.0
    }
}

impl Client {
    /// Runs a transaction and commits it; begins it again while others are first, with growing pauses,
    /// until the deadline of [`Options::retry_for`](crate::Options::retry_for), by which the last one has begun. Returns what the
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
    /// # Errors
    /// The closure's, or the commit's. An [`Error::Unknown`] isn't retried: it may be committed.
    pub async fn transact<T, F, Fut>(&self, mut work: F) -> Result<T, Error>
    where
        F: FnMut(OpenTxn) -> Fut,
        Fut: Future<Output = Result<T, Error>>,
    {
        let deadline = self.router.deadline(self.options.retry_for);
        let mut pause = Backoff::new(Duration::from_millis(1), Duration::from_millis(100));
        loop {
            let txn = self.begin_by(deadline).await?;
            let result = match work(OpenTxn(txn.clone())).await {
                Ok(output) => txn.commit().await.map(|_| output),
                Err(error) => Err(error),
            };
            match result {
                Err(error) if error.retryable() && !deadline.passed(&*self.router.transport) => {
                    if let Some(metrics) = self.router.metrics() {
                        metrics.retries.inc();
                    }
                    pause.wait(&*self.router.transport).await;
                }
                result => return result,
            }
        }
    }
}
