//! The register in a folder: several processes of one machine share it, and none of them can hold another one up.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::blocking::Blocking;
use crate::error::check_size_up_to;
use crate::files::{FileError, FolderFiles, StdFiles, sync_folder_of, write_synced};
use crate::versioned_file::{SeenVersions, damaged, decode, encode, not_swapped};
use crate::{
    BoxFuture, LoadError, Register, RegisterVersion, SwapError, VALUE_BYTES_MAX, VersionedValue,
    WriteId,
};

/// So many versions below the newest one stay: a load that has found one reads it before it is removed, as a rule, and a swap that
/// was overtaken by no more than these is known to have happened.
const KEPT_BELOW: u64 = 7;
/// What names of temporary files end with.
const TEMPORARY: &str = ".tmp";

/// A value with its version in a folder, without a runtime: what [`FolderRegister`] runs.
///
/// Each version is a file of its own, whose name is its number, and which is never written again. The highest one is the value. A swap
/// writes and syncs a temporary file, and links it to the name of the version behind the expected one, which succeeds for one of
/// several that try. Nobody waits for anybody: a process that stands still (SIGSTOP) anywhere in a swap holds no lock.
///
/// Old versions are removed, so a process that stood still for long may link a version that was there before. Then a much higher one
/// is there, and the value stays what it is: such a swap is reported as unknown, and a load shows that it was superseded.
#[derive(Clone)]
pub struct VersionedFolder {
    path: PathBuf,
    files: Arc<dyn FolderFiles>,
    value_bytes_max: usize,
    seen: Arc<SeenVersions>,
}

/// A value that is written, and not yet the register's.
struct Prepared {
    version: RegisterVersion,
    temporary: PathBuf,
}

