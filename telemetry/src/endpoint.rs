//! The port on which a process shows itself: `/metrics`, `/healthz` and `/readyz`, over HTTP.
//!
//! It has a thread of its own, so that a scrape takes no time from requests, and a server that hangs still answers
//! it.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{fmt, io};

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus::Registry;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, oneshot};

use crate::process::{Process, ProcessPage};
use crate::set;
use crate::who;

/// Connections at a time; more wait.
const CONNECTIONS_MAX: usize = 32;
/// A request is a line and a few headers.
const HEADERS_WITHIN: Duration = Duration::from_secs(5);
/// One request, with its response. A client that doesn't read its page would keep others from being answered.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the observed runtime reports that it runs.
const PULSE: Duration = Duration::from_millis(500);
/// A runtime without a pulse for so long is not healthy.
const PULSE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long [`check`] asks.
const TIMEOUT: Duration = Duration::from_secs(10);
const ASK_AGAIN: Duration = Duration::from_millis(200);
/// Out of file descriptors, as a rule: those that are open end by and by.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// The beginning of a reason for not being ready, if data are lost. A person has to act then, so programs recognize this
/// reason.
pub const DATA_LOST: &str = "data lost: ";
/// The beginning of /readyz if a server serves, and its volume has no room for more.
pub const NO_ROOM: &str = "no room: ";

/// The content of the pages. The functions are called on the endpoint's thread.
pub struct Pages {
    /// All metrics of the process.
    pub registry: Registry,
    /// The role of the process: "tablet".
    pub role: &'static str,
    /// Brings the numbers up to date that are not counted where things happen; called before each scrape.
    pub refresh: Box<dyn Fn() + Send + Sync>,
    /// An error if the process doesn't do its task: no client should be sent to it.
    pub ready: Box<dyn Fn() -> Result<(), String> + Send + Sync>,
    /// An error if the process should be restarted.
    pub healthy: Box<dyn Fn() -> Result<(), String> + Send + Sync>,
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages").field("role", &self.role).finish()
    }
}

/// An error of starting the endpoint.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address can't be had.
    #[error("cannot show metrics on {address}: {cause}; choose another address for them")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        cause: io::Error,
    },
    /// Two metrics have one name.
    #[error("metrics contradict each other: {0}")]
    Metrics(prometheus::Error),
    /// The system gives no thread or runtime.
    #[error("there's no thread for metrics: {0}")]
    Thread(io::Error),
}

/// How many connections may wait to be accepted.
const BACKLOG: i32 = 128;

/// An address where metrics are going to be shown.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    address: SocketAddr,
    /// Taken here, in the order in which servers of one process begin.
    whole: Option<ProcessPage>,
    request_timeout: Duration,
}

/// The endpoint; it ends when this is dropped.
#[derive(Debug)]
pub struct Endpoint {
    address: SocketAddr,
    pulse: tokio::task::JoinHandle<()>,
    _stop: oneshot::Sender<()>,
}

/// Takes the address; port 0 picks a free one. Of several at a time in one process, the first one shows what the
/// process as a whole takes of the machine, and no other.
///
/// # Errors
/// [`Error::Listen`].
pub fn listen(address: SocketAddr) -> Result<Listener, Error> {
    let failed = |cause| Error::Listen { address, cause };
    let listener = crate::bind(address, BACKLOG).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok(Listener {
        listener,
        address,
        whole: ProcessPage::take(),
        request_timeout: REQUEST_TIMEOUT,
    })
}

impl Listener {
    /// The address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Shows the pages, and what every process has to show, from now on. To be called on the process' runtime.
    ///
    /// # Errors
    /// [`Error::Metrics`], [`Error::Thread`].
    pub fn serve(self, pages: Pages) -> Result<Endpoint, Error> {
        let process =
            Process::new(&pages.registry, pages.role, self.whole).map_err(Error::Metrics)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Error::Thread)?;
        let began = Instant::now();
        let last = Arc::new(AtomicU64::new(0));
        let shown = EndpointState {
            pages,
            process,
            began,
            last: last.clone(),
        };
        let (stop, stopped) = oneshot::channel();
        let (listener, request_timeout) = (self.listener, self.request_timeout);
        std::thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(who::inherited(move || {
                runtime.block_on(async move {
                    tokio::select! {
                        () = accept(listener, Arc::new(shown), request_timeout) => {}
                        _ = stopped => {}
                    }
                });
            }))
            .map_err(Error::Thread)?;
        let pulse = tokio::spawn(async move {
            loop {
                tokio::time::sleep(PULSE).await;
                last.store(millis(began), Ordering::Relaxed);
            }
        });
        Ok(Endpoint {
            address: self.address,
            pulse,
            _stop: stop,
        })
    }
}

impl Endpoint {
    /// The address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.pulse.abort();
    }
}

fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

struct EndpointState {
    pages: Pages,
    process: Process,
    began: Instant,
    /// When the observed runtime last said that it goes on, in milliseconds since then.
    last: Arc<AtomicU64>,
}

