//! The few operations on files that it takes to replace one durably, over [`Files`], so that a simulator can stand in for
//! the device.

use std::fs::{self, File};
use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};

/// The few operations on files that it takes to replace one durably. A crash may undo or tear whatever was not
/// synced: content by [`NewFile::sync`], names by [`Files::sync_folder_of`].
#[allow(
    clippy::missing_errors_doc,
    reason = "those of the device, for all of them"
)]
pub trait Files: Send + Sync {
    /// All of the file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// Its first bytes, at most `count` of them.
    fn read_start(&self, path: &Path, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = self.read(path)?;
        bytes.truncate(count);
        Ok(bytes)
    }
    /// Makes the file, or empties it.
    fn create(&self, path: &Path) -> io::Result<Box<dyn NewFile>>;
    /// Gives a file another name, in place of what may be there.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Takes a name away.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes durable which files are in the folder of `path`.
    fn sync_folder_of(&self, path: &Path) -> io::Result<()>;
}

/// What it takes beside [`Files`] when each value is a file of its own. A link is a change of names, as a rename is.
#[allow(
    clippy::missing_errors_doc,
    reason = "those of the device, for all of them"
)]
pub trait FolderFiles: Files {
    /// Makes the folder, unless it is there.
    fn make_folder(&self, path: &Path) -> io::Result<()>;
    /// The names of what is in a folder, as they are at one moment.
    fn names(&self, folder: &Path) -> io::Result<Vec<String>>;
    /// Gives a file a second name; [`io::ErrorKind::AlreadyExists`] if something has it.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;
}

/// A file that is being written.
#[allow(
    clippy::missing_errors_doc,
    reason = "those of the device, for all of them"
)]
pub trait NewFile: Send {
    /// Writes all of `bytes`; after an error any part of them may be there.
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Makes what was written durable.
    fn sync(&mut self) -> io::Result<()>;
}

/// The operating system's files.
#[derive(Clone, Copy, Debug)]
pub struct StdFiles;

impl Files for StdFiles {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }

    fn read_start(&self, path: &Path, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(count);
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        File::open(path)?.take(count).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn NewFile>> {
        Ok(Box::new(File::create(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_folder_of(&self, path: &Path) -> io::Result<()> {
        File::open(folder_of(path))?.sync_all()
    }
}

impl FolderFiles for StdFiles {
    fn make_folder(&self, path: &Path) -> io::Result<()> {
        match fs::create_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made,
        }
    }

    fn names(&self, folder: &Path) -> io::Result<Vec<String>> {
        let names = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
        let names: io::Result<Vec<Option<String>>> = names.collect();
        Ok(names?.into_iter().flatten().collect())
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::hard_link(from, to)
    }
}

impl NewFile for File {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        Write::write_all(self, bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

/// A file that could not be read or replaced.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {cause}", .path.display())]
pub struct FileError {
    /// What was tried: "read", "write", "create", ...
    pub action: &'static str,
    /// Which file or folder.
    pub path: PathBuf,
    /// The system's error.
    pub cause: io::Error,
    /// Whether the file may have its new content: then it was to be renamed when this happened.
    pub may_be_replaced: bool,
}

impl FileError {
    pub(crate) fn of(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |cause| Self {
            action,
            path,
            cause,
            may_be_replaced: false,
        }
    }

    pub(crate) fn late(self) -> Self {
        Self {
            may_be_replaced: true,
            ..self
        }
    }

    /// Whether the system does not let this process do it, now or later.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(
            self.cause.kind(),
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
        )
    }
}

/// Makes `bytes` the file's content in one step, durable when this returns: a temporary file is
/// synced before it takes the name, and the folder after. Two at a time would write one temporary file: the caller
/// sees to that.
///
/// # Errors
/// [`FileError`], which says whether the file may have been replaced all the same.
pub fn replace_durably(files: &dyn Files, path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let temporary = beside(path, ".tmp");
    write_synced(files, &temporary, bytes)?;
    replace(files, &temporary, path)?;
    sync_folder_of(files, path).map_err(FileError::late)
}

/// Makes a file with this content, which is durable when this returns; its name is not. After an error it is gone, as far as
/// the device lets it go.
pub(crate) fn write_synced(files: &dyn Files, path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let mut file = files.create(path).map_err(FileError::of("create", path))?;
    let written = file.write_all(bytes).and_then(|()| file.sync());
    written.map_err(|error| {
        // What is there of it takes room that the next try needs.
        let _ = files.remove(path);
        FileError::of("write", path)(error)
    })
}

/// Gives the temporary file the name of the one that it replaces.
pub(crate) fn replace(files: &dyn Files, temporary: &Path, path: &Path) -> Result<(), FileError> {
    // A device that fails in the middle of it doesn't say which name it has kept.
    files
        .rename(temporary, path)
        .map_err(|cause| FileError::of("replace", path)(cause).late())
}

/// Makes the names in a path's folder durable.
///
/// # Errors
/// [`FileError`].
pub fn sync_folder_of(files: &dyn Files, path: &Path) -> Result<(), FileError> {
    files
        .sync_folder_of(path)
        .map_err(FileError::of("sync", folder_of(path)))
}

/// The path with something behind its name.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Files for tests.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// Files of a device that has room for the first bytes of a file alone.
    pub(crate) struct FullDevice;

    struct HalfAFile(Box<dyn NewFile>);

    impl NewFile for HalfAFile {
        fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
            self.0.write_all(&bytes[..bytes.len() / 2])?;
            Err(io::Error::from(io::ErrorKind::StorageFull))
        }

        fn sync(&mut self) -> io::Result<()> {
            self.0.sync()
        }
    }

    impl Files for FullDevice {
        fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
            StdFiles.read(path)
        }

        fn create(&self, path: &Path) -> io::Result<Box<dyn NewFile>> {
            Ok(Box::new(HalfAFile(StdFiles.create(path)?)))
        }

        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            StdFiles.rename(from, to)
        }

        fn remove(&self, path: &Path) -> io::Result<()> {
            StdFiles.remove(path)
        }

        fn sync_folder_of(&self, path: &Path) -> io::Result<()> {
            StdFiles.sync_folder_of(path)
        }
    }

    impl FolderFiles for FullDevice {
        fn make_folder(&self, path: &Path) -> io::Result<()> {
            StdFiles.make_folder(path)
        }

        fn names(&self, folder: &Path) -> io::Result<Vec<String>> {
            StdFiles.names(folder)
        }

        fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
            StdFiles.link(from, to)
        }
    }
}
