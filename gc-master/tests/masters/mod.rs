//! Real masters that share their registers, and servers that do what they are told.

use std::collections::BTreeMap;
use std::future::pending;
use std::path::Path;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use percolator_protocol::types::Timestamp;
use percolator_server::{Incarnation, heartbeat};
use percolator_wire::v1;
use percolator_wire::v1::master_client::MasterClient;
use percolator_wire::v1::oracle_server::{Oracle, OracleServer};
use percolator_wire::v1::tablets_server::{Tablets, TabletsServer};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio_stream::{Stream, StreamExt};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status, Streaming};

/// Longer than anything here takes on a loaded machine.
pub(crate) const BOUND: Duration = Duration::from_secs(60);

/// A server that owns what it is told to, serves nothing, and grants timestamps.
#[derive(Clone, Default)]
pub(crate) struct FakeServer {
    pub(crate) owned: Arc<Mutex<BTreeMap<u64, v1::TabletInfo>>>,
    granted: Arc<AtomicU64>,
    /// The highest barrier that it was told.
    pub(crate) barrier: Arc<AtomicU64>,
    /// A later answer had a lower one.
    pub(crate) has_gone_back: Arc<AtomicBool>,
}

pub(crate) type Stamps = Pin<Box<dyn Stream<Item = Result<v1::TimestampsResponse, Status>> + Send>>;

#[tonic::async_trait]
impl Oracle for FakeServer {
    type TimestampsStream = Stamps;

