//! Gets the tablets that others hand over to this server: asks their owners for piece after piece. A task beside the requests:
//! the server runs it on a network, the simulator on a simulated one.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use percolator_client::TabletPeers;
use percolator_wire::v1::response::Body;

use crate::{MoveCall, Unanswered};

/// How soon it is noticed that there is a tablet to be got.
const PAUSE: Duration = Duration::from_millis(50);
/// While there is one.
const PAUSE_BUSY: Duration = Duration::from_millis(2);
/// Calls under way: each brings about a mebibyte, and no owner has more than one.
const CALLS_MAX: usize = 8;
/// An owner that hasn't answered within this is asked again.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The server that gets tablets.
pub trait Arrivals {
    /// What is to be asked next; see [`Runner::next_call`](crate::runner::Runner::next_call).
    fn next_call(&self) -> Option<MoveCall>;

    /// Whether it gets any.
    fn is_arriving(&self) -> bool;

    /// What became of a call.
    fn asked(&self, call: &MoveCall, result: Result<Body, Unanswered>);
}

/// Goes on for ever. An owner that doesn't answer keeps no other one waiting: what that has closed is served nowhere meanwhile.
pub async fn get_tablets(peers: &TabletPeers, server: &impl Arrivals) {
    let mut asked = FuturesUnordered::new();
    loop {
        while asked.len() < CALLS_MAX
            && let Some(call) = server.next_call()
        {
            asked.push(ask(peers, call));
        }
        let busy = server.is_arriving();
        let pause = peers.pause(if busy { PAUSE_BUSY } else { PAUSE });
        if asked.is_empty() {
            pause.await;
        } else if let Either::Left((Some((call, answer)), _)) =
            select(asked.next(), pin!(pause)).await
        {
            server.asked(&call, answer);
        }
    }
}

async fn ask(peers: &TabletPeers, call: MoveCall) -> (MoveCall, Result<Body, Unanswered>) {
    let answer = peers.ask(&call.address, call.body.clone(), TIMEOUT).await;
    let answer = answer.map_err(|refused| match refused {
        percolator_client::Refused::OtherServer => Unanswered::OtherServer,
        percolator_client::Refused::Later(why) => Unanswered::Later(why),
        percolator_client::Refused::Unanswered(why) => Unanswered::Lost(why),
    });
    (call, answer)
}
