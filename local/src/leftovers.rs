//! What a server leaves that was killed before its cluster began. Its cluster was never reported as ready, so this is removed.
//! Files that others have put there stay.

use std::path::Path;

use anyhow::{Context as _, bail};

use crate::layout::names_in;

/// What servers make in their folders. `lost+found` is a file system's own.
const OURS: [&str; 13] = [
    "FORMAT",
    "FORMAT.next",
    "IDENTITY",
    "IDENTITY.tmp",
    "LOCK",
    "PROCESSES",
    "PROCESSES.tmp",
    "directory.lock",
    "limit",
    "limit.tmp",
    "log",
    "lost+found",
    "store",
];

/// Fails where something in a server's folder is not such a leftover.
pub(crate) fn check(folder: &Path) -> anyhow::Result<()> {
    let names = names_in(folder)?;
    let is_ours = |name: &str| OURS.contains(&name) || is_unfinished_state(name);
    if let Some(other) = names.iter().find(|name| !is_ours(name)) {
        bail!(
            "{} holds {other}, which no server has made, and no cluster: nothing is removed. Choose another folder with \
             --data-dir, or move it away",
            folder.display()
        );
    }
    let has = |name: &str| names.iter().any(|known| known == name);
    // It is written before these.
    if let Some(data) = ["log", "store"].into_iter().find(|name| has(name))
        && !has("FORMAT")
    {
        bail!(
            "{} has a {data}, and no FORMAT that says whose it is: nothing is removed. Bring FORMAT back if this was a \
             tablet server's folder, or choose another one with --data-dir",
            folder.display()
        );
    }
    Ok(())
}

/// Whether a file of this name is a swap of the master's state that was killed.
fn is_unfinished_state(name: &str) -> bool {
    name.starts_with("directory.") && name.ends_with(".tmp")
}

/// Removes the folder of a server whose cluster never began, where [`check`] found nothing else.
pub(crate) fn remove(folder: &Path) -> anyhow::Result<()> {
    std::fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder_with(names: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        folder
    }

    #[test]
    fn only_what_servers_make_is_left_over() {
        let ours: [&[&str]; 5] = [
            &[],
            &["LOCK", "IDENTITY.tmp", "limit"],
            &["LOCK", "FORMAT", "log", "store", "PROCESSES"],
            &["FORMAT.next", "LOCK"],
            &["directory.1.0123456789abcdef0123456789abcdef.tmp"],
        ];
        for names in ours {
            check(folder_with(names).path()).unwrap();
        }
        let others: [&[&str]; 4] = [
            &["letter.txt"],
            &["LOCK", "FORMAT", "letter.txt"],
            &["LOCK", "store"],
            &["log"],
        ];
        for names in others {
            let refused = check(folder_with(names).path()).unwrap_err().to_string();
            assert!(refused.contains("nothing is removed"), "{refused}");
        }
    }
}
