//! A transaction that its client's lease covers is never refused as too old (`client/src/session/`; the master holds
//! the barrier at or below the floor of every lease, `gc-master/src/sessions.rs`). A lease is a length of time on two
//! clocks, so it is a promise only where none of them went at a wrong pace.

use percolator_client::{Client, Error};

use crate::world::World;

/// Its name.
pub(super) const NAME: &str = "leases hold";

/// A transaction's call has failed like this.
pub(crate) fn look(world: &World, client: &Client, who: &str, error: &Error) {
    let Error::TooOld(too_old) = error else {
        return;
    };
    if client.is_covered(too_old.start_ts) && !world.has_paced_clocks() {
        world.fail(
            NAME,
            format!("{who} has a lease that covers its transaction, and is told: {too_old}"),
        );
    }
}
