//! A transaction is committed on all of its cells, over tables and servers, at one commit_ts, or on none
//! (paper, section 2.2).

use super::Invariant;
use crate::watch::End;

pub(super) struct Atomicity;

impl Invariant for Atomicity {
    fn name(&self) -> &'static str {
        "atomic"
    }

    fn at_end(&mut self, end: &End<'_>) -> Result<(), String> {
        for record in end.history {
            let start_ts = record.start_ts;
            let mut seen = None;
            for write in record.writes() {
                let cell = write.cell.cell(end.tables);
                let commit_ts = end.store.versions.get(&cell).and_then(|versions| {
                    let ours = versions.iter().find(|version| version.start_ts == start_ts);
                    ours.map(|version| version.commit_ts)
                });
                match &seen {
                    None => seen = Some((commit_ts, &write.cell)),
                    Some((other_ts, _)) if *other_ts == commit_ts => {}
                    Some((other_ts, other)) => {
                        return Err(format!(
                            "transaction {start_ts} of {} is committed on {other} at {} and on {} at {}",
                            record.client,
                            shown(*other_ts),
                            write.cell,
                            shown(commit_ts)
                        ));
                    }
                }
            }
        }
        Ok(())
    }
}

fn shown(ts: Option<percolator_protocol::types::Timestamp>) -> String {
    ts.map_or_else(|| "no time".to_owned(), |ts| ts.to_string())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bytes::Bytes;
    use percolator_protocol::types::{Timestamp, WriteKind};

    use super::*;
    use crate::history::{CellName, End as Ended, Op, Record, Write};
    use crate::watch::{Store, Version};

    fn cell(table: &str) -> CellName {
        CellName {
            table: table.to_owned(),
            row: Bytes::from_static(b"row"),
            column: Bytes::new(),
        }
    }

    /// What is said of a transaction that began at 5 and wrote to the tables `a` and `b`, and is committed
    /// there at these timestamps. One of another transaction is on both cells too.
    fn seen(a: Option<u64>, b: Option<u64>) -> Result<(), String> {
        let tables = BTreeMap::from([("a".to_owned(), 1), ("b".to_owned(), 2)]);
        let version = |start_ts, commit_ts| Version {
            commit_ts: Timestamp::from_u64(commit_ts),
            start_ts: Timestamp::from_u64(start_ts),
            kind: WriteKind::Delete,
            value: None,
        };
        let written = [("a", a), ("b", b)];
        let mut store = Store::default();
        for (table, commit_ts) in written {
            let ours = commit_ts.map(|commit_ts| version(5, commit_ts));
            let versions = [version(1, 2)].into_iter().chain(ours).collect();
            store.versions.insert(cell(table).cell(&tables), versions);
        }
        let ops = written.map(|(table, _)| {
            Op::Write(Write {
                cell: cell(table),
                value: None,
                is_lock: false,
            })
        });
        let history = [Record {
            client: "client".to_owned(),
            began_us: 0,
            ended_us: u64::MAX,
            start_ts: Timestamp::from_u64(5),
            fresh: true,
            ops: ops.into(),
            end: Ended::Unknown,
        }];
        Atomicity.at_end(&End {
            history: &history,
            tables: &tables,
            store: &store,
            contents: &BTreeMap::new(),
            owned: &BTreeMap::new(),
        })
    }

    #[test]
    fn it_is_committed_everywhere_or_nowhere() {
        assert_eq!(seen(Some(7), Some(7)), Ok(()));
        assert_eq!(seen(None, None), Ok(()));
        for (a, b) in [(Some(7), None), (None, Some(7)), (Some(7), Some(8))] {
            let broken = seen(a, b).expect_err("a part of it");
            assert!(broken.contains("is committed on a/row:"), "{broken}");
        }
    }
}
