//! The points of a tablet server only go forward, whatever is started again; the safe point stays at or below the
//! barrier, and resolved at or below the safe point (`protocol::safe_point`).

use std::collections::BTreeMap;
use std::time::Duration;

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

    fn removed(&mut self, server: &str) -> Result<(), String> {
        self.reached.remove(server);
        Ok(())
    }

    fn points(&mut self, server: &str, points: Points, _: Option<Duration>) -> Result<(), String> {
        let before = self
            .reached
            .insert(server.to_owned(), points)
            .unwrap_or_default();
        let (now, reached) = (points, before);
        if now.barrier < reached.barrier
            || now.safe_point < reached.safe_point
            || now.resolved < reached.resolved
        {
            return Err(format!(
                "{server} goes back from {} to {}",
                shown(before),
                shown(points)
            ));
        }
        if points.safe_point > points.barrier || points.resolved > points.safe_point {
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
        "barrier={} safe_point={} resolved={}",
        points.barrier, points.safe_point, points.resolved
    )
}
