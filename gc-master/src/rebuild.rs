//! Rebuilds a lost state, once: at a person's command, from what the tablet servers report that the person names
//! (`docs/design/rebuild.md`).
//!
//! A master without a state keeps what servers report, and refuses them. The list of names is the authority on which servers
//! there are: rows that none of the named ones has are gone. What owners can't report is chosen so that it is
//! safe: ids from a later block, and unknown leases and incarnations of servers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::{Rows, Tablet, TabletState, Timestamp};

use crate::core::Directory;
use crate::events::{Departed, Heartbeat, Note};
use crate::fencing::{AHEAD_MAX, JUMP_MAX, LEASE, later};
use crate::ids;
use crate::lost::{FRESH, LostStateReports};
use crate::placements::Placements;
use crate::rebuild_command::{RebuildCommand, RebuildSource, Rebuilt, RebuiltTableRecord};
use crate::refusal::Refusal;
use crate::settings::StoredSettings;
use crate::state::{
    DirectoryState, Drain, Placement, Role, Server, TableRecord, TableState, UNKNOWN_INCARNATION,
};

/// So many names are listed in one message.
const NAMES_MAX: usize = 20;

/// What a state would be rebuilt from, and what speaks against it.
#[derive(Default)]
struct Plan<'a> {
    cluster_id: Option<String>,
    /// Named tablet servers that have reported as members of the cluster, by name.
    members: BTreeMap<&'a str, &'a Heartbeat>,
    oracles: BTreeMap<&'a str, &'a Heartbeat>,
    problems: Vec<String>,
    losses: Vec<String>,
    servers: Vec<RebuildSource>,
}

impl Directory {
    /// Takes in what a server reports while there is no state. Why it is refused.
    pub(crate) fn report_without_state(&mut self, now: Duration, beat: Heartbeat) -> Refusal {
        let server = beat.server.clone();
        let refusal = match (&beat.cluster_id, &self.lost.cluster) {
            (Some(theirs), Some(ours)) if theirs != ours => {
                return Refusal::OtherCluster {
                    server,
                    theirs: theirs.clone(),
                    ours: ours.clone(),
                };
            }
            (Some(theirs), _) => Refusal::LostState {
                server,
                theirs: theirs.clone(),
            },
            (None, _) => Refusal::NoState,
        };
        self.lost.reports.take(now, beat);
        refusal
    }

    /// Says what a state would have that is rebuilt from the reports of the tablet servers that are named, and begins with it if that is
    /// asked for and nothing speaks against it.
    ///
    /// # Errors
    /// [`Refusal::HasState`].
    pub fn rebuild(&mut self, now: Duration, request: &RebuildCommand) -> Result<Rebuilt, Refusal> {
        if let Some(state) = &self.state {
            return Err(Refusal::HasState {
                cluster: state.cluster_id.clone(),
            });
        }
        let named: BTreeSet<&str> = request.tablet_servers.iter().map(String::as_str).collect();
        let mut plan = Plan::new(&self.lost, now, &named);
        let (mut state, mut rebuilt) = plan.state();
        state.unknown_are_gone = request.accept_data_loss;
        let may_write =
            plan.problems.is_empty() && (plan.losses.is_empty() || request.accept_data_loss);
        rebuilt.problems = plan.problems;
        rebuilt.losses = plan.losses;
        rebuilt.servers = plan.servers;
        if request.write && may_write {
            rebuilt.written = true;
            self.begin_with(now, state);
        }
        Ok(rebuilt)
    }

    fn begin_with(&mut self, now: Duration, state: DirectoryState) {
        self.effects.notes.push(Note::Rebuilt {
            cluster_id: state.cluster_id.clone(),
            servers: state.servers.tablet_servers_len(),
            tables: state.tables.len(),
        });
        for (id, tablet) in &state.unreported {
            self.tablets.place(*id, tablet.clone());
        }
        self.state = Some(state);
        self.lost = LostStateReports::default();
        // From here on it is as any start with a state.
        self.known_since = now;
        self.distrust_leases();
        self.dirty = true;
    }
}

