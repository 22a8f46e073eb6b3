//! One start of a server's process: its incarnation, and which earlier ones are surely dead.
//!
//! Anyone who holds a folder's lock on the same start of the same machine knows that the processes that held it before are
//! dead. A copy of the folder proves nothing of that: its lock is another file.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};

/// Where a folder keeps which processes have held its lock.
const PROCESSES: &str = "PROCESSES";
/// Names the start of a machine (Linux).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Starts that no master has answered, at the most; a server with more of them waits for a lease.
const STARTS_MAX: usize = 64;

/// The processes that have held a folder's lock, the last one last, from the one on that a master has accepted.
#[derive(Serialize, Deserialize)]
struct Processes {
    boot_id: String,
    device: u64,
    inode: u64,
    incarnations: Vec<u64>,
    /// A master has accepted the first of them.
    accepted: bool,
}

impl Processes {
    /// Leaves out the oldest ones that are too many, but not the one that a master has accepted. The master may know any of those
    /// that came later, above all the last one.
    fn forget_some(&mut self) {
        let first = usize::from(self.accepted);
        let too_many = self.incarnations.len().saturating_sub(STARTS_MAX);
        self.incarnations.drain(first..first + too_many);
    }
}

/// One start of a server.
#[derive(Clone, Debug)]
pub struct Incarnation {
    /// A random number of this start.
    pub incarnation: u64,
    /// Earlier ones that are surely dead: one of them may be the one that the master knows.
    pub replaces: Vec<u64>,
    /// A master has accepted the first of these. Otherwise one of another machine may have been before them.
    pub replaces_accepted: bool,
    file: Option<PathBuf>,
    /// A master has accepted this one.
    is_accepted: Arc<AtomicBool>,
}

impl Incarnation {
    /// Begins in a folder whose lock, the file of this name in it, the process holds.
    pub fn begin(folder: &Path, lock: &str) -> Self {
        let incarnation = rand::random::<u64>().max(1);
        let file = folder.join(PROCESSES);
        let Some(mut now) = here(&folder.join(lock)) else {
            return Self {
                incarnation,
                replaces: Vec::new(),
                replaces_accepted: false,
                file: None,
                is_accepted: Arc::default(),
            };
        };
        let before: Option<Processes> = fs::read(&file)
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .filter(|before: &Processes| {
                (&before.boot_id, before.device, before.inode)
                    == (&now.boot_id, now.device, now.inode)
            });
        if let Some(before) = before {
            now.incarnations = before.incarnations;
            now.accepted = before.accepted;
        }
        now.forget_some();
        let (replaces, replaces_accepted) = (now.incarnations.clone(), now.accepted);
        now.incarnations.push(incarnation);
        write(&file, &now);
        Self {
            incarnation,
            replaces,
            replaces_accepted,
            file: Some(file),
            is_accepted: Arc::default(),
        }
    }

    /// One without a folder: nothing is known of earlier ones.
    pub fn without_folder() -> Self {
        Self {
            incarnation: rand::random::<u64>().max(1),
            replaces: Vec::new(),
            replaces_accepted: false,
            file: None,
            is_accepted: Arc::default(),
        }
    }

    /// The master knows this one now: earlier ones don't matter any more. To be called in a tokio runtime.
    ///
    /// The folder has it later, as the caller doesn't wait for the disk: one that hangs would stop a master that leads. Until it is written, or if it
    /// never is, the file has this one behind those before it, since [`Self::begin`]: the next start may wait for a lease.
    pub fn accepted(&self) {
        let was_accepted = self.is_accepted.swap(true, Ordering::Relaxed);
        if !was_accepted && self.file.is_some() {
            let start = self.clone();
            tokio::task::spawn_blocking(move || start.keep_accepted());
        }
    }

    fn keep_accepted(&self) {
        let read = |file: &PathBuf| -> Option<Processes> {
            serde_json::from_slice(&fs::read(file).ok()?).ok()
        };
        if let Some(file) = &self.file
            && let Some(mut processes) = read(file)
        {
            processes.incarnations = vec![self.incarnation];
            processes.accepted = true;
            write(file, &processes);
        }
    }
}

impl Incarnation {
    /// Whether a master has accepted this one.
    pub fn is_accepted(&self) -> bool {
        self.is_accepted.load(Ordering::Relaxed)
    }
}

