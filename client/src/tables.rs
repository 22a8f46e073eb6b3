//! Tables, tablets and the servers that have them, as an application has the master change them.

use bytes::Bytes;
use percolator_wire::v1;

use crate::cluster::ReportedServer;
use crate::convert::malformed_response;
use crate::retry::Retry;
use crate::router::CallError;
use crate::transport::{BoxFuture, MasterError};
use crate::{Client, Error};

impl Client {
    /// Makes a table, cut into tablets at these rows.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`], [`Error::Invalid`], [`Error::Unavailable`].
    pub async fn create_table(&self, name: &str, split_at: &[Bytes]) -> Result<(), Error> {
        let request = v1::CreateTableRequest {
            name: name.to_owned(),
            split_at: split_at.to_vec(),
        };
        let transport = &self.router.world.transport;
        // Our own earlier request, whose response was lost.
        let done_before = |error: &MasterError| matches!(error, MasterError::AlreadyExists(_));
        self.change_tables(name, done_before, || {
            transport.create_table(request.clone())
        })
        .await
        .map(drop)
    }

    /// Cuts tablets of a table at these rows, in any order: each is the first row of a tablet then. Transactions go on
    /// meanwhile.
    ///
    /// # Errors
    /// [`Error::UnknownTable`], [`Error::Invalid`], [`Error::Unavailable`].
    pub async fn split_table(&self, name: &str, rows: &[Bytes]) -> Result<(), Error> {
        let mut rows = rows.to_vec();
        rows.sort_unstable();
        rows.dedup();
        let request = v1::SplitTableRequest {
            table: name.to_owned(),
            rows,
        };
        let transport = &self.router.world.transport;
        self.change_tables(name, |_| false, || transport.split_table(request.clone()))
            .await
            .map(drop)
    }

    /// Makes one tablet of the one that begins at this row and the one before it. If they are at two servers, one of them is
    /// moved first. If none begins there, nothing changes.
    ///
    /// # Errors
    /// As [`Self::split_table`].
    pub async fn merge_tablets(&self, name: &str, row: &Bytes) -> Result<(), Error> {
        let request = v1::MergeTableRequest {
            table: name.to_owned(),
            row: row.clone(),
        };
        let transport = &self.router.world.transport;
        self.change_tables(name, |_| false, || transport.merge_table(request.clone()))
            .await
            .map(drop)
    }

    /// Hands a tablet over to another server, and waits until that one has it. Transactions go on meanwhile. A move that was
    /// begun goes on also when this gives up.
    ///
    /// # Errors
    /// [`Error::Invalid`]: there is no such tablet or server, or the server has given it up. [`Error::Unavailable`].
    pub async fn move_tablet(&self, tablet: u64, server: &str) -> Result<(), Error> {
        let request = v1::MoveTabletRequest {
            tablet_id: tablet,
            server: server.to_owned(),
        };
        let transport = &self.router.world.transport;
        let asked = self.ask_until_answered(|_| false, || transport.move_tablet(request.clone()));
        match asked.await {
            Ok(_) => Ok(()),
            Err(MasterError::NotFound(why)) => Err(Error::Invalid(why)),
            Err(error) => Err(self.refused("", error)),
        }
    }

    /// Says whether these tablet servers are to have no tablets: with `drain`, the master moves them to other servers from now
    /// on and gives these no new ones. It does so with all of them, or with none. Returns the servers at once, in this order;
    /// [`Self::cluster`] says how many tablets they have left. Transactions go on meanwhile.
    ///
    /// # Errors
    /// [`Error::Invalid`]: there is no such tablet server, or no other one for the tablets. [`Error::NoRoom`].
    /// [`Error::Unavailable`].
    pub async fn drain_servers(
        &self,
        servers: &[String],
        drain: bool,
    ) -> Result<Vec<ReportedServer>, Error> {
        let request = v1::DrainServersRequest {
            servers: servers.to_vec(),
            drain,
        };
        let transport = &self.router.world.transport;
        let asked = self.ask_until_answered(|_| false, || transport.drain_servers(request.clone()));
        match asked.await {
            Ok(None) => Ok(Vec::new()),
            Ok(Some(response)) if response.no_room.is_empty() => {
                let servers = response.servers.into_iter().map(ReportedServer::try_from);
                let servers: Result<_, _> = servers.collect();
                servers.map_err(|error| self.refused("", malformed_response(error)))
            }
            Ok(Some(response)) => Err(Error::NoRoom(response.no_room)),
            Err(MasterError::NotFound(why)) => Err(Error::Invalid(why)),
            Err(error) => Err(self.refused("", error)),
        }
    }

