//! Servers of an earlier run that has been killed: they end by themselves, and hold their folders and ports until then.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::bail;

use crate::layout::Layout;

/// A server that notices the end of its `up` writes what it has to write, and is gone within this.
const END_WITHIN: Duration = Duration::from_secs(60);
/// How often they are searched for.
const SEARCH_EVERY: Duration = Duration::from_millis(50);
/// The wait is reported after this.
const TELL_AFTER: Duration = Duration::from_secs(1);

/// A server's process.
#[derive(Debug, PartialEq, Eq)]
struct Earlier {
    pid: u32,
    server: String,
}

/// Waits until no process has a folder of the cluster's servers as its data folder. `say` prints that it waits.
///
/// # Errors
/// They still run after a minute: which ones.
pub async fn earlier_ended(layout: &Layout, say: &(dyn Fn(&str) + Sync)) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut told = false;
    loop {
        let earlier = running(layout);
        if earlier.is_empty() {
            return Ok(());
        }
        let who: Vec<String> = earlier
            .iter()
            .map(|Earlier { pid, server }| format!("{server} (process {pid})"))
            .collect();
        if started.elapsed() >= END_WITHIN {
            bail!(
                "servers of an earlier `percolator up` still run in {}: {}; end them with kill, and try again",
                layout.data_dir.display(),
                who.join(", ")
            );
        }
        if !told && started.elapsed() >= TELL_AFTER {
            say(&format!(
                "waiting for servers of an earlier `percolator up` to end: {}",
                who.join(", ")
            ));
            told = true;
        }
        tokio::time::sleep(SEARCH_EVERY).await;
    }
}

/// Who runs in the cluster's folders, by what processes say of themselves; `up` starts each server with its folder as an
/// argument.
fn running(layout: &Layout) -> Vec<Earlier> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let line = std::fs::read(entry.path().join("cmdline")).ok()?;
            let server = server_of(&line, &layout.data_dir)?;
            Some(Earlier { pid, server })
        })
        .collect()
}

/// The server whose folder, directly in `data_dir`, follows `--data-dir` in a command line as the kernel shows it.
fn server_of(line: &[u8], data_dir: &Path) -> Option<String> {
    let mut words = line.split(|byte| *byte == 0);
    words.find(|word| *word == b"--data-dir")?;
    let folder = Path::new(std::ffi::OsStr::from_bytes(words.next()?));
    (folder.parent()? == data_dir)
        .then(|| folder.file_name()?.to_str().map(str::to_owned))
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_known_by_its_folder() {
        let of = |line: &str| server_of(line.replace(' ', "\0").as_bytes(), Path::new("/data"));
        assert_eq!(
            of("percolator-tablet --data-dir /data/tablet-0 --server tablet-0").as_deref(),
            Some("tablet-0")
        );
        assert_eq!(of("percolator-tablet --data-dir /other/tablet-0"), None);
        assert_eq!(of("percolator up --data-dir /data"), None);
        assert_eq!(of("percolator up --data-dir"), None);
        assert_eq!(of(""), None);
    }
}
