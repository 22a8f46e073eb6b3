//! Where the room of a redb store goes: `cargo run --release -p percolator-engine --example space -- data/tablet-0`,
//! of a server that is stopped.

#![allow(clippy::print_stdout)] // It is what it is for.

use std::path::Path;

use redb::{Builder, ReadableDatabase, ReadableTableMetadata, TableDefinition, TableHandle};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("which folder?")?;
    let file = Path::new(&folder).join("store/data.redb");
    let database = Builder::new().open_read_only(&file)?;
    let read = database.begin_read()?;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!("column       entries      bytes  of pages  half empty   an entry, MiB and bytes");
    for table in read.list_tables()? {
        let definition: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new(table.name());
        let table = read.open_table(definition)?;
        let stats = table.stats()?;
        println!(
            "{:<10} {:>9} {:>10.1} {:>9.1} {:>11.1} {:>10.1}   {} leaves, {} branches, depth {}",
            definition.name(),
            table.len()?,
            mib(stats.stored_bytes()),
            mib(stats.metadata_bytes()),
            mib(stats.fragmented_bytes()),
            stats.stored_bytes() as f64 / table.len()?.max(1) as f64,
            stats.leaf_pages(),
            stats.branch_pages(),
            stats.tree_height(),
        );
    }
    Ok(())
}
