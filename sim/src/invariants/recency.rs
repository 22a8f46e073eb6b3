//! A snapshot that is taken after a commit was answered lies above it (strict snapshot isolation; the
//! client library requests every timestamp after the call for it began, `client/src/oracle`).

use percolator_protocol::types::Timestamp;

use super::Invariant;
use crate::history::End as Ended;
use crate::watch::End;

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
