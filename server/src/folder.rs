//! A server's folder: one process at a time, and only the server that it was made for.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use percolator_register::files::{StdFiles, replace_durably, sync_folder_of};
use serde::{Deserialize, Serialize};

use crate::Error;

/// The format of folders that this program reads and writes.
pub const FORMAT: u32 = 2;

/// The file by which a process has a folder for itself.
pub const LOCK: &str = "LOCK";
const IDENTITY: &str = "IDENTITY";

/// A server's folder, locked until this is dropped.
///
/// `LOCK` is the file that is locked; `IDENTITY` is JSON that names the folder's server:
/// `{"format":2,"role":"oracle","server":"tso-0","cluster_id":null,"checksum":"5f1c2a90"}`.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    identity: Mutex<Identity>,
    _lock: File,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    format: u32,
    role: String,
    server: String,
    cluster_id: Option<String>,
}

/// IDENTITY as it is written: a bit that flipped must not make it another server's folder.
#[derive(Serialize, Deserialize)]
struct Sealed {
    #[serde(flatten)]
    identity: Identity,
    /// CRC-32C of the identity as JSON, in hexadecimal digits.
    checksum: String,
}

impl Identity {
    fn checksum(&self) -> serde_json::Result<String> {
        Ok(format!(
            "{:08x}",
            crc32c::crc32c(&serde_json::to_vec(self)?)
        ))
    }
}

/// The one field that every format has, read first: what else is there depends on it.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

impl Folder {
    /// Opens the folder of the server, or makes it one: creates it if it's missing, locks it, and
    /// checks that it is this role's, this server's and, if a cluster is given, this cluster's.
    ///
    /// # Errors
    /// Those whose names begin with `Folder`, [`Error::Permission`], and the errors of files.
    pub fn open(
        path: impl Into<PathBuf>,
        role: &str,
        server: &str,
        cluster_id: Option<&str>,
    ) -> Result<Self, Error> {
        let path = path.into();
        fs::create_dir_all(&path).map_err(Error::file("create the folder", &path))?;
        let lock = lock(&path, server)?;
        let identity = match read_identity(&path)? {
            Some(found) => {
                check(&path, "role", &found.role, role)?;
                check(&path, "server", &found.server, server)?;
                found
            }
            None => {
                refuse_foreign(&path, server)?;
                let identity = Identity {
                    format: FORMAT,
                    role: role.to_owned(),
                    server: server.to_owned(),
                    cluster_id: None,
                };
                write_identity(&path, &identity)?;
                sync_folder_of(&StdFiles, &path)?;
                identity
            }
        };
        let folder = Self {
            path,
            identity: Mutex::new(identity),
            _lock: lock,
        };
        if let Some(cluster_id) = cluster_id {
            folder.adopt_cluster(cluster_id)?;
        }
        Ok(folder)
    }

    /// Where the folder is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The cluster that the folder belongs to; none until one was adopted.
    pub fn cluster_id(&self) -> Option<String> {
        self.identity().cluster_id.clone()
    }

    /// Makes the folder one of this cluster, durably. Harmless when repeated.
    ///
    /// # Errors
    /// [`Error::FolderOfAnother`] if it is another cluster's, and the errors of files.
    pub fn adopt_cluster(&self, cluster_id: &str) -> Result<(), Error> {
        let mut identity = self.identity();
        match &identity.cluster_id {
            Some(found) => check(&self.path, "cluster", found, cluster_id),
            None => {
                let adopted = Identity {
                    cluster_id: Some(cluster_id.to_owned()),
                    ..identity.clone()
                };
                write_identity(&self.path, &adopted)?;
                *identity = adopted;
                Ok(())
            }
        }
    }

    fn identity(&self) -> std::sync::MutexGuard<'_, Identity> {
        // The value is replaced as a whole: a panic elsewhere cannot leave half of it.
        self.identity
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Locks a folder until the file is closed.
///
/// # Errors
/// [`Error::FolderInUse`], and the errors of files.
pub fn lock(folder: &Path, server: &str) -> Result<File, Error> {
    let path = folder.join(LOCK);
    const PAUSE: std::time::Duration = std::time::Duration::from_millis(5);
    const TRIES: u32 = 100;
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(Error::file("open", &path))?;
    // A process that was forked off this or the last holder's, by another thread, holds a copy of the
    // lock until it runs its own program; and one that was killed until it is gone.
    for _ in 0..TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
            Err(TryLockError::Error(error)) => return Err(Error::file("lock", &path)(error)),
        }
    }
    Err(Error::FolderInUse {
        path: folder.to_owned(),
        server: server.to_owned(),
    })
}

fn check(path: &Path, what: &'static str, found: &str, asked: &str) -> Result<(), Error> {
    if found == asked {
        return Ok(());
    }
    Err(Error::FolderOfAnother {
        path: path.to_owned(),
        what,
        found: found.to_owned(),
        asked: asked.to_owned(),
    })
}

/// Whether a server's folder belongs to a cluster, for tools: without locking it.
///
/// # Errors
/// [`Error::Damaged`], [`Error::FolderFormat`] and the errors of files.
pub fn has_cluster(folder: &Path) -> Result<bool, Error> {
    let identity = read_identity(folder)?;
    Ok(identity.is_some_and(|identity| identity.cluster_id.is_some()))
}