impl<'a> Plan<'a> {
    fn new(lost: &'a LostStateReports, now: Duration, named: &BTreeSet<&'a str>) -> Self {
        let mut plan = Self {
            cluster_id: lost.cluster.clone(),
            ..Self::default()
        };
        let mut by_name: BTreeMap<&str, Vec<&Heartbeat>> = BTreeMap::new();
        for beat in lost.reports.fresh(now) {
            by_name.entry(&beat.server).or_default().push(beat);
        }
        let with_cluster = named.iter().filter_map(|name| by_name.get(name)).flatten();
        let clusters: BTreeSet<&String> = with_cluster
            .filter_map(|beat| beat.cluster_id.as_ref())
            .collect();
        match clusters.first() {
            _ if clusters.len() > 1 => plan.problems.push(format!(
                "the named servers belong to several clusters: {}",
                list(clusters.iter().map(|id| id.as_str()))
            )),
            Some(cluster) => plan.cluster_id = Some((*cluster).clone()),
            None if named.is_empty() => plan
                .problems
                .push("no tablet server is named: name all of the cluster".to_owned()),
            None => plan.problems.push(
                "no named tablet server reports that belongs to a cluster: there is nothing to rebuild from"
                    .to_owned(),
            ),
        }
        plan.take_named(named, &by_name);
        plan.take_others(named, &by_name);
        plan
    }

    /// Sorts the named servers by what they report.
    fn take_named(
        &mut self,
        named: &BTreeSet<&'a str>,
        by_name: &BTreeMap<&str, Vec<&'a Heartbeat>>,
    ) {
        let (mut silent, mut twice, mut empty) = (Vec::new(), Vec::new(), Vec::new());
        for name in named {
            let mut server = RebuildSource {
                server: (*name).to_owned(),
                role: Role::Tablet,
                address: String::new(),
                tablets: 0,
            };
            match by_name.get(name).map(Vec::as_slice) {
                None | Some([]) => silent.push(*name),
                Some([beat]) => {
                    server.address.clone_from(&beat.address);
                    server.tablets = beat.tablets.len();
                    if beat.role != Role::Tablet {
                        let wrong = format!("{name} is {}, and is named", beat.role.describe());
                        self.problems.push(wrong);
                    } else if beat.cluster_id.is_none() {
                        empty.push(*name);
                    } else {
                        self.members.insert(&beat.server, beat);
                    }
                }
                Some([_, _, ..]) => twice.push(*name),
            }
            self.servers.push(server);
        }
        if !silent.is_empty() && !mutants::on(Mutant::RebuildWithoutAll) {
            self.problems.push(format!(
                "no heartbeat in the last {} s: {}. Start them; or don't name those that are gone for good, with their rows",
                FRESH.as_secs(),
                list(silent)
            ));
        }
        if !twice.is_empty() {
            self.problems.push(format!(
                "two processes have one name, or one was started again just now: {}",
                list(twice)
            ));
        }
        if !empty.is_empty() {
            self.losses.push(format!(
                "these have an empty folder, and join as new ones: what they had, if anything, is gone: {}",
                list(empty)
            ));
        }
    }

    /// Takes the oracles in; and tablet servers of this cluster must be named.
    fn take_others(
        &mut self,
        named: &BTreeSet<&str>,
        by_name: &BTreeMap<&str, Vec<&'a Heartbeat>>,
    ) {
        let mut unnamed = Vec::new();
        for beat in by_name.values().flatten() {
            if beat.cluster_id.is_none() || beat.cluster_id != self.cluster_id {
                continue;
            }
            let mut is_listed = false;
            match beat.role {
                Role::Tablet if !named.contains(&*beat.server) => unnamed.push(&*beat.server),
                Role::Tablet => is_listed = true,
                // Of two starts the limit alone counts, which each oracle checks by itself.
                Role::Oracle => {
                    is_listed = self.oracles.insert(&beat.server, beat).is_some();
                }
            }
            if !is_listed {
                self.servers.push(RebuildSource {
                    server: beat.server.clone(),
                    role: beat.role,
                    address: beat.address.clone(),
                    tablets: beat.tablets.len(),
                });
            }
        }
        if !unnamed.is_empty() {
            self.problems.push(format!(
                "these report as tablet servers of the cluster, and are not named: {}. Name them, or stop them",
                list(unnamed)
            ));
        }
        if self.oracles.is_empty() {
            self.losses.push(
                "no oracle of the cluster reports: a new one goes on above the highest timestamp that any server has".to_owned(),
            );
        }
        let alone: Vec<&str> = (self.oracles.values())
            .filter(|beat| beat.oracle_register == 0)
            .map(|beat| &*beat.server)
            .collect();
        if self.oracles.len() > 1 && !alone.is_empty() {
            self.problems.push(format!(
                "there may be only one oracle without a register: {}",
                list(self.oracles.keys().copied())
            ));
        }
    }

