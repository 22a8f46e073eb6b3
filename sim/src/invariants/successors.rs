//! A master that takes over goes on from all that masters have shown in earlier terms (`docs/design/failover.md`, "Masters while
//! the register is away"): from the last state that was durable, or a later one, and no point and no table in it is behind what
//! was shown. One that stood still may begin when later ones have led: these are no concern of it.

use std::collections::BTreeMap;

use percolator_protocol::election::StateNumber;

use super::Invariant;
use crate::seen::ShownState;

#[derive(Default)]
pub(super) struct Successors {
    /// By term.
    terms: BTreeMap<u64, Term>,
}

/// What there was of a leader.
#[derive(Default)]
struct Term {
    /// Its last state that was durable.
    durable: StateNumber,
    /// All that it has shown.
    shown: ShownState,
}

impl Successors {
    fn term(&mut self, term: u64) -> &mut Term {
        self.terms.entry(term).or_default()
    }
}

impl Invariant for Successors {
    fn name(&self) -> &'static str {
        "masters go on from what was shown"
    }

    fn shown_state(&mut self, term: u64, shown: ShownState) -> Result<(), String> {
        let all = &mut self.term(term).shown;
        all.barrier = all.barrier.max(shown.barrier);
        all.safe_point = all.safe_point.max(shown.safe_point);
        all.next_table = all.next_table.max(shown.next_table);
        Ok(())
    }

    fn durable_state(&mut self, number: StateNumber) -> Result<(), String> {
        let term = self.term(number.term);
        term.durable = term.durable.max(number);
        Ok(())
    }

    fn opened_state(
        &mut self,
        term: u64,
        number: StateNumber,
        opened: ShownState,
    ) -> Result<(), String> {
        for (earlier, Term { durable, shown }) in self.terms.range(..term) {
            if number < *durable {
                return Err(format!(
                    "the leader of term {term} goes on from {number:?}, and {durable:?} was durable"
                ));
            }
            for (what, opened, shown) in [
                ("the barrier", opened.barrier, shown.barrier),
                ("the safe point", opened.safe_point, shown.safe_point),
                ("tables", opened.next_table.into(), shown.next_table.into()),
            ] {
                if opened < shown {
                    return Err(format!(
                        "the leader of term {term} goes on from a state that has {what} up to {opened}, and {shown} was shown in term \
                         {earlier}"
                    ));
                }
            }
        }
        Ok(())
    }
}
