//! Clears locks while somebody can still say what became of their transactions: before a table goes, those that
//! its transactions have left in other tables; before versions below a point are collected, those of
//! transactions that began below it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use percolator_protocol::actions::Status;
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::txn::{Ending, MetLock};
use percolator_protocol::types::{Cell, TableId, Timestamp};
use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::response::Body;

use crate::Error;
use crate::attempts::Attempt;
use crate::directory::Directory;
use crate::network::Network;
use crate::resolver::{malformed, unexpected};
use crate::retry::{Retry, Seen};
use crate::router::{CallError, Deadline, Router, master_message};
use crate::transport::{Backoff, Transport};

/// For each step of resolving locks below a point: what is not done then is tried again later.
const PATIENCE: Duration = Duration::from_secs(5);
/// So many locks of a large transaction are cleared by name: a tablet isn't looked through for a few.
const NAMED_MAX: usize = 16;
/// Transactions that are cleared at a time.
const AT_A_TIME: usize = 64;
/// Rounds over all servers. One suffices for what was committed; another one finds something where clients
/// that don't know yet still prewrite, which ends when they have heard.
const ROUNDS_MAX: usize = 100;

impl Router {
    /// Clears every lock of other tables whose primary lies in this one, which is frozen, on these tablet
    /// servers. `patience` is for each step of it that gets somewhere.
    pub(crate) async fn sweep(
        &self,
        name: &str,
        table: TableId,
        servers: &[String],
        patience: Duration,
    ) -> Result<(), Error> {
        if mutants::on(Mutant::SweepLeftOut) {
            return Ok(());
        }
        let mut pause = Backoff::new(Duration::from_millis(5), Duration::from_millis(250));
        for _ in 0..ROUNDS_MAX {
            let mut found = 0;
            // Anew each time: a server may have reported since.
            let directory = self
                .refreshed(self.deadline(patience))
                .await
                .map_err(|error| again(name, &error.to_string()))?;
            if directory.deleted(table) {
                return Ok(());
            }
            for server in servers {
                let swept = self.sweep_server(server, table, patience).await;
                found += swept.map_err(|error| again(name, &format!("{server}: {error}")))?;
            }
            if found == 0 {
                return Ok(());
            }
            pause.wait(&*self.transport).await;
        }
        Err(again(name, "new locks are met again and again"))
    }

    /// Where things are now: the master is waited for.
    pub(crate) async fn refreshed(&self, deadline: Deadline) -> Result<Arc<Directory>, CallError> {
        let mut retry = Retry::new(self, deadline);
        loop {
            match self.refresh_by(deadline).await {
                Ok(directory) => return Ok(directory),
                Err(error) => retry.pause(master_message(error)).await?,
            }
        }
    }

    /// How many it had.
    async fn sweep_server(
        &self,
        server: &str,
        table: TableId,
        patience: Duration,
    ) -> Result<usize, CallError> {
        let mut found = 0;
        let mut after = None;
        loop {
            let page = self
                .locks(
                    server,
                    Asked::Of(table),
                    after.take(),
                    self.deadline(patience),
                )
                .await?;
            found += page.locks.len();
            let by_txn = by_txn(page.locks)?;
            let mut ended = stream::iter(by_txn.into_values())
                .map(|locks| async move { self.end(&locks, self.deadline(patience)).await })
                .buffer_unordered(AT_A_TIME);
            while let Some(result) = ended.next().await {
                result?;
            }
            after = page.resume;
            if after.is_none() {
                return Ok(found);
            }
        }
    }

    /// Ends what the locks of one transaction are left of, as its primary says: where it has not committed
    /// it can't any more, so it need not be waited for. How it ended, and how many locks of it were cleared. `None`: the
    /// answer was none to this question, which is to be asked again.
    pub(crate) async fn end(
        &self,
        locks: &[MetLock],
        deadline: Deadline,
    ) -> Result<Option<(Ending, u64)>, CallError> {
        let Some(first) = locks.first() else {
            return Ok(None);
        };
        let status = self.check_status(first, None, true, deadline).await?;
        let Some(ending) = Ending::of(status) else {
            return Ok(None);
        };
        let cleared = self.clear(locks, ending, deadline).await?;
        Ok(Some((ending, cleared)))
    }

