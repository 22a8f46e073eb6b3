//! Observers that keep tables in agreement with documents that change (the paper, sections 1 and 2.4): each text is parsed; who
//! links to whom is inverted, and then how many links each has; texts with the same words are found. `cargo run --release
//! -p percolator-client --example documents [MASTER]`. The documents are the descriptions of this machine's Debian packages, which
//! link to those that they depend on, or four others where there are none. It prints:
//!
//! ```text
//! texts are parsed, links inverted and counted, and copies found
//! as one pass over all texts finds them
//! ```
//!
//! `documents MASTER work`, `documents MASTER write COUNT` and `documents MASTER check COUNT` do parts of this in processes of
//! their own, with so many documents: there may be many workers, and each may be killed at any time.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::time::Duration;

use anyhow::bail;
use percolator_client::{
    Change, Client, Error, HandlerError, Observer, ObserverWorker, OpenTxn, Options, Range,
};

/// Where Debian keeps the descriptions of what is installed.
const PACKAGES: &str = "/var/lib/dpkg/status";
const DOCUMENTS: usize = 400;
/// Servers that are killed are there again within this, or something is wrong.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The observed columns of the documents, in the order in which a change goes through them.
const OBSERVED: [&str; 4] = ["text", "hash", "links", "links-done"];

/// A text: its links in the first line, and its words.
type Documents = BTreeMap<String, String>;
/// Rows and columns: who is linked to by whom, which texts have the same words, which have so many links.
type Pairs = BTreeSet<(String, String)>;
const TABLES: [&str; 3] = ["linked", "copies", "degrees"];

/// The links of a text, which its first line has.
fn links(text: &str) -> BTreeSet<&str> {
    let line = text.lines().next().unwrap_or_default();
    line.split_whitespace().collect()
}

/// The same for two texts with the same words.
fn hash(text: &str) -> String {
    let mut hasher = DefaultHasher::new();
    for word in text.lines().skip(1).flat_map(str::split_whitespace) {
        word.to_lowercase().hash(&mut hasher);
    }
    format!("{:016x}", hasher.finish())
}

fn words(value: &str) -> BTreeSet<String> {
    value.split_whitespace().map(str::to_owned).collect()
}

/// How many links there are.
fn degree(links: &str) -> BTreeSet<String> {
    let degree = links.split_whitespace().count();
    BTreeSet::from([format!("{degree:04}")])
}

/// Runs when a text changes: what others need of it becomes cells of its row.
async fn parse(change: Change, txn: OpenTxn) -> Result<(), HandlerError> {
    let row = &change.row;
    match &change.value {
        Some(text) => {
            let text = std::str::from_utf8(text)?;
            let links: Vec<&str> = links(text).into_iter().collect();
            txn.put("documents", row, "links", links.join(" "))?;
            txn.put("documents", row, "hash", hash(text))?;
        }
        None => {
            txn.delete("documents", row, "links")?;
            txn.delete("documents", row, "hash")?;
        }
    }
    Ok(())
}

/// Runs when a parsed cell changes: in another table each of its keys has a row, with a column for this document.
/// `done` is the cell with what was entered there the last time.
async fn invert(
    change: Change,
    txn: OpenTxn,
    (table, done): (&'static str, &'static str),
    keys: fn(&str) -> BTreeSet<String>,
) -> Result<(), HandlerError> {
    let row = &change.row;
    let before = txn.get("documents", row, done).await?;
    let keys = |value: Option<&[u8]>| -> Result<BTreeSet<String>, HandlerError> {
        let text = value.map(std::str::from_utf8).transpose()?;
        Ok(text.map(keys).unwrap_or_default())
    };
    let (before, now) = (keys(before.as_deref())?, keys(change.value.as_deref())?);
    for gone in before.difference(&now) {
        txn.delete(table, gone, row)?;
    }
    for new in now.difference(&before) {
        txn.put(table, new, row, "")?;
    }
    match change.value {
        Some(value) => txn.put("documents", row, done, value)?,
        None => txn.delete("documents", row, done)?,
    }
    Ok(())
}

