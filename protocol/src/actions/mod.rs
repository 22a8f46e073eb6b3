//! The rules of a tablet server: one rule, one file, one synchronous function on one cell.

mod check_status;
mod commit;
mod gc;
mod get;
mod keep_alive;
mod notify;
mod one_phase;
mod prewrite;
mod resolve;
mod rollback;
mod scan;
mod view;

pub use check_status::{NotThePrimary, Status, StatusQuery, check_status};
pub use commit::{CommitRejection, commit};
pub use gc::{Collected, gc};
pub use get::{Read, Snapshot, get};
pub use keep_alive::keep_alive;
pub use notify::{NotNotified, acknowledges, change, changed_at, left, may_acknowledge, notify};
pub use one_phase::{OnePhaseRejection, one_phase};
pub use prewrite::{Prewrite, PrewriteRejection, min_commit_ts, prewrite};
pub use resolve::resolve;
pub use rollback::{AlreadyCommitted, rollback};
pub use scan::{ScanEnd, scan_forward, scan_reverse};
pub use view::{CellView, OwnRecord};
