//! Resolves the locks below the barrier in this server's tablets, so that the safe point can follow. Locks of ended
//! transactions are cleared, transactions of dead clients are rolled back, and commits of live ones are pushed above the
//! barrier. A task beside the requests: the server runs it on a network, the simulator on a simulated one.

use std::time::Duration;

use percolator_client::{LockResolver, Obstacle};
use percolator_protocol::types::Timestamp;
use percolator_wire::v1;

/// The pause between two checks of the barrier.
const PAUSE: Duration = Duration::from_millis(250);
/// The pause after a lock that can't be resolved yet.
const PAUSE_BLOCKED: Duration = Duration::from_secs(1);

/// The server whose locks are resolved.
pub trait OwnLocks {
    /// The barrier, if locks below it are not resolved yet; see [`Runner::next_to_resolve`](crate::runner::Runner::next_to_resolve).
    fn next_to_resolve(&self) -> Option<Timestamp>;

    /// The next locks below this, behind this cell.
    ///
    /// # Errors
    /// The engine can't be read.
    fn locks_below(
        &self,
        below: Timestamp,
        after: Option<v1::CellName>,
    ) -> Result<v1::LocksBelowResponse, String>;

    /// Takes the result of resolving the locks below this.
    fn resolved(&self, below: Timestamp, result: Result<(), Obstacle>);
}

/// Resolves locks for ever.
pub async fn resolve_locks(resolver: &LockResolver, server: &impl OwnLocks) {
    let mut pause = PAUSE;
    loop {
        resolver.pause(pause).await;
        pause = PAUSE;
        let Some(below) = server.next_to_resolve() else {
            continue;
        };
        let page = |after| server.locks_below(below, after);
        let result = resolver.resolve_below(below, page).await;
        if result.is_err() {
            pause = PAUSE_BLOCKED;
        }
        server.resolved(below, result);
    }
}
