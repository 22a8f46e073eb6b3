//! Where tablets are, by their owners' reports to this start of the master: soft state. Found by id, by owner and by
//! rows, and counted, so that frequent operations don't visit all of them.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use percolator_protocol::types::{Rows, TabletState};

use crate::state::Placement;

/// See the module's head.
#[derive(Clone, Debug, Default)]
pub struct Placements {
    by_id: BTreeMap<u64, Placement>,
    by_owner: BTreeMap<String, OwnerTablets>,
    by_table: BTreeMap<u32, TableTablets>,
    /// How many placements were visited one by one, for tests.
    visited: Cell<u64>,
}

/// The tablets of one owner.
#[derive(Clone, Debug, Default)]
struct OwnerTablets {
    /// With their tables.
    ids: BTreeSet<(u32, u64)>,
    /// How many of them may serve: they are not frozen.
    in_use: usize,
    /// How many of these its present list doesn't have.
    unlisted: usize,
    /// Those that its present list has.
    listed: ListedTablets,
    /// The others.
    absent: BTreeSet<u64>,
}

/// How many tablets the present list of an owner has: those that are being made, and of the others those that take nothing more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListedTablets {
    pub(crate) unmade: usize,
    pub(crate) frozen: usize,
    pub(crate) serving: usize,
}

/// The tablets of one table.
#[derive(Clone, Debug, Default)]
struct TableTablets {
    by_start: BTreeMap<Bytes, u64>,
    /// How many of the places between them, before the first and behind the last leave no row out.
    seams: usize,
    /// How many were never reported by their owner.
    unmade: usize,
    /// How many are not frozen.
    in_use: usize,
}

/// Whether no row lies between two tablets that follow each other; `None` stands for the end of the table.
fn is_seam(left: Option<&Placement>, right: Option<&Placement>) -> bool {
    match (left, right) {
        (None, None) => false,
        (None, Some(first)) => first.rows.start.is_empty(),
        (Some(last), None) => last.rows.end.is_empty(),
        (Some(left), Some(right)) => !left.rows.end.is_empty() && left.rows.end == right.rows.start,
    }
}

/// What an owner's statement about its locks is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InUse<'a> {
    /// The owner of tablets that may serve.
    pub(crate) owner: &'a str,
    /// Its present list has all of them.
    pub(crate) are_listed: bool,
}

impl Placements {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// The tablet with this id.
    pub fn get(&self, id: u64) -> Option<&Placement> {
        self.by_id.get(&id)
    }

    /// Whether there is a tablet with this id.
    pub fn contains(&self, id: u64) -> bool {
        self.by_id.contains_key(&id)
    }

