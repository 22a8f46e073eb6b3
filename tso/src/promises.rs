//! Promises between the oracles of one register: by these the leader goes on while the register is away.
//!
//! `protocol::election` decides. Here are the messages, the record in the folder, and the rounds.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use percolator_protocol::election::{Peer, PromiseCall, PromiseRecord, PromiseRequest, Timing};
use percolator_protocol::types::Timestamp;
use percolator_server::{DurableValue as _, Error, Folder, SmallFile};
use percolator_telemetry::Limited;
use percolator_wire::v1::promises_client::PromisesClient;
use percolator_wire::v1::promises_server::Promises;
use percolator_wire::{check_cluster, of_cluster, v1};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

use crate::service::Shared;

/// The file of the record, in the oracle's folder.
const FILE: &str = "promises";
/// Replica, register, term and limit with 8 bytes each, and whether it is bound.
const RECORD_BYTES: usize = 33;
/// A promise that takes longer is asked for again: it would hardly count any more.
const CALL_TIMEOUT: Duration = Duration::from_millis(600);
/// How often a standby introduces itself.
const INTRODUCTION: Duration = Duration::from_secs(1);

/// The record of the promises in an oracle's folder.
pub(crate) struct PromiseFolder {
    file: SmallFile,
    /// What the file holds; none after a write that failed. Writes take turns: who writes holds this until the write has
    /// ended, also if nobody waits for it any more.
    durable: Arc<Mutex<Option<PromiseRecord>>>,
    /// It stays locked as long.
    folder: Arc<Folder>,
}

impl fmt::Debug for PromiseFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PromiseFolder")
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

impl PromiseFolder {
    /// Reads the record of a folder, or begins one with a new number.
    ///
    /// # Errors
    /// The file is damaged, or can't be read or written.
    pub(crate) fn open(folder: &Arc<Folder>) -> Result<(Self, PromiseRecord), Error> {
        let file = SmallFile::new(folder.path().join(FILE));
        let record = match file.load()? {
            Some(bytes) => decode(&bytes).ok_or_else(|| Error::Damaged {
                path: file.path().to_owned(),
                reason: format!(
                    "it has {} bytes, which are no record of promises",
                    bytes.len()
                ),
            })?,
            None => {
                let record = PromiseRecord {
                    replica: rand::random::<u64>().max(1),
                    register: 0,
                    term: 0,
                    limit: Timestamp::ZERO,
                    is_bound: false,
                };
                file.store(&encode(&record))?;
                record
            }
        };
        let promises = Self {
            file,
            durable: Arc::new(Mutex::new(Some(record))),
            folder: folder.clone(),
        };
        Ok((promises, record))
    }

    /// Makes the newest record durable, and returns it: each that was made before is part of it.
    async fn keep(&self, shared: &Shared) -> Result<PromiseRecord, String> {
        let durable = self.durable.clone().lock_owned().await;
        let newest = shared.replica(|replica, _| replica.record());
        let newest = newest.ok_or("this oracle is alone")?;
        if *durable == Some(newest) {
            return Ok(newest);
        }
        self.write(durable, newest).await?;
        Ok(newest)
    }

    /// Writes on another thread. A request that is given up by its sender ends here: the write goes on, and the next one waits
    /// for it.
    async fn write(
        &self,
        mut durable: OwnedMutexGuard<Option<PromiseRecord>>,
        newest: PromiseRecord,
    ) -> Result<(), String> {
        let (file, folder) = (self.file.clone(), self.folder.clone());
        let written = tokio::task::spawn_blocking(move || {
            *durable = None;
            let written = file.store(&encode(&newest));
            if written.is_ok() {
                *durable = Some(newest);
            }
            drop((durable, folder));
            written
        });
        let written = written.await.map_err(|error| error.to_string())?;
        written.map_err(|error| error.to_string())
    }
}

fn encode(record: &PromiseRecord) -> Vec<u8> {
    let numbers = [
        record.replica,
        record.register,
        record.term,
        record.limit.as_u64(),
    ];
    let mut bytes: Vec<u8> = numbers.into_iter().flat_map(u64::to_le_bytes).collect();
    bytes.push(record.is_bound.into());
    bytes
}

fn decode(bytes: &[u8]) -> Option<PromiseRecord> {
    let (numbers, rest) = bytes.as_chunks::<8>();
    let ([replica, register, term, limit], [is_bound]) = (numbers, rest) else {
        return None;
    };
    debug_assert_eq!(bytes.len(), RECORD_BYTES);
    Some(PromiseRecord {
        replica: u64::from_le_bytes(*replica),
        register: u64::from_le_bytes(*register),
        term: u64::from_le_bytes(*term),
        limit: Timestamp::from_u64(u64::from_le_bytes(*limit)),
        is_bound: *is_bound != 0,
    })
}

/// Asks the other oracles for promises while this one leads, and introduces this one to the leader otherwise.
pub(crate) struct PromiseTask {
    shared: Arc<Shared>,
    promises: Arc<PromiseFolder>,
    folder: Arc<Folder>,
    timing: Timing,
}

