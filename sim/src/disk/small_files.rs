//! The files of one small value each, on a simulated device.

use std::io;
use std::path::Path;

use percolator_engine::disk::{Disk, DiskFile};
use percolator_server::small_file::{Files, NewFile};

use super::{Open, Renamed, SimDisk};

/// For the files of one small value each, told apart by their plain names.
impl Files for SimDisk {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        Disk::read(self, &name_of(path))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn NewFile>> {
        let mut state = self.0.lock();
        self.begin(&mut state)?;
        let name = name_of(path);
        let file = match state.number(&name) {
            // As with other writes, nothing says when the device hears of that.
            Ok(file) => {
                state.file(file)?.content.clear();
                file
            }
            Err(_) => state.make(&name, Vec::new()),
        };
        Ok(Box::new(Open {
            disk: self.clone(),
            file,
            len: 0,
        }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        self.begin(&mut state)?;
        let (from, to) = (name_of(from), name_of(to));
        state.number(&from)?;
        state.rename(Renamed::Moved(from, to));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        self.begin(&mut state)?;
        let name = name_of(path);
        state.number(&name)?;
        state.rename(Renamed::Removed(name));
        Ok(())
    }

    fn sync_folder_of(&self, _: &Path) -> io::Result<()> {
        self.sync_folder()
    }
}

fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    name.to_string_lossy().into_owned()
}

impl NewFile for Open {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        // It is written beside the one whose place it takes, and small as it is, needs room.
        if self.disk.space() != SimDisk::PLENTY {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.append(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data().map(drop)
    }
}
