//! What the README says is what happens, and what some pages of the docs say: the console blocks of each are run as
//! written, in order, in a folder that goes away. Copies of `examples/` and `python/` are in it, as the commands name these
//! files.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, bail};

use percolator_transcript::{Environment, OmittedOutput, Shell, Step};

use crate::{cmd::Cmd, context::Context, parts::Report};

/// The pages.
const PAGES: [&str; 2] = ["README.md", "docs/proxy.md"];
/// Folders of the tree that commands name.
const NAMED: [&str; 2] = ["examples", "python"];

pub(crate) fn run(context: &Context, report: &mut Report) -> anyhow::Result<String> {
    let built = report.step("build", |_| context.built())?;
    let mut commands = 0;
    for page in PAGES {
        commands += run_page(context, report, &built.programs, page)?;
    }
    Ok(format!("{commands} commands"))
}

/// Runs the commands of a page; how many there are.
fn run_page(
    context: &Context,
    report: &mut Report,
    programs: &Path,
    page: &str,
) -> anyhow::Result<usize> {
    let text = fs::read_to_string(context.root().join(page));
    let text = text.with_context(|| format!("cannot read {page}"))?;
    let steps = percolator_transcript::steps(&text);
    if steps.is_empty() {
        bail!("{page} shows no commands");
    }
    let folder = tempfile::tempdir().context("cannot make a folder")?;
    let (home, logs) = (folder.path().join("readme"), folder.path().join("logs"));
    fs::create_dir(&logs)?;
    for named in NAMED {
        copy(&context.root().join(named), &home.join(named))?;
    }
    let mut shell = Shell::start(&Environment {
        folder: &home,
        programs,
        logs: &logs,
        cluster: None,
    })?;
    for (at, step) in steps.iter().enumerate() {
        println!(
            "$ {}{}",
            step.command,
            if step.background { " &" } else { "" }
        );
        let next = steps.get(at + 1);
        let lines = run_step(&mut shell, step, next)
            .with_context(|| format!("{page}:{}: {}", step.line, step.command))?;
        // No bound on it: how long it takes is this machine's affair. But it is to be seen.
        if let Some(took) = lines.iter().find_map(|line| ready_in(line)) {
            report.steps.push(("cluster ready".to_owned(), took));
        }
    }
    shell.stop()?;
    check_ignored(context.root(), &home)?;
    Ok(steps.len())
}

/// Anyone who types the commands in a clone finds it unchanged: git ignores what they leave.
fn check_ignored(root: &Path, home: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(home)? {
        let name = entry?.file_name();
        if NAMED.iter().any(|named| name == *named) {
            continue;
        }
        Cmd::new("git")
            .args(["check-ignore", "--quiet", "--"])
            .arg(&name)
            .dir(root)
            .run()
            .with_context(|| format!("{} is not in .gitignore", name.display()))?;
    }
    Ok(())
}

fn run_step(shell: &mut Shell, step: &Step, next: Option<&Step>) -> anyhow::Result<Vec<String>> {
    let outcome = step.run(shell, next, OmittedOutput::Any)?;
    for line in &outcome.output.lines {
        println!("{line}");
    }
    if let Some(mismatch) = outcome.mismatch {
        bail!("it doesn't print what the page shows:\n{mismatch}");
    }
    Ok(outcome.output.lines)
}

/// Reads how long the start took, of the line that `percolator up` prints.
fn ready_in(line: &str) -> Option<Duration> {
    let (seconds, _) = line.strip_prefix("ready in ")?.split_once(" s;")?;
    Duration::try_from_secs_f64(seconds.parse().ok()?).ok()
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_up_says_of_its_start_is_read() {
        let ready = ready_in("ready in 1.4 s; percolator -c 127.0.0.1:7400 reaches it");
        assert_eq!(ready, Some(Duration::from_millis(1400)));
        assert_eq!(ready_in("not ready in 1.4 s; go on"), None);
        assert_eq!(ready_in("ready in a moment"), None);
    }
}
