//! What tablet servers report, merged into the directory. The owners' word counts: ownership is
//! the owner's durable fact, and of two reports of the same rows the higher epoch is the newer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use percolator_protocol::types::{Tablet, TabletState};

use crate::core::Directory;
use crate::events::{Action, Note};
use crate::members::Live;
use crate::names::NAME_BYTES_MAX;
use crate::state::{DirectoryState, Placement, Table, TableState};

/// The tablet that a report loses against.
struct Winner {
    id: u64,
    owner: String,
    epoch: u64,
}

impl Directory {
    /// Merges everything that a tablet server owns.
    pub(crate) fn merge(&mut self, now: Duration, server: &str, mut reports: Vec<Tablet>) {
        if let Some(state) = &self.state {
            // Known tablets first: one that was split has made room for its sibling then. After
            // them the newest, so that what is older finds its rows taken.
            reports.sort_by_key(|report| {
                let is_new = !state.tablets.contains(report.id);
                (is_new, std::cmp::Reverse(report.epoch), report.id)
            });
        }
        let mut changed = BTreeMap::new();
        let mut conflicts = BTreeSet::new();
        for report in reports {
            let (id, table, epoch) = (report.id, report.table.0, report.epoch);
            let name = report.table_name.clone();
            match self.claim(server, report) {
                Ok(true) => {
                    changed.insert(table, name);
                }
                Ok(false) => {}
                Err(winner) => {
                    conflicts.insert(id);
                    let is_told = |live: &Live| live.conflicts.contains(&id);
                    if !self.live.get(server).is_some_and(is_told) {
                        self.effects.notes.push(Note::Conflict {
                            server: server.to_owned(),
                            tablet: id,
                            epoch,
                            winner: winner.id,
                            owner: winner.owner,
                            winner_epoch: winner.epoch,
                        });
                    }
                }
            }
        }
        for (table, name) in changed {
            self.settle(table);
            self.take_name(table, &name);
        }
        if let Some(live) = self.live.get_mut(server) {
            live.looked_at_again |= !conflicts.is_empty();
            live.conflicts = conflicts;
        }
        self.watch_missing(now, server);
    }

    /// Takes one report in. Whether the table's tablets changed; or what it loses against.
    fn claim(&mut self, server: &str, report: Tablet) -> Result<bool, Winner> {
        let Some(state) = &self.state else {
            return Ok(false);
        };
        let table_state = state.tables.get(&report.table.0).map(|table| table.state);
        let may_drop = state.may_drop(report.table.0);
        let known = state.tablets.get(report.id);
        let is_ours = known.is_none_or(|tablet| tablet.owner == server);
        match table_state {
            None if known.is_none() && state.was_deleted(report.table.0) => {
                self.ask_to_drop(server, &report);
                return Ok(false);
            }
            None if known.is_none() => self.adopt_table(server, &report),
            // Before that, anyone who has the newest epoch may know of commits. What this directory gave and doesn't know any
            // more was dropped: the report is older than that, and late.
            Some(TableState::Deleting)
                if may_drop && (!is_ours || (known.is_none() && state.gave(report.table.0))) =>
            {
                self.ask_to_drop(server, &report);
                return Ok(false);
            }
            _ => {}
        }
        let Some(state) = &mut self.state else {
            return Ok(false);
        };
        if let Some(winner) = winner_over(state, server, &report) {
            return Err(winner);
        }
        // A report may be older than the command to freeze.
        let was = state
            .tablets
            .get(report.id)
            .filter(|known| known.owner == server && known.epoch == report.epoch)
            .map_or(TabletState::Serving, |known| known.state);
        if report.state > TabletState::Serving
            && let Some(table) = state.tables.get_mut(&report.table.0)
        {
            // This directory may have forgotten that it was to be deleted.
            self.dirty |= table.state != TableState::Deleting;
            table.state = TableState::Deleting;
        }
        let claimed = Placement {
            table: report.table.0,
            rows: report.rows,
            epoch: report.epoch,
            owner: server.to_owned(),
            made: true,
            state: report.state.max(was),
        };
        let known = state.tablets.get(report.id);
        let was_made = known.is_none_or(|known| known.made);
        // That it is made now is not written down by itself.
        let is_news = known.is_none_or(|known| {
            *known
                != Placement {
                    made: known.made,
                    ..claimed.clone()
                }
        });
        if is_news {
            state.tablets.place(report.id, claimed);
            state.met_tablet(report.id);
            self.dirty = true;
        } else {
            state.tablets.hear(report.id, true, claimed.state);
        }
        Ok(is_news || !was_made)
    }

    /// A server has dropped tablets of these tables, so the safe point had passed their deletion, whatever this directory
    /// knows of it.
    pub(crate) fn forget_deleted(
        &mut self,
        server: &str,
        deleted: &BTreeSet<u32>,
        reports: &[Tablet],
    ) {
        for id in deleted {
            let Some(state) = &mut self.state else { return };
            if state.gave(*id) || (!state.tables.contains_key(id) && state.was_deleted(*id)) {
                continue;
            }
            // What it doesn't have any more was reported before it was dropped, and heard of later.
            let gone = state.tablets.of_table(*id).filter(|(tablet_id, tablet)| {
                tablet.owner == server && reports.iter().all(|report| report.id != *tablet_id)
            });
            for gone in gone.map(|(gone, _)| gone).collect::<Vec<_>>() {
                state.tablets.remove(gone);
            }
            match state.tables.get_mut(id) {
                Some(table) => {
                    self.dirty |= table.drop_at != Some(0);
                    table.state = TableState::Deleting;
                    table.drop_at = Some(0);
                    self.settle(*id);
                }
                None => {
                    self.distrust();
                    self.remove_table(*id);
                }
            }
        }
    }

