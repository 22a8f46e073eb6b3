//! A conflict in words: with which transaction, and on which cell, with the table's name in place of its number.

use percolator_client::{Cell, Client, Conflict, Table, escape};

/// Asks the master for the names; without them, numbers have to do.
pub(crate) async fn describe(client: &Client, conflict: &Conflict) -> String {
    let cluster = client.cluster().await;
    let tables = cluster.map_or_else(|_| Vec::new(), |cluster| cluster.tables);
    text(conflict, &tables)
}

fn text(conflict: &Conflict, tables: &[Table]) -> String {
    let name = |cell: &Cell| {
        let table = match tables.iter().find(|table| table.id == cell.table.0) {
            Some(table) => table.name.clone(),
            None => cell.table.0.to_string(),
        };
        format!(
            "table {table}, row {}, column {}",
            quoted(&cell.row),
            quoted(&cell.column)
        )
    };
    match conflict {
        Conflict::Committed {
            cell,
            with_start_ts,
            with_commit_ts,
        } => format!(
            "transaction {with_start_ts} committed {} at {with_commit_ts}, after this one began",
            name(cell)
        ),
        Conflict::Locked {
            cell,
            by_start_ts,
            primary,
        } => format!(
            "the older transaction {by_start_ts} (its primary: {}) is committing {}",
            name(primary),
            name(cell)
        ),
        Conflict::NotNotified { cell, .. } => format!(
            "no change waits for the acknowledgement {}: somebody else has acknowledged it, or the cell has changed since",
            name(cell)
        ),
        Conflict::RolledBack { cell } => format!(
            "this transaction was rolled back on {} by an older one, by hand, or for taking too long",
            name(cell)
        ),
    }
}

fn quoted(bytes: &[u8]) -> String {
    format!("\"{}\"", escape(bytes))
}

#[cfg(test)]
mod tests {
    use percolator_client::{TableId, Timestamp};

    use super::*;

    #[test]
    fn a_conflict_names_its_table() {
        let conflict = Conflict::Committed {
            cell: Cell::new(TableId(3), "bob\x00", "balance"),
            with_start_ts: Timestamp::from_u64(7),
            with_commit_ts: Timestamp::from_u64(9),
        };
        let table = Table {
            name: "accounts".into(),
            id: 3,
            ready: true,
            deleting: false,
            tablets: Vec::new(),
        };
        let expected =
            "transaction 7 committed table accounts, row \"bob\\x00\", column \"balance\" at 9";
        assert!(
            text(&conflict, &[table]).contains(expected),
            "{}",
            text(&conflict, &[])
        );
        assert!(text(&conflict, &[]).contains("table 3, row"));
    }
}
