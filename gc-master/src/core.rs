//! The directory as a state machine: heartbeats and requests in, effects out. It does no I/O and
//! reads no clock; time comes in as what has passed since this start of the master.
//!
//! A caller calls one of its functions, then takes the [`Effects`] and carries them out in
//! their order: first it makes the state durable, then it sends the commands, and only then it responds.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::types::Timestamp;

use crate::balancer::{Balancer, SPLIT_BYTES, SPLIT_LOAD};
use crate::collection::Collection;
use crate::commands::Commands;
use crate::events::{Effects, Heartbeat, HeartbeatReply, Start};
use crate::fencing::{LEASE, Leased, has_reported_more};
use crate::lost::LostStateReports;
use crate::members::Live;
use crate::merges::MERGE_AFTER;
use crate::placements::Placements;
use crate::proxies::Proxies;
use crate::refusal::Refusal;
use crate::sessions::Sessions;
use crate::settings::{Manifest, RETENTION};
use crate::state::{DirectoryState, Drain, Role, Server, StateError, TableState};
use crate::tables::STATE_BYTES_MAX;

/// How often servers are to send a heartbeat, unless there are many.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);
/// Of a tablet server that is stopping, and waits until others have its tablets.
const STOPPING_INTERVAL: Duration = Duration::from_millis(100);
/// The same of all, while a master is about to end.
const ENDING_INTERVAL: Duration = Duration::from_millis(50);
/// A server counts as down when its last heartbeat is older than this, or than three intervals.
pub const HEARTBEAT_TIMEOUT: Duration = Duration::from_millis(1_500);

/// The most heartbeats a second, of all servers.
const HEARTBEATS_A_SECOND: u32 = 2_000;

/// The directory of tables, tablets and servers.
#[derive(Debug)]
pub struct Directory {
    /// None: it was lost, or there was none ([`Self::rebuild`]).
    pub(crate) state: Option<DirectoryState>,
    /// Where tablets are, by what owners have reported since the start, and what the state says of those they can't report.
    pub(crate) tablets: Placements,
    /// The servers that have sent a heartbeat since the start.
    pub(crate) live: BTreeMap<String, Live>,
    pub(crate) commands: Commands,
    /// Since when this master knows its cluster.
    pub(crate) known_since: Duration,
    /// Until when servers that are up may not have reported. A cluster that this master began has none yet.
    awaits_others: bool,
    /// What is known while there is no state.
    pub(crate) lost: LostStateReports,
    pub(crate) dirty: bool,
    pub(crate) effects: Effects,
    pub(crate) sessions: Sessions,
    pub(crate) proxies: Proxies,
    pub(crate) collection: Collection,
    pub(crate) balancer: Balancer,
    pub(crate) settings: Settings,
    /// No lease that was granted before this start is above this.
    pub(crate) leased_before: Timestamp,
    /// What the manifest says.
    pub(crate) manifest: Manifest,
    /// The most bytes that the state may have with one more table.
    pub(crate) state_bytes_max: usize,
    /// This master is about to end, and another one to lead.
    ends_soon: bool,
    /// When a server last reported a table that is not in the state, and what it was answered.
    pub(crate) newer_server: Option<(Duration, Refusal)>,
}

/// What may be set when a master starts.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long a server may answer without hearing from the master. Default: 10 seconds.
    pub lease: Duration,
    /// How long versions are kept if neither the manifest nor a command sets it. Default: 10 minutes.
    pub retention: Duration,
    /// Whether the master moves and splits tablets by itself, where the manifest doesn't say it. Default: yes.
    pub balance: bool,
    /// A tablet of more bytes is split; zero: none is. Where the manifest doesn't say it. Default: 256 MiB.
    pub split_bytes: u64,
    /// A tablet of which more cells a second are read or written may be split, and servers are balanced by that; zero: no load
    /// counts. Where the manifest doesn't say it. Default: 1,000.
    pub split_load: u64,
    /// Neighbours that have been small for so long are merged. Default: 1 hour.
    pub merge_after: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            lease: LEASE,
            retention: RETENTION,
            balance: true,
            split_bytes: SPLIT_BYTES,
            split_load: SPLIT_LOAD,
            merge_after: MERGE_AFTER,
        }
    }
}

/// How much the directory holds besides its state, and what bounds that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectoryStats {
    /// Causes of commands that were not carried out.
    pub failures: usize,
    /// Servers that have sent a heartbeat, and are not silent.
    pub live_servers: usize,
    /// Tablets that are known.
    pub tablets: usize,
    /// Servers in the state.
    pub servers: usize,
}