impl fmt::Debug for PromiseTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PromiseTask")
            .field("promises", &self.promises)
            .finish_non_exhaustive()
    }
}

impl PromiseTask {
    pub(crate) fn new(
        shared: Arc<Shared>,
        promises: Arc<PromiseFolder>,
        folder: Arc<Folder>,
        timing: Timing,
    ) -> Self {
        Self {
            shared,
            promises,
            folder,
            timing,
        }
    }

    /// Never ends. What is under way when this is dropped is given up.
    pub(crate) async fn run(&self) -> Infallible {
        let mut rounds = tokio::time::interval(Duration::from_millis(self.timing.promise_ms));
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut channels, mut calls) = (Channels::default(), JoinSet::new());
        let (mut introduced, mut was_by_promises) = (None, false);
        loop {
            tokio::select! {
                _ = rounds.tick() => {}
                () = self.shared.term_begun() => {}
            }
            while calls.try_join_next().is_some() {}
            self.round(&mut channels, &mut calls);
            let is_due = |at: &tokio::time::Instant| at.elapsed() >= INTRODUCTION;
            if introduced.as_ref().is_none_or(is_due) {
                introduced = Some(tokio::time::Instant::now());
                self.introduce(&mut channels, &mut calls);
            }
            let is_by_promises = self.shared.right().is_by_promises;
            if is_by_promises != was_by_promises {
                self.log(is_by_promises);
            }
            was_by_promises = is_by_promises;
        }
    }

    fn round(&self, channels: &mut Channels, calls: &mut JoinSet<()>) {
        let round = self
            .shared
            .replica(|replica, now| replica.ask_promises(now));
        let Some(round) = round.flatten() else { return };
        let (shared, promises) = (self.shared.clone(), self.promises.clone());
        calls.spawn(async move {
            match promises.keep(&shared).await {
                Ok(record) => {
                    shared.replica(|replica, now| replica.kept(now, &record));
                    shared.look_again();
                }
                Err(error) => log_failed_write(&error),
            }
        });
        channels.retain(round.calls.iter().map(|call| &*call.address));
        for call in round.calls {
            let Some(channel) = channels.of(&call.address) else {
                continue;
            };
            let shared = self.shared.clone();
            let request = self.of_cluster(v1::PromiseRequest {
                register: call.request.register,
                to: call.request.to,
                term: call.request.term,
                incarnation: call.request.incarnation,
                limit: call.request.limit.as_u64(),
            });
            calls.spawn(async move { ask(&shared, channel, request, &call).await });
        }
    }

    fn introduce(&self, channels: &mut Channels, calls: &mut JoinSet<()>) {
        let introduction = self.shared.replica(|replica, _| {
            let leader = replica.introduces_to()?.to_owned();
            let register = replica.register()?;
            let member = replica.member();
            let request = v1::IntroduceRequest {
                register,
                replica: member.replica,
                address: member.address.clone(),
            };
            Some((leader, request))
        });
        let Some((leader, request)) = introduction.flatten() else {
            return;
        };
        channels.retain([&*leader].into_iter());
        let Some(channel) = channels.of(&leader) else {
            return;
        };
        let request = self.of_cluster(request);
        calls.spawn(async move {
            // It is sent again. One that isn't known to the leader has no part in promises, and takes nothing from it.
            let _ = PromisesClient::new(channel).introduce(request).await;
        });
    }

    fn of_cluster<T>(&self, message: T) -> Request<T> {
        of_cluster(message, &self.folder.cluster_id().unwrap_or_default())
    }

    fn log(&self, is_by_promises: bool) {
        let leads = self.shared.leads_term();
        if is_by_promises {
            tracing::warn!(
                "the oracles' register can't be swapped: this oracle goes on, because all that could take over promise not to"
            );
        } else if leads != 0 {
            tracing::info!("the oracles' register is swapped again");
        } else {
            tracing::error!(
                "this oracle grants no more: the register can't be swapped, and an oracle that could take over does not promise \
                 not to"
            );
        }
    }
}

async fn ask(
    shared: &Shared,
    channel: Channel,
    request: Request<v1::PromiseRequest>,
    call: &PromiseCall,
) {
    let asked = PromisesClient::new(channel).promise(request).await;
    if let Err(status) = asked {
        shared.metrics.promise("missing");
        tracing::debug!(address = call.address, %status, "a promise is missing");
        return;
    }
    shared.metrics.promise("received");
    shared.replica(|replica, now| replica.promised(now, call));
    shared.look_again();
}

fn log_failed_write(error: &str) {
    static LOGGED: Limited = Limited::new();
    if let Some(left_out) = LOGGED.admit() {
        tracing::warn!(
            error,
            left_out,
            "this oracle's folder keeps no promises and limits: the oracles stop if the register can't be reached"
        );
    }
}

/// Connections to other oracles, by address.
#[derive(Debug, Default)]
struct Channels(HashMap<String, Channel>);

