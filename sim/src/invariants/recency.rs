//! A snapshot that is taken after a commit was answered lies above it (strict snapshot isolation; the
//! client library requests every timestamp after the call for it began, `client/src/oracle`).

use percolator_protocol::types::Timestamp;

use super::Invariant;
use crate::end::End;
use crate::history::End as Ended;

pub(super) struct Recency;

impl Invariant for Recency {
    fn name(&self) -> &'static str {
        "recency"
    }

    fn at_end(&mut self, end: &End<'_>) -> Result<(), String> {
        let mut commits: Vec<(u64, Timestamp)> = end
            .history
            .iter()
            .filter(|record| record.writes().next().is_some())
            .filter_map(|record| match record.end {
                Ended::Committed(commit_ts) => Some((record.ended_us, commit_ts)),
                _ => None,
            })
            .collect();
        commits.sort_unstable();
        let mut begins: Vec<_> = end.history.iter().filter(|record| record.fresh).collect();
        begins.sort_by_key(|record| record.began_us);
        let mut commits = commits.into_iter().peekable();
        let mut highest = Timestamp::ZERO;
        for record in begins {
            while let Some((_, commit_ts)) =
                commits.next_if(|(ended_us, _)| *ended_us < record.began_us)
            {
                highest = highest.max(commit_ts);
            }
            if record.start_ts <= highest {
                return Err(format!(
                    "{} began at {} after a commit at {highest} was answered",
                    record.client, record.start_ts
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::made_up::{assert_broken, record, said, ts, wrote};
    use super::*;
    use crate::history::{Op, Record};

    /// One that wrote is answered at microsecond 11 that it is committed at 20; another one begins like this.
    fn seen(start_ts: u64, began_us: u64) -> Result<(), String> {
        let writer = record(10, 10, vec![wrote("a", None)], Ended::Committed(ts(20)));
        with(writer, record(start_ts, began_us, Vec::new(), Ended::Open))
    }

    fn with(writer: Record, later: Record) -> Result<(), String> {
        said(&mut Recency, &[later, writer], &[])
    }

    #[test]
    fn who_begins_after_the_answer_has_a_snapshot_above_the_commit() {
        assert_eq!(seen(21, 12), Ok(()));
        for start_ts in [20, 19, 11] {
            assert_broken(seen(start_ts, 12), "after a commit at 20 was answered");
        }
        // Who began before, or in the same microsecond, may have asked first.
        for began_us in [5, 10, 11] {
            assert_eq!(seen(19, began_us), Ok(()));
        }
    }

    #[test]
    fn only_commits_of_writers_count_and_only_new_snapshots() {
        let writer = |ops: Vec<Op>, end| record(10, 10, ops, end);
        let wrote = || vec![wrote("a", None)];
        let late = || record(15, 12, Vec::new(), Ended::Open);
        let committed = || Ended::Committed(ts(20));
        assert_eq!(with(writer(Vec::new(), committed()), late()), Ok(()));
        assert_eq!(with(writer(wrote(), Ended::Unknown), late()), Ok(()));
        let mut old = late();
        old.fresh = false;
        assert_eq!(with(writer(wrote(), committed()), old), Ok(()));
        assert_broken(
            with(writer(wrote(), committed()), late()),
            "client-0.0 began at 15",
        );
    }
}
