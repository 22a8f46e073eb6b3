//! Processes that share a register, and streams to them.

use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use percolator_wire::v1::oracle_client::OracleClient;
use percolator_wire::v1::{TimestampsRequest, TimestampsResponse};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// The processes, by number, and where they listen; an address changes with each start.
pub(crate) struct Cluster {
    pub(crate) folder: tempfile::TempDir,
    processes: Vec<Child>,
    pub(crate) addresses: Arc<Mutex<Vec<String>>>,
}

impl Cluster {
    pub(crate) async fn start(oracles: usize) -> Self {
        let mut cluster = Self {
            folder: tempfile::tempdir().unwrap(),
            processes: Vec::new(),
            addresses: Arc::default(),
        };
        for _ in 0..oracles {
            cluster.add().await;
        }
        cluster
    }

    pub(crate) async fn add(&mut self) {
        let number = self.processes.len();
        let (process, address) = start(self.folder.path(), number, "127.0.0.1:0").await;
        self.processes.push(process);
        self.addresses.lock().unwrap().push(address);
    }

    pub(crate) fn signal(&self, number: usize, signal: Signal) {
        let id = self.processes[number].id().unwrap();
        let pid = Pid::from_raw(i32::try_from(id).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Starts a process again that ends, where it listens: IP:PORT.
    pub(crate) async fn restart(&mut self, number: usize, listen: &str) {
        self.processes[number].wait().await.unwrap();
        let (process, address) = start(self.folder.path(), number, listen).await;
        self.processes[number] = process;
        self.addresses.lock().unwrap()[number] = address;
    }
}

/// Starts a process, and waits for the address that it prints. The clock of number N is wrong by what a file "clock-N" says.
async fn start(folder: &Path, number: usize, listen: &str) -> (Child, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_percolator-tso"))
        .arg("--data-dir")
        .arg(folder.join(format!("tso-{number}")))
        .args(["--server", &format!("tso-{number}"), "--listen", listen])
        .arg("--register")
        .arg(format!("file:{}", folder.join("register").display()))
        .arg("--test-clock")
        .arg(folder.join(format!("clock-{number}")))
        .env(
            "PERCOLATOR_LOG",
            std::env::var("PERCOLATOR_LOG").unwrap_or("warn".into()),
        )
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = lines.next_line().await.unwrap().unwrap();
    let address = line.strip_prefix("listening on ").unwrap().to_owned();
    (child, address)
}

/// A stream to one oracle.
pub(crate) struct Stream {
    requests: mpsc::Sender<TimestampsRequest>,
    responses: tonic::Streaming<TimestampsResponse>,
}

impl Stream {
    pub(crate) async fn open(address: &str) -> Result<Self, Status> {
        let client = OracleClient::connect(format!("http://{address}")).await;
        let mut client = client.map_err(|error| Status::unavailable(error.to_string()))?;
        let (requests, receiver) = mpsc::channel(1);
        let response = client.timestamps(ReceiverStream::new(receiver)).await?;
        Ok(Self {
            requests,
            responses: response.into_inner(),
        })
    }

    pub(crate) async fn ask(&mut self, count: u32) -> Result<TimestampsResponse, Status> {
        let request = TimestampsRequest {
            count,
            traces: Vec::new(),
        };
        let _ = self.requests.send(request).await;
        let response = self.responses.message().await?;
        response.ok_or_else(|| Status::unavailable("the stream ended"))
    }
}

/// Ends the clients, which return the first and the last timestamp of each answer. No timestamp is in two answers. Returns how many
/// answers there were.
pub(crate) async fn granted_once(
    clients: impl IntoIterator<Item = JoinHandle<Vec<(u64, u64)>>>,
    stop: &AtomicBool,
) -> usize {
    stop.store(true, Ordering::SeqCst);
    let mut all = Vec::new();
    for client in clients {
        all.extend(client.await.unwrap());
    }
    all.sort_unstable();
    for pair in all.windows(2) {
        assert!(pair[0].1 < pair[1].0, "granted twice: {pair:?}");
    }
    all.len()
}
