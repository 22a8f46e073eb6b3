//! Runs an election (`protocol::election`) over its register: carries out the commands of a replica, one at a time. The
//! oracles, the masters and the simulator's replicas of both run this.

use std::time::{Duration, Instant};

use percolator_protocol::election::{Command, Leadership, StoredLeadership, SwapResult};
use percolator_register::{Register, RegisterVersion, SwapError};

/// One replica of an election, with its clock. Each method reads the clock.
pub trait Replica: Sync {
    /// The next command, if one is due.
    fn poll(&self) -> Option<Command>;

    /// The load under way has ended: with what the register holds, or with why that isn't known.
    fn loaded(&self, result: Result<Option<StoredLeadership>, String>);

    /// The swap under way has ended, after so long.
    fn swapped(&self, result: SwapResult, cause: Option<&SwapError>, took: Duration);
}

/// Carries out all commands that are due. When this is dropped, the command under way was given up on: see
/// [`Election::abandon`](percolator_protocol::election::Election::abandon).
pub async fn drive(register: &dyn Register, replica: &impl Replica) {
    while let Some(command) = replica.poll() {
        match command {
            Command::Load => replica.loaded(load(register).await),
            Command::Swap { expected, value } => {
                let began = Instant::now();
                let expected = expected.map(RegisterVersion);
                let swapped = register.swap(expected, value.encode()).await;
                replica.swapped(
                    swap_result(&swapped),
                    swapped.as_ref().err(),
                    began.elapsed(),
                );
            }
        }
    }
}

/// What the register holds.
async fn load(register: &dyn Register) -> Result<Option<StoredLeadership>, String> {
    let found = register.load().await.map_err(|error| error.to_string())?;
    let Some(found) = found else { return Ok(None) };
    let value = Leadership::decode(&found.value).map_err(|error| error.to_string())?;
    let version = found.version.0;
    Ok(Some(StoredLeadership { version, value }))
}

/// What a swap means for the election.
fn swap_result(swapped: &Result<RegisterVersion, SwapError>) -> SwapResult {
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
