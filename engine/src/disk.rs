//! The few file operations the write-ahead log needs, so that a simulator can stand in for the device.
//!
//! Only what `sync_data` (a file's content) and `sync_folder` (which files there are) have confirmed
//! survives a power loss; a simulator may lose or tear anything else.
//!
//! A new file may be an old one under another name, that is written over: its blocks and its length are on
//! the device already, and a sync then needs no commit of the file system's journal. Measured on ext4:
//! 0.10 ms and one request to the device, not 0.17 ms and two. So behind what was appended may lie anything.

use std::{
    fs::{self, File, OpenOptions},
    io,
    ops::ControlFlow,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// One folder of files, by plain name.
pub trait Disk: Send + Sync {
    /// Creates `name`, which must not be there yet, to append to it from its beginning. It may hold
    /// anything.
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// All of the file.
    fn read(&self, name: &str) -> io::Result<Vec<u8>>;
    /// Names of all files, in any order.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Removes the file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Writes all of the file anew, in its place, and syncs it. What an earlier process could not sync may be read from
    /// memory and not be on the device, and a sync alone doesn't bring it there.
    fn rewrite(&self, name: &str, content: &[u8]) -> io::Result<()>;
    /// Makes creations and removals durable.
    fn sync_folder(&self) -> io::Result<()>;
    /// Free space in bytes, if it is known.
    fn free_bytes(&self) -> io::Result<Option<u64>>;
    /// Makes ready, where that helps, what the next file of about `bytes` is created from. Takes its time: `rest` is called
    /// between its parts, with what the last one took, and may break it off. Without, nobody waits for the device meanwhile.
    fn prepare(&self, bytes: u64, rest: Option<Pause<'_>>) -> io::Result<()> {
        let _ = (bytes, rest);
        Ok(())
    }
}

/// Rests between two parts of long work, of which the last took so long; says whether it goes on.
pub type Pause<'a> = &'a dyn Fn(Duration) -> ControlFlow<()>;

/// A file open for appending.
pub trait DiskFile: Send {
    /// Writes all of `bytes` behind what was appended before. After an error any part of them may be there.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Makes content and length durable (fdatasync); how long that took.
    fn sync_data(&mut self) -> io::Result<Duration>;
    /// Cuts the file to `len` bytes, without a sync, and goes on there.
    fn truncate(&mut self, len: u64) -> io::Result<()>;
}

/// The file that the next one is made of.
const SPARE: &str = "spare";
/// While it is filled.
const SPARE_NEW: &str = "spare.new";
/// Smaller files are not kept as a spare.
const SPARE_BYTES_MIN: u64 = 1 << 20;
/// A spare is filled and synced in parts of this size, so that nobody waits long meanwhile: neither commits, nor those
/// whose processor the system takes while it writes.
const SPARE_PART_BYTES: usize = 64 << 10;
/// And in larger ones where there is nobody who could wait.
const SPARE_PART_ALONE_BYTES: usize = 1 << 20;
/// No spare is made where it would take more than this part of the free space.
const SPARE_PART_OF_FREE: u64 = 16;

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

impl StdDisk {
    /// Whether a file of this many bytes is worth its room.
    fn wants_spare(&self, bytes: u64) -> io::Result<bool> {
        let room = free_bytes(&self.folder)? / SPARE_PART_OF_FREE >= bytes;
        Ok(bytes >= SPARE_BYTES_MIN && room && !self.folder.join(SPARE).exists())
    }
}

impl Disk for StdDisk {
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let path = self.folder.join(name);
        let spare = self.folder.join(SPARE);
        let mut options = OpenOptions::new();
        options.write(true);
        // Checked first, because a rename writes over what is there.
        let file = if !path.exists() && fs::rename(&spare, &path).is_ok() {
            options.open(&path)?
        } else {
            options.create_new(true).open(&path)?
        };
        Ok(Box::new(StdFile { file, len: 0 }))
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
        let (path, spare) = (self.folder.join(name), self.folder.join(SPARE));
        if self.wants_spare(fs::metadata(&path)?.len())? {
            fs::rename(path, spare)
        } else {
            fs::remove_file(path)
        }
    }

    fn rewrite(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let file = OpenOptions::new()
            .write(true)
            .open(self.folder.join(name))?;
        // In place: a full disk has no room for a copy.
        file.write_all_at(content, 0)?;
        file.set_len(content.len() as u64)?;
        file.sync_all()
    }

    fn sync_folder(&self) -> io::Result<()> {
        sync_folder(&self.folder)
    }

    fn free_bytes(&self) -> io::Result<Option<u64>> {
        free_bytes(&self.folder).map(Some)
    }

    fn prepare(&self, bytes: u64, rest: Option<Pause<'_>>) -> io::Result<()> {
        if !self.wants_spare(bytes)? {
            return Ok(());
        }
        let new = self.folder.join(SPARE_NEW);
        let filled =
            fill(&new, bytes, rest).and_then(|()| fs::rename(&new, self.folder.join(SPARE)));
        if filled.is_err() {
            let _ = fs::remove_file(&new);
        }
        filled
    }
}

