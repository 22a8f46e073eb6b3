//! Of two transactions that overlap in time and touch one cell, one is aborted (Berenson et al., "A
//! Critique of ANSI SQL Isolation Levels", 1995: first committer wins). `get_for_update` counts as a
//! touch. So the versions of a cell lie one after the other: each began after the
//! one before was committed.

use super::Invariant;
use crate::end::End;

pub(super) struct FirstCommitter;

impl Invariant for FirstCommitter {
    fn name(&self) -> &'static str {
        "first committer wins"
    }

    fn at_end(&mut self, end: &End<'_>) -> Result<(), String> {
        for (cell, versions) in &end.store.versions {
            for pair in versions.windows(2) {
                let [before, after] = pair else { continue };
                if after.start_ts < before.commit_ts {
                    return Err(format!(
                        "cell {cell}: transaction {} committed at {}, and {} began before that and \
                         committed at {}",
                        before.start_ts, before.commit_ts, after.start_ts, after.commit_ts
                    ));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::made_up::{assert_broken, said, version};
    use super::*;

    fn seen(versions: &[(u64, u64)]) -> Result<(), String> {
        let versions = versions.iter();
        let versions = versions.map(|(start_ts, commit_ts)| version(*start_ts, *commit_ts, None));
        let other = vec![version(6, 7, None)];
        said(
            &mut FirstCommitter,
            &[],
            &[("a", other), ("b", versions.collect())],
        )
    }

    #[test]
    fn versions_of_a_cell_lie_one_behind_the_other() {
        assert_eq!(seen(&[]), Ok(()));
        assert_eq!(seen(&[(1, 5), (6, 7), (8, 9)]), Ok(()));
        // Nobody overlaps who began at the moment of the commit: such a snapshot sees it.
        assert_eq!(seen(&[(1, 5), (5, 7)]), Ok(()));
        for versions in [
            &[(1, 5), (4, 7)][..],
            &[(3, 5), (1, 7)],
            &[(1, 2), (3, 6), (5, 7)],
        ] {
            assert_broken(seen(versions), "began before that and committed at 7");
        }
    }
}