fn read_identity(folder: &Path) -> Result<Option<Identity>, Error> {
    let path = folder.join(IDENTITY);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::file("read", &path)(error)),
    };
    let damaged = |reason: String| Error::Damaged {
        path: path.clone(),
        reason,
    };
    let unreadable = |error: serde_json::Error| damaged(error.to_string());
    let Format { format } = serde_json::from_slice(&bytes).map_err(unreadable)?;
    if format != FORMAT {
        return Err(Error::FolderFormat {
            path: folder.to_owned(),
            found: format,
            known: FORMAT,
        });
    }
    let Sealed { identity, checksum } = serde_json::from_slice(&bytes).map_err(unreadable)?;
    if identity.checksum().map_err(unreadable)? == checksum {
        Ok(Some(identity))
    } else {
        Err(damaged("its checksum does not match".to_owned()))
    }
}

fn write_identity(folder: &Path, identity: &Identity) -> Result<(), Error> {
    let path = folder.join(IDENTITY);
    let sealed = || {
        serde_json::to_vec(&Sealed {
            identity: identity.clone(),
            checksum: identity.checksum()?,
        })
    };
    let mut bytes = sealed().map_err(|error| Error::File {
        action: "write",
        path: path.clone(),
        cause: error.into(),
    })?;
    bytes.push(b'\n');
    Ok(replace_durably(&StdFiles, &path, &bytes)?)
}

/// A folder without an identity is ours to take only if nothing is in it but what an interrupted
/// first start left, or what a file system puts into a fresh volume.
fn refuse_foreign(folder: &Path, server: &str) -> Result<(), Error> {
    for entry in fs::read_dir(folder).map_err(Error::file("list", folder))? {
        let name = entry.map_err(Error::file("list", folder))?.file_name();
        let ours = [LOCK, "IDENTITY.tmp", "lost+found"];
        if !ours.iter().any(|ours| name == *ours) {
            return Err(Error::FolderForeign {
                path: folder.to_owned(),
                found: name.to_string_lossy().into_owned(),
                server: server.to_owned(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn temporary() -> (tempfile::TempDir, PathBuf) {
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path().join("a/b");
        (outer, path)
    }

    #[test]
    fn is_made_once_and_found_again() {
        let (_outer, path) = temporary();
        let folder = Folder::open(&path, "oracle", "tso-0", None).unwrap();
        assert_eq!(folder.cluster_id(), None);
        folder.adopt_cluster("c1").unwrap();
        folder.adopt_cluster("c1").unwrap();
        drop(folder);
        let folder = Folder::open(&path, "oracle", "tso-0", None).unwrap();
        assert_eq!(folder.cluster_id().as_deref(), Some("c1"));
        drop(folder);
        Folder::open(&path, "oracle", "tso-0", Some("c1")).unwrap();
    }

    #[test]
    fn is_refused_to_everyone_else() {
        let (_outer, path) = temporary();
        let folder = Folder::open(&path, "oracle", "tso-0", Some("c1")).unwrap();
        let refuses = |result: Result<Folder, Error>, words: &[&str]| {
            let text = result.unwrap_err().to_string();
            for word in words {
                assert!(text.contains(word), "{word} is missing: {text}");
            }
        };
        let open = |role, server, cluster| Folder::open(&path, role, server, cluster);
        refuses(open("oracle", "tso-0", None), &["in use", "tso-0"]);
        let other_cluster = folder.adopt_cluster("c2").unwrap_err().to_string();
        assert!(other_cluster.contains("c1") && other_cluster.contains("c2"));
        drop(folder);
        refuses(open("tablet", "tso-0", None), &["role", "oracle", "tablet"]);
        refuses(open("oracle", "tso-1", None), &["server", "tso-0", "tso-1"]);
        refuses(
            open("oracle", "tso-0", Some("c2")),
            &["cluster", "c1", "c2"],
        );
        fs::write(path.join(IDENTITY), r#"{"format":7}"#).unwrap();
        refuses(open("oracle", "tso-0", None), &["format 7", "format 2"]);
        fs::write(path.join(IDENTITY), "").unwrap();
        refuses(open("oracle", "tso-0", None), &["IDENTITY", "damaged"]);
    }

    #[test]
    fn a_digit_that_flipped_is_damage_and_not_another_cluster() {
        let (_outer, path) = temporary();
        drop(Folder::open(&path, "oracle", "tso-0", Some("c1")).unwrap());
        let text = fs::read_to_string(path.join(IDENTITY)).unwrap();
        for (is, becomes) in [("c1", "c3"), ("tso-0", "tso-4"), ("oracle", "oracme")] {
            fs::write(path.join(IDENTITY), text.replace(is, becomes)).unwrap();
            let error = Folder::open(&path, "oracle", "tso-0", Some("c1")).unwrap_err();
            assert!(matches!(error, Error::Damaged { .. }), "{error}");
            assert!(has_cluster(&path).is_err());
        }
    }

    #[test]
    fn a_foreign_folder_is_left_alone() {
        let (_outer, path) = temporary();
        fs::create_dir_all(path.join("lost+found")).unwrap();
        fs::write(path.join("letter.txt"), "dear").unwrap();
        let error = Folder::open(&path, "oracle", "tso-0", None).unwrap_err();
        assert!(matches!(error, Error::FolderForeign { .. }), "{error}");
        fs::remove_file(path.join("letter.txt")).unwrap();
        Folder::open(&path, "oracle", "tso-0", None).unwrap();
    }

    #[test]
    fn a_path_that_is_a_file_is_an_error_that_names_it() {
        let (outer, _) = temporary();
        let path = outer.path().join("file");
        fs::write(&path, "").unwrap();
        let error = Folder::open(&path, "oracle", "tso-0", None).unwrap_err();
        assert!(error.to_string().contains("file"), "{error}");
    }
}
