//! The lock of a machine's Kubernetes for tests. A process that starts or stops it holds the lock, which ends with the process,
//! even if that is killed. A kill leaves a small file, which the next process removes.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{Read as _, Seek as _, Write as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

/// The same for all checkouts and users: there is one such cluster on a machine.
const FILE: &str = "/run/percolator-kube.lock";
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Held until it is dropped, or the process ends.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    _file: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // While it is held: anyone who has opened it meanwhile finds that it has no name any more.
        let _ = fs::remove_file(&self.path);
    }
}

/// Takes the lock, for `what`; while another process has it, names that process, and waits that long.
///
/// # Errors
/// Another process has it still; or nobody may write there.
pub fn take(what: &str, wait_max: Duration) -> anyhow::Result<Lock> {
    take_at(Path::new(FILE), what, wait_max)
}

fn take_at(path: &Path, what: &str, wait_max: Duration) -> anyhow::Result<Lock> {
    let started = Instant::now();
    let mut printed = String::new();
    loop {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => {
                // Anyone who had it before may have removed it since.
                let is_it = |named: fs::Metadata| file.metadata().map(|it| it.ino() == named.ino());
                if !fs::metadata(path).and_then(is_it).unwrap_or(false) {
                    continue;
                }
                file.set_len(0)?;
                file.rewind()?;
                let folder = std::env::current_dir().unwrap_or_default();
                let me = std::process::id();
                write!(file, "{what}, process {me}, in {}", folder.display())?;
                let path = path.to_owned();
                return Ok(Lock { path, _file: file });
            }
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", path.display()));
            }
        }
        let mut holder = String::new();
        // The holder may not have written its name yet.
        let _ = file.read_to_string(&mut holder);
        if started.elapsed() >= wait_max {
            bail!(
                "another run uses the Kubernetes for tests of this machine, and there is one: {holder}; wait until it has \
                 ended"
            );
        }
        if holder != printed {
            println!("waiting for another run on this machine: {holder}");
            printed = holder;
        }
        thread::sleep(RETRY_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holds_it_at_a_time_and_the_other_is_named_the_holder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let first = take_at(&path, "kube up", Duration::ZERO).unwrap();
        let refused = take_at(&path, "kube down", Duration::from_millis(1)).unwrap_err();
        let refused = format!("{refused:#}");
        let me = format!("kube up, process {}, in /", std::process::id());
        assert!(refused.contains(&me), "{refused}");
        drop(first);
        assert!(!path.exists(), "nothing stays");
        drop(take_at(&path, "kube down", Duration::ZERO).unwrap());
        assert!(!path.exists());
    }

    #[test]
    fn who_waits_gets_it_when_the_other_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let first = take_at(&path, "a", Duration::ZERO).unwrap();
        thread::scope(|scope| {
            let second = scope.spawn(|| take_at(&path, "b", Duration::from_secs(600)));
            thread::sleep(Duration::from_millis(50));
            drop(first);
            let second = second.join().unwrap().unwrap();
            assert!(fs::read_to_string(&path).unwrap().starts_with("b, "));
            drop(second);
        });
    }

    #[test]
    fn what_a_killed_process_left_is_no_lock() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        fs::write(
            &path,
            "somebody, process 1, in /nowhere, with a long name at the end",
        )
        .unwrap();
        let lock = take_at(&path, "a", Duration::ZERO).unwrap();
        assert!(!fs::read_to_string(&path).unwrap().contains("somebody"));
        drop(lock);
        assert!(!path.exists());
    }
}
