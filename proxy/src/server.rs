//! The server: both doors on one address, the cluster behind them.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use percolator_client::{Client, limits};
use percolator_server::{Beside, Probe, advertised, listen, serve_also_http1};
use percolator_telemetry::endpoint::{self, Pages};
use percolator_telemetry::otlp::{self, Exporter};
use percolator_wire::proxy::DESCRIPTORS;
use percolator_wire::proxy::v1::transactions_server::TransactionsServer;
use percolator_wire::v1::oracle_server::OracleServer;
use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::codegen::{Service as HttpService, http};

use crate::connections::Connections;
use crate::grpc::Service;
use crate::introduction::Introduction;
use crate::metrics::Metrics;
use crate::relay::Relay;
use crate::sessions::Limits;
use crate::transactions::Transactions;
use crate::transit::{Transit, client_of};
use crate::{Error, failure, json};

/// A message has one value, and what belongs to it.
const MESSAGE_BYTES_MAX: usize = limits::VALUE_BYTES_MAX + (1 << 20);
/// A request for timestamps has a number, and some traces.
const RELAY_MESSAGE_BYTES_MAX: usize = 64 << 10;
/// When no session is left, how long answers that are under way may take.
const LAST_ANSWERS: Duration = Duration::from_millis(100);
/// How long a master that is away is waited for before it is asked again.
const CONNECT_AGAIN: Duration = Duration::from_millis(200);

/// How a proxy is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it listens; port 0 picks a free one.
    pub listen: SocketAddr,
    /// Where to show metrics and health; without it, nowhere. Port 0 picks a free one.
    pub metrics_listen: Option<SocketAddr>,
    /// Where to send the spans of traces; without it, nowhere.
    pub traces: Option<otlp::Settings>,
    /// Where the master is, HOST:PORT, or several of these with commas between.
    pub master: String,
    /// Its name, which tokens have, unless `advertise` is set.
    pub server: String,
    /// Where clients reach it, HOST:PORT, or an IP address without the port: tokens name that.
    pub advertise: Option<String>,
    /// The other proxies of the cluster, HOST:PORT each: where a host has many addresses, all of them. Transactions of those may be
    /// joined here.
    pub peers: Vec<String>,
    /// What clients may have.
    pub limits: Limits,
    /// Open connections of clients.
    pub connections_max: usize,
    /// What requests that are not carried out yet, and answers that are not sent, may have together, in bytes.
    pub transit_bytes_max: usize,
    /// How long sessions may go on when the proxy is to stop.
    pub grace: Duration,
}

impl Options {
    /// The defaults: any free port of this machine alone, the name "proxy-0", 10 s of grace.
    pub fn new(master: impl Into<String>) -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            metrics_listen: None,
            traces: None,
            master: master.into(),
            server: "proxy-0".to_owned(),
            advertise: None,
            peers: Vec::new(),
            limits: Limits::default(),
            connections_max: 8_192,
            transit_bytes_max: 256 << 20,
            grace: Duration::from_secs(10),
        }
    }
}

/// A proxy that listens, and serves once [`Self::run`] is polled.
pub struct Server {
    options: Options,
    listener: TcpListener,
    address: SocketAddr,
    metrics: Option<endpoint::Listener>,
    exporter: Option<Exporter>,
    introduction: Introduction,
    connections: Arc<Connections>,
    shared: Arc<Transactions>,
}

