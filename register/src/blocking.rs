//! Registers whose work blocks a thread: it runs on the runtime's threads for that, and is not waited for beyond a time.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use crate::{LoadError, RegisterVersion, SwapError, VersionedValue, WriteId};

/// How the work of a register runs: one call at a time. A thread that waits for the device can't be ended, and the runtime has
/// threads for that in common with everything else in the process: of these, a device that hangs takes one.
#[derive(Clone, Debug)]
pub(crate) struct Blocking {
    timeout: Duration,
    /// Held by the thread until it has returned.
    turn: Arc<Mutex<()>>,
}

/// Why work has no result.
enum NoResult {
    /// It has not begun, and won't.
    NeverBegun(String),
    /// It may be done, now or later.
    Unknown(String),
}

impl Blocking {
    /// Work that is waited for so long.
    pub(crate) fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            turn: Arc::default(),
        }
    }

    /// The same, which waits for so long.
    pub(crate) fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// How long work is waited for.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Loads the register at this path.
    pub(crate) async fn load(
        &self,
        path: &Path,
        load: impl FnOnce() -> Result<Option<VersionedValue>, LoadError> + Send + 'static,
    ) -> Result<Option<VersionedValue>, LoadError> {
        let loaded = self.within_time(load).await;
        loaded.unwrap_or_else(|none| {
            let (NoResult::NeverBegun(reason) | NoResult::Unknown(reason)) = none;
            Err(LoadError::Unavailable {
                register: path.display().to_string(),
                reason,
            })
        })
    }

    /// Swaps the value of the register at this path. A thread that waits for the device can't be ended: what it does may be done later.
    pub(crate) async fn swap(
        &self,
        path: &Path,
        write: WriteId,
        swap: impl FnOnce() -> Result<RegisterVersion, SwapError> + Send + 'static,
    ) -> Result<RegisterVersion, SwapError> {
        let swapped = self.within_time(swap).await;
        let register = || path.display().to_string();
        swapped.unwrap_or_else(|none| {
            Err(match none {
                NoResult::NeverBegun(reason) => SwapError::Unavailable {
                    register: register(),
                    reason,
                },
                NoResult::Unknown(reason) => SwapError::Unknown {
                    register: register(),
                    write,
                    reason,
                },
            })
        })
    }

    /// Does the work on a thread that may block, when that of the call before has returned.
    async fn within_time<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NoResult> {
        let timeout = self.timeout;
        let mut has_begun = false;
        let done = tokio::time::timeout(timeout, async {
            let turn = self.turn.clone().lock_owned().await;
            has_begun = true;
            tokio::task::spawn_blocking(move || {
                let _turn = turn;
                work()
            })
            .await
        });
        match done.await {
            Ok(Ok(result)) => Ok(result),
            // It has panicked.
            Ok(Err(error)) => Err(NoResult::Unknown(error.to_string())),
            Err(_) if has_begun => Err(NoResult::Unknown(format!(
                "no answer from the device within {timeout:?}"
            ))),
            Err(_) => Err(NoResult::NeverBegun(format!(
                "no answer from the device to an earlier request within {timeout:?}"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::mpsc;

    use super::*;
    use crate::files::{Files, FolderFiles, NewFile, StdFiles};
    use crate::{FolderRegister, Register};

    /// Files of a device that answers nothing until the test ends.
    struct Hanging(std::sync::Mutex<mpsc::Receiver<()>>);

    impl Hanging {
        fn hang<T>(&self) -> io::Result<T> {
            let ends = self.0.lock().expect("no panic");
            let _ = ends.recv();
            Err(io::Error::other("the test has ended"))
        }
    }

    impl Files for Hanging {
        fn read(&self, _: &Path) -> io::Result<Vec<u8>> {
            self.hang()
        }

        fn create(&self, _: &Path) -> io::Result<Box<dyn NewFile>> {
            self.hang()
        }

        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            StdFiles.rename(from, to)
        }

        fn remove(&self, path: &Path) -> io::Result<()> {
            StdFiles.remove(path)
        }

        fn sync_folder_of(&self, _: &Path) -> io::Result<()> {
            self.hang()
        }
    }

    impl FolderFiles for Hanging {
        fn make_folder(&self, _: &Path) -> io::Result<()> {
            self.hang()
        }

        fn names(&self, _: &Path) -> io::Result<Vec<String>> {
            self.hang()
        }

        fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
            StdFiles.link(from, to)
        }
    }

    /// Others have work for such threads, too: the resolution of names, other files.
    #[test]
    fn a_device_that_hangs_takes_one_thread() {
        const THREADS: usize = 4;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(THREADS)
            .enable_time()
            .build()
            .expect("a runtime");
        // Dropped before the runtime, which waits for its threads.
        let (_ends, until_then) = mpsc::channel();
        let files = Arc::new(Hanging(std::sync::Mutex::new(until_then)));
        let register = FolderRegister::on(files, "limit").with_timeout(Duration::from_millis(10));
        runtime.block_on(async {
            let first = register.swap(None, Vec::new()).await;
            assert!(matches!(first, Err(SwapError::Unknown { .. })), "{first:?}");
            for _ in 0..2 * THREADS {
                let swapped = register.swap(None, Vec::new()).await;
                let is_certain = matches!(swapped, Err(SwapError::Unavailable { .. }));
                assert!(is_certain, "{swapped:?}");
                let loaded = register.load().await;
                let is_away = matches!(loaded, Err(LoadError::Unavailable { .. }));
                assert!(is_away, "{loaded:?}");
            }
            let other = tokio::task::spawn_blocking(|| 7);
            let other = tokio::time::timeout(Duration::from_secs(60), other).await;
            assert_eq!(other.expect("a thread is left").expect("no panic"), 7);
        });
    }
}
