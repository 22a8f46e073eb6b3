//! A register's file, without a runtime: what [`FileRegister`](crate::FileRegister) runs with a lock.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::check_size_up_to;
use crate::files::{FileError, Files, StdFiles, beside, replace, sync_folder_of, write_synced};
use crate::{
    LoadError, RegisterVersion, StoredRecord, SwapError, VALUE_BYTES_MAX, VersionFloor,
    VersionedValue, WriteId,
};

const VERSION_BYTES: usize = 8;
/// What names of temporary files end with.
const TEMPORARY: &str = ".tmp";

/// A value with its version in a file, which is a [`StoredRecord`] of the version (8 bytes, little endian) and the value.
///
/// The caller sees to it that only one swap of a path runs at a time. A crash between any two steps leaves the old
/// value or the new one; what a load has returned stays.
#[derive(Clone)]
pub struct VersionedFile {
    path: PathBuf,
    files: Arc<dyn Files>,
    value_bytes_max: usize,
    seen: Arc<SeenVersions>,
}

#[derive(Debug, Default)]
pub(crate) struct SeenVersions {
    floor: VersionFloor,
    /// The highest version whose name is known to be durable; 0 for none.
    durable: AtomicU64,
}

impl SeenVersions {
    /// The value that `read` finds at this path. `sync_above` fails if the folder is away that the register is in, and makes the
    /// register's own name durable; `sync_names` does that for the names in which its versions are.
    pub(crate) fn load(
        &self,
        path: &Path,
        read: impl Fn() -> Result<Option<VersionedValue>, LoadError>,
        sync_above: impl Fn() -> Result<(), FileError>,
        sync_names: impl Fn() -> Result<(), FileError>,
    ) -> Result<Option<VersionedValue>, LoadError> {
        let least = self.floor.get();
        let mut found = read()?;
        if found.is_none() {
            // A folder that is away has no value either, and may have had one.
            sync_above()?;
            found = read()?;
        }
        let version = found.as_ref().map(|found| found.version);
        let checked = self.floor.check(least, version);
        checked.map_err(|reason| damaged(path, reason))?;
        // The process that put it there may have died before the name was durable. What is returned here must not be
        // undone by a crash of the machine.
        if let Some(RegisterVersion(version)) = version
            && self.durable.load(Ordering::Acquire) < version
        {
            sync_above()?;
            sync_names()?;
            self.durable.fetch_max(version, Ordering::AcqRel);
        }
        Ok(found)
    }

    /// This version is durable, and was the register's.
    pub(crate) fn swapped(&self, version: RegisterVersion) {
        self.floor.raise(version);
        self.durable.fetch_max(version.0, Ordering::AcqRel);
    }
}

pub(crate) fn damaged(path: &Path, reason: impl Into<String>) -> LoadError {
    LoadError::Damaged {
        register: path.display().to_string(),
        reason: reason.into(),
    }
}

/// The bytes of a value of this version.
pub(crate) fn encode(write: WriteId, version: RegisterVersion, value: &[u8]) -> Vec<u8> {
    StoredRecord::encode(write, &[&version.0.to_le_bytes(), value])
}

/// The value that [`encode`] has made these bytes of, which may be so large.
///
/// # Errors
/// What is wrong with them.
pub(crate) fn decode(bytes: Vec<u8>, value_bytes_max: usize) -> Result<VersionedValue, String> {
    let StoredRecord { write, mut value } = StoredRecord::decode(bytes)?;
    let rest = value.split_at_checked(VERSION_BYTES);
    let version = rest.and_then(|(version, _)| version.try_into().ok());
    let version = version.map_or(0, u64::from_le_bytes);
    if version == 0 || value.len() > VERSION_BYTES + value_bytes_max {
        return Err("it has no version, or too many bytes".to_owned());
    }
    Ok(VersionedValue {
        value: value.split_off(VERSION_BYTES),
        version: RegisterVersion(version),
        write,
    })
}

/// Converts an error of the files to one of a swap.
pub(crate) fn not_swapped(register: String, error: &FileError, write: WriteId) -> SwapError {
    let reason = error.to_string();
    if error.may_be_replaced {
        SwapError::Unknown {
            register,
            write,
            reason,
        }
    } else if error.is_refusal() {
        SwapError::Refused { register, reason }
    } else {
        SwapError::Unavailable { register, reason }
    }
}

