//! Health and metrics over HTTP.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::controller::Shared;

/// How long an operator may take to say that it is ready.
const PATIENCE: Duration = Duration::from_secs(10);

const ASK_AGAIN: Duration = Duration::from_millis(200);

/// Serves `/healthz`, `/readyz` and `/metrics` for ever.
pub(crate) async fn serve(listen: SocketAddr, shared: Arc<Shared>) -> anyhow::Result<()> {
    let listener = TcpListener::bind(listen)
        .await
        .with_context(|| format!("cannot listen on {listen}; choose another with --listen"))?;
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of file descriptors, as a rule: those that are open end by and by.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let shared = shared.clone();
        tokio::spawn(async move {
            let service = service_fn(|request: Request<hyper::body::Incoming>| {
                let (status, text) = answer(request.uri().path(), &shared);
                let mut response = Response::new(Full::new(Bytes::from(text)));
                *response.status_mut() = status;
                std::future::ready(Ok::<_, Infallible>(response))
            });
            // Whoever asks, and doesn't wait for the answer, has no need of it.
            let _ = http1::Builder::new()
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

/// Asks an operator whether it is ready, until it is: a service's address may lead to it a moment later.
///
/// # Errors
/// It isn't within some seconds: what the last answer was.
pub(crate) async fn check(address: &str) -> anyhow::Result<()> {
    let mut last = Err(anyhow::anyhow!("no answer"));
    let asking = async {
        loop {
            last = ask(address).await;
            if last.is_ok() {
                return;
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
    };
    let _ = tokio::time::timeout(PATIENCE, asking).await;
    last.with_context(|| format!("{address} is not ready within {PATIENCE:?}"))
}

async fn ask(address: &str) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n").await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    let first = text.lines().next().unwrap_or_default();
    anyhow::ensure!(first.contains(" 200 "), "it says: {text}");
    Ok(())
}

fn answer(path: &str, shared: &Shared) -> (StatusCode, String) {
    match path {
        "/healthz" | "/readyz" => match shared.looks.standstill(Instant::now()) {
            Some(what) => (StatusCode::SERVICE_UNAVAILABLE, format!("{what}\n")),
            None => (StatusCode::OK, "ok\n".to_owned()),
        },
        "/metrics" => match shared.metrics.text() {
            Ok(text) => (StatusCode::OK, text),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}\n")),
        },
        _ => (
            StatusCode::NOT_FOUND,
            "here are /healthz, /readyz and /metrics\n".to_owned(),
        ),
    }
}