    /// The state, with empty tablets in place of lost rows, and what it has for people.
    fn state(&mut self) -> (DirectoryState, Rebuilt) {
        let mut state = DirectoryState::empty(self.cluster_id.clone().unwrap_or_default());
        let placements = self.place();
        self.enter_tables(&mut state, &placements);
        self.pick_ids(&mut state);
        let gaps = self.fill_gaps(&mut state, &placements);
        self.enter_servers(&mut state);
        let mut points = Points::default();
        for beat in self.members.values() {
            points = points.raised(beat.points);
        }
        state.gc.barrier = points.barrier.as_u64();
        state.gc.safe_point = points.safe_point.as_u64();
        state.gc.resolved = points.resolved.as_u64();
        let settings = self.members.values().map(|beat| &beat.settings);
        let newest: Option<&StoredSettings> = settings.max_by_key(|set| set.revision);
        state.gc.set = newest.cloned().unwrap_or_default();
        let tables = state.tables.iter().map(|(id, table)| RebuiltTableRecord {
            id: *id,
            table: table.clone(),
            tablets: placements.count_of_table(*id),
            gaps: gaps.get(id).copied().unwrap_or_default(),
        });
        let rebuilt = Rebuilt {
            cluster_id: state.cluster_id.clone(),
            tables: tables.collect(),
            points,
            settings: state.gc.set.clone(),
            next_table_id: state.next_table_id,
            ..Rebuilt::default()
        };
        (state, rebuilt)
    }

    /// Where tablets are: of two with the same rows the one with the higher epoch.
    fn place(&mut self) -> Placements {
        let mut reports: Vec<(&str, &Tablet)> = (self.members.iter())
            .flat_map(|(name, beat)| beat.tablets.iter().map(|tablet| (*name, tablet)))
            .collect();
        reports.sort_by_key(|(_, tablet)| tablet.epoch);
        let mut placements = Placements::default();
        for (owner, tablet) in reports {
            let of_id = placements.get(tablet.id).map(|known| (tablet.id, known));
            let overlapping = placements.overlapping(tablet.table.0, &tablet.rows);
            let equal = (of_id.into_iter().chain(overlapping))
                .find(|(_, known)| known.epoch == tablet.epoch);
            if let Some((id, known)) = equal {
                self.problems.push(format!(
                    "{owner} and {} have the same rows of table {} ({}), in tablets {} and {id} with epoch {}: start one of \
                     both with an empty folder",
                    known.owner, tablet.table_name, tablet.table.0, tablet.id, tablet.epoch
                ));
            }
            let placement = Placement {
                table: tablet.table.0,
                rows: tablet.rows.clone(),
                epoch: tablet.epoch,
                owner: owner.to_owned(),
                made: true,
                state: tablet.state,
                listed: false,
            };
            placements.place(tablet.id, placement);
        }
        self.place_departed(&mut placements);
        self.lose_copies(&placements);
        placements
    }

    /// Complete copies of tablets whose owners, which alone can hand them over, are not there. They are dropped if rows that no server
    /// has are given up.
    fn lose_copies(&mut self, placements: &Placements) {
        for (name, beat) in &self.members {
            let complete = beat.arriving.iter();
            let complete = complete.filter(|it| it.is_complete && it.failure.is_none());
            for copy in complete {
                if placements.of_row(copy.table.0, &copy.start_row).is_none() {
                    self.losses.push(format!(
                        "{name} has a copy of tablet {} of table {}, which {} has not handed over: start that one with its \
                         folder",
                        copy.tablet, copy.table.0, copy.from
                    ));
                }
            }
        }
    }

