//! What a server holds is bounded (architecture, rule 9): requests that wait in a tablet server are never
//! more than its limit, whatever the load.

use super::Invariant;

/// The tablet server's own limit (`tablet/src/core.rs`, `WAITING_MAX`).
const WAITING_MAX: usize = 65_536;

pub(super) struct Waiting;

impl Invariant for Waiting {
    fn name(&self) -> &'static str {
        "bounded memory"
    }

    fn waiting(&mut self, requests: usize) -> Result<(), String> {
        if requests > WAITING_MAX {
            return Err(format!(
                "{requests} requests wait, {WAITING_MAX} are the limit"
            ));
        }
        Ok(())
    }
}
