//! A server in this process, with clocks and disks that fail.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use percolator_client::oracle::OracleClient;
use percolator_server::{DurableValue, Error as ServerError, Folder, SmallFile};
use percolator_telemetry::endpoint;
use percolator_tso::clock::{Clock, SystemClock};
use percolator_tso::{Error, Options, Server};
use percolator_wire::v1::TimestampsRequest;
use percolator_wire::v1::oracle_client::OracleClient as RawClient;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::{Code, Status};

/// A server that runs until this is stopped.
struct Running {
    address: String,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<Result<(), Error>>,
}

impl Running {
    fn new(server: Server) -> Self {
        let address = server.address().to_string();
        let (stop, stopped) = oneshot::channel();
        let ended = tokio::spawn(server.run(async move {
            let _ = stopped.await;
        }));
        Self {
            address,
            stop,
            ended,
        }
    }

    fn client(&self) -> OracleClient {
        let address = self.address.clone();
        OracleClient::new(move || {
            let address = address.clone();
            Box::pin(async move { Ok(address.into()) })
        })
    }

    async fn stop(self) {
        let _ = self.stop.send(());
        self.ended.await.unwrap().unwrap();
    }
}

/// What one request on a stream of its own is answered.
async fn ask(address: &str, count: u32) -> Result<u64, Status> {
    let mut client = RawClient::connect(format!("http://{address}"))
        .await
        .unwrap();
    let requests = tokio_stream::once(TimestampsRequest {
        count,
        traces: Vec::new(),
    });
    let mut responses = client.timestamps(requests).await?.into_inner();
    Ok(responses.message().await?.unwrap().first)
}

#[tokio::test]
async fn goes_on_after_a_stop_and_keeps_its_folder_for_itself() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::new(Server::bind(Options::new(folder.path())).await.unwrap());
    let first = running.client().timestamp().await.unwrap();
    let error = Server::bind(Options::new(folder.path())).await.unwrap_err();
    assert!(error.to_string().contains("in use"), "{error}");
    running.stop().await;
    let running = Running::new(Server::bind(Options::new(folder.path())).await.unwrap());
    assert!(running.client().timestamp().await.unwrap() > first);
    running.stop().await;
}

#[tokio::test]
async fn counts_that_make_no_sense_are_invalid_arguments() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::new(Server::bind(Options::new(folder.path())).await.unwrap());
    for count in [0, 65_537] {
        let status = ask(&running.address, count).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains("1 to 65536"), "{status}");
    }
    ask(&running.address, 65_536).await.unwrap();
    running.stop().await;
}

/// A file that fails when it's told to.
struct Failing {
    file: SmallFile,
    fails: Arc<AtomicBool>,
}

impl DurableValue for Failing {
    fn load(&self) -> Result<Option<Vec<u8>>, ServerError> {
        self.file.load()
    }

    fn store(&self, value: &[u8]) -> Result<(), ServerError> {
        if self.fails.load(Ordering::SeqCst) {
            return Err(ServerError::File {
                action: "write",
                path: self.file.path().to_owned(),
                cause: std::io::Error::other("the disk is gone"),
            });
        }
        self.file.store(value)
    }
}

#[tokio::test]
async fn serves_what_is_left_while_the_disk_fails_and_goes_on_after() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = Options::new(folder.path());
    // A window of a millisecond is four requests long.
    options.settings.window_ms = 1;
    options.wait_max = Duration::from_millis(100);
    options.metrics_listen = Some(([127, 0, 0, 1], 0).into());
    let fails = Arc::new(AtomicBool::new(false));
    let truth = |file| {
        let fails = fails.clone();
        Arc::new(Failing { file, fails }) as Arc<dyn DurableValue + Send + Sync>
    };
    let server = Server::bind_with(options, Arc::new(SystemClock), truth);
    let server = server.await.unwrap();
    let shown = server.metrics_address().unwrap().to_string();
    let running = Running::new(server);
    let mut last = ask(&running.address, 1).await.unwrap();
    fails.store(true, Ordering::SeqCst);
    let refused = loop {
        match ask(&running.address, 65_536).await {
            Ok(first) => {
                assert!(first > last);
                last = first;
            }
            Err(status) => break status,
        }
    };
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains("durable"), "{refused}");
    // What was refused may have waited for a store of before the disk failed.
    let asked = std::time::Instant::now();
    let said = loop {
        let said = endpoint::get(&shown, "/readyz").await.unwrap();
        if said.status == 503 || asked.elapsed() > Duration::from_secs(60) {
            break said;
        }
        let _ = ask(&running.address, 65_536).await;
    };
    assert_eq!(said.status, 503, "{said:?}");
    assert!(said.body.contains("the disk is gone"), "{said:?}");
    // A client keeps asking, and is served once the disk is there.
    let client = running.client();
    let waiting = tokio::spawn(async move { client.timestamp().await });
    fails.store(false, Ordering::SeqCst);
    assert!(waiting.await.unwrap().unwrap().as_u64() > last);
    let said = endpoint::get(&shown, "/readyz").await.unwrap();
    assert_eq!(said.status, 200, "{said:?}");
    running.stop().await;
}

/// A clock that the test sets.
struct Set {
    unix_ms: AtomicU64,
    mono_ms: AtomicU64,
}

impl Clock for Set {
    fn unix_ms(&self) -> u64 {
        self.unix_ms.load(Ordering::SeqCst)
    }

