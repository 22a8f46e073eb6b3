//! What a person does when the master has lost its state.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use percolator_wire::v1;

use crate::servers::master::Master;
use crate::servers::runner_host::SimRunner;
use crate::world::World;

/// A lost state is tried to be rebuilt so often.
const REBUILD_PAUSE: Duration = Duration::from_secs(1);

impl Master {
    /// As a person does it: `percolator master rebuild` with the names of all tablet servers, until it is done.
    pub(super) fn rebuild(self: &Arc<Self>, world: &Arc<World>, runner: &Arc<SimRunner>) {
        let (master, world2, runner) = (self.clone(), world.clone(), runner.clone());
        let asking = async move {
            loop {
                world2.sleep(REBUILD_PAUSE).await;
                let request = v1::RebuildRequest {
                    tablet_servers: master.tablet_servers.lock().clone(),
                    write: true,
                    // Of a table whose creation was begun, the tablets that nobody has made.
                    accept_data_loss: true,
                };
                match runner.clone().rebuild(request).await {
                    Ok(answer) if !answer.written => {
                        world2.note(|| format!("not rebuilt yet: {:?}", answer.problems));
                    }
                    _ => return,
                }
            }
        };
        world.spawn(self.node, asking.boxed());
    }
}
