//! The barrier and the safe point of a tablet server only go forward, whatever is started again, and the safe
//! point stays at or below the barrier (`protocol::safe_point`).

use std::collections::BTreeMap;

use percolator_protocol::safe_point::Points;

use super::Invariant;

#[derive(Default)]
pub(super) struct PointsGoForward {
    reached: BTreeMap<String, Points>,
}

impl Invariant for PointsGoForward {
    fn name(&self) -> &'static str {
        "points go forward"
    }

    fn points(&mut self, server: &str, points: Points) -> Result<(), String> {
        let before = self
            .reached
            .insert(server.to_owned(), points)
            .unwrap_or_default();
        if points.barrier < before.barrier || points.safe_point < before.safe_point {
            return Err(format!(
                "{server} goes back from {} to {}",
                shown(before),
                shown(points)
            ));
        }
        if points.safe_point > points.barrier {
            return Err(format!(
                "{server} collects what it serves: {}",
                shown(points)
            ));
        }
        Ok(())
    }
}

fn shown(points: Points) -> String {
    format!(
        "barrier={} safe_point={}",
        points.barrier, points.safe_point
    )
}
