//! Creating and deleting tables.

use std::collections::BTreeSet;
use std::time::Duration;

use percolator_protocol::types::{Rows, TabletState};

use crate::core::Directory;
use crate::events::Deletion;
use crate::names::{check_cuts, check_table_name};
use crate::refusal::Refusal;
use crate::state::{DirectoryState, Placement, Role, TableRecord, TableState};

/// The most bytes that the state may have with one more table, unless [`Directory::limit_state`] says otherwise.
pub const STATE_BYTES_MAX: usize = 12 << 20;

/// How long no table is made, and no tablet split, after a server has reported a table that is not in the state: it asks again all
/// the time.
const OLDER_REST: Duration = Duration::from_secs(60);

impl Directory {
    /// The most bytes that the state may have with one more table. The register of the state takes more, so that what
    /// servers report still fits in.
    pub fn limit_state(&mut self, bytes_max: usize) {
        self.state_bytes_max = bytes_max;
    }

    /// Whether numbers of tables and tablets may be given: no server had something of late that the state doesn't have. They may be those
    /// of that.
    pub(crate) fn check_newest(&self, now: Duration) -> Result<(), Refusal> {
        match &self.newer_server {
            Some((at, refusal)) if now < *at + OLDER_REST => Err(refusal.clone()),
            Some(_) | None => Ok(()),
        }
    }

    /// Begins a table, or goes on with one that is being created with the same cuts. Answers with
    /// its id; it can be used once its state is ready.
    ///
    /// # Errors
    /// Those of tables, [`Refusal::NoState`] and [`Refusal::Settling`].
    pub fn create_table(
        &mut self,
        now: Duration,
        name: &str,
        cuts: &[Vec<u8>],
    ) -> Result<u32, Refusal> {
        check_table_name(name)?;
        check_cuts(cuts)?;
        let state = self.state()?;
        if let Some(id) = state.table_named(name) {
            return self.going_on(state, id, cuts);
        }
        // Of a table that isn't frozen, a rebuilt state wouldn't know that it was to be deleted.
        let unfrozen = state.deleting_named(name).find(|id| !self.is_frozen(*id));
        if let Some(id) = unfrozen {
            return Err(Refusal::BeingDeleted {
                name: name.to_owned(),
                waits_for: self.waits_for(id, now),
            });
        }
        self.check_settled(now)?;
        self.check_newest(now)?;
        let unmet = self.unmet_tablet_servers();
        if unmet > 0 && self.state()?.tables.is_empty() {
            let met = self.state()?.servers.tablet_servers_len();
            return Err(Refusal::UnmetTabletServers {
                met,
                expected: met + unmet,
            });
        }
        let mut loads = self.loads(now);
        if loads.is_empty() {
            return Err(self.no_tablet_server(now));
        }

        let state = self.state()?;
        let first_tablet_id = state.next_tablet_id;
        let (next, id) = state_with_table(state, name, cuts, &mut loads)?;
        let bytes = next.encode().len();
        let bytes_max = self.state_bytes_max;
        if bytes > bytes_max {
            return Err(Refusal::DirectoryFull { bytes, bytes_max });
        }
        let mut owners = BTreeSet::new();
        for (id, tablet) in next.unreported.range(first_tablet_id..) {
            self.tablets.place(*id, tablet.clone());
            owners.insert(tablet.owner.clone());
        }
        self.state = Some(next);
        self.dirty = true;
        for owner in owners {
            self.command(now, &owner);
        }
        Ok(id)
    }

