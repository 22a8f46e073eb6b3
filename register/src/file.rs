//! The register in a file: several processes of one machine share a folder.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::files::{FileError, Files, StdFiles, beside};
use crate::{
    BoxFuture, LoadError, Register, RegisterVersion, SwapError, VersionedFile, VersionedValue,
    WriteId,
};

/// A register in a file, for processes of one machine that share its folder. It is not for file systems of a network, whose
/// locks and renames promise less.
///
/// A lock of the system (flock) on the file `NAME.lock` lets one swap run at a time, and ends with its process. The
/// blocking part runs on the runtime's threads for that; where there is no runtime, [`VersionedFile`] is the same without the
/// lock.
#[derive(Clone, Debug)]
pub struct FileRegister {
    file: VersionedFile,
    lock: PathBuf,
    timeout: Duration,
}

/// How a lock is held.
#[derive(Clone, Copy, Debug)]
enum LockMode {
    /// With other readers.
    Shared,
    /// Alone.
    Exclusive,
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
            timeout: Self::TIMEOUT,
        }
    }

    /// The same, which waits for so long in place of [`Self::TIMEOUT`].
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
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

    fn register(&self) -> String {
        self.path().display().to_string()
    }
}

impl Register for FileRegister {
    fn load(&self) -> BoxFuture<'_, Result<Option<VersionedValue>, LoadError>> {
        Box::pin(async move {
            let (file, lock) = (self.file.clone(), self.lock.clone());
            let deadline = Instant::now() + self.timeout;
            let load = blocking(self.timeout, move || {
                let _lock = lock_until(deadline, &lock, LockMode::Shared)?;
                file.load()
            });
            load.await.unwrap_or_else(|reason| {
                Err(LoadError::Unavailable {
                    register: self.register(),
                    reason,
                })
            })
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
            let deadline = Instant::now() + self.timeout;
            let swap = blocking(self.timeout, move || {
                let _lock = lock_until(deadline, &lock, LockMode::Exclusive)?;
                file.swap(expected, &value, write)
            });
            // A thread that waits for the device can't be ended: what it does may be done later.
            swap.await.unwrap_or_else(|reason| {
                Err(SwapError::Unknown {
                    register: self.register(),
                    write,
                    reason,
                })
            })
        })
    }

    fn value_bytes_max(&self) -> usize {
        self.file.value_bytes_max()
    }
}

/// Does the work on a thread that may block; an error is that it has not ended in time, or in a panic.
async fn blocking<T: Send + 'static>(
    timeout: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    match tokio::time::timeout(timeout, tokio::task::spawn_blocking(work)).await {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer from the device within {timeout:?}")),
    }
}

/// Locks the file for as long as the value lives. A new handle each time: the system's lock belongs to the handle, and would let
/// two threads in that share one.
fn lock_until(deadline: Instant, path: &Path, mode: LockMode) -> Result<File, LoadError> {
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
        let locked = match mode {
            LockMode::Shared => file.try_lock_shared(),
            LockMode::Exclusive => file.try_lock(),
        };
        match locked {
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
    use super::*;

    #[tokio::test]
    async fn a_process_that_stands_still_with_the_lock_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let register = FileRegister::new(folder.path().join("limit"));
        let version = register.swap(None, b"one".to_vec()).await.unwrap();
        let lock = File::open(folder.path().join("limit.lock")).unwrap();
        lock.lock().unwrap();
        let impatient = register.clone().with_timeout(Duration::from_millis(20));
        let error = impatient.load().await.unwrap_err();
        assert!(matches!(error, LoadError::Unavailable { .. }), "{error}");
        // The thread may not have returned in time: then the swap may still happen.
        let error = impatient.swap(Some(version), Vec::new()).await.unwrap_err();
        let is_honest = matches!(
            error,
            SwapError::Unavailable { .. } | SwapError::Unknown { .. }
        );
        assert!(is_honest, "{error}");
        drop(lock);
        let version = register.swap(Some(version), b"two".to_vec()).await.unwrap();
        assert_eq!(version, RegisterVersion(2));
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
