//! Whether every link in the project's Markdown leads somewhere.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Component, Path, PathBuf},
};

use anyhow::{Context as _, bail};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::context::Context;

/// Folders whose Markdown belongs to the documentation, besides the files at the root.
const FOLDERS: [&str; 3] = ["docs", "docs/design", "docs/runbooks"];
/// A page, by the path of its Markdown below the project's folder.
type Pages = BTreeMap<String, Page>;

#[derive(Debug)]
struct Page {
    text: String,
    /// Of its headings.
    anchors: BTreeSet<String>,
}

/// Checks every link of every page.
pub(crate) fn check_all(context: &Context) -> anyhow::Result<String> {
    let pages = read(context.root())?;
    let wrong = check(context.root(), &pages);
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    let links: usize = pages.values().map(|page| page.links().count()).sum();
    Ok(format!("{links} links of {} pages", pages.len()))
}

fn read(root: &Path) -> anyhow::Result<Pages> {
    let mut pages = Pages::new();
    for folder in [""].iter().chain(&FOLDERS) {
        let Ok(entries) = fs::read_dir(root.join(folder)) else {
            continue;
        };
        for entry in entries {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.ends_with(".md") {
                let path = Path::new(folder).join(name).display().to_string();
                let text = fs::read_to_string(root.join(&path)).context(path.clone())?;
                pages.insert(path, Page::new(text));
            }
        }
    }
    Ok(pages)
}

/// Links that lead nowhere.
fn check(root: &Path, pages: &Pages) -> Vec<String> {
    let mut wrong = Vec::new();
    for (path, page) in pages {
        for link in page.links() {
            let Some(target) = target(path, &link) else {
                continue;
            };
            let anchors = pages.get(&target.path).map(|page| &page.anchors);
            match (anchors, target.anchor) {
                (Some(anchors), Some(anchor)) if !anchors.contains(&anchor) => {
                    wrong.push(format!("{path}: {link}: that page has no such heading"));
                }
                (None, _) if !root.join(&target.path).exists() => {
                    wrong.push(format!("{path}: {link}: there is no such file"));
                }
                _ => {}
            }
        }
    }
    wrong
}

/// The destination of a link within the project.
#[derive(Debug, PartialEq)]
struct Target {
    path: String,
    anchor: Option<String>,
}

/// `None`: to somewhere else.
fn target(from: &str, link: &str) -> Option<Target> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = match link.split_once('#') {
        Some((file, anchor)) => (file, Some(anchor.to_owned())),
        None => (link, None),
    };
    let path = match file {
        "" => from.to_owned(),
        file => {
            let mut path = PathBuf::new();
            let folder = Path::new(from).parent().unwrap_or(Path::new(""));
            for part in folder.join(file).components() {
                match part {
                    Component::ParentDir => drop(path.pop()),
                    Component::Normal(part) => path.push(part),
                    _ => {}
                }
            }
            path.display().to_string()
        }
    };
    Some(Target { path, anchor })
}

fn parser(text: &str) -> Parser<'_> {
    Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH)
}

impl Page {
    fn new(text: String) -> Self {
        Self {
            anchors: anchors(&text),
            text,
        }
    }

    fn links(&self) -> impl Iterator<Item = String> {
        parser(&self.text).filter_map(|event| match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                Some(dest_url.into_string())
            }
            _ => None,
        })
    }
}

/// Of the headings of a page, as code hosts number those of one name.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let mut times = BTreeMap::<String, usize>::new();
    let mut open: Option<String> = None;
    for event in parser(text) {
        match (event, &mut open) {
            (Event::Start(Tag::Heading { .. }), _) => open = Some(String::new()),
            (Event::Text(part) | Event::Code(part), Some(text)) => text.push_str(&part),
            (Event::End(TagEnd::Heading(_)), Some(text)) => {
                let slug = slug(text);
                open = None;
                let times = times.entry(slug.clone()).or_default();
                anchors.insert(match *times {
                    0 => slug,
                    earlier => format!("{slug}-{earlier}"),
                });
                *times += 1;
            }
            _ => {}
        }
    }
    anchors
}

/// As code hosts name headings: letters and digits in lower case, a hyphen for each blank.
fn slug(heading: &str) -> String {
    heading
        .chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || "-_".contains(c) => Some(c),
            _ => None,
        })
        .flat_map(char::to_lowercase)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(files: &[(&str, &str)]) -> Pages {
        let files = files.iter();
        files
            .map(|(path, text)| ((*path).to_owned(), Page::new((*text).to_owned())))
            .collect()
    }

    #[test]
    fn links_that_lead_nowhere_are_named() {
        let root = tempfile::tempdir().expect("a folder");
        fs::write(root.path().join("LICENSE"), "free").expect("a file");
        let pages = pages(&[
            (
                "README.md",
                "# P\n[a](docs/a.md) [b](docs/b.md) [l](LICENSE) [x](https://x.y/z)",
            ),
            (
                "docs/a.md",
                "# A & `b`\n## Twice\n## Twice\n[up](../README.md#p) [here](#a--b) [2](#twice-1) [no](#none) [gone](gone.txt)",
            ),
        ]);
        let wrong = check(root.path(), &pages);
        assert_eq!(wrong.len(), 3, "{wrong:?}");
        for (wrong, expected) in
            wrong
                .iter()
                .zip(["docs/b.md: there", "#none: that page", "gone.txt"])
        {
            assert!(wrong.contains(expected), "{wrong}");
        }
    }
}