    /// Begins to delete a table, and answers with its id. Its tablets are frozen ([`Self::is_frozen`]), so that no transaction
    /// whose primary lies there commits any more; then its name is free. Those that did commit may have locks
    /// in other tables yet, and the table's tablets alone know that they did: so they are dropped when the safe point has
    /// passed the time at which all were frozen (`protocol::safe_point`). The table is gone once the state no longer has it.
    ///
    /// `accept_data_loss`: tablets that their owners don't have when they report the next time are replaced by empty ones, frozen at
    /// once. These answer for every transaction that it was rolled back, so that the table can be deleted to the end.
    ///
    /// Without an id, a table of this name whose deletion waits for something is meant rather than another one.
    ///
    /// # Errors
    /// [`Refusal::NoSuchTable`], [`Refusal::NoState`] and [`Refusal::Settling`].
    pub fn delete_table(&mut self, now: Duration, deletion: &Deletion<'_>) -> Result<u32, Refusal> {
        let Deletion {
            name,
            table,
            accept_data_loss,
        } = *deletion;
        self.check_settled(now)?;
        let state = self.state()?;
        let id = match table {
            // Also one whose deletion is under way: the answer to an earlier request may have been lost.
            Some(id) => {
                Some(id).filter(|id| state.tables.get(id).is_some_and(|it| it.name == name))
            }
            None => {
                let mut deleting = state.deleting_named(name);
                let waiting = deleting.find(|id| self.lacks_frozen(*id));
                waiting.or_else(|| state.table_named(name))
            }
        };
        let id = id.ok_or(Refusal::NoSuchTable {
            name: name.to_owned(),
        })?;
        // What is made anew has to be frozen, too.
        let made_anew = accept_data_loss && !state.may_drop(id) && self.lacks_frozen(id);
        let owners = self.tablets.owners_of(id).into_iter();
        let owners: BTreeSet<String> = owners.map(String::from).collect();
        if let Some(table) = self
            .state
            .as_mut()
            .and_then(|state| state.tables.get_mut(&id))
        {
            self.dirty |= table.state != TableState::Deleting;
            table.state = TableState::Deleting;
            if made_anew {
                self.dirty |= !table.given_up || table.drop_at.is_some();
                table.given_up = true;
                table.drop_at = None;
            }
        }
        self.settle(id);
        for owner in owners {
            let live = self.live.get(&owner);
            if accept_data_loss && live.is_some_and(|live| live.lists_version != 0) {
                self.watch_missing(now, &owner);
            }
            self.command(now, &owner);
        }
        if accept_data_loss {
            self.watch_gaps(now);
        }
        Ok(id)
    }

    /// The table as it is; none if it is gone.
    pub fn table(&self, id: u32) -> Option<&TableRecord> {
        self.state.as_ref()?.tables.get(&id)
    }

    /// Whether every row of the table lies in a tablet that is frozen.
    pub fn is_frozen(&self, id: u32) -> bool {
        let Some(state) = &self.state else {
            return false;
        };
        let Some(table) = state.tables.get(&id) else {
            return false;
        };
        // All were when it was timed.
        table.drop_at.is_some() || self.tablets.is_frozen(id)
    }

    /// Whether something of the table, which is being deleted, isn't frozen at its owner, or isn't there.
    fn lacks_frozen(&self, id: u32) -> bool {
        let mut tablets = self.tablets.of_table(id);
        let mut gaps = self
            .state
            .iter()
            .flat_map(|state| self.tables_with_gaps(state));
        gaps.any(|(table, _)| table == id)
            || tablets
                .any(|(_, tablet)| tablet.state != TabletState::Frozen || self.is_absent(tablet))
    }

    /// A table is gone for good.
    pub(crate) fn remove_table(&mut self, id: u32) {
        let Some(state) = &mut self.state else { return };
        state.remove_table(id);
        self.dirty = true;
    }

    /// The servers that a table waits for, for messages: "tablet-1 (no heartbeat since this master leads)", and why that
    /// one does not carry out its commands.
    pub fn waits_for(&self, id: u32, now: Duration) -> String {
        let Some(state) = &self.state else {
            return "nobody".into();
        };
        let is_missing = |tablet: &Placement| match state.tables.get(&id) {
            Some(table) if table.state == TableState::Deleting => {
                tablet.state < TabletState::Frozen
            }
            _ => !tablet.made,
        };
        let missing = self.tablets.of_table(id);
        let missing: Vec<_> = missing.filter(|(_, tablet)| is_missing(tablet)).collect();
        let waits_for: BTreeSet<&str> = missing
            .iter()
            .map(|(_, tablet)| tablet.owner.as_str())
            .collect();
        if waits_for.is_empty() && !self.have_all_reported(state) {
            return self.describe(self.unreported_servers(state).collect(), now);
        }
        if waits_for.is_empty() {
            return "rows that no tablet server has, though all have reported".into();
        }
        let mut described = self.describe(waits_for, now);
        let failed = |(tablet_id, tablet): &(u64, &Placement)| {
            let cause = self.commands.failure(*tablet_id, &tablet.owner)?;
            Some(format!(
                "; the last command to {} failed: {cause}",
                tablet.owner
            ))
        };
        if let Some(cause) = missing.iter().find_map(failed) {
            described.push_str(&cause);
        }
        described
    }

