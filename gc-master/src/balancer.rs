//! What the master does with tablets by itself: it moves them off servers that are drained and to servers with less
//! ([`crate::balance_plan`]), splits those that have become too large or are used too much, and merges those that have become small
//! ([`crate::merges`]). All of it is soft state: a master that starts plans anew.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use percolator_protocol::types::TabletState;

use crate::balance_plan::{
    self, LoadUnit, Planned, PlannedMove, ServerWeight, TABLET_WEIGHT, TabletWeight,
};
use crate::core::Directory;
use crate::events::{Action, Note};
use crate::merges::Merges;
use crate::moves::Moving;
use crate::pending::Pending;
use crate::refusal::Refusal;
use crate::state::{DirectoryState, Placement, Role, TableState};

/// A tablet of more bytes is split, unless the manifest says otherwise.
pub const SPLIT_BYTES: u64 = 256 << 20;
/// A tablet of which more cells a second are read or written may be split, unless the manifest says otherwise.
pub const SPLIT_LOAD: u64 = 1_000;

/// The shortest time between two plans over all servers.
const PAUSE: Duration = Duration::from_millis(500);
/// A tablet that was moved is not moved for balance within this.
const MOVED_REST: Duration = Duration::from_secs(600);
/// A move that a server has refused is tried there again after this, and so is a split.
const REFUSED_REST: Duration = Duration::from_secs(3);
/// That no server has room for the tablets of a drained one is noted again after this.
const NOTED_REST: Duration = Duration::from_secs(600);
/// After a move, servers report new sizes within this.
const SIZES_LAG: Duration = Duration::from_secs(2);

/// After a move, the new owner knows how much the tablet is used within this.
const LOAD_LAG: Duration = Duration::from_secs(20);

/// What is known of moves and splits since this start of the master.
#[derive(Debug, Default)]
pub(crate) struct Balancer {
    /// Moves that the master has begun, by tablet.
    moves: BTreeMap<u64, MoveUnderWay>,
    /// Tablets that are left where they are until then, unless their server is being drained.
    rests: BTreeMap<u64, Duration>,
    /// Servers that have refused a tablet, which is not offered there again until then: another one may get it.
    refusals: BTreeMap<(u64, String), Duration>,
    /// When these may be asked to be split or merged again.
    splits: BTreeMap<u64, Duration>,
    /// How much tablets were used where they were before a move, and until when that counts.
    loads_before: BTreeMap<u64, (u64, Duration)>,
    /// Servers that are drained and have a tablet that no other server has room for.
    without_room: BTreeSet<String>,
    /// When that may be noted of them again.
    without_room_noted: BTreeMap<String, Duration>,
    /// When the next plan over all servers is due.
    next: Duration,
    /// Neighbours that are small.
    pub(crate) merges: Merges,
    /// Sizes are known as they were before a move until then.
    sizes_lag_until: Duration,
}

#[derive(Debug)]
struct MoveUnderWay {
    moving: Moving,
    from: String,
    to: String,
    bytes: u64,
    load: u64,
    /// Its neighbour before it, with which it is to be one tablet then.
    merges_into: Option<u64>,
    /// Its server is to have no tablets: it may be moved on for balance soon.
    is_emptied: bool,
}

impl Balancer {
    /// The tablet was moved by a person, or by the master: it stays for a while, unless its server is being drained.
    fn moved(&mut self, now: Duration, tablet: u64) {
        self.rests.insert(tablet, now + MOVED_REST);
    }

    /// Plans anew at once: the set of drained servers has changed.
    pub(crate) fn plan_now(&mut self, now: Duration) {
        self.next = now;
    }

    /// Whether the tablet is on its way, was so lately, or is cut.
    pub(crate) fn is_busy_with(&self, tablet: u64) -> bool {
        self.moves.contains_key(&tablet)
            || self.rests.contains_key(&tablet)
            || self.splits.contains_key(&tablet)
    }

    /// Moves whose tablets are to be merged then.
    pub(crate) fn merging_moves(&self) -> usize {
        let moves = self.moves.values();
        moves.filter(|it| it.merges_into.is_some()).count()
    }

    /// Their owner was asked to split or merge these.
    pub(crate) fn rest_from_cuts<const N: usize>(&mut self, now: Duration, tablets: [u64; N]) {
        let until = now + REFUSED_REST;
        self.splits.extend(tablets.map(|tablet| (tablet, until)));
    }