fn fill(path: &Path, bytes: u64, rest: Option<Pause<'_>>) -> io::Result<()> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)?;
    let part = match rest {
        Some(_) => SPARE_PART_BYTES,
        None => SPARE_PART_ALONE_BYTES,
    };
    let zeros = vec![0; part];
    let mut at = 0;
    while at < bytes {
        let began = Instant::now();
        file.write_all_at(&zeros, at)?;
        file.sync_data()?;
        at += zeros.len() as u64;
        if rest.is_some_and(|rest| rest(began.elapsed()).is_break()) {
            return Err(io::ErrorKind::Interrupted.into());
        }
    }
    file.sync_all()
}

struct StdFile {
    file: File,
    /// How much was appended.
    len: u64,
}

impl DiskFile for StdFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.len)?;
        self.len += bytes.len() as u64;
        Ok(())
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
///
/// # Errors
/// The volume can't be read.
pub fn free_bytes(folder: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(folder)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Makes `folder` and what is missing above it, each durably.
pub(crate) fn create_folder(folder: &Path) -> io::Result<()> {
    let parent = folder
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    if folder.is_dir() {
        // Who made it may have been killed before this.
        return match sync_folder(parent.unwrap_or(Path::new("."))) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            synced => synced,
        };
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 2 << 20;

    fn spare(folder: &tempfile::TempDir) -> Vec<(String, u64)> {
        let files = fs::read_dir(folder.path()).expect("a folder");
        let files = files.map(|entry| {
            let entry = entry.expect("a file");
            let len = entry.metadata().expect("its length").len();
            (entry.file_name().to_string_lossy().into_owned(), len)
        });
        files.collect()
    }

    #[test]
    fn a_spare_is_filled_in_parts_with_rests_between() {
        let folder = tempfile::tempdir().expect("a folder");
        let disk = StdDisk::open(folder.path()).expect("a disk");
        let rests = std::cell::Cell::new(0);
        let rest = |_| {
            rests.set(rests.get() + 1);
            ControlFlow::Continue(())
        };
        disk.prepare(BYTES, Some(&rest)).expect("a spare");
        assert_eq!(rests.get(), BYTES / SPARE_PART_BYTES as u64);
        assert_eq!(spare(&folder), [(SPARE.to_owned(), BYTES)]);
    }

    #[test]
    fn a_spare_that_is_broken_off_leaves_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let disk = StdDisk::open(folder.path()).expect("a disk");
        let broken = disk.prepare(BYTES, Some(&|_| ControlFlow::Break(())));
        assert!(broken.is_err());
        assert_eq!(spare(&folder), []);
        disk.prepare(BYTES, None).expect("a spare");
        assert_eq!(spare(&folder), [(SPARE.to_owned(), BYTES)]);
    }
}
