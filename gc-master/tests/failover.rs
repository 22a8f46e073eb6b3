//! Real masters that share their registers: leaders are killed, stand still and go on, and hand over. Tables that were
//! answered are kept with their ids, no id comes twice, and the read barrier never goes back.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::pending;
use std::path::Path;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use percolator_client::{Admin, Client, GcChange};
use percolator_protocol::types::Timestamp;
use percolator_server::{Incarnation, heartbeat};
use percolator_wire::v1::master_client::MasterClient;
use percolator_wire::v1::oracle_server::{Oracle, OracleServer};
use percolator_wire::v1::tablets_server::{Tablets, TabletsServer};
use percolator_wire::{leader_of, v1};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio_stream::{Stream, StreamExt};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status, Streaming};

const MASTERS: usize = 3;
/// Longer than anything here takes on a loaded machine.
const BOUND: Duration = Duration::from_secs(60);
/// How leaders end, again and again.
const FAULTS: [Fault; 8] = [
    Fault::HandOver,
    Fault::Kill,
    Fault::Stop,
    Fault::HandOver,
    Fault::Stop,
    Fault::Kill,
    Fault::HandOver,
    Fault::Stop,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Fault {
    /// SIGKILL, and a new process.
    Kill,
    /// SIGSTOP, and SIGCONT after the takeover.
    Stop,
    /// SIGTERM, and a new process.
    HandOver,
}

/// A server that owns what it is told to, serves nothing, and grants timestamps.
#[derive(Clone, Default)]
struct FakeServer {
    owned: Arc<Mutex<BTreeMap<u64, v1::TabletInfo>>>,
    granted: Arc<AtomicU64>,
    /// The highest barrier that it was told.
    barrier: Arc<AtomicU64>,
    /// A later answer had a lower one.
    has_gone_back: Arc<AtomicBool>,
}

type Stamps = Pin<Box<dyn Stream<Item = Result<v1::TimestampsResponse, Status>> + Send>>;

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
    fn start(role: v1::Role, server: &str, masters: String) -> Self {
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
            life: Incarnation::without_folder(),
        };
        let of = fake.clone();
        let peers = Arc::<Mutex<Vec<String>>>::default();
        let known = peers.clone();
        let report = move || match role {
            v1::Role::Oracle => v1::HeartbeatRequest {
                time: now(),
                high_ts: now(),
                ..v1::HeartbeatRequest::default()
            },
            _ => v1::HeartbeatRequest {
                tablets: of.owned.lock().unwrap().values().cloned().collect(),
                peers: known.lock().unwrap().clone(),
                barrier: of.barrier.load(Ordering::SeqCst),
                lists_version: 1,
                ..v1::HeartbeatRequest::default()
            },
        };
        let told = fake.clone();
        tokio::spawn(async move {
            let adopt = |_: &str| Ok::<(), Status>(());
            let learn = |heard: &v1::HeartbeatResponse| {
                if !heard.tablet_servers.is_empty() {
                    peers.lock().unwrap().clone_from(&heard.tablet_servers);
                }
                if told.barrier.swap(heard.barrier, Ordering::SeqCst) > heard.barrier {
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
struct Masters {
    folder: tempfile::TempDir,
    processes: Vec<Child>,
    addresses: Vec<String>,
}

impl Masters {
    async fn start() -> Self {
        let mut masters = Self {
            folder: tempfile::tempdir().unwrap(),
            processes: Vec::new(),
            addresses: Vec::new(),
        };
        for number in 0..MASTERS {
            let folder = masters.folder.path();
            let (process, address) = start(folder, number, "127.0.0.1:0").await;
            masters.processes.push(process);
            masters.addresses.push(address);
        }
        masters
    }

    fn signal(&self, number: usize, signal: &str) {
        let pid = self.processes[number].id().unwrap().to_string();
        let sent = std::process::Command::new("kill")
            .args([&format!("-{signal}"), &pid])
            .status();
        assert!(sent.unwrap().success());
    }

    /// SIGSTOP, but not within a swap: a register in a file has a lock of the system, and nobody else swaps before the process
    /// that holds it goes on (`docs/design/failover.md`).
    async fn stop(&self, number: usize) {
        let register = self.folder.path().join("register");
        loop {
            self.signal(number, "STOP");
            tokio::time::sleep(Duration::from_millis(5)).await;
            let is_free = |lock: &str| {
                let lock = std::fs::File::open(register.join(lock)).unwrap();
                lock.try_lock().is_ok()
            };
            if is_free("master.lock") && is_free("master-state.lock") {
                return;
            }
            self.signal(number, "CONT");
        }
    }

    async fn restart(&mut self, number: usize) {
        self.processes[number].wait().await.unwrap();
        let address = &self.addresses[number];
        self.processes[number] = start(self.folder.path(), number, address).await.0;
    }

    /// The one that answers, other than `not`.
    async fn leader(&self, not: Option<usize>) -> usize {
        let found = async {
            loop {
                for number in (0..MASTERS).filter(|number| Some(*number) != not) {
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

fn name(number: usize) -> String {
    format!("gc-master-{number}")
}

/// Starts a process, and waits until it listens.
async fn start(folder: &Path, number: usize, listen: &str) -> (Child, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_percolator-gc-master"));
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

fn connect(address: &str) -> MasterClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    MasterClient::new(endpoint.connect_lazy())
}

fn table(name: &str) -> v1::CreateTableRequest {
    v1::CreateTableRequest {
        name: name.to_owned(),
        split_at: Vec::new(),
    }
}

/// Creates tables, one after the other, until it is stopped. By name: the id that was answered.
async fn create_tables(
    which: usize,
    addresses: Vec<String>,
    stop: Arc<AtomicBool>,
) -> BTreeMap<String, u32> {
    let mut created = BTreeMap::new();
    let mut address = addresses[which % MASTERS].clone();
    for number in 0.. {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        // By itself, so that an answer that comes late is taken for what it is.
        let name = format!("t{which}-{number}");
        let mut master = connect(&address);
        let asked = master.create_table(table(&name));
        match tokio::time::timeout(Duration::from_secs(8), asked).await {
            Ok(Ok(answer)) => {
                let table = answer.into_inner().table.unwrap();
                created.insert(name, table.id);
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
            Ok(Err(status)) => {
                let leader = leader_of(&status).flatten();
                address = leader.map_or_else(
                    || addresses[number % MASTERS].clone(),
                    |leader| leader.address,
                );
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(_) => address = addresses[number % MASTERS].clone(),
        }
    }
    created
}

/// One takeover, and how long it took until another master answered.
async fn take_over(masters: &mut Masters, fault: Fault, round: usize) -> Duration {
    let leader = masters.leader(None).await;
    let began = Instant::now();
    match fault {
        Fault::Kill => masters.signal(leader, "KILL"),
        Fault::Stop => masters.stop(leader).await,
        Fault::HandOver => masters.signal(leader, "TERM"),
    }
    // It is asked while it stands still, and answers when it goes on.
    let late_name = format!("late-{round}");
    let late = {
        let mut master = connect(&masters.addresses[leader]);
        let request = table(&late_name);
        tokio::spawn(async move { master.create_table(request).await })
    };
    let next = masters.leader(Some(leader)).await;
    let took = began.elapsed();
    eprintln!(
        "{fault:?} of {}: {} leads after {took:?}",
        name(leader),
        name(next)
    );
    match fault {
        Fault::Stop => {
            masters.signal(leader, "CONT");
            let late = tokio::time::timeout(BOUND, late).await.unwrap().unwrap();
            let refused = late.expect_err("the old leader answered after its right had ended");
            assert!(leader_of(&refused).is_some(), "{refused}");
        }
        Fault::Kill | Fault::HandOver => masters.restart(leader).await,
    }
    took
}

#[tokio::test]
async fn tables_and_points_are_kept_over_takeovers() {
    let mut masters = Masters::start().await;
    let list = masters.addresses.join(",");
    let oracle = FakeServer::start(v1::Role::Oracle, "tso-0", list.clone());
    let tablets: Vec<FakeServer> = (0..2)
        .map(|number| {
            FakeServer::start(v1::Role::Tablet, &format!("tablet-{number}"), list.clone())
        })
        .collect();
    let admin = Admin::connect(&list).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let creators: Vec<_> = (0..3)
        .map(|which| {
            let addresses = masters.addresses.clone();
            tokio::spawn(create_tables(which, addresses, stop.clone()))
        })
        .collect();
    let mut took: HashMap<Fault, Vec<u128>> = HashMap::new();
    for (round, fault) in FAULTS.into_iter().enumerate() {
        let retention = Duration::from_secs(1 + round as u64);
        let change = GcChange {
            retention: Some(retention),
            ..GcChange::default()
        };
        admin.set_gc(change).await.unwrap();
        let barrier = oracle.barrier.load(Ordering::SeqCst);
        let gap = take_over(&mut masters, fault, round).await;
        took.entry(fault).or_default().push(gap.as_millis());
        // A second for the clock of a standby, and what a loaded machine takes.
        assert!(gap < Duration::from_secs(15), "{fault:?} took {gap:?}");
        let status = admin.gc_status().await.unwrap();
        assert_eq!(status.retention, retention);
        assert!(status.barrier.as_u64() >= barrier, "{status:?}");
    }
    // Collection goes on under the last leader.
    let barrier = oracle.barrier.load(Ordering::SeqCst);
    let moved = async {
        while oracle.barrier.load(Ordering::SeqCst) <= barrier {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(BOUND, moved)
        .await
        .expect("the barrier moves");
    stop.store(true, Ordering::SeqCst);
    let mut created = BTreeMap::new();
    for creator in creators {
        created.extend(creator.await.unwrap());
    }
    let client = Client::connect(&list).await.unwrap();
    let tables = client.cluster().await.unwrap().tables;
    let kept: BTreeMap<&str, u32> = tables.iter().map(|it| (&*it.name, it.id)).collect();
    assert!(
        created.len() > 50,
        "only {} tables were created",
        created.len()
    );
    for (name, id) in &created {
        assert_eq!(kept.get(&**name), Some(id), "{name}");
    }
    let ids: BTreeSet<u32> = tables.iter().map(|table| table.id).collect();
    assert_eq!(ids.len(), tables.len());
    for fake in tablets.iter().chain([&oracle]) {
        assert!(!fake.has_gone_back.load(Ordering::SeqCst));
    }
    let mut took: Vec<_> = took.into_iter().collect();
    took.sort();
    eprintln!("{} tables; takeovers in ms: {took:?}", created.len());
}

/// A master that has a register, and is the only one, doesn't wait for its own dead process.
#[tokio::test]
async fn a_master_takes_over_from_its_own_dead_process() {
    let folder = tempfile::tempdir().unwrap();
    let (mut process, address) = start(folder.path(), 0, "127.0.0.1:0").await;
    let client = Client::connect(&address).await;
    let cluster_id = client.unwrap().cluster_id().await.unwrap();
    process.kill().await.unwrap();
    let (_process, address) = start(folder.path(), 0, &address).await;
    let began = Instant::now();
    let client = Client::connect(&address).await.unwrap();
    assert_eq!(client.cluster_id().await.unwrap(), cluster_id);
    eprintln!("it served after {:?}", began.elapsed());
}

/// As one address stands for all masters, that of a service of Kubernetes.
#[tokio::test]
async fn a_client_that_knows_a_standby_alone_finds_the_leader() {
    let mut masters = Masters::start().await;
    let leader = masters.leader(None).await;
    let standby = (leader + 1) % MASTERS;
    let client = Client::connect(&masters.addresses[standby]).await.unwrap();
    let cluster_id = client.cluster_id().await.unwrap();
    masters.processes[leader].kill().await.unwrap();
    let now = masters.leader(Some(leader)).await;
    // The standby that it knows either leads by now, or names the leader.
    assert_eq!(client.cluster_id().await.unwrap(), cluster_id);
    assert_eq!(client.cluster().await.unwrap().master, name(now));
}
