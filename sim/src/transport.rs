//! The client library's world: the simulated one.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use percolator_client::transport::{BoxFuture, Lost, MasterError, OneCluster, Replaced, Transport};
use percolator_client::{Timestamp, TraceParent};
use percolator_wire::v1;
use percolator_wire::v1::check_status_response::Status;
use percolator_wire::v1::request::Body;
use percolator_wire::v1::response::Body as Answered;

use crate::clock::EPOCH_MS;
use crate::invariants::floors_cover::{OpenTransactions, Phase};
use crate::master_link::MasterLink;
use crate::messages::{Answer, Ask};
use crate::oracle_link::OracleLink;
use crate::rng::Rng;
use crate::seen::Seen;
use crate::servers::oracle;
use crate::world::{NodeId, World};

/// An answer to another server comes within this, or is lost.
const SERVER_TIMEOUT: Duration = Duration::from_secs(5);

/// The highest timestamp that any client has.
pub type Highest = Arc<Mutex<Timestamp>>;

/// One client process' way to the others.
pub struct SimTransport {
    /// The world.
    pub world: Arc<World>,
    /// The client's process.
    pub node: NodeId,
    /// The master's process.
    pub master: NodeId,
    /// An answer comes within this, or is lost.
    pub timeout: Duration,
    /// The client's dice.
    pub rng: Mutex<Rng>,
    /// What timestamps are checked against.
    pub highest: Highest,
    /// Of which cluster the client is.
    pub cluster: OneCluster,
    /// The masters that it knows; none if there is only one.
    pub masters: Option<MasterLink>,
    /// The oracles that it knows; none if there is only one.
    pub oracles: Option<OracleLink>,
    /// Each timestamp is handed out with the next call: for a mutation.
    pub kept: Option<Mutex<Option<Timestamp>>>,
    /// What the client's lease has to cover.
    pub open: Arc<OpenTransactions>,
}

impl SimTransport {
    /// That of a server's process, which asks others.
    pub fn of_server(
        world: &Arc<World>,
        node: NodeId,
        master: NodeId,
        rng: Rng,
        highest: Highest,
    ) -> Self {
        Self {
            world: world.clone(),
            node,
            master,
            timeout: SERVER_TIMEOUT,
            rng: Mutex::new(rng),
            highest,
            cluster: OneCluster::default(),
            masters: MasterLink::new(world),
            oracles: OracleLink::new(world),
            kept: None,
            open: Arc::default(),
        }
    }

    async fn ask(&self, to: NodeId, ask: Ask) -> Result<Answer, Lost> {
        self.world.call(self.node, to, ask, self.timeout).await
    }

    /// A timestamp, of whichever oracle leads.
    async fn ask_oracle(&self) -> Result<Timestamp, Lost> {
        if let Some(oracles) = &self.oracles {
            return oracles.timestamp(self).await;
        }
        let to = self.at(&oracle::address("tso-0"))?;
        self.timestamp_of(to, self.timeout).await?.map_err(|_| {
            // It has no register.
            Lost::unknown("the only oracle doesn't lead".to_owned())
        })
    }

    /// What one oracle answers: a timestamp, or who leads instead.
    pub(crate) async fn timestamp_of(
        &self,
        to: NodeId,
        timeout: Duration,
    ) -> Result<Result<Timestamp, Option<String>>, Lost> {
        let after = *self.highest.lock();
        let asked = self
            .world
            .call(self.node, to, Ask::Timestamps(1), timeout)
            .await?;
        let ts = match asked {
            Answer::Timestamps(granted) => granted.first,
            Answer::NotLeader(leader) => return Ok(Err(leader.map(|it| it.address))),
            _ => return Err(Lost::unknown("another question was answered".to_owned())),
        };
        self.world.see(&Seen::Received { ts, after });
        let mut highest = self.highest.lock();
        *highest = ts.max(*highest);
        Ok(Ok(ts))
    }

    pub(crate) async fn ask_master(&self, ask: Ask) -> Result<Answer, MasterError> {
        self.ask_master_within(ask, self.timeout).await
    }

    pub(crate) async fn ask_master_within(
        &self,
        ask: Ask,
        timeout: Duration,
    ) -> Result<Answer, MasterError> {
        if let Ask::DeleteTable(request) = &ask {
            self.world.see(&Seen::DeletionAsked(request.table_id));
        }
        if let Some(masters) = &self.masters {
            let matters = matches!(ask, Ask::CreateTable(_) | Ask::DeleteTable(_));
            let asked = masters.ask(&self.world, self.node, ask, timeout, matters);
            return asked.await;
        }
        let asked = self.world.call(self.node, self.master, ask, timeout);
        match asked.await {
            Ok(Answer::Refused(why)) => Err(why),
            Ok(answer) => Ok(answer),
            Err(lost) => Err(MasterError::Unavailable(lost.why)),
        }
    }

