//! Keep-alive: the owner renews its primary's life time (seed 000, part 7).

use super::CellView;
use crate::types::{Effect, Lock, Timestamp};

/// Sets the life time of the primary's lock, in milliseconds after start_ts; never shortens it.
/// Returns the life time in force, or `None` where the transaction holds no lock here any more.
pub fn keep_alive(view: &CellView, start_ts: Timestamp, ttl_ms: u64) -> (Vec<Effect>, Option<u64>) {
    let Some(lock) = view.own_lock(start_ts) else {
        return (Vec::new(), None);
    };
    if ttl_ms <= lock.ttl_ms {
        return (Vec::new(), Some(lock.ttl_ms));
    }
    let renewed = Lock {
        ttl_ms,
        ..lock.clone()
    };
    (vec![Effect::PutLock(renewed)], Some(ttl_ms))
}
