//! Telling the master where this server is and what it owns.

use std::net::SocketAddr;
use std::pin::pin;
use std::time::{Duration, Instant};

use percolator_wire::v1::master_client::MasterClient;
use percolator_wire::v1::{HeartbeatRequest, HeartbeatResponse, Role};
use percolator_wire::{MasterAddresses, NoMasterAddress, leader_of, named_cluster};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::schedule::Schedule;
use crate::{BoxError, Error, Incarnation, boot_time};

/// The sender of heartbeats, and its master.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the master is: HOST:PORT, or several of these with commas between. A name is resolved again for each
    /// connection.
    pub master: String,
    /// What this server is.
    pub role: Role,
    /// Its stable name, for example "tablet-0".
    pub server: String,
    /// Where clients reach it: HOST:PORT.
    pub address: String,
    /// Where it shows metrics, as it listens.
    pub metrics_address: Option<SocketAddr>,
    /// The cluster that it belongs to; none if it belongs to none yet.
    pub cluster_id: Option<String>,
    /// This start of the process.
    pub process: Incarnation,
}

/// An answer must come within this, or the beat is repeated.
const TIMEOUT: Duration = Duration::from_secs(3);
/// The request timeout of the first one of several masters, after which the next one is asked. After each timeout it is twice as
/// long, so that a heartbeat with long lists has the time that it needs.
const TIMEOUT_OF_SEVERAL: Duration = Duration::from_secs(1);
/// A connection to one of several masters must be made within this: the address of a pod that is gone answers nothing at all.
const CONNECT_TO_SEVERAL: Duration = Duration::from_millis(500);
/// A connection to the master is tried so often,
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// and given up if there is no answer for so long: the network was cut, or the machine is gone. Where there is one address, no
/// other connection would be made.
const PING_TIMEOUT: Duration = Duration::from_secs(2);
/// A server that stops waits so long for the master.
const LEAVING_MAX: Duration = Duration::from_millis(500);
/// Another reason for no answer is logged so long after the last one.
const ANOTHER_REASON: Duration = Duration::from_secs(2);
/// It asks again so often while no master leads.
const LEAVING_PAUSE: Duration = Duration::from_millis(50);

/// Sends heartbeats until `shutdown` ends: at once, then in the interval that the master
/// returns. A master that is away is logged once and asked again. `report` returns what the server holds, in the fields
/// from `tablets` on; the others are set here. `adopt` is called with the cluster's
/// id when the master names it for the first time, and must make it durable before it returns; `learn` with
/// each response.
///
/// # Errors
/// [`Error::MasterAddress`]; [`Error::Refused`] if the master says that this server is not one of
/// its own (`FAILED_PRECONDITION`); [`Error::Adopt`]. The process should stop then.
pub async fn run<E: Into<BoxError>>(
    options: Options,
    report: impl Fn() -> HeartbeatRequest,
    adopt: impl FnMut(&str) -> Result<(), E>,
    learn: impl FnMut(&HeartbeatResponse),
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    tokio::select! {
        biased;
        () = pin!(shutdown) => Ok(()),
        result = beat(options, report, adopt, learn) => result,
    }
}

/// What was logged last.
enum Announced {
    Nothing,
    Connected,
    /// Why there was no response, and when that was logged.
    Away(String, Instant),
}

impl Announced {
    /// Whether this reason for a missing response is to be logged. A master that is restarted can't be reached at first, and returns then
    /// what is wrong with it.
    fn is_news(&self, why: &str) -> bool {
        match self {
            Self::Nothing | Self::Connected => true,
            Self::Away(known, at) => known != why && at.elapsed() >= ANOTHER_REASON,
        }
    }
}