impl Server {
    /// Listens.
    ///
    /// # Errors
    /// [`Error::Server`]: the address is taken. [`Error::Metrics`]. [`Error::Traces`].
    /// [`Error::Master`].
    pub fn bind(options: Options) -> Result<Self, Error> {
        let (listener, address) = listen(options.listen)?;
        let metrics = options.metrics_listen.map(endpoint::listen).transpose()?;
        let export = |traces| Exporter::of_server(traces, "proxy", &options.server);
        let exporter = options.traces.as_ref().map(export).transpose()?;
        let tracer = exporter.as_ref().map(Exporter::tracer);
        let counters = Metrics::new(tracer).map_err(endpoint::Error::Metrics)?;
        let reached = advertised(options.advertise.as_deref(), address)?;
        let shown = metrics.as_ref().map(endpoint::Listener::address);
        let introduction = Introduction::new(&options, reached.clone(), shown)?;
        let server = match options.advertise {
            Some(_) => reached,
            None => options.server.clone(),
        };
        let (limits, peers) = (options.limits, options.peers.clone());
        let transit = Transit::new(options.transit_bytes_max, counters.refused.clone());
        let connections = Connections::new(
            options.connections_max,
            counters.connections.clone(),
            counters.connections_refused.clone(),
        );
        let shared = Transactions::new(server, limits, peers, transit, counters);
        Ok(Self {
            options,
            listener,
            address,
            metrics,
            exporter,
            introduction,
            connections,
            shared: Arc::new(shared),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it shows metrics and health, if it does.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(endpoint::Listener::address)
    }

    /// Serves until `shutdown` ends; then no session begins any more, and those that are there may end within the grace.
    /// A master that is away is waited for.
    ///
    /// # Errors
    /// [`Error::Server`]: the transport failed. [`Error::Master`].
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        let Self {
            options,
            listener,
            address,
            metrics,
            exporter,
            introduction,
            connections,
            shared,
        } = self;
        let pages = pages(shared.clone());
        let _endpoint = metrics.map(|listener| listener.serve(pages)).transpose()?;
        let service = TransactionsServer::new(Service(shared.clone()))
            .max_decoding_message_size(MESSAGE_BYTES_MAX);
        // Of both versions: clients are older or newer.
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
                // So that the details of an error can be read.
                .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
        };
        let wrong = |error: tonic_reflection::server::Error| Error::Reflection(error.to_string());
        let service = Beside::new(service, reflection().build_v1().map_err(wrong)?);
        let service = Beside::new(service, reflection().build_v1alpha().map_err(wrong)?);
        let doors = Doors {
            grpc: service,
            shared: shared.clone(),
        };
        // Outside of them: one stream has any number of small requests, none of which is kept.
        let relay = OracleServer::new(Relay::new(shared.clone()));
        let relay = relay.max_decoding_message_size(RELAY_MESSAGE_BYTES_MAX);
        let service = Beside::new(doors, relay);
        let asked = shared.clone();
        let passes = move |probe| match probe {
            Probe::Ready => asked.ready().is_ok(),
            Probe::Lives => true,
        };
        let mut failed = None;
        let mut shutdown = pin!(shutdown);
        let mut connecting = pin!(connect(&options.master, &shared, exporter.as_ref()).fuse());
        let (mut expiring, grace) = (pin!(shared.expire()), options.grace);
        tracing::info!(%address, master = options.master, "the proxy serves");
        let admit = move |client| connections.admit(client);
        serve_also_http1(listener, service, passes, admit, LAST_ANSWERS, async {
            let mut introducing = pin!(introduction.repeat());
            loop {
                tokio::select! {
                    () = &mut shutdown => break,
                    () = &mut expiring => break,
                    () = &mut introducing => break,
                    connected = &mut connecting => if let Err(error) = connected {
                        failed = Some(error);
                        break;
                    },
                }
            }
            // Sessions go on to expire meanwhile.
            tokio::select! {
                ((), ()) = async { tokio::join!(shared.stop(grace), introduction.leave()) } => {}
                () = &mut expiring => {}
            }
        })
        .await?;
        failed.map_or(Ok(()), Err)
    }
}