impl Channels {
    /// A connection that is made when it is first used; none to what is no address.
    fn of(&mut self, address: &str) -> Option<Channel> {
        if let Some(channel) = self.0.get(address) {
            return Some(channel.clone());
        }
        let endpoint = Endpoint::from_shared(format!("http://{address}")).ok()?;
        let channel = endpoint
            .connect_timeout(CALL_TIMEOUT)
            .timeout(CALL_TIMEOUT)
            .tcp_nodelay(true)
            .connect_lazy();
        self.0.insert(address.to_owned(), channel.clone());
        Some(channel)
    }

    fn retain<'a>(&mut self, addresses: impl Iterator<Item = &'a str> + Clone) {
        self.0
            .retain(|known, _| addresses.clone().any(|address| address == known));
    }
}

/// Answers other oracles.
#[derive(Clone, Debug)]
pub(crate) struct PromiseService {
    shared: Arc<Shared>,
    /// None if this oracle is alone.
    promises: Option<Arc<PromiseFolder>>,
    folder: Arc<Folder>,
}

impl PromiseService {
    pub(crate) fn new(
        shared: Arc<Shared>,
        promises: Option<Arc<PromiseFolder>>,
        folder: Arc<Folder>,
    ) -> Self {
        Self {
            shared,
            promises,
            folder,
        }
    }

    fn check<T>(&self, request: Request<T>) -> Result<T, Status> {
        let ours = self.folder.cluster_id();
        check_cluster(request.metadata(), ours.as_deref())?;
        Ok(request.into_inner())
    }
}

#[tonic::async_trait]
impl Promises for PromiseService {
    async fn promise(
        &self,
        request: Request<v1::PromiseRequest>,
    ) -> Result<Response<v1::PromiseResponse>, Status> {
        let message = self.check(request)?;
        let Some(promises) = &self.promises else {
            return Err(Status::failed_precondition(
                "this oracle has no register, and can't take over",
            ));
        };
        let request = PromiseRequest {
            register: message.register,
            to: message.to,
            term: message.term,
            incarnation: message.incarnation,
            limit: Timestamp::from_u64(message.limit),
        };
        let promised = self
            .shared
            .replica(|replica, now| replica.promise(now, &request));
        if promised.flatten().is_none() {
            self.shared.metrics.promise("refused");
            return Err(Status::failed_precondition(
                "this oracle does not promise: it leads, takes over or ends, or knows a later leader",
            ));
        }
        // It is bound already. The leader may count on it when a later start of this process would know it as well.
        if let Err(error) = promises.keep(&self.shared).await {
            self.shared.metrics.promise("failed");
            log_failed_write(&error);
            return Err(Status::unavailable(error));
        }
        self.shared.metrics.promise("given");
        Ok(Response::new(v1::PromiseResponse {}))
    }

    async fn introduce(
        &self,
        request: Request<v1::IntroduceRequest>,
    ) -> Result<Response<v1::IntroduceResponse>, Status> {
        let message = self.check(request)?;
        let peer = Peer {
            replica: message.replica,
            address: message.address,
        };
        self.shared.replica(|replica, now| {
            if replica.register() == Some(message.register) {
                replica.introduced(now, &peer);
            }
        });
        Ok(Response::new(v1::IntroduceResponse {}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that stalls: the leader gives its request up, and asks again.
    #[tokio::test]
    async fn a_write_that_nobody_waits_for_ends_before_the_next() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path(), "oracle", "tso-0", None);
        let (promises, first) = PromiseFolder::open(&Arc::new(folder.unwrap())).unwrap();
        // Opening it to write waits until somebody reads.
        let stalled = place.path().join("promises.tmp");
        let made = std::process::Command::new("mkfifo").arg(&stalled).status();
        assert!(made.unwrap().success());
        let newest = PromiseRecord { term: 4, ..first };
        let durable = promises.durable.clone().lock_owned().await;
        let given_up = Duration::from_millis(100);
        let write = tokio::time::timeout(given_up, promises.write(durable, newest));
        assert!(write.await.is_err());
        assert!(promises.durable.try_lock().is_err());
        let read = tokio::task::spawn_blocking(move || std::fs::read(stalled));
        assert_eq!(read.await.unwrap().unwrap().len(), 8 + RECORD_BYTES);
        // A pipe can't be synced: so nothing is known of the file.
        assert_eq!(*promises.durable.lock().await, None);
    }

    #[test]
    fn what_was_kept_is_read() {
        for is_bound in [false, true] {
            let record = PromiseRecord {
                replica: 7,
                register: 5,
                term: 3,
                limit: Timestamp::from_millis(9),
                is_bound,
            };
            assert_eq!(encode(&record).len(), RECORD_BYTES);
            assert_eq!(decode(&encode(&record)), Some(record));
        }
        assert_eq!(decode(&[0; RECORD_BYTES - 1]), None);
        assert_eq!(decode(&[0; RECORD_BYTES + 8]), None);
    }

    #[test]
    fn a_folder_keeps_its_number_and_a_new_one_has_another() {
        let place = tempfile::tempdir().unwrap();
        let opened = |name: &str| {
            let folder = Folder::open(place.path().join(name), "oracle", "tso-0", None).unwrap();
            PromiseFolder::open(&Arc::new(folder)).unwrap().1
        };
        let first = opened("a");
        assert_eq!(opened("a"), first);
        assert_ne!(opened("b").replica, first.replica);
    }
}
