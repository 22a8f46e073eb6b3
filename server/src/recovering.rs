//! Health checks of a server that is busy getting ready.

use std::convert::Infallible;
use std::future::Pending;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::task::{Context, Poll};
use std::time::Duration;

use percolator_telemetry::who;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tonic::body::Body;
use tonic::codegen::{Service, http};

use crate::{Error, Probe, serve_when};

/// Does what may take long, and blocks this thread, as reading a log does. Meanwhile a thread of its own answers checks of health on
/// the listener: that the server is alive, `lives`, and that it isn't ready. All other requests wait, and their connections are cut
/// in the end: clients ask again. Connections that come later reach the server itself.
///
/// # Errors
/// [`Error::Listen`] or [`Error::Runtime`] if the system gives no second handle of the listener, or no thread; nothing was
/// done then.
pub fn while_recovering<T>(
    listener: &TcpListener,
    lives: bool,
    work: impl FnOnce() -> T,
) -> Result<T, Error> {
    let address = listener
        .local_addr()
        .unwrap_or_else(|_| SocketAddr::from(([0, 0, 0, 0], 0)));
    let copy = listener
        .as_fd()
        .try_clone_to_owned()
        .map_err(|cause| Error::Listen { address, cause })?;
    let (stop, stopped) = oneshot::channel::<Infallible>();
    let answers = async move {
        let listener =
            TcpListener::from_std(copy.into()).map_err(|cause| Error::Listen { address, cause })?;
        let passes = move |probe| lives && probe == Probe::Lives;
        let never = std::future::pending();
        tokio::select! {
            result = serve_when(listener, Waiting, passes, Duration::ZERO, never) => result,
            _ = stopped => Ok(()),
        }
    };
    let thread = std::thread::Builder::new()
        .name("recovering".into())
        .spawn(who::inherited(move || -> Result<(), Error> {
            // Its end cuts all connections.
            crate::run_on_current_thread("recovering", answers)?
        }))
        .map_err(|cause| Error::Runtime {
            name: "recovering".into(),
            cause,
        })?;
    let done = work();
    drop(stop);
    if let Ok(Err(error)) = thread.join() {
        tracing::warn!(%error, "checks of health were not answered while the server recovered");
    }
    Ok(done)
}

/// Answers no request.
#[derive(Clone)]
struct Waiting;

impl Service<http::Request<Body>> for Waiting {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pending<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<Body>) -> Self::Future {
        std::future::pending()
    }
}
