//! Tablet servers that are started on another machine while their process goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::cluster::Cluster;
use crate::disk::SimDisk;
use crate::rng::{Dice, Rng};
use crate::servers::tablet::{self, Tablet};
use crate::store::Image;
use crate::world::{NodeId, World};

impl Cluster {
    /// Starts a tablet server on another machine, with its volume, while its process goes on where it was for so long,
    /// cut off from the master and from the volume, and not from clients.
    pub fn move_tablet_server(
        self: &Arc<Self>,
        world: &Arc<World>,
        number: usize,
        lasts: Duration,
    ) {
        let before = self.tablet(number);
        if !world.is_up(before.node) || before.older {
            return;
        }
        let name = self.life(&format!("{} elsewhere", before.name));
        world.note(|| {
            format!(
                "{} goes on without its volume, and is started as {name}",
                before.name
            )
        });
        let node = world.add_node(&name);
        let address = tablet::address(&name);
        let after = Arc::new(before.elsewhere(node, address.clone()));
        {
            let mut network = world.network.lock();
            network.listen(&address, node);
            for master in &self.masters {
                network.cut(before.node, master.node, true);
                network.cut(master.node, before.node, true);
            }
        }
        *self.tablets[number].lock() = after.clone();
        self.left_behind.lock().push(before.node);
        after.boot(world);
        let end = move |world: &Arc<World>| world.kill(before.node, false);
        world.at(lasts, Box::new(end));
    }

    /// Nobody goes on without its volume any more.
    pub fn end_left_behind(&self, world: &Arc<World>) {
        for node in std::mem::take(&mut *self.left_behind.lock()) {
            world.kill(node, false);
        }
    }
}

impl Tablet {
    /// The server as it is started on another machine, with the same volume. The process of this one, if there is one,
    /// goes on without it, and knows of nothing.
    fn elsewhere(&self, node: NodeId, address: String) -> Self {
        self.retired.store(true, Ordering::Relaxed);
        let dice = Dice::new(Rng::new(self.dice.of("moves", Rng::next), "elsewhere"));
        // As of the folder: what was not synced is in that machine's memory, and its process reaches the device no more.
        let image = self.image.as_ref().map(|image| {
            let mut image = image.lock();
            self.dice.of("crashes", |rng| image.crash(rng));
            Arc::new(Mutex::new(image.copy()))
        });
        Self {
            node,
            address,
            maybe: Mutex::new(std::mem::take(&mut *self.maybe.lock())),
            ..self.on(self.disk.move_away(), image, dice)
        }
    }

    /// The same server, not running yet, with another folder, which no process has had.
    pub(crate) fn on(&self, disk: SimDisk, image: Option<Arc<Mutex<Image>>>, dice: Dice) -> Self {
        Self {
            node: self.node,
            master: self.master,
            name: self.name.clone(),
            address: self.address.clone(),
            disk,
            image,
            dice,
            sync: Mutex::new(*self.sync.lock()),
            limits: self.limits,
            stall_max: self.stall_max,
            window_us: self.window_us,
            cluster_id: Mutex::new(self.cluster_id.lock().clone()),
            lives: Arc::default(),
            maybe: Mutex::default(),
            running: Mutex::new(None),
            highest: self.highest.clone(),
            retired: AtomicBool::new(false),
            older: false,
            tears: self.tears,
            waits_for_ever: self.waits_for_ever,
            takes_any_folder: self.takes_any_folder,
        }
    }
}
