//! One of several masters serves the state that is durable (`docs/design/failover.md`, "The master", rules 2 and 4): a
//! takeover makes it that of the new term before anybody is answered, and an answer shows nothing that is not durable.

use super::Invariant;

pub(super) struct DurableMasters;

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

    fn shown_early(&mut self, server: &str, missing: &str) -> Result<(), String> {
        Err(format!(
            "{server} shows {missing} that its durable state doesn't have"
        ))
    }
}