/// Reaches the cluster, whenever that is.
async fn connect(
    master: &str,
    shared: &Transactions,
    exporter: Option<&Exporter>,
) -> Result<(), Error> {
    let limits = shared.limits();
    let options = percolator_client::Options {
        // Nothing is flushed before the commit: what a session may write is less.
        buffer_bytes: limits::TRANSACTION_BYTES_MAX,
        ..percolator_client::Options::default()
    };
    debug_assert!(limits.session_bytes_max <= limits::TRANSACTION_BYTES_MAX / 2);
    let mut logged = String::new();
    loop {
        match Client::connect_with(master, options).await {
            Ok(client) => {
                // The registry is the proxy's own, and has no other client.
                if let Err(error) = client.measure(&shared.metrics.registry) {
                    tracing::warn!(%error, "the client library's metrics are not shown");
                }
                if let Some(exporter) = exporter {
                    client.trace(exporter.provider());
                }
                shared.connected(client);
                return Ok(());
            }
            Err(cause @ percolator_client::Error::Invalid(_)) => {
                let master = master.to_owned();
                return Err(Error::Master { master, cause });
            }
            Err(error) => {
                // The same is logged once.
                let why = error.to_string();
                if why != logged {
                    tracing::warn!(%error, "the cluster isn't reached yet");
                    logged = why;
                }
                tokio::time::sleep(CONNECT_AGAIN).await;
            }
        }
    }
}

fn pages(shared: Arc<Transactions>) -> Pages {
    let (asked, alive) = (shared.clone(), shared.clone());
    Pages {
        registry: shared.metrics.registry.clone(),
        role: "proxy",
        refresh: Box::new(move || shared.show()),
        ready: Box::new(move || asked.ready()),
        healthy: Box::new(move || alive.lives()),
    }
}

fn is_grpc(headers: &http::HeaderMap) -> bool {
    let kind = headers.get(http::header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// Both doors: gRPC, and JSON below its own prefix.
#[derive(Clone)]
struct Doors<S> {
    grpc: S,
    shared: Arc<Transactions>,
}

impl<S> HttpService<http::Request<Body>> for Doors<S>
where
    S: HttpService<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.grpc.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let client = client_of(request.extensions());
        let is_json = request.uri().path().starts_with(json::PREFIX);
        let transit = self.shared.transit.clone();
        let (mut head, body) = request.into_parts();
        let (body, received) = transit.received(client, body);
        head.extensions.insert(received);
        let request = http::Request::from_parts(head, body);
        let answer: Self::Future = if is_json {
            let shared = self.shared.clone();
            async move { Ok(json::answer(shared, request).await) }.boxed()
        } else if is_grpc(request.headers()) {
            let answer = self.grpc.call(request);
            async move { Ok(failure::with_reason(answer.await?)) }.boxed()
        } else {
            // The service would answer it with 200, as all of gRPC.
            let answer = json::nothing_at(request.uri().path());
            async move { Ok(answer) }.boxed()
        };
        async move {
            let answer = answer.await?;
            Ok(answer.map(|body| transit.answered(client, body)))
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that has a token calls the address in it.
    #[tokio::test]
    async fn tokens_name_the_address_that_is_advertised() {
        let named = |advertise: Option<&str>| {
            let options = Options {
                advertise: advertise.map(str::to_owned),
                ..Options::new("127.0.0.1:1")
            };
            let server = Server::bind(options).map_err(|error| error.to_string())?;
            Ok::<_, String>((server.shared.server.clone(), server.address.port()))
        };
        let (name, port) = named(Some("10.0.0.7")).unwrap();
        assert_eq!(name, format!("10.0.0.7:{port}"));
        let (name, port) = named(Some("fd00::7")).unwrap();
        assert_eq!(name, format!("[fd00::7]:{port}"));
        let (name, _) = named(Some("proxy.example:7400")).unwrap();
        assert_eq!(name, "proxy.example:7400");
        let (name, _) = named(None).unwrap();
        assert_eq!(name, "proxy-0");
        let error = named(Some("proxy.example")).unwrap_err();
        assert!(error.contains("--advertise"), "{error}");
    }
}
