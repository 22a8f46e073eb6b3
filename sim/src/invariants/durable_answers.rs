//! What was answered committed stays, and what was answered aborted is never visible (ARCHITECTURE, "What
//! always holds", 2). A lost answer is unknown: then either may be true.

use percolator_protocol::types::WriteKind;

use super::Invariant;
use crate::end::End;
use crate::history::{End as Ended, Record};

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

#[cfg(test)]
mod tests {
    use super::super::made_up::{assert_broken, record, said, ts, version, wrote};
    use super::*;

    /// What is said of a transaction that began at 5, put `v` into the row `a` and deleted `b`, and was told this, where
    /// its versions of `a` and `b` are these.
    fn seen(end: &Ended, a: Option<(u64, &str)>, b: Option<u64>) -> Result<(), String> {
        let ops = vec![wrote("a", Some("v")), wrote("b", None)];
        let others = || version(1, 2, Some("old"));
        let a = a.map(|(commit_ts, value)| version(5, commit_ts, Some(value)));
        let b = b.map(|commit_ts| version(5, commit_ts, None));
        let stored = [
            ("a", [others()].into_iter().chain(a).collect()),
            ("b", [others()].into_iter().chain(b).collect()),
        ];
        said(
            &mut DurableAnswers,
            &[record(5, 0, ops, end.clone())],
            &stored,
        )
    }

    #[test]
    fn what_was_answered_committed_is_there_as_it_was_written() {
        let end = Ended::Committed(ts(7));
        assert_eq!(seen(&end, Some((7, "v")), Some(7)), Ok(()));
        assert_broken(
            seen(&end, Some((7, "v")), None),
            "t/b:c has no such version",
        );
        assert_broken(seen(&end, None, Some(7)), "t/a:c has no such version");
        for other in [(8, "v"), (7, "w")] {
            assert_broken(
                seen(&end, Some(other), Some(7)),
                "another value or commit_ts",
            );
        }
        assert_broken(
            seen(&end, Some((7, "v")), Some(6)),
            "another value or commit_ts",
        );
    }

    #[test]
    fn what_was_answered_aborted_is_not_there_nor_what_was_never_told_to_commit() {
        let aborted = Ended::Aborted("a conflict".to_owned());
        for (end, words) in [
            (aborted, "was aborted (a conflict)"),
            (Ended::Open, "was never told"),
        ] {
            assert_eq!(seen(&end, None, None), Ok(()));
            assert_broken(seen(&end, Some((7, "v")), None), words);
            assert_broken(seen(&end, None, Some(7)), words);
        }
    }

    #[test]
    fn a_lost_answer_may_be_either() {
        assert_eq!(seen(&Ended::Unknown, None, None), Ok(()));
        assert_eq!(seen(&Ended::Unknown, Some((7, "v")), Some(7)), Ok(()));
    }
}
