//! A directory with a disk and tablet servers that do what they are asked, without a network: the
//! master can be crashed before or after any single effect.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use percolator_gc_master::{
    Action, Amount, Arrival, Command, Deletion, Departed, Directory, DirectoryState, Done,
    HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT, Heartbeat, HeartbeatReply, Note, RebuildCommand,
    Rebuilt, Refusal, Role, Settings, Start, TableState, server_info,
};
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::{Rows, TableId, Tablet, TabletState, Timestamp};
use percolator_wire::v1;

/// Its last bits are zero: so a new cluster's ids begin with 1, which is easy to read.
pub(crate) const RANDOM: u128 = 0x1234_5678_9abc_def0_0fed_0000_0000_0000;

pub(crate) struct World {
    pub(crate) directory: Directory,
    /// With which it is started again.
    pub(crate) settings: Settings,
    pub(crate) disk: Option<Vec<u8>>,
    /// What each tablet server durably owns.
    pub(crate) servers: BTreeMap<String, BTreeMap<u64, Tablet>>,
    /// Those that durably belong to the cluster.
    pub(crate) members: BTreeSet<String>,
    /// The tables of which each of them has dropped tablets.
    pub(crate) deleted: BTreeMap<String, BTreeSet<u32>>,
    /// How far each of them durably refuses and collects.
    pub(crate) points: BTreeMap<String, Points>,
    /// Up to where each of them has resolved the locks of its tablets: none, up to its barrier.
    pub(crate) resolved: BTreeMap<String, Timestamp>,
    /// How many groups each of them has made durable.
    pub(crate) groups: BTreeMap<String, u64>,
    /// What each of them says of the sizes of its tablets.
    pub(crate) sizes: BTreeMap<String, Vec<Amount>>,
    /// Bytes that are free on its volume, as it says.
    pub(crate) free: BTreeMap<String, u64>,
    /// And of how much they are used.
    pub(crate) loads: BTreeMap<String, Vec<Amount>>,
    /// Servers that have heard that they are to have no tablets.
    pub(crate) draining: BTreeSet<String>,
    /// Servers that were told to end, and wait until others have their tablets.
    pub(crate) stopping: BTreeSet<String>,
    /// Which start of a server it is; of those that are left out, the first one.
    pub(crate) incarnations: BTreeMap<String, u64>,
    pub(crate) down: Vec<String>,
    /// Servers that get no tablet from others, and say why.
    pub(crate) refusing: BTreeMap<String, String>,
    pub(crate) now: Duration,
    pub(crate) oracle_ms: u64,
    pub(crate) notes: Vec<Note>,
    pub(crate) sent: Vec<Command>,
    /// So many effects are carried out before the master crashes.
    pub(crate) effects_left: usize,
    /// Servers do what they are asked, and their answers are lost.
    pub(crate) answers_lost: bool,
    pub(crate) crashed: bool,
}

impl World {
    /// A new cluster with so many tablet servers, all of them heard.
    pub(crate) fn new(servers: usize) -> Self {
        // Tablets stay where tests put them.
        Self::with(
            Settings {
                balance: false,
                ..Settings::default()
            },
            servers,
        )
    }

    /// The same with these settings.
    pub(crate) fn with(settings: Settings, servers: usize) -> Self {
        let mut world = Self {
            directory: Directory::open(Start::NewCluster, settings, RANDOM).unwrap(),
            settings,
            disk: None,
            servers: (0..servers)
                .map(|index| (format!("tablet-{index}"), BTreeMap::new()))
                .collect(),
            members: BTreeSet::new(),
            deleted: BTreeMap::new(),
            points: BTreeMap::new(),
            resolved: BTreeMap::new(),
            groups: BTreeMap::new(),
            sizes: BTreeMap::new(),
            loads: BTreeMap::new(),
            free: BTreeMap::new(),
            draining: BTreeSet::new(),
            stopping: BTreeSet::new(),
            incarnations: BTreeMap::new(),
            down: Vec::new(),
            refusing: BTreeMap::new(),
            now: Duration::ZERO,
            oracle_ms: 1_800_000_000_000,
            notes: Vec::new(),
            sent: Vec::new(),
            effects_left: usize::MAX,
            crashed: false,
            answers_lost: false,
        };
        world.carry_out();
        // By the second round everybody belongs to the cluster.
        world.beat_all();
        world.now = Duration::ZERO;
        world.beat_all();
        world
    }