    async fn timestamps(
        &self,
        request: Request<Streaming<v1::TimestampsRequest>>,
    ) -> Result<Response<Stamps>, Status> {
        let granted = self.granted.clone();
        let answers = request.into_inner().map(move |request| {
            let count = request?.count;
            let first = now().max(granted.load(Ordering::SeqCst) + 1);
            granted.store(first + u64::from(count), Ordering::SeqCst);
            Ok(v1::TimestampsResponse { first, count })
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

fn now() -> u64 {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Timestamp::from_millis(u64::try_from(unix.as_millis()).unwrap()).as_u64()
}

#[tonic::async_trait]
impl Tablets for FakeServer {
    type ServeStream = tokio_stream::Empty<Result<v1::ResponsePack, Status>>;

    async fn serve(
        &self,
        _: Request<Streaming<v1::RequestPack>>,
    ) -> Result<Response<Self::ServeStream>, Status> {
        Err(Status::unimplemented("a fake"))
    }

    async fn create_tablet(
        &self,
        request: Request<v1::CreateTabletRequest>,
    ) -> Result<Response<v1::CreateTabletResponse>, Status> {
        let tablet = request.into_inner().tablet.expect("the tablet is set");
        self.owned.lock().unwrap().insert(tablet.id, tablet);
        Ok(Response::new(v1::CreateTabletResponse { groups: 0 }))
    }

    async fn split_tablet(
        &self,
        _: Request<v1::SplitTabletRequest>,
    ) -> Result<Response<v1::SplitTabletResponse>, Status> {
        Err(Status::unimplemented("nothing is split here"))
    }

    async fn merge_tablets(
        &self,
        _: Request<v1::MergeTabletsRequest>,
    ) -> Result<Response<v1::MergeTabletsResponse>, Status> {
        Err(Status::unimplemented("nothing is merged here"))
    }

    async fn import_tablet(
        &self,
        _: Request<v1::ImportTabletRequest>,
    ) -> Result<Response<v1::ImportTabletResponse>, Status> {
        Err(Status::unimplemented("nothing is handed over here"))
    }

    async fn drop_tablet(
        &self,
        request: Request<v1::DropTabletRequest>,
    ) -> Result<Response<v1::DropTabletResponse>, Status> {
        let id = request.into_inner().tablet_id;
        self.owned.lock().unwrap().remove(&id);
        Ok(Response::new(v1::DropTabletResponse { groups: 0 }))
    }
}

impl FakeServer {
    /// Serves and sends heartbeats until the test's runtime ends.
    pub(crate) fn start(role: v1::Role, server: &str, masters: String) -> Self {
        let fake = Self::default();
        let local = "127.0.0.1:0".parse().unwrap();
        let (listener, address) = percolator_server::listen(local).unwrap();
        let (tablets, oracle) = (fake.clone(), fake.clone());
        tokio::spawn(async move {
            let stop = pending();
            match role {
                v1::Role::Oracle => {
                    let service = OracleServer::new(oracle);
                    percolator_server::serve(listener, service, Duration::ZERO, stop).await
                }
                _ => {
                    let service = TabletsServer::new(tablets);
                    percolator_server::serve(listener, service, Duration::ZERO, stop).await
                }
            }
        });
        let options = heartbeat::Options {
            master: masters,
            role,
            server: server.to_owned(),
            address: address.to_string(),
            metrics_address: None,
            cluster_id: None,
            process: Incarnation::without_folder(),
        };
        let of = fake.clone();
        let report = move || match role {
            v1::Role::Oracle => v1::HeartbeatRequest {
                time: now(),
                high_ts: now(),
                ..v1::HeartbeatRequest::default()
            },
            _ => v1::HeartbeatRequest {
                tablets: of.owned.lock().unwrap().values().cloned().collect(),
                barrier: of.barrier.load(Ordering::SeqCst),
                lists_version: 1,
                ..v1::HeartbeatRequest::default()
            },
        };
        let told = fake.clone();
        tokio::spawn(async move {
            let adopt = |_: &str| Ok::<(), Status>(());
            let learn = |reply: &v1::HeartbeatResponse| {
                if told.barrier.swap(reply.barrier, Ordering::SeqCst) > reply.barrier {
                    told.has_gone_back.store(true, Ordering::SeqCst);
                }
            };
            heartbeat::run(options, report, adopt, learn, pending())
                .await
                .expect("the master takes the heartbeats");
        });
        fake
    }
}

/// The masters' processes, by number, each always at the same address.
pub(crate) struct Masters {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) processes: Vec<Child>,
    pub(crate) addresses: Vec<String>,
}

impl Masters {
    /// So many, of which number 0 begins the cluster, and leads.
    pub(crate) async fn start(count: usize) -> Self {
        let mut masters = Self {
            folder: tempfile::tempdir().unwrap(),
            processes: Vec::new(),
            addresses: Vec::new(),
        };
        for number in 0..count {
            let folder = masters.folder.path();
            let (process, address) = start(folder, number, "127.0.0.1:0").await;
            masters.processes.push(process);
            masters.addresses.push(address);
            if number == 0 {
                masters.leader(None).await;
            }
        }
        masters
    }

    pub(crate) fn signal(&self, number: usize, signal: &str) {
        let pid = self.processes[number].id().unwrap().to_string();
        let sent = std::process::Command::new("kill")
            .args([&format!("-{signal}"), &pid])
            .status();
        assert!(sent.unwrap().success());
    }

    /// SIGSTOP, at any moment: also within a swap nobody waits for the process.
    pub(crate) fn stop(&self, number: usize) {
        self.signal(number, "STOP");
    }

    pub(crate) async fn restart(&mut self, number: usize) {
        self.processes[number].wait().await.unwrap();
        let address = &self.addresses[number];
        self.processes[number] = start(self.folder.path(), number, address).await.0;
    }

    /// The one that answers, other than `not`.
    pub(crate) async fn leader(&self, not: Option<usize>) -> usize {
        let found = async {
            loop {
                for number in (0..self.addresses.len()).filter(|number| Some(*number) != not) {
                    let mut master = connect(&self.addresses[number]);
                    let asked = master.directory(v1::DirectoryRequest::default());
                    let asked = tokio::time::timeout(Duration::from_millis(500), asked).await;
                    if let Ok(Ok(answer)) = asked {
                        assert_eq!(answer.into_inner().master, name(number));
                        return number;
                    }
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let found = tokio::time::timeout(BOUND, found).await;
        found.expect("a master leads in time")
    }
}

pub(crate) fn name(number: usize) -> String {
    format!("master-{number}")
}

/// Starts a process, and waits until it listens.
pub(crate) async fn start(folder: &Path, number: usize, listen: &str) -> (Child, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_percolator-master"));
    command
        .arg("--data-dir")
        .arg(folder.join(name(number)))
        .args(["--server", &name(number), "--listen", listen])
        .arg("--register")
        .arg(format!("file:{}", folder.join("register").display()))
        .env("PERCOLATOR_LOG", "warn")
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    if number == 0 {
        command.arg("--new-cluster");
    }
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = tokio::time::timeout(BOUND, lines.next_line()).await;
    let line = line.expect("it starts in time").unwrap().expect("a line");
    let address = line.strip_prefix("listening on ").unwrap().to_owned();
    (child, address)
}

pub(crate) fn connect(address: &str) -> MasterClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    MasterClient::new(endpoint.connect_lazy())
}

pub(crate) fn table(name: &str) -> v1::CreateTableRequest {
    v1::CreateTableRequest {
        name: name.to_owned(),
        split_at: Vec::new(),
    }
}
