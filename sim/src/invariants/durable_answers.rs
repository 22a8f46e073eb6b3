//! What was answered committed stays, and what was answered aborted is never visible (ARCHITECTURE, "What
//! always holds", 2). A lost answer is unknown: then either may be true.

use percolator_protocol::types::WriteKind;

use super::Invariant;
use crate::history::{End as Ended, Record};
use crate::watch::End;

pub(super) struct DurableAnswers;

impl Invariant for DurableAnswers {
    fn name(&self) -> &'static str {
        "answers hold"
    }

    fn at_end(&mut self, end: &End<'_>) -> Result<(), String> {
        end.history.iter().try_for_each(|record| check(end, record))
    }
}

fn check(end: &End<'_>, record: &Record) -> Result<(), String> {
    let start_ts = record.start_ts;
    for write in record.writes() {
        let cell = write.cell.cell(end.tables);
        let versions = end.store.versions.get(&cell).map_or(&[][..], Vec::as_slice);
        let ours = versions.iter().find(|version| version.start_ts == start_ts);
        match (&record.end, ours) {
            (Ended::Committed(commit_ts), None) => {
                return Err(format!(
                    "{} was told that transaction {start_ts} is committed at {commit_ts}, but {} has no \
                     such version",
                    record.client, write.cell
                ));
            }
            (Ended::Committed(commit_ts), Some(ours)) => {
                let value = match ours.kind {
                    WriteKind::Put => ours.value.as_ref(),
                    _ => None,
                };
                if ours.commit_ts != *commit_ts || value != write.value.as_ref() {
                    return Err(format!(
                        "transaction {start_ts} committed {} at {commit_ts}, and another value or \
                         commit_ts is stored ({})",
                        write.cell, ours.commit_ts
                    ));
                }
            }
            (Ended::Aborted(why), Some(ours)) => {
                return Err(format!(
                    "{} was told that transaction {start_ts} was aborted ({why}), but {} has it \
                     committed at {}",
                    record.client, write.cell, ours.commit_ts
                ));
            }
            (Ended::Open, Some(ours)) => {
                return Err(format!(
                    "transaction {start_ts} was never told to commit, but {} has it committed at {}",
                    write.cell, ours.commit_ts
                ));
            }
            _ => {}
        }
    }
    Ok(())
}
