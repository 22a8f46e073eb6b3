//! Which servers of a role have served.

use std::collections::BTreeSet;

use percolator_api::RoleStatus;

/// Which servers have served: at first all have to at a time, and then those that are added count when they do, each by itself:
/// they may not begin in turn.
pub(super) struct Joined {
    /// So many, from the first on.
    pub(super) first: i32,
    pub(super) beyond: BTreeSet<i32>,
}

impl Joined {
    pub(super) fn now(
        before: Option<&RoleStatus>,
        desired: i32,
        serves: &impl Fn(i32) -> bool,
    ) -> Self {
        let mut first = before.map_or(0, |before| before.joined).min(desired);
        if first == 0 {
            let all_serve = (0..desired).all(serves);
            return Self {
                first: if all_serve { desired } else { 0 },
                beyond: BTreeSet::new(),
            };
        }
        let before = before.map_or(&[][..], |before| &before.joined_beyond);
        let have_served = |ordinal: &i32| serves(*ordinal) || before.contains(ordinal);
        let mut beyond: BTreeSet<i32> = (first..desired).filter(have_served).collect();
        while beyond.remove(&first) {
            first += 1;
        }
        Self { first, beyond }
    }
}
