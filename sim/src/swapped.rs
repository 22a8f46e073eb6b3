//! Two tablet servers that are started with each other's folder, as with volumes that were mixed up, and then with their own
//! again. Neither serves meanwhile: a folder says whose it is.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use percolator_engine::{Error, Identity, Options};
use percolator_register::files::{Files, replace_durably};

use crate::cluster::Cluster;
use crate::rng::{Dice, Rng};
use crate::servers::tablet::Tablet;
use crate::world::World;

impl Cluster {
    /// Starts a tablet server and the next one with each other's folder, if both run with their own, for so long. In half of the
    /// ways all masters are started again behind it.
    pub(crate) fn swap_folders(
        self: &Arc<Self>,
        world: &Arc<World>,
        whom: u64,
        lasts: Duration,
        way: u64,
    ) {
        let number = (whom % self.plan.tablet_servers as u64) as usize;
        self.swap_two_folders(world, number, lasts);
        if way.is_multiple_of(2) {
            self.start_masters_again(world);
        }
    }

    fn swap_two_folders(self: &Arc<Self>, world: &Arc<World>, number: usize, lasts: Duration) {
        let numbers = [number, (number + 1) % self.plan.tablet_servers];
        let own = numbers.map(|number| self.tablet(number));
        let has_own = |tablet: &Arc<Tablet>| world.is_up(tablet.node) && !tablet.older;
        if numbers[0] == numbers[1] || !own.iter().all(has_own) {
            return;
        }
        let names = [&own[0].name, &own[1].name];
        world.note(|| format!("{} and {} have each other's folder", names[0], names[1]));
        for (number, tablet) in numbers.iter().zip(&own) {
            world.kill(tablet.node, false);
            self.mend_disk(2 + number);
            tablet.retired.store(true, Ordering::Relaxed);
        }
        for (place, number) in numbers.into_iter().enumerate() {
            let swapped = Arc::new(own[place].on_folder_of(&own[1 - place]));
            *self.tablets[number].lock() = swapped.clone();
            swapped.boot(world);
        }
        self.swapped.lock().extend(numbers.into_iter().zip(own));
        let cluster = self.clone();
        let end = move |world: &Arc<World>| cluster.swap_folders_back(world, &numbers);
        world.at(lasts, Box::new(end));
    }

    /// Every server has its own folder again.
    pub(crate) fn swap_all_folders_back(&self, world: &Arc<World>) {
        let numbers: Vec<usize> = self.swapped.lock().keys().copied().collect();
        self.swap_folders_back(world, &numbers);
    }

    fn swap_folders_back(&self, world: &Arc<World>, numbers: &[usize]) {
        for number in numbers {
            let Some(own) = self.swapped.lock().remove(number) else {
                continue;
            };
            world.note(|| format!("{} has its own folder again", own.name));
            let swapped = self.tablet(*number);
            swapped.retired.store(true, Ordering::Relaxed);
            // Of a mutant: it serves.
            world.kill(swapped.node, false);
            own.retired.store(false, Ordering::Relaxed);
            *self.tablets[*number].lock() = own.clone();
            own.boot(world);
        }
    }
}

impl Tablet {
    /// The folder is this server's, and says so from its first start on: by the shipped identity of a folder, in a file of the
    /// simulated device.
    pub(crate) fn claim_folder(&self, options: &Options) -> Result<(), Error> {
        let (file, asked) = (Path::new("FORMAT"), Identity::of(options));
        let folder = Path::new(&self.name);
        let failed = |cause: io::Error| Error::Io {
            action: "open",
            path: folder.to_owned(),
            cause: Arc::new(cause),
        };
        match Files::read(&self.disk, file) {
            Ok(text) => Identity::decode(folder, &text)?.check(folder, &asked),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let text = asked.encode().map_err(|error| failed(error.into()))?;
                let written = replace_durably(&self.disk, file, &text);
                written.map_err(|error| failed(io::Error::other(error)))
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// The same server, not running yet, with the other one's folder.
    fn on_folder_of(&self, other: &Self) -> Self {
        let dice = Dice::new(Rng::new(self.dice.of("swapped", Rng::next), "swapped"));
        self.on(other.disk.clone(), other.image.clone(), dice)
    }
}
