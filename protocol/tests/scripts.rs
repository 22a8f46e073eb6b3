//! Golden scripts of the rules: every `tests/data/*.txt` runs against a store of its own, and what
//! comes out is what stands in it.
//!
//! `REWRITE=1 cargo test -p percolator-protocol --test integration scripts::` writes what comes out into the
//! scripts: the diff is to be reviewed like code. A new step needs its command and `----` only.
//! The commands are listed in `support/rules.rs`, `support/txn.rs` and `support/codec.rs`.

use std::path::Path;

use crate::support::script::{self, Ran};

#[test]
fn scripts_come_out_as_written() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let rewrite = std::env::var_os("REWRITE").is_some();
    let mut paths: Vec<_> = std::fs::read_dir(&folder)
        .expect("the folder of scripts")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "no scripts");
    let mut wrong = Vec::new();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let written = std::fs::read_to_string(&path).expect("a script");
        let ran = match script::run(&written) {
            Ok(ran) => ran,
            Err(why) => panic!("{name}, {why}"),
        };
        if ran.text == written {
            continue;
        }
        if rewrite {
            std::fs::write(&path, ran.text).expect("writing a script");
        } else {
            wrong.push(difference(&name, &written, &ran));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Names the first lines that differ; the rest is what `REWRITE=1` and a diff show.
fn difference(name: &str, written: &str, ran: &Ran) -> String {
    let mut lines = written.lines().zip(ran.text.lines()).zip(1..);
    let first = lines.find(|((old, new), _)| old != new);
    match first {
        Some(((old, new), line)) => format!(
            "{name}, line {line}:\n  written: {old}\n  came:    {new}\n  differing commands at lines {:?}",
            ran.differences
        ),
        None => format!("{name}: its end differs"),
    }
}
