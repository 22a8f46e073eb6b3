//! One small value that is durable before anything relies on it.
//!
//! A file on the server's volume today. Behind a trait, so that a standby's truth can be an object
//! that is swapped by its version; and over [`Files`], so that a simulator can stand in for the device.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use percolator_register::files::replace_durably;
pub use percolator_register::files::{Files, NewFile, StdFiles};

use crate::Error;

/// One small value, read at the start and written rarely.
pub trait DurableValue {
    /// The value; none if none was ever stored.
    ///
    /// # Errors
    /// [`Error::Damaged`] if what is there is not what was stored, and the errors of reading.
    fn load(&self) -> Result<Option<Vec<u8>>, Error>;

    /// Replaces the value. It is durable when this returns; when it fails, or the process dies in
    /// between, either the old or the new value is there afterwards.
    ///
    /// # Errors
    /// [`Error::TooLarge`], and the errors of writing.
    fn store(&self, value: &[u8]) -> Result<(), Error>;
}

/// The value in a file: a mark, the checksum (CRC-32C, little endian) of the value, the value.
#[derive(Clone)]
pub struct SmallFile {
    path: PathBuf,
    files: Arc<dyn Files>,
}

impl fmt::Debug for SmallFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SmallFile")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

const MARK: &[u8; 4] = b"PSF1";
const HEADER_BYTES: usize = MARK.len() + 4;

impl SmallFile {
    /// The most that a value may have: 16 MiB.
    pub const VALUE_BYTES_MAX: usize = 16 << 20;

    /// The value in the file at `path`, which need not exist yet; its folder must.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self::on(Arc::new(StdFiles), path)
    }

    /// The same, with other files than the operating system's.
    pub fn on(files: Arc<dyn Files>, path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            files,
        }
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn damaged(&self, reason: impl Into<String>) -> Error {
        Error::Damaged {
            path: self.path.clone(),
            reason: reason.into(),
        }
    }
}

impl DurableValue for SmallFile {
    fn load(&self) -> Result<Option<Vec<u8>>, Error> {
        let mut bytes = match self.files.read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::file("read", &self.path)(error)),
        };
        if bytes.len() < HEADER_BYTES {
            return Err(self.damaged(format!("it has only {} bytes", bytes.len())));
        }
        let value = bytes.split_off(HEADER_BYTES);
        let (mark, checksum) = bytes.split_at(MARK.len());
        if mark != MARK {
            return Err(self.damaged("it does not begin as such a file does"));
        }
        if checksum != crc32c::crc32c(&value).to_le_bytes() {
            return Err(self.damaged("its checksum does not match"));
        }
        Ok(Some(value))
    }

    fn store(&self, value: &[u8]) -> Result<(), Error> {
        if value.len() > Self::VALUE_BYTES_MAX {
            return Err(Error::TooLarge {
                path: self.path.clone(),
                bytes: value.len(),
                bytes_max: Self::VALUE_BYTES_MAX,
            });
        }
        let mut bytes = Vec::with_capacity(HEADER_BYTES + value.len());
        bytes.extend_from_slice(MARK);
        bytes.extend_from_slice(&crc32c::crc32c(value).to_le_bytes());
        bytes.extend_from_slice(value);
        Ok(replace_durably(&*self.files, &self.path, &bytes)?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn in_folder() -> (tempfile::TempDir, SmallFile) {
        let folder = tempfile::tempdir().unwrap();
        let file = SmallFile::new(folder.path().join("limit"));
        (folder, file)
    }

    #[test]
    fn what_was_stored_last_is_loaded() {
        let (_folder, file) = in_folder();
        assert_eq!(file.load().unwrap(), None);
        for value in [&b"one"[..], b"", b"a longer one"] {
            file.store(value).unwrap();
            assert_eq!(file.load().unwrap().as_deref(), Some(value));
        }
    }

    #[test]
    fn an_unfinished_store_leaves_the_old_value() {
        let (folder, file) = in_folder();
        file.store(b"old").unwrap();
        fs::write(folder.path().join("limit.tmp"), b"PS").unwrap();
        assert_eq!(file.load().unwrap().as_deref(), Some(&b"old"[..]));
        file.store(b"new").unwrap();
        assert_eq!(file.load().unwrap().as_deref(), Some(&b"new"[..]));
    }

    #[test]
    fn every_damage_is_an_error_that_names_the_file() {
        let (_folder, file) = in_folder();
        file.store(b"value").unwrap();
        let whole = fs::read(file.path()).unwrap();
        let flipped = (0..whole.len()).map(|at| {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            bytes
        });
        let cut = (0..whole.len()).map(|len| whole[..len].to_vec());
        for bytes in flipped.chain(cut) {
            fs::write(file.path(), &bytes).unwrap();
            let error = file.load().unwrap_err();
            assert!(matches!(error, Error::Damaged { .. }), "{error}");
            assert!(error.to_string().contains("limit"), "{error}");
        }
    }

    #[test]
    fn a_value_that_is_too_large_is_refused() {
        let (_folder, file) = in_folder();
        let error = file.store(&vec![0; SmallFile::VALUE_BYTES_MAX + 1]);
        assert!(matches!(error, Err(Error::TooLarge { .. })));
        assert_eq!(file.load().unwrap(), None);
    }
}
