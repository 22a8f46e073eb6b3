//! Readers at old snapshots, of whatever tables there are: `invariants/exact_reads` knows what they should
//! have seen.

use percolator_client::{Error, Timestamp};

use super::TableSpec;
use crate::recorder::Session;

/// Reads some table at some snapshot that the worker has had before.
///
/// # Errors
/// The client library's.
pub async fn read(
    session: &Session,
    tables: &[TableSpec],
    snapshots: &[Timestamp],
) -> Result<(), Error> {
    let (snapshot, table) = {
        let mut rng = session.rng.lock();
        (*rng.pick(snapshots), rng.pick(tables).0)
    };
    let txn = session.begin_at(snapshot).await?;
    let reverse = session.below(2) == 0;
    let cells = txn.scan(table, "", "", reverse).await?;
    if let Some((row, column, _)) = cells.first()
        && let (Ok(row), Ok(column)) = (std::str::from_utf8(row), std::str::from_utf8(column))
    {
        txn.get(table, row, column).await?;
    }
    txn.commit().await.map(drop)
}
