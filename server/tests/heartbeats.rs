//! Heartbeats against a master that is away, comes, and refuses.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use percolator_server::heartbeat::{self, Options};
use percolator_server::{Error, Incarnation, listen, serve};
use percolator_wire::v1::master_server::{Master, MasterServer};
use percolator_wire::v1::{
    CreateTableRequest, CreateTableResponse, DeleteTableRequest, DeleteTableResponse,
    DirectoryRequest, DirectoryResponse, DrainServersRequest, DrainServersResponse,
    GcStatusRequest, GcStatusResponse, HeartbeatRequest, HeartbeatResponse, IntroduceProxyRequest,
    IntroduceProxyResponse, LocateRequest, LocateResponse, MergeTableRequest, MergeTableResponse,
    MoveTabletRequest, MoveTabletResponse, RebuildRequest, RebuildResponse, ReleaseGcLockRequest,
    ReleaseGcLockResponse, Role, SessionRequest, SessionResponse, SetGcRequest, SetGcResponse,
    SplitTableRequest, SplitTableResponse, TabletInfo, TransactionsRequest, TransactionsResponse,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tonic::{Request, Response, Status};

/// Answers beats with cluster "c1", or refuses those of other clusters; passes on what came.
struct FakeMaster {
    beats: mpsc::UnboundedSender<HeartbeatRequest>,
}

#[tonic::async_trait]
impl Master for FakeMaster {
    async fn heartbeat(
        &self,
        request: Request<HeartbeatRequest>,
    ) -> Result<Response<HeartbeatResponse>, Status> {
        let request = request.into_inner();
        let _ = self.beats.send(request.clone());
        if !["", "c1"].contains(&request.cluster_id.as_str()) {
            return Err(Status::failed_precondition("this is cluster c1"));
        }
        Ok(Response::new(HeartbeatResponse {
            cluster_id: "c1".to_owned(),
            interval_ms: 10,
            ..HeartbeatResponse::default()
        }))
    }

    async fn locate(&self, _: Request<LocateRequest>) -> Result<Response<LocateResponse>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn directory(
        &self,
        _: Request<DirectoryRequest>,
    ) -> Result<Response<DirectoryResponse>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn create_table(
        &self,
        _: Request<CreateTableRequest>,
    ) -> Result<Response<CreateTableResponse>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn split_table(
        &self,
        _: Request<SplitTableRequest>,
    ) -> Result<Response<SplitTableResponse>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn merge_table(
        &self,
        _: Request<MergeTableRequest>,
    ) -> Result<Response<MergeTableResponse>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn move_tablet(
        &self,
        _: Request<MoveTabletRequest>,
    ) -> Result<Response<MoveTabletResponse>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn drain_servers(
        &self,
        _: Request<DrainServersRequest>,
    ) -> Result<Response<DrainServersResponse>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn introduce_proxy(
        &self,
        _: Request<IntroduceProxyRequest>,
    ) -> Result<Response<IntroduceProxyResponse>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn rebuild(
        &self,
        _: Request<RebuildRequest>,
    ) -> Result<Response<RebuildResponse>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn delete_table(
        &self,
        _: Request<DeleteTableRequest>,
    ) -> Result<Response<DeleteTableResponse>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn session(
        &self,
        _: Request<SessionRequest>,
    ) -> Result<Response<SessionResponse>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn gc_status(
        &self,
        _: Request<GcStatusRequest>,
    ) -> Result<Response<GcStatusResponse>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn transactions(
        &self,
        _: Request<TransactionsRequest>,
    ) -> Result<Response<TransactionsResponse>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn release_gc_lock(
        &self,
        _: Request<ReleaseGcLockRequest>,
    ) -> Result<Response<ReleaseGcLockResponse>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn set_gc(&self, _: Request<SetGcRequest>) -> Result<Response<SetGcResponse>, Status> {
        Err(Status::unimplemented("not in this test"))
    }
}

fn start_master(address: SocketAddr) -> (SocketAddr, mpsc::UnboundedReceiver<HeartbeatRequest>) {
    let (beats, received) = mpsc::unbounded_channel();
    let (listener, address) = listen(address).unwrap();
    let service = MasterServer::new(FakeMaster { beats });
    tokio::spawn(serve(
        listener,
        service,
        Duration::ZERO,
        std::future::pending(),
    ));
    (address, received)
}

fn options(master: SocketAddr, cluster_id: Option<&str>) -> Options {
    Options {
        master: master.to_string(),
        role: Role::Tablet,
        server: "tablet-0".to_owned(),
        address: "127.0.0.1:1".to_owned(),
        cluster_id: cluster_id.map(str::to_owned),
        process: Incarnation::without_folder(),
        metrics_address: None,
    }
}

fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

#[tokio::test]
async fn a_server_joins_when_the_master_comes_and_beats_on() {
    // An address where nothing listens until the first beat was tried.
    let free = listen(any_port()).unwrap().1;
    let adopted = Arc::new(Mutex::new(Vec::new()));
    let (reports, mut reported) = mpsc::unbounded_channel();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let into = adopted.clone();
    let beating = tokio::spawn(heartbeat::run(
        options(free, None),
        move || {
            let _ = reports.send(());
            HeartbeatRequest {
                tablets: vec![TabletInfo {
                    id: 7,
                    ..TabletInfo::default()
                }],
                ..HeartbeatRequest::default()
            }
        },
        move |id: &str| {
            into.lock().unwrap().push(id.to_owned());
            Ok::<(), Error>(())
        },
        |_| {},
        async move {
            let _ = stopped.await;
        },
    ));
    reported.recv().await.unwrap();
    let (_, mut beats) = start_master(free);
    let first = beats.recv().await.unwrap();
    assert_eq!((first.cluster_id.as_str(), first.tablets[0].id), ("", 7));
    let second = beats.recv().await.unwrap();
    assert_eq!(second.cluster_id, "c1");
    assert_eq!(second.incarnation, first.incarnation);
    assert_eq!(*adopted.lock().unwrap(), ["c1"]);
    stop.send(()).unwrap();
    beating.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_refusal_ends_the_beats_with_what_the_master_said() {
    let (master, _beats) = start_master(any_port());
    let adopted = RefCell::new(Vec::new());
    let error = heartbeat::run(
        options(master, Some("c2")),
        HeartbeatRequest::default,
        |id: &str| {
            adopted.borrow_mut().push(id.to_owned());
            Ok::<(), Error>(())
        },
        |_| {},
        std::future::pending(),
    )
    .await
    .unwrap_err();
    assert!(matches!(error, Error::Refused { .. }));
    assert!(error.to_string().contains("this is cluster c1"), "{error}");
    assert!(adopted.borrow().is_empty());
}

#[tokio::test]
async fn a_cluster_that_cannot_be_made_durable_ends_the_beats() {
    let (master, _beats) = start_master(any_port());
    let refuse = |_: &str| Err("the disk is full");
    let never = std::future::pending();
    let report = HeartbeatRequest::default;
    let run = heartbeat::run(options(master, None), report, refuse, |_| {}, never);
    let error = run.await.unwrap_err();
    assert!(error.to_string().contains("the disk is full"), "{error}");
}

/// Forwards connections, and says when one has come. The first one is forwarded until `cut` says so, and stays open then.
async fn relay(
    listener: TcpListener,
    to: SocketAddr,
    connected: mpsc::UnboundedSender<()>,
    cut: watch::Receiver<bool>,
) {
    let mut is_first = true;
    while let Ok((mut from, _)) = listener.accept().await {
        let mut cut = cut.clone();
        let may_be_cut = std::mem::take(&mut is_first);
        let _ = connected.send(());
        tokio::spawn(async move {
            let mut to = TcpStream::connect(to).await.unwrap();
            let is_cut = async {
                let _ = cut.wait_for(|cut| *cut).await;
            };
            tokio::select! {
                _ = tokio::io::copy_bidirectional(&mut from, &mut to) => {}
                () = is_cut, if may_be_cut => std::future::pending().await,
            }
        });
    }
}

/// As when the network was cut: nothing ends the connection, and there is no other address to ask.
#[tokio::test]
async fn a_connection_that_has_gone_silent_is_given_up() {
    const TIMEOUT: Duration = Duration::from_secs(60);
    let (master, mut beats) = start_master(any_port());
    let (listener, address) = listen(any_port()).unwrap();
    let (connected, mut connections) = mpsc::unbounded_channel();
    let (cut, is_cut) = watch::channel(false);
    tokio::spawn(relay(listener, master, connected, is_cut));
    let beating = tokio::spawn(heartbeat::run(
        options(address, Some("c1")),
        HeartbeatRequest::default,
        |_: &str| Ok::<(), Error>(()),
        |_| {},
        std::future::pending(),
    ));
    connections.recv().await.unwrap();
    beats.recv().await.unwrap();
    cut.send(true).unwrap();
    let again = tokio::time::timeout(TIMEOUT, connections.recv()).await;
    again.expect("another connection").unwrap();
    // What came by the first one.
    while beats.try_recv().is_ok() {}
    let beat = tokio::time::timeout(TIMEOUT, beats.recv()).await;
    beat.expect("a beat by the other one").unwrap();
    beating.abort();
}
