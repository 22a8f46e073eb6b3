//! The write-ahead log: segments of records, each record one group that was durable before it was
//! visible.
//!
//! There is at most one record that was not synced, and it is the last of the last segment: the next
//! is only written when the one before is on the device. So a record that is not whole is a torn one
//! if nothing valid lies behind it, and damage otherwise.

mod record;
mod replay;

use std::{
    collections::VecDeque,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use record::Place;
pub(crate) use replay::replay;

use crate::{
    Batch, Error,
    disk::{Disk, DiskFile, is_full},
};

/// Name of a segment's file.
fn file_name(segment: u64) -> String {
    format!("{segment:020}.log")
}

/// The reason why a group was not appended.
pub(crate) enum AppendError {
    /// Nothing was written; later groups may be.
    Refused(Error),
    /// The content of the device is unknown: never try again in this process.
    Unknown(String),
}

/// The room that a commit has to leave free, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reserve {
    /// Any commit.
    pub(crate) bytes: u64,
    /// One of batches that may spend the reserve.
    pub(crate) last_bytes: u64,
}

/// The bytes that the store may take for each byte of the log that is brought into it: pages that are not quite full, and copies of
/// those that change.
const STORED_PER_BYTE: u64 = 2;

impl Reserve {
    /// For any commit, where the log has so many bytes with it: what it has is still to be brought into the store, which
    /// must not take what is kept for batches that make room.
    fn beside(self, log_bytes: u64) -> u64 {
        match self.bytes {
            0 => 0,
            bytes => bytes.max(self.last_bytes + STORED_PER_BYTE * log_bytes),
        }
    }
}

/// The log, open for appending.
pub(crate) struct Log {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    file: Box<dyn DiskFile>,
    /// The segment appended to, and its length.
    segment: u64,
    len: u64,
    /// Segments before it, the oldest first, with their lengths.
    older: VecDeque<(u64, u64)>,
    reserve: Reserve,
    buffer: Vec<u8>,
    syncs: u64,
    last_sync: Duration,
    /// The bytes that replay has dropped.
    pub(crate) torn_bytes: u64,
}

/// How the log is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogStats {
    /// In all segments.
    pub(crate) bytes: u64,
    pub(crate) syncs: u64,
    pub(crate) last_sync: Duration,
    /// The bytes that replay has dropped.
    pub(crate) torn_bytes: u64,
}

impl Log {
    /// Starts segment `segment` behind the `older` ones. `path` is for messages only.
    pub(crate) fn start(
        disk: Arc<dyn Disk>,
        path: &Path,
        segment: u64,
        older: VecDeque<(u64, u64)>,
        reserve: Reserve,
    ) -> Result<Log, Error> {
        let file = create(&*disk, segment).map_err(Error::io("start a log segment in", path))?;
        Ok(Log {
            disk,
            path: path.to_owned(),
            file,
            segment,
            len: 0,
            older,
            reserve,
            buffer: Vec::new(),
            syncs: 0,
            last_sync: Duration::ZERO,
            torn_bytes: 0,
        })
    }

    /// Writes `group` as one record and syncs it.
    pub(crate) fn append(&mut self, group: &[Batch]) -> Result<(), AppendError> {
        let place = Place {
            segment: self.segment,
            offset: self.len,
        };
        record::encode(group, place, &mut self.buffer);
        let bytes = self.buffer.len() as u64;
        let reserve_bytes = if group.iter().all(Batch::spends_reserve) {
            self.reserve.last_bytes
        } else {
            self.reserve.beside(self.stats().bytes + bytes)
        };
        let full = || {
            AppendError::Refused(Error::Full {
                path: self.path.clone(),
                needed_bytes: bytes,
                reserve_bytes,
            })
        };
        match self.disk.free_bytes() {
            Ok(Some(free)) if free < bytes.saturating_add(reserve_bytes) => return Err(full()),
            // A disk that doesn't know reports an error when it is written to.
            _ => {}
        }
        if let Err(error) = self.file.append(&self.buffer) {
            // What was not synced was promised to nobody; once cut off, it is as if never written. Synced,
            // because the next segment may not begin while this one could end in a torn record.
            let cut = self
                .file
                .truncate(self.len)
                .and_then(|()| self.file.sync_data());
            return Err(match cut {
                Ok(_) if is_full(&error) => full(),
                Ok(_) => AppendError::Refused(Error::io("write to the log in", &self.path)(error)),
                Err(cut) => AppendError::Unknown(format!(
                    "cannot write to the log in {} ({error}), nor take it back ({cut})",
                    self.path.display()
                )),
            });
        }
        // After a failed sync the kernel may have dropped the pages and call a second one a success:
        // it is never tried again (Rebello et al., "Can Applications Recover from fsync Failures?").
        self.last_sync = self.file.sync_data().map_err(|error| {
            AppendError::Unknown(format!(
                "cannot sync the log in {}: {error}",
                self.path.display()
            ))
        })?;
        self.syncs += 1;
        self.len += bytes;
        if self.buffer.capacity() > 8 << 20 {
            self.buffer = Vec::new();
        }
        Ok(())
    }

