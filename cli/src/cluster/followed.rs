//! What a manifest says that counts without a restart. It lies in files of the cluster's folder, which servers read
//! again and again.

use std::path::{Path, PathBuf};

use anyhow::Context;
use percolator_api::Spec;

/// What the manifest says of garbage collection, for the master.
const GC: &str = "gc.json";
/// From which level on servers log; empty where the manifest doesn't say.
const LOG_LEVEL: &str = "log-level";
/// Of a file that is being written.
const NEW: &str = "new";

/// What the files say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Followed {
    gc: String,
    log_level: &'static str,
}

impl Followed {
    pub(crate) fn of(spec: &Spec, says_log_level: bool) -> Self {
        Self {
            gc: spec.gc.for_master(),
            log_level: match says_log_level {
                true => spec.log.level.name(),
                false => "",
            },
        }
    }

    /// Writes the files, each at once, as servers read them whenever they like. They are written anew at each start,
    /// so they need not outlive the machine.
    pub(crate) fn store(&self, data_dir: &Path) -> anyhow::Result<()> {
        for (file, text) in [
            (gc_file(data_dir), self.gc.as_str()),
            (log_level_file(data_dir), self.log_level),
        ] {
            let new = file.with_extension(NEW);
            std::fs::write(&new, text)
                .and_then(|()| std::fs::rename(&new, &file))
                .with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(())
    }
}

pub(crate) fn gc_file(data_dir: &Path) -> PathBuf {
    data_dir.join(GC)
}

pub(crate) fn log_level_file(data_dir: &Path) -> PathBuf {
    data_dir.join(LOG_LEVEL)
}

/// Whether it's the name of one of these files, also of one that a crash has left half written.
pub(crate) fn is_ours(name: &str) -> bool {
    [GC, LOG_LEVEL].into_iter().any(|file| {
        let new = Path::new(file).with_extension(NEW);
        Path::new(name) == Path::new(file) || Path::new(name) == new
    })
}
