//! Checks pages against the programs of a folder, for work on transcripts without a build of the tests:
//! `PERCOLATOR_CLUSTER=127.0.0.1:7400 cargo run -p percolator-transcript --example check -- target/debug PAGE...`

use std::{env, fs, path::PathBuf};

use anyhow::Context as _;
use percolator_transcript::{Environment, Shell, check};

fn main() -> anyhow::Result<()> {
    let mut arguments = env::args_os().skip(1).map(PathBuf::from);
    let programs = arguments.next().context("no folder of programs")?;
    let programs = fs::canonicalize(programs)?;
    let cluster = env::var("PERCOLATOR_CLUSTER").ok();
    for page in arguments {
        let folder = tempfile::tempdir()?;
        let logs = tempfile::tempdir()?;
        let shell = Shell::start(&Environment {
            folder: folder.path(),
            programs: &programs,
            logs: logs.path(),
            cluster: cluster.as_deref(),
        })?;
        check(&page, shell)?;
    }
    Ok(())
}
