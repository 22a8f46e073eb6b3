//! Stopping a server that has endless streams open.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use percolator_server::{Probe, listen, serve, serve_also_http1, serve_when, while_recovering};
use percolator_wire::v1::oracle_client::OracleClient;
use percolator_wire::v1::oracle_server::{Oracle, OracleServer};
use percolator_wire::v1::{TimestampsRequest, TimestampsResponse};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::{Request, Response, Status, Streaming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

/// What isn't answered by then won't be.
const TIMEOUT: Duration = Duration::from_secs(60);

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
            runtime.block_on(async { tokio::time::timeout(TIMEOUT, answer).await })
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
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
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

/// Answers each request with more than a connection takes at a time.
#[derive(Clone)]
struct Large;

impl Service<http::Request<Body>> for Large {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<Body>) -> Self::Future {
        ready(Ok(http::Response::new(Body::new("x".repeat(64 << 20)))))
    }
}

/// Serves [`Large`] to so many connections at a time, and says when one has ended.
fn serve_large(connections: usize) -> (SocketAddr, mpsc::UnboundedReceiver<()>) {
    /// Says so when it is dropped.
    struct Ends(
        mpsc::UnboundedSender<()>,
        #[allow(dead_code)] OwnedSemaphorePermit,
    );

    impl Drop for Ends {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }

    let (listener, address) = listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let (ends, ended) = mpsc::unbounded_channel();
    let room = Arc::new(Semaphore::new(connections));
    let admit = move |_| {
        let permit = room.clone().try_acquire_owned().ok()?;
        Some(Ends(ends.clone(), permit))
    };
    let never = std::future::pending();
    tokio::spawn(serve_also_http1(
        listener,
        Large,
        |_| true,
        admit,
        Duration::ZERO,
        never,
    ));
    (address, ended)
}

async fn ask(address: SocketAddr) -> TcpStream {
    let mut connection = TcpStream::connect(address).await.unwrap();
    let request = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n";
    connection.write_all(request).await.unwrap();
    connection
}

#[tokio::test]
async fn a_connection_whose_peer_takes_nothing_ends() {
    let (address, mut ended) = serve_large(1);
    let began = tokio::time::Instant::now();
    let mut connection = ask(address).await;
    let mut first = [0; 1];
    connection.read_exact(&mut first).await.unwrap();
    // From here on the clock goes on whenever nothing else does.
    tokio::time::pause();
    ended.recv().await.unwrap();
    assert!(began.elapsed() >= Duration::from_secs(60));
    // What was on its way comes, and not all of it.
    let mut rest = Vec::new();
    let _ = connection.read_to_end(&mut rest).await;
    assert!(rest.len() < 64 << 20, "{}", rest.len());
}

#[tokio::test]
async fn a_connection_that_is_not_admitted_is_closed() {
    let (address, mut ended) = serve_large(1);
    let mut first = ask(address).await;
    first.read_exact(&mut [0; 1]).await.unwrap();
    let mut second = ask(address).await;
    let mut nothing = Vec::new();
    let read = tokio::time::timeout(TIMEOUT, second.read_to_end(&mut nothing));
    // It may be reset.
    assert!(!matches!(read.await.unwrap(), Ok(bytes) if bytes > 0));
    drop(first);
    ended.recv().await.unwrap();
    ask(address).await.read_exact(&mut [0; 1]).await.unwrap();
}

#[tokio::test]
async fn a_server_without_clients_stops_at_once() {
    let (listener, _) = listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let hours = Duration::from_secs(3600);
    let serving = serve(listener, OracleServer::new(Echo), hours, async {});
    let ended = tokio::time::timeout(Duration::from_secs(30), serving).await;
    ended.unwrap().unwrap();
}
