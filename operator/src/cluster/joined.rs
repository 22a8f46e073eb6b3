//! Which servers of a role have served.

use std::collections::BTreeSet;

use percolator_api::RoleStatus;

/// The servers of a role that have served. At first all of them have to serve at a time. Later each new server counts by itself,
/// because they may begin in any order.
pub(super) struct JoinedServers {
    /// How many of them, from the first on.
    pub(super) first: i32,
    pub(super) beyond: BTreeSet<i32>,
}

impl JoinedServers {
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