    /// The same servers, and a master that has lost its folder.
    pub(crate) fn lose_state(&mut self) {
        self.disk = None;
        self.restart();
    }

    /// The same, and the state is rebuilt from all servers that are up.
    pub(crate) fn lose_state_and_rebuild(&mut self) {
        self.lose_state();
        self.report_all();
        let rebuilt = self.rebuild(true);
        assert!(rebuilt.written, "{rebuilt:?}");
        self.beat_all();
        self.now += HEARTBEAT_TIMEOUT;
        self.beat_all();
    }

    /// Every server that is up beats to a master without a state.
    pub(crate) fn report_all(&mut self) {
        let names: Vec<String> = self.servers.keys().cloned().collect();
        for name in names {
            if !self.down.contains(&name) {
                let refused = self.beat(&name).unwrap_err();
                assert!(matches!(refused, Refusal::LostState { .. }), "{refused}");
            }
        }
    }

    /// As a person asks who names all servers that are up.
    pub(crate) fn rebuild(&mut self, accept_data_loss: bool) -> Rebuilt {
        let names = self.servers.keys().filter(|name| !self.down.contains(name));
        let names: Vec<String> = names.cloned().collect();
        self.rebuild_from(names, accept_data_loss)
    }

    /// As a person asks. This world has no oracle, which is given up.
    pub(crate) fn rebuild_from(
        &mut self,
        tablet_servers: Vec<String>,
        accept_data_loss: bool,
    ) -> Rebuilt {
        let request = RebuildCommand {
            tablet_servers,
            write: true,
            accept_data_loss,
        };
        let rebuilt = self.directory.rebuild(self.now, &request).unwrap();
        self.carry_out();
        rebuilt
    }

    pub(crate) fn restart(&mut self) {
        let start = match &self.disk {
            Some(bytes) => Start::State(bytes.clone()),
            None => Start::NoState { cluster_id: None },
        };
        self.directory = Directory::open(start, self.settings, RANDOM).unwrap();
        self.now = Duration::ZERO;
        self.effects_left = usize::MAX;
        self.carry_out();
    }

    pub(crate) fn cluster_id() -> String {
        format!("{RANDOM:032x}")
    }

    pub(crate) fn heartbeat_of(&self, server: &str) -> Heartbeat {
        let points = self.points.get(server).copied().unwrap_or_default();
        let resolved = self.resolved.get(server).copied();
        Heartbeat {
            cluster_id: self.members.contains(server).then(Self::cluster_id),
            tablets: self.servers[server].values().cloned().collect(),
            deleted_tables: self.deleted.get(server).cloned().unwrap_or_default(),
            points,
            resolved_ts: resolved.map_or(points.barrier, |ts| ts.min(points.barrier)),
            groups: self.groups.get(server).copied().unwrap_or_default(),
            groups_found: self.groups.get(server).copied().unwrap_or_default(),
            sizes: self.sizes.get(server).cloned(),
            loads: self.loads.get(server).cloned(),
            free_bytes: self.free.get(server).copied(),
            draining: self.draining.contains(server),
            stopping: self.stopping.contains(server),
            accepted: true,
            ..self.first_heartbeat_of(server)
        }
    }

    fn first_heartbeat_of(&self, server: &str) -> Heartbeat {
        let first = Heartbeat::first(Role::Tablet, server, format!("{server}:7402"));
        let incarnation = self.incarnations.get(server).copied();
        Heartbeat {
            incarnation: incarnation.unwrap_or(first.incarnation),
            ..first
        }
    }

    /// The server durably owns this tablet from now on.
    pub(crate) fn own(&mut self, server: &str, tablet: Tablet) {
        let tablets = self.servers.get_mut(server).unwrap();
        tablets.insert(tablet.id, tablet);
    }

