//! Drives collection: asks the oracle for the time, lets the directory move its points, and resolves the locks
//! that are in their way.

use std::time::Duration;

use percolator_client::Sweeper;
use percolator_protocol::types::Timestamp;

use crate::collection::{ORACLE, Progress, Sweep};

/// Goes on until `step` is told to stop by its master. `step` takes the directory's step
/// ([`Directory::collect`](crate::Directory::collect)), makes it durable, and returns what is to be resolved and
/// how long to wait before the next look at the time; `None` ends it.
pub async fn drive(
    sweeper: &Sweeper,
    mut step: impl FnMut(Progress) -> Option<(Option<Sweep>, Duration)>,
) {
    let mut pause = Duration::from_millis(100);
    loop {
        sweeper.pause(pause).await;
        let Some((sweep, next)) = step(time(sweeper).await) else {
            return;
        };
        pause = next;
        let Some(sweep) = sweep else { continue };
        let swept = {
            // That may take long: the barrier goes on meanwhile. What is below a newer one waits for the next round.
            let time_goes_on = async {
                let mut pause = pause;
                loop {
                    sweeper.pause(pause).await;
                    match step(time(sweeper).await) {
                        Some((_, next)) => pause = next,
                        None => return,
                    }
                }
            };
            tokio::select! {
                biased;
                swept = resolve(sweeper, sweep) => Some(swept),
                () = time_goes_on => None,
            }
        };
        if swept.and_then(&mut step).is_none() {
            return;
        }
    }
}

/// Without the time nothing can be moved.
async fn time(sweeper: &Sweeper) -> Progress {
    match sweeper.timestamp().await {
        Ok(now) => Progress::Time(now),
        Err(what) => Progress::Blocked {
            server: ORACLE.to_owned(),
            what,
            start_ts: Timestamp::ZERO,
        },
    }
}

async fn resolve(sweeper: &Sweeper, sweep: Sweep) -> Progress {
    for server in &sweep.servers {
        if let Err(in_the_way) = sweeper.resolve_below(server, sweep.below).await {
            return Progress::Blocked {
                server: in_the_way.server,
                what: in_the_way.what,
                start_ts: in_the_way.start_ts,
            };
        }
    }
    Progress::Resolved(sweep)
}