    /// Deletes a table with all its rows, for every snapshot. When this returns, nobody can use it any more, its name can be
    /// used again, and its space comes when the safe point has passed this moment. Transactions that committed rows here and
    /// in other tables keep those. If a tablet server is away the error names it; the deletion goes on by itself then.
    ///
    /// # Errors
    /// [`Error::UnknownTable`], [`Error::Unavailable`].
    pub async fn delete_table(&self, name: &str) -> Result<(), Error> {
        self.delete(name, false).await
    }

    /// The same for a table of which tablet servers have lost tablets, for good. Nobody knows any more which of the
    /// transactions were committed whose primary lay there. Where they left locks in other tables, these are rolled back:
    /// so a transaction that was answered as committed may be kept by half, or not at all. If the deletion of a table of this
    /// name waits for what is lost, that one is meant and not another one.
    ///
    /// # Errors
    /// As [`Self::delete_table`].
    pub async fn delete_lost_table(&self, name: &str) -> Result<(), Error> {
        self.delete(name, true).await
    }

    async fn delete(&self, name: &str, accept_data_loss: bool) -> Result<(), Error> {
        let missing = |error: &MasterError| matches!(error, MasterError::NotFound(_));
        let request_timeout = self.options.request_timeout;
        let ids = self
            .router
            .ids_to_delete(name, accept_data_loss, request_timeout)
            .await?;
        for table_id in ids {
            let request = v1::DeleteTableRequest {
                name: name.to_owned(),
                table_id,
                accept_data_loss,
            };
            let transport = &self.router.world.transport;
            let ask = || transport.delete_table(request.clone());
            self.change_tables(name, missing, ask).await?;
        }
        Ok(())
    }

    /// [`Self::ask_until_answered`], about the table of this name.
    async fn change_tables<'a, T>(
        &self,
        name: &str,
        done_before: impl Fn(&MasterError) -> bool,
        ask: impl Fn() -> BoxFuture<'a, Result<T, MasterError>>,
    ) -> Result<Option<T>, Error> {
        let done = self.ask_until_answered(done_before, ask).await;
        let done = done.map_err(|error| self.refused(name, error))?;
        self.router.forget_name(name);
        Ok(done)
    }

    /// Asks the master until it has answered; `None`: it was done before. `done_before` knows the refusal of a request that was
    /// carried out when it was asked before, and not answered.
    async fn ask_until_answered<'a, T>(
        &self,
        done_before: impl Fn(&MasterError) -> bool,
        ask: impl Fn() -> BoxFuture<'a, Result<T, MasterError>>,
    ) -> Result<Option<T>, MasterError> {
        let mut retry = Retry::new(&self.router, self.deadline());
        let mut asked_before = false;
        loop {
            match ask().await {
                Ok(answer) => return Ok(Some(answer)),
                Err(error) if asked_before && done_before(&error) => return Ok(None),
                Err(MasterError::Unavailable(why)) => {
                    asked_before = true;
                    let gave_up = |error: CallError| MasterError::Unavailable(error.to_string());
                    retry.pause(why).await.map_err(gave_up)?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn refused(&self, name: &str, error: MasterError) -> Error {
        match error {
            MasterError::Unavailable(why) => Error::Unavailable(why),
            MasterError::Replaced(replaced) => Error::ClusterReplaced(replaced),
            MasterError::Invalid(why) => Error::Invalid(why),
            MasterError::AlreadyExists(why) => Error::AlreadyExists(why),
            MasterError::NotFound(_) => Error::UnknownTable {
                name: name.to_owned(),
            },
        }
    }
}