async fn beat<E: Into<BoxError>>(
    options: Options,
    report: impl Fn() -> HeartbeatRequest,
    mut adopt: impl FnMut(&str) -> Result<(), E>,
    mut learn: impl FnMut(&HeartbeatResponse),
) -> Result<(), Error> {
    let mut master = MasterLink::new(&options.master)?;
    let mut cluster_id = options.cluster_id.clone();
    let mut announced = Announced::Nothing;
    let mut schedule = Schedule::default();
    loop {
        let sent = boot_time();
        let request = HeartbeatRequest {
            accepted: schedule.is_accepted(sent),
            ..request(&options, cluster_id.clone(), report())
        };
        let pause = match master.heartbeat(request).await {
            Ok(response) => {
                options.process.accepted();
                let learned = &response.cluster_id;
                let is_new = !learned.is_empty() && cluster_id.as_ref() != Some(learned);
                if is_new {
                    adopt(learned).map_err(|error| Error::Adopt {
                        master: options.master.clone(),
                        server: options.server.clone(),
                        cluster_id: learned.clone(),
                        cause: error.into(),
                    })?;
                    cluster_id = Some(learned.clone());
                }
                if !matches!(announced, Announced::Connected) {
                    tracing::info!(
                        master = master.addresses.current(),
                        cluster = learned,
                        "the master answers"
                    );
                    announced = Announced::Connected;
                }
                learn(&response);
                schedule.answered(sent, response, is_new)
            }
            Err(NoHeartbeat::AskAnother) => Duration::ZERO,
            Err(NoHeartbeat::Status(status)) if status.code() == Code::FailedPrecondition => {
                return Err(Error::Refused {
                    master: options.master,
                    server: options.server,
                    reason: status.message().to_owned(),
                });
            }
            Err(NoHeartbeat::Status(status)) => {
                if announced.is_news(status.message()) {
                    tracing::warn!(
                        master = options.master,
                        code = ?status.code(),
                        cause = status.message(),
                        "the master does not answer; asking again until it does"
                    );
                    announced = Announced::Away(status.message().to_owned(), Instant::now());
                }
                schedule.unanswered()
            }
        };
        tokio::time::sleep(pause).await;
    }
}

fn request(
    options: &Options,
    cluster_id: Option<String>,
    report: HeartbeatRequest,
) -> HeartbeatRequest {
    HeartbeatRequest {
        cluster_id: cluster_id.unwrap_or_default(),
        role: options.role.into(),
        server: options.server.clone(),
        address: options.address.clone(),
        metrics_address: options
            .metrics_address
            .map(|address| address.to_string())
            .unwrap_or_default(),
        incarnation: options.process.incarnation,
        replaces: options.process.replaces.clone(),
        replaces_accepted: options.process.replaces_accepted,
        ..report
    }
}

/// Gives the lease back: from now on this server answers no request, and another one may take its place at once. Without
/// a response of the master within a moment, that one waits for the lease's end.
pub async fn leave(options: &Options, cluster_id: Option<String>, report: HeartbeatRequest) {
    // It may be waiting for the lease of another one, which it can't give back.
    if !options.process.is_accepted() {
        return;
    }
    let Ok(mut master) = MasterLink::new(&options.master) else {
        return;
    };
    let beat = HeartbeatRequest {
        accepted: true,
        leaving: true,
        ..request(options, cluster_id, report)
    };
    let asked = async {
        loop {
            match master.heartbeat(beat.clone()).await {
                Err(NoHeartbeat::AskAnother) => {}
                Ok(_) => return,
                Err(NoHeartbeat::Status(status)) if leader_of(&status).is_none() => {
                    return tracing::debug!(%status, "the lease is not given back");
                }
                Err(NoHeartbeat::Status(_)) => tokio::time::sleep(LEAVING_PAUSE).await,
            }
        }
    };
    if tokio::time::timeout(LEAVING_MAX, asked).await.is_err() {
        tracing::debug!("the master did not answer: the lease is not given back");
    }
}

/// The way to the master, or to the one of several that leads.
struct MasterLink {
    addresses: MasterAddresses,
    client: MasterClient<Channel>,
    /// Where the client is connected.
    connected: String,
    timeout: Duration,
    /// So many masters in a row gave no heartbeat's answer.
    asked: usize,
}

/// Why a heartbeat has no answer.
enum NoHeartbeat {
    /// Another master may have one: ask at once.
    AskAnother,
    /// All of them were asked, or the leader refuses.
    Status(Status),
}

