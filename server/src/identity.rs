//! Whose a server's folder is, as its file IDENTITY says.

use std::io;
use std::path::Path;

use percolator_register::files::{Files, replace_durably};
use serde::{Deserialize, Serialize};

use crate::Error;

/// The format of folders that this program reads and writes.
pub const FORMAT: u32 = 2;

pub(crate) const IDENTITY: &str = "IDENTITY";

/// Whose a folder is. `IDENTITY` has it as JSON:
/// `{"format":2,"role":"oracle","server":"tso-0","cluster_id":null,"checksum":"5f1c2a90"}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    format: u32,
    role: String,
    server: String,
    cluster_id: Option<String>,
}

/// IDENTITY as it is written: a bit that flipped must not look like another server's folder.
#[derive(Serialize, Deserialize)]
struct Sealed {
    #[serde(flatten)]
    identity: Identity,
    /// CRC-32C of the identity as JSON, in hexadecimal digits.
    checksum: String,
}

/// The one field that every format has, read first: what else is there depends on it.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

impl Identity {
    /// Of a folder of no cluster yet.
    fn new(role: &str, server: &str) -> Self {
        Self {
            format: FORMAT,
            role: role.to_owned(),
            server: server.to_owned(),
            cluster_id: None,
        }
    }

    /// The cluster that the folder belongs to; none until one was adopted.
    pub fn cluster_id(&self) -> Option<&str> {
        self.cluster_id.as_deref()
    }

    fn checksum(&self) -> serde_json::Result<String> {
        Ok(format!(
            "{:08x}",
            crc32c::crc32c(&serde_json::to_vec(self)?)
        ))
    }

    /// Checks that a folder is this role's and this server's, or makes one that is nobody's theirs, durably, if `is_free`
    /// has no objection.
    ///
    /// # Errors
    /// [`Error::FolderOfAnother`], [`Error::FolderFormat`], [`Error::Damaged`], those of `is_free`, and of files.
    pub fn claim(
        files: &dyn Files,
        folder: &Path,
        (role, server): (&str, &str),
        is_free: impl FnOnce() -> Result<(), Error>,
    ) -> Result<Self, Error> {
        if let Some(found) = Self::read(files, folder)? {
            check(folder, "role", &found.role, role)?;
            check(folder, "server", &found.server, server)?;
            return Ok(found);
        }
        is_free()?;
        let identity = Self::new(role, server);
        identity.write(files, folder)?;
        Ok(identity)
    }

    /// The same of this cluster; none: it is that already.
    ///
    /// # Errors
    /// [`Error::FolderOfAnother`]: it is another cluster's.
    pub(crate) fn of_cluster(
        &self,
        folder: &Path,
        cluster_id: &str,
    ) -> Result<Option<Self>, Error> {
        match &self.cluster_id {
            Some(found) => check(folder, "cluster", found, cluster_id).map(|()| None),
            None => Ok(Some(Self {
                cluster_id: Some(cluster_id.to_owned()),
                ..self.clone()
            })),
        }
    }

    pub(crate) fn read(files: &dyn Files, folder: &Path) -> Result<Option<Self>, Error> {
        let path = folder.join(IDENTITY);
        let bytes = match files.read(&path) {
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

    pub(crate) fn write(&self, files: &dyn Files, folder: &Path) -> Result<(), Error> {
        let path = folder.join(IDENTITY);
        let sealed = || {
            serde_json::to_vec(&Sealed {
                identity: self.clone(),
                checksum: self.checksum()?,
            })
        };
        let mut bytes = sealed().map_err(|error| Error::File {
            action: "write",
            path: path.clone(),
            cause: error.into(),
        })?;
        bytes.push(b'\n');
        Ok(replace_durably(files, &path, &bytes)?)
    }
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
