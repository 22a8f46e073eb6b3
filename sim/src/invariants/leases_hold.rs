//! A transaction that its client's lease covers is never refused as too old (`client/src/session/`; the master holds
//! the barrier at or below the floor of every lease, `gc-master/src/sessions.rs`). A lease is a length of time on two
//! clocks, so it is a promise only where none of them went at a wrong pace.
//!
//! If nothing keeps a client from its master and the oracle, nor the master from its registers, its lease has to cover each transaction from its begin to
//! its end, whatever the client believes of it: a client that counts on too little would find every refusal right.

use std::sync::atomic::Ordering;
use std::time::Duration;

use percolator_client::Error;

use crate::plan::{Fault, Plan};
use crate::recorder::Session;
use crate::seen::Seen;

/// Its name.
pub(super) const NAME: &str = "leases hold";
/// A shorter lease may end between two renewals of a healthy client.
const LEASE_MIN: Duration = Duration::from_millis(200);
/// Faults that no renewal of a lease meets.
const ELSEWHERE: [Fault; 5] = [
    Fault::KillClient,
    Fault::Burst,
    Fault::DiskHang,
    Fault::NewCluster,
    Fault::LoseFolder,
];

impl Plan {
    /// Whether nothing keeps a client's lease from covering each of its transactions.
    pub(crate) fn covers_all(&self) -> bool {
        let mut faults = self.faults.iter();
        self.retention >= LEASE_MIN && faults.all(|fault| ELSEWHERE.contains(fault))
    }
}

/// A transaction's call has failed like this. `is_fresh`: its snapshot was taken for it.
pub(crate) fn look(session: &Session, is_fresh: bool, error: &Error) {
    let (world, who) = (&session.world, &session.name);
    let Error::TooOld(too_old) = error else {
        return;
    };
    world.see(&Seen::TooOld(too_old.start_ts));
    if session.client.is_covered(too_old.start_ts) && !world.has_paced_clocks() {
        world.fail(
            NAME,
            format!("{who} has a lease that covers its transaction, and is told: {too_old}"),
        );
    } else if is_fresh && session.is_covered && !world.has_outage.load(Ordering::Relaxed) {
        world.fail(
            NAME,
            format!(
                "nothing kept {who} from a lease for its transaction, and it is told: {too_old}"
            ),
        );
    }
}
