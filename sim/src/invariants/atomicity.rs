//! A transaction is committed on all of its cells, over tables and servers, at one commit_ts, or on none
//! (paper, section 2.2).

use super::Invariant;
use crate::end::End;

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
    use super::super::made_up::{assert_broken, record, said, version, wrote};
    use super::*;
    use crate::history::End as Ended;

    /// What is said of a transaction that began at 5 and wrote to the rows `a` and `b`, and is committed
    /// there at these timestamps. One of another transaction is on both cells too.
    fn seen(a: Option<u64>, b: Option<u64>) -> Result<(), String> {
        let ops = vec![wrote("a", None), wrote("b", None)];
        let stored = [("a", a), ("b", b)].map(|(row, commit_ts)| {
            let ours = commit_ts.map(|commit_ts| version(5, commit_ts, None));
            (row, [version(1, 2, None)].into_iter().chain(ours).collect())
        });
        said(
            &mut Atomicity,
            &[record(5, 0, ops, Ended::Unknown)],
            &stored,
        )
    }

    #[test]
    fn it_is_committed_everywhere_or_nowhere() {
        assert_eq!(seen(Some(7), Some(7)), Ok(()));
        assert_eq!(seen(None, None), Ok(()));
        for (a, b) in [(Some(7), None), (None, Some(7)), (Some(7), Some(8))] {
            assert_broken(seen(a, b), "is committed on t/a:c");
        }
    }
}
