//! Calls the owners of the tablets that this server gets. A task beside the requests: the server runs it on a network, the
//! simulator on a simulated one.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use percolator_client::{PeerError, TabletPeers};

use crate::{MoveCall, MoveResponse, Unanswered};

/// The pause while no tablet arrives.
const PAUSE: Duration = Duration::from_millis(50);
/// The pause while one arrives.
const PAUSE_BUSY: Duration = Duration::from_millis(2);
/// Calls under way: each brings about a mebibyte, and no owner has more than one.
const CALLS_MAX: usize = 8;
/// A call is repeated after this.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// The server that gets tablets.
pub trait Arrivals {
    /// The next call; see [`Runner::next_call`](crate::runner::Runner::next_call).
    fn next_call(&self) -> Option<MoveCall>;

    /// Whether the server gets any tablet.
    fn is_arriving(&self) -> bool;

    /// Takes the result of a call.
    fn asked(&self, call: &MoveCall, result: Result<MoveResponse, Unanswered>);
}

/// Calls owners for ever. An owner that doesn't respond must not delay the others: the tablets that they have closed are served
/// nowhere meanwhile.
pub async fn get_tablets(peers: &TabletPeers, server: &impl Arrivals) {
    let mut calls = FuturesUnordered::new();
    loop {
        while calls.len() < CALLS_MAX
            && let Some(call) = server.next_call()
        {
            calls.push(ask(peers, call));
        }
        let busy = server.is_arriving();
        let pause = peers.pause(if busy { PAUSE_BUSY } else { PAUSE });
        if calls.is_empty() {
            pause.await;
        } else if let Either::Left((Some((call, result)), _)) =
            select(calls.next(), pin!(pause)).await
        {
            server.asked(&call, result);
        }
    }
}

async fn ask(peers: &TabletPeers, call: MoveCall) -> (MoveCall, Result<MoveResponse, Unanswered>) {
    let request = call.request.clone().into();
    let response = peers.ask(&call.address, request, CALL_TIMEOUT).await;
    let result = match response {
        Ok(body) => {
            MoveResponse::try_from(body).map_err(|error| Unanswered::Lost(error.to_string()))
        }
        Err(PeerError::OtherServer) => Err(Unanswered::OtherServer),
        Err(PeerError::Later(why)) => Err(Unanswered::Later(why)),
        Err(PeerError::Unanswered(why)) => Err(Unanswered::Lost(why)),
    };
    (call, result)
}