    pub(crate) fn at(&self, address: &str) -> Result<NodeId, Lost> {
        let node = self.world.network.lock().at(address);
        node.ok_or_else(|| Lost::never_sent(format!("nobody listens at {address}")))
    }
}

pub(crate) fn odd() -> MasterError {
    MasterError::Invalid("the master answered another question than was asked".to_owned())
}

/// What a request asks of one transaction, as far as an invariant is about it.
#[derive(Clone, Copy)]
enum AskedOfOne {
    /// That it lives on, and the tablet of its primary.
    KeepAlive(Timestamp, u64),
    /// What became of it.
    Status(Timestamp),
    /// That it ends.
    End {
        start_ts: Timestamp,
        /// Whatever its age.
        forced: bool,
    },
}

impl AskedOfOne {
    fn of(request: &v1::Request) -> Option<Self> {
        let ts = Timestamp::from_u64;
        let end = |start_ts, forced| {
            let start_ts = ts(start_ts);
            Some(Self::End { start_ts, forced })
        };
        match request.body.as_ref()? {
            Body::KeepAlive(it) => {
                let tablet = it.primary.as_ref()?.tablet as usize;
                let tablet = request.tablets.get(tablet)?.id;
                Some(Self::KeepAlive(ts(it.start_ts), tablet))
            }
            Body::CheckStatus(it) if !it.force => Some(Self::Status(ts(it.start_ts))),
            Body::CheckStatus(it) => end(it.start_ts, true),
            Body::Rollback(it) => end(it.start_ts, false),
            Body::Resolve(it) if it.commit_ts == 0 => end(it.start_ts, false),
            _ => None,
        }
    }

    fn answered(self, by: NodeId, response: &v1::Response) -> Option<Seen<'static>> {
        match (self, response.body.as_ref()?) {
            (Self::KeepAlive(start_ts, tablet), Answered::KeepAlive(kept)) if kept.alive => {
                let ttl_ms = kept.ttl_ms;
                Some(Seen::KeptAlive {
                    start_ts,
                    tablet,
                    by,
                    ttl_ms,
                })
            }
            (Self::Status(start_ts), Answered::CheckStatus(found)) => match found.status {
                Some(Status::RolledBack(_)) => Some(Seen::FoundRolledBack(start_ts)),
                _ => None,
            },
            _ => None,
        }
    }
}