    /// A heartbeat.
    pub(crate) fn beat(&mut self, server: &str) -> Result<HeartbeatReply, Refusal> {
        let beat = self.heartbeat_of(server);
        let result = self.directory.heartbeat(self.now, beat);
        self.carry_out();
        let reply = result?;
        if reply.draining {
            self.draining.insert(server.to_owned());
        } else {
            self.draining.remove(server);
        }
        self.members.insert(server.to_owned());
        Ok(reply)
    }

    /// Every server that is up beats once, and time goes on by one interval.
    pub(crate) fn beat_all(&mut self) {
        let names: Vec<String> = self.servers.keys().cloned().collect();
        for name in names {
            if !self.down.contains(&name) {
                self.beat(&name).unwrap();
            }
        }
        self.now += HEARTBEAT_INTERVAL;
    }

    pub(crate) fn create(&mut self, name: &str, cuts: &[&str]) -> Result<u32, Refusal> {
        let cuts: Vec<Vec<u8>> = cuts.iter().map(|cut| cut.as_bytes().to_vec()).collect();
        let result = self.directory.create_table(self.now, name, &cuts);
        self.carry_out();
        result
    }

    /// Deletes a table, and lets the safe point pass that: as far as it goes.
    pub(crate) fn delete(&mut self, name: &str) -> Result<u32, Refusal> {
        let id = self.freeze(name)?;
        self.pass_deletions();
        Ok(id)
    }

    /// Begins to delete a table.
    pub(crate) fn freeze(&mut self, name: &str) -> Result<u32, Refusal> {
        let result = self.directory.delete_table(self.now, &Deletion::of(name));
        self.carry_out();
        result
    }

    /// The same, and gives up what is lost of it.
    pub(crate) fn accept_data_loss(&mut self, name: &str) -> Result<u32, Refusal> {
        let result = self.directory.delete_table(
            self.now,
            &Deletion {
                accept_data_loss: true,
                ..Deletion::of(name)
            },
        );
        self.carry_out();
        result
    }

    /// The oracle's time, later with each call.
    pub(crate) fn oracle_time(&mut self) -> Timestamp {
        self.oracle_ms += 1;
        Timestamp::from_millis(self.oracle_ms)
    }

    /// A step of collection, at a later time of the oracle's.
    pub(crate) fn collect(&mut self) {
        let time = self.oracle_time();
        self.directory.collect(self.now, Ok(time));
        self.carry_out();
    }

    /// Tables whose tablets are all frozen get a time for that.
    pub(crate) fn time_deletions(&mut self) {
        self.collect();
        self.collect();
    }

    /// Tables whose tablets are all frozen get a time for that, and the safe point passes it.
    pub(crate) fn pass_deletions(&mut self) {
        self.time_deletions();
        let now = self.oracle_time();
        let names: Vec<String> = self.servers.keys().cloned().collect();
        for name in names {
            let points = Points {
                barrier: now,
                safe_point: now,
                resolved: now,
            };
            self.points.insert(name.clone(), points);
            if !self.down.contains(&name) {
                self.beat(&name).unwrap();
            }
        }
        // Those that were heard before the last one.
        self.beat_all();
    }

    fn has_crashed(&mut self) -> bool {
        if self.effects_left == 0 {
            self.crashed = true;
            self.restart();
            return true;
        }
        self.effects_left -= 1;
        false
    }

    /// Carries out every effect, and those that follow from it; restarts the master in the middle
    /// when it is due to crash.
    pub(crate) fn carry_out(&mut self) {
        let mut commands = Vec::new();
        loop {
            let effects = self.directory.take_effects();
            self.notes.extend(effects.notes);
            if let Some(bytes) = effects.persist {
                if self.has_crashed() {
                    return;
                }
                self.disk = Some(bytes);
                let reread = DirectoryState::decode(self.disk.as_ref().unwrap()).unwrap();
                assert_eq!(self.directory.state(), Ok(&reread));
            }
            commands.extend(effects.commands);
            if commands.is_empty() {
                return;
            }
            let command = commands.remove(0);
            if self.has_crashed() {
                return;
            }
            let outcome = self.obey(&command);
            if self.has_crashed() {
                return;
            }
            self.directory.finished(self.now, &command, outcome);
        }
    }

