//! Creating and deleting tables.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::core::Directory;
use crate::names::{check_cuts, check_table_name};
use crate::refusal::Refusal;
use crate::truth::{Role, Rows, Table, TableState, Tablet, Truth};

/// The most bytes that the state may have, so that what servers report still fits in its file.
pub const STATE_BYTES_MAX: usize = 12 << 20;

impl Directory {
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
        let truth = self.truth()?;
        if let Some(id) = truth.table_named(name) {
            return going_on(truth, id, cuts);
        }
        self.check_settled(now)?;
        let mut loads = self.loads(now);
        if loads.is_empty() {
            return Err(self.no_tablet_server(now));
        }

        let mut next = self.truth()?.clone();
        let id = next.next_table_id;
        next.next_table_id = id.checked_add(1).ok_or(Refusal::NoTableIds)?;
        let table = Table {
            name: name.to_owned(),
            state: TableState::Creating,
            swept: false,
        };
        next.tables.insert(id, table);
        let starts = std::iter::once(Vec::new()).chain(cuts.iter().cloned());
        let ends = cuts.iter().cloned().chain(std::iter::once(Vec::new()));
        let mut owners = BTreeSet::new();
        for (start, end) in starts.zip(ends) {
            let owner = least_loaded(&mut loads);
            owners.insert(owner.clone());
            let tablet = Tablet {
                table: id,
                rows: Rows { start, end },
                epoch: 1,
                owner,
                made: false,
                frozen: false,
            };
            next.tablets.insert(next.next_tablet_id, tablet);
            next.next_tablet_id += 1;
        }
        let bytes = next.encode().len();
        if bytes > STATE_BYTES_MAX {
            return Err(Refusal::DirectoryFull {
                bytes,
                bytes_max: STATE_BYTES_MAX,
            });
        }
        self.truth = Some(next);
        self.dirty = true;
        for owner in owners {
            self.command(now, &owner);
        }
        Ok(id)
    }

    /// Begins to delete a table, or goes on with it. Answers with its id. Its tablets are frozen first
    /// ([`Self::is_frozen`]): then no transaction whose primary lies there commits any more. Those that
    /// did commit may have locks in other tables yet, and the table's tablets alone know that they did.
    /// So they go only when the table is named again by its id, `swept`, once those locks are cleared;
    /// it is gone once the state no longer has it.
    ///
    /// # Errors
    /// [`Refusal::NoSuchTable`], [`Refusal::NotFrozen`], [`Refusal::NoState`] and [`Refusal::Settling`].
    pub fn delete_table(
        &mut self,
        now: Duration,
        name: &str,
        swept: Option<u32>,
    ) -> Result<u32, Refusal> {
        // A rebuilt directory must know the servers on which locks are to be looked for.
        self.check_settled(now)?;
        let truth = self.truth()?;
        let id = truth
            .table_named(name)
            // Another one of the same name was not swept.
            .filter(|id| swept.is_none_or(|swept| swept == *id))
            .ok_or(Refusal::NoSuchTable {
                name: name.to_owned(),
            })?;
        let table = &truth.tables[&id];
        let frozen = table.swept || truth.is_frozen(id);
        if swept.is_some() && (table.state != TableState::Deleting || !frozen) {
            return Err(Refusal::NotFrozen {
                name: name.to_owned(),
            });
        }
        let owners: BTreeSet<String> = truth
            .tablets_of(id)
            .into_iter()
            .map(|(_, tablet)| tablet.owner.clone())
            .collect();
        if let Some(table) = self
            .truth
            .as_mut()
            .and_then(|truth| truth.tables.get_mut(&id))
        {
            self.dirty |= table.state != TableState::Deleting;
            self.dirty |= swept.is_some() && !table.swept;
            table.state = TableState::Deleting;
            table.swept |= swept.is_some();
        }
        for owner in owners {
            self.command(now, &owner);
        }
        Ok(id)
    }

    /// The table as it is; none if it is gone.
    pub fn table(&self, id: u32) -> Option<&Table> {
        self.truth.as_ref()?.tables.get(&id)
    }

    /// Whether every row of the table lies in a tablet that is frozen.
    pub fn is_frozen(&self, id: u32) -> bool {
        self.truth.as_ref().is_some_and(|truth| truth.is_frozen(id))
    }

    /// For whom a table waits, for messages: "tablet-1 (not heard since the master's start)".
    pub fn waits_for(&self, id: u32, now: Duration) -> String {
        let Some(truth) = &self.truth else {
            return "nobody".into();
        };
        let lacks = |tablet: &Tablet| match truth.tables.get(&id) {
            Some(table) if table.swept => true,
            Some(table) if table.state == TableState::Deleting => !tablet.frozen,
            _ => !tablet.made,
        };
        let owners: BTreeSet<&str> = truth
            .tablets_of(id)
            .into_iter()
            .filter(|(_, tablet)| lacks(tablet))
            .map(|(_, tablet)| tablet.owner.as_str())
            .collect();
        if owners.is_empty() {
            return "servers that have not reported yet".into();
        }
        self.describe(owners, now)
    }

    /// How many tablets each tablet server has that is up.
    fn loads(&self, now: Duration) -> BTreeMap<String, usize> {
        let Some(truth) = &self.truth else {
            return BTreeMap::new();
        };
        let mut loads: BTreeMap<String, usize> = truth
            .servers
            .iter()
            .filter(|(name, server)| server.role == Role::Tablet && self.is_alive(name, now))
            .map(|(name, _)| (name.clone(), 0))
            .collect();
        for tablet in truth.tablets.values() {
            if let Some(load) = loads.get_mut(&tablet.owner) {
                *load += 1;
            }
        }
        loads
    }

    fn no_tablet_server(&self, now: Duration) -> Refusal {
        let tablet_servers = self.truth.as_ref().map(|truth| {
            let is_tablet = |server: &crate::truth::Server| server.role == Role::Tablet;
            let servers = truth.servers.iter();
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
            .map(|server| match self.silence(server, now) {
                Some(silence) if silence < crate::core::SILENCE_MAX => format!("{server} (up)"),
                Some(silence) => format!("{server} (last heard {} s ago)", silence.as_secs()),
                None => format!("{server} (not heard since the master's start)"),
            })
            .collect();
        described.join(", ")
    }
}

/// A table of this name is there already.
fn going_on(truth: &Truth, id: u32, cuts: &[Vec<u8>]) -> Result<u32, Refusal> {
    let table = &truth.tables[&id];
    let name = table.name.clone();
    match table.state {
        TableState::Ready => Err(Refusal::TableExists { name }),
        TableState::Deleting => Err(Refusal::BeingDeleted { name }),
        TableState::Creating => {
            let tablets = truth.tablets_of(id);
            let starts = tablets.iter().map(|(_, tablet)| &tablet.rows.start);
            let is_same = starts.eq(std::iter::once(&Vec::new()).chain(cuts));
            is_same.then_some(id).ok_or(Refusal::OtherCuts { name })
        }
    }
}

/// Takes the server with the fewest tablets, the first by name among equals, and counts one more
/// for it. There is at least one.
fn least_loaded(loads: &mut BTreeMap<String, usize>) -> String {
    let (name, load) = loads
        .iter_mut()
        .min_by_key(|(_, load)| **load)
        .expect("the caller saw to it that a server is up");
    *load += 1;
    name.clone()
}
