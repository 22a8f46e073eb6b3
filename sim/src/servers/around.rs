//! What a tablet server's runner wants done around it, until its process does it.

use std::sync::Arc;

use percolator_engine::Batch;
use percolator_tablet::Limits;
use percolator_tablet::core::{Asker, Core};
use percolator_tablet::runner::Host;
use percolator_wire::v1;

use crate::seen::Seen;
use crate::world::World;

/// See the module's head.
pub(crate) struct Around {
    world: Arc<World>,
    limits: Limits,
    pub(super) answers: Vec<(Asker, v1::Response)>,
    pub(super) group: Option<Arc<Vec<Batch>>>,
    pub(super) is_sooner: bool,
    pub(super) failure: Option<String>,
}

impl Host for Around {
    fn answer(&mut self, to: Asker, response: v1::Response) {
        self.answers.push((to, response));
    }

    fn commit(&mut self, group: Arc<Vec<Batch>>) {
        self.group = Some(group);
    }

    fn tick_sooner(&mut self) {
        self.is_sooner = true;
    }

    fn stop(&mut self, failure: &str) {
        self.failure = Some(failure.to_owned());
    }

    fn did(&mut self, core: &Core) {
        self.world.see(&Seen::Holds {
            held: core.usage(),
            limits: &self.limits,
        });
    }
}

impl Around {
    pub(super) fn new(world: Arc<World>, limits: Limits) -> Self {
        Self {
            world,
            limits,
            answers: Vec::new(),
            group: None,
            is_sooner: false,
            failure: None,
        }
    }
}
