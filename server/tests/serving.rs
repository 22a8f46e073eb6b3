//! Stopping a server that has endless streams open.

use std::net::SocketAddr;
use std::time::Duration;

use percolator_server::{Probe, listen, serve, serve_when, while_recovering};
use percolator_wire::v1::oracle_client::OracleClient;
use percolator_wire::v1::oracle_server::{Oracle, OracleServer};
use percolator_wire::v1::{TimestampsRequest, TimestampsResponse};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

/// What isn't answered by then won't be.
const PATIENCE: Duration = Duration::from_secs(60);

/// Answers every request with its own count.
struct Echo;

type Answers = Box<dyn Stream<Item = Result<TimestampsResponse, Status>> + Send + Unpin>;

#[tonic::async_trait]
impl Oracle for Echo {
    type TimestampsStream = Answers;

    async fn timestamps(
        &self,
        request: Request<Streaming<TimestampsRequest>>,
    ) -> Result<Response<Answers>, Status> {
        let answers = request.into_inner().map(|request| {
            let count = request?.count;
            Ok(TimestampsResponse { first: 1, count })
        });
        Ok(Response::new(Box::new(answers)))
    }
}

#[tokio::test]
async fn a_probe_is_told_whether_the_server_serves() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    let (listener, address) = listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let is_ready = Arc::new(AtomicBool::new(false));
    let asked = is_ready.clone();
    tokio::spawn(serve_when(
        listener,
        OracleServer::new(Echo),
        move |probe| probe == Probe::Lives || asked.load(Ordering::Relaxed),
        Duration::ZERO,
        std::future::pending(),
    ));
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap();
    let mut client = HealthClient::new(endpoint.connect().await.unwrap());
    for (service, serves, status) in [
        ("ready", false, ServingStatus::NotServing),
        ("ready", true, ServingStatus::Serving),
        // Anyone who asks for less is answered: nobody starts a server again because it isn't ready.
        ("", false, ServingStatus::Serving),
    ] {
        is_ready.store(serves, Ordering::Relaxed);
        let service = service.to_owned();
        let answer = client.check(HealthCheckRequest { service }).await.unwrap();
        assert_eq!(answer.into_inner().status(), status);
    }
    // The server's own requests go where they went.
    let mut oracle = OracleClient::connect(format!("http://{address}"))
        .await
        .unwrap();
    let requests = tokio_stream::once(TimestampsRequest {
        count: 7,
        traces: Vec::new(),
    });
    let mut answers = oracle.timestamps(requests).await.unwrap().into_inner();
    assert_eq!(answers.message().await.unwrap().unwrap().count, 7);
}

/// What a check of health says of a server, by the service that it asks for.
async fn health(address: SocketAddr, service: &str) -> ServingStatus {
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap();
    let mut client = HealthClient::new(endpoint.connect().await.unwrap());
    let service = service.to_owned();
    let answer = client.check(HealthCheckRequest { service }).await;
    answer.unwrap().into_inner().status()
}

/// The startup probe of a pod asks while a tablet server reads its log: one that isn't answered for long is killed.
#[tokio::test]
async fn a_server_that_recovers_lives_and_is_not_ready() {
    let (listener, address) = listen("127.0.0.1:0".parse().unwrap()).unwrap();
    // This thread is busy, as that of a server is; who asks is another process.
    let asked = |service: &'static str| {
        let asks = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let answer = health(address, service);
            runtime.block_on(async { tokio::time::timeout(PATIENCE, answer).await })
        });
        asks.join().unwrap().expect("an answer")
    };
    for (lives, status) in [
        (true, ServingStatus::Serving),
        (false, ServingStatus::NotServing),
    ] {
        let found = while_recovering(&listener, lives, || (asked(""), asked("ready")));
        assert_eq!(found.unwrap(), (status, ServingStatus::NotServing));
    }
    // One whose request waits is cut off, and not forgotten.
    let (waits, is_cut) = std::sync::mpsc::channel();
    let (connection, connected) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
            .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            .unwrap();
        let settings = stream.read(&mut [0; 9]);
        connection.send(settings.is_ok()).unwrap();
        let mut rest = Vec::new();
        let _ = waits.send(
            stream
                .read_to_end(&mut rest)
                .map(drop)
                .map_err(|error| error.kind()),
        );
    });
    while_recovering(&listener, true, || assert!(connected.recv().unwrap())).unwrap();
    let cut = is_cut.recv().unwrap();
    assert!(
        matches!(cut, Ok(()) | Err(std::io::ErrorKind::ConnectionReset)),
        "{cut:?}"
    );
    // And the server itself answers anyone who comes then.
    tokio::spawn(serve_when(
        listener,
        OracleServer::new(Echo),
        |_| true,
        Duration::ZERO,
        std::future::pending(),
    ));
    assert_eq!(health(address, "ready").await, ServingStatus::Serving);
}

#[tokio::test]
async fn an_open_stream_does_not_keep_a_server_from_stopping() {
    let (listener, address) = listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(serve(
        listener,
        OracleServer::new(Echo),
        Duration::from_millis(10),
        async move {
            let _ = stopped.await;
        },
    ));

    let mut client = OracleClient::connect(format!("http://{address}"))
        .await
        .unwrap();
    let (requests, receiver) = mpsc::channel(1);
    let stream = client.timestamps(ReceiverStream::new(receiver)).await;
    let mut stream = stream.unwrap().into_inner();
    requests
        .send(TimestampsRequest {
            count: 3,
            traces: Vec::new(),
        })
        .await
        .unwrap();
    assert_eq!(stream.message().await.unwrap().unwrap().count, 3);

    stop.send(()).unwrap();
    // The client keeps its end open, and learns that the stream is gone.
    let end = tokio::time::timeout(Duration::from_secs(30), stream.message()).await;
    assert!(!matches!(end.unwrap(), Ok(Some(_))));
    let ended = tokio::time::timeout(Duration::from_secs(30), serving).await;
    ended.unwrap().unwrap().unwrap();
    drop(requests);
    // Nothing is left of it: the address is free.
    let again: SocketAddr = address;
    listen(again).unwrap();
}

#[tokio::test]
async fn a_server_without_clients_stops_at_once() {
    let (listener, _) = listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let hours = Duration::from_secs(3600);
    let serving = serve(listener, OracleServer::new(Echo), hours, async {});
    let ended = tokio::time::timeout(Duration::from_secs(30), serving).await;
    ended.unwrap().unwrap();
}
