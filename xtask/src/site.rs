//! `cargo xtask docs`: the project's Markdown as pages for a browser, and whether every link in it leads somewhere.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Component, Path, PathBuf},
};

use anyhow::{Context as _, bail};
use pulldown_cmark::{CowStr, Event, HeadingLevel, Options, Parser, Tag, TagEnd, html};

use crate::context::Context;

/// Folders whose Markdown belongs to the documentation, besides the files at the root.
const FOLDERS: [&str; 2] = ["docs", "docs/runbooks"];
/// The page that one begins with.
const FIRST: &str = "README.md";

const STYLE: &str = "\
:root { color-scheme: light dark; }
body { margin: 0; font: 16px/1.55 system-ui, sans-serif; }
nav { padding: 1rem 1.5rem; font-size: 0.9rem; }
nav a { display: block; padding: 0.15rem 0; text-decoration: none; }
nav a[aria-current] { font-weight: 600; }
main { max-width: 52rem; padding: 1rem 1.5rem 4rem; overflow-x: auto; }
pre { padding: 0.8rem 1rem; overflow-x: auto; border: 1px solid #8884; border-radius: 4px; }
code { font-size: 0.9em; }
table { border-collapse: collapse; font-size: 0.92rem; }
th, td { padding: 0.3rem 0.6rem; border: 1px solid #8884; text-align: left; vertical-align: top; }
@media (min-width: 62rem) {
  body { display: grid; grid-template-columns: 15rem 1fr; }
  nav { position: sticky; top: 0; height: 100vh; overflow-y: auto; box-sizing: border-box; border-right: 1px solid #8884; }
}
";

/// A page, by the path of its Markdown below the project's folder.
type Pages = BTreeMap<String, Page>;

#[derive(Debug)]
struct Page {
    title: String,
    text: String,
    /// Of its headings.
    anchors: BTreeSet<String>,
}

/// Writes the pages below the target folder, and says where they begin.
pub(crate) fn run(context: &Context) -> anyhow::Result<()> {
    let root = context.root();
    let pages = read(root)?;
    let wrong = check(root, &pages);
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    let folder = context.metadata()?.target.join("site");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    for (path, page) in &pages {
        let file = folder.join(place(path));
        fs::create_dir_all(file.parent().unwrap_or(&folder))?;
        fs::write(&file, render(path, page, &pages))?;
        // Files that pages lead to come along.
        for target in page.links().filter_map(|link| target(path, &link)) {
            let (from, to) = (root.join(&target.path), folder.join(&target.path));
            if from.is_file() && !pages.contains_key(&target.path) {
                fs::create_dir_all(to.parent().unwrap_or(&folder))?;
                fs::copy(from, to)?;
            }
        }
    }
    println!(
        "{} pages: {}",
        pages.len(),
        folder.join("index.html").display()
    );
    Ok(())
}

/// Looks at every link of every page.
pub(crate) fn check_links(context: &Context) -> anyhow::Result<String> {
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

/// Where a link leads within the project.
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

/// Where a page lies in the site.
fn place(path: &str) -> String {
    match path.strip_suffix(".md") {
        _ if path == FIRST => "index.html".to_owned(),
        Some(stem) => format!("{stem}.html"),
        None => path.to_owned(),
    }
}

/// A link from one page's place to another place.
fn relative(from: &str, to: &str) -> String {
    let up = from.matches('/').count();
    format!("{}{to}", "../".repeat(up))
}

fn parser(text: &str) -> Parser<'_> {
    Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH)
}

impl Page {
    fn new(text: String) -> Self {
        let headings = headings(&text);
        let title = headings
            .iter()
            .find(|heading| heading.level == HeadingLevel::H1);
        Self {
            title: title.map_or_else(|| "Percolator".to_owned(), |heading| heading.text.clone()),
            anchors: headings.into_iter().map(|heading| heading.anchor).collect(),
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

#[derive(Debug)]
struct Heading {
    level: HeadingLevel,
    text: String,
    anchor: String,
}

fn headings(text: &str) -> Vec<Heading> {
    let mut headings: Vec<Heading> = Vec::new();
    let mut open: Option<(HeadingLevel, String)> = None;
    for event in parser(text) {
        match (event, &mut open) {
            (Event::Start(Tag::Heading { level, .. }), _) => open = Some((level, String::new())),
            (Event::Text(part) | Event::Code(part), Some((_, text))) => text.push_str(&part),
            (Event::End(TagEnd::Heading(_)), Some(_)) => {
                if let Some((level, text)) = open.take() {
                    let slug = slug(&text);
                    let same = headings
                        .iter()
                        .filter(|other| self::slug(&other.text) == slug);
                    let anchor = match same.count() {
                        0 => slug,
                        earlier => format!("{slug}-{earlier}"),
                    };
                    headings.push(Heading {
                        level,
                        text,
                        anchor,
                    });
                }
            }
            _ => {}
        }
    }
    headings
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

fn render(path: &str, page: &Page, pages: &Pages) -> String {
    let here = place(path);
    let mut anchors = headings(&page.text)
        .into_iter()
        .map(|heading| heading.anchor);
    let events = parser(&page.text).map(|event| match event {
        Event::Start(Tag::Heading {
            level,
            classes,
            attrs,
            ..
        }) => Event::Start(Tag::Heading {
            level,
            id: anchors.next().map(CowStr::from),
            classes,
            attrs,
        }),
        Event::Start(Tag::Link {
            link_type,
            dest_url,
            title,
            id,
        }) => Event::Start(Tag::Link {
            link_type,
            dest_url: match target(path, &dest_url) {
                Some(target) => {
                    let anchor = target.anchor.map(|anchor| format!("#{anchor}"));
                    let link = relative(&here, &place(&target.path));
                    format!("{link}{}", anchor.unwrap_or_default()).into()
                }
                None => dest_url,
            },
            title,
            id,
        }),
        event => event,
    });
    let mut body = String::new();
    html::push_html(&mut body, events);
    let mut nav = String::new();
    let first = pages.get_key_value(FIRST);
    let others = pages.iter().filter(|(path, _)| *path != FIRST);
    for (other, page) in first.into_iter().chain(others) {
        let current = if other == path {
            " aria-current=\"page\""
        } else {
            ""
        };
        let link = relative(&here, &place(other));
        // A string takes everything.
        let _ = writeln!(
            nav,
            "<a href=\"{link}\"{current}>{}</a>",
            escaped(&page.title)
        );
    }
    let title = escaped(&page.title);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n\
         <style>\n{STYLE}</style></head>\n<body><nav>\n{nav}</nav><main>\n{body}</main></body></html>\n"
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
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
                "# A & `b`\n[up](../README.md#p) [here](#a--b) [no](#none) [gone](gone.txt)",
            ),
        ]);
        let wrong = check(root.path(), &pages);
        assert_eq!(wrong.len(), 3, "{wrong:?}");
        for (wrong, told) in wrong
            .iter()
            .zip(["docs/b.md: there", "#none: that page", "gone.txt"])
        {
            assert!(wrong.contains(told), "{wrong}");
        }
    }

    #[test]
    fn pages_lead_to_pages() {
        let pages = pages(&[
            ("README.md", "# P\n[a](docs/a.md#a)"),
            (
                "docs/a.md",
                "# A\n## Twice\n## Twice\n[up](../README.md) [file](../x/y.yaml)",
            ),
        ]);
        let first = render("README.md", &pages["README.md"], &pages);
        assert!(first.contains("<a href=\"docs/a.html#a\">a</a>"), "{first}");
        let page = render("docs/a.md", &pages["docs/a.md"], &pages);
        for part in [
            "<a href=\"../index.html\">up</a>",
            "<a href=\"../x/y.yaml\">file</a>",
            "<h2 id=\"twice\">",
            "<h2 id=\"twice-1\">",
            "<a href=\"../docs/a.html\" aria-current=\"page\">A</a>",
        ] {
            assert!(page.contains(part), "{part}\n{page}");
        }
    }
}