async fn accept(listener: TcpListener, shown: Arc<EndpointState>, request_timeout: Duration) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
        return;
    };
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else {
            return;
        };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_AGAIN).await;
            continue;
        };
        let shown = shown.clone();
        tokio::spawn(async move {
            let service = service_fn(|request: Request<hyper::body::Incoming>| {
                let response = shown.answer(request.uri().path());
                std::future::ready(Ok::<_, Infallible>(response))
            });
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADERS_WITHIN)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            // A client that doesn't wait for its response doesn't need it.
            let _ = tokio::time::timeout(request_timeout, served).await;
            drop(permit);
        });
    }
}

impl EndpointState {
    fn answer(&self, path: &str) -> Response<Full<Bytes>> {
        let (status, text) = match path {
            "/metrics" => {
                self.process.refresh(self.ready().is_ok());
                (self.pages.refresh)();
                match set::text(&self.pages.registry) {
                    Ok(text) => (StatusCode::OK, text),
                    Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
                }
            }
            "/healthz" => said(self.healthy()),
            "/readyz" => said(self.ready()),
            _ => (
                StatusCode::NOT_FOUND,
                "here are /healthz, /readyz and /metrics\n".to_owned(),
            ),
        };
        let mut response = Response::new(Full::new(Bytes::from(text)));
        *response.status_mut() = status;
        let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    }

    fn healthy(&self) -> Result<(), String> {
        let silent = millis(self.began).saturating_sub(self.last.load(Ordering::Relaxed));
        if u128::from(silent) > PULSE_TIMEOUT.as_millis() {
            return Err(format!("nothing went on here for {} s", silent / 1000));
        }
        (self.pages.healthy)()
    }

    fn ready(&self) -> Result<(), String> {
        self.healthy().and_then(|()| (self.pages.ready)())
    }
}

fn said(result: Result<(), String>) -> (StatusCode, String) {
    match result {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

/// Asks the process at this address whether it is ready, until it is: a service's address may lead to it a moment
/// later.
///
/// # Errors
/// It isn't within some seconds: what the last answer was.
pub async fn check(address: &str) -> Result<(), String> {
    let mut last = "no answer".to_owned();
    let asking = async {
        loop {
            match ask(address).await {
                Ok(answer) if answer.status == 200 => return,
                Ok(answer) => last = format!("it says: {}", answer.body.trim()),
                Err(error) => last = error.to_string(),
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
    };
    match tokio::time::timeout(TIMEOUT, asking).await {
        Ok(()) => Ok(()),
        Err(_) => Err(format!("{address} is not ready within {TIMEOUT:?}: {last}")),
    }
}

async fn ask(address: &str) -> io::Result<PageResponse> {
    get(address, "/readyz").await
}

/// The response of an endpoint.
#[derive(Clone, Debug)]
pub struct PageResponse {
    /// The status code of HTTP.
    pub status: u16,
    /// The text.
    pub body: String,
}

/// More of a page isn't read: what answers may be anything.
const PAGE_BYTES_MAX: u64 = 64 << 20;

/// Reads a page of an endpoint, up to 64 MiB of it.
///
/// # Errors
/// No answer came from there, or none in HTTP.
pub async fn get(address: &str, path: &str) -> io::Result<PageResponse> {
    let mut stream = TcpStream::connect(address).await?;
    stream
        .write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())
        .await?;
    let mut text = String::new();
    stream
        .take(PAGE_BYTES_MAX)
        .read_to_string(&mut text)
        .await?;
    let answer = text.split_once("\r\n\r\n").and_then(|(head, body)| {
        Some(PageResponse {
            status: head.split(' ').nth(1)?.parse().ok()?,
            body: body.to_owned(),
        })
    });
    answer.ok_or_else(|| io::Error::other(format!("no answer of HTTP: {text}")))
}

#[cfg(test)]
mod tests {
    use prometheus::IntGaugeVec;

    use super::*;

    /// So much that it doesn't fit into a connection's buffers.
    const PAGE_BYTES: usize = 12 << 20;

    fn large_page() -> Pages {
        let registry = Registry::new();
        let options = prometheus::Opts::new("large", "so many bytes");
        let large = IntGaugeVec::new(options, &["name"]).expect("a metric");
        for number in 0..PAGE_BYTES >> 14 {
            let name = format!("{number:016384}");
            large.with_label_values(&[&*name]).set(1);
        }
        registry.register(Box::new(large)).expect("the first");
        Pages {
            registry,
            role: "tablet",
            refresh: Box::new(|| {}),
            ready: Box::new(|| Ok(())),
            healthy: Box::new(|| Ok(())),
        }
    }

    #[tokio::test]
    async fn clients_that_do_not_read_keep_nobody_from_an_answer() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut listener = listen(any).expect("a port");
        listener.request_timeout = Duration::from_millis(200);
        let address = listener.address();
        let _endpoint = listener.serve(large_page()).expect("an endpoint");
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            let mut stream = TcpStream::connect(address).await.expect("it listens");
            let ask = b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n";
            stream.write_all(ask).await.expect("it is sent");
            silent.push(stream);
        }
        let address = address.to_string();
        let healthy = get(&address, "/healthz");
        let answer = tokio::time::timeout(Duration::from_secs(60), healthy).await;
        let answer = answer.expect("an answer in time").expect("an answer");
        assert_eq!(answer.status, 200);
        drop(silent);
    }
}