impl MasterLink {
    fn new(master: &str) -> Result<Self, Error> {
        let addresses: MasterAddresses = master.parse()?;
        let timeout = if addresses.are_several() {
            TIMEOUT_OF_SEVERAL
        } else {
            TIMEOUT
        };
        let connected = addresses.current().to_owned();
        Ok(Self {
            client: connect(&connected, addresses.may_pass(&connected))?,
            connected,
            addresses,
            timeout,
            asked: 0,
        })
    }

    async fn heartbeat(
        &mut self,
        beat: HeartbeatRequest,
    ) -> Result<HeartbeatResponse, NoHeartbeat> {
        let began = Instant::now();
        if self.connected != self.addresses.current() {
            let address = self.addresses.current().to_owned();
            self.client = match connect(&address, self.addresses.may_pass(&address)) {
                Ok(client) => client,
                // A standby has named something else.
                Err(_) => {
                    return Err(self.silent(&address, began, Status::unavailable("no address")));
                }
            };
            self.connected = address;
        }
        let address = self.connected.clone();
        let ours = beat.cluster_id.clone();
        let beaten = tokio::time::timeout(self.timeout, self.client.heartbeat(beat)).await;
        let status = match beaten {
            Ok(Ok(response)) => {
                self.asked = 0;
                self.addresses.answered(response.metadata());
                if self.addresses.are_several() {
                    self.timeout = TIMEOUT_OF_SEVERAL;
                }
                return Ok(response.into_inner());
            }
            Ok(Err(status)) => {
                let theirs = named_cluster(status.metadata());
                let is_another = theirs.is_some_and(|theirs| !ours.is_empty() && theirs != ours);
                if is_another && self.addresses.forget(&address) {
                    return Err(NoHeartbeat::AskAnother);
                }
                self.addresses.learn(status.metadata());
                status
            }
            Err(_) => {
                self.timeout = (self.timeout * 2).min(TIMEOUT);
                let waited = Status::deadline_exceeded("no answer in time");
                return Err(self.silent(&address, began, waited));
            }
        };
        if let Some(leader) = leader_of(&status) {
            let now = Instant::now();
            let follows = self.addresses.not_leading(&address, leader.as_ref(), now);
            return Err(self.unanswered(follows, status));
        }
        // What a server has answered has no source.
        if std::error::Error::source(&status).is_some() {
            return Err(self.silent(&address, began, status));
        }
        Err(NoHeartbeat::Status(status))
    }

    fn silent(&mut self, address: &str, since: Instant, status: Status) -> NoHeartbeat {
        self.addresses.no_answer(address, since, Instant::now());
        self.unanswered(false, status)
    }

    /// Asks on at once, until each was asked and a named leader as well.
    fn unanswered(&mut self, follows: bool, status: Status) -> NoHeartbeat {
        self.asked += 1;
        if self.asked < self.addresses.count() + usize::from(follows) {
            return NoHeartbeat::AskAnother;
        }
        self.asked = 0;
        NoHeartbeat::Status(status)
    }
}

/// A connection that is made with the first request, and again after a loss. `may_pass`: there is another master to ask.
fn connect(master: &str, may_pass: bool) -> Result<MasterClient<Channel>, Error> {
    let endpoint = Endpoint::from_shared(format!("http://{master}")).map_err(|_| {
        let text = master.to_owned();
        NoMasterAddress { text }
    })?;
    let channel = endpoint
        .connect_timeout(if may_pass {
            CONNECT_TO_SEVERAL
        } else {
            TIMEOUT
        })
        .timeout(TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true)
        .connect_lazy();
    Ok(MasterClient::new(channel))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_reason_is_told_and_the_same_one_is_not() {
        let now = Instant::now();
        let before = now.checked_sub(ANOTHER_REASON).expect("some uptime");
        let why = "connection refused";
        let away = |at| Announced::Away(why.to_owned(), at);
        assert!(Announced::Nothing.is_news(why) && Announced::Connected.is_news(why));
        assert!(!away(before).is_news(why));
        assert!(away(before).is_news("its state was lost"));
        assert!(!away(now).is_news("its state was lost"));
    }
}