impl fmt::Debug for VersionedFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VersionedFolder")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl VersionedFolder {
    /// The value in the folder at `path`, which need not exist yet; the folder that it is in must.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self::on(Arc::new(StdFiles), path)
    }

    /// The same, with other files than the operating system's.
    pub fn on(files: Arc<dyn FolderFiles>, path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            files,
            value_bytes_max: VALUE_BYTES_MAX,
            seen: Arc::default(),
        }
    }

    /// The same, which takes values of this size in place of [`VALUE_BYTES_MAX`]. All who use the folder need the same limit.
    #[must_use]
    pub fn with_value_bytes_max(self, value_bytes_max: usize) -> Self {
        Self {
            value_bytes_max,
            ..self
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The value; none if none was ever stored.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn load(&self) -> Result<Option<VersionedValue>, LoadError> {
        let above = || self.sync_above();
        self.seen
            .load(&self.path, || self.newest(), above, || self.sync())
    }

    /// Replaces the value if it has the expected version; durable when this returns.
    ///
    /// # Errors
    /// [`SwapError`].
    pub fn swap(
        &self,
        expected: Option<RegisterVersion>,
        value: &[u8],
        write: WriteId,
    ) -> Result<RegisterVersion, SwapError> {
        let prepared = self.prepare(expected, value, write)?;
        self.publish(expected, &prepared, write)
    }

    fn prepare(
        &self,
        expected: Option<RegisterVersion>,
        value: &[u8],
        write: WriteId,
    ) -> Result<Prepared, SwapError> {
        check_size_up_to(value, self.value_bytes_max)?;
        let found = self.load()?.map(|found| found.version);
        if found != expected {
            return Err(self.conflict(expected, found));
        }
        let Some(next) = found.map_or(Some(1), |version| version.0.checked_add(1)) else {
            return Err(self.damaged("there is no version after its own").into());
        };
        let certain = |error: FileError| not_swapped(self.register(), &error, write);
        if found.is_none() {
            let made = self.files.make_folder(&self.path);
            made.map_err(FileError::of("create", &self.path))
                .map_err(certain)?;
        }
        let version = RegisterVersion(next);
        let name = format!("{next}.{:032x}{TEMPORARY}", u128::from_le_bytes(write.0));
        let temporary = self.path.join(name);
        let written = write_synced(&*self.files, &temporary, &encode(write, version, value));
        written.map_err(certain)?;
        Ok(Prepared { version, temporary })
    }

    fn publish(
        &self,
        expected: Option<RegisterVersion>,
        prepared: &Prepared,
        write: WriteId,
    ) -> Result<RegisterVersion, SwapError> {
        let Prepared { version, temporary } = prepared;
        let name = self.file_of(*version);
        match self.files.link(temporary, &name) {
            // It has two names.
            Ok(()) => drop(self.files.remove(temporary)),
            // Another swap was first; one that has succeeded has removed the temporary files of its version.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound
                ) =>
            {
                let _ = self.files.remove(temporary);
                let found = self.newest()?.map(|found| found.version);
                return Err(self.conflict(expected, found));
            }
            // A device that fails in the middle of it doesn't say whether the name is there.
            Err(cause) => {
                drop(self.files.remove(temporary));
                let error = FileError::of("link", &name)(cause).late();
                return Err(not_swapped(self.register(), &error, write));
            }
        }
        let synced = self.sync();
        synced.map_err(|error| not_swapped(self.register(), &error.late(), write))?;
        let unknown = |reason: String| SwapError::Unknown {
            register: self.register(),
            write,
            reason,
        };
        let versions = self.versions();
        let versions = versions.map_err(|error| unknown(error.to_string()))?;
        // One that is removed lies well below the highest, so that this one's name was never there before.
        let never_removed = version.0.saturating_add(KEPT_BELOW);
        if versions.iter().any(|other| other.0 > never_removed) {
            return Err(unknown("other processes have swapped it since".to_owned()));
        }
        self.seen.swapped(*version);
        self.remove_old(*version);
        Ok(*version)
    }

    /// The highest version, as it was at some time during this call. A folder with so few names is listed by one call of the system.
    fn newest(&self) -> Result<Option<VersionedValue>, LoadError> {
        loop {
            let Some(version) = self.versions()?.into_iter().max() else {
                return Ok(None);
            };
            let file = self.file_of(version);
            match self.files.read(&file) {
                Ok(bytes) => {
                    let found = decode(bytes, self.value_bytes_max);
                    let found = found.map_err(|reason| self.damaged(reason))?;
                    if found.version != version {
                        return Err(self.damaged("a file has another version than its name"));
                    }
                    return Ok(Some(found));
                }
                // Others have gone on meanwhile, and removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(FileError::of("read", &file)(error).into()),
            }
        }
    }

    fn versions(&self) -> Result<Vec<RegisterVersion>, LoadError> {
        let names = self.names()?;
        Ok(names.iter().filter_map(|name| version_of(name)).collect())
    }

    fn names(&self) -> Result<Vec<String>, LoadError> {
        match self.files.names(&self.path) {
            Ok(names) => Ok(names),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(FileError::of("list", &self.path)(error).into()),
        }
    }

    /// Removes versions well below this one, and what swaps have left that can't succeed any more: their processes were killed, or
    /// others were first.
    fn remove_old(&self, version: RegisterVersion) {
        for name in self.names().unwrap_or_default() {
            let is_old = match (version_of(&name), version_of_temporary(&name)) {
                (Some(other), _) => other.0.saturating_add(KEPT_BELOW) < version.0,
                (None, Some(other)) => other <= version,
                (None, None) => false,
            };
            if is_old {
                // Another process may have removed it.
                let _ = self.files.remove(&self.path.join(name));
            }
        }
    }

    fn file_of(&self, version: RegisterVersion) -> PathBuf {
        self.path.join(version.to_string())
    }

    /// Makes the names in the folder durable.
    fn sync(&self) -> Result<(), FileError> {
        sync_folder_of(&*self.files, &self.path.join("1"))
    }

    /// Makes the folder's own name durable.
    fn sync_above(&self) -> Result<(), FileError> {
        sync_folder_of(&*self.files, &self.path)
    }

    fn conflict(
        &self,
        expected: Option<RegisterVersion>,
        found: Option<RegisterVersion>,
    ) -> SwapError {
        SwapError::Conflict {
            register: self.register(),
            expected,
            found,
        }
    }

    fn register(&self) -> String {
        self.path.display().to_string()
    }

    fn damaged(&self, reason: impl Into<String>) -> LoadError {
        damaged(&self.path, reason)
    }
}

