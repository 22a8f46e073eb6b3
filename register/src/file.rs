//! The register in a file, for a master that is alone. Several processes share a [`FolderRegister`](crate::FolderRegister): a
//! process that stands still with the lock here holds up the others.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::blocking::Blocking;
use crate::files::{FileError, Files, StdFiles, beside};
use crate::{
    BoxFuture, LoadError, Register, RegisterVersion, SwapError, VersionedFile, VersionedValue,
    WriteId,
};

/// A register in a file, for processes of one machine that share its folder. It is not for file systems of a network, whose
/// locks and renames promise less.
///
/// A swap writes a file of its own. A lock of the system (flock) on the file `NAME.lock` then lets one swap after the other rename
/// its file, and ends with its process. Loads need no lock. A process that stands still holds the others up only if it does so
/// between these two calls, for some microseconds of each swap.
///
/// The blocking part runs on the runtime's threads for that; where there is no runtime, [`VersionedFile`] is the same without the
/// lock.
#[derive(Clone, Debug)]
pub struct FileRegister {
    file: VersionedFile,
    lock: PathBuf,
    blocking: Blocking,
}

impl FileRegister {
    /// A device that takes longer, or a process that holds the lock for longer, is not waited for.
    pub const TIMEOUT: Duration = Duration::from_secs(5);

    /// The register in the file at `path`, which need not exist yet; its folder must.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self::on(Arc::new(StdFiles), path)
    }

    /// The same, with other files than the operating system's. The lock is the system's all the same.
    pub fn on(files: Arc<dyn Files>, path: impl Into<PathBuf>) -> Self {
        let file = VersionedFile::on(files, path);
        let lock = beside(file.path(), ".lock");
        Self {
            file,
            lock,
            blocking: Blocking::new(Self::TIMEOUT),
        }
    }

    /// The same, which waits for so long in place of [`Self::TIMEOUT`].
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self {
            blocking: self.blocking.with_timeout(timeout),
            ..self
        }
    }

    /// The same, which takes values of this size in place of [`VALUE_BYTES_MAX`](crate::VALUE_BYTES_MAX): a register that
    /// is never moved to another store. All who use the file need the same limit.
    #[must_use]
    pub fn with_value_bytes_max(self, value_bytes_max: usize) -> Self {
        Self {
            file: self.file.with_value_bytes_max(value_bytes_max),
            ..self
        }
    }

    /// Where the value is.
    pub fn path(&self) -> &Path {
        self.file.path()
    }
}

impl Register for FileRegister {
    fn load(&self) -> BoxFuture<'_, Result<Option<VersionedValue>, LoadError>> {
        Box::pin(async move {
            let file = self.file.clone();
            self.blocking.load(self.path(), move || file.load()).await
        })
    }

    fn swap(
        &self,
        expected: Option<RegisterVersion>,
        value: Vec<u8>,
    ) -> BoxFuture<'_, Result<RegisterVersion, SwapError>> {
        Box::pin(async move {
            let write = WriteId::random();
            let (file, lock) = (self.file.clone(), self.lock.clone());
            let deadline = Instant::now() + self.blocking.timeout();
            let swap = move || {
                let locked = || lock_until(deadline, &lock);
                let version = file.swap_under(expected, &value, write, locked)?;
                remove_leftovers(&file, version);
                Ok(version)
            };
            self.blocking.swap(self.path(), write, swap).await
        })
    }

    fn value_bytes_max(&self) -> usize {
        self.file.value_bytes_max()
    }
}