impl Directory {
    /// A directory at time zero. `random` makes the id of a new cluster.
    ///
    /// # Errors
    /// Those of [`DirectoryState::decode`].
    pub fn open(start: Start, settings: Settings, random: u128) -> Result<Self, StateError> {
        let mut directory = Self {
            state: None,
            tablets: Placements::default(),
            live: BTreeMap::new(),
            commands: Commands::default(),
            known_since: Duration::ZERO,
            awaits_others: true,
            lost: LostStateReports::default(),
            dirty: false,
            effects: Effects::default(),
            sessions: Sessions::default(),
            proxies: Proxies::default(),
            collection: Collection::default(),
            balancer: Balancer::default(),
            settings,
            leased_before: Timestamp::ZERO,
            manifest: Manifest::default(),
            state_bytes_max: STATE_BYTES_MAX,
            ends_soon: false,
            newer_server: None,
        };
        match start {
            Start::State(bytes) => {
                let mut state = DirectoryState::decode(&bytes)?;
                if mutants::on(Mutant::ResolvedForgotten) {
                    state.gc.resolved = state.gc.safe_point;
                }
                directory.leased_before = Timestamp::from_u64(state.leased_to);
                for (id, tablet) in &state.unreported {
                    directory.tablets.place(*id, tablet.clone());
                }
                directory.state = Some(state);
                // What was read may not be on the device: a sync of the master before may have failed.
                directory.dirty = true;
            }
            Start::NewCluster => {
                directory.state = Some(DirectoryState::new(format!("{random:032x}"), random));
                directory.awaits_others = false;
                directory.dirty = true;
            }
            Start::NoState { cluster_id } => directory.lost = LostStateReports::of(cluster_id),
        }
        directory.collection.granted_before = directory.longest_lease();
        Ok(directory)
    }

    /// Where tablets are, as far as that is known.
    pub fn tablets(&self) -> &Placements {
        &self.tablets
    }

    /// What is held in memory besides the state, for tests.
    pub fn held(&self) -> DirectoryStats {
        let state = self.state.as_ref();
        DirectoryStats {
            failures: self.commands.failures_len(),
            live_servers: self.live.len(),
            tablets: self.tablets.len(),
            servers: state.map_or(0, |state| state.servers.len()),
        }
    }

    /// The effects since the last call.
    pub fn take_effects(&mut self) -> Effects {
        let mut effects = self.take_effects_unencoded();
        if effects.has_changed {
            effects.persist = self.encoded();
        }
        effects
    }

    /// The same without the state's bytes, for a caller that encodes it when it is written: changes that come meanwhile share that.
    pub(crate) fn take_effects_unencoded(&mut self) -> Effects {
        if std::mem::take(&mut self.dirty) {
            self.commands.state_has_changed();
            self.effects.has_changed = true;
        }
        std::mem::take(&mut self.effects)
    }

    /// The durable state in bytes.
    pub(crate) fn encoded(&self) -> Option<Vec<u8>> {
        self.state.as_ref().map(DirectoryState::encode)
    }

    /// The state: what is durable once the effects are carried out.
    ///
    /// # Errors
    /// [`Refusal::NoState`].
    pub fn state(&self) -> Result<&DirectoryState, Refusal> {
        self.state.as_ref().ok_or(Refusal::NoState)
    }

    /// Takes a heartbeat in.
    ///
    /// # Errors
    /// Those of servers and heartbeats; [`Refusal::NoState`] and [`Refusal::LostState`].
    pub fn heartbeat(
        &mut self,
        now: Duration,
        mut beat: Heartbeat,
    ) -> Result<HeartbeatReply, Refusal> {
        beat.check_form()?;
        let Some(state) = &self.state else {
            return Err(self.report_without_state(now, beat));
        };
        beat.check_cluster(state)?;
        beat.check_role(state)?;
        let has_joined = self.incarnation(&beat.server) == beat.incarnation;
        if let Err(refusal) = beat.check_known(state, has_joined) {
            if matches!(refusal, Refusal::TableNotInState { .. }) {
                self.newer_server = Some((now, refusal.clone()));
            }
            return Err(refusal);
        }
        if has_reported_more(state, &beat) {
            let server = beat.server.clone();
            return Err(Refusal::LateHeartbeat { server });
        }
        self.accept(now, &beat)?;
        let mut reply = self.enter(&beat)?;
        let live = self.live.entry(beat.server.clone());
        let live = live.or_insert_with(|| Live::new(beat.incarnation, now));
        if live.incarnation != beat.incarnation {
            self.commands.forget_failures_of_server(&beat.server);
            live.forget_lists();
            self.tablets.forget_list(&beat.server);
        }
        // Somebody may wait for tablets to arrive, or to be given up.
        self.effects.wakes |= live.arriving != beat.arriving;
        live.record_heartbeat(now, &beat);
        let (server, role) = (beat.server.clone(), beat.role);
        self.learn_time(&beat);
        if role == Role::Oracle {
            self.forget_gone_oracles(now);
        }
        if beat.leaving {
            self.leave(&beat);
            return Ok(reply);
        }
        let Some(live) = self.live.get_mut(&server) else {
            return Ok(reply);
        };
        live.record_reports(now, &mut beat, reply.points.barrier);
        live.knows_end = self.ends_soon;
        let (knows_drain, stopping) = (beat.draining, beat.stopping);
        if role == Role::Tablet {
            self.learn_points(beat.points);
            if beat.has_lists {
                // Also a tablet that has arrived since the last heartbeat, which never was on its way here.
                self.effects.wakes = true;
                self.take_lists(now, beat);
            } else {
                self.watch_known(now, &server, beat.lists_version);
            }
            self.command(now, &server);
            self.balance(now);
            self.note_drained(&server, knows_drain);
            self.add_missing(&server, &mut reply);
            reply.may_stop = self.may_stop(now, &server, knows_drain);
        }
        reply.interval = self.next_interval(role, stopping);
        reply.leased = self.grant(now, &server, role);
        Ok(reply)
    }

