//! The real master over gRPC, with tablet servers that only remember what they own.

use std::collections::BTreeMap;
use std::future::pending;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::startup::options;
use percolator_gc_master::{Options, Server};
use percolator_wire::v1;
use percolator_wire::v1::master_client::MasterClient;
use percolator_wire::v1::tablets_server::{Tablets, TabletsServer};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::Semaphore;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status, Streaming};

/// Longer than anything here takes on a loaded machine.
const BOUND: Duration = Duration::from_secs(60);

type Owned = Arc<Mutex<BTreeMap<u64, v1::TabletInfo>>>;

/// A tablet server that owns tablets, and serves nothing.
#[derive(Clone)]
struct FakeTablets {
    owned: Owned,
    /// A permit for each tablet that it makes; without one it keeps the master waiting.
    permits: Arc<Semaphore>,
}

#[tonic::async_trait]
impl Tablets for FakeTablets {
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
        self.permits.acquire().await.expect("never closed").forget();
        let mut owned = self.owned.lock().unwrap();
        let state = tablet.state();
        let owned = owned.entry(tablet.id).or_insert(tablet);
        owned.set_state(state.max(owned.state()));
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

struct Fake {
    name: String,
    address: SocketAddr,
    owned: Owned,
    permits: Arc<Semaphore>,
}

impl Fake {
    /// Serves until the test's runtime ends; it does not send heartbeats yet.
    async fn start(name: &str) -> Self {
        let (listener, address) =
            percolator_server::listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let owned = Owned::default();
        let permits = Arc::new(Semaphore::new(Semaphore::MAX_PERMITS));
        let service = TabletsServer::new(FakeTablets {
            owned: owned.clone(),
            permits: permits.clone(),
        });
        tokio::spawn(percolator_server::serve(
            listener,
            service,
            Duration::ZERO,
            pending(),
        ));
        Self {
            name: name.into(),
            address,
            owned,
            permits,
        }
    }

    /// From now on it makes so many tablets, and no more.
    fn allow(&self, tablets: usize) {
        self.permits.forget_permits(Semaphore::MAX_PERMITS);
        self.permits.add_permits(tablets);
    }

    /// Sends heartbeats, with its address and what it owns, until the test's runtime ends.
    fn beat(&self, master: SocketAddr, cluster_id: Option<String>) {
        let mut life = percolator_server::Incarnation::without_folder();
        // On the machine of the one before.
        life.replaces.push(1);
        life.replaces_accepted = true;
        let options = percolator_server::heartbeat::Options {
            master: master.to_string(),
            role: v1::Role::Tablet,
            server: self.name.clone(),
            address: self.address.to_string(),
            metrics_address: None,
            cluster_id,
            process: life,
        };
        let owned = self.owned.clone();
        let report = move || v1::HeartbeatRequest {
            tablets: owned.lock().unwrap().values().cloned().collect(),
            lists_version: 1,
            ..v1::HeartbeatRequest::default()
        };
        tokio::spawn(async move {
            let adopt = |_: &str| Ok::<(), Status>(());
            let learn = |_: &v1::HeartbeatResponse| {};
            percolator_server::heartbeat::run(options, report, adopt, learn, pending())
                .await
                .expect("the master takes the heartbeats");
        });
    }

