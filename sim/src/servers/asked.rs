//! What a simulated tablet server was asked, until it is answered.

use percolator_gc_master::Done;
use percolator_tablet::core::Core;
use percolator_wire::v1;
use percolator_wire::v1::response::Body;

use crate::messages::Answer;
use crate::words;

/// What somebody waits for.
pub(super) enum Asked {
    Request,
    /// A command of the master, which cuts these tablets.
    Command(Vec<u64>),
}

impl Asked {
    /// What is answered, by what the core says.
    pub(super) fn answer(self, core: &Core, response: v1::Response) -> Answer {
        match (self, response.body) {
            (Self::Request, body) => Answer::Tablet(v1::Response { body, ..response }),
            (Self::Command(_), Some(Body::Error(error))) => {
                Answer::Done(Err(words::refusal(&error)))
            }
            (Self::Command(cuts), _) => Answer::Done(Ok(Done {
                groups: core.groups(),
                tablets: cuts
                    .iter()
                    .filter_map(|id| core.tablet(*id).cloned())
                    .collect(),
            })),
        }
    }
}
