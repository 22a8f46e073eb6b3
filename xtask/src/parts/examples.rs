//! The client library's examples do what they say: each is run on a cluster of its own, and prints what the
//! block of `text` in its head shows.

use std::{fs, path::Path};

use anyhow::{Context as _, bail, ensure};

use crate::{cmd::Cmd, context::Context, parts::Report};

const FOLDER: &str = "client/examples";

pub(crate) fn run(context: &Context, report: &mut Report) -> anyhow::Result<String> {
    let built = report.step("build", |_| context.built())?;
    let mut names = Vec::new();
    for entry in fs::read_dir(context.root().join(FOLDER)).context(FOLDER)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(path.file_stem().map(|name| name.display().to_string()));
        }
    }
    names.sort();
    ensure!(!names.is_empty(), "{FOLDER} has no examples");
    let checked = format!("{} examples", names.len());
    for name in names {
        report
            .step(name.clone(), |_| run_one(context, &built.programs, &name))
            .with_context(|| format!("{FOLDER}/{name}.rs"))?;
    }
    Ok(checked)
}

fn run_one(context: &Context, programs: &Path, name: &str) -> anyhow::Result<()> {
    let text = fs::read_to_string(context.root().join(FOLDER).join(format!("{name}.rs")))?;
    let expected = shown(&text);
    ensure!(
        !expected.is_empty(),
        "its head shows no block of `text`, which is what it prints"
    );
    let printed = Cmd::new(programs.join("percolator"))
        .args(["up", "--processes", "--ephemeral", "--"])
        .arg(programs.join("examples").join(name))
        .output()?;
    print!("{printed}");
    if printed.lines().ne(expected.iter().copied()) {
        bail!("it should print:\n{}", expected.join("\n"));
    }
    Ok(())
}

/// The lines of the block of `text` in the head of a source file.
fn shown(source: &str) -> Vec<&str> {
    source
        .lines()
        .map_while(|line| line.strip_prefix("//!"))
        .map(|line| line.strip_prefix(' ').unwrap_or(line))
        .skip_while(|line| *line != "```text")
        .skip(1)
        .take_while(|line| *line != "```")
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_the_block_of_the_head() {
        let source =
            "//! Does it:\n//!\n//! ```text\n//! a\n//!  b\n//! ```\n//! More.\n\nfn main() {}\n";
        assert_eq!(shown(source), ["a", " b"]);
        assert!(shown("//! Does it.\n\n//! ```text\n//! a\n").is_empty());
        assert!(shown("fn main() {}\n").is_empty());
    }
}
