//! What tablet servers report, merged into the directory. The owners' reports count: ownership is
//! the owner's durable fact, and of two reports of the same rows the higher epoch is the newer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::types::{TableId, Tablet, TabletState, Timestamp};

use crate::core::Directory;
use crate::events::{Action, Note};
use crate::members::Live;
use crate::state::{DirectoryState, Placement, Server, TableRecord, TableState};

/// A tablet that a server gets, or has tried to get.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// The tablet.
    pub tablet: u64,
    /// Its epoch at its owner.
    pub epoch: u64,
    /// Bytes of keys and values that the server has got.
    pub bytes: u64,
    /// All of it is there, and its owner decides.
    pub is_complete: bool,
    /// Why it was given up, if it was.
    pub failure: Option<String>,
    /// Its owner when the copy began.
    pub from: String,
    /// Its table.
    pub table: TableId,
    /// Where its rows begin.
    pub start_row: Bytes,
}

/// What keeps a server's locks from being resolved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockObstacle {
    /// Why, for people.
    pub what: String,
    /// The transaction that holds it; zero: not known.
    pub start_ts: Timestamp,
    /// For how long it has been in the way.
    pub since: Duration,
}

/// What a server has to collect, and has collected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Where the oldest entry of its index lies; zero: nothing waits.
    pub oldest: Timestamp,
    /// Of each tablet.
    pub tablets: Vec<TabletCollected>,
}

/// The same of one tablet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TabletCollected {
    /// The tablet; zero: rows of tablets that aren't there any more.
    pub tablet: u64,
    /// Places that are collected once the safe point has passed them.
    pub waiting: u64,
    /// Records that were removed since the server's start.
    pub records: u64,
    /// Bytes that went with them.
    pub bytes: u64,
}

/// How large a tablet is, in bytes, or how much it is used, in cells a second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// The tablet.
    pub tablet: u64,
    /// So much.
    pub amount: u64,
    /// The tablet is to be split: about half of it lies before this row.
    pub split_at: Option<Bytes>,
}

/// Where a server is, and which start of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Whereabouts {
    /// Its name.
    pub server: String,
    /// The random number of its process' start.
    pub incarnation: u64,
    /// HOST:PORT; empty: not known.
    pub address: String,
}

/// The tablet that a report loses against.
struct Winner {
    id: u64,
    owner: String,
    epoch: u64,
}

