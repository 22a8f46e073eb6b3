//! The tablets that a simulated tablet server gets, for what gets them.

use std::sync::Arc;

use percolator_tablet::mover::Arrivals;
use percolator_tablet::{MoveCall, Unanswered};
use percolator_wire::v1::response::Body;

use crate::servers::tablet::{Shared, Tablet};
use crate::world::World;

/// The tablets that a process gets.
pub(super) struct ProcessArrivals {
    pub(super) tablet: Arc<Tablet>,
    pub(super) world: Arc<World>,
    pub(super) running: Shared,
}

impl Arrivals for ProcessArrivals {
    fn next_call(&self) -> Option<MoveCall> {
        let now = self.world.mono(self.tablet.node);
        self.running.lock().runner.next_call(now)
    }

    fn is_arriving(&self) -> bool {
        self.running.lock().runner.is_arriving()
    }

    fn asked(&self, call: &MoveCall, result: Result<Body, Unanswered>) {
        self.tablet.act(&self.world, &self.running, |runner, now| {
            runner.asked(now, call, result);
        });
    }
}
