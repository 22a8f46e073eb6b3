//! Resolves locks of transactions that began below a point, so that what is hidden below it may be collected.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use percolator_protocol::actions::Status;
use percolator_protocol::txn::{Ending, MetLock};
use percolator_protocol::types::{Cell, Timestamp};
use percolator_wire::v1;

use crate::Error;
use crate::location_cache::RowQuery;
use crate::locks::by_txn;
use crate::network::Network;
use crate::router::{CallError, Router};
use crate::transport::Transport;

/// How long a transaction's primary is asked, and how long its locks are cleared. What is not done then is tried again later.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Transactions that are resolved at a time.
const AT_A_TIME: usize = 64;
/// Scans of all locks. The second one usually finds none; later ones find some if clients still clear them.
const ROUNDS_MAX: usize = 100;

/// Resolves the locks that a tablet server has.
pub struct LockResolver(Arc<Router>);

/// A lock that can't be resolved now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// The reason, for people.
    pub what: String,
    /// The transaction that holds it; zero: not known.
    pub start_ts: Timestamp,
}

/// The result of one scan of all locks.
#[derive(Default)]
struct Round {
    /// Some were resolved: others may be there.
    resolved: bool,
    /// Transactions that are alive, and commit above the point. The locks of a large one come in many pages.
    pushed: BTreeSet<Timestamp>,
    /// The first one that can't be resolved.
    obstacle: Option<Obstacle>,
    /// Tablets whose servers didn't answer: the others that have their primary there are left for the next time.
    silent: BTreeSet<u64>,
}

/// What became of the locks of one transaction.
enum Resolved {
    /// They are gone.
    Cleared,
    /// It is alive, and commits above the point.
    Pushed(Timestamp),
    /// It can't be known yet; the tablet of its primary, if its server didn't answer.
    Blocked(Obstacle, Option<u64>),
    /// The server of its primary's tablet didn't answer to another one.
    Skipped,
}

impl LockResolver {
    /// Over this transport.
    pub fn over(transport: Arc<dyn Transport>) -> Self {
        Self(Arc::new(Router::new(transport)))
    }

    /// In the cluster whose master is at this address, HOST:PORT; of several masters, with commas between.
    ///
    /// # Errors
    /// [`Error::Invalid`]: it's no address.
    pub fn connect(master: &str) -> Result<Self, Error> {
        let network = Network::new(master, TIMEOUT).map_err(Error::Invalid)?;
        Ok(Self::over(Arc::new(network)))
    }

    /// Waits.
    pub async fn pause(&self, duration: Duration) {
        self.0.world.transport.sleep(duration).await;
    }

    /// Resolves every lock of a transaction that began below this, in the tablets of a server that takes no new ones of
    /// such: what has ended is cleared, dead owners' transactions are rolled back, live owners' commits are pushed above it.
    /// `page` lists the server's locks below this, behind a cell.
    ///
    /// # Errors
    /// What is in the way. Calling again goes on.
    pub async fn resolve_below(
        &self,
        below: Timestamp,
        mut page: impl FnMut(Option<v1::CellName>) -> Result<v1::LocksBelowResponse, String>,
    ) -> Result<(), Obstacle> {
        let unknown = |what: String| Obstacle {
            what,
            start_ts: Timestamp::ZERO,
        };
        for _ in 0..ROUNDS_MAX {
            let mut round = Round::default();
            let mut after = None;
            loop {
                let locks = page(after.take()).map_err(unknown)?;
                after = locks.resume;
                let resolved = self.resolve_page(&mut round, locks.locks, below).await;
                resolved.map_err(|error| unknown(error.to_string()))?;
                if after.is_none() {
                    break;
                }
            }
            if let Some(obstacle) = round.obstacle {
                return Err(obstacle);
            }
            if !round.resolved {
                return Ok(());
            }
        }
        Err(unknown("locks that were cleared are met again".into()))
    }

    async fn resolve_page(
        &self,
        round: &mut Round,
        locks: Vec<v1::MetLock>,
        below: Timestamp,
    ) -> Result<(), CallError> {
        let mut txns = by_txn(locks)?;
        txns.retain(|(start_ts, _), _| !round.pushed.contains(start_ts));
        let silent = parking_lot::Mutex::new(std::mem::take(&mut round.silent));
        let mut results = stream::iter(txns.into_values())
            .map(|locks| self.resolve_or_push(locks, below, &silent))
            .buffer_unordered(AT_A_TIME);
        while let Some(result) = results.next().await {
            match result {
                Resolved::Cleared => round.resolved = true,
                Resolved::Pushed(start_ts) => {
                    round.pushed.insert(start_ts);
                }
                Resolved::Blocked(obstacle, tablet) => {
                    round.obstacle.get_or_insert(obstacle);
                    silent.lock().extend(tablet);
                }
                Resolved::Skipped => {}
            }
        }
        drop(results);
        round.silent = silent.into_inner();
        Ok(())
    }

    async fn resolve_or_push(
        &self,
        locks: Vec<MetLock>,
        below: Timestamp,
        silent: &parking_lot::Mutex<BTreeSet<u64>>,
    ) -> Resolved {
        let Some(first) = locks.first() else {
            return Resolved::Cleared;
        };
        let (start_ts, primary) = (first.lock.start_ts, &first.lock.primary);
        let tablet = self.tablet_of(primary);
        if tablet.is_some_and(|tablet| silent.lock().contains(&tablet)) {
            return Resolved::Skipped;
        }
        let router = &*self.0;
        let deadline = router.deadline(TIMEOUT);
        let text = |cell| router.locations().text(cell);
        let ending = match router
            .check_status(first, Some(below), false, deadline)
            .await
        {
            Ok(Status::Committed(commit_ts)) => Ending::Committed(commit_ts),
            Ok(Status::RolledBack) => Ending::RolledBack,
            Ok(Status::Alive { min_commit_ts, .. }) if min_commit_ts > below => {
                return Resolved::Pushed(start_ts);
            }
            Ok(Status::Alive { .. } | Status::PrimaryPending) => {
                let what = format!(
                    "cell {} is locked by transaction {start_ts}, which is being committed (its primary is {})",
                    text(&first.cell),
                    text(primary)
                );
                return Resolved::Blocked(Obstacle { what, start_ts }, None);
            }
            Err(error) => {
                let what = format!(
                    "what became of transaction {start_ts}, which has locked cell {}, can't be asked: its primary is {}, \
                     and {error}",
                    text(&first.cell),
                    text(primary)
                );
                return Resolved::Blocked(Obstacle { what, start_ts }, tablet);
            }
        };
        match router.clear(&locks, ending, deadline).await {
            Ok(_) => Resolved::Cleared,
            Err(error) => {
                let what = format!(
                    "the lock of transaction {start_ts} on cell {} can't be cleared: {error}",
                    text(&first.cell)
                );
                Resolved::Blocked(Obstacle { what, start_ts }, None)
            }
        }
    }

    /// The tablet that a cell lies in, as far as is known.
    fn tablet_of(&self, cell: &Cell) -> Option<u64> {
        let wanted = RowQuery::of(cell.table, &cell.row);
        let located = self.0.locations().locate(&wanted);
        Some(located.ok()?.id)
    }
}
