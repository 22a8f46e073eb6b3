//! Tablet servers that are started with an older copy of their folder, as from a backup, and then with their own again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use percolator_gc_master::DirectoryState;

use crate::cluster::Cluster;
use crate::disk::SimDisk;
use crate::plan::Fault;
use crate::rng::{Dice, Rng};
use crate::servers::Lives;
use crate::servers::tablet::Tablet;
use crate::store::Image;
use crate::world::World;

/// How soon it is looked for a process again that isn't running just now.
const LOOK: Duration = Duration::from_millis(20);

/// A folder as it was.
struct Copy {
    disk: SimDisk,
    image: Option<Image>,
    lives: Lives,
    /// How many groups it may have.
    groups: u64,
}

impl Cluster {
    /// Copies a tablet server's folder, and starts the server with the copy when that is so old, for so long.
    ///
    /// Only where the master durably knows of something that the copy lacks: what a server did since its last heartbeat
    /// nobody else knows of. Nor does a master that has lost its own state.
    pub fn go_back(
        self: &Arc<Self>,
        world: &Arc<World>,
        number: usize,
        age: Duration,
        lasts: Duration,
    ) {
        let before = self.tablet(number);
        let groups = before.groups();
        let (Some(groups), false) = (groups, before.older || self.plan.has(Fault::LoseMaster))
        else {
            return;
        };
        let copy = Copy {
            disk: before.disk.copy(),
            image: before.image.as_ref().map(|image| image.lock().copy()),
            lives: before.lives.copy(),
            // One is on its way.
            groups: groups + 1,
        };
        let cluster = self.clone();
        let begin = move |world: &Arc<World>| {
            if !cluster.is_healed() && cluster.start_older(world, number, copy) {
                let end = move |world: &Arc<World>| cluster.bring_newest(world, number);
                world.at(lasts, Box::new(end));
            }
        };
        world.at(age, Box::new(begin));
    }

    /// Every server has its newest folder again.
    pub fn bring_all_newest(self: &Arc<Self>, world: &Arc<World>) {
        let numbers: Vec<usize> = self.set_aside.lock().keys().copied().collect();
        for number in numbers {
            self.bring_newest(world, number);
        }
    }

    fn start_older(&self, world: &Arc<World>, number: usize, copy: Copy) -> bool {
        let newest = self.tablet(number);
        let known = self.groups_known(&newest.name);
        if !world.is_up(newest.node) || newest.older || known.is_none_or(|it| it <= copy.groups) {
            return false;
        }
        let name = &newest.name;
        world.note(|| format!("{name} is started with an older copy of its folder"));
        world.kill(newest.node, false);
        // Nobody mends what is set aside.
        self.mend_disk(2 + number);
        newest.retired.store(true, Ordering::Relaxed);
        let older = Arc::new(newest.on_older(copy));
        *self.tablets[number].lock() = older.clone();
        self.set_aside.lock().insert(number, newest);
        older.boot(world);
        true
    }

    fn bring_newest(self: &Arc<Self>, world: &Arc<World>, number: usize) {
        let older = self.tablet(number);
        if !self.set_aside.lock().contains_key(&number) {
            return;
        }
        if !world.is_up(older.node) {
            // Anyone who ended it starts it again, and must find the one that is to run.
            let cluster = self.clone();
            let again = move |world: &Arc<World>| cluster.bring_newest(world, number);
            world.at(LOOK, Box::new(again));
            return;
        }
        let Some(newest) = self.set_aside.lock().remove(&number) else {
            return;
        };
        let name = &newest.name;
        world.note(|| format!("{name} is started with its newest folder"));
        world.kill(older.node, false);
        older.retired.store(true, Ordering::Relaxed);
        newest.retired.store(false, Ordering::Relaxed);
        *self.tablets[number].lock() = newest.clone();
        newest.boot(world);
    }

    /// How many groups of a server the master durably knows of.
    fn groups_known(&self, server: &str) -> Option<u64> {
        let master = self.master();
        let state = match &master.replicated {
            Some(replicated) => replicated.store.state()?.state,
            None => master.own_state()?,
        };
        let truth = DirectoryState::decode(&state).ok()?;
        Some(truth.servers.get(server)?.groups)
    }
}

impl Tablet {
    /// How many groups are durable, of a server that runs and belongs to a cluster.
    fn groups(&self) -> Option<u64> {
        self.cluster_id.lock().as_ref()?;
        let running = self.running.lock().clone()?;
        let groups = running.lock().runner.core().groups();
        Some(groups)
    }

    fn on_older(&self, copy: Copy) -> Self {
        let image = copy.image.map(|image| Arc::new(Mutex::new(image)));
        let dice = Dice::new(Rng::new(self.dice.of("older", Rng::next), "older"));
        Self {
            lives: Arc::new(copy.lives),
            older: true,
            ..self.on(copy.disk, image, dice)
        }
    }
}