    /// All, by id.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Placement)> {
        self.by_id.iter().map(|(id, placement)| {
            self.visit();
            (*id, placement)
        })
    }

    /// Those of this table, by their first row.
    pub fn of_table(&self, table: u32) -> impl Iterator<Item = (u64, &Placement)> {
        let tablets = self.by_table.get(&table).into_iter();
        self.named(tablets.flat_map(|tablets| tablets.by_start.values()))
    }

    /// Those of this owner, by table and id.
    pub fn of_owner(&self, owner: &str) -> impl Iterator<Item = (u64, &Placement)> {
        let owned = self.by_owner.get(owner).into_iter();
        self.named(owned.flat_map(|owned| owned.ids.iter().map(|(_, id)| id)))
    }

    /// Those of this owner in one of these tables.
    pub(crate) fn of_owner_in(
        &self,
        owner: &str,
        tables: &BTreeSet<u32>,
    ) -> impl Iterator<Item = (u64, &Placement)> {
        let owned = self.by_owner.get(owner).into_iter();
        let owned = owned.flat_map(move |owned| {
            let of_table = |table: &u32| owned.ids.range((*table, 0)..=(*table, u64::MAX));
            tables.iter().flat_map(of_table)
        });
        self.named(owned.map(|(_, id)| id))
    }

    /// Those of this table that have one of these rows.
    pub fn overlapping(&self, table: u32, rows: &Rows) -> impl Iterator<Item = (u64, &Placement)> {
        let by_start = self.by_table.get(&table).map(|tablets| &tablets.by_start);
        // The last that begins before these rows may reach into them.
        let before = by_start.and_then(|by_start| by_start.range(..rows.start.clone()).next_back());
        let behind = by_start.map(|by_start| by_start.range(rows.start.clone()..));
        let ids = before.into_iter().chain(behind.into_iter().flatten());
        let rows = rows.clone();
        let found = self.named(ids.map(|(_, id)| id));
        found
            .take_while({
                let rows = rows.clone();
                move |(_, placement)| rows.end.is_empty() || placement.rows.start < rows.end
            })
            .filter(move |(_, placement)| placement.rows.overlaps(&rows))
    }

    /// The one of this table that has `row`.
    pub fn of_row(&self, table: u32, row: &[u8]) -> Option<(u64, &Placement)> {
        let first = self.from_row(table, row).next();
        first.filter(|(_, placement)| placement.rows.contains(row))
    }

    /// Those of this table from the one that has `row`, or the first behind it, by their first row.
    pub fn from_row(&self, table: u32, row: &[u8]) -> impl Iterator<Item = (u64, &Placement)> {
        let tablets = self.by_table.get(&table);
        let row = Bytes::copy_from_slice(row);
        let before = tablets.and_then(|it| it.by_start.range(..=row.clone()).next_back());
        let behind = tablets.map(|it| {
            let above = (
                std::ops::Bound::Excluded(row.clone()),
                std::ops::Bound::Unbounded,
            );
            it.by_start.range(above)
        });
        let ids = before.into_iter().chain(behind.into_iter().flatten());
        self.named(ids.map(|(_, id)| id))
            .skip_while(move |(_, placement)| {
                !placement.rows.end.is_empty() && placement.rows.end <= row
            })
    }

    /// Those of this table from the one that has the last row before `row` backwards; from the last one if that is empty.
    pub fn before_row(&self, table: u32, row: &[u8]) -> impl Iterator<Item = (u64, &Placement)> {
        let tablets = self.by_table.get(&table);
        let end = Bytes::copy_from_slice(row);
        let all = tablets.map(|it| {
            if end.is_empty() {
                it.by_start.range::<Bytes, _>(..)
            } else {
                it.by_start.range::<Bytes, _>(..end)
            }
        });
        self.named(all.into_iter().flatten().rev().map(|(_, id)| id))
    }

    /// The owners of a table's tablets.
    pub fn owners_of(&self, table: u32) -> BTreeSet<&str> {
        let tablets = self.of_table(table);
        tablets.map(|(_, tablet)| tablet.owner.as_str()).collect()
    }

    /// The owners of tablets that may serve.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = InUse<'_>> {
        let in_use = self.by_owner.iter().filter(|(_, owned)| owned.in_use > 0);
        in_use.map(|(owner, owned)| InUse {
            owner,
            are_listed: owned.unlisted == 0,
        })
    }

    /// How many there are of this owner.
    pub fn count_of_owner(&self, owner: &str) -> usize {
        self.by_owner.get(owner).map_or(0, |owned| owned.ids.len())
    }

    /// How many tablets the present list of each owner has.
    pub(crate) fn listed(&self) -> impl Iterator<Item = (&str, ListedTablets)> {
        let owners = self.by_owner.iter();
        owners.map(|(owner, owned)| (&**owner, owned.listed))
    }

    /// The others: of owners that have not reported them lately, or have lost them.
    pub(crate) fn unlisted(&self) -> impl Iterator<Item = (u64, &Placement)> {
        self.named(self.by_owner.values().flat_map(|owned| &owned.absent))
    }

    /// How many there are of each table that has one.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (u32, usize)> {
        let tables = self.by_table.iter();
        tables.map(|(table, tablets)| (*table, tablets.by_start.len()))
    }

    /// How many there are of this table.
    pub fn count_of_table(&self, table: u32) -> usize {
        let tablets = self.by_table.get(&table);
        tablets.map_or(0, |tablets| tablets.by_start.len())
    }

    /// Whether every row of the table lies in one of its tablets.
    pub fn is_covered(&self, table: u32) -> bool {
        let tablets = self.by_table.get(&table);
        tablets.is_some_and(|tablets| tablets.seams == tablets.by_start.len() + 1)
    }

    /// Whether every row of the table lies in one of its tablets, and each owner has had its tablet.
    pub fn is_complete(&self, table: u32) -> bool {
        let unmade = self
            .by_table
            .get(&table)
            .map_or(0, |tablets| tablets.unmade);
        unmade == 0 && self.is_covered(table)
    }

    /// Whether every row of the table lies in a tablet that is frozen.
    pub fn is_frozen(&self, table: u32) -> bool {
        self.none_in_use(table) && self.is_covered(table)
    }

    /// Whether each tablet of the table that is known is frozen.
    pub(crate) fn none_in_use(&self, table: u32) -> bool {
        let tablets = self.by_table.get(&table);
        tablets.is_none_or(|tablets| tablets.in_use == 0)
    }

    /// The rows of the table that lie in none of its tablets.
    pub(crate) fn gaps(&self, table: u32) -> Vec<Rows> {
        let mut gaps = Vec::new();
        let mut reached = Some(Bytes::new());
        for (_, tablet) in self.of_table(table) {
            if let Some(start) = reached
                && start != tablet.rows.start
            {
                gaps.push(Rows {
                    start,
                    end: tablet.rows.start.clone(),
                });
            }
            reached = Some(tablet.rows.end.clone()).filter(|end| !end.is_empty());
        }
        gaps.extend(reached.map(|start| Rows {
            start,
            end: Bytes::new(),
        }));
        gaps
    }

    /// Enters a tablet, in place of what it was before. Others of its table that have some of its rows go: their ids.
    pub fn place(&mut self, id: u64, placement: Placement) -> Vec<u64> {
        self.remove(id);
        let overlapped = self.overlapping(placement.table, &placement.rows);
        let overlapped: Vec<u64> = overlapped.map(|(other, _)| other).collect();
        for other in &overlapped {
            self.remove(*other);
        }
        let owned = self.by_owner.entry(placement.owner.clone()).or_default();
        owned.ids.insert((placement.table, id));
        owned.count(&placement, usize::wrapping_add);
        owned.list(id, placement.listed);
        let (left, right) = self.neighbours(&placement);
        let seam = |left, right| usize::from(is_seam(left, right));
        let before = seam(left, right);
        let after = seam(left, Some(&placement)) + seam(Some(&placement), right);
        let tablets = self.by_table.entry(placement.table).or_default();
        tablets.seams = tablets.seams + after - before;
        tablets.by_start.insert(placement.rows.start.clone(), id);
        tablets.count(&placement, usize::wrapping_add);
        self.by_id.insert(id, placement);
        overlapped
    }

    /// Takes a tablet out.
    pub fn remove(&mut self, id: u64) -> Option<Placement> {
        let placement = self.by_id.remove(&id)?;
        if let Some(owned) = self.by_owner.get_mut(&placement.owner) {
            owned.ids.remove(&(placement.table, id));
            owned.absent.remove(&id);
            owned.count(&placement, usize::wrapping_sub);
            if owned.ids.is_empty() {
                self.by_owner.remove(&placement.owner);
            }
        }
        let (left, right) = self.neighbours(&placement);
        let seam = |left, right| usize::from(is_seam(left, right));
        let before = seam(left, Some(&placement)) + seam(Some(&placement), right);
        let after = seam(left, right);
        if let Some(tablets) = self.by_table.get_mut(&placement.table) {
            tablets.seams = tablets.seams + after - before;
            tablets.by_start.remove(&placement.rows.start);
            tablets.count(&placement, usize::wrapping_sub);
            if tablets.by_start.is_empty() {
                self.by_table.remove(&placement.table);
            }
        }
        Some(placement)
    }

    /// Records the last report of a tablet. Returns whether it changes anything.
    pub fn update(&mut self, id: u64, made: bool, state: TabletState) -> bool {
        self.change(id, |placement| {
            placement.made = made;
            placement.state = state;
        })
    }

    /// Whether its owner's present list has the tablet.
    pub(crate) fn set_listed(&mut self, id: u64, listed: bool) {
        self.change(id, |placement| placement.listed = listed);
    }

    /// This owner's present list is not known.
    pub(crate) fn forget_list(&mut self, owner: &str) {
        let owned = self.of_owner(owner);
        let listed = owned.filter(|(_, placement)| placement.listed);
        for id in listed.map(|(id, _)| id).collect::<Vec<_>>() {
            self.set_listed(id, false);
        }
    }

    /// How many placements were visited one by one, for tests.
    pub fn visited(&self) -> u64 {
        self.visited.get()
    }

    fn visit(&self) {
        self.visited.set(self.visited.get() + 1);
    }

    fn named<'a>(
        &'a self,
        ids: impl Iterator<Item = &'a u64>,
    ) -> impl Iterator<Item = (u64, &'a Placement)> {
        ids.filter_map(|id| {
            self.visit();
            Some((*id, self.by_id.get(id)?))
        })
    }

    /// The tablets before and behind this one's first row, besides itself.
    fn neighbours(&self, placement: &Placement) -> (Option<&Placement>, Option<&Placement>) {
        let Some(tablets) = self.by_table.get(&placement.table) else {
            return (None, None);
        };
        let start = &placement.rows.start;
        let above = (std::ops::Bound::Excluded(start), std::ops::Bound::Unbounded);
        let left = tablets.by_start.range::<Bytes, _>(..start).next_back();
        let right = tablets.by_start.range::<Bytes, _>(above).next();
        let placed = |(_, id)| self.by_id.get::<u64>(id);
        (left.and_then(placed), right.and_then(placed))
    }

    /// Changes neither rows nor table nor owner. Whether it changes anything.
    fn change(&mut self, id: u64, change: impl FnOnce(&mut Placement)) -> bool {
        let Some(placement) = self.by_id.get_mut(&id) else {
            return false;
        };
        let before = placement.clone();
        change(placement);
        if *placement == before {
            return false;
        }
        for (placement, count) in [
            (&before, usize::wrapping_sub as fn(usize, usize) -> usize),
            (&*placement, usize::wrapping_add),
        ] {
            if let Some(owned) = self.by_owner.get_mut(&placement.owner) {
                owned.count(placement, count);
                owned.list(id, placement.listed);
            }
            if let Some(tablets) = self.by_table.get_mut(&placement.table) {
                tablets.count(placement, count);
            }
        }
        true
    }
}

impl OwnerTablets {
    /// Counts the tablet in, or out.
    fn count(&mut self, placement: &Placement, count: impl Fn(usize, usize) -> usize) {
        let in_use = placement.state != TabletState::Frozen;
        self.in_use = count(self.in_use, usize::from(in_use));
        self.unlisted = count(self.unlisted, usize::from(in_use && !placement.listed));
        if placement.listed {
            let counted = match placement {
                Placement { made: false, .. } => &mut self.listed.unmade,
                _ if in_use => &mut self.listed.serving,
                _ => &mut self.listed.frozen,
            };
            *counted = count(*counted, 1);
        }
    }

    /// Whether the present list has this tablet.
    fn list(&mut self, id: u64, listed: bool) {
        if listed {
            self.absent.remove(&id);
        } else {
            self.absent.insert(id);
        }
    }
}

impl TableTablets {
    /// Counts the tablet in, or out.
    fn count(&mut self, placement: &Placement, count: impl Fn(usize, usize) -> usize) {
        let in_use = placement.state != TabletState::Frozen;
        self.in_use = count(self.in_use, usize::from(in_use));
        self.unmade = count(self.unmade, usize::from(!placement.made));
    }
}

#[cfg(test)]
mod tests;
