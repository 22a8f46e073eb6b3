//! The copy of a state in a master's folder: durable there while the register of the state is away.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use percolator_protocol::election::{CopyDecision, StateNumber};
use percolator_server::promises::{PromiseRefusal, write_in_turn};
use percolator_server::{DurableValue as _, Error, Folder, SmallFile};
use tokio::sync::Mutex;

/// The file of the copy.
const FILE: &str = "state-copy";
/// The register, the term and the number, with 8 bytes each.
const HEADER_BYTES: usize = 24;

/// Which copy a folder has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CopyHeader {
    /// The id in the value of the leadership's register.
    register: u64,
    number: StateNumber,
}

/// The file of the copy in a master's folder.
pub(crate) struct CopyFile {
    file: SmallFile,
    /// A read or write holds this until it has ended, also when its caller has gone away.
    durable: Arc<Mutex<Option<CopyHeader>>>,
    /// It stays locked as long.
    folder: Arc<Folder>,
}

impl fmt::Debug for CopyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopyFile")
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

impl CopyFile {
    /// Of this folder.
    ///
    /// # Errors
    /// The file is damaged, or can't be read.
    pub(crate) fn open(folder: &Arc<Folder>) -> Result<Self, Error> {
        let file = SmallFile::new(folder.path().join(FILE));
        let header = load(&file)?.map(|(header, _)| header);
        Ok(Self {
            file,
            durable: Arc::new(Mutex::new(header)),
            folder: folder.clone(),
        })
    }

    /// Keeps the copy of a state, unless the folder has this one or a later one. It is durable when this returns.
    ///
    /// # Errors
    /// The folder has a later leader's, or doesn't take it.
    pub(crate) async fn keep(
        &self,
        register: u64,
        number: StateNumber,
        state: Arc<Vec<u8>>,
    ) -> Result<(), PromiseRefusal> {
        let durable = self.durable.clone().lock_owned().await;
        let own = durable.filter(|own| own.register == register);
        match number.decide_copy(own.map(|own| own.number)) {
            CopyDecision::Keep => {}
            CopyDecision::HasIt => return Ok(()),
            CopyDecision::Outdated => return Err(PromiseRefusal::Refused),
        }
        let header = CopyHeader { register, number };
        let bytes = encode(header, &state);
        let written = write_in_turn(&self.file, &self.folder, durable, header, bytes);
        written.await.map_err(PromiseRefusal::Failed)
    }

    /// The copy of a state of this register, if the folder has one.
    ///
    /// # Errors
    /// The file is damaged, or can't be read.
    pub(crate) async fn load(
        &self,
        register: u64,
    ) -> Result<Option<(StateNumber, Vec<u8>)>, Error> {
        let durable = self.durable.clone().lock_owned().await;
        if durable.is_none_or(|header| header.register != register) {
            return Ok(None);
        }
        let file = self.file.clone();
        // A disk that hangs blocks only this file. Until the operation has ended, nothing else is read or written.
        let read = tokio::task::spawn_blocking(move || {
            let found = load(&file);
            drop(durable);
            found
        });
        let found = match read.await {
            Ok(found) => found?,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        };
        Ok(found.map(|(header, state)| (header.number, state)))
    }
}

/// Which state the copy in a master's folder is, of whichever register; none: there is no copy.
///
/// # Errors
/// The file is damaged, or can't be read.
pub(crate) fn number_in(folder: &Path) -> Result<Option<StateNumber>, Error> {
    let copy = load(&SmallFile::new(folder.join(FILE)))?;
    Ok(copy.map(|(header, _)| header.number))
}

fn encode(header: CopyHeader, state: &[u8]) -> Vec<u8> {
    let CopyHeader { register, number } = header;
    let mut bytes = Vec::with_capacity(HEADER_BYTES + state.len());
    for part in [register, number.term, number.number] {
        bytes.extend_from_slice(&part.to_le_bytes());
    }
    bytes.extend_from_slice(state);
    bytes
}

fn load(file: &SmallFile) -> Result<Option<(CopyHeader, Vec<u8>)>, Error> {
    let Some(mut bytes) = file.load()? else {
        return Ok(None);
    };
    let numbers = bytes.get(..HEADER_BYTES).map(<[u8]>::as_chunks::<8>);
    let Some(([register, term, number], [])) = numbers else {
        return Err(Error::Damaged {
            path: file.path().to_owned(),
            reason: format!("it has {} bytes, which are no copy of a state", bytes.len()),
        });
    };
    let header = CopyHeader {
        register: u64::from_le_bytes(*register),
        number: StateNumber {
            term: u64::from_le_bytes(*term),
            number: u64::from_le_bytes(*number),
        },
    };
    let state = bytes.split_off(HEADER_BYTES);
    Ok(Some((header, state)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn numbered(term: u64, number: u64) -> StateNumber {
        StateNumber { term, number }
    }

    #[tokio::test]
    async fn a_folder_keeps_the_latest_copy() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path(), "master", "master-0", None);
        let folder = Arc::new(folder.unwrap());
        let copies = CopyFile::open(&folder).unwrap();
        assert_eq!(copies.load(7).await.unwrap(), None);
        let keep = |register, number, state: &str| {
            copies.keep(register, number, Arc::new(state.as_bytes().to_vec()))
        };
        keep(7, numbered(3, 5), "five").await.unwrap();
        // Late ones: of the same leader, and of an earlier one.
        keep(7, numbered(3, 4), "four").await.unwrap();
        let outdated = keep(7, numbered(2, 9), "nine").await;
        assert_eq!(outdated, Err(PromiseRefusal::Refused));
        let five = Some((numbered(3, 5), b"five".to_vec()));
        assert_eq!(copies.load(7).await.unwrap(), five);
        assert_eq!(copies.load(8).await.unwrap(), None);
        let again = CopyFile::open(&folder).unwrap();
        assert_eq!(again.load(7).await.unwrap(), five);
        keep(7, numbered(4, 0), "next").await.unwrap();
        keep(8, numbered(1, 1), "other").await.unwrap();
        assert_eq!(copies.load(7).await.unwrap(), None);
        let other = Some((numbered(1, 1), b"other".to_vec()));
        assert_eq!(copies.load(8).await.unwrap(), other);
        std::fs::write(folder.path().join(FILE), "text").unwrap();
        CopyFile::open(&folder).unwrap_err();
    }
}
