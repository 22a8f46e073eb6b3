//! How much room there is where a server keeps its data.

use std::path::Path;

use prometheus::IntGauge;

use crate::endpoint::NO_ROOM;

/// Checks that a server could write that many bytes into this folder; it could, or if the volume
/// can't be read.
///
/// # Errors
/// It is full, or may only be read.
pub fn writable(folder: &Path, bytes: u64) -> Result<(), String> {
    let Ok(volume) = rustix::fs::statvfs(folder) else {
        return Ok(());
    };
    let free = volume.f_bavail.saturating_mul(volume.f_frsize);
    if volume
        .f_flag
        .contains(rustix::fs::StatVfsMountFlags::RDONLY)
    {
        return Err(format!(
            "the volume of {} may only be read",
            folder.display()
        ));
    }
    if free < bytes {
        return Err(format!(
            "{NO_ROOM}the volume of {} is full: {free} bytes are left, and {bytes} are needed",
            folder.display()
        ));
    }
    Ok(())
}

/// The two gauges of a volume, in bytes.
#[derive(Clone, Debug)]
pub struct Volume {
    free: IntGauge,
    size: IntGauge,
}

impl Volume {
    /// Of what is free for the server, and of all.
    pub fn new(free: IntGauge, size: IntGauge) -> Self {
        Self { free, size }
    }

    /// Whether less than this was free when it was last asked.
    pub fn has_less_than(&self, bytes: u64) -> bool {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.size.get() > 0 && self.free.get() < bytes
    }

    /// Asks the system about the volume on which this folder lies. If that fails the gauges stay as they were: what
    /// uses the volume reports the failure.
    pub fn show(&self, folder: &Path) {
        if let Ok(volume) = rustix::fs::statvfs(folder) {
            let bytes = |blocks: u64| {
                let bytes = blocks.saturating_mul(volume.f_frsize);
                i64::try_from(bytes).unwrap_or(i64::MAX)
            };
            self.free.set(bytes(volume.f_bavail));
            self.size.set(bytes(volume.f_blocks));
        }
    }
}

#[test]
fn a_full_volume_is_reported() {
    let folder = std::env::temp_dir();
    assert_eq!(writable(&folder, 0), Ok(()));
    let why = writable(&folder, u64::MAX).expect_err("nobody has that much");
    assert!(why.contains(" is full: "), "{why}");
    assert_eq!(writable(Path::new("/nowhere/at/all"), u64::MAX), Ok(()));
}