    /// A move of the tablet to this server was refused.
    fn refused(&mut self, now: Duration, tablet: u64, to: &str) {
        let until = now + REFUSED_REST;
        let rest = self.rests.entry(tablet).or_default();
        *rest = until.max(*rest);
        self.refusals.insert((tablet, to.to_owned()), until);
    }
}

impl Directory {
    /// How many tablets the server owns; or how many rows it has of, by its last list, with those that others own now.
    pub(crate) fn tablets_at(&self, server: &str) -> u64 {
        let listed = self.live.get(server).map_or(0, |live| live.listed_rows);
        self.tablets.count_of_owner(server).max(listed) as u64
    }

    /// Bytes of the server's tablets, as it has reported.
    pub(crate) fn bytes_of(&self, server: &str) -> u64 {
        self.live.get(server).map_or(0, |live| live.sizes.total())
    }

    /// The size of this tablet in bytes, as the server has reported.
    pub(crate) fn tablet_bytes(&self, server: &str, id: u64) -> u64 {
        let live = self.live.get(server);
        let bytes = live.and_then(|live| live.sizes.of_tablet(id));
        bytes.unwrap_or_default()
    }

    /// Cells of the server's tablets that are read or written a second, as it has reported.
    pub(crate) fn load_of(&self, server: &str) -> u64 {
        self.live.get(server).map_or(0, |live| live.loads.total())
    }

    /// The same of one tablet, or of where it was before.
    pub(crate) fn tablet_load(&self, server: &str, id: u64) -> u64 {
        let live = self.live.get(server);
        let load = live.and_then(|live| live.loads.of_tablet(id));
        let before = self.balancer.loads_before.get(&id);
        load.unwrap_or_default().max(before.map_or(0, |it| it.0))
    }

    /// A person moves this tablet: the master leaves it to them. A split would end the copy.
    pub(crate) fn leave_to_person(&mut self, now: Duration, tablet: u64) {
        self.balancer.moves.remove(&tablet);
        self.balancer.moved(now, tablet);
        self.balancer.rest_from_cuts(now, [tablet]);
    }

    /// Goes on with moves and splits, and begins some.
    pub(crate) fn balance(&mut self, now: Duration) {
        if now < self.balancer.next {
            return;
        }
        // Also when it ends here: whether all have reported is a question about all servers.
        self.balancer.next = now + PAUSE;
        if self.check_settled(now).is_err() {
            return;
        }
        self.balancer.rests.retain(|_, until| now < *until);
        self.balancer.refusals.retain(|_, until| now < *until);
        self.balancer.splits.retain(|_, until| now < *until);
        let noted = &mut self.balancer.without_room_noted;
        noted.retain(|_, until| now < *until);
        let loads_before = &mut self.balancer.loads_before;
        loads_before.retain(|_, (_, until)| now < *until);
        self.step_moves(now);
        let balances = self.balances();
        if balances {
            self.split_large(now);
            self.merge_small(now);
        }
        let calm = now >= self.balancer.sizes_lag_until;
        let Planned {
            moves,
            splits,
            without_room,
        } = self.plan(now, balances && calm);
        for server in &without_room {
            self.note_without_room(now, server.clone());
        }
        self.balancer.without_room = without_room;
        for planned in moves {
            self.begin_move(now, planned, None);
        }
        for tablet in splits {
            self.split_used(now, tablet);
        }
    }

    fn note_without_room(&mut self, now: Duration, server: String) {
        let noted = &mut self.balancer.without_room_noted;
        if !noted.contains_key(&server) {
            noted.insert(server.clone(), now + NOTED_REST);
            let note = Note::WithoutRoom { server };
            self.effects.notes.push(note);
        }
    }

    /// Whether the server is being drained and has a tablet that no other server has room for.
    pub(crate) fn is_without_room(&self, server: &str) -> bool {
        self.balancer.without_room.contains(server)
    }

    pub(crate) fn balances(&self) -> bool {
        self.manifest.balance.unwrap_or(self.settings.balance)
    }

    /// For heartbeats: a tablet of more bytes is to be split. Zero: none is.
    pub(crate) fn split_bytes(&self) -> u64 {
        if self.balances() {
            let set = self.manifest.split_bytes;
            set.unwrap_or(self.settings.split_bytes)
        } else {
            0
        }
    }

    /// The load, in cells a second, above which servers may split a tablet. Zero: they never do, and no load counts.
    pub(crate) fn split_load(&self) -> u64 {
        if self.balances() {
            let set = self.manifest.split_load;
            set.unwrap_or(self.settings.split_load)
        } else {
            0
        }
    }

