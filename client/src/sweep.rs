//! Before a table goes: clears the locks that its transactions have left in other tables, while its cells can
//! still say what became of them.

use std::collections::BTreeMap;
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
use crate::directory::Directory;
use crate::resolver::{malformed, unexpected};
use crate::retry::Retry;
use crate::router::{Attempt, CallError, Deadline, Router, master_message};
use crate::transport::Backoff;

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
    async fn refreshed(&self, deadline: Deadline) -> Result<Arc<Directory>, CallError> {
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
                .locks_of(server, table, after.take(), self.deadline(patience))
                .await?;
            found += page.locks.len();
            let mut by_txn: BTreeMap<(Timestamp, Cell), Vec<MetLock>> = BTreeMap::new();
            for met in page.locks {
                let met = MetLock::try_from(met).map_err(malformed)?;
                let txn = (met.lock.start_ts, met.lock.primary.clone());
                by_txn.entry(txn).or_default().push(met);
            }
            let mut ended = stream::iter(by_txn.into_values())
                .map(|locks| self.end(locks, self.deadline(patience)))
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
    /// it can't any more, so it need not be waited for.
    async fn end(&self, locks: Vec<MetLock>, deadline: Deadline) -> Result<(), CallError> {
        let Some(first) = locks.first() else {
            return Ok(());
        };
        let ending = match self.check_status(first, None, true, deadline).await? {
            Status::Committed(commit_ts) => Ending::Committed(commit_ts),
            Status::RolledBack => Ending::RolledBack,
            // Not an answer to this question; the next round asks again.
            Status::Alive { .. } | Status::PrimaryPending => return Ok(()),
        };
        self.resolve(&locks, ending, deadline).await
    }

    /// The next of these locks on a server, which is waited for. It is asked by its name: another one that has
    /// its address knows nothing of its locks.
    async fn locks_of(
        &self,
        server: &str,
        table: TableId,
        after: Option<v1::CellName>,
        deadline: Deadline,
    ) -> Result<v1::LocksOfResponse, CallError> {
        let mut retry = Retry::new(self, deadline);
        loop {
            let directory = self.directory();
            let mut known = directory.servers.iter();
            let last = match known.find(|known| known.server == server) {
                Some(known) if known.incarnation != 0 => {
                    let ask = Ask::LocksOf(v1::LocksOfRequest {
                        primary_table: table.0,
                        after: after.clone(),
                        to: Some(v1::Addressee {
                            server: known.server.clone(),
                            incarnation: known.incarnation,
                        }),
                    });
                    match self.send(&known.address, Vec::new(), ask, deadline).await {
                        Attempt::Done(Body::LocksOf(locks)) => return Ok(locks),
                        Attempt::Done(_) => return Err(unexpected()),
                        Attempt::Invalid(why) => return Err(CallError::Invalid(why)),
                        Attempt::Again(why) | Attempt::Frozen(why) => why,
                    }
                }
                _ => "the master has not heard it since its own start".to_owned(),
            };
            retry.look_again(last).await?;
        }
    }
}

fn again(name: &str, why: &str) -> Error {
    Error::Unavailable(format!(
        "{why}; table {name} is being deleted, and nobody can use it any more: delete it again to go on"
    ))
}
