//! Gets the tablets that others hand over to this server: asks their owners for piece after piece. A task beside the requests:
//! the server runs it on a network, the simulator on a simulated one.

use std::time::Duration;

use percolator_client::TabletPeers;
use percolator_wire::v1::response::Body;

use crate::{MoveCall, Unanswered};

/// How soon it is noticed that there is a tablet to be got.
const PAUSE: Duration = Duration::from_millis(50);
/// While there is one.
const PAUSE_BUSY: Duration = Duration::from_millis(2);
/// An owner that hasn't answered within this is asked again.
const PATIENCE: Duration = Duration::from_secs(2);

/// The server that gets tablets.
pub trait Arrivals {
    /// What is to be asked next; see [`Runner::next_call`](crate::runner::Runner::next_call).
    fn next_call(&self) -> Option<MoveCall>;

    /// Whether it gets any.
    fn is_arriving(&self) -> bool;

    /// What became of a call.
    fn asked(&self, call: &MoveCall, result: Result<Body, Unanswered>);
}

/// Goes on for ever.
pub async fn get_tablets(peers: &TabletPeers, server: &impl Arrivals) {
    loop {
        let Some(call) = server.next_call() else {
            let busy = server.is_arriving();
            peers.pause(if busy { PAUSE_BUSY } else { PAUSE }).await;
            continue;
        };
        let answer = peers.ask(&call.address, call.body.clone(), PATIENCE).await;
        let answer = answer.map_err(|refused| match refused {
            percolator_client::Refused::OtherServer => Unanswered::OtherServer,
            percolator_client::Refused::Later(why) => Unanswered::Later(why),
            percolator_client::Refused::Unanswered(why) => Unanswered::Lost(why),
        });
        server.asked(&call, answer);
    }
}
