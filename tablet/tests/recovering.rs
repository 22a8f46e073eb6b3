//! A tablet server that takes long to read its log passes the liveness probe, and isn't ready.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use percolator_engine::EngineKind;
use percolator_tablet::{Options, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

/// What hasn't happened by then won't.
const TIMEOUT: Duration = Duration::from_secs(60);

fn options(folder: &Path, listen: SocketAddr) -> Options {
    Options {
        data_dir: folder.to_owned(),
        listen,
        metrics_listen: None,
        traces: None,
        slow_request: None,
        advertise: None,
        master: "127.0.0.1:1".into(),
        server: "tablet-0".into(),
        engine: EngineKind::Redb,
        cache_bytes: 16 << 20,
        raw: false,
        disk_stall_max: std::time::Duration::from_secs(30),
        drain_on_stop: Duration::ZERO,
        index_garbage: true,
    }
}

/// Makes the folder of a server that belongs to a cluster; its log is read only when somebody writes into the path that is
/// given back.
fn folder_with_a_slow_log(folder: &Path) -> std::path::PathBuf {
    let engine_options = percolator_engine::Options::new(EngineKind::Redb, "tablet-0");
    let engine = percolator_engine::open(folder, &engine_options).unwrap();
    percolator_engine::adopt_cluster(folder, "c").unwrap();
    engine.close().unwrap();
    drop(engine);
    let mut files = fs::read_dir(folder.join("log")).unwrap();
    let segment = files
        .find_map(|file| {
            let path = file.unwrap().path();
            path.extension()
                .is_some_and(|it| it == "log")
                .then_some(path)
        })
        .expect("a segment of the log");
    fs::rename(&segment, folder.join("kept")).unwrap();
    let made = Command::new("mkfifo").arg(&segment).status().unwrap();
    assert!(made.success());
    segment
}

async fn health(address: SocketAddr, service: &str) -> Result<ServingStatus, String> {
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}"))
        .map_err(|error| error.to_string())?
        .timeout(Duration::from_secs(5));
    let channel = endpoint
        .connect()
        .await
        .map_err(|error| error.to_string())?;
    let service = service.to_owned();
    let mut client = HealthClient::new(channel);
    let answer = client.check(HealthCheckRequest { service }).await;
    let answer = answer.map_err(|error| error.to_string())?;
    Ok(answer.into_inner().status())
}

#[tokio::test]
async fn a_server_that_reads_its_log_lives_and_is_not_ready() {
    let folder = tempfile::tempdir().unwrap();
    let segment = folder_with_a_slow_log(folder.path());
    // Nobody else takes it within the moment, as a rule; who does makes this fail, and says so.
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let address = free.unwrap();
    let options = options(folder.path(), address);
    let server = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let bound = runtime.block_on(Server::bind(options));
        bound.map(drop).map_err(|error| error.to_string())
    });
    let began = Instant::now();
    loop {
        let answers = (health(address, "").await, health(address, "ready").await);
        if answers == (Ok(ServingStatus::Serving), Ok(ServingStatus::NotServing)) {
            break;
        }
        assert!(began.elapsed() < TIMEOUT, "{answers:?}");
        assert!(!server.is_finished(), "{:?}", server.join());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(!server.is_finished(), "its log was not read yet");
    // Anyone who opens it for writing lets the reader go on, who finds nothing in it.
    let writer = fs::OpenOptions::new().write(true).open(&segment).unwrap();
    fs::rename(folder.path().join("kept"), &segment).unwrap();
    drop(writer);
    assert_eq!(server.join().unwrap(), Ok(()));
}
