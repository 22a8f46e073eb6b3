//! A folder with a store behind a write-ahead log: whether they belong together, before the engine is opened.

use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

use crate::{
    Engine, Error, Options,
    backend::Backend,
    disk::StdDisk,
    durable::{Checkpoints, Durable},
    folder::Folder,
    log::{LogAgreement, begin, oldest},
};

/// Opens `folder` with the store that `open_store` makes of its path, in which it has `file`. That begins with so many bytes of
/// which one is not zero, once it was made; 0: it may begin with anything.
pub(crate) fn open_folder<B: Backend>(
    folder: &Path,
    options: &Options,
    file: &str,
    first_bytes: u64,
    open_store: impl FnOnce(&Path) -> Result<B, Error>,
) -> Result<Box<dyn Engine>, Error> {
    let folder = Folder::open(folder, options)?;
    let log = folder.log();
    let disk = StdDisk::open(&log).map_err(Error::io("create the folder", &log))?;
    // The log begins before the store, and always keeps a segment: a store without one has lost it.
    // An empty file would be made to a store, as a missing one.
    let store = folder.store().join(file);
    let is_new = match oldest(&disk).map_err(Error::io("list", &log))? {
        None => store.metadata().map_or(true, |store| store.len() == 0),
        Some(oldest) => {
            let begun = is_begun(&store, first_bytes).map_err(Error::io("read", &store))?;
            if !begun && oldest == 0 && store.exists() {
                // Its making ended before its first bytes were written: it would be refused for good.
                std::fs::remove_file(&store).map_err(Error::io("remove", &store))?;
            }
            !begun
        }
    };
    let lost = match begin(&disk, is_new).map_err(Error::io("begin", &log))? {
        LogAgreement::Sound => None,
        LogAgreement::LogLost => {
            Some((&log, "the log is missing, but there is a store next to it"))
        }
        LogAgreement::StoreLost => Some((
            &log,
            "the store next to the log is missing, and the log no longer holds everything from the beginning",
        )),
    };
    if let Some((path, detail)) = lost {
        return Err(Error::Corrupt {
            path: path.clone(),
            offset: 0,
            detail: detail.to_owned(),
        });
    }
    if !is_new {
        forget_cached(&folder.store());
    }
    let backend = open_store(&folder.store())?;
    let engine = Durable::open(
        Arc::new(disk),
        &log,
        backend,
        options,
        Checkpoints::Background,
    )?;
    Ok(Box::new(engine.with_folder(folder)))
}

/// Whether this is a store's file that has its first bytes.
fn is_begun(store: &Path, first_bytes: u64) -> io::Result<bool> {
    let mut begins = Vec::new();
    match std::fs::File::open(store) {
        Ok(file) => file.take(first_bytes.max(1)).read_to_end(&mut begins)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let may_be_zero = first_bytes == 0 && !begins.is_empty();
    Ok(may_be_zero || begins.iter().any(|byte| *byte != 0))
}

/// Has the kernel forget what it holds of the store's files and believes to be on the device. Where a sync has failed, that
/// is not true of the pages that it gave up: they would be read until the next loss of power, and then be gone. What is still
/// to be written stays.
fn forget_cached(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => forget_cached(&path),
            Ok(kind) if kind.is_file() => {
                if let Ok(file) = std::fs::File::open(&path) {
                    // Some file systems have no cache to forget.
                    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
                }
            }
            _ => {}
        }
    }
}