    /// Clears what was met of a transaction that has ended, and says how many locks that were. Of a large one, where many
    /// were met, everything goes that it has in these tablets: servers do that at their own pace, beside others.
    async fn clear(
        &self,
        met: &[MetLock],
        ending: Ending,
        deadline: Deadline,
    ) -> Result<u64, CallError> {
        let by_name = async || {
            self.resolve(met, ending, deadline).await?;
            Ok(met.len() as u64)
        };
        let large = met.first().filter(|first| first.lock.generation > 0);
        let Some(first) = large.filter(|_| met.len() > NAMED_MAX) else {
            return by_name().await;
        };
        let directory = self.directory();
        let mut tablets = BTreeMap::new();
        for MetLock { cell, .. } in met {
            match directory.locate(cell.table, &cell.row) {
                Ok((tablet, _)) => tablets.insert(tablet.id, (cell.table, tablet)),
                // Its server may have been away; or it has gone with its table.
                Err(_) => return by_name().await,
            };
        }
        let mut cleared = 0;
        for (table, tablet) in tablets.into_values() {
            let rows = (tablet.start_row.clone(), tablet.end_row.clone());
            let start_ts = first.lock.start_ts;
            cleared += self.resolve_rows(start_ts, ending, table, rows).await?;
        }
        self.resolved(ending, cleared);
        Ok(cleared)
    }

    /// The next of these locks on a server, which is waited for. It is asked by its name: another one that has
    /// its address knows nothing of its locks.
    pub(crate) async fn locks(
        &self,
        server: &str,
        asked: Asked,
        after: Option<v1::CellName>,
        deadline: Deadline,
    ) -> Result<v1::LocksOfResponse, CallError> {
        let ask = |to| {
            Ask::LocksOf(v1::LocksOfRequest {
                primary_table: match asked {
                    Asked::Of(table) => table.0,
                    Asked::Below(_) => 0,
                },
                below: match asked {
                    Asked::Of(_) => 0,
                    Asked::Below(ts) => ts.as_u64(),
                },
                after: after.clone(),
                to: Some(to),
            })
        };
        match self.ask_server(server, &ask, deadline).await? {
            Body::LocksOf(locks) => Ok(locks),
            _ => Err(unexpected()),
        }
    }

    /// Asks a server by its name, which is waited for.
    pub(crate) async fn ask_server(
        &self,
        server: &str,
        ask: &(dyn Fn(v1::Addressee) -> Ask + Sync),
        deadline: Deadline,
    ) -> Result<Body, CallError> {
        let mut retry = Retry::new(self, deadline);
        loop {
            let directory = self.directory();
            let mut known = directory.servers.iter();
            let last = match known.find(|known| known.server == server) {
                Some(known) if known.incarnation != 0 => {
                    let ask = ask(v1::Addressee {
                        server: known.server.clone(),
                        incarnation: known.incarnation,
                    });
                    match self.send(&known.address, Vec::new(), ask, deadline).await {
                        Attempt::Done(body) => return Ok(body),
                        Attempt::Invalid(why) => return Err(CallError::Invalid(why)),
                        Attempt::TooOld(too_old) => return Err(CallError::TooOld(too_old)),
                        Attempt::Busy(why) => Seen::Busy(why),
                        Attempt::Again(why)
                        | Attempt::Lost(why)
                        | Attempt::NeverSent(why)
                        | Attempt::Frozen(why) => Seen::Other(why),
                        Attempt::Damaged(why) => Seen::Damaged(why),
                    }
                }
                _ => Seen::Other("the master has not heard it since its own start".to_owned()),
            };
            retry.look_again(last).await?;
        }
    }
}

/// Which locks.
#[derive(Clone, Copy)]
pub(crate) enum Asked {
    /// Of this table's transactions, in other tables.
    Of(TableId),
    /// Of transactions that began below this.
    Below(Timestamp),
}

pub(crate) fn by_txn(
    page: Vec<v1::MetLock>,
) -> Result<BTreeMap<(Timestamp, Cell), Vec<MetLock>>, CallError> {
    let mut by_txn: BTreeMap<(Timestamp, Cell), Vec<MetLock>> = BTreeMap::new();
    for met in page {
        let met = MetLock::try_from(met).map_err(malformed)?;
        let txn = (met.lock.start_ts, met.lock.primary.clone());
        by_txn.entry(txn).or_default().push(met);
    }
    Ok(by_txn)
}

/// Resolves locks, for anyone who moves the point below which versions are collected.
pub struct Sweeper(Arc<Router>);

/// A lock that can't be resolved now, or a server that doesn't answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InTheWay {
    /// The tablet server.
    pub server: String,
    /// What it is, for people.
    pub what: String,
    /// Whose lock it is; zero: nobody's.
    pub start_ts: Timestamp,
}

impl Sweeper {
    /// Over this transport.
    pub fn over(transport: Arc<dyn Transport>) -> Self {
        Self(Arc::new(Router::new(transport)))
    }

    /// Of the cluster whose master is at this address, HOST:PORT.
    ///
    /// # Errors
    /// It's no address.
    pub fn connect(master: &str) -> Result<Self, Error> {
        let network = Network::new(master, PATIENCE).map_err(Error::Invalid)?;
        Ok(Self::over(Arc::new(network)))
    }

