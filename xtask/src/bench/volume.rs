//! A volume whose disk can hang: a file system in a file, which is frozen.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::cmd::Cmd;

/// Of a volume, in bytes. Folders of oracles and masters are small.
const SIZE: u64 = 64 << 20;

/// A volume that is mounted.
pub(super) struct Volume(PathBuf);

impl Volume {
    /// Moves this folder to a volume at `place`, and leaves a link to it.
    pub(super) fn under(folder: &Path, place: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(place)?;
        let image = place.with_extension("image");
        fs::File::create(&image)?.set_len(SIZE)?;
        Cmd::new("mkfs.ext4").arg("-q").arg(&image).run()?;
        Cmd::new("mount")
            .args(["-o", "loop"])
            .arg(&image)
            .arg(place)
            .run()?;
        let volume = Self(place.to_owned());
        let moved = place.join("folder");
        Cmd::new("cp").arg("-a").arg(folder).arg(&moved).run()?;
        fs::remove_dir_all(folder)?;
        std::os::unix::fs::symlink(&moved, folder)?;
        Ok(volume)
    }

    /// A write waits from now on.
    pub(super) fn freeze(&self) -> anyhow::Result<()> {
        Cmd::new("fsfreeze").arg("-f").arg(&self.0).run()
    }

    /// Writes go on.
    pub(super) fn go_on(&self) -> anyhow::Result<()> {
        Cmd::new("fsfreeze").arg("-u").arg(&self.0).run()
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // After an error it may be frozen: nobody could end then.
        let _ = Cmd::new("fsfreeze").arg("-u").arg(&self.0).works();
        let _ = Cmd::new("umount").arg("-l").arg(&self.0).works();
    }
}
