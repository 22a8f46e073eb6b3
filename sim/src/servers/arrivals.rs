//! The tablets that a simulated tablet server gets, for what gets them.

use std::sync::Arc;

use futures_util::FutureExt;
use percolator_client::TabletPeers;
use percolator_tablet::mover::{Arrivals, get_tablets};
use percolator_tablet::{MoveCall, MoveResponse, Unanswered};

use crate::servers::tablet::{Shared, Tablet};
use crate::world::World;

/// The tablets that a process gets.
struct ProcessArrivals {
    tablet: Arc<Tablet>,
    world: Arc<World>,
    running: Shared,
}

/// Gets tablets that others hand over, for ever.
pub(super) fn get(tablet: Arc<Tablet>, world: &Arc<World>, running: Shared) {
    let peers = TabletPeers::over(tablet.transport(world, "mover"));
    let node = tablet.node;
    let arrivals = ProcessArrivals {
        tablet,
        world: world.clone(),
        running,
    };
    let getting = async move { get_tablets(&peers, &arrivals).await };
    world.spawn(node, getting.boxed());
}

impl Arrivals for ProcessArrivals {
    fn next_call(&self) -> Option<MoveCall> {
        let now = self.world.mono(self.tablet.node);
        self.running.lock().runner.next_call(now)
    }

    fn is_arriving(&self) -> bool {
        self.running.lock().runner.is_arriving()
    }

    fn asked(&self, call: &MoveCall, result: Result<MoveResponse, Unanswered>) {
        self.tablet.act(&self.world, &self.running, |runner, now| {
            runner.asked(now, call, result);
        });
    }
}
