//! A directory that is served. A step acts in memory; what it has found is shown when the state that it has seen is durable.

use parking_lot::Mutex;

use crate::core::Directory;
use crate::durability::{Closed, Durability};
use crate::events::{Command, Note};

/// A directory, and how far its state is durable.
#[derive(Debug)]
pub struct Served {
    directory: Mutex<Directory>,
    durability: Durability,
}

/// What a step has done. Nothing of it is shown, and no command sent, before [`Durability::shown`] of its changes.
#[must_use]
#[derive(Debug)]
pub struct Acted<R> {
    /// What was found.
    pub result: R,
    /// After so many changes.
    pub changes: u64,
    /// To be sent.
    pub commands: Vec<Command>,
    /// For the log, at once.
    pub notes: Vec<Note>,
}

impl Served {
    /// A directory whose effects were carried out.
    pub fn new(directory: Directory) -> Self {
        Self {
            directory: Mutex::new(directory),
            durability: Durability::default(),
        }
    }

    /// How far the state is durable.
    pub fn durability(&self) -> &Durability {
        &self.durability
    }

    /// One step.
    ///
    /// # Errors
    /// Nothing of it is shown any more: nothing was done.
    pub fn act<R>(&self, act: impl FnOnce(&mut Directory) -> R) -> Result<Acted<R>, Closed> {
        let mut directory = self.directory.lock();
        self.durability.check()?;
        let result = act(&mut directory);
        let effects = directory.take_effects_unencoded();
        if effects.has_changed {
            self.durability.changed();
        }
        if effects.wakes {
            // Of soft state: no write follows by which those who wait would hear of it.
            self.durability.wake();
        }
        Ok(Acted {
            result,
            changes: self.durability.changes(),
            commands: effects.commands,
            notes: effects.notes,
        })
    }

    /// Looks, and says how many changes there were.
    pub fn look<R>(&self, at: impl FnOnce(&Directory) -> R) -> (R, u64) {
        let directory = self.directory.lock();
        (at(&directory), self.durability.changes())
    }

    /// The state in bytes, and after how many changes it is; none: it has none.
    pub fn newest(&self) -> Option<(u64, Vec<u8>)> {
        let directory = self.directory.lock();
        Some((self.durability.changes(), directory.encoded()?))
    }
}