impl fmt::Debug for VersionedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VersionedFile")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl VersionedFile {
    /// The value in the file at `path`, which need not exist yet; its folder must.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self::on(Arc::new(StdFiles), path)
    }

    /// The same, with other files than the operating system's.
    pub fn on(files: Arc<dyn Files>, path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            files,
            value_bytes_max: VALUE_BYTES_MAX,
            seen: Arc::default(),
        }
    }

    /// The same, which takes values of this size in place of [`VALUE_BYTES_MAX`]. All who use the file need the same limit.
    #[must_use]
    pub fn with_value_bytes_max(self, value_bytes_max: usize) -> Self {
        Self {
            value_bytes_max,
            ..self
        }
    }

    /// The most bytes that a value may have.
    pub fn value_bytes_max(&self) -> usize {
        self.value_bytes_max
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The value; none if none was ever stored.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn load(&self) -> Result<Option<VersionedValue>, LoadError> {
        // The version is in the file itself: there are no names but its own.
        let above = || sync_folder_of(&*self.files, &self.path);
        self.seen.load(&self.path, || self.read(), above, || Ok(()))
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
        self.swap_under(expected, value, write, || Ok(()))
    }

    /// The same for several swaps at a time. `lock` lets one of them go on; the lock is held only while the file's start is read and
    /// the file is renamed, so that a process which stands still anywhere else blocks no other.
    pub(crate) fn swap_under<L>(
        &self,
        expected: Option<RegisterVersion>,
        value: &[u8],
        write: WriteId,
        lock: impl FnOnce() -> Result<L, LoadError>,
    ) -> Result<RegisterVersion, SwapError> {
        check_size_up_to(value, self.value_bytes_max)?;
        let found = self.load()?.map(|found| (found.version, found.write));
        let version = found.map(|(version, _)| version);
        if version != expected {
            return Err(self.conflict(expected, version));
        }
        let Some(next) = version.map_or(Some(1), |version| version.0.checked_add(1)) else {
            return Err(self.damaged("there is no version after its own").into());
        };
        let bytes = encode(write, RegisterVersion(next), value);
        let temporary = self.temporary(RegisterVersion(next), write);
        let not_swapped = |error: FileError| not_swapped(self.register(), &error, write);
        write_synced(&*self.files, &temporary, &bytes).map_err(not_swapped)?;
        let put = || {
            let _lock = lock()?;
            if !self.is_still(found)? {
                let found = self.read()?.map(|found| found.version);
                return Err(self.conflict(expected, found));
            }
            replace(&*self.files, &temporary, &self.path).map_err(not_swapped)
        };
        put().inspect_err(|_| {
            // It takes room that the next try needs.
            let _ = self.files.remove(&temporary);
        })?;
        // Others may read the new value before: they see to it themselves that it is durable.
        let synced = sync_folder_of(&*self.files, &self.path);
        synced.map_err(|error| not_swapped(error.late()))?;
        self.seen.swapped(RegisterVersion(next));
        Ok(RegisterVersion(next))
    }

    /// Whether the file still has the value of this version and write. Only its start is read: it is only ever replaced as a whole.
    fn is_still(&self, found: Option<(RegisterVersion, WriteId)>) -> Result<bool, LoadError> {
        let start_bytes = StoredRecord::HEADER_BYTES + VERSION_BYTES;
        match (self.files.read_start(&self.path, start_bytes), found) {
            (Ok(start), Some((version, write))) => {
                let version = version.0.to_le_bytes();
                Ok(StoredRecord::begins(&start, write, &version))
            }
            (Ok(_), None) => Ok(false),
            (Err(error), found) if error.kind() == io::ErrorKind::NotFound => Ok(found.is_none()),
            (Err(error), _) => Err(FileError::of("read", &self.path)(error).into()),
        }
    }

    /// The file in which a swap writes the value of this version.
    fn temporary(&self, version: RegisterVersion, write: WriteId) -> PathBuf {
        let write = u128::from_le_bytes(write.0);
        beside(&self.path, &format!(".{version}.{write:032x}{TEMPORARY}"))
    }

    /// The version for which a file of this name was written, if it is a swap's temporary one.
    pub(crate) fn version_of_temporary(&self, name: &str) -> Option<RegisterVersion> {
        let own = self.path.file_name()?.to_str()?;
        let rest = name.strip_prefix(own)?.strip_prefix('.')?;
        let (version, write) = rest.strip_suffix(TEMPORARY)?.split_once('.')?;
        let is_write = write.len() == 32 && write.bytes().all(|byte| byte.is_ascii_hexdigit());
        version
            .parse()
            .ok()
            .filter(|_| is_write)
            .map(RegisterVersion)
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

    fn read(&self) -> Result<Option<VersionedValue>, LoadError> {
        let bytes = match self.files.read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(FileError::of("read", &self.path)(error).into()),
        };
        let found = decode(bytes, self.value_bytes_max).map_err(|reason| self.damaged(reason))?;
        Ok(Some(found))
    }

    fn register(&self) -> String {
        self.path.display().to_string()
    }

    fn damaged(&self, reason: impl Into<String>) -> LoadError {
        damaged(&self.path, reason)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::{fs, io};

    use super::*;
    use crate::files::testing::FullDevice;
    use crate::files::{NewFile, StdFiles};

    /// The system's files; no folder can be synced while this is set.
    #[derive(Default)]
    struct Unsynced(AtomicBool);

    impl Files for Unsynced {
        fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
            StdFiles.read(path)
        }

        fn create(&self, path: &Path) -> io::Result<Box<dyn NewFile>> {
            StdFiles.create(path)
        }

        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            StdFiles.rename(from, to)
        }

        fn remove(&self, path: &Path) -> io::Result<()> {
            StdFiles.remove(path)
        }

        fn sync_folder_of(&self, path: &Path) -> io::Result<()> {
            if self.0.load(Ordering::Relaxed) {
                return Err(io::Error::other("the device fails"));
            }
            StdFiles.sync_folder_of(path)
        }
    }

    /// Another process has stored it, and it is unknown whether its name is durable.
    #[test]
    fn nothing_is_loaded_before_the_folder_is_synced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("limit");
        let stored = VersionedFile::new(&path).swap(None, b"one", WriteId([1; 16]));
        let files = Arc::new(Unsynced(AtomicBool::new(true)));
        let file = VersionedFile::on(files.clone(), &path);
        for attempt in 0..2 {
            let loaded = file.load();
            assert!(
                matches!(loaded, Err(LoadError::Unavailable { .. })),
                "{attempt}: {loaded:?}"
            );
        }
        files.0.store(false, Ordering::Relaxed);
        let loaded = file.load().unwrap().map(|found| found.version);
        assert_eq!(loaded, stored.ok());
        // It is known to be durable then.
        files.0.store(true, Ordering::Relaxed);
        assert!(file.load().is_ok());
    }

    #[test]
    fn what_no_register_stored_is_an_error_that_names_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = VersionedFile::new(folder.path().join("limit"));
        let none = StoredRecord::encode(WriteId([1; 16]), &[b"short"]);
        let zero = StoredRecord::encode(WriteId([1; 16]), &[&[0; 8], b"value"]);
        for bytes in [&b""[..], b"{}", &none, &zero] {
            fs::write(file.path(), bytes).unwrap();
            let error = file.load().unwrap_err();
            assert!(matches!(error, LoadError::Damaged { .. }), "{error}");
            assert!(error.to_string().contains("limit"), "{error}");
            let error = file.swap(None, b"value", WriteId([2; 16])).unwrap_err();
            assert!(matches!(error, SwapError::Damaged { .. }), "{error}");
        }
    }

    #[test]
    fn an_older_copy_and_a_missing_file_are_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let file = VersionedFile::new(folder.path().join("limit"));
        let first = file.swap(None, b"one", WriteId([1; 16])).unwrap();
        let copy = fs::read(file.path()).unwrap();
        file.swap(Some(first), b"two", WriteId([2; 16])).unwrap();
        fs::write(file.path(), copy).unwrap();
        assert!(matches!(file.load(), Err(LoadError::Damaged { .. })));
        fs::remove_file(file.path()).unwrap();
        assert!(matches!(file.load(), Err(LoadError::Damaged { .. })));
        let other = VersionedFile::new(file.path());
        assert_eq!(other.load(), Ok(None));
    }

    /// Otherwise each try would take a part of the room that the next one needs.
    #[test]
    fn what_finds_no_room_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("limit");
        let file = VersionedFile::new(&path);
        let first = file.swap(None, b"one", WriteId([1; 16])).unwrap();
        let full = VersionedFile::on(Arc::new(FullDevice), &path);
        for number in 0..3 {
            let refused = full.swap(Some(first), b"two", WriteId([number; 16]));
            assert!(refused.is_err());
            // Nor does one that is written, and doesn't get the lock, or comes too late.
            let locked = || {
                Err::<(), _>(LoadError::Unavailable {
                    register: "limit".to_owned(),
                    reason: "another process holds the lock".to_owned(),
                })
            };
            let refused = file.swap_under(Some(first), b"two", WriteId([number; 16]), locked);
            assert!(refused.is_err());
        }
        let late = file.swap_under(Some(first), b"late", WriteId([2; 16]), || {
            let other = VersionedFile::new(&path).swap(Some(first), b"two", WriteId([3; 16]));
            other.expect("it is first");
            Ok(())
        });
        assert!(matches!(late, Err(SwapError::Conflict { .. })), "{late:?}");
        let names: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["limit"]);
    }

    #[test]
    fn the_last_version_has_no_successor() {
        let folder = tempfile::tempdir().unwrap();
        let file = VersionedFile::new(folder.path().join("limit"));
        let last = StoredRecord::encode(WriteId([1; 16]), &[&u64::MAX.to_le_bytes()]);
        fs::write(file.path(), last).unwrap();
        let error = file.swap(Some(RegisterVersion(u64::MAX)), b"value", WriteId([2; 16]));
        assert!(matches!(error, Err(SwapError::Damaged { .. })), "{error:?}");
    }
}