/// What the observers are to find, in one pass, by table.
fn one_pass(documents: &Documents) -> [Pairs; 3] {
    let [mut linked, mut copies, mut degrees] = [const { Pairs::new() }; 3];
    for (name, text) in documents {
        let links = links(text);
        degrees.insert((format!("{:04}", links.len()), name.clone()));
        linked.extend(links.iter().map(|it| ((*it).to_owned(), name.clone())));
        copies.insert((hash(text), name.clone()));
    }
    [linked, copies, degrees]
}

/// What they have found.
async fn found(client: &Client) -> Result<[Pairs; 3], Error> {
    let txn = client.begin().await?;
    let mut found = [const { Pairs::new() }; 3];
    for (table, pairs) in TABLES.into_iter().zip(&mut found) {
        let cells = txn.scan(table, Range::all()).await?.collect().await?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        pairs.extend(
            cells
                .iter()
                .map(|cell| (text(&cell.row), text(&cell.column))),
        );
    }
    Ok(found)
}

/// So many documents: the packages' descriptions, and again with other names, which have links to each other.
fn documents(count: usize) -> Documents {
    let packages = packages();
    let mut documents = Documents::new();
    for number in 0..count {
        let (round, at) = (number / packages.len(), number % packages.len());
        let (name, links, text) = &packages[at];
        let named = |name: &str| match round {
            0 => name.to_owned(),
            _ => format!("{name}~{round}"),
        };
        let links: Vec<String> = links.iter().map(|it| named(it)).collect();
        documents.insert(named(name), format!("{}\n{text}", links.join(" ")));
    }
    documents
}

/// Names, links and texts.
fn packages() -> Vec<(String, Vec<String>, String)> {
    let status = std::fs::read_to_string(PACKAGES).unwrap_or_default();
    let mut packages = Vec::new();
    for package in status.split("\n\n") {
        let field = |name: &str| {
            let (_, rest) = package.split_once(&format!("\n{name}: "))?;
            // Lines that go on begin with a space.
            let lines = rest
                .split("\n ")
                .map(|line| line.lines().next().unwrap_or_default());
            let goes_on = rest
                .lines()
                .skip(1)
                .take_while(|line| line.starts_with(' '))
                .count();
            Some(lines.take(1 + goes_on).collect::<Vec<_>>().join("\n"))
        };
        let Some(name) = package
            .strip_prefix("Package: ")
            .and_then(|it| it.lines().next())
        else {
            continue;
        };
        let depends = field("Depends").unwrap_or_default();
        let depends = depends
            .split(['|', ','])
            .filter_map(|it| it.split_whitespace().next());
        let links = depends.map(str::to_owned).collect();
        let description = field("Description").unwrap_or_default();
        packages.push((name.to_owned(), links, description));
    }
    if packages.is_empty() {
        let texts = [
            ("a", "b c", "one text"),
            ("b", "", "another"),
            ("c", "a", "One text"),
            ("d", "a b", ""),
        ];
        packages.extend(texts.map(|(name, links, text)| {
            let links = words(links).into_iter().collect();
            (name.to_owned(), links, text.to_owned())
        }));
    }
    packages
}

/// What becomes of them later: some get the next one's text, so that they are copies, and some go. Also the names of those.
fn later(mut documents: Documents) -> (Documents, Vec<String>) {
    let texts: Vec<String> = documents.values().cloned().collect();
    for (text, next) in documents.values_mut().zip(&texts[1..]).step_by(3) {
        text.clone_from(next);
    }
    let gone: Vec<String> = documents.keys().step_by(5).cloned().collect();
    documents.retain(|name, _| !gone.contains(name));
    (documents, gone)
}

