//! The servers of a run by number, and what is done to them: first the master and the oracle, then the tablet servers, then
//! the other oracles and masters, so that faults befall the same ones whether or not there are others.

use std::sync::Arc;
use std::time::Duration;

use crate::cluster::{Cluster, SYNC};
use crate::disk::{SimDisk, Space};
use crate::servers::master::Master;
use crate::servers::oracle::{self, Oracle};
use crate::world::{NodeId, World};

/// A server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Master(usize),
    Oracle(usize),
    Tablet(usize),
}

impl Cluster {
    /// How many servers there are.
    pub fn servers(&self) -> usize {
        self.masters.len() + self.oracles.len() + self.tablets.len()
    }

    /// The numbers of the tablet servers.
    pub(crate) fn tablet_numbers(&self) -> std::ops::Range<usize> {
        2..2 + self.tablets.len()
    }

    /// The numbers of all masters and oracles that are one of several.
    pub(crate) fn replica_numbers(&self) -> Vec<usize> {
        let is_replica = |server: &usize| match self.place(*server) {
            Place::Master(_) => self.masters.len() > 1,
            Place::Oracle(_) => self.oracles.len() > 1,
            Place::Tablet(_) => false,
        };
        (0..self.servers()).filter(is_replica).collect()
    }

    fn place(&self, server: usize) -> Place {
        let tablets = self.tablet_numbers();
        match server {
            0 => Place::Master(0),
            1 => Place::Oracle(0),
            tablet if tablets.contains(&tablet) => Place::Tablet(tablet - tablets.start),
            other => match 1 + other - tablets.end {
                oracle if oracle < self.oracles.len() => Place::Oracle(oracle),
                other => Place::Master(1 + other - self.oracles.len()),
            },
        }
    }

    /// All processes that things are done to.
    pub fn nodes(&self) -> Vec<NodeId> {
        let (oracle, others) = self.oracle_nodes();
        let mut nodes = vec![self.master().node, oracle];
        nodes.extend(self.tablets().iter().map(|tablet| tablet.node));
        nodes.extend(&self.clients);
        nodes.extend(others);
        nodes.extend(self.masters.iter().skip(1).map(|master| master.node));
        nodes.extend(self.store.iter().map(|store| store.node));
        nodes
    }

    fn oracle_nodes(&self) -> (NodeId, Vec<NodeId>) {
        let others = self.oracles.iter().skip(1).map(|oracle| oracle.node);
        (self.oracle().node, others.collect())
    }

    /// The first master.
    pub fn master(&self) -> &Arc<Master> {
        &self.masters[0]
    }

    /// The first oracle.
    pub fn oracle(&self) -> &Arc<Oracle> {
        &self.oracles[0]
    }

    /// Who sends something to whom.
    pub fn links(&self) -> Vec<(NodeId, NodeId)> {
        let master = self.master().node;
        let (oracle, others) = self.oracle_nodes();
        let mut links = vec![(oracle, master)];
        let tablets = self.tablets();
        links.extend(tablets.iter().map(|tablet| (tablet.node, master)));
        for client in &self.clients {
            links.extend([(*client, master), (*client, oracle)]);
            links.extend(tablets.iter().map(|tablet| (*client, tablet.node)));
        }
        for other in &others {
            links.push((*other, master));
            links.extend(self.clients.iter().map(|client| (*client, *other)));
        }
        for other in self.masters.iter().skip(1) {
            let senders = [&self.clients[..], &others[..], &[oracle][..]].concat();
            links.extend(senders.into_iter().map(|sender| (sender, other.node)));
            links.extend(tablets.iter().map(|tablet| (tablet.node, other.node)));
        }
        if let Some(store) = &self.store {
            links.extend(self.elected().map(|node| (node, store.node)));
        }
        // Each has its answers.
        let back: Vec<_> = links.iter().map(|(from, to)| (*to, *from)).collect();
        links.extend(back);
        links
    }

    /// From now on so many operations of a million fail on a server's disk.
    pub fn set_disk_error_ppm(&self, server: usize, ppm: u32) {
        self.disk(server).set_error_ppm(ppm);
    }

    /// From now on there's so much space on a server's disk.
    pub fn set_disk_space(&self, server: usize, space: Space) {
        self.disk(server).set_space(space);
    }

    fn disk(&self, server: usize) -> SimDisk {
        match self.place(server) {
            Place::Master(number) => self.masters[number].disk.clone(),
            Place::Oracle(number) => self.oracles[number].disk.clone(),
            Place::Tablet(number) => self.tablet(number).disk.clone(),
        }
    }