    /// Tablets that were handed over are where they have gone, also before that server knows it: it has all of them.
    fn place_departed(&self, placements: &mut Placements) {
        for Departed { tablet, to } in self.departed() {
            let is_older = {
                let same = placements.get(tablet.id).into_iter();
                let overlapping = placements.overlapping(tablet.table.0, &tablet.rows);
                let mut known = same.chain(overlapping.map(|(_, known)| known));
                known.any(|known| known.epoch >= tablet.epoch)
            };
            if is_older || !self.members.contains_key(&**to) {
                continue;
            }
            let placement = Placement {
                table: tablet.table.0,
                rows: tablet.rows.clone(),
                epoch: tablet.epoch,
                owner: to.clone(),
                made: true,
                state: tablet.state,
                listed: false,
            };
            placements.place(tablet.id, placement);
        }
    }

    /// What members have handed over, as far as they don't know that others report it.
    fn departed(&self) -> impl Iterator<Item = &'a Departed> {
        self.members.values().flat_map(|beat| &beat.departed)
    }

    /// A table with a frozen tablet was being deleted. If one of its tablets was dropped, all may go.
    fn enter_tables(&mut self, state: &mut DirectoryState, placements: &Placements) {
        let tablets = self.members.values().flat_map(|beat| &beat.tablets);
        let departed = self.departed().map(|departed| &departed.tablet);
        let names: BTreeMap<u32, &str> = tablets
            .chain(departed)
            .map(|tablet| (tablet.table.0, &*tablet.table_name))
            .collect();
        let mut by_name: BTreeMap<&str, u32> = BTreeMap::new();
        for (id, name) in names {
            let mut members = self.members.values();
            let was_dropped = members.any(|beat| beat.deleted_tables.contains(&id));
            let mut tablets = placements.of_table(id);
            let is_frozen = tablets.any(|(_, tablet)| tablet.state == TabletState::Frozen);
            let table = TableRecord {
                name: name.to_owned(),
                state: if was_dropped || is_frozen {
                    TableState::Deleting
                } else {
                    TableState::Ready
                },
                drop_at: was_dropped.then_some(0),
                given_up: false,
            };
            if table.state == TableState::Ready
                && let Some(other) = by_name.insert(name, id)
            {
                self.problems.push(format!(
                    "tables {other} and {id} have the same name, {name}: start the servers of one of both with empty folders"
                ));
            }
            state.tables.insert(id, table);
        }
    }

    /// Ids above all that were ever seen, and above those that may be on their way.
    fn pick_ids(&mut self, state: &mut DirectoryState) {
        let tablets = self.members.values().flat_map(|beat| &beat.tablets);
        let deleted = self.members.values().flat_map(|beat| &beat.deleted_tables);
        let gone = deleted.filter(|id| !state.tables.contains_key(id)).copied();
        state.deleted = gone.collect();
        let table = state.tables.keys().chain(&state.deleted).max().copied();
        // Those that were merged or dropped count too.
        let highest = self.members.values().map(|beat| beat.highest_tablet_id);
        let tablet = tablets.map(|tablet| tablet.id).chain(highest).max();
        match ids::after(table.unwrap_or_default(), tablet.unwrap_or_default()) {
            Some((table, tablet)) => {
                (state.next_table_id, state.next_tablet_id) = (table, tablet);
                state.first_table_id = table;
            }
            None => self
                .problems
                .push("every table id has been used".to_owned()),
        }
        if mutants::on(Mutant::RebuiltIdsTooLow) {
            let lowest = state.tables.keys().min().copied();
            state.next_table_id = lowest.unwrap_or(1) + 1;
            state.first_table_id = state.next_table_id;
        }
    }

    /// Enters empty tablets for rows that no server has, at those with the fewest. How many of which table.
    fn fill_gaps(
        &mut self,
        state: &mut DirectoryState,
        placements: &Placements,
    ) -> BTreeMap<u32, u64> {
        let mut counts = BTreeMap::new();
        let counted = |name: &&str| (placements.count_of_owner(name), (*name).to_owned());
        let mut loads: BTreeSet<(usize, String)> = self.members.keys().map(counted).collect();
        for (id, table) in &mut state.tables {
            if table.drop_at.is_some() {
                continue;
            }
            for rows in placements.gaps(*id) {
                let Some((load, owner)) = loads.pop_first() else {
                    continue;
                };
                self.losses.push(format!(
                    "no server has the rows {} of table {} ({id})",
                    shown(&rows),
                    table.name
                ));
                *counts.entry(*id).or_default() += 1;
                let epoch = self.epoch_above_copies(*id, &rows);
                if table.state == TableState::Ready {
                    table.state = TableState::Creating;
                }
                let empty = Placement {
                    table: *id,
                    rows,
                    epoch,
                    owner: owner.clone(),
                    made: false,
                    state: TabletState::Serving,
                    listed: false,
                };
                loads.insert((load + 1, owner));
                state.unreported.insert(state.next_tablet_id, empty);
                state.next_tablet_id += 1;
            }
        }
        counts
    }

    /// Above all copies of these rows that wait for an owner which is not there: they go when the empty tablet is known.
    fn epoch_above_copies(&self, table: u32, rows: &Rows) -> u64 {
        let copies = self.members.values().flat_map(|beat| &beat.arriving);
        let copies = copies.filter(|it| it.table.0 == table && rows.contains(&it.start_row));
        // Their owner would have handed them over at the next one.
        copies.map(|it| it.epoch + 2).max().unwrap_or(1)
    }

    /// Enters the servers. Which incarnation of each was accepted is unknown, unless it reports it.
    fn enter_servers(&self, state: &mut DirectoryState) {
        state.leases_unknown = true;
        let beats = self.members.values().chain(self.oracles.values());
        for beat in beats.clone() {
            let is_accepted = beat.accepted
                || beat.replaces_accepted
                || mutants::on(Mutant::RebuiltStartsAccepted);
            let (incarnation, groups) = if is_accepted {
                (beat.incarnation, beat.groups)
            } else {
                (UNKNOWN_INCARNATION, beat.groups_found)
            };
            let server = Server {
                role: beat.role,
                address: beat.address.clone(),
                emptied: false,
                adopted: beat.role == Role::Oracle,
                taken_in: beat.role == Role::Tablet,
                incarnation,
                high_ts: beat.high_ts.as_u64(),
                groups,
                commits_above: 0,
                oracle_register: beat.oracle_register,
                drain: Drain::Off,
            };
            state.servers.insert(beat.server.clone(), server);
        }
        let time = beats.clone().map(|beat| beat.time).max();
        let time = time.unwrap_or_default();
        // See `Directory::learn_time`.
        let is_believed = |ts: &Timestamp| time == Timestamp::ZERO || *ts <= later(time, AHEAD_MAX);
        let seen = self.members.values().map(|beat| beat.high_ts);
        let seen = seen.filter(is_believed).max().unwrap_or_default();
        let above = if self.oracles.is_empty() {
            let points = self.members.values().map(|beat| beat.points.barrier);
            let seen = points.max().unwrap_or_default().max(seen);
            // The lost one may have granted so much more.
            later(seen, LEASE + JUMP_MAX)
        } else {
            seen
        };
        state.highest_seen = above.as_u64();
    }
}

/// Names, in a line.
fn list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    match names.get(..NAMES_MAX) {
        Some(first) if names.len() > NAMES_MAX => {
            format!("{}, and {} more", first.join(", "), names.len() - NAMES_MAX)
        }
        _ => names.join(", "),
    }
}

/// Rows, for people: `["m".."t")`, where an end that is left out is the table's.
fn shown(rows: &Rows) -> String {
    let text = |row: &[u8]| match row {
        [] => String::new(),
        row => format!("\"{}\"", row.escape_ascii()),
    };
    format!("[{}..{})", text(&rows.start), text(&rows.end))
}