    fn ask_to_drop(&mut self, server: &str, report: &Tablet) {
        if let Some(live) = self.live.get_mut(server) {
            live.looked_at_again = true;
        }
        let (tablet, table) = (report.id, report.table.0);
        self.ask(server, Action::Drop { tablet, table });
    }

    /// A table that the directory has never heard of: it is older than what the servers hold.
    fn adopt_table(&mut self, server: &str, report: &Tablet) {
        self.distrust();
        let Some(state) = &mut self.state else { return };
        let name = free_name(state, &report.table_name, report.table.0);
        self.effects.notes.push(Note::Adopted {
            server: server.to_owned(),
            table: report.table.0,
            name: name.clone(),
        });
        let table = Table {
            name,
            state: TableState::Creating,
            drop_at: None,
            given_up: false,
        };
        state.tables.insert(report.table.0, table);
        state.met_table(report.table.0);
        self.dirty = true;
    }

    /// A table that is ready gets the name that its owners report, where another one has it that was never made
    /// as a whole: its creation was begun again when the state was lost.
    fn take_name(&mut self, id: u32, reported: &str) {
        let Some(state) = &mut self.state else { return };
        let ready = state.tables.get(&id);
        if ready.is_none_or(|table| table.state != TableState::Ready || table.name == reported) {
            return;
        }
        let Some(holder) = state.table_named(reported) else {
            return;
        };
        let other = free_name(state, reported, holder);
        match state.tables.get_mut(&holder) {
            Some(table) if table.state == TableState::Creating => table.name.clone_from(&other),
            _ => return,
        }
        if let Some(table) = state.tables.get_mut(&id) {
            reported.clone_into(&mut table.name);
        }
        self.dirty = true;
        self.effects.notes.push(Note::Renamed {
            table: holder,
            name: reported.to_owned(),
            other,
            ready: id,
        });
    }

    /// A tablet that its owner had and no longer reports is lost, or its creation crossed this
    /// heartbeat on the way: noted when it stays away, and never replaced by an empty one.
    pub(crate) fn watch_missing(&mut self, now: Duration, server: &str) {
        let silence_max = self.silence_max();
        let (Some(state), Some(live)) = (&mut self.state, self.live.get_mut(server)) else {
            return;
        };
        let mut missing = BTreeMap::new();
        let mut given_up = Vec::new();
        for (id, tablet) in state.tablets.of_owner(server) {
            if !tablet.made || live.tablets.contains(&id) {
                continue;
            }
            let Some(table) = state.tables.get(&tablet.table) else {
                continue;
            };
            // One that may go may have gone.
            if table.given_up && table.drop_at.is_none() {
                given_up.push(id);
            }
            if table.state == TableState::Deleting {
                continue;
            }
            let (since, told) = live.missing.get(&id).copied().unwrap_or((now, false));
            let overdue = now.saturating_sub(since) >= silence_max;
            if overdue && !told {
                self.effects.notes.push(Note::Missing {
                    server: server.to_owned(),
                    tablet: id,
                    table: table.name.clone(),
                });
            }
            missing.insert(id, (since, told || overdue));
        }
        live.missing = missing;
        for id in given_up {
            // Now an empty one may be made; one that is there all the same stays as it is.
            self.dirty |= state.tablets.hear(id, false, TabletState::Serving);
        }
    }
}

/// What the directory already has for these rows, unless the report is newer.
fn winner_over(state: &DirectoryState, server: &str, report: &Tablet) -> Option<Winner> {
    let winner = |(id, tablet): (u64, &Placement)| Winner {
        id,
        owner: tablet.owner.clone(),
        epoch: tablet.epoch,
    };
    if let Some(known) = state.tablets.get(report.id) {
        let is_newer = if known.owner == server {
            report.epoch >= known.epoch
        } else {
            report.epoch > known.epoch
        };
        if known.table != report.table.0 || !is_newer {
            return Some(winner((report.id, known)));
        }
        if known.rows == report.rows {
            return None;
        }
    }
    let mut overlapping = state.tablets.overlapping(report.table.0, &report.rows);
    overlapping
        .find(|(id, tablet)| *id != report.id && tablet.epoch >= report.epoch)
        .map(winner)
}

/// The reported name; or, while another table has it, one with the id at its end.
fn free_name(state: &DirectoryState, reported: &str, table: u32) -> String {
    let mut name = reported.to_owned();
    while state.table_named(&name).is_some() {
        let suffix = format!(".{table}");
        // Names are ASCII: `check_form` saw to that.
        name.truncate(NAME_BYTES_MAX - suffix.len());
        if name.ends_with(&suffix) {
            name.truncate(name.len() - suffix.len());
            name.push('.');
        }
        name.push_str(&suffix);
    }
    name
}
