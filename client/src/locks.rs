//! Locks of servers: listed, and cleared once their transactions have ended.

use std::collections::BTreeMap;

use bytes::Bytes;
use percolator_protocol::txn::{Ending, MetLock};
use percolator_protocol::types::{Cell, Timestamp};
use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::response::Body;

use crate::attempts::Attempt;
use crate::cluster::{Cluster, ReportedServer};
use crate::convert::verified_page;
use crate::findings::{StoredPart, VerifiedPage};
use crate::location_cache::RowQuery;
use crate::resolver::{malformed, unexpected};
use crate::retry::{Retry, RetryCause};
use crate::router::{CallError, Deadline, Router};
use crate::transport::MasterError;

/// Up to so many locks of a large transaction are cleared by name, without a scan of the tablet.
const NAMED_MAX: usize = 16;

impl Router {
    /// The cluster as its master lists it, which is waited for.
    pub(crate) async fn listed(&self, deadline: Deadline) -> Result<Cluster, CallError> {
        let mut retry = Retry::new(self, deadline);
        loop {
            match self.listing(deadline).await {
                Ok(listing) => return Ok(listing),
                Err(error) => retry.pause(error.into_message()).await?,
            }
        }
    }

    /// Ends what the locks of one transaction are left of, as its primary says: where it has not committed
    /// it can't any more, so it need not be waited for. How it ended, and how many locks of it were cleared. `None`: the
    /// response was of another kind, and the request is to be sent again.
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
    pub(crate) async fn clear(
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
        let mut tablets = BTreeMap::new();
        for MetLock { cell, .. } in met {
            match self
                .place(&RowQuery::of(cell.table, &cell.row), deadline)
                .await
            {
                Ok(tablet) => tablets.insert(tablet.id, (cell.table, tablet)),
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

    /// The next locks of transactions that began below this on a server, which is waited for. It is asked by its name:
    /// another one that has its address knows nothing of its locks.
    pub(crate) async fn locks_below(
        &self,
        server: &str,
        below: Timestamp,
        after: Option<v1::CellName>,
        deadline: Deadline,
    ) -> Result<v1::LocksBelowResponse, CallError> {
        let ask = |to| {
            Ask::LocksBelow(v1::LocksBelowRequest {
                below: below.as_u64(),
                after: after.clone(),
                to: Some(to),
            })
        };
        match self.ask_server(server, &ask, deadline).await? {
            Body::LocksBelow(locks) => Ok(locks),
            _ => Err(unexpected()),
        }
    }

    /// The next page of a walk over what a server has stored.
    pub(crate) async fn verify_page(
        &self,
        server: &str,
        part: StoredPart,
        after: Bytes,
        deadline: Deadline,
    ) -> Result<VerifiedPage, CallError> {
        let ask = |to| {
            Ask::Verify(v1::VerifyRequest {
                to: Some(to),
                part: v1::VerifyPart::from(part).into(),
                after: after.clone(),
            })
        };
        match self.ask_server(server, &ask, deadline).await? {
            Body::Verify(page) => verified_page(server, page).map_err(malformed),
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
            let known = self.world.servers.read().get(server).cloned();
            let last = match known {
                Some(ReportedServer {
                    server,
                    address,
                    incarnation: Some(incarnation),
                    ..
                }) => {
                    let ask = ask(v1::Addressee {
                        server,
                        incarnation,
                    });
                    match self.send(&address, Vec::new(), ask, deadline).await {
                        Attempt::Done(body) => return Ok(body),
                        Attempt::Invalid(why) => return Err(CallError::Invalid(why)),
                        Attempt::TooOld(too_old) => return Err(CallError::TooOld(too_old)),
                        attempt => attempt.into(),
                    }
                }
                _ => RetryCause::Other(
                    "it has sent the master no heartbeat since the master's start".to_owned(),
                ),
            };
            retry.pause_and_locate(last, Vec::new()).await?;
            // One that is away leaves us with what we know.
            if let Err(MasterError::Replaced(replaced)) = self.listing(deadline).await {
                return Err(CallError::Replaced(replaced));
            }
        }
    }
}

/// Locks by their transaction, whose name is its start_ts and its primary.
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