    /// The interval until a server's next heartbeat.
    fn next_interval(&self, role: Role, is_stopping: bool) -> Duration {
        match role {
            // It waits for what others have of its tablets.
            Role::Tablet if is_stopping => STOPPING_INTERVAL,
            _ if self.ends_soon => self.interval_of(ENDING_INTERVAL),
            Role::Tablet => self.heartbeat_interval(),
            // Leases of tablet servers count from its time.
            Role::Oracle => HEARTBEAT_INTERVAL,
        }
    }

    /// Takes in the lists of a tablet server.
    fn take_lists(&mut self, now: Duration, beat: Heartbeat) {
        if let Some(state) = &mut self.state {
            let next = state.next_tablet_id;
            state.met_tablet(beat.highest_tablet_id);
            self.dirty |= state.next_tablet_id != next;
        }
        self.take_departed(&beat.server, beat.departed);
        self.take_dropped(&beat.server, &beat.deleted_tables, &beat.tablets);
        if let Some(live) = self.live.get_mut(&beat.server) {
            live.lists_version = beat.lists_version;
            live.listed_rows = beat.tablets.len() + live.departed.len();
            live.needs_reconcile = false;
        }
        self.tablets.forget_list(&beat.server);
        self.merge(now, &beat.server, beat.tablets);
    }

    /// A heartbeat without lists confirms the lists that this master has, or this master doesn't have them.
    fn watch_known(&mut self, now: Duration, server: &str, lists_version: u64) {
        let Some(live) = self.live.get_mut(server) else {
            return;
        };
        if live.lists_version != lists_version {
            live.forget_lists();
            self.tablets.forget_list(server);
        } else if !live.missing.is_empty() {
            self.watch_missing(now, server);
        }
    }

    /// Which tablets the server was to have, and which of its lists are known here.
    fn add_missing(&self, server: &str, reply: &mut HeartbeatReply) {
        let (Some(state), Some(live)) = (&self.state, self.live.get(server)) else {
            return;
        };
        reply.missing = live.missing.keys().copied().collect();
        if !live.needs_reconcile {
            reply.lists_version = live.lists_version;
        }
        reply.settings.clone_from(&state.gc.set);
        reply.settled_moves = self.settled_moves(server);
        reply.settled_arrivals = self.settled_arrivals(server);
        reply.split_bytes = self.split_bytes();
        reply.split_load = self.split_load();
        reply.draining = self.drains(server);
        let owners = live.arriving.iter().filter(|it| it.failure.is_none());
        let owners: BTreeSet<&str> = owners.map(|it| it.from.as_str()).collect();
        reply.owners = owners
            .into_iter()
            .map(|owner| self.whereabouts(owner))
            .collect();
    }