impl Directory {
    /// Merges everything that a tablet server owns.
    pub(crate) fn merge(&mut self, now: Duration, server: &str, mut reports: Vec<Tablet>) {
        // Known tablets first: one that was split has made room for its sibling then. After
        // them the newest, so that what is older finds its rows taken.
        reports.sort_by_key(|report| {
            let is_new = !self.tablets.contains(report.id);
            (is_new, std::cmp::Reverse(report.epoch), report.id)
        });
        for report in &reports {
            let known = self.tablets.get(report.id);
            if known.is_some_and(|known| known.owner == server) {
                self.tablets.set_listed(report.id, true);
            }
        }
        let mut changed = BTreeSet::new();
        let mut conflicts = BTreeSet::new();
        for report in reports {
            let (id, table, epoch) = (report.id, report.table.0, report.epoch);
            match self.claim(server, report) {
                Ok(true) => {
                    changed.insert(table);
                }
                Ok(false) => {}
                Err(winner) => {
                    conflicts.insert(id);
                    let is_reported = |live: &Live| live.conflicts.contains(&id);
                    if !self.live.get(server).is_some_and(is_reported) {
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
        for table in changed {
            self.settle(table);
        }
        if let Some(live) = self.live.get_mut(server) {
            live.needs_reconcile |= !conflicts.is_empty();
            live.conflicts = conflicts;
        }
        self.watch_missing(now, server);
    }

    /// Takes in what a tablet server has now in place of other tablets, before it reports that.
    pub(crate) fn take_in(&mut self, server: &str, reports: Vec<Tablet>) {
        for report in reports {
            // Where something newer is known, that counts.
            let _ = self.claim(server, report);
        }
    }

    /// Takes one report in. Whether the table's tablets changed; or what it loses against.
    fn claim(&mut self, server: &str, report: Tablet) -> Result<bool, Winner> {
        let Some(state) = &self.state else {
            return Ok(false);
        };
        let table_state = state.tables.get(&report.table.0).map(|table| table.state);
        let may_drop = state.may_drop(report.table.0);
        let known = self.tablets.get(report.id);
        let is_ours = known.is_none_or(|tablet| tablet.owner == server);
        match table_state {
            // `Heartbeat::check_known`: it was deleted, or a late command of the master before made it, and it is empty.
            None if known.is_none() => {
                self.ask_to_drop(server, &report);
                return Ok(false);
            }
            // Before that, the holder of the newest epoch may know of commits. What this directory gave and doesn't know any
            // more was dropped: the report is older than that, and late.
            Some(TableState::Deleting)
                if may_drop
                    && (!is_ours || (known.is_none() && state.has_dropped(report.table.0))) =>
            {
                self.ask_to_drop(server, &report);
                return Ok(false);
            }
            _ => {}
        }
        if let Some(winner) = self.winner_over(server, &report) {
            return Err(winner);
        }
        let claimed = Placement {
            table: report.table.0,
            state: self.note_frozen(server, &report, may_drop),
            rows: report.rows,
            epoch: report.epoch,
            owner: server.to_owned(),
            made: true,
            listed: true,
        };
        let known = self.tablets.get(report.id);
        let was_made = known.is_none_or(|known| known.made);
        let is_news = known.is_none_or(|known| {
            *known
                != Placement {
                    made: known.made,
                    ..claimed.clone()
                }
        });
        if is_news {
            for overlapped in self.tablets.place(report.id, claimed) {
                self.forget_about(overlapped);
            }
            // A new id above all that were given means that the state is older than the owner.
            if let Some(state) = &mut self.state {
                let next = state.next_tablet_id;
                state.met_tablet(report.id);
                self.dirty |= state.next_tablet_id != next;
            }
        } else {
            self.tablets.update(report.id, true, claimed.state);
        }
        self.forget_lost(report.id);
        Ok(is_news || !was_made)
    }

    /// The state of a reported tablet, after its effect on the deletion of its table was noted.
    fn note_frozen(&mut self, server: &str, report: &Tablet, may_drop: bool) -> TabletState {
        // A report may be older than the command to freeze.
        let was = self
            .tablets
            .get(report.id)
            .filter(|known| known.owner == server && known.epoch == report.epoch)
            .map_or(TabletState::Serving, |known| known.state);
        if report.state > TabletState::Serving
            && let Some(state) = &mut self.state
            && let Some(table) = state.tables.get_mut(&report.table.0)
        {
            // This directory may have forgotten that it was to be deleted.
            self.dirty |= table.state != TableState::Deleting;
            table.state = TableState::Deleting;
        }
        let state_now = report.state.max(was);
        if state_now != TabletState::Frozen
            && !may_drop
            && let Some(state) = &mut self.state
            && let Some(table) = state.tables.get_mut(&report.table.0)
            && table.drop_at.take().is_some()
        {
            // It has come back from before it was frozen, so that transactions may have committed there since.
            self.dirty = true;
        }
        state_now
    }

    /// Its owner has a tablet that was taken for lost.
    fn forget_lost(&mut self, id: u64) {
        let unreported = self.state.as_ref().map(|state| &state.unreported);
        if unreported.is_some_and(|known| known.get(&id).is_some_and(|known| known.made)) {
            self.forget_unreported(id);
        }
    }

    /// A server has dropped tablets of these tables, so the safe point had passed their deletion. A rebuilt state doesn't
    /// know that where the drop came late.
    pub(crate) fn take_dropped(
        &mut self,
        server: &str,
        deleted: &BTreeSet<u32>,
        reports: &[Tablet],
    ) {
        for id in deleted {
            let Some(state) = &mut self.state else { return };
            let Some(table) = state.tables.get_mut(id) else {
                continue;
            };
            if table.drop_at.is_none() {
                table.state = TableState::Deleting;
                table.drop_at = Some(0);
                self.dirty = true;
            }
            // What it doesn't have any more was reported before it was dropped, in a heartbeat that came late.
            let gone = self.tablets.of_table(*id).filter(|(tablet_id, tablet)| {
                tablet.owner == server && reports.iter().all(|report| report.id != *tablet_id)
            });
            for gone in gone.map(|(gone, _)| gone).collect::<Vec<_>>() {
                self.forget_tablet(gone);
            }
            self.settle(*id);
        }
    }

    fn ask_to_drop(&mut self, server: &str, report: &Tablet) {
        if let Some(live) = self.live.get_mut(server) {
            live.needs_reconcile = true;
        }
        let (tablet, table) = (report.id, report.table.0);
        self.ask(server, Action::Drop { tablet, table });
    }

    /// A tablet that its owner had and no longer reports is lost, or its creation crossed this
    /// heartbeat on the way: noted when it stays away, and never replaced by an empty one.
    pub(crate) fn watch_missing(&mut self, now: Duration, server: &str) {
        let heartbeat_timeout = self.heartbeat_timeout();
        let (Some(state), Some(live)) = (&mut self.state, self.live.get_mut(server)) else {
            return;
        };
        let mut missing = BTreeMap::new();
        let mut given_up = Vec::new();
        let mut lost = Vec::new();
        for (id, tablet) in self.tablets.of_owner(server) {
            if !tablet.made
                || tablet.listed
                || live.arrival(id).is_some_and(|it| it.failure.is_none())
            {
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
            let (since, is_reported) = live.missing.get(&id).copied().unwrap_or((now, false));
            let overdue = now.saturating_sub(since) >= heartbeat_timeout;
            if overdue && !state.unreported.contains_key(&id) {
                lost.push((id, tablet.clone()));
            }
            if overdue && !is_reported {
                self.effects.notes.push(Note::Missing {
                    server: server.to_owned(),
                    tablet: id,
                    table: table.name.clone(),
                });
            }
            missing.insert(id, (since, is_reported || overdue));
        }
        live.missing = missing;
        // Its owner can't report it any more, so a start after this one would not know of it.
        if !lost.is_empty() && !mutants::on(Mutant::LossForgotten) {
            let mut next = state.clone();
            next.unreported.extend(lost);
            // A state that no register takes ends each master that leads. A start after this one finds that no server has these rows.
            if next.encode().len() <= self.state_bytes_max / 6 * 7 {
                *state = next;
                self.dirty = true;
            }
        }
        for id in given_up {
            let Some(lost) = self.tablets.get(id) else {
                continue;
            };
            // Now an empty one may be made; one that is there all the same stays as it is.
            let empty = Placement {
                epoch: lost.epoch.max(1),
                made: false,
                state: TabletState::Serving,
                ..lost.clone()
            };
            state.unreported.insert(id, empty.clone());
            self.tablets.place(id, empty);
            self.dirty = true;
        }
    }

    /// Rows that no tablet server has, though all have reported: they were lost while this master did not run. They
    /// count as a tablet of the server that came back with an empty folder.
    pub(crate) fn watch_gaps(&mut self, now: Duration) {
        let Some(state) = &self.state else { return };
        if mutants::on(Mutant::LossForgotten) {
            return;
        }
        if now < self.settled_at() || !self.have_all_reported(state) {
            return;
        }
        let with_gaps: Vec<(u32, bool, bool)> = self
            .tables_with_gaps(state)
            .map(|(id, table)| {
                let given_up = table.given_up && table.state == TableState::Deleting;
                (id, given_up, table.drop_at.is_some())
            })
            .collect();
        let is_emptied = |(_, server): &(&String, &Server)| server.emptied;
        let emptied = state.servers.iter().find(is_emptied);
        let emptied = emptied.map(|(name, _)| name.clone());
        if with_gaps.is_empty() {
            if emptied.is_some() && self.losers().is_empty() {
                self.forget_emptied();
            }
            return;
        }
        let mut owners = BTreeSet::new();
        for (table, given_up, was_frozen) in with_gaps {
            let least = || self.loads(now).pop_first();
            let any_server = || least().map(|(_, name)| name).filter(|_| given_up);
            let Some(owner) = emptied.clone().or_else(any_server) else {
                continue;
            };
            for rows in self.tablets.gaps(table) {
                let Some(state) = &mut self.state else { return };
                let id = state.next_tablet_id;
                state.next_tablet_id += 1;
                let tablet = Placement {
                    table,
                    rows,
                    // Less than that of any tablet that a server has: should one come back, it is the one.
                    epoch: u64::from(given_up),
                    owner: owner.clone(),
                    made: !given_up,
                    state: if was_frozen {
                        TabletState::Frozen
                    } else {
                        TabletState::Serving
                    },
                    listed: false,
                };
                state.unreported.insert(id, tablet.clone());
                self.tablets.place(id, tablet);
                self.dirty = true;
            }
            owners.insert(owner);
        }
        for owner in owners {
            self.watch_missing(now, &owner);
            self.command(now, &owner);
        }
    }

    /// The tables some of whose rows are in no known tablet, though they are needed.
    pub(crate) fn tables_with_gaps<'a>(
        &'a self,
        state: &'a DirectoryState,
    ) -> impl Iterator<Item = (u32, &'a TableRecord)> {
        let needs_all = |id: u32, table: &TableRecord| match table.state {
            TableState::Creating => false,
            TableState::Ready => true,
            // Until it may be dropped, its tablets report what became of transactions.
            TableState::Deleting => !state.may_drop(id),
        };
        let tables = state.tables.iter();
        let tables = tables
            .filter(move |(id, table)| needs_all(**id, table) && !self.tablets.is_covered(**id));
        tables.map(|(id, table)| (*id, table))
    }

    fn forget_emptied(&mut self) {
        let Some(state) = &mut self.state else { return };
        for server in state.servers.values_mut() {
            self.dirty |= std::mem::take(&mut server.emptied);
        }
    }

    /// What the directory already has for these rows, unless the report is newer.
    fn winner_over(&self, server: &str, report: &Tablet) -> Option<Winner> {
        let winner = |(id, tablet): (u64, &Placement)| Winner {
            id,
            owner: tablet.owner.clone(),
            epoch: tablet.epoch,
        };
        if let Some(known) = self.tablets.get(report.id) {
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
        let mut overlapping = self.tablets.overlapping(report.table.0, &report.rows);
        // One that this server was asked to make, and has not made, yields to what it has there.
        let counts = |tablet: &Placement| tablet.made || tablet.owner != server;
        overlapping
            .find(|(id, tablet)| *id != report.id && tablet.epoch >= report.epoch && counts(tablet))
            .map(winner)
    }
}
