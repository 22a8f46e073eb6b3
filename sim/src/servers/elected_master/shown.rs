//! What one of several masters shows, and what its durable state has: for the invariant.

use percolator_gc_master::{DirectoryState, StoredState};

use super::ElectedMaster;
use crate::messages::Answer;
use crate::seen::{Seen, ShownState};

/// How far a state is. None: it can't be read.
pub(super) fn state_of(bytes: &[u8]) -> Option<ShownState> {
    let state = DirectoryState::decode(bytes).ok()?;
    Some(ShownState {
        barrier: state.gc.barrier,
        safe_point: state.gc.safe_point,
        next_table: state.next_table_id,
    })
}

impl ElectedMaster {
    /// How far the register's state is, which is mostly the same as when it was asked before.
    fn in_register(&self, state: &[u8]) -> Option<ShownState> {
        let mut read = self.read.lock();
        if let Some((known, far)) = &*read
            && known == state
        {
            return Some(*far);
        }
        let far = state_of(state)?;
        *read = Some((state.to_owned(), far));
        Some(far)
    }

    /// What this master shows in this term is durable, in the register or in its folder at least: the invariant has it that it is
    /// what the next leader goes on from.
    pub(in crate::servers) fn check_shown(&self, term: u64, answer: &Answer) {
        let shown = match answer {
            Answer::Heartbeat(response) => ShownState {
                barrier: response.barrier,
                safe_point: response.safe_point,
                next_table: 0,
            },
            Answer::Session(response) => ShownState {
                barrier: response.barrier,
                ..ShownState::default()
            },
            Answer::TableCreated(created) => ShownState {
                next_table: created.table.as_ref().map_or(0, |table| table.id + 1),
                ..ShownState::default()
            },
            _ => return,
        };
        self.world.see(&Seen::ShownState(term, shown));
        let stored = self.replicated.store.state();
        // A later leader has begun with what was durable then.
        let Some(StoredState { number, state }) = stored.filter(|it| it.number.term == term) else {
            return;
        };
        let Some(in_register) = self.in_register(&state) else {
            return self
                .world
                .fail("the master starts", "its state can't be read");
        };
        let missing = match missing(&shown, &in_register) {
            None => return,
            Some(missing) => missing,
        };
        let copy = self.candidate.host().copies.shown();
        let copy = copy.filter(|copy| copy.number.term == term && copy.number > number);
        let in_folder = copy.and_then(|copy| state_of(&copy.state));
        if in_folder.is_some_and(|it| self::missing(&shown, &it).is_none()) {
            return;
        }
        let server = self.name();
        self.world.see(&Seen::ShownEarly { server, missing });
    }
}

/// What of this a state doesn't have.
fn missing(shown: &ShownState, state: &ShownState) -> Option<&'static str> {
    if shown.barrier > state.barrier {
        Some("a barrier")
    } else if shown.safe_point > state.safe_point {
        Some("a safe point")
    } else {
        (shown.next_table > state.next_table).then_some("a table")
    }
}
