//! What tablet servers ask of each other.

use std::sync::Arc;
use std::time::Duration;

use percolator_wire::v1;
use percolator_wire::v1::request_error::Kind;
use percolator_wire::v1::response::Body;

use crate::Error;
use crate::network::Network;
use crate::router::Deadline;
use crate::transport::Transport;

/// Other tablet servers, by their addresses.
pub struct TabletPeers(Arc<dyn Transport>);

/// The reason why a peer has not done what it was asked to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerError {
    /// It was meant for another server, or for another start of this one.
    OtherServer,
    /// It refuses now.
    Later(String),
    /// It may be asked again.
    Unanswered(String),
}

impl TabletPeers {
    /// Over this transport.
    pub fn over(transport: Arc<dyn Transport>) -> Self {
        Self(transport)
    }

    /// In the cluster whose master is at this address, as [`crate::LockResolver::connect`] takes it.
    ///
    /// # Errors
    /// [`Error::Invalid`]: it's no address.
    pub fn connect(master: &str, request_timeout: Duration) -> Result<Self, Error> {
        let network = Network::new(master, request_timeout).map_err(Error::Invalid)?;
        Ok(Self::over(Arc::new(network)))
    }

    /// Waits.
    pub async fn pause(&self, duration: Duration) {
        self.0.sleep(duration).await;
    }

    /// Asks the server at this address, once, and waits for its response for so long.
    ///
    /// # Errors
    /// [`PeerError`].
    pub async fn ask(
        &self,
        address: &str,
        body: v1::request::Body,
        request_timeout: Duration,
    ) -> Result<Body, PeerError> {
        let request = v1::Request {
            id: 0,
            tablets: Vec::new(),
            body: Some(body),
            trace: None,
        };
        let transport = &*self.0;
        let start = transport.now();
        let deadline = Deadline {
            start,
            end: start.saturating_add(request_timeout),
        };
        let answer = deadline
            .within(transport, transport.tablet(address, request))
            .await;
        let unanswered = |why: String| Err(PeerError::Unanswered(why));
        match answer {
            None => unanswered(format!(
                "{address} has not answered within {request_timeout:?}"
            )),
            Some(Err(lost)) => unanswered(lost.why),
            Some(Ok(response)) => match response.body {
                Some(Body::Error(v1::RequestError {
                    kind: Some(Kind::OtherServer(_)),
                })) => Err(PeerError::OtherServer),
                Some(Body::Error(error)) => {
                    Err(PeerError::Later(format!("{address} refuses: {error:?}")))
                }
                Some(body) => Ok(body),
                None => unanswered(format!("{address} sent an empty answer")),
            },
        }
    }
}
