//! Of two transactions that overlap in time and touch one cell, one is aborted (Berenson et al., "A
//! Critique of ANSI SQL Isolation Levels", 1995: first committer wins). `get_for_update` counts as a
//! touch (seed 000, question 4). So the versions of a cell lie one after the other: each began after the
//! one before was committed.

use super::Invariant;
use crate::watch::End;

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
