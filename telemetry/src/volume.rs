//! How much room there is where a server keeps its data.

use std::path::Path;

use prometheus::IntGauge;

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

    /// Asks the system about the volume on which this folder lies. One that can't be looked at is left as it was: what
    /// uses it complains about that.
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