    /// As a tablet server does.
    fn obey(&mut self, command: &Command) -> Result<Done, String> {
        self.sent.push(command.clone());
        assert_eq!(command.cluster_id, Self::cluster_id());
        if self.down.contains(&command.server) {
            return Err("it is down".into());
        }
        let tablets = self.servers.get_mut(&command.server).unwrap();
        let deleted = self.deleted.entry(command.server.clone()).or_default();
        let mut cut = Vec::new();
        match &command.action {
            Action::Create {
                tablet: report,
                made,
                ..
            } => {
                if deleted.contains(&report.table.0) && !tablets.contains_key(&report.id) {
                    return Err(format!("table {} was deleted", report.table.0));
                }
                if *made && !tablets.contains_key(&report.id) {
                    return Err(format!("tablet {} is lost", report.id));
                }
                let tablet = tablets.entry(report.id).or_insert_with(|| report.clone());
                tablet.state = tablet.state.max(report.state);
            }
            Action::Drop { tablet, table } => {
                tablets.remove(tablet);
                deleted.insert(*table);
            }
            Action::Split {
                tablet,
                epoch,
                row,
                sibling,
            } => {
                let first = tablets.get_mut(tablet).filter(|it| it.epoch == *epoch);
                let first = first.ok_or("another epoch")?;
                first.epoch += 1;
                let mut second = first.clone();
                second.id = *sibling;
                second.rows.start = row.clone();
                first.rows.end = row.clone();
                cut = vec![first.clone(), second.clone()];
                tablets.insert(*sibling, second);
            }
            // It takes a while: see `World::hand_over`.
            Action::Import { .. } => {
                if let Some(why) = self.refusing.get(&command.server) {
                    return Err(why.clone());
                }
            }
            Action::Merge { first, second } => {
                let gone = tablets.remove(&second.0).ok_or("it is gone")?;
                let whole = tablets.get_mut(&first.0).ok_or("it is gone")?;
                whole.epoch = whole.epoch.max(gone.epoch) + 1;
                whole.rows.end = gone.rows.end;
                cut = vec![whole.clone()];
            }
        }
        let groups = self.groups.entry(command.server.clone()).or_default();
        *groups += 1;
        if self.answers_lost {
            return Err("no answer".into());
        }
        Ok(Done {
            groups: *groups,
            tablets: cut,
        })
    }

    pub(crate) fn state(&self) -> &DirectoryState {
        self.directory.state().unwrap()
    }

    pub(crate) fn state_of(&self, name: &str) -> Option<TableState> {
        let tables = &self.state().tables;
        let named = tables.values().filter(|table| table.name == name);
        // Of several, the one that isn't being deleted.
        let states = named.map(|table| table.state);
        states.min_by_key(|state| *state == TableState::Deleting)
    }

    /// The directory as text, a line for each tablet: `accounts ready 1@1 [..m) tablet-0`.
    pub(crate) fn rows(&self) -> Vec<String> {
        let mut rows = Vec::new();
        for (id, table) in &self.state().tables {
            for (tablet_id, tablet) in self.directory.tablets().of_table(*id) {
                let text = |row: &[u8]| String::from_utf8_lossy(row).into_owned();
                rows.push(format!(
                    "{} {} {tablet_id}@{} [{}..{}) {}",
                    table.name,
                    format!("{:?}", table.state).to_lowercase(),
                    tablet.epoch,
                    text(&tablet.rows.start),
                    text(&tablet.rows.end),
                    tablet.owner
                ));
            }
        }
        rows
    }

    /// The server says from now on that these tablets of its have so many bytes.
    pub(crate) fn weighs<const N: usize>(&mut self, server: &str, tablets: [(u64, u64); N]) {
        let tablets = tablets.map(|(tablet, amount)| Amount {
            tablet,
            amount,
            split_at: None,
        });
        self.sizes.insert(server.to_owned(), tablets.to_vec());
    }

    /// Says whether a server is to have no tablets.
    pub(crate) fn drain(&mut self, server: &str, drain: bool) -> Result<(), Refusal> {
        self.drain_all(&[server], drain)
    }

    /// The same of several at a time.
    pub(crate) fn drain_all(&mut self, servers: &[&str], drain: bool) -> Result<(), Refusal> {
        let servers: Vec<String> = servers.iter().map(|it| (*it).to_owned()).collect();
        let drained = self.directory.drain_servers(self.now, &servers, drain);
        self.carry_out();
        drained
    }