    /// A table of this name is there already.
    fn going_on(&self, state: &DirectoryState, id: u32, cuts: &[Vec<u8>]) -> Result<u32, Refusal> {
        let table = &state.tables[&id];
        let name = table.name.clone();
        match table.state {
            TableState::Ready => Err(Refusal::TableExists { name }),
            // Its name is free.
            TableState::Deleting => Err(Refusal::NoSuchTable { name }),
            TableState::Creating => {
                let tablets = self.tablets.of_table(id);
                let starts = tablets.map(|(_, tablet)| &tablet.rows.start[..]);
                let cuts = cuts.iter().map(Vec::as_slice);
                let is_same = starts.eq(std::iter::once(&[][..]).chain(cuts));
                is_same.then_some(id).ok_or(Refusal::OtherCuts { name })
            }
        }
    }

    /// The tablet servers that are up and may get tablets, by how many they have.
    pub(crate) fn loads(&self, now: Duration) -> BTreeSet<(usize, String)> {
        let Some(state) = &self.state else {
            return BTreeSet::new();
        };
        let servers = state.servers.iter();
        servers
            .filter(|(name, server)| {
                server.role == Role::Tablet && !self.drains(name) && self.is_alive(name, now)
            })
            .map(|(name, _)| (self.tablets.count_of_owner(name), name.clone()))
            .collect()
    }

    fn no_tablet_server(&self, now: Duration) -> Refusal {
        let tablet_servers = self.state.as_ref().map(|state| {
            let is_tablet = |server: &crate::state::Server| server.role == Role::Tablet;
            let servers = state.servers.iter();
            servers
                .filter(|(_, server)| is_tablet(server))
                .map(|(name, _)| name.as_str())
                .collect::<BTreeSet<&str>>()
        });
        let known = match tablet_servers {
            Some(names) if !names.is_empty() => self.describe(names, now),
            _ => "none has ever sent a heartbeat".into(),
        };
        Refusal::NoTabletServer { known }
    }

    fn describe(&self, servers: BTreeSet<&str>, now: Duration) -> String {
        let described: Vec<String> = servers
            .into_iter()
            .map(|server| match self.time_since_heartbeat(server, now) {
                Some(_) if self.is_stopping(server, now) => {
                    format!("{server} (up, and about to end)")
                }
                Some(_) if self.is_alive(server, now) && self.drains(server) => {
                    format!("{server} (up, and drained)")
                }
                Some(_) if self.is_alive(server, now) => format!("{server} (up)"),
                Some(since) => format!("{server} (last heartbeat {} s ago)", since.as_secs()),
                None => format!("{server} (no heartbeat since this master leads)"),
            })
            .collect();
        described.join(", ")
    }
}

/// The state with one more table, and its id. Its tablets are given to the least loaded servers.
fn state_with_table(
    state: &DirectoryState,
    name: &str,
    cuts: &[Vec<u8>],
    loads: &mut BTreeSet<(usize, String)>,
) -> Result<(DirectoryState, u32), Refusal> {
    // Without the tablets, which are soft state, it is small.
    let mut next = state.clone();
    let id = next.next_table_id;
    next.next_table_id = id.checked_add(1).ok_or(Refusal::NoTableIds)?;
    let table = TableRecord {
        name: name.to_owned(),
        state: TableState::Creating,
        drop_at: None,
        given_up: false,
    };
    next.tables.insert(id, table);
    let starts = std::iter::once(Vec::new()).chain(cuts.iter().cloned());
    let ends = cuts.iter().cloned().chain(std::iter::once(Vec::new()));
    for (start, end) in starts.zip(ends) {
        let tablet = Placement {
            table: id,
            rows: Rows {
                start: start.into(),
                end: end.into(),
            },
            epoch: 1,
            owner: least_loaded(loads),
            made: false,
            state: TabletState::Serving,
            listed: false,
        };
        next.unreported.insert(next.next_tablet_id, tablet);
        next.next_tablet_id += 1;
    }
    Ok((next, id))
}

/// Takes the server with the fewest tablets, the first by name among equals, and counts one more
/// for it. There is at least one.
fn least_loaded(loads: &mut BTreeSet<(usize, String)>) -> String {
    let (load, name) = loads
        .pop_first()
        .expect("the caller saw to it that a server is up");
    loads.insert((load + 1, name.clone()));
    name
}