    fn mono_ms(&self) -> u64 {
        self.mono_ms.load(Ordering::SeqCst)
    }
}

async fn bind_at(folder: &Path, clock: Arc<Set>) -> Result<Server, Error> {
    Server::bind_with(Options::new(folder), clock, |file| Arc::new(file)).await
}

#[tokio::test]
async fn does_not_follow_a_clock_that_runs_away() {
    const T: u64 = 1_700_000_000_000;
    const DAY: u64 = 86_400_000;
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(Set {
        unix_ms: AtomicU64::new(T),
        mono_ms: AtomicU64::new(0),
    });
    let running = Running::new(bind_at(folder.path(), clock.clone()).await.unwrap());
    let client = running.client();
    let at = |timestamp: percolator_protocol::types::Timestamp| timestamp.physical_ms() - T;
    assert_eq!(at(client.timestamp().await.unwrap()), 0);
    clock.unix_ms.store(T + DAY, Ordering::SeqCst);
    clock.mono_ms.store(1_000, Ordering::SeqCst);
    assert_eq!(at(client.timestamp().await.unwrap()), 1_000);
    clock.unix_ms.store(T - DAY, Ordering::SeqCst);
    assert_eq!(at(client.timestamp().await.unwrap()), 1_000);
    running.stop().await;

    clock.unix_ms.store(T + DAY + 10_000, Ordering::SeqCst);
    let error = bind_at(folder.path(), clock.clone()).await.unwrap_err();
    assert!(error.to_string().contains("--stopped-max"), "{error}");
}

#[tokio::test]
async fn a_lost_limit_of_an_oracle_in_a_cluster_is_no_fresh_start() {
    let outer = tempfile::tempdir().unwrap();
    let path = outer.path().join("tso-0");
    let folder = Folder::open(&path, "oracle", "tso-0", Some("c1")).unwrap();
    drop(folder);
    let error = Server::bind(Options::new(&path)).await.unwrap_err();
    assert!(matches!(error, Error::LimitMissing { .. }), "{error}");
    std::fs::write(path.join("limit"), "rubbish").unwrap();
    let error = Server::bind(Options::new(&path)).await.unwrap_err();
    assert!(error.to_string().contains("damaged"), "{error}");
}

#[tokio::test]
async fn serves_nothing_before_its_master_has_accepted_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = Options::new(folder.path());
    options.master = Some("127.0.0.1:1".to_owned());
    // It may be one that has lost its folder, or one whose place another one has taken.
    for cluster_id in [None, Some("c1")] {
        drop(Folder::open(folder.path(), "oracle", "tso-0", cluster_id).unwrap());
        let running = Running::new(Server::bind(options.clone()).await.unwrap());
        let client = running.client();
        let asked = tokio::time::timeout(Duration::from_millis(300), client.timestamp()).await;
        assert!(asked.is_err(), "{asked:?}");
        running.stop().await;
    }
    options.listen = ([0, 0, 0, 0], 0).into();
    let error = Server::bind(options).await.unwrap_err();
    assert!(error.to_string().contains("--advertise"), "{error}");
}

#[tokio::test]
async fn requests_go_on_while_a_limit_is_being_written() {
    let folder = tempfile::tempdir().unwrap();
    let (entered, mut writing) = tokio::sync::mpsc::unbounded_channel();
    let (go, held) = std::sync::mpsc::channel::<()>();
    struct Slow {
        file: SmallFile,
        entered: tokio::sync::mpsc::UnboundedSender<()>,
        held: Mutex<std::sync::mpsc::Receiver<()>>,
    }
    impl DurableValue for Slow {
        fn load(&self) -> Result<Option<Vec<u8>>, ServerError> {
            self.file.load()
        }
        fn store(&self, value: &[u8]) -> Result<(), ServerError> {
            let _ = self.entered.send(());
            // Without a sender writes are not held any more.
            let _ = self.held.lock().unwrap().recv();
            self.file.store(value)
        }
    }
    go.send(()).unwrap();
    let mut options = Options::new(folder.path());
    options.settings.window_ms = 40;
    let server = Server::bind_with(options, Arc::new(SystemClock), |file| {
        Arc::new(Slow {
            file,
            entered,
            held: Mutex::new(held),
        })
    });
    let running = Running::new(server.await.unwrap());
    let client = running.client();
    writing.recv().await.unwrap();
    writing.recv().await.unwrap();
    let first = client.timestamp().await.unwrap();
    assert!(client.timestamp().await.unwrap() > first);
    drop(go);
    running.stop().await;
}

#[tokio::test]
async fn a_client_of_another_cluster_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::new(Server::bind(Options::new(folder.path())).await.unwrap());
    running.stop().await;
    drop(Folder::open(folder.path(), "oracle", "tso-0", Some("ours")).unwrap());
    let running = Running::new(Server::bind(Options::new(folder.path())).await.unwrap());
    let asked = async |cluster: &str| {
        let mut client = RawClient::connect(format!("http://{}", running.address))
            .await
            .unwrap();
        let requests = tokio_stream::once(TimestampsRequest {
            count: 1,
            traces: Vec::new(),
        });
        client
            .timestamps(percolator_wire::of_cluster(requests, cluster))
            .await
            .map(drop)
    };
    asked("ours").await.unwrap();
    // It doesn't know yet of which it is.
    asked("").await.unwrap();
    let refused = asked("another").await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("ours"), "{refused}");
    running.stop().await;
}
