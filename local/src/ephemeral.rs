//! Folders of clusters that go away: also of those that were killed, when the next one comes.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

const PREFIX: &str = "percolator-ephemeral-";
/// Locked as long as the cluster runs.
const LOCK: &str = "LOCK";
const DATA: &str = "data";
/// A folder that is younger may be one that is just being made.
const YOUNG: Duration = Duration::from_secs(60);

/// The folder of a cluster, removed with this.
pub struct EphemeralFolder {
    folder: TempDir,
    _lock: File,
}

impl EphemeralFolder {
    /// Makes a folder, and removes those that were left behind.
    ///
    /// # Errors
    /// It can't be made.
    pub fn make() -> io::Result<Self> {
        remove_left(&std::env::temp_dir());
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir()?;
        let lock = File::create_new(folder.path().join(LOCK))?;
        lock.try_lock().map_err(io::Error::from)?;
        Ok(Self {
            folder,
            _lock: lock,
        })
    }

    /// Where the cluster's data belong.
    pub fn data_dir(&self) -> PathBuf {
        self.folder.path().join(DATA)
    }
}

/// What can't be read, or removed, isn't ours: it stays.
fn remove_left(parent: &Path) {
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries {
        let is_ours = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if is_ours && is_left(&entry.path()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Whether the process that made the folder has ended without removing it.
fn is_left(folder: &Path) -> bool {
    let Ok(lock) = File::options().write(true).open(folder.join(LOCK)) else {
        return false;
    };
    let age = lock.metadata().and_then(|file| file.modified());
    let is_old = age.is_ok_and(|made| made.elapsed().is_ok_and(|age| age > YOUNG));
    is_old
        && !matches!(
            lock.try_lock(),
            Err(TryLockError::WouldBlock | TryLockError::Error(_))
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_that_were_left_go_and_no_others() {
        let parent = tempfile::tempdir().expect("a folder");
        let folder = |name: &str, age: Duration| {
            let folder = parent.path().join(name);
            std::fs::create_dir_all(folder.join(DATA)).expect("a folder");
            let lock = File::create_new(folder.join(LOCK)).expect("a file");
            lock.set_modified(std::time::SystemTime::now() - age)
                .expect("its age");
            (folder, lock)
        };
        let (left, _) = folder("percolator-ephemeral-left", 2 * YOUNG);
        let (young, _) = folder("percolator-ephemeral-young", Duration::ZERO);
        let (other, _) = folder("somebody-elses", 2 * YOUNG);
        let (running, lock) = folder("percolator-ephemeral-running", 2 * YOUNG);
        lock.try_lock().expect("locked");
        remove_left(parent.path());
        assert!(!left.exists());
        for stays in [young, other, running] {
            assert!(stays.exists(), "{}", stays.display());
        }
    }
}