    /// Enters a heartbeat's facts about its server into the state, and begins the reply.
    fn enter(&mut self, beat: &Heartbeat) -> Result<HeartbeatReply, Refusal> {
        let Some(state) = &mut self.state else {
            return Err(Refusal::NoState);
        };

        let known = state.servers.get(&beat.server);
        let was_adopted = known.is_some_and(|known| known.adopted);
        let known = Server {
            role: beat.role,
            address: beat.address.clone(),
            emptied: known.is_some_and(|known| known.emptied),
            taken_in: known.is_some_and(|known| known.taken_in),
            adopted: was_adopted || (beat.role == Role::Oracle && beat.cluster_id.is_some()),
            incarnation: beat.incarnation,
            high_ts: known.map_or(0, |known| known.high_ts),
            groups: known.map_or(0, |known| known.groups),
            commits_above: known.map_or(0, |known| known.commits_above),
            oracle_register: beat.oracle_register,
            drain: known.map_or(Drain::Off, |known| known.drain),
        };
        if state.servers.get(&beat.server) != Some(&known) {
            state.servers.insert(beat.server.clone(), known);
            self.dirty = true;
        }
        let state = self.state()?;
        Ok(HeartbeatReply {
            leased: Leased::default(),
            missing: Vec::new(),
            settled_moves: Vec::new(),
            owners: Vec::new(),
            settled_arrivals: Vec::new(),
            split_bytes: 0,
            split_load: 0,
            draining: false,
            may_stop: false,
            points: state.gc.points().raised(beat.points),
            settings: state.gc.set.clone(),
            interval: Duration::ZERO,
            lists_version: 0,
            cluster_id: state.cluster_id.clone(),
        })
    }

    /// A tablet is nowhere any more.
    pub(crate) fn forget_tablet(&mut self, id: u64) {
        self.tablets.remove(id);
        self.forget_about(id);
    }

    /// Forgets the commands of a tablet that is not among the placements any more.
    pub(crate) fn forget_about(&mut self, id: u64) {
        self.commands.forget_failures_of_tablet(id);
        self.forget_unreported(id);
    }

    /// The owner of this tablet reports it, or it is gone.
    pub(crate) fn forget_unreported(&mut self, id: u64) {
        if let Some(state) = &mut self.state {
            self.dirty |= state.unreported.remove(&id).is_some();
        }
    }

    /// When tablets may be placed: by then, every server that is up has sent a heartbeat.
    pub(crate) fn check_settled(&self, now: Duration) -> Result<(), Refusal> {
        let state = self.state()?;
        let until = self.settled_at();
        if now < until && !self.have_all_reported(state) {
            return Err(Refusal::Settling { until });
        }
        Ok(())
    }

    /// Until then, servers that are up may not have sent a heartbeat.
    pub(crate) fn settled_at(&self) -> Duration {
        if self.awaits_others {
            self.known_since + self.heartbeat_timeout()
        } else {
            Duration::ZERO
        }
    }

    /// How often tablet servers are to send a heartbeat: more rarely if there are many, and so that a lease has room for four.
    pub fn heartbeat_interval(&self) -> Duration {
        self.interval_of(HEARTBEAT_INTERVAL)
    }

    /// The same, of at least this.
    fn interval_of(&self, least: Duration) -> Duration {
        let servers = self.state.as_ref().map_or(0, |state| state.servers.len());
        let servers = u32::try_from(servers).unwrap_or(u32::MAX);
        let interval = Duration::from_secs(1).saturating_mul(servers) / HEARTBEATS_A_SECOND;
        interval.min(self.settings.lease / 4).max(least)
    }

    /// Demands frequent heartbeats from now on, as another master is about to lead: it needs one of each tablet server before it makes
    /// a table. Returns whether all servers that are up know this. In a large cluster it is not worth waiting for.
    pub fn announce_end(&mut self, now: Duration) -> bool {
        self.ends_soon = true;
        let are_many = self.heartbeat_interval() > HEARTBEAT_INTERVAL;
        let mut live = self.live.iter();
        are_many || live.all(|(server, live)| live.knows_end || !self.is_alive(server, now))
    }

    /// A server whose last heartbeat is older than this counts as down.
    pub(crate) fn heartbeat_timeout(&self) -> Duration {
        HEARTBEAT_TIMEOUT.max(3 * self.heartbeat_interval())
    }

    /// After a table's tablets changed: whether it is ready, or gone.
    pub(crate) fn settle(&mut self, id: u32) {
        let Some(state) = &self.state else { return };
        let Some(was) = state.tables.get(&id).map(|table| table.state) else {
            return;
        };
        let is_ready = match was {
            TableState::Deleting => {
                if state.may_drop(id) && self.tablets.count_of_table(id) == 0 {
                    self.remove_table(id);
                } else {
                    self.effects.wakes |= self.is_frozen(id);
                }
                return;
            }
            // It stays so while its owners send no heartbeat.
            TableState::Ready => return,
            TableState::Creating => self.tablets.is_complete(id),
        };
        if is_ready
            && let Some(state) = &mut self.state
            && let Some(table) = state.tables.get_mut(&id)
        {
            table.state = TableState::Ready;
            state.forget_unreported(id);
            self.dirty = true;
        }
    }
}
