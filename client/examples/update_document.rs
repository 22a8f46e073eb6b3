//! The paper's example (section 2.1, figure 2): a crawled page, the table that finds its duplicates by
//! their content's hash, and its inverted links, kept in agreement by one transaction over three
//! tables: `cargo run --release -p percolator-client --example update_document [MASTER]`. It prints:
//!
//! ```text
//! a.example/one is a copy of a.example/one
//! b.example/copy is a copy of a.example/one
//! a.example/one points at paper.example
//! b.example/copy points at paper.example
//! ```

use std::hash::{DefaultHasher, Hash, Hasher};

use percolator_client::{Bytes, Client, Error, Range};

struct Document {
    url: &'static str,
    contents: &'static str,
    links: &'static [&'static str],
}

/// Stores the document. Returns the URL under which its contents were found first.
async fn update_document(client: &Client, document: &Document) -> Result<Bytes, Error> {
    client
        .transact(|txn| async move {
            txn.put("pages", document.url, "contents", document.contents)?;
            for link in document.links {
                // Who points at this page: its row, a column for each source.
                txn.put("links", link, document.url, "")?;
            }
            let mut hasher = DefaultHasher::new();
            document.contents.hash(&mut hasher);
            let hash = format!("{:016x}", hasher.finish());
            // No canonical page for these contents yet: this is it. The read takes part in the commit,
            // so that of two pages that come at the same time one is the copy of the other.
            let canonical = txn.get_for_update("dups", &hash, "canonical-url").await?;
            if let Some(canonical) = canonical {
                return Ok(canonical);
            }
            txn.put("dups", &hash, "canonical-url", document.url)?;
            Ok(Bytes::from_static(document.url.as_bytes()))
        })
        .await
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    use std::io::Write;
    let master = std::env::args()
        .nth(1)
        .or_else(|| std::env::var("PERCOLATOR_CLUSTER").ok())
        .unwrap_or_else(|| "127.0.0.1:7400".into());
    let client = Client::connect(&master).await?;
    for table in ["pages", "links", "dups"] {
        match client.create_table(table, &["m".into()]).await {
            Ok(()) | Err(Error::AlreadyExists(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let crawled = [
        Document {
            url: "a.example/one",
            contents: "snapshots and locks",
            links: &["paper.example", "a.example/two"],
        },
        Document {
            url: "b.example/copy",
            contents: "snapshots and locks",
            links: &["paper.example"],
        },
    ];
    let mut out = std::io::stdout();
    for document in &crawled {
        let canonical = update_document(&client, document).await?;
        writeln!(
            out,
            "{} is a copy of {}",
            document.url,
            String::from_utf8_lossy(&canonical)
        )?;
    }
    let txn = client.begin().await?;
    let sources = txn
        .scan("links", Range::row("paper.example"))
        .await?
        .collect()
        .await?;
    anyhow::ensure!(sources.len() == 2, "a link is missing");
    for source in sources {
        writeln!(
            out,
            "{} points at paper.example",
            String::from_utf8_lossy(&source.column)
        )?;
    }
    client.settle().await;
    Ok(())
}
