//! The few file operations the commit log needs, so that a simulator can stand in for the device.
//!
//! Only what `sync_data` (a file's content) and `sync_folder` (which files there are) have confirmed
//! survives a power loss; a simulator may lose or tear anything else.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// One folder of files, by plain name.
pub trait Disk: Send + Sync {
    /// Creates `name`, which must not be there yet, to append to it.
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// All of the file.
    fn read(&self, name: &str) -> io::Result<Vec<u8>>;
    /// Names of all files, in any order.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Removes the file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Cuts the file to `len` bytes and syncs it.
    fn truncate(&self, name: &str, len: u64) -> io::Result<()>;
    /// Makes creations and removals durable.
    fn sync_folder(&self) -> io::Result<()>;
    /// Free space in bytes, if that can be told.
    fn free_bytes(&self) -> io::Result<Option<u64>>;
}

/// A file open for appending.
pub trait DiskFile: Send {
    /// Writes all of `bytes` at the end. After an error any part of them may be there.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Makes content and length durable (fdatasync); how long that took.
    fn sync_data(&mut self) -> io::Result<Duration>;
    /// Cuts the file to `len` bytes, without a sync.
    fn truncate(&mut self, len: u64) -> io::Result<()>;
}

/// A folder of the operating system.
#[derive(Debug)]
pub struct StdDisk {
    folder: PathBuf,
}

impl StdDisk {
    /// The folder at `folder`; made, durably, if it is not there.
    pub fn open(folder: &Path) -> io::Result<StdDisk> {
        create_folder(folder)?;
        Ok(StdDisk {
            folder: folder.to_owned(),
        })
    }
}

impl Disk for StdDisk {
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new()
            .append(true)
            .create_new(true)
            .open(self.folder.join(name))?;
        Ok(Box::new(StdFile { file }))
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        fs::read(self.folder.join(name))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        fs::read_dir(&self.folder)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.folder.join(name))
    }

    fn truncate(&self, name: &str, len: u64) -> io::Result<()> {
        let file = OpenOptions::new()
            .write(true)
            .open(self.folder.join(name))?;
        file.set_len(len)?;
        file.sync_all()
    }

    fn sync_folder(&self) -> io::Result<()> {
        sync_folder(&self.folder)
    }

    fn free_bytes(&self) -> io::Result<Option<u64>> {
        free_bytes(&self.folder).map(Some)
    }
}

struct StdFile {
    file: File,
}

impl DiskFile for StdFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    fn sync_data(&mut self) -> io::Result<Duration> {
        let start = Instant::now();
        self.file.sync_data()?;
        Ok(start.elapsed())
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
}

/// Free space where `folder` lies, in bytes.
pub(crate) fn free_bytes(folder: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(folder)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Makes `folder` and what is missing above it, each durably.
pub(crate) fn create_folder(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let parent = folder
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent {
        create_folder(parent)?;
    }
    match fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    sync_folder(parent.unwrap_or(Path::new(".")))
}

/// Makes durable which files are in `folder`.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// True if it failed for want of space.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}
