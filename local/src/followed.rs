//! What a manifest says that counts without a restart. It lies in files of the cluster's folder, which servers read
//! again and again.

use std::path::{Path, PathBuf};

use anyhow::Context;
use percolator_api::Spec;

use crate::layout::Layout;

/// What the manifest says for the master.
const MANIFEST: &str = "manifest.json";
/// From which level on servers log; empty where the manifest doesn't say.
const LOG_LEVEL: &str = "log-level";
/// Of a file that is being written.
const NEW: &str = "new";

/// What the files say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveSettings {
    manifest: String,
    log_level: &'static str,
}

impl LiveSettings {
    /// The numbers of servers are those of the layout, which run, whatever the manifest says meanwhile. `says_log_level`: the manifest's text
    /// does; where it doesn't, servers that are threads have another level than processes.
    pub fn of(spec: &Spec, layout: &Layout, says_log_level: bool) -> Self {
        Self {
            manifest: layout.with_its_servers(spec).for_master(),
            log_level: if says_log_level {
                spec.log.level.name()
            } else {
                ""
            },
        }
    }

    /// Writes the files, each at once, as servers read them whenever they like. They are written anew at each start,
    /// so they need not outlive the machine.
    ///
    /// # Errors
    /// A file can't be written.
    pub fn store(&self, data_dir: &Path) -> anyhow::Result<()> {
        for (file, text) in [
            (manifest_file(data_dir), self.manifest.as_str()),
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

pub(crate) fn manifest_file(data_dir: &Path) -> PathBuf {
    data_dir.join(MANIFEST)
}

pub(crate) fn log_level_file(data_dir: &Path) -> PathBuf {
    data_dir.join(LOG_LEVEL)
}

/// Whether it's the name of one of these files, also of one that a crash has left half written.
pub(crate) fn is_ours(name: &str) -> bool {
    [MANIFEST, LOG_LEVEL].into_iter().any(|file| {
        let new = Path::new(file).with_extension(NEW);
        Path::new(name) == Path::new(file) || Path::new(name) == new
    })
}
