//! One of several masters serves the state that is durable (`docs/design/failover.md`, "The master", rules 2 and 4): a
//! takeover makes it that of the new term before anybody is answered, an answer shows nothing that is not durable, and a
//! takeover goes on from all that was shown.

use super::Invariant;
use crate::watch::ShownState;

#[derive(Default)]
pub(super) struct DurableMasters {
    /// All that was shown.
    shown: ShownState,
}

impl Invariant for DurableMasters {
    fn name(&self) -> &'static str {
        "masters show what is durable"
    }

    fn served_state(&mut self, term: u64, stored_term: u64) -> Result<(), String> {
        if stored_term == term {
            return Ok(());
        }
        Err(format!(
            "a master serves in term {term}, and the durable state was written in term {stored_term}"
        ))
    }

    fn shown_state(&mut self, shown: ShownState) -> Result<(), String> {
        let all = &mut self.shown;
        all.barrier = all.barrier.max(shown.barrier);
        all.safe_point = all.safe_point.max(shown.safe_point);
        all.next_table = all.next_table.max(shown.next_table);
        Ok(())
    }

    fn opened_state(&mut self, opened: ShownState) -> Result<(), String> {
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

    fn shown_early(&mut self, server: &str, missing: &str) -> Result<(), String> {
        Err(format!(
            "{server} shows {missing} that its durable state doesn't have"
        ))
    }
}
