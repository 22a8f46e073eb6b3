//! The transactions that run on a cluster, for administrators: those that have held a gc-lock for a while, or have
//! locks; and to end one of them.

use std::collections::BTreeMap;
use std::time::Duration;

use percolator_protocol::txn::{Ending, MetLock};
use percolator_protocol::types::{Cell, Timestamp};

use crate::Error;
use crate::admin::{Admin, REQUEST_TIMEOUT, error};
use crate::cluster::{Cluster, ServerRole};
use crate::collection::TxnOwner;
use crate::locks::by_txn;
use crate::router::{CallError, Deadline};

/// Pages of locks that are read of a server to count them: a million locks.
const PAGES_MAX: usize = 2_000;

/// A transaction that runs.
#[derive(Clone, Debug, Default)]
pub struct RunningTxn {
    /// Where it began, and its name.
    pub start_ts: Timestamp,
    /// The owner of its gc-lock. `None`: there is none, or the transaction is too young to be named.
    pub owner: Option<TxnOwner>,
    /// When that gc-lock ends, unless its client renews it.
    pub lease: Option<Duration>,
    /// Its locks, as far as they were counted.
    pub locks: u64,
    /// The cell where it is decided, if it has locks: `table/row:column`, with the table's name, and the escapes of
    /// [`Cell`]'s own text.
    pub primary: Option<String>,
}

/// The transactions that run.
#[derive(Clone, Debug, Default)]
pub struct RunningTxns {
    /// The oracle's time.
    pub now: Timestamp,
    /// Oldest first.
    pub txns: Vec<RunningTxn>,
    /// There are more.
    pub more: bool,
    /// Others that have lived for a while and that their clients don't name: each names its 100 oldest.
    pub unnamed: u64,
    /// Servers that have more locks than are counted.
    pub uncounted: Vec<String>,
    /// Servers whose locks are not known, or not all of them, and why.
    pub unreached: Vec<(String, String)>,
}

/// The result of [`Admin::abort`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbortedTxn {
    /// `None`: it has no locks. Otherwise how it ended: rolled back, or as committed before.
    pub ending: Option<Ending>,
    /// Its locks that were cleared.
    pub locks: u64,
    /// The owners of its gc-locks, which have ended too.
    pub owners: Vec<TxnOwner>,
}

impl Admin {
    /// The transactions that run, oldest first, at most so many.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Timeout`].
    pub async fn running(&self, most: u32) -> Result<RunningTxns, Error> {
        let mut running = RunningTxns::default();
        let deadline = self.router.deadline(REQUEST_TIMEOUT);
        running.now = self
            .router
            .timestamp(deadline)
            .await
            .map_err(|error| self.failed(deadline, "taking a timestamp", error))?;
        let page = self.network.transactions(most).await.map_err(error)?;
        running.more = page.more;
        running.unnamed = page.unnamed;
        let mut txns: BTreeMap<Timestamp, RunningTxn> = BTreeMap::new();
        let entry = |start_ts| RunningTxn {
            start_ts,
            ..RunningTxn::default()
        };
        for gc_lock in page.gc_locks {
            let start_ts = gc_lock.start_ts;
            let txn = txns.entry(start_ts).or_insert_with(|| entry(start_ts));
            txn.owner = Some(gc_lock.owner);
            txn.lease = Some(gc_lock.lease);
        }
        for server in self.tablet_servers().await? {
            let counted = self
                .each_lock(&server, Timestamp::MAX, PAGES_MAX, async |locks| {
                    for ((start_ts, primary), locks) in locks {
                        let txn = txns.entry(start_ts).or_insert_with(|| entry(start_ts));
                        txn.primary = Some(self.router.locations().text(&primary));
                        txn.locks += locks.len() as u64;
                    }
                    Ok(())
                })
                .await;
            match counted {
                Ok(true) => {}
                Ok(false) => running.uncounted.push(server),
                Err(error) => running.unreached.push((server, error.to_string())),
            }
        }
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        running.more |= txns.len() > most;
        running.txns = txns.into_values().take(most).collect();
        Ok(running)
    }

    /// Ends a transaction: its gc-lock, and, where it has locks, all of it. Without locks it can't be rolled back, as
    /// nobody but its client knows what it is about to write; but without a gc-lock it is refused as soon as the
    /// barrier passes it.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Timeout`]; asking again goes on.
    pub async fn abort(&self, start_ts: Timestamp) -> Result<AbortedTxn, Error> {
        let mut ended = AbortedTxn {
            ending: None,
            locks: 0,
            owners: self.release_gc_lock(start_ts).await?,
        };
        const DOING: &str = "ending a transaction";
        for server in self.tablet_servers().await? {
            let (ending, count) = (&mut ended.ending, &mut ended.locks);
            let began = self.router.deadline(REQUEST_TIMEOUT);
            self.each_lock(&server, start_ts.next(), usize::MAX, async |locks| {
                for ((_, _), locks) in locks.into_iter().filter(|((ts, _), _)| *ts == start_ts) {
                    let deadline = self.router.deadline(REQUEST_TIMEOUT);
                    if let Some((ended, cleared)) = self.router.end(&locks, deadline).await? {
                        *ending = Some(ended);
                        *count += cleared;
                    }
                }
                Ok(())
            })
            .await
            .map_err(|error| self.failed(began, DOING, error))?;
        }
        Ok(ended)
    }

    /// Ends the gc-locks of what began at this timestamp, and of what its sessions have begun before it: it is
    /// refused as soon as the barrier passes it. Whose they were; empty: nobody holds one there.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn release_gc_lock(&self, start_ts: Timestamp) -> Result<Vec<TxnOwner>, Error> {
        self.network.release_gc_lock(start_ts).await.map_err(error)
    }

    /// Calls with the locks of each page, of transactions that began below this. False: there are more.
    async fn each_lock(
        &self,
        server: &str,
        below: Timestamp,
        pages_max: usize,
        mut on_page: impl AsyncFnMut(BTreeMap<(Timestamp, Cell), Vec<MetLock>>) -> Result<(), CallError>,
    ) -> Result<bool, CallError> {
        let mut after = None;
        for _ in 0..pages_max {
            let deadline = self.router.deadline(REQUEST_TIMEOUT);
            let page = self
                .router
                .locks_below(server, below, after.take(), deadline)
                .await?;
            on_page(by_txn(page.locks)?).await?;
            after = page.resume;
            if after.is_none() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The cluster, as its master lists it.
    pub(crate) async fn listing(&self) -> Result<Cluster, Error> {
        let deadline = self.router.deadline(REQUEST_TIMEOUT);
        let listed = self.router.listed(deadline).await;
        listed.map_err(|error| Error::Unavailable(error.to_string()))
    }

    pub(crate) async fn tablet_servers(&self) -> Result<Vec<String>, Error> {
        let servers = self.listing().await?.servers.into_iter();
        let servers = servers.filter(|server| server.role == ServerRole::Tablet);
        Ok(servers.map(|server| server.server).collect())
    }

    pub(crate) fn failed(
        &self,
        deadline: Deadline,
        doing: &'static str,
        error: CallError,
    ) -> Error {
        deadline.error(&*self.router.world.transport, doing, error)
    }
}