    /// One server hands a tablet over to another one, as both know. What its owner says of that.
    pub(crate) fn hand_over(&mut self, id: u64, from: &str, to: &str) -> Departed {
        let mut tablet = self.servers.get_mut(from).unwrap().remove(&id).unwrap();
        tablet.epoch += 1;
        let owned = self.servers.get_mut(to).unwrap();
        owned.insert(id, tablet.clone());
        let to = to.to_owned();
        Departed { tablet, to }
    }

    /// Lets the master hear that a server has a complete copy of a tablet, and says which copies it hears will never be its own.
    pub(crate) fn report_copy(&mut self, server: &str, copy: Arrival) -> Vec<(u64, u64)> {
        let mut beat = self.heartbeat_of(server);
        beat.arriving = vec![copy];
        let reply = self.directory.heartbeat(self.now, beat).unwrap();
        self.carry_out();
        reply.settled_arrivals
    }

    /// Every tablet of the directory is at its owner, and nothing else is anywhere.
    pub(crate) fn assert_agreement(&self, context: &str) {
        let owned: Vec<(u64, &str)> = self
            .servers
            .iter()
            .flat_map(|(name, tablets)| tablets.keys().map(move |id| (*id, name.as_str())))
            .collect();
        let mut known: Vec<(u64, &str)> = self
            .directory
            .tablets()
            .iter()
            .map(|(id, tablet)| (id, tablet.owner.as_str()))
            .collect();
        known.sort_by_key(|(id, owner)| (*owner, *id));
        assert_eq!(owned, known, "{context}");
    }
}

pub(crate) fn report(id: u64, table: u32, name: &str, rows: (&str, &str), epoch: u64) -> Tablet {
    Tablet {
        id,
        table: TableId(table),
        table_name: name.into(),
        rows: Rows {
            start: rows.0.to_owned().into(),
            end: rows.1.to_owned().into(),
        },
        epoch,
        state: TabletState::Serving,
    }
}

/// A heartbeat of an oracle that belongs to no cluster yet.
pub(crate) fn oracle(name: &str) -> Heartbeat {
    Heartbeat::first(Role::Oracle, name, format!("{name}:7401"))
}

/// A table of six tablets.
pub(crate) const CUTS: [&str; 5] = ["c", "f", "i", "l", "o"];

/// How many tablets each server has.
pub(crate) fn counts(world: &World) -> BTreeMap<&str, usize> {
    let servers = world.servers.iter();
    servers
        .map(|(name, tablets)| (name.as_str(), tablets.len()))
        .collect()
}

/// Servers do what they are asked until nothing more is asked, for at most so long. How many tablets were moved.
pub(crate) fn settle(world: &mut World, most: Duration) -> usize {
    let (until, mut moves) = (world.now + most, 0);
    let mut done = world.sent.len();
    while world.now < until {
        world.beat_all();
        for command in world.sent.split_off(done) {
            if let Action::Import { tablet, from, .. } = &command.action
                && !world.refusing.contains_key(&command.server)
            {
                let owner = from.server.clone();
                let had = world.servers.get_mut(&owner).unwrap();
                let Some(mut tablet) = had.remove(&tablet.id) else {
                    continue;
                };
                tablet.epoch += 1;
                world.own(&command.server, tablet);
                moves += 1;
            }
            world.sent.push(command);
        }
        done = world.sent.len();
    }
    moves
}

/// A new cluster with so many tablet servers, whose master balances them.
pub(crate) fn balancing(servers: usize) -> World {
    World::with(Settings::default(), servers)
}

/// What the master says of a tablet server.
pub(crate) fn left(world: &World, server: &str) -> v1::ServerInfo {
    server_info(&world.directory, world.now, server).unwrap()
}

/// A complete copy of a tablet of the first table, which `from` has not handed over yet.
pub(crate) fn copy(tablet: u64, epoch: u64, from: &str) -> Arrival {
    Arrival {
        tablet,
        epoch,
        is_complete: true,
        from: from.to_owned(),
        table: TableId(1),
        ..Arrival::default()
    }
}
