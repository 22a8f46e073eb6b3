//! Checks of files' content and size, and of commits' subjects. A long file is a warning: the lints limit functions.

use std::{fs, path::Path};

use anyhow::{Context as _, bail};

use crate::{cmd::Cmd, context::Context};

/// Hosts of package registries, which are the business of each machine's configuration. In pieces, as this file is
/// checked too.
const REGISTRY_HOSTS: [&str; 6] = [
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("npmjs", ".com"),
    concat!("npmjs", ".org"),
    concat!("proxy.golang", ".org"),
    concat!("rubygems", ".org"),
];

/// Folders that only the machine of anyone who wrote it has.
const PRIVATE_FOLDERS: [&str; 5] = [
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/Us", "ers/"),
    concat!("/wo", "rk/"),
    concat!("/tmp/", "wt-"),
];

/// Written by cargo, with the registry in each line.
const LOCK_FILE: &str = "Cargo.lock";

/// Subjects of later commits are checked, if this one is known: a clone may be shallow.
const SUBJECTS_SINCE: &str = "f3f61ba251e3a2ffd1541184b4fdafecb12a82f8";
const SUBJECT_CHARS_MAX: usize = 72;

/// A longer file is a warning: it probably holds a second thing.
const RUST_LINES_MAX: usize = 600;
/// Past this it belongs somewhere else.
const FILE_BYTES_MAX: u64 = 1 << 20;

pub(crate) fn run(context: &Context) -> anyhow::Result<String> {
    let root = context.root();
    // New files too, so that they are checked before they are committed.
    let files = Cmd::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .dir(root)
        .output()
        .context("git has to list the project's files")?;
    let (mut wrong, mut long, mut count) = (Vec::new(), Vec::new(), 0);
    for name in files.split('\0').filter(|name| !name.is_empty()) {
        let path = root.join(name);
        // Deleted and not yet committed, or a link.
        if !path.symlink_metadata().is_ok_and(|file| file.is_file()) {
            continue;
        }
        if let Some(text) = text_of(name, &path, &mut wrong).with_context(|| name.to_owned())? {
            wrong.extend(check_text(name, &text));
            long.extend(check_length(name, &text));
        }
        count += 1;
    }
    for warning in long {
        println!("warning: {warning}");
    }
    let subjects = subjects(root)?;
    wrong.extend(subjects.lines().filter_map(check_subject));
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    let subjects = subjects.lines().count();
    Ok(format!("{count} files, {subjects} subjects of commits"))
}

/// The first lines of the newest commits, merges left out.
fn subjects(root: &Path) -> anyhow::Result<String> {
    let git = |arguments: &[&str]| Cmd::new("git").args(arguments).dir(root);
    let is_there = git(&["cat-file", "-e", SUBJECTS_SINCE]);
    if !is_there.works() {
        return Ok(String::new());
    }
    let since = format!("{SUBJECTS_SINCE}..HEAD");
    git(&["log", "--no-merges", "--format=%s", &since]).output()
}

/// The error in a commit's subject, if there is one: it is `area: what changes`, and short.
fn check_subject(subject: &str) -> Option<String> {
    let chars = subject.chars().count();
    if chars > SUBJECT_CHARS_MAX {
        return Some(format!(
            "a commit's subject has {chars} characters, more than {SUBJECT_CHARS_MAX}: {subject}"
        ));
    }
    let is_lower = |text: &str| text.starts_with(|c: char| c.is_ascii_lowercase());
    let has_area = subject
        .split_once(": ")
        .is_some_and(|(area, change)| is_lower(area) && is_lower(change));
    (!has_area).then(|| format!("a commit's subject isn't `area: what changes`: {subject}"))
}

/// The content of a file, if it is text and not too large.
fn text_of(name: &str, path: &Path, wrong: &mut Vec<String>) -> anyhow::Result<Option<String>> {
    let bytes = path.metadata()?.len();
    if bytes > FILE_BYTES_MAX {
        wrong.push(format!("{name}: {bytes} bytes, more than {FILE_BYTES_MAX}"));
        return Ok(None);
    }
    Ok(String::from_utf8(fs::read(path)?).ok())
}

fn check_length(name: &str, text: &str) -> Option<String> {
    let lines = text.lines().count();
    (name.ends_with(".rs") && lines > RUST_LINES_MAX)
        .then(|| format!("{name}: {lines} lines, more than {RUST_LINES_MAX}"))
}

fn check_text(name: &str, text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        if name != LOCK_FILE
            && let Some(host) = REGISTRY_HOSTS.iter().find(|host| line.contains(**host))
        {
            wrong.push(format!("{name}:{number}: names a registry, {host}"));
        }
        if let Some(folder) = PRIVATE_FOLDERS.iter().find(|folder| has_path(line, folder)) {
            wrong.push(format!(
                "{name}:{number}: names a folder of one machine, {folder}"
            ));
        }
    }
    wrong
}

/// Whether a path that starts with `folder` is in the line. In the middle of a longer path, or of an
/// address, it is something else.
fn has_path(line: &str, folder: &str) -> bool {
    let goes_on = |c: char| c.is_alphanumeric() || "._-/}".contains(c);
    line.match_indices(folder)
        .any(|(at, _)| !line[..at].ends_with(goes_on))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registries_are_named_in_the_lock_file_alone() {
        let line = format!("source = \"https://{}/\"", REGISTRY_HOSTS[0]);
        assert_eq!(check_text("README.md", &line).len(), 1);
        assert_eq!(check_text("Cargo.lock", &line), Vec::<String>::new());
    }

    #[test]
    fn subjects_name_their_area_and_are_short() {
        assert_eq!(
            check_subject("xtask, docs: check subjects of commits"),
            None
        );
        let long = format!("docs: {}", "a".repeat(67));
        for wrong in ["Check subjects", "docs: Check subjects", &long] {
            assert!(check_subject(wrong).is_some(), "{wrong}");
        }
        assert_eq!(check_subject(&long[..72]), None);
    }

    #[test]
    fn private_folders_are_found() {
        let folder = PRIVATE_FOLDERS[0];
        for line in [format!("cd {folder}me"), format!("\"{folder}me\"")] {
            assert_eq!(check_text("a.md", &line).len(), 1, "{line}");
        }
        for line in [
            format!("https://example.com{folder}page"),
            "cd ~".to_owned(),
        ] {
            assert_eq!(check_text("a.md", &line), Vec::<String>::new(), "{line}");
        }
    }

    #[test]
    fn long_rust_files_are_found() {
        let text = "\n".repeat(RUST_LINES_MAX + 1);
        assert!(check_length("a.rs", &text).is_some());
        assert_eq!(check_length("a.txt", &text), None);
        assert_eq!(check_length("a.rs", &text[1..]), None);
    }
}
