//! Sessions of a proxy, as a client of gRPC has them, and proxies of a test's own.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use percolator_proxy::{Options, Server};
use percolator_telemetry::endpoint;
use percolator_wire::proxy::v1;
use percolator_wire::proxy::v1::outcome_response::Outcome;
use percolator_wire::proxy::v1::transactions_client::TransactionsClient;
use tokio::sync::oneshot;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use super::{Cluster, PERCOLATOR, block_on, signal, wait_for};

pub(crate) type Grpc = TransactionsClient<Channel>;

pub(crate) async fn connect(address: &str) -> Grpc {
    let address = format!("http://{address}");
    Grpc::connect(address).await.expect("connected")
}

/// Begins, once the proxy has reached the cluster.
pub(crate) async fn begin_when_ready(grpc: &Grpc) -> Session {
    let began = Instant::now();
    while let Err(why) = grpc.clone().begin(v1::BeginRequest::default()).await {
        assert!(began.elapsed() < Duration::from_secs(60), "{why:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Session::begin(grpc).await
}

/// A cluster with table t, of two tablets.
pub(crate) fn with_table() -> Cluster {
    let cluster = Cluster::threads();
    let create = ["table", "create", "t", "--split-at", "m"];
    cluster.run(&create).ok();
    cluster
}

/// A proxy that is a process of its own, which is killed when it is dropped.
pub(crate) struct ProxyProcess {
    child: Child,
    pub(crate) address: String,
}

impl ProxyProcess {
    /// Of a cluster.
    pub(crate) fn start(cluster: &Cluster, arguments: &[&str]) -> Self {
        Self::try_start(cluster, arguments).expect("an address")
    }

    /// None: it ends instead of serving.
    pub(crate) fn try_start(cluster: &Cluster, arguments: &[&str]) -> Option<Self> {
        let mut child = Command::new(Path::new(PERCOLATOR).with_file_name("percolator-proxy"))
            .args(["--master", &cluster.master])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the workspace's programs are built");
        let stdout = child.stdout.take().expect("a pipe");
        // Where it shows metrics it says so before.
        let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
        let address = lines.find_map(|line| Some(line.strip_prefix("listening on ")?.to_owned()));
        let Some(address) = address else {
            let _ = child.wait();
            return None;
        };
        Some(Self { address, child })
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("gone");
    }

    /// Tells it to end, and waits until it has.
    pub(crate) fn end(&mut self) {
        signal(self.child.id(), "TERM");
        assert!(self.child.wait().expect("ended").success());
    }
}

impl Drop for ProxyProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A proxy of the test's own, on a thread.
pub(crate) struct Proxy {
    pub(crate) address: String,
    metrics: String,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    pub(crate) fn start(cluster: &Cluster, change: impl FnOnce(&mut Options)) -> Self {
        Self::of(&cluster.master, change)
    }

    /// Of the cluster whose master is at this address.
    pub(crate) fn of(master: &str, change: impl FnOnce(&mut Options)) -> Self {
        let mut options = Options::new(master);
        options.metrics_listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        options.server = "proxy-of-test".into();
        options.grace = Duration::ZERO;
        change(&mut options);
        let (bound, address) = std::sync::mpsc::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            block_on(async {
                let server = Server::bind(options).expect("bound");
                let metrics = server.metrics_address().expect("metrics");
                bound.send((server.address(), metrics)).expect("sent");
                let stopped = async { drop(stopped.await) };
                server.run(stopped).await.expect("it serves");
            });
        });
        let (address, metrics) = address.recv().expect("it listens");
        let proxy = Self {
            address: address.to_string(),
            metrics: metrics.to_string(),
            stop: Some(stop),
            thread: Some(thread),
        };
        wait_for("the proxy to be ready", || proxy.ready().ok());
        proxy
    }

    /// Why it isn't ready.
    pub(crate) fn ready(&self) -> Result<(), String> {
        let ready = block_on(endpoint::get(&self.metrics, "/readyz"));
        let ready = ready.map_err(|error| error.to_string())?;
        match ready.status {
            200 => Ok(()),
            _ => Err(ready.body),
        }
    }

    /// The value of this series now.
    pub(crate) fn shows(&self, series: &str) -> Option<f64> {
        block_on(shown(&self.metrics, series))
    }

    pub(crate) fn tell_to_stop(&mut self) {
        drop(self.stop.take());
    }

    pub(crate) fn ended(&mut self) {
        self.tell_to_stop();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("no panic");
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.tell_to_stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The code, and the reason and the metadata of its details.
pub(crate) fn reason(status: &Status) -> (Code, String) {
    let details = status.get_error_details();
    let info = details.error_info().expect("an ErrorInfo");
    assert_eq!(info.domain, "percolator.dev");
    (status.code(), info.reason.clone())
}

pub(crate) fn refused<T: std::fmt::Debug>(result: Result<T, Status>) -> (Code, String) {
    reason(&result.expect_err("refused"))
}

pub(crate) fn is(code: Code, reason: &str) -> (Code, String) {
    (code, reason.to_owned())
}

/// A session, and its calls on cells of column c of table t.
#[derive(Clone)]
pub(crate) struct Session {
    pub(crate) grpc: Grpc,
    pub(crate) token: String,
    pub(crate) start_ts: u64,
}

impl Session {
    pub(crate) async fn begin(grpc: &Grpc) -> Self {
        let mut grpc = grpc.clone();
        let begun = grpc.begin(v1::BeginRequest::default()).await;
        let begun = begun.expect("begun").into_inner();
        Self {
            grpc,
            token: begun.session,
            start_ts: begun.start_ts,
        }
    }

    pub(crate) fn cell(&self, row: &str) -> v1::GetRequest {
        v1::GetRequest {
            session: self.token.clone(),
            table: "t".into(),
            row: row.to_owned().into(),
            column: "c".into(),
        }
    }

    pub(crate) async fn get(&mut self, row: &str) -> Result<Option<String>, Status> {
        let request = self.cell(row);
        let got = self.grpc.get(request).await?.into_inner();
        let text = |value: percolator_client::Bytes| String::from_utf8_lossy(&value).into_owned();
        Ok(got.value.map(text))
    }

    pub(crate) async fn get_for_update(&mut self, row: &str) -> Result<(), Status> {
        let request = self.cell(row);
        self.grpc.get_for_update(request).await.map(drop)
    }

    pub(crate) async fn put(&mut self, row: &str, value: impl Into<Vec<u8>>) -> Result<(), Status> {
        let value: Vec<u8> = value.into();
        let request = v1::PutRequest {
            session: self.token.clone(),
            table: "t".into(),
            row: row.to_owned().into(),
            column: "c".into(),
            value: value.into(),
        };
        self.grpc.put(request).await.map(drop)
    }

    pub(crate) async fn delete(&mut self, row: &str) -> Result<(), Status> {
        let request = v1::DeleteRequest {
            session: self.token.clone(),
            table: "t".into(),
            row: row.to_owned().into(),
            column: "c".into(),
        };
        self.grpc.delete(request).await.map(drop)
    }

    pub(crate) async fn scan(
        &mut self,
        limit: u64,
    ) -> Result<tonic::Streaming<v1::ScanResponse>, Status> {
        let request = v1::ScanRequest {
            session: self.token.clone(),
            table: "t".into(),
            limit,
            ..v1::ScanRequest::default()
        };
        Ok(self.grpc.scan(request).await?.into_inner())
    }

    pub(crate) async fn rows(&mut self) -> Vec<String> {
        let mut chunks = self.scan(0).await.expect("a scan");
        let mut rows = Vec::new();
        while let Some(chunk) = chunks.message().await.expect("a chunk") {
            let cells = chunk.cells.iter();
            rows.extend(cells.map(|cell| String::from_utf8_lossy(&cell.row).into_owned()));
        }
        rows
    }

    pub(crate) async fn commit(&mut self) -> Result<u64, Status> {
        self.commit_with(Vec::new()).await
    }

    /// Commits with these writes.
    pub(crate) async fn commit_with(&mut self, writes: Vec<v1::CellWrite>) -> Result<u64, Status> {
        let session = self.token.clone();
        let request = v1::CommitRequest { session, writes };
        Ok(self.grpc.commit(request).await?.into_inner().commit_ts)
    }

    pub(crate) async fn write(&mut self, writes: Vec<v1::CellWrite>) -> Result<(), Status> {
        let session = self.token.clone();
        let request = v1::WriteRequest { session, writes };
        self.grpc.write(request).await.map(drop)
    }

    /// Joins its transaction at this proxy.
    pub(crate) async fn join(&self, at: &Grpc) -> Result<Self, Status> {
        let request = v1::JoinRequest {
            session: self.token.clone(),
            ..v1::JoinRequest::default()
        };
        let joined = at.clone().join(request).await?.into_inner();
        Ok(Self {
            grpc: at.clone(),
            token: joined.session,
            start_ts: joined.start_ts,
        })
    }

    /// Hands over what this participant has written, and this.
    pub(crate) async fn finish(&mut self, writes: Vec<v1::CellWrite>) -> Result<(), Status> {
        let session = self.token.clone();
        let request = v1::FinishRequest {
            session,
            writes,
            ..v1::FinishRequest::default()
        };
        self.grpc.finish(request).await.map(drop)
    }

    pub(crate) async fn rollback(&mut self) -> Result<(), Status> {
        let session = self.token.clone();
        let request = v1::RollbackRequest { session };
        self.grpc.rollback(request).await.map(drop)
    }

    pub(crate) async fn outcome(&mut self) -> Result<(Outcome, u64), Status> {
        let session = self.token.clone();
        let answer = self.grpc.outcome(v1::OutcomeRequest { session }).await?;
        let answer = answer.into_inner();
        Ok((answer.outcome(), answer.commit_ts))
    }
}

/// The value of this series at this address of metrics.
pub(crate) async fn shown(metrics: &str, series: &str) -> Option<f64> {
    let page = endpoint::get(metrics, "/metrics").await.ok()?;
    let mut lines = page.body.lines();
    lines.find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
}
