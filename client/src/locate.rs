//! Asks the master where rows are, and what tables are called.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use percolator_protocol::types::TableId;

use crate::Error;
use crate::cluster::Cluster;
use crate::convert::{locate_request, malformed_response};
use crate::location_cache::{LocateResult, RowQuery, TabletTarget, UnknownLocation};
use crate::retry::Retry;
use crate::router::{Deadline, Router};
use crate::transport::{BoxFuture, MasterError};

/// Rows that the master is asked for at a time, and tablets behind each of them: most calls go on where others ended.
const ROWS_AT_A_TIME: usize = 64;
const TABLETS_AHEAD: u32 = 16;

/// What is said of a master that gave no response until a deadline.
const SILENT_MASTER: &str = "the master did not answer in the time that was left";

impl Router {
    /// The cluster as its master lists it, for people and tools.
    pub(crate) async fn listing(&self, deadline: Deadline) -> Result<Cluster, MasterError> {
        let transport = &*self.world.transport;
        let asked = deadline.within(transport, transport.directory(None)).await;
        let listing =
            asked.unwrap_or_else(|| Err(MasterError::Unavailable(SILENT_MASTER.into())))?;
        let cluster = Cluster::try_from(listing).map_err(malformed_response)?;
        let servers = cluster.servers.iter().cloned();
        *self.world.servers.write() = servers.map(|it| (it.server.clone(), it)).collect();
        Ok(cluster)
    }

    /// Whether the master answers, and which cluster's it is.
    pub(crate) async fn reach(&self, deadline: Deadline) -> Result<(), MasterError> {
        self.ask_where(&[], &[], deadline).await
    }

    /// Asks the master for tables by name and for rows, and takes in what it answers.
    async fn ask_where(
        &self,
        names: &[String],
        rows: &[RowQuery],
        deadline: Deadline,
    ) -> Result<(), MasterError> {
        let step = self.step("locate");
        let trace = step.as_ref().and_then(|step| step.context());
        let request = locate_request(names, rows, TABLETS_AHEAD);
        let asked = self.world.transport.locate(request, trace);
        let asked = deadline.within(&*self.world.transport, asked).await;
        let located =
            asked.unwrap_or_else(|| Err(MasterError::Unavailable(SILENT_MASTER.into())))?;
        let located = LocateResult::try_from(located).map_err(malformed_response)?;
        self.world.locations.write().learn(names, located);
        Ok(())
    }

    /// Asks the master for those of these rows whose tablet isn't known.
    pub(crate) async fn find(
        &self,
        mut wanted: Vec<RowQuery>,
        deadline: Deadline,
    ) -> Result<(), MasterError> {
        loop {
            {
                let locations = self.locations();
                wanted.retain(|wanted| !locations.settles(wanted));
            }
            let rows = &wanted[..wanted.len().min(ROWS_AT_A_TIME)];
            if rows.is_empty() {
                return Ok(());
            }
            self.ask_where(&[], rows, deadline).await?;
            let asked = rows.len();
            let locations = self.locations();
            // The owners of the other rows are as likely to be unknown: the next try asks for these rows.
            if !wanted[..asked].iter().any(|row| locations.settles(row)) {
                return Ok(());
            }
            wanted.drain(..asked);
        }
    }

    /// Asks the master for the tablets of these rows, also where they are known: they may have moved.
    pub(crate) async fn find_again(
        &self,
        mut wanted: Vec<RowQuery>,
        deadline: Deadline,
    ) -> Result<(), MasterError> {
        {
            // Rows of one tablet are one question, and of those without a place some are enough: others follow when these have one.
            let locations = self.locations();
            let (mut asked, mut placeless) = (BTreeSet::new(), 0);
            wanted.retain(|wanted| match locations.locate(wanted) {
                Ok(located) => asked.insert(located.id),
                Err(_) => {
                    placeless += 1;
                    placeless <= ROWS_AT_A_TIME
                }
            });
        }
        for rows in wanted.chunks(ROWS_AT_A_TIME) {
            self.ask_where(&[], rows, deadline).await?;
        }
        Ok(())
    }

    /// The tablet of a row; the master is asked where it isn't known.
    pub(crate) async fn place(
        &self,
        wanted: &RowQuery,
        deadline: Deadline,
    ) -> Result<TabletTarget, UnknownLocation> {
        let known = self.locations().locate(wanted);
        if known.is_ok() {
            return known;
        }
        // A master that is away leaves it unknown.
        let _ = self.find(vec![wanted.clone()], deadline).await;
        self.locations().locate(wanted)
    }

    /// Whether the master knows this table; as far as it can be asked.
    pub(crate) async fn knows_table(&self, table: TableId, deadline: Deadline) -> bool {
        if self.locations().knows(table) {
            return true;
        }
        let wanted = RowQuery::of(table, &Bytes::new());
        let asked = self.find_again(vec![wanted], deadline).await;
        asked.is_err() || self.locations().knows(table)
    }

    /// Tables were made or deleted: whose name this is has to be asked anew.
    pub(crate) fn forget_name(&self, name: &str) {
        self.world.locations.write().forget_name(name);
    }

    /// [`Cluster::ids_to_delete`], of the cluster as it is now.
    pub(crate) async fn ids_to_delete(
        &self,
        name: &str,
        accept_data_loss: bool,
        request_timeout: Duration,
    ) -> Result<Vec<u32>, Error> {
        let deadline = self.deadline(request_timeout);
        let find = || {
            let asked = async {
                let cluster = self.listing(deadline).await?;
                Ok(cluster.ids_to_delete(name, accept_data_loss).map(Ok))
            };
            asked.boxed()
        };
        self.look_up(name, deadline, find).await
    }

    /// The table of this name. Asks the master when it isn't known yet.
    pub(crate) async fn table(
        &self,
        name: &str,
        request_timeout: Duration,
    ) -> Result<TableId, Error> {
        if let Some(table) = self.locations().table(name) {
            return Ok(table);
        }
        let deadline = self.deadline(request_timeout);
        let names = [name.to_owned()];
        let creating = || format!("table {name} is still being created");
        let ready = || {
            let asked = async {
                self.ask_where(&names, &[], deadline).await?;
                let locations = self.locations();
                let named = locations.table_named(name).is_some();
                Ok(named.then(|| locations.table(name).ok_or_else(creating)))
            };
            asked.boxed()
        };
        self.look_up(name, deadline, ready).await
    }

    /// What the master has of a table: `None`, where there's none; why it's asked again, where that isn't known yet.
    async fn look_up<'a, T>(
        &self,
        name: &str,
        deadline: Deadline,
        find: impl Fn() -> BoxFuture<'a, Result<Option<Result<T, String>>, MasterError>>,
    ) -> Result<T, Error> {
        let mut retry = Retry::new(self, deadline);
        loop {
            let last = match find().await {
                Ok(Some(Ok(found))) => return Ok(found),
                Ok(Some(Err(why))) => why,
                Ok(None) => {
                    return Err(Error::UnknownTable {
                        name: name.to_owned(),
                    });
                }
                Err(MasterError::Replaced(replaced)) => {
                    return Err(Error::ClusterReplaced(replaced));
                }
                Err(error) => error.into_message(),
            };
            if let Err(error) = retry.pause(last).await {
                return Err(deadline.error(&*self.world.transport, "looking up a table", error));
            }
        }
    }
}