    /// A timestamp of the oracle.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn timestamp(&self) -> Result<Timestamp, String> {
        let asked = self.0.timestamp(self.0.deadline(PATIENCE)).await;
        asked.map_err(|error| error.to_string())
    }

    /// Waits.
    pub async fn pause(&self, duration: Duration) {
        self.0.transport.sleep(duration).await;
    }

    /// Resolves every lock of a transaction that began below this, on a tablet server that takes no new ones of
    /// such: what has ended is cleared, dead owners' are rolled back, live owners' commits are pushed above it.
    ///
    /// # Errors
    /// What is in the way. Asking again goes on.
    pub async fn resolve_below(&self, server: &str, below: Timestamp) -> Result<(), InTheWay> {
        let in_the_way = |what, start_ts| InTheWay {
            server: server.to_owned(),
            what,
            start_ts,
        };
        let nobodys = |what| in_the_way(what, Timestamp::ZERO);
        for _ in 0..ROUNDS_MAX {
            let round = self.0.resolve_round(server, below).await;
            match round.map_err(|error| nobodys(error.to_string()))? {
                Round::Clear => return Ok(()),
                Round::Resolved => {}
                Round::Blocked(locked) => return Err(in_the_way(locked.what, locked.start_ts)),
            }
        }
        Err(nobodys("locks that were cleared are met again".into()))
    }
}

/// What one look at all locks has met.
enum Round {
    /// None, but those of owners whose commits are above.
    Clear,
    /// Some, which are resolved.
    Resolved,
    /// This one can't be resolved yet.
    Blocked(Locked),
}

/// A lock that can't be resolved yet.
struct Locked {
    what: String,
    start_ts: Timestamp,
}

impl Router {
    async fn resolve_round(&self, server: &str, below: Timestamp) -> Result<Round, CallError> {
        let mut round = Round::Clear;
        let mut after = None;
        // A large transaction's locks come in many pages.
        let mut pushed = BTreeSet::new();
        // The server may have been started again since.
        self.refreshed(self.deadline(PATIENCE)).await?;
        loop {
            let page = self
                .locks(
                    server,
                    Asked::Below(below),
                    after.take(),
                    self.deadline(PATIENCE),
                )
                .await?;
            let mut txns = by_txn(page.locks)?;
            txns.retain(|(start_ts, _), _| !pushed.contains(start_ts));
            let mut ended = stream::iter(txns.into_values())
                .map(|locks| self.resolve_or_push(locks, below))
                .buffer_unordered(AT_A_TIME);
            while let Some(result) = ended.next().await {
                match result? {
                    Ok(None) => round = round.or(Round::Resolved),
                    Ok(Some(start_ts)) => {
                        pushed.insert(start_ts);
                    }
                    Err(locked) => round = round.or(Round::Blocked(locked)),
                }
            }
            drop(ended);
            after = page.resume;
            if after.is_none() {
                return Ok(round);
            }
        }
    }

    /// `Some`: this transaction lives, and commits above the point. The inner error: why it isn't known to.
    async fn resolve_or_push(
        &self,
        locks: Vec<MetLock>,
        below: Timestamp,
    ) -> Result<Result<Option<Timestamp>, Locked>, CallError> {
        let Some(first) = locks.first() else {
            return Ok(Ok(None));
        };
        let deadline = self.deadline(PATIENCE);
        let ending = match self.check_status(first, Some(below), false, deadline).await {
            Ok(Status::Committed(commit_ts)) => Ending::Committed(commit_ts),
            Ok(Status::RolledBack) => Ending::RolledBack,
            Ok(Status::Alive { min_commit_ts, .. }) if min_commit_ts > below => {
                return Ok(Ok(Some(first.lock.start_ts)));
            }
            Ok(Status::Alive { .. } | Status::PrimaryPending) => {
                let start_ts = first.lock.start_ts;
                let directory = self.directory();
                let what = format!(
                    "cell {} is locked by transaction {start_ts}, which is being committed (its primary is {})",
                    directory.text(&first.cell),
                    directory.text(&first.lock.primary)
                );
                return Ok(Err(Locked { what, start_ts }));
            }
            Err(error) => {
                let directory = self.directory();
                let why = format!(
                    "what became of transaction {}, which has locked cell {}, can't be asked: its primary is {}, and {error}",
                    first.lock.start_ts,
                    directory.text(&first.cell),
                    directory.text(&first.lock.primary)
                );
                return Err(CallError::GaveUp(why));
            }
        };
        self.clear(&locks, ending, deadline).await?;
        Ok(Ok(None))
    }
}

impl Round {
    fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Blocked(locked), _) | (_, Self::Blocked(locked)) => Self::Blocked(locked),
            (Self::Clear, Self::Clear) => Self::Clear,
            _ => Self::Resolved,
        }
    }
}

fn again(name: &str, why: &str) -> Error {
    Error::Unavailable(format!(
        "{why}; table {name} is being deleted, and nobody can use it any more: delete it again to go on"
    ))
}
