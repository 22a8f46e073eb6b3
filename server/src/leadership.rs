//! Loads and swaps of a register that says who leads, in the terms of the election (`protocol::election`).

use percolator_protocol::election::{Leadership, StoredLeadership, SwapResult};
use percolator_register::{Register, RegisterVersion, SwapError};

/// What the register holds.
///
/// # Errors
/// Why that isn't known.
pub async fn load(register: &dyn Register) -> Result<Option<StoredLeadership>, String> {
    let found = register.load().await.map_err(|error| error.to_string())?;
    let Some(found) = found else { return Ok(None) };
    let value = Leadership::decode(&found.value).map_err(|error| error.to_string())?;
    let version = found.version.0;
    Ok(Some(StoredLeadership { version, value }))
}

/// What a swap means for the election.
pub fn swap_result(swapped: &Result<RegisterVersion, SwapError>) -> SwapResult {
    match swapped {
        Ok(version) => SwapResult::Done(version.0),
        Err(SwapError::Conflict { .. }) => SwapResult::Conflict,
        Err(SwapError::Unknown { .. }) => SwapResult::Unknown,
        Err(
            SwapError::TooLarge { .. }
            | SwapError::Refused { .. }
            | SwapError::Damaged { .. }
            | SwapError::Unavailable { .. },
        ) => SwapResult::NotDone,
    }
}
