//! Runs the pages of `cli/tests/transcripts/`, each against a cluster of its own: every command's whole output and exit code.
//! `REWRITE=1` writes what was printed into them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use percolator_transcript::{Environment, Shell, check};

use crate::support::{Cluster, PERCOLATOR};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts")
}

fn page(name: &str) {
    let cluster = Cluster::threads();
    let [files, logs] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let shell = Shell::start(&Environment {
        folder: files.path(),
        programs: Path::new(PERCOLATOR).parent().expect("a folder"),
        logs: logs.path(),
        cluster: Some(&cluster.master),
    });
    let page = folder().join(name).with_extension("md");
    if let Err(wrong) = check(&page, shell.expect("a shell")) {
        panic!("{wrong:#}");
    }
}

macro_rules! pages {
    ($($test:ident: $page:literal),+ $(,)?) => {
        const PAGES: &[&str] = &[$($page),+];

        $(
            #[test]
            fn $test() {
                page($page);
            }
        )+
    };
}

pages! {
    arguments_out_of_bounds: "bounds",
    cells: "cells",
    the_shell: "shell",
    tables_and_tablets: "tables",
}

#[test]
fn every_page_is_run() {
    let pages = folder().read_dir().expect("a folder").map(|entry| {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().expect("a name");
        name.to_string_lossy().into_owned()
    });
    let pages: BTreeSet<String> = pages.collect();
    assert_eq!(pages, PAGES.iter().map(|&page| page.to_owned()).collect());
}