/// This start of the machine, and this file.
fn here(lock: &Path) -> Option<Processes> {
    let lock = fs::metadata(lock).ok()?;
    Some(Processes {
        boot_id: fs::read_to_string(BOOT_ID).ok()?,
        device: lock.dev(),
        inode: lock.ino(),
        incarnations: Vec::new(),
        accepted: false,
    })
}

/// Not synced: it counts on this start of the machine alone. Where it can't be written, nothing is proven.
fn write(file: &Path, processes: &Processes) {
    let new = file.with_extension("tmp");
    let written = serde_json::to_vec(processes)
        .map_err(std::io::Error::from)
        .and_then(|bytes| fs::write(&new, bytes))
        .and_then(|()| fs::rename(&new, file));
    if let Err(error) = written {
        tracing::debug!(%error, "which process holds the folder is not kept");
        let _ = fs::remove_file(file);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use super::*;

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("LOCK"), "").unwrap();
        folder
    }

    #[test]
    fn the_ones_before_are_known_until_one_is_accepted() {
        let folder = folder();
        let begin = || Incarnation::begin(folder.path(), "LOCK");
        let first = begin();
        assert!(first.replaces.is_empty());
        let second = begin();
        assert_eq!(second.replaces, [first.incarnation]);
        let third = begin();
        assert_eq!(third.replaces, [first.incarnation, second.incarnation]);
        assert!(!third.replaces_accepted);
        third.keep_accepted();
        let fourth = begin();
        assert_eq!(fourth.replaces, [third.incarnation]);
        assert!(fourth.replaces_accepted && begin().replaces_accepted);
    }

    #[test]
    fn of_many_starts_the_last_ones_are_known_and_the_accepted_one() {
        for is_accepted in [false, true] {
            let folder = folder();
            let begin = || Incarnation::begin(folder.path(), "LOCK");
            let first = begin();
            if is_accepted {
                first.keep_accepted();
            }
            let mut before = first.clone();
            for _ in 0..70 {
                let next = begin();
                assert_eq!(next.replaces.last(), Some(&before.incarnation));
                assert!(next.replaces.len() <= STARTS_MAX);
                before = next;
            }
            let last = begin();
            assert_eq!(last.replaces.len(), STARTS_MAX);
            assert_eq!(last.replaces_accepted, is_accepted);
            assert_eq!(last.replaces[0] == first.incarnation, is_accepted);
        }
    }

    /// A pipe without a reader takes no write, as a disk that hangs.
    #[tokio::test]
    async fn a_disk_that_hangs_keeps_nobody_who_was_accepted() {
        const GIVEN_UP_AFTER: Duration = Duration::from_secs(60);
        let folder = folder();
        let start = Incarnation::begin(folder.path(), "LOCK");
        let pipe = folder.path().join(PROCESSES).with_extension("tmp");
        let made = Command::new("mkfifo").arg(&pipe).status();
        assert!(made.expect("mkfifo runs").success());
        let (go_on, goes_on) = std::sync::mpsc::channel();
        // The disk goes on in the end, so that the test does.
        let disk = std::thread::spawn(move || {
            let is_free = goes_on.recv_timeout(GIVEN_UP_AFTER).is_ok();
            fs::read(pipe).expect("what is kept");
            is_free
        });
        start.accepted();
        assert!(start.is_accepted());
        go_on.send(()).expect("it waits");
        assert!(disk.join().expect("no panic"), "it has waited for the disk");
    }

    #[test]
    fn a_copy_of_the_folder_proves_nothing() {
        let (folder, copy) = (folder(), folder());
        Incarnation::begin(folder.path(), "LOCK").keep_accepted();
        let file = |of: &tempfile::TempDir| of.path().join(PROCESSES);
        fs::copy(file(&folder), file(&copy)).unwrap();
        assert!(Incarnation::begin(copy.path(), "LOCK").replaces.is_empty());
    }

    #[test]
    fn another_start_of_the_machine_proves_nothing() {
        let folder = folder();
        Incarnation::begin(folder.path(), "LOCK").keep_accepted();
        let file = folder.path().join(PROCESSES);
        let mut processes: Processes = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        processes.boot_id = "another".into();
        write(&file, &processes);
        assert!(
            Incarnation::begin(folder.path(), "LOCK")
                .replaces
                .is_empty()
        );
    }
}
