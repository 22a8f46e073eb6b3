//! Collection takes no record that a snapshot may still need (`protocol::actions::gc`): only below
//! the safe point that the server had durably before, and there the records of locks and rollbacks, puts and deletes
//! that a newer one hides from every snapshot at the safe point, and deletes that hide nothing any more. Of commits above
//! what is resolved the fate stays.

use percolator_protocol::safe_point::Points;
use percolator_protocol::types::{Timestamp, WriteKind, key};

use super::Invariant;
use crate::watch::Change;

pub(super) struct CollectedRightly;

impl Invariant for CollectedRightly {
    fn name(&self) -> &'static str {
        "collected rightly"
    }

    fn changed(&mut self, change: &Change) -> Result<(), String> {
        let Change::DeleteWrite {
            cell,
            ts,
            write,
            leaves_fate,
            points,
            left,
        } = change
        else {
            return Ok(());
        };
        let Some(why) = needed(*ts, write.kind, *leaves_fate, *points, left) else {
            return Ok(());
        };
        let cell = key::decode_cell(cell).map_err(|error| error.to_string())?;
        Err(format!(
            "the {:?} of cell {cell} at {ts} is collected, with {} as safe point and resolved up to {}: {why}",
            write.kind, points.safe_point, points.resolved
        ))
    }
}

/// Why a record of a cell that still has those must not go yet.
fn needed(
    ts: Timestamp,
    kind: WriteKind,
    leaves_fate: bool,
    points: Points,
    left: &[(Timestamp, WriteKind)],
) -> Option<&'static str> {
    let safe_point = points.safe_point;
    if ts >= safe_point {
        return Some("it doesn't stand below");
    }
    if !leaves_fate && kind != WriteKind::Rollback && ts >= points.resolved {
        return Some("its fate is not kept");
    }
    let shows = |kind: WriteKind| matches!(kind, WriteKind::Put | WriteKind::Delete);
    let mut visible = left.iter().filter(|(_, kind)| shows(*kind));
    let hidden = visible
        .clone()
        .any(|(other, _)| *other > ts && *other <= safe_point);
    match kind {
        WriteKind::Lock | WriteKind::Rollback => None,
        _ if hidden => None,
        WriteKind::Put => Some("nothing newer hides it there"),
        WriteKind::Delete => visible
            .any(|(other, _)| *other < ts)
            .then_some("it hides an older record that is still there"),
    }
}
