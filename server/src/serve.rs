//! Serving gRPC, and stopping although clients hold streams open.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use percolator_telemetry::Limited;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Sleep, sleep};
use tonic::body::Body;
use tonic::codegen::tokio_stream::{Stream, StreamExt};
use tonic::codegen::{Service, http};
use tonic::transport::server::{Connected, TcpConnectInfo, TcpIncoming};

use crate::Beside;
use crate::Error;
use crate::health::{Probe, health};

/// Windows of HTTP/2: a packed stream carries everything of a client, and with the default of
/// 64 KiB it would wait for its peer's acknowledgements.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;
/// Calls that a connection may have at a time: each takes memory before it is read. Those beyond wait at the client.
const STREAMS_MAX: u32 = 512;
/// A connection that is silent for so long is pinged, and closed without a response.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection whose peer takes nothing of what is to be sent is closed after so long: what is kept for
/// it is freed. One of HTTP/2 is closed before, for want of a response to a ping.
const UNTAKEN_MAX: Duration = Duration::from_secs(60);
/// The pause after a connection could not be accepted: what the system is out of, open files as a rule, is free again
/// when other connections end.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// After connections were cut, how long their tasks may take to notice.
const CUT: Duration = Duration::from_secs(5);

/// Of connections that could not be accepted: it is tried again and again.
static NOT_ACCEPTED: Limited = Limited::new();

/// A service that can be served: a generated gRPC server, or one in front of such.
pub trait GrpcService:
    Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible, Future: Send>
    + Clone
    + Send
    + 'static
{
}

impl<S> GrpcService for S where
    S: Service<
            http::Request<Body>,
            Response = http::Response<Body>,
            Error = Infallible,
            Future: Send,
        > + Clone
        + Send
        + 'static
{
}

/// Serves a generated gRPC server (or several, with [`Beside`]) on the listener until `shutdown`
/// ends, with the health service of gRPC beside it. Then no connection is accepted any more, requests under way may
/// go on for `grace`, and connections that are open after that, such as the endless streams of clients, are cut.
///
/// # Errors
/// [`Error::Serve`] if the transport fails.
pub async fn serve(
    listener: TcpListener,
    service: impl GrpcService,
    grace: Duration,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    serve_when(listener, service, |_| true, grace, shutdown).await
}

