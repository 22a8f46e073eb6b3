//! Whose folder it is: `LOCK`, held while an engine is open, and `FORMAT`, written at first open.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{
    Error, Options,
    disk::{create_folder, sync_folder},
};

/// Version of everything below the folder that is ours: FORMAT, the log, the columns.
pub const FORMAT: u32 = 5;

const FORMAT_FILE: &str = "FORMAT";
/// The file by which a process has a folder for itself.
pub const LOCK_FILE: &str = "LOCK";

/// The content of FORMAT.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// See [`FORMAT`].
    pub format: u32,
    /// Name of the engine.
    pub engine: String,
    /// Cluster it belongs to, once that is known.
    pub cluster_id: Option<String>,
    /// Server it belongs to.
    pub server: String,
}

/// FORMAT as it is written, with a checksum: a flipped bit must not read as another server's folder.
#[derive(Serialize, Deserialize)]
struct Sealed {
    #[serde(flatten)]
    identity: Identity,
    /// CRC-32C of the identity as JSON without spaces, in hexadecimal digits.
    checksum: String,
}

impl Identity {
    /// Of a folder that is opened with these options.
    pub fn of(options: &Options) -> Self {
        Self {
            format: FORMAT,
            engine: options.kind.name().to_owned(),
            cluster_id: options.cluster_id.clone(),
            server: options.server.clone(),
        }
    }

    /// As the file FORMAT has it.
    ///
    /// # Errors
    /// Those of JSON.
    pub fn encode(&self) -> serde_json::Result<Vec<u8>> {
        let mut text = serde_json::to_vec_pretty(&Sealed {
            identity: self.clone(),
            checksum: self.checksum()?,
        })?;
        text.push(b'\n');
        Ok(text)
    }

    /// Reads the file FORMAT of this folder.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::WrongFormat`].
    pub fn decode(folder: &Path, text: &[u8]) -> Result<Self, Error> {
        let corrupt = |detail: String| Error::Corrupt {
            path: folder.join(FORMAT_FILE),
            offset: 0,
            detail,
        };
        let unreadable = |error: serde_json::Error| corrupt(error.to_string());
        let version: AnyVersion = serde_json::from_slice(text).map_err(unreadable)?;
        if version.format != FORMAT {
            return Err(Error::WrongFormat {
                path: folder.to_owned(),
                found: version.format,
                expected: FORMAT,
            });
        }
        let Sealed { identity, checksum } = serde_json::from_slice(text).map_err(unreadable)?;
        if identity.checksum().map_err(unreadable)? == checksum {
            Ok(identity)
        } else {
            Err(corrupt("its checksum is wrong".to_owned()))
        }
    }

    /// Whether a folder of this identity may be opened as the one that is asked for.
    ///
    /// # Errors
    /// [`Error::WrongEngine`], [`Error::WrongServer`].
    pub fn check(&self, folder: &Path, asked: &Self) -> Result<(), Error> {
        if self.engine != asked.engine {
            return Err(Error::WrongEngine {
                path: folder.to_owned(),
                found: self.engine.clone(),
                asked: asked.engine.clone(),
            });
        }
        let other_cluster = match (&self.cluster_id, &asked.cluster_id) {
            (Some(found), Some(asked)) => found != asked,
            _ => false,
        };
        if self.server != asked.server || other_cluster {
            return Err(Error::WrongServer {
                path: folder.to_owned(),
                found_cluster: self.cluster_id.clone(),
                found_server: self.server.clone(),
                cluster: asked.cluster_id.clone(),
                server: asked.server.clone(),
            });
        }
        Ok(())
    }

    fn checksum(&self) -> serde_json::Result<String> {
        Ok(format!(
            "{:08x}",
            crc32c::crc32c(&serde_json::to_vec(self)?)
        ))
    }
}

/// Only to find the version in a FORMAT whose other fields we may not know.
#[derive(Deserialize)]
struct AnyVersion {
    format: u32,
}

/// A folder that is ours as long as this lives.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    /// Locks the folder and checks that it is the one asked for; makes it if it is not there.
    pub(crate) fn open(path: &Path, options: &Options) -> Result<Folder, Error> {
        create_folder(path).map_err(Error::io("create the folder", path))?;
        let folder = Folder {
            path: path.to_owned(),
            _lock: lock(path)?,
        };
        let asked = Identity::of(options);
        match read(path)? {
            Some(found) => {
                found.check(path, &asked)?;
                if found.cluster_id.is_none() && asked.cluster_id.is_some() {
                    write(path, &asked)?;
                }
            }
            None => {
                if folder.store().exists() || folder.log().exists() {
                    return Err(Error::Corrupt {
                        path: path.join(FORMAT_FILE),
                        offset: 0,
                        detail: "it is missing, but there is a store or a log next to it"
                            .to_owned(),
                    });
                }
                write(path, &asked)?;
            }
        }
        Ok(folder)
    }

    /// The folder of the write-ahead log.
    pub(crate) fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// The folder of the store.
    pub(crate) fn store(&self) -> PathBuf {
        self.path.join("store")
    }
}

/// Reads the folder's identity without locking it, for tools. `None` if it was never opened.
pub fn identity(folder: &Path) -> Result<Option<Identity>, Error> {
    read(folder)
}

/// Writes into an engine's folder, which may be open, that it belongs to cluster `id`. Nothing
/// happens if it does already.
///
/// # Errors
/// [`Error::WrongServer`] if it belongs to another cluster; [`Error::Io`] if it is no engine's.
pub fn adopt_cluster(folder: &Path, id: &str) -> Result<(), Error> {
    let Some(found) = read(folder)? else {
        return Err(Error::io("find FORMAT in", folder)(
            io::ErrorKind::NotFound.into(),
        ));
    };
    let adopted = Identity {
        cluster_id: Some(id.to_owned()),
        ..found.clone()
    };
    if found == adopted {
        return Ok(());
    }
    found.check(folder, &adopted)?;
    write(folder, &adopted)
}

fn lock(folder: &Path) -> Result<File, Error> {
    let path = folder.join(LOCK_FILE);
    const PAUSE: std::time::Duration = std::time::Duration::from_millis(5);
    const TRIES: u32 = 100;
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(&path)
        .map_err(Error::io("open", &path))?;
    // A process that was forked off this or the last holder's, by another thread, holds a copy of the
    // lock until it runs its own program; and one that was killed until it is gone.
    for _ in 0..TRIES {
        match file.try_lock() {
            Ok(()) => {
                // For anyone who finds it locked; it is no more than a hint.
                let _ = fs::write(&path, std::process::id().to_string());
                return Ok(file);
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
            Err(TryLockError::Error(error)) => return Err(Error::io("lock", path)(error)),
        }
    }
    let holder = fs::read_to_string(&path).ok();
    Err(Error::Locked {
        path: folder.to_owned(),
        holder: holder.and_then(|pid| pid.trim().parse().ok()),
    })
}

fn read(folder: &Path) -> Result<Option<Identity>, Error> {
    let path = folder.join(FORMAT_FILE);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("read", path)(error)),
    };
    Identity::decode(folder, &text).map(Some)
}

/// Durably and in one step: a new file is synced, then takes the place of the old one.
fn write(folder: &Path, identity: &Identity) -> Result<(), Error> {
    let path = folder.join(FORMAT_FILE);
    let next = folder.join("FORMAT.next");
    let replace = || -> io::Result<()> {
        let mut file = File::create(&next)?;
        file.write_all(&identity.encode()?)?;
        file.sync_all()?;
        fs::rename(&next, &path)?;
        sync_folder(folder)
    };
    replace().map_err(Error::io("write", &path))
}