/// Writes them, and forgets those that are none any more.
async fn write(client: &Client, documents: &Documents, gone: &[String]) -> Result<(), Error> {
    let all: Vec<_> = documents.iter().collect();
    for some in all.chunks(100) {
        client
            .transact(|txn| async move {
                for (name, text) in some {
                    txn.put("documents", name, "text", text.to_string())?;
                }
                Ok(())
            })
            .await?;
    }
    for some in gone.chunks(100) {
        client
            .transact(|txn| async move {
                some.iter()
                    .try_for_each(|name| txn.delete("documents", name, "text"))
            })
            .await?;
    }
    Ok(())
}

/// Waits until the observers have run for everything, and compares what they have found with what one pass finds.
async fn agree(client: &Client, documents: &Documents) -> anyhow::Result<()> {
    for column in OBSERVED {
        // What waits here makes more for the columns behind it.
        while !client.observed("documents", column).await?.is_idle() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    let (expected, found) = (one_pass(documents), found(client).await?);
    for ((table, expected), found) in TABLES.iter().zip(&expected).zip(&found) {
        let (missing, wrong) = (expected.difference(found), found.difference(expected));
        let (missing, wrong): (Vec<_>, Vec<_>) = (missing.collect(), wrong.collect());
        if !missing.is_empty() || !wrong.is_empty() {
            bail!(
                "{table} differs: {} of {} pairs are missing, such as {:?}; {} are too many, such as {:?}",
                missing.len(),
                expected.len(),
                missing.first(),
                wrong.len(),
                wrong.first()
            );
        }
    }
    Ok(())
}

/// Makes the tables, which may be there.
async fn prepare(client: &Client) -> Result<(), Error> {
    for table in ["documents"].into_iter().chain(TABLES) {
        match client.create_table(table, &["m".into()]).await {
            Ok(()) | Err(Error::AlreadyExists(_)) => {}
            Err(error) => return Err(error),
        }
    }
    for column in OBSERVED {
        client.observe("documents", column).await?;
    }
    Ok(())
}

/// Starts one of each observer.
async fn work(client: &Client) -> Result<Vec<ObserverWorker>, Error> {
    let observers = [
        Observer::new("documents", "text", parse),
        Observer::new("documents", "links", |change, txn| {
            invert(change, txn, ("linked", "links-done"), words)
        }),
        Observer::new("documents", "links-done", |change, txn| {
            invert(change, txn, ("degrees", "degree-done"), degree)
        }),
        Observer::new("documents", "hash", |change, txn| {
            invert(change, txn, ("copies", "hash-done"), words)
        }),
    ];
    let mut workers = Vec::new();
    for observer in observers {
        workers.push(observer.start(client).await?);
    }
    Ok(workers)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let master = arguments
        .next()
        .or_else(|| std::env::var("PERCOLATOR_CLUSTER").ok())
        .unwrap_or_else(|| "127.0.0.1:7400".into());
    let part = arguments.next();
    let count = arguments.next().map(|count| count.parse()).transpose()?;
    let documents = documents(count.unwrap_or(DOCUMENTS));
    let options = Options {
        request_timeout: TIMEOUT,
        ..Options::default()
    };
    let client = Client::connect_with(&master, options).await?;
    prepare(&client).await?;
    match part.as_deref() {
        None => {
            let workers = work(&client).await?;
            write(&client, &documents, &[]).await?;
            agree(&client, &documents).await?;
            let (documents, gone) = later(documents);
            write(&client, &documents, &gone).await?;
            agree(&client, &documents).await?;
            for worker in workers {
                worker.stop().await;
            }
        }
        Some("work") => {
            let _workers = work(&client).await?;
            std::future::pending::<()>().await;
        }
        Some("write") => {
            write(&client, &documents, &[]).await?;
            let (documents, gone) = later(documents);
            write(&client, &documents, &gone).await?;
        }
        Some("check") => agree(&client, &later(documents).0).await?,
        Some(other) => bail!("{other} is none of work, write and check"),
    }
    client.settle().await;
    if matches!(part.as_deref(), None | Some("check")) {
        let mut out = std::io::stdout();
        writeln!(
            out,
            "texts are parsed, links inverted and counted, and copies found"
        )?;
        writeln!(out, "as one pass over all texts finds them")?;
    }
    Ok(())
}
