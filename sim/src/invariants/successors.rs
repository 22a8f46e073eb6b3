//! A master that takes over goes on from all that masters have shown (`docs/design/failover.md`, "Masters while the register is
//! away"): from the last state that was durable, or a later one, and no point and no table in it is behind what was shown.

use percolator_protocol::election::StateNumber;

use super::Invariant;
use crate::watch::ShownState;

#[derive(Default)]
pub(super) struct Successors {
    /// The last state that was durable.
    durable: StateNumber,
    /// All that was shown.
    shown: ShownState,
}

impl Invariant for Successors {
    fn name(&self) -> &'static str {
        "masters go on from what was shown"
    }

    fn shown_state(&mut self, shown: ShownState) -> Result<(), String> {
        let all = &mut self.shown;
        all.barrier = all.barrier.max(shown.barrier);
        all.safe_point = all.safe_point.max(shown.safe_point);
        all.next_table = all.next_table.max(shown.next_table);
        Ok(())
    }

    fn durable_state(&mut self, number: StateNumber) -> Result<(), String> {
        self.durable = self.durable.max(number);
        Ok(())
    }

    fn opened_state(&mut self, number: StateNumber, opened: ShownState) -> Result<(), String> {
        if number < self.durable {
            return Err(format!(
                "a new leader goes on from {number:?}, and {:?} was durable",
                self.durable
            ));
        }
        let shown = &self.shown;
        for (what, opened, shown) in [
            ("the barrier", opened.barrier, shown.barrier),
            ("the safe point", opened.safe_point, shown.safe_point),
            ("tables", opened.next_table.into(), shown.next_table.into()),
        ] {
            if opened < shown {
                return Err(format!(
                    "a new leader goes on from a state that has {what} up to {opened}, and {shown} was shown"
                ));
            }
        }
        Ok(())
    }
}