    fn step_moves(&mut self, now: Duration) {
        for (tablet, mut under_way) in std::mem::take(&mut self.balancer.moves) {
            let stepped = if self.is_alive(&under_way.to, now) {
                under_way.moving.go_on(self, now)
            } else {
                Err(Refusal::ServerAway {
                    server: under_way.to.clone(),
                })
            };
            match stepped {
                Ok(Pending::Wait { .. }) => {
                    self.balancer.moves.insert(tablet, under_way);
                    continue;
                }
                Ok(Pending::Done(_)) => {
                    match under_way.merges_into {
                        Some(first) => self.merge_pair(now, first, tablet),
                        // Wherever it was moved before: servers that come now get some of those.
                        None if under_way.is_emptied => drop(self.balancer.rests.remove(&tablet)),
                        None => self.balancer.moved(now, tablet),
                    }
                    let before = (under_way.load, now + LOAD_LAG);
                    self.balancer.loads_before.insert(tablet, before);
                }
                Err(refusal) => {
                    self.balancer.refused(now, tablet, &under_way.to);
                    self.effects.notes.push(Note::MoveEnded {
                        tablet,
                        to: under_way.to,
                        cause: refusal.to_string(),
                    });
                }
            }
            self.balancer.sizes_lag_until = now + SIZES_LAG;
        }
    }

    /// `merges_into`: see [`MoveUnderWay::merges_into`].
    pub(crate) fn begin_move(
        &mut self,
        now: Duration,
        planned: PlannedMove,
        merges_into: Option<u64>,
    ) {
        let PlannedMove { tablet, to } = planned;
        let Some(known) = self.tablets.get(tablet) else {
            return;
        };
        let from = known.owner.clone();
        let bytes = self.tablet_bytes(&from, tablet);
        let load = self.tablet_load(&from, tablet);
        let mut moving = Moving::of_master(tablet, &to);
        match moving.go_on(self, now) {
            Ok(_) => {
                self.effects.notes.push(Note::MoveBegan {
                    tablet,
                    from: from.clone(),
                    to: to.clone(),
                });
                let under_way = MoveUnderWay {
                    is_emptied: self.drains(&from),
                    moving,
                    from,
                    to,
                    bytes,
                    load,
                    merges_into,
                };
                self.balancer.moves.insert(tablet, under_way);
            }
            Err(_) => self.balancer.refused(now, tablet, &to),
        }
    }

    /// What is to be moved now.
    fn plan(&self, now: Duration, balances: bool) -> Planned {
        let Some(state) = &self.state else {
            return Planned::default();
        };
        let stopping = self.live.keys().filter(|name| self.empties(name));
        let drains: BTreeSet<&str> = state
            .draining_servers()
            .chain(stopping.map(String::as_str))
            .collect();
        if !balances && drains.is_empty() {
            return Planned::default();
        }
        let arrivals = self.arrivals(now);
        let mut servers = self.weigh(state, now, &drains);
        for (to, _) in arrivals.values() {
            if let Some(server) = servers.get_mut(*to) {
                server.gets += 1;
            }
        }
        let unit = self.add_loads(&mut servers);
        for (tablet, under_way) in &self.balancer.moves {
            let weight = TABLET_WEIGHT + under_way.bytes + unit.weight(under_way.load);
            if let Some(from) = servers.get_mut(&*under_way.from) {
                from.gives += 1;
                from.weight = from.weight.saturating_sub(weight);
            }
            if let Some(to) = servers.get_mut(&*under_way.to) {
                to.gets += usize::from(!arrivals.contains_key(tablet));
                to.weight += weight;
                to.room = to.room.map(|room| room.saturating_sub(under_way.bytes));
            }
        }
        let movable = |server: &str| {
            let tablets = self.tablets.of_owner(server);
            let may_move = |(id, tablet): &(u64, &Placement)| {
                let rests = self.balancer.rests.contains_key(id);
                let is_ready = |table| state.tables.get(&table).map(|table| table.state);
                !self.balancer.moves.contains_key(id)
                    && !arrivals.contains_key(id)
                    && (!rests || drains.contains(server))
                    && is_ready(tablet.table) == Some(TableState::Ready)
                    && tablet.made
                    && tablet.listed
                    && tablet.state == TabletState::Serving
            };
            let live = self.live.get(server);
            let weighed = |(id, _): (u64, &Placement)| TabletWeight {
                id,
                weight: TABLET_WEIGHT
                    + self.tablet_bytes(server, id)
                    + unit.weight(self.tablet_load(server, id)),
                bytes: self.tablet_bytes(server, id),
                splits: live.is_some_and(|live| live.loads.split_at(id).is_some()),
            };
            tablets.filter(may_move).map(weighed).collect()
        };
        let refusals = &self.balancer.refusals;
        let refuses = |to: &str, tablet| {
            !refusals.is_empty() && refusals.contains_key(&(tablet, to.to_owned()))
        };
        let servers = servers.into_values().collect();
        balance_plan::plan(servers, balances, movable, refuses)
    }