/// [`serve_when`], for a service that answers requests of HTTP/1.1 as well, and that many may reach. `admit` is asked about
/// each connection, by the address that it comes from: without an answer it is closed, and the answer is kept until it ends.
///
/// # Errors
/// As [`serve`].
pub async fn serve_also_http1<A>(
    listener: TcpListener,
    service: impl GrpcService,
    passes: impl Fn(Probe) -> bool + Send + Sync + 'static,
    admit: impl Fn(SocketAddr) -> Option<A>,
    grace: Duration,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error>
where
    A: Send + Unpin + 'static,
{
    let transport = transport().accept_http1(true);
    serve_over(transport, listener, service, passes, admit, grace, shutdown).await
}

/// [`serve`], for a server that answers from the start, but does not always serve: `passes` answers each check of its
/// health.
///
/// # Errors
/// As [`serve`].
pub async fn serve_when(
    listener: TcpListener,
    service: impl GrpcService,
    passes: impl Fn(Probe) -> bool + Send + Sync + 'static,
    grace: Duration,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    let admit = |_| Some(());
    serve_over(
        transport(),
        listener,
        service,
        passes,
        admit,
        grace,
        shutdown,
    )
    .await
}

fn transport() -> tonic::transport::Server {
    tonic::transport::Server::builder()
        .max_concurrent_streams(Some(STREAMS_MAX))
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
}

async fn serve_over<A>(
    transport: tonic::transport::Server,
    listener: TcpListener,
    service: impl GrpcService,
    passes: impl Fn(Probe) -> bool + Send + Sync + 'static,
    admit: impl Fn(SocketAddr) -> Option<A>,
    grace: Duration,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error>
where
    A: Send + Unpin + 'static,
{
    let service = Beside::new(service, health(passes));
    let address = listener
        .local_addr()
        .unwrap_or_else(|_| SocketAddr::from(([0, 0, 0, 0], 0)));
    let (cut, is_cut) = watch::channel(false);
    let (stopping, is_stopping) = watch::channel(());
    let incoming = TcpIncoming::from(listener)
        .with_nodelay(Some(true))
        .with_keepalive(Some(KEEPALIVE_INTERVAL));
    let mut serving = pin!(transport.serve_with_incoming_shutdown(
        service,
        cuttable(incoming, admit, is_cut),
        async move {
            shutdown.await;
            drop(stopping);
        }
    ));
    let mut ended_by_itself = is_stopping;
    let bound = async {
        // Ends when the shutdown was asked for, which drops the sender.
        while ended_by_itself.changed().await.is_ok() {}
        tokio::time::sleep(grace).await;
    };
    let failed = |cause| Error::Serve { address, cause };
    tokio::select! {
        result = &mut serving => return result.map_err(failed),
        () = bound => {}
    }
    let _ = cut.send(true);
    match tokio::time::timeout(CUT, serving).await {
        Ok(result) => result.map_err(failed),
        Err(_) => {
            tracing::warn!(%address, "some connections did not end in time");
            Ok(())
        }
    }
}

/// What was accepted, or why not. Without a pause for what is no fault of one connection, the listener would fail at once again, and
/// take a whole processor.
async fn paced(accepted: io::Result<TcpStream>) -> io::Result<TcpStream> {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    if let Err(error) = &accepted
        && !matches!(
            error.kind(),
            ConnectionAborted | ConnectionReset | Interrupted
        )
    {
        if let Some(left_out) = NOT_ACCEPTED.admit() {
            tracing::warn!(%error, left_out, "no connection can be accepted; trying again");
        }
        sleep(ACCEPT_AGAIN).await;
    }
    accepted
}

fn cuttable<A>(
    incoming: impl Stream<Item = io::Result<TcpStream>>,
    admit: impl Fn(SocketAddr) -> Option<A>,
    cut: watch::Receiver<bool>,
) -> impl Stream<Item = io::Result<Cuttable<A>>> {
    incoming.then(paced).filter_map(move |stream| {
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => return Some(Err(error)),
        };
        // One that is closed already has no address.
        let admitted = admit(stream.peer_addr().ok()?)?;
        let mut cut = cut.clone();
        Some(Ok(Cuttable {
            stream,
            cut: Some(Box::pin(async move {
                // An error means that the server is gone: that cuts as well.
                let _ = cut.wait_for(|cut| *cut).await;
            })),
            untaken: None,
            _admitted: admitted,
        }))
    })
}

/// A connection that reads as closed once it is cut, and that fails if its peer takes nothing.
struct Cuttable<A> {
    stream: TcpStream,
    /// Ends when the connection is to be cut; none after that.
    cut: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// While the peer takes nothing: ends when it has had enough time.
    untaken: Option<Pin<Box<Sleep>>>,
    _admitted: A,
}

impl<A> Cuttable<A> {
    /// What became of a write.
    fn written(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.untaken = None;
            return written;
        }
        let untaken = &mut self.untaken;
        let untaken = untaken.get_or_insert_with(|| Box::pin(sleep(UNTAKEN_MAX)));
        ready!(untaken.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<A: Unpin> Connected for Cuttable<A> {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl<A: Unpin> AsyncRead for Cuttable<A> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let cut = match &mut self.cut {
            Some(cut) => cut.as_mut().poll(cx).is_ready(),
            None => true,
        };
        if cut {
            self.cut = None;
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<A: Unpin> AsyncWrite for Cuttable<A> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.written(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.written(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;
    use tonic::codegen::tokio_stream;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_the_system_lacks_is_waited_for() {
        const TIMES: u32 = 50;
        let pauses = async |error: Errno| {
            let fails = (0..TIMES).map(|_| Err(io::Error::from(error)));
            let (_cut, is_cut) = watch::channel(false);
            let mut incoming = pin!(cuttable(tokio_stream::iter(fails), Some, is_cut));
            let began = tokio::time::Instant::now();
            while let Some(accepted) = incoming.next().await {
                assert!(accepted.is_err());
            }
            began.elapsed()
        };
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM] {
            assert!(pauses(errno).await >= TIMES * ACCEPT_AGAIN, "{errno}");
        }
        // Another connection may be waiting behind it.
        assert_eq!(pauses(Errno::CONNABORTED).await, Duration::ZERO);
    }
}
