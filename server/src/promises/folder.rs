//! What a replica's folder keeps of promises.

use std::fmt;
use std::sync::Arc;

use percolator_protocol::election::PromiseRecord;
use percolator_protocol::types::Timestamp;
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::{Promiser, RecordKeeper};
use crate::{DurableValue as _, Error, Folder, SmallFile};

/// The file of the record, in a server's folder.
const FILE: &str = "promises";
/// Replica, register, term and limit with 8 bytes each, and whether it is bound.
const RECORD_BYTES: usize = 33;

/// The record of the promises in a server's folder.
pub struct PromiseFolder {
    file: SmallFile,
    /// What the file holds; none after a write that failed. Writes take turns: a writer holds this until the write has
    /// ended, also if its caller is gone.
    durable: Arc<Mutex<Option<PromiseRecord>>>,
    /// It stays locked as long.
    folder: Arc<Folder>,
}

impl fmt::Debug for PromiseFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PromiseFolder")
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

impl PromiseFolder {
    /// Reads the record of a folder, or begins one with a new number.
    ///
    /// # Errors
    /// The file is damaged, or can't be read or written.
    pub fn open(folder: &Arc<Folder>) -> Result<(Self, PromiseRecord), Error> {
        let file = SmallFile::new(folder.path().join(FILE));
        let record = load_record(&file, rand::random)?;
        let promises = Self {
            file,
            durable: Arc::new(Mutex::new(Some(record))),
            folder: folder.clone(),
        };
        Ok((promises, record))
    }

    async fn write(
        &self,
        mut durable: OwnedMutexGuard<Option<PromiseRecord>>,
        newest: PromiseRecord,
    ) -> Result<(), String> {
        *durable = None;
        write_in_turn(&self.file, &self.folder, durable, newest, encode(&newest)).await
    }
}

impl RecordKeeper for PromiseFolder {
    async fn keep<P: Promiser>(&self, replica: &Arc<P>) -> Result<PromiseRecord, String> {
        let durable = self.durable.clone().lock_owned().await;
        let newest = replica.record().ok_or("this server is alone")?;
        if *durable == Some(newest) {
            return Ok(newest);
        }
        self.write(durable, newest).await?;
        Ok(newest)
    }
}

/// Writes a file of a folder on another thread. What it holds is `value` then; after an error `turn` is as it was. A request that
/// is given up by its sender ends here: the write goes on, the next one waits for it, and the folder stays locked as long.
///
/// # Errors
/// The file can't be written.
pub async fn write_in_turn<T: Send + 'static>(
    file: &SmallFile,
    folder: &Arc<Folder>,
    mut turn: OwnedMutexGuard<Option<T>>,
    value: T,
    bytes: Vec<u8>,
) -> Result<(), String> {
    let (file, folder) = (file.clone(), folder.clone());
    let written = tokio::task::spawn_blocking(move || {
        let written = file.store(&bytes);
        if written.is_ok() {
            *turn = Some(value);
        }
        drop((turn, folder));
        written
    });
    let written = written.await.map_err(|error| error.to_string())?;
    written.map_err(|error| error.to_string())
}

/// Reads the record in a folder's file, or begins one, with a number that `random` gives.
///
/// # Errors
/// The file is damaged, or can't be read or written.
pub fn load_record(file: &SmallFile, random: impl FnOnce() -> u64) -> Result<PromiseRecord, Error> {
    if let Some(bytes) = file.load()? {
        return decode(&bytes).ok_or_else(|| Error::Damaged {
            path: file.path().to_owned(),
            reason: format!(
                "it has {} bytes, which are no record of promises",
                bytes.len()
            ),
        });
    }
    let record = PromiseRecord {
        replica: random().max(1),
        register: 0,
        term: 0,
        limit: Timestamp::ZERO,
        is_bound: false,
    };
    store_record(file, &record)?;
    Ok(record)
}

/// Makes the record durable in a folder's file.
///
/// # Errors
/// The file can't be written.
pub fn store_record(file: &SmallFile, record: &PromiseRecord) -> Result<(), Error> {
    file.store(&encode(record))
}

fn encode(record: &PromiseRecord) -> Vec<u8> {
    let numbers = [
        record.replica,
        record.register,
        record.term,
        record.limit.as_u64(),
    ];
    let mut bytes: Vec<u8> = numbers.into_iter().flat_map(u64::to_le_bytes).collect();
    bytes.push(record.is_bound.into());
    bytes
}

fn decode(bytes: &[u8]) -> Option<PromiseRecord> {
    let (numbers, rest) = bytes.as_chunks::<8>();
    let ([replica, register, term, limit], [is_bound]) = (numbers, rest) else {
        return None;
    };
    debug_assert_eq!(bytes.len(), RECORD_BYTES);
    Some(PromiseRecord {
        replica: u64::from_le_bytes(*replica),
        register: u64::from_le_bytes(*register),
        term: u64::from_le_bytes(*term),
        limit: Timestamp::from_u64(u64::from_le_bytes(*limit)),
        is_bound: *is_bound != 0,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A device that stalls: the leader gives its request up, and asks again.
    #[tokio::test]
    async fn a_write_that_nobody_waits_for_ends_before_the_next() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path(), "oracle", "tso-0", None);
        let (promises, first) = PromiseFolder::open(&Arc::new(folder.unwrap())).unwrap();
        // Opening it to write waits for a reader.
        let stalled = place.path().join("promises.tmp");
        let made = std::process::Command::new("mkfifo").arg(&stalled).status();
        assert!(made.unwrap().success());
        let newest = PromiseRecord { term: 4, ..first };
        let durable = promises.durable.clone().lock_owned().await;
        let given_up = Duration::from_millis(100);
        let write = tokio::time::timeout(given_up, promises.write(durable, newest));
        assert!(write.await.is_err());
        assert!(promises.durable.try_lock().is_err());
        let read = tokio::task::spawn_blocking(move || std::fs::read(stalled));
        assert_eq!(read.await.unwrap().unwrap().len(), 8 + RECORD_BYTES);
        // A pipe can't be synced: so nothing is known of the file.
        assert_eq!(*promises.durable.lock().await, None);
    }

    #[test]
    fn what_was_kept_is_read() {
        for is_bound in [false, true] {
            let record = PromiseRecord {
                replica: 7,
                register: 5,
                term: 3,
                limit: Timestamp::from_millis(9),
                is_bound,
            };
            assert_eq!(encode(&record).len(), RECORD_BYTES);
            assert_eq!(decode(&encode(&record)), Some(record));
        }
        assert_eq!(decode(&[0; RECORD_BYTES - 1]), None);
        assert_eq!(decode(&[0; RECORD_BYTES + 8]), None);
    }

    #[test]
    fn a_folder_keeps_its_number_and_a_new_one_has_another() {
        let place = tempfile::tempdir().unwrap();
        let opened = |name: &str| {
            let folder = Folder::open(place.path().join(name), "oracle", "tso-0", None).unwrap();
            PromiseFolder::open(&Arc::new(folder)).unwrap().1
        };
        let first = opened("a");
        assert_eq!(opened("a"), first);
        assert_ne!(opened("b").replica, first.replica);
    }
}
