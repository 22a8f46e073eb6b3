//! Opening an engine by its name.

use std::path::Path;

use crate::{Engine, EngineKind, Error, MemoryEngine, Options};

/// Commits wait while more than this is buffered in front of sled or redb and a checkpoint is under way. A
/// checkpoint begins with each segment of the log.
#[cfg(any(feature = "sled", feature = "redb"))]
const BUFFER_BYTES: usize = 128 << 20;

/// Opens the engine in `folder`, which is made if it is not there (memory leaves it alone). What the
/// log has beyond the store is replayed.
///
/// # Errors
/// [`Error::Locked`], [`Error::WrongFormat`], [`Error::WrongEngine`], [`Error::WrongServer`]: not our
/// folder. [`Error::Corrupt`]: the folder is damaged. [`Error::NotBuilt`]: a cargo feature is off.
pub fn open(folder: &Path, options: &Options) -> Result<Box<dyn Engine>, Error> {
    match options.kind {
        EngineKind::Memory => Ok(Box::new(MemoryEngine::new(options.history_bytes))),
        EngineKind::Sled => open_sled(folder, options),
        EngineKind::Redb => open_redb(folder, options),
    }
}

#[cfg(feature = "sled")]
fn open_sled(folder: &Path, options: &Options) -> Result<Box<dyn Engine>, Error> {
    crate::stored::open_folder(folder, options, crate::sled_store::FILE, 0, |store| {
        let store = crate::SledStore::open(store, options.cache_bytes)?;
        let store = crate::Buffered::new(store, BUFFER_BYTES)?;
        Ok(crate::Versioned::new(store, options.history_bytes))
    })
}

#[cfg(not(feature = "sled"))]
fn open_sled(_: &Path, _: &Options) -> Result<Box<dyn Engine>, Error> {
    Err(Error::NotBuilt { engine: "sled" })
}

#[cfg(feature = "redb")]
fn open_redb(folder: &Path, options: &Options) -> Result<Box<dyn Engine>, Error> {
    crate::stored::open_folder(
        folder,
        options,
        crate::redb_store::FILE,
        crate::redb_store::FIRST_BYTES,
        |store| {
            let store = crate::RedbStore::open(store, options.cache_bytes)?;
            let store = crate::Buffered::new(store, BUFFER_BYTES)?;
            Ok(crate::Versioned::new(store, options.history_bytes))
        },
    )
}

#[cfg(not(feature = "redb"))]
fn open_redb(_: &Path, _: &Options) -> Result<Box<dyn Engine>, Error> {
    Err(Error::NotBuilt { engine: "redb" })
}