/// Removes what swaps have left that can't succeed any more since the register has this version: their processes were killed.
fn remove_leftovers(file: &VersionedFile, version: RegisterVersion) {
    let Some(folder) = file.path().parent() else {
        return;
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let of = name
            .to_str()
            .and_then(|name| file.version_of_temporary(name));
        if of.is_some_and(|of| of <= version) {
            // Another process may have removed it.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Locks the file until the value is dropped. A new handle each time: the system's lock belongs to the handle, and would let
/// two threads in that share one.
fn lock_until(deadline: Instant, path: &Path) -> Result<File, LoadError> {
    // The system's own wait has no time-out: a process that stands still with the lock would hold this thread, and with it the
    // end of this process.
    const PAUSE: Duration = Duration::from_millis(1);
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .map_err(FileError::of("open", path))?;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                std::thread::sleep(PAUSE);
            }
            Err(TryLockError::WouldBlock) => {
                return Err(LoadError::Unavailable {
                    register: path.display().to_string(),
                    reason: "another process holds the lock".to_owned(),
                });
            }
            Err(TryLockError::Error(error)) => {
                return Err(FileError::of("lock", path)(error).into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Mutex, mpsc};

    use super::*;
    use crate::files::NewFile;

    #[tokio::test]
    async fn a_process_that_stands_still_with_the_lock_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let register = FileRegister::new(folder.path().join("limit"));
        let version = register.swap(None, b"one".to_vec()).await.unwrap();
        let lock = File::open(folder.path().join("limit.lock")).unwrap();
        lock.lock().unwrap();
        let found = register.load().await.unwrap().unwrap();
        assert_eq!(found.version, version, "loads need no lock");
        let hurried = register.clone().with_timeout(Duration::from_millis(20));
        // The thread may not have returned in time: then the swap may still happen.
        let error = hurried.swap(Some(version), Vec::new()).await.unwrap_err();
        let is_honest = matches!(
            error,
            SwapError::Unavailable { .. } | SwapError::Unknown { .. }
        );
        assert!(is_honest, "{error}");
        drop(lock);
        // One whose outcome is unknown waits a little longer, and may have the lock first.
        let next = match register.swap(Some(version), b"two".to_vec()).await {
            Err(SwapError::Conflict { found, .. }) => {
                assert!(matches!(error, SwapError::Unknown { .. }), "{error}");
                register.swap(found, b"two".to_vec()).await.unwrap()
            }
            result => result.unwrap(),
        };
        assert!(next > version);
        assert_eq!(register.load().await.unwrap().unwrap().value, b"two");
    }

    /// Files of a process that stands still when it syncs a file, or the folder, until it is let go on.
    struct Stopping {
        at: &'static str,
        has_stopped: mpsc::Sender<()>,
        goes_on: Arc<Mutex<mpsc::Receiver<()>>>,
    }

    impl Stopping {
        fn stop_at(&self, at: &str) {
            if at == self.at {
                self.has_stopped.send(()).unwrap();
                self.goes_on.lock().unwrap().recv().unwrap();
            }
        }
    }

    struct StoppingFile<'a>(&'a Stopping, Box<dyn NewFile>);

    impl Files for &'static Stopping {
        fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
            StdFiles.read(path)
        }

        fn create(&self, path: &Path) -> io::Result<Box<dyn NewFile>> {
            Ok(Box::new(StoppingFile(self, StdFiles.create(path)?)))
        }

        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            StdFiles.rename(from, to)
        }

        fn remove(&self, path: &Path) -> io::Result<()> {
            StdFiles.remove(path)
        }

        fn sync_folder_of(&self, path: &Path) -> io::Result<()> {
            self.stop_at("folder");
            StdFiles.sync_folder_of(path)
        }
    }

    impl NewFile for StoppingFile<'_> {
        fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
            self.1.write_all(bytes)
        }

        fn sync(&mut self) -> io::Result<()> {
            self.0.stop_at("file");
            self.1.sync()
        }
    }

    /// What a swap answers whose process stands still at `at`, while another one swaps.
    async fn overtaken(at: &'static str) -> Result<RegisterVersion, SwapError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("limit");
        let register = FileRegister::new(&path);
        let first = register.swap(None, b"one".to_vec()).await.unwrap();
        let (has_stopped, stopped) = mpsc::channel();
        let (go_on, goes_on) = mpsc::channel();
        let files: &'static Stopping = Box::leak(Box::new(Stopping {
            at,
            has_stopped,
            goes_on: Arc::new(Mutex::new(goes_on)),
        }));
        let slow = FileRegister::on(Arc::new(files), &path).with_timeout(Duration::from_secs(600));
        let slow = tokio::spawn(async move { slow.swap(Some(first), b"slow".to_vec()).await });
        if at == "folder" {
            // It loads first, which syncs the folder.
            go_on.send(()).unwrap();
            tokio::task::block_in_place(|| stopped.recv().unwrap());
        }
        tokio::task::block_in_place(|| stopped.recv().unwrap());
        let found = register.load().await.unwrap().unwrap();
        let version = register.swap(Some(found.version), b"fast".to_vec());
        let version = version.await.unwrap();
        go_on.send(()).unwrap();
        let result = slow.await.unwrap();
        let found = register.load().await.unwrap().unwrap();
        assert_eq!((found.version, &*found.value), (version, &b"fast"[..]));
        register.swap(Some(version), Vec::new()).await.unwrap();
        let left = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 2, "the value and the lock");
        result
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_process_that_stands_still_in_a_swap_holds_nobody_up() {
        let written = overtaken("file").await;
        assert!(
            matches!(written, Err(SwapError::Conflict { .. })),
            "{written:?}"
        );
        assert_eq!(overtaken("folder").await, Ok(RegisterVersion(2)));
    }

    #[tokio::test]
    async fn a_missing_folder_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let register = FileRegister::new(folder.path().join("missing/limit"));
        let error = register.load().await.unwrap_err();
        assert!(matches!(error, LoadError::Unavailable { .. }), "{error}");
        let error = register.swap(None, Vec::new()).await.unwrap_err();
        assert!(matches!(error, SwapError::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains("missing"), "{error}");
    }
}