    fn ids(&self) -> Vec<u64> {
        self.owned.lock().unwrap().keys().copied().collect()
    }
}

fn connect(master: SocketAddr) -> MasterClient<Channel> {
    let endpoint = Channel::from_shared(format!("http://{master}")).unwrap();
    MasterClient::new(endpoint.connect_lazy())
}

/// Asks until the directory is as wanted.
async fn wait_for(
    master: &mut MasterClient<Channel>,
    what: &str,
    wanted: impl Fn(&v1::DirectoryResponse) -> bool,
) -> v1::DirectoryResponse {
    let mut last = None;
    let reached = async {
        loop {
            let answer = master.directory(v1::DirectoryRequest::default()).await;
            match answer.map(Response::into_inner) {
                Ok(directory) if wanted(&directory) => return directory,
                other => last = Some(other),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    match tokio::time::timeout(BOUND, reached).await {
        Ok(directory) => directory,
        Err(_) => panic!("{what} did not come true; last seen: {last:#?}"),
    }
}

fn alive(directory: &v1::DirectoryResponse) -> usize {
    directory
        .servers
        .iter()
        .filter(|server| server.alive)
        .count()
}

fn create(name: &str, cuts: &[&'static str]) -> v1::CreateTableRequest {
    v1::CreateTableRequest {
        name: name.into(),
        split_at: cuts.iter().map(|cut| cut.as_bytes().into()).collect(),
    }
}

async fn in_process(data_dir: &Path, new_cluster: bool) -> SocketAddr {
    let server = Server::bind(Options {
        new_cluster,
        ..options(data_dir)
    })
    .await
    .unwrap();
    let address = server.address();
    tokio::spawn(server.run(pending()));
    address
}

#[tokio::test]
async fn tables_are_created_and_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let address = in_process(folder.path(), true).await;
    let mut master = connect(address);
    let fakes = [Fake::start("tablet-0").await, Fake::start("tablet-1").await];

    let refused = master.create_table(create("a", &[])).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert_eq!(
        refused.message(),
        "no tablet server is up to hold the table: none has ever sent a heartbeat"
    );
    for fake in &fakes {
        fake.beat(address, None);
    }
    let directory = wait_for(&mut master, "both up", |seen| alive(seen) == 2).await;
    assert_eq!(directory.cluster_id.len(), 32);
    assert_eq!(directory.servers[1].server, "tablet-1");
    assert_eq!(directory.servers[1].address, fakes[1].address.to_string());

    let created = master.create_table(create("a", &["g", "p"])).await.unwrap();
    let created = created.into_inner();
    let table = created.table.unwrap();
    assert_eq!(table.name, "a");
    assert_eq!(table.state(), v1::TableState::Ready);
    let starts: Vec<_> = created
        .tablets
        .iter()
        .map(|place| place.tablet.as_ref().unwrap().start_row.clone())
        .collect();
    assert_eq!(starts, ["", "g", "p"]);
    let ids: Vec<u64> = created
        .tablets
        .iter()
        .map(|place| place.tablet.as_ref().unwrap().id)
        .collect();
    assert_eq!(fakes[0].ids(), [ids[0], ids[2]]);
    assert_eq!(fakes[1].ids(), [ids[1]]);
    let seen = master
        .directory(v1::DirectoryRequest::default())
        .await
        .unwrap();
    assert_eq!(seen.into_inner().tablets, created.tablets);

    let again = master.create_table(create("a", &["g", "p"])).await;
    assert_eq!(again.unwrap_err().code(), Code::AlreadyExists);
    let wrong = master.create_table(create("A", &[])).await;
    assert_eq!(wrong.unwrap_err().code(), Code::InvalidArgument);

    let delete = v1::DeleteTableRequest {
        name: "a".into(),
        ..v1::DeleteTableRequest::default()
    };
    let deleted = master.delete_table(delete.clone()).await.unwrap();
    let deleted = deleted.into_inner();
    assert_eq!(deleted.table.as_ref().unwrap().id, table.id);
    for fake in &fakes {
        let owned = fake.owned.lock().unwrap();
        assert!(!owned.is_empty());
        let mut states = owned.values().map(v1::TabletInfo::state);
        assert!(states.all(|state| state == v1::TabletState::Frozen));
    }
    // Until its servers have reported their tablets once, the same deletion is meant.
    let again = loop {
        match master.delete_table(delete.clone()).await {
            Ok(same) => assert_eq!(same.into_inner().table.unwrap().id, table.id),
            Err(refused) => break refused,
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(again.code(), Code::NotFound);
    assert_eq!(again.message(), "there is no table a");
    let same_name = master.create_table(create("a", &[])).await.unwrap();
    assert_ne!(same_name.into_inner().table.unwrap().id, table.id);
}

#[tokio::test]
async fn a_master_without_a_state_waits_until_it_is_rebuilt() {
    let folder = tempfile::tempdir().unwrap();
    let address = in_process(folder.path(), false).await;
    let mut master = connect(address);
    let refused = master
        .directory(v1::DirectoryRequest::default())
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains("--new-cluster"), "{refused}");

    let fake = Fake::start("tablet-0").await;
    let tablet = v1::TabletInfo {
        id: 7,
        table_id: 3,
        table_name: "kept".into(),
        epoch: 2,
        state: v1::TabletState::Serving.into(),
        ..v1::TabletInfo::default()
    };
    fake.owned.lock().unwrap().insert(7, tablet);
    fake.beat(address, Some("c0ffee".into()));
    let request = v1::RebuildRequest {
        tablet_servers: vec!["tablet-0".into()],
        write: true,
        accept_data_loss: true,
    };
    loop {
        let rebuilt = master.rebuild(request.clone()).await.unwrap();
        if rebuilt.into_inner().written {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let refused = master.rebuild(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("cluster c0ffee"), "{refused}");
    let seen = wait_for(&mut master, "the table is back", |seen| {
        seen.tables
            .iter()
            .any(|table| table.state() == v1::TableState::Ready)
    })
    .await;
    assert_eq!(seen.cluster_id, "c0ffee");
    assert_eq!(seen.tables[0].name, "kept");

    let other = v1::HeartbeatRequest {
        cluster_id: "decaf".into(),
        role: v1::Role::Tablet.into(),
        server: "tablet-1".into(),
        address: "127.0.0.1:1".into(),
        incarnation: 1,
        tablets: Vec::new(),
        lists_version: 1,
        ..v1::HeartbeatRequest::default()
    };
    let refused = master.heartbeat(other).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert_eq!(
        refused.message(),
        "tablet-1 belongs to cluster decaf, and this is the master of cluster c0ffee: start tablet-1 with that one's master, \
         or with an empty folder to join this one. If the other one's state was lost, see `percolator master rebuild`"
    );
}

#[tokio::test]
async fn a_master_that_cannot_write_its_state_stops_and_shows_nothing_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::bind(options(folder.path())).await.unwrap();
    let mut master = connect(server.address());
    let running = tokio::spawn(server.run(pending()));
    master
        .directory(v1::DirectoryRequest::default())
        .await
        .unwrap();
    folder.close().unwrap();
    let beat = v1::HeartbeatRequest {
        role: v1::Role::Oracle.into(),
        server: "oracle-0".into(),
        address: "127.0.0.1:1".into(),
        ..v1::HeartbeatRequest::default()
    };
    let refused = master.heartbeat(beat).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    let stopped = tokio::time::timeout(BOUND, running).await;
    let error = stopped.expect("it stops in time").unwrap().unwrap_err();
    assert!(error.to_string().contains("directory"), "{error}");
}

struct Process {
    child: Child,
    address: SocketAddr,
}

/// Starts the real program; it listens when this returns.
async fn process(data_dir: &Path, listen: &str, new_cluster: bool) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_percolator-master"));
    command.arg("--data-dir").arg(data_dir);
    command.args(["--listen", listen]);
    if new_cluster {
        command.arg("--new-cluster");
    }
    command
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = tokio::time::timeout(BOUND, lines.next_line()).await;
    let line = line.expect("it starts in time").unwrap().expect("a line");
    let address = line.strip_prefix("listening on ").expect(&line);
    Process {
        address: address.parse().unwrap(),
        child,
    }
}

const TABLES_A_ROUND: usize = 20;

/// Kills the master again and again while tables are created: none is half there, none is lost
/// that was answered, and no id is given twice.
#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one story, told in its order")]
async fn a_killed_master_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let mut running = process(folder.path(), "127.0.0.1:0", true).await;
    let address = running.address;
    let listen = address.to_string();
    let mut master = connect(address);
    let mut fakes = Vec::new();
    for index in 0..3 {
        let fake = Fake::start(&format!("tablet-{index}")).await;
        fake.beat(address, None);
        fakes.push(fake);
    }
    wait_for(&mut master, "all up", |seen| alive(seen) == 3).await;

    let mut answered = BTreeMap::new();
    let mut tables = 0;
    for round in 0..4 {
        fakes.iter().for_each(|fake| fake.allow(round * 5));
        let mut creating = tokio::task::JoinSet::new();
        for _ in 0..TABLES_A_ROUND {
            let name = format!("t{tables}");
            tables += 1;
            let mut master = master.clone();
            creating.spawn(async move {
                loop {
                    match master.create_table(create(&name, &["g", "p"])).await {
                        // This process stood still for longer than servers may be silent.
                        Err(refused) if refused.message().starts_with("no tablet server is up") => {
                            tokio::time::sleep(Duration::from_millis(10)).await;
                        }
                        answered => return answered,
                    }
                }
            });
        }
        // Each server is to make 20 tablets, or fewer if it was silent for a moment. The kill comes when every
        // table is known, and no server makes another tablet.
        wait_for(&mut master, "the middle", |seen| {
            let is_done = |fake: &Fake| {
                let owned = fake.owned.lock().unwrap();
                let is_made = |place: &v1::TabletPlace| {
                    let tablet = place.tablet.as_ref().expect("the tablet is set");
                    place.server != fake.name || owned.contains_key(&tablet.id)
                };
                fake.permits.available_permits() == 0 || seen.tablets.iter().all(is_made)
            };
            let is_owned = |place: &v1::TabletPlace| {
                let id = place.tablet.as_ref().expect("the tablet is set").id;
                fakes.iter().any(|fake| fake.ids().contains(&id))
            };
            // Its client can have had an answer.
            let is_ready_or_partial = |table: &v1::TableInfo| {
                let of_table = |place: &&v1::TabletPlace| {
                    let tablet = place.tablet.as_ref().expect("the tablet is set");
                    tablet.table_id == table.id
                };
                let mut places = seen.tablets.iter().filter(of_table);
                table.state() == v1::TableState::Ready || !places.all(is_owned)
            };
            seen.tables.len() == tables
                && fakes.iter().all(is_done)
                && seen.tables.iter().all(is_ready_or_partial)
        })
        .await;
        running.child.start_kill().unwrap();
        running.child.wait().await.unwrap();
        let mut cut_off = 0;
        while let Some(created) = creating.join_next().await {
            match created.unwrap() {
                Ok(created) => {
                    let table = created.into_inner().table.unwrap();
                    answered.insert(table.name, table.id);
                }
                Err(_) => cut_off += 1,
            }
        }
        assert!(cut_off > 0, "round {round}: the kill came too late");
        fakes.iter().for_each(|fake| fake.allow(1_000));
        running = process(folder.path(), &listen, false).await;
        wait_for(&mut master, "every table ready", |seen| {
            let is_ready = |table: &v1::TableInfo| table.state() == v1::TableState::Ready;
            alive(seen) == 3 && seen.tables.len() == tables && seen.tables.iter().all(is_ready)
        })
        .await;
    }

    let seen = master
        .directory(v1::DirectoryRequest::default())
        .await
        .unwrap();
    let seen = seen.into_inner();
    assert!(!answered.is_empty());
    for (name, id) in &answered {
        let found = seen.tables.iter().find(|table| table.name == *name);
        assert_eq!(found.map(|table| table.id), Some(*id), "{name}");
    }
    assert_eq!(seen.tablets.len(), seen.tables.len() * 3);
    for fake in &fakes {
        let mut places: Vec<u64> = seen
            .tablets
            .iter()
            .filter(|place| place.server == fake.name)
            .map(|place| place.tablet.as_ref().unwrap().id)
            .collect();
        places.sort_unstable();
        assert_eq!(fake.ids(), places, "{}", fake.name);
    }
}

#[tokio::test]
async fn asked_to_stop_it_ends_well() {
    let folder = tempfile::tempdir().unwrap();
    let mut running = process(folder.path(), "127.0.0.1:0", true).await;
    let id = running.child.id().unwrap().to_string();
    let kill = Command::new("kill").arg(id).status().await.unwrap();
    assert!(kill.success());
    let status = tokio::time::timeout(BOUND, running.child.wait()).await;
    assert!(status.expect("it stops in time").unwrap().success());
}