impl Transport for SimTransport {
    fn tablet(
        &self,
        address: &str,
        request: v1::Request,
    ) -> BoxFuture<'_, Result<v1::Response, Lost>> {
        let to = self.at(address);
        async move {
            let asked = AskedOfOne::of(&request);
            let commits = match &request.body {
                Some(Body::Commit(commit)) => Some(commit.start_ts),
                Some(Body::Prewrite(prewrite)) if prewrite.one_phase.is_some() => {
                    Some(prewrite.start_ts)
                }
                _ => None,
            };
            let commits = commits.map(Timestamp::from_u64);
            self.world.commits_sent.lock().extend(commits);
            let _prewriting = match &request.body {
                Some(Body::Prewrite(prewrite)) => {
                    let start_ts = Timestamp::from_u64(prewrite.start_ts);
                    Some(self.open.hold(start_ts, Phase::Prewriting))
                }
                _ => None,
            };
            if let Some(AskedOfOne::End { start_ts, forced }) = asked {
                let by = self.node;
                self.open.rolls_back(start_ts);
                self.world.see(&Seen::EndAsked {
                    start_ts,
                    by,
                    forced,
                });
            }
            match self.ask(to?, Ask::Tablet(request)).await? {
                Answer::Tablet(response) => {
                    if let Some(seen) = asked.and_then(|asked| asked.answered(self.node, &response))
                    {
                        self.world.see(&seen);
                    }
                    Ok(response)
                }
                _ => Err(Lost::unknown("another question was answered".to_owned())),
            }
        }
        .boxed()
    }

    fn timestamp(&self, _: Option<TraceParent>) -> BoxFuture<'_, Result<Timestamp, Lost>> {
        async move {
            let ts = self.ask_oracle().await?;
            let Some(kept) = &self.kept else {
                return Ok(ts);
            };
            let before = kept.lock().replace(ts);
            match before {
                Some(before) => Ok(before),
                None => self.timestamp(None).await,
            }
        }
        .boxed()
    }

    fn commit_timestamp(
        &self,
        start_ts: Timestamp,
        trace: Option<TraceParent>,
    ) -> BoxFuture<'_, Result<Timestamp, Lost>> {
        async move {
            let granted = self.timestamp(trace).await?;
            let got = self.world.held_back.lock().exchange(granted, start_ts);
            match got {
                Some(ts) => Ok(ts),
                None => self.timestamp(trace).await,
            }
        }
        .boxed()
    }

    fn session(
        &self,
        request: v1::SessionRequest,
        _: Option<TraceParent>,
    ) -> BoxFuture<'_, Result<v1::SessionResponse, MasterError>> {
        async move {
            let (session, floor) = (request.session, Timestamp::from_u64(request.floor));
            let asked_at = self.world.now();
            self.world.see(&Seen::LeaseAsked { session, floor });
            self.open.asked(&self.world, session, floor);
            let told = match self.ask_master(Ask::Session(request)).await? {
                Answer::Session(told) => self.cluster.check_session(told)?,
                _ => return Err(odd()),
            };
            self.open.answered(Timestamp::from_u64(told.barrier));
            self.world.see(&Seen::LeaseGranted {
                session,
                floor,
                barrier: Timestamp::from_u64(told.barrier),
                until: asked_at + Duration::from_millis(told.lease_ms.into()),
            });
            Ok(told)
        }
        .boxed()
    }

    fn directory(
        &self,
        _: Option<TraceParent>,
    ) -> BoxFuture<'_, Result<v1::DirectoryResponse, MasterError>> {
        async move {
            match self.ask_master(Ask::Directory).await? {
                Answer::Directory(directory) => {
                    self.cluster.check(&directory.cluster_id)?;
                    Ok(directory)
                }
                _ => Err(odd()),
            }
        }
        .boxed()
    }

    fn locate(
        &self,
        request: v1::LocateRequest,
        _: Option<TraceParent>,
    ) -> BoxFuture<'_, Result<v1::LocateResponse, MasterError>> {
        async move {
            match self.ask_master(Ask::Locate(request)).await? {
                Answer::Located(located) => {
                    self.cluster.check(&located.cluster_id)?;
                    Ok(located)
                }
                _ => Err(odd()),
            }
        }
        .boxed()
    }

    fn create_table(
        &self,
        request: v1::CreateTableRequest,
    ) -> BoxFuture<'_, Result<v1::CreateTableResponse, MasterError>> {
        async move {
            match self.ask_master(Ask::CreateTable(request)).await? {
                Answer::TableCreated(created) => Ok(created),
                _ => Err(odd()),
            }
        }
        .boxed()
    }

    fn delete_table(
        &self,
        request: v1::DeleteTableRequest,
    ) -> BoxFuture<'_, Result<v1::DeleteTableResponse, MasterError>> {
        async move {
            match self.ask_master(Ask::DeleteTable(request)).await? {
                Answer::TableDeleted(deleted) => Ok(deleted),
                _ => Err(odd()),
            }
        }
        .boxed()
    }

    fn split_table(
        &self,
        request: v1::SplitTableRequest,
    ) -> BoxFuture<'_, Result<v1::SplitTableResponse, MasterError>> {
        async move {
            match self.ask_master(Ask::SplitTable(request)).await? {
                Answer::TableSplit(split) => Ok(split),
                _ => Err(odd()),
            }
        }
        .boxed()
    }

    fn merge_table(
        &self,
        request: v1::MergeTableRequest,
    ) -> BoxFuture<'_, Result<v1::MergeTableResponse, MasterError>> {
        async move {
            match self.ask_master(Ask::MergeTable(request)).await? {
                Answer::TableMerged(merged) => Ok(merged),
                _ => Err(odd()),
            }
        }
        .boxed()
    }

    fn move_tablet(
        &self,
        request: v1::MoveTabletRequest,
    ) -> BoxFuture<'_, Result<v1::MoveTabletResponse, MasterError>> {
        async move {
            match self.ask_master(Ask::MoveTablet(request)).await? {
                Answer::TabletMoved(moved) => Ok(moved),
                _ => Err(odd()),
            }
        }
        .boxed()
    }

    fn drain_servers(
        &self,
        request: v1::DrainServersRequest,
    ) -> BoxFuture<'_, Result<v1::DrainServersResponse, MasterError>> {
        async move {
            match self.ask_master(Ask::DrainServers(request)).await? {
                Answer::ServersDrained(drained) => Ok(*drained),
                _ => Err(odd()),
            }
        }
        .boxed()
    }

    fn replaced(&self) -> Option<Replaced> {
        self.cluster.replaced()
    }

    fn now(&self) -> Duration {
        // From the epoch on, so that the client's clock and the oracle's can be compared by anyone who is
        // wrong enough to do so.
        let own_us = self.world.clock(self.node, |clock, now| clock.mono_us(now));
        Duration::from_millis(EPOCH_MS) + Duration::from_micros(own_us)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'_, ()> {
        self.world.sleep_on(self.node, duration).boxed()
    }

    fn random(&self) -> u64 {
        self.rng.lock().next()
    }

    fn spawn(&self, future: BoxFuture<'static, ()>) {
        self.world.spawn(self.node, future);
    }
}
