//! Neighbours that have been small for long become one tablet, so that a table whose rows come and go doesn't collect empty
//! tablets. Where they are at two servers, the second one is moved first. All of it is soft, as in [`crate::balancer`].

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use percolator_protocol::types::TabletState;

use crate::balance_plan::PlannedMove;
use crate::core::Directory;
use crate::events::Action;
use crate::state::{Placement, TableState};

/// Neighbours are merged when they have been small for so long, unless a master is started with another time.
pub(crate) const MERGE_AFTER: Duration = Duration::from_secs(3600);
/// They are small when both together have at most one in so many of the bytes above which a tablet is split.
const SMALL_PART: u64 = 4;
/// The number of tablets that one step considers.
const LOOKED: usize = 64;
/// Neighbours that are remembered.
const REMEMBERED: usize = 10_000;
/// Moves for this at a time.
const MOVES_MAX: usize = 2;

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Merges {
    /// The table, and the row in it, where the next step begins.
    next: (u32, Bytes),
    /// Neighbours that are small, by the second one.
    small: BTreeMap<u64, Small>,
}

#[derive(Clone, Copy, Debug)]
struct Small {
    first: u64,
    since: Duration,
}

impl Directory {
    /// Looks at some more tablets, and merges those that have been small for long.
    pub(crate) fn merge_small(&mut self, now: Duration) {
        let small_bytes = self.split_bytes() / SMALL_PART;
        if small_bytes == 0 {
            return;
        }
        let servers = self
            .state
            .as_ref()
            .map_or(0, |it| it.servers.tablet_servers_len());
        for (first, second) in self.next_neighbours() {
            if [first, second]
                .iter()
                .any(|id| self.balancer.is_busy_with(*id))
            {
                continue;
            }
            let is_small = self.are_small(now, first, second, small_bytes, servers);
            let remembered = &mut self.balancer.merges.small;
            if !is_small {
                remembered.remove(&second);
                continue;
            }
            let known = remembered.get(&second).filter(|it| it.first == first);
            match known.map(|it| it.since) {
                Some(since) if now.saturating_sub(since) >= self.settings.merge_after => {
                    self.merge_pair(now, first, second);
                }
                None if remembered.contains_key(&second) || remembered.len() < REMEMBERED => {
                    remembered.insert(second, Small { first, since: now });
                }
                _ => {}
            }
        }
    }

    /// Neighbours in a table, some at a time, in the order of tables and rows.
    fn next_neighbours(&mut self) -> Vec<(u64, u64)> {
        let (table, mut row) = std::mem::take(&mut self.balancer.merges.next);
        let Some(state) = &self.state else {
            return Vec::new();
        };
        let mut pairs = Vec::new();
        let mut left = LOOKED;
        for id in state.tables.range(table..).map(|(id, _)| *id) {
            let from = if id == table { row } else { Bytes::new() };
            row = Bytes::new();
            let mut before = None;
            for (tablet, placement) in self.tablets.from_row(id, &from).take(left) {
                left -= 1;
                row.clone_from(&placement.rows.start);
                pairs.extend(before.map(|before| (before, tablet)));
                before = Some(tablet);
            }
            if left == 0 {
                self.balancer.merges.next = (id, row);
                return pairs;
            }
        }
        let Self {
            balancer, tablets, ..
        } = self;
        balancer.merges.small.retain(|id, _| tablets.contains(*id));
        pairs
    }

    /// Whether these neighbours may become one tablet, as far as is known now.
    fn are_small(
        &self,
        now: Duration,
        first: u64,
        second: u64,
        small_bytes: u64,
        servers: usize,
    ) -> bool {
        let pair = [first, second];
        let [Some(left), Some(right)] = pair.map(|id| self.tablets.get(id)) else {
            return false;
        };
        // Of a small table each server may have a tablet.
        let has_many = self.tablets.count_of_table(left.table) > servers;
        let table = self.table(left.table);
        if !has_many
            || left.rows.end != right.rows.start
            || table.is_none_or(|table| table.state != TableState::Ready)
        {
            return false;
        }
        let bytes = [(first, left), (second, right)].map(|(id, tablet)| {
            let is_calm = self.is_calm(now, id, tablet);
            let live = self.live.get(&tablet.owner).filter(|_| is_calm);
            live.and_then(|live| live.sizes.of_tablet(id))
        });
        let [Some(left), Some(right)] = bytes else {
            return false;
        };
        left.saturating_add(right) <= small_bytes
    }

    /// Whether it is at its owner, and is hardly used.
    fn is_calm(&self, now: Duration, id: u64, tablet: &Placement) -> bool {
        tablet.made
            && tablet.listed
            && tablet.state == TabletState::Serving
            && self.is_alive(&tablet.owner, now)
            && self.tablet_load(&tablet.owner, id) == 0
    }

    /// Asks their owner to merge them, or another server to get the second one first.
    pub(crate) fn merge_pair(&mut self, now: Duration, first: u64, second: u64) {
        let pair = [first, second];
        let [Some(left), Some(right)] = pair.map(|id| self.tablets.get(id)) else {
            return;
        };
        if left.rows.end != right.rows.start {
            return;
        }
        let owner = left.owner.clone();
        if owner != right.owner {
            let may_get = self.is_alive(&owner, now)
                && !self.drains(&owner)
                && self.has_room(&owner, second, right);
            if may_get && self.balancer.merging_moves() < MOVES_MAX {
                let planned = PlannedMove {
                    tablet: second,
                    to: owner,
                };
                self.begin_move(now, planned, Some(first));
            }
            return;
        }
        let action = Action::Merge {
            first: (first, left.epoch),
            second: (second, right.epoch),
        };
        self.balancer.rest_from_cuts(now, pair);
        self.ask(&owner, action);
    }
}