    /// The tablet servers that are up, with what they hold.
    fn weigh<'a>(
        &'a self,
        state: &'a DirectoryState,
        now: Duration,
        drains: &BTreeSet<&str>,
    ) -> BTreeMap<&'a str, ServerWeight> {
        let mut servers = BTreeMap::new();
        for (name, known) in state.servers.iter() {
            let Some(live) = self.live.get(name) else {
                continue;
            };
            if known.role != Role::Tablet || !self.is_alive(name, now) {
                continue;
            }
            let tablets = self.tablets.count_of_owner(name) as u64;
            let server = ServerWeight {
                name: name.clone(),
                drains: drains.contains(&**name),
                weight: live.sizes.total() + tablets * TABLET_WEIGHT,
                room: live.room(),
                ..ServerWeight::default()
            };
            servers.insert(&**name, server);
        }
        servers
    }

    /// Adds the load to what servers weigh. What it weighs.
    fn add_loads(&self, servers: &mut BTreeMap<&str, ServerWeight>) -> LoadUnit {
        let mut loads: BTreeMap<&str, u64> = servers
            .keys()
            .map(|name| (*name, self.load_of(name)))
            .collect();
        for (tablet, (before, _)) in &self.balancer.loads_before {
            let owner = self.tablets.get(*tablet).map(|it| &*it.owner);
            let live = owner.and_then(|owner| self.live.get(owner));
            let reported = live.and_then(|live| live.loads.of_tablet(*tablet));
            if let Some(load) = owner.and_then(|owner| loads.get_mut(owner)) {
                *load += before.saturating_sub(reported.unwrap_or_default());
            }
        }
        let weight = servers.values().map(|server| server.weight).sum();
        let load = loads.values().sum();
        let unit = LoadUnit::new(weight, load, self.split_load(), servers.len());
        for (name, server) in servers {
            server.weight += unit.weight(loads.get(name).copied().unwrap_or_default());
        }
        unit
    }

    /// Asks the owner of a tablet that is used much to split it.
    fn split_used(&mut self, now: Duration, id: u64) {
        let Some(owner) = self.tablets.get(id).map(|tablet| tablet.owner.clone()) else {
            return;
        };
        let live = self.live.get(&owner);
        let row = live.and_then(|live| live.loads.split_at(id)).cloned();
        if let Some(row) = row {
            self.split(now, &owner, id, row);
        }
    }

    /// Asks the owners of tablets that have become too large to split them.
    fn split_large(&mut self, now: Duration) {
        let live = self.live.iter();
        let reported = live.flat_map(|(server, live)| {
            let large = live.sizes.to_split();
            large.map(move |(id, row)| (server.clone(), id, row.clone()))
        });
        let reported: Vec<_> = reported.collect();
        for (server, id, row) in reported {
            self.split(now, &server, id, row);
        }
    }

    fn split(&mut self, now: Duration, server: &str, id: u64, row: Bytes) {
        if self.balancer.splits.contains_key(&id) || self.balancer.moves.contains_key(&id) {
            return;
        }
        let Some(tablet) = self.tablets.get(id) else {
            return;
        };
        let is_owner = tablet.owner == server && tablet.listed && self.is_alive(server, now);
        let is_inside = tablet.rows.start < row && tablet.rows.contains(&row);
        let table = self.table(tablet.table);
        let is_ready = table.is_some_and(|table| table.state == TableState::Ready);
        // Also for a person, whose copy may take longer than anybody waits for it. All servers are asked, so that it comes last.
        if !is_owner || !is_inside || !is_ready || self.arrivals(now).contains_key(&id) {
            return;
        }
        let epoch = tablet.epoch;
        let Ok(sibling) = self.next_tablet_id(now) else {
            return;
        };
        self.balancer.rest_from_cuts(now, [id]);
        self.ask(
            server,
            Action::Split {
                tablet: id,
                epoch,
                row,
                sibling,
            },
        );
    }
}