    /// Starts a new segment; the last of the older ones.
    pub(crate) fn rotate(&mut self) -> Result<u64, RotateError> {
        // What an older file left behind the last record: only the last segment may have such an end.
        let whole = self.file.truncate(self.len);
        whole
            .and_then(|()| self.file.sync_data())
            .map_err(RotateError::Failed)?;
        let next = self.segment + 1;
        let created = self.disk.create(&file_name(next));
        let file = created.map_err(|error| {
            if is_full(&error) {
                RotateError::NoRoom
            } else {
                RotateError::Failed(error)
            }
        })?;
        // Whatever the reason: a segment that may or may not be there after a loss of power can't be passed over.
        self.disk.sync_folder().map_err(RotateError::Failed)?;
        self.file = file;
        self.older.push_back((self.segment, self.len));
        self.segment = next;
        self.len = 0;
        Ok(next - 1)
    }

    /// Bytes in the segment that is appended to.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The last of the older segments.
    pub(crate) fn last_older(&self) -> Option<u64> {
        self.older.back().map(|(segment, _)| *segment)
    }

    pub(crate) fn stats(&self) -> LogStats {
        LogStats {
            bytes: self.len + self.older.iter().map(|(_, len)| len).sum::<u64>(),
            syncs: self.syncs,
            last_sync: self.last_sync,
            torn_bytes: self.torn_bytes,
        }
    }

    /// The oldest segment, if it is not above `last`, is gone.
    pub(crate) fn forget_through(&mut self, last: u64) {
        while self
            .older
            .front()
            .is_some_and(|(segment, _)| *segment <= last)
        {
            self.older.pop_front();
        }
    }
}

/// The reason why no new segment was started.
#[derive(Debug)]
pub(crate) enum RotateError {
    /// There is no room for its file. Everything is as it was.
    NoRoom,
    /// The content of the device is unknown.
    Failed(io::Error),
}

/// The agreement of a folder's log and store, before they are opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogAgreement {
    /// They belong together, or both are new: then the log has its first, empty segment now.
    Sound,
    /// There's a store, and no log.
    LogLost,
    /// There's no store, and the log doesn't go back to its beginning.
    StoreLost,
}

/// Makes the first segment of a new log, and checks that log and store belong together.
#[cfg_attr(not(any(feature = "sled", feature = "redb")), allow(dead_code))]
pub(crate) fn begin(disk: &dyn Disk, is_new: bool) -> io::Result<LogAgreement> {
    let first = replay::segments(&disk.list()?).first().copied();
    Ok(match first {
        None if is_new => {
            drop(create(disk, 0)?);
            LogAgreement::Sound
        }
        None => LogAgreement::LogLost,
        Some(first) if is_new && first > 0 => LogAgreement::StoreLost,
        Some(_) => LogAgreement::Sound,
    })
}

/// The oldest segment; the first of all is 0. `None`: there is no log.
pub(crate) fn oldest(disk: &dyn Disk) -> io::Result<Option<u64>> {
    Ok(replay::segments(&disk.list()?).first().copied())
}

/// Removes segments up to `last`, the oldest first and each durably: there is never a hole.
pub(crate) fn remove_through(disk: &dyn Disk, last: u64) -> io::Result<()> {
    for segment in replay::segments(&disk.list()?) {
        if segment <= last {
            disk.remove(&file_name(segment))?;
            disk.sync_folder()?;
        }
    }
    Ok(())
}

/// A segment whose folder entry is durable. If that fails, what was made is taken away again, so that
/// it can be tried anew.
fn create(disk: &dyn Disk, segment: u64) -> io::Result<Box<dyn DiskFile>> {
    let file = disk.create(&file_name(segment))?;
    if let Err(error) = disk.sync_folder() {
        let _ = disk.remove(&file_name(segment));
        return Err(error);
    }
    Ok(file)
}