/// The version of a file of this name.
fn version_of(name: &str) -> Option<RegisterVersion> {
    let is_number = !name.starts_with('0') && name.bytes().all(|byte| byte.is_ascii_digit());
    let number = name.parse().ok().filter(|_| is_number);
    number.map(RegisterVersion)
}

/// The version for which a temporary file of this name was written.
fn version_of_temporary(name: &str) -> Option<RegisterVersion> {
    let (version, _) = name.strip_suffix(TEMPORARY)?.split_once('.')?;
    version_of(version)
}

/// A register in a folder, for processes of one machine. It is not for file systems of a network, whose names promise less. How it works
/// stands at [`VersionedFolder`]; the blocking part runs on the runtime's threads for that.
#[derive(Clone, Debug)]
pub struct FolderRegister {
    folder: VersionedFolder,
    blocking: Blocking,
}

impl FolderRegister {
    /// A device that takes longer is not waited for.
    pub const TIMEOUT: Duration = Duration::from_secs(5);

    /// The register in the folder at `path`, which need not exist yet; the folder that it is in must.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self::on(Arc::new(StdFiles), path)
    }

    /// The same, with other files than the operating system's.
    pub fn on(files: Arc<dyn FolderFiles>, path: impl Into<PathBuf>) -> Self {
        Self {
            folder: VersionedFolder::on(files, path),
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

    /// The same, which takes values of this size in place of [`VALUE_BYTES_MAX`]: a register that is never moved to another store.
    /// All who use the folder need the same limit.
    #[must_use]
    pub fn with_value_bytes_max(self, value_bytes_max: usize) -> Self {
        Self {
            folder: self.folder.with_value_bytes_max(value_bytes_max),
            ..self
        }
    }
}

impl Register for FolderRegister {
    fn load(&self) -> BoxFuture<'_, Result<Option<VersionedValue>, LoadError>> {
        Box::pin(async move {
            let folder = self.folder.clone();
            let load = move || folder.load();
            self.blocking.load(self.folder.path(), load).await
        })
    }

    fn swap(
        &self,
        expected: Option<RegisterVersion>,
        value: Vec<u8>,
    ) -> BoxFuture<'_, Result<RegisterVersion, SwapError>> {
        Box::pin(async move {
            let (folder, write) = (self.folder.clone(), WriteId::random());
            let swap = move || folder.swap(expected, &value, write);
            self.blocking.swap(self.folder.path(), write, swap).await
        })
    }

    fn value_bytes_max(&self) -> usize {
        self.folder.value_bytes_max
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::files::testing::FullDevice;

    const ONE: WriteId = WriteId([1; 16]);
    const SLOW: WriteId = WriteId([9; 16]);

    fn folder() -> (tempfile::TempDir, VersionedFolder) {
        let place = tempfile::tempdir().unwrap();
        let folder = VersionedFolder::new(place.path().join("limit"));
        (place, folder)
    }

    /// Of another process.
    fn other(folder: &VersionedFolder) -> VersionedFolder {
        VersionedFolder::new(folder.path())
    }

    fn swap_on(folder: &VersionedFolder, swaps: u64) -> RegisterVersion {
        let mut last = None;
        for _ in 0..swaps {
            let expected = folder.load().unwrap().map(|found| found.version);
            last = Some(folder.swap(expected, b"fast", ONE).unwrap());
        }
        last.unwrap()
    }

    /// It stands still when its value is written: others go on, by one version or by many, and it changes nothing when it goes on.
    #[test]
    fn a_process_that_stands_still_in_a_swap_holds_nobody_up() {
        for swaps in [1, 2, KEPT_BELOW + 5] {
            let (_place, folder) = folder();
            let first = folder.swap(None, b"one", ONE).unwrap();
            let slow = other(&folder);
            let prepared = slow.prepare(Some(first), b"slow", SLOW).unwrap();
            let last = swap_on(&folder, swaps);
            let late = slow.publish(Some(first), &prepared, SLOW).unwrap_err();
            match late {
                SwapError::Conflict { found, .. } => assert_eq!(found, Some(last)),
                // The version that it wanted was there, and is removed: it may not say that this swap never was.
                SwapError::Unknown { write, .. } => assert!(write == SLOW && swaps > 2),
                other => panic!("{other}"),
            }
            let found = slow.load().unwrap().unwrap();
            assert_eq!((found.version, &*found.value), (last, &b"fast"[..]));
            assert_eq!(folder.load().unwrap().unwrap(), found);
            swap_on(&folder, 1);
        }
    }

    /// It stands still behind its link: others see its value, and go on from there.
    #[test]
    fn what_is_linked_is_swapped() {
        let (_place, folder) = folder();
        let first = folder.swap(None, b"one", ONE).unwrap();
        let slow = other(&folder);
        let prepared = slow.prepare(Some(first), b"slow", SLOW).unwrap();
        fs::hard_link(&prepared.temporary, slow.file_of(prepared.version)).unwrap();
        let found = folder.load().unwrap().unwrap();
        assert_eq!((found.version, found.write), (prepared.version, SLOW));
        folder.swap(Some(found.version), b"two", ONE).unwrap();
    }

    #[test]
    fn old_versions_and_what_killed_processes_have_left_are_removed() {
        let (_place, folder) = folder();
        let first = folder.swap(None, b"one", ONE).unwrap();
        other(&folder)
            .prepare(Some(first), b"killed", SLOW)
            .unwrap();
        let last = swap_on(&folder, 20);
        let mut names = folder.names().unwrap();
        names.sort();
        let kept: Vec<String> = (last.0 - KEPT_BELOW..=last.0)
            .map(|it| it.to_string())
            .collect();
        assert_eq!(names, kept);
    }

    #[test]
    fn what_no_register_stored_is_an_error_that_names_the_folder() {
        let (_place, folder) = folder();
        folder.swap(None, b"one", ONE).unwrap();
        let other_version = encode(ONE, RegisterVersion(7), b"value");
        for bytes in [&b""[..], b"{}", &other_version] {
            fs::write(folder.path().join("3"), bytes).unwrap();
            let error = folder.load().unwrap_err();
            assert!(matches!(error, LoadError::Damaged { .. }), "{error}");
            assert!(error.to_string().contains("limit"), "{error}");
        }
    }

    #[test]
    fn an_older_copy_and_a_missing_folder_are_noticed() {
        let (_place, folder) = folder();
        swap_on(&folder, 3);
        let unused = other(&folder);
        fs::remove_file(folder.path().join("3")).unwrap();
        assert!(matches!(folder.load(), Err(LoadError::Damaged { .. })));
        assert_eq!(unused.load().unwrap().unwrap().version, RegisterVersion(2));
        fs::remove_dir_all(folder.path()).unwrap();
        assert!(matches!(folder.load(), Err(LoadError::Damaged { .. })));
        assert_eq!(other(&folder).load(), Ok(None));
    }

    #[tokio::test]
    async fn a_missing_folder_around_it_is_reported() {
        let place = tempfile::tempdir().unwrap();
        let register = FolderRegister::new(place.path().join("missing/limit"));
        let error = register.load().await.unwrap_err();
        assert!(matches!(error, LoadError::Unavailable { .. }), "{error}");
        let error = register.swap(None, Vec::new()).await.unwrap_err();
        assert!(matches!(error, SwapError::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains("missing"), "{error}");
    }

    /// Otherwise each try would take a part of the room that the next one needs.
    #[test]
    fn what_finds_no_room_leaves_nothing_behind() {
        let (_place, folder) = folder();
        let first = folder.swap(None, b"one", ONE).unwrap();
        let full = VersionedFolder::on(Arc::new(FullDevice), folder.path());
        for number in 0..3 {
            let refused = full.swap(Some(first), b"two", WriteId([number; 16]));
            assert!(refused.is_err());
        }
        let names = StdFiles.names(folder.path()).unwrap();
        assert_eq!(names.len(), 1, "{names:?}");
    }
}
