//! Keep-alive: the owner renews the ttl of its primary's lock.

use super::CellView;
use crate::types::{Effect, Lock, Timestamp};

/// Sets the ttl of the primary's lock, in milliseconds after start_ts; never shortens it.
/// Returns the ttl in force, or `None` where the transaction holds no lock here any more.
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