    /// From now on a server's disk takes about so much longer.
    pub fn set_disk_slow(&self, server: usize, by: Duration) {
        match self.place(server) {
            Place::Master(number) => *self.masters[number].write.lock() = oracle::WRITE + by,
            Place::Oracle(number) => *self.oracles[number].write.lock() = oracle::WRITE + by,
            Place::Tablet(number) => *self.tablet(number).sync.lock() = SYNC + by,
        }
    }

    /// What one of several oracles or masters keeps in its folder is written then, and not before.
    pub(crate) fn hang_disk(&self, server: usize, until: Duration) {
        match self.place(server) {
            Place::Master(number) => *self.masters[number].hangs_until.lock() = until,
            Place::Oracle(number) => *self.oracles[number].hangs_until.lock() = until,
            // By another rule: until the process ends.
            Place::Tablet(number) => self.tablet(number).hang(),
        }
    }

    /// A server's disk is well.
    pub fn mend_disk(&self, server: usize) {
        self.set_disk_error_ppm(server, 0);
        self.set_disk_space(server, Space::Plenty);
        self.set_disk_slow(server, Duration::ZERO);
    }

    /// A server's process.
    pub fn server_node(&self, server: usize) -> NodeId {
        match self.place(server) {
            Place::Master(number) => self.masters[number].node,
            Place::Oracle(number) => self.oracles[number].node,
            Place::Tablet(number) => self.tablet(number).node,
        }
    }

    /// Kills a server, which is started again after this time. `silent`: see [`World::kill`].
    pub fn kill_server(
        self: &Arc<Self>,
        world: &Arc<World>,
        server: usize,
        down: Duration,
        silent: bool,
    ) {
        let node = self.server_node(server);
        if !world.is_up(node) {
            return;
        }
        let name = world.name(node);
        world.note(|| format!("{name} is killed"));
        world.kill(node, silent);
        let cluster = self.clone();
        let boot = move |world: &Arc<World>| cluster.boot_server(world, server);
        world.at(down, Box::new(boot));
    }

    /// Starts a server, if it isn't there: one that was killed may have been replaced meanwhile.
    pub(crate) fn boot_server(&self, world: &Arc<World>, server: usize) {
        if world.is_up(self.server_node(server)) {
            return;
        }
        match self.place(server) {
            Place::Master(number) => self.masters[number].boot(world),
            Place::Oracle(number) => self.oracles[number].boot(world),
            Place::Tablet(number) => self.tablet(number).boot(world),
        }
    }

    /// Kills all masters, which are started again after this time.
    pub fn kill_masters(self: &Arc<Self>, world: &Arc<World>, down: Duration) {
        for number in 0..self.masters.len() {
            self.kill_server(world, self.server_of_master(number), down, false);
        }
    }

    /// Processes that take part in an election.
    pub(crate) fn elected(&self) -> impl Iterator<Item = NodeId> {
        let oracles = self.oracles.iter();
        let oracles = oracles.filter(|oracle| oracle.replicated.is_some());
        let masters = self.masters.iter();
        let masters = masters.filter(|master| master.replicated.is_some());
        let oracles = oracles.map(|oracle| oracle.node);
        oracles.chain(masters.map(|master| master.node))
    }

    /// Among the servers: the oracle or the master that leads, of those that are several, or one of them if none does.
    pub(crate) fn leader(&self, world: &Arc<World>, whom: u64) -> usize {
        let (oracles, masters) = (self.oracles.len(), self.masters.len());
        let any = |of: usize| (whom / 2 % of as u64) as usize;
        if masters > 1 && (oracles == 1 || whom.is_multiple_of(2)) {
            let leads = |number: &usize| self.masters[*number].leads();
            let leader = (0..masters).find(leads).unwrap_or(any(masters));
            return self.server_of_master(leader);
        }
        let leads = |number: &usize| self.oracles[*number].leads(world);
        let leader = (0..oracles).find(leads).unwrap_or(any(oracles));
        match leader {
            0 => 1,
            other => self.tablet_numbers().end + other - 1,
        }
    }

    fn server_of_master(&self, number: usize) -> usize {
        match number {
            0 => 0,
            other => self.tablet_numbers().end + self.oracles.len() + other - 2,
        }
    }

    /// Tells an oracle or a master to end.
    pub(crate) fn hand_over(&self, world: &Arc<World>, server: usize, down: Duration) {
        match self.place(server) {
            Place::Master(number) => self.masters[number].hand_over(world, down),
            Place::Oracle(number) => self.oracles[number].hand_over(world, down),
            Place::Tablet(_) => {}
        }
    }
}
