//! Collection takes no record that a snapshot may still need (`protocol::actions::gc`): only below
//! the safe point that the server had durably before, and there the records of locks and rollbacks, puts and deletes
//! that a newer one hides from every snapshot at the safe point, and deletes that hide nothing any more.

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
            safe_point,
            left,
        } = change
        else {
            return Ok(());
        };
        let Some(why) = needed(*ts, write.kind, *safe_point, left) else {
            return Ok(());
        };
        let cell = key::decode_cell(cell).map_err(|error| error.to_string())?;
        Err(format!(
            "the {:?} of cell {cell} at {ts} is collected, with {safe_point} as safe point: {why}",
            write.kind
        ))
    }
}

/// Why a record of a cell that still has those must not go yet.
fn needed(
    ts: Timestamp,
    kind: WriteKind,
    safe_point: Timestamp,
    left: &[(Timestamp, WriteKind)],
) -> Option<&'static str> {
    if ts >= safe_point {
        return Some("it doesn't stand below");
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
