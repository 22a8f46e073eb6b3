//! Proof that each invariant is of use: the mutant that it kills if no other invariant is checked. One that kills
//! nothing alone is superfluous, or blind.

use percolator_protocol::election::mutants::ElectionMutant;
use percolator_protocol::mutants::Mutant as M;

use crate::mutation::Mutation as S;
use crate::plan::Plan;

/// Each invariant kills its mutant within so many seeds.
pub const KILLED_WITHIN: u64 = 150;

/// An invariant, and a mutant that it kills alone.
#[derive(Clone, Copy, Debug)]
pub struct Use {
    /// Its name.
    pub invariant: &'static str,
    /// What it kills.
    pub mutation: S,
    /// What clients do, if it isn't the mutant's own workload: the invariant has to see something.
    pub workload: Option<&'static str>,
}

impl Use {
    /// The plan of a seed.
    pub fn plan(&self, seed: u64) -> Plan {
        let mut plan = self.mutation.plan(seed);
        plan.only = Some(self.invariant);
        if let Some(workload) = self.workload {
            plan.workloads = vec![workload];
        }
        plan
    }
}

/// One for each invariant.
#[expect(clippy::too_many_lines, reason = "a table")]
pub fn all() -> Vec<Use> {
    let all = [
        ("timestamps increase", S::Rule(M::GrantBeforeDurable), None),
        ("commit above start", S::Rule(M::RecordAtStart), None),
        ("one lock a cell", S::Rule(M::LateFlushOverwrites), None),
        ("one outcome", S::Rule(M::SecondariesFirst), None),
        ("one fate", S::Rule(M::SecondariesFirst), None),
        ("errors are true", S::Rule(M::SecondariesFirst), None),
        ("one owner", S::TwoOwners, None),
        ("points go forward", S::Rule(M::BarrierNotDurable), None),
        ("collected rightly", S::Rule(M::CollectedAtTheBarrier), None),
        ("stays dropped", S::Rule(M::LateCreateAccepted), None),
        ("resolved is resolved", S::Rule(M::ResolveSkipsPiece), None),
        ("bounded memory", S::Rule(M::ScansUnbounded), None),
        ("answers hold", S::Rule(M::ForUpdateLeavesNothing), None),
        ("atomic", S::Rule(M::SecondariesFirst), None),
        ("reads are exact", S::Rule(M::ReadSkipsLocks), None),
        ("first committer wins", S::Rule(M::NoConflictCheck), None),
        ("nothing is overlooked", S::Rule(M::CommitNotMarked), None),
        ("recency", S::StaleTimestamps, None),
        ("snapshot isolation", S::Rule(M::ReadSkipsLocks), None),
        ("durable", S::AnswerBeforeSync, None),
        (
            "accepted before it writes",
            S::Rule(M::WritesUnaccepted),
            None,
        ),
        ("leases hold", S::Rule(M::LeaseFromTheAnswer), None),
        ("floors cover", S::Rule(M::FloorIsNow), None),
        ("granted leases hold", S::Rule(M::SessionsNotAwaited), None),
        ("liveness: progress", S::AnswerAwaitedForEver, None),
        ("liveness: ends", S::AnswerAwaitedForEver, None),
        (
            "liveness: the cluster serves",
            S::Rule(M::LocksNeverExpire),
            None,
        ),
        ("liveness: readers", S::Rule(M::LocksNeverExpire), None),
        ("liveness: collection", S::Rule(M::SessionsNeverEnd), None),
        (
            "one leader",
            S::Election(ElectionMutant::RightNeverEnds),
            None,
        ),
        ("masters show what is durable", S::ShownBeforeDurable, None),
        (
            "masters go on from what was shown",
            S::Election(ElectionMutant::OwnCopyIgnored),
            None,
        ),
        ("liveness: a leader", S::RegisterAwaitedForEver, None),
        ("liveness: without a register", S::PromisesNotAsked, None),
        ("retention holds", S::Rule(M::RetentionCutShort), None),
        (
            "renewals hold",
            S::Rule(M::StatusByReadersClock),
            Some("large"),
        ),
        ("append", S::Rule(M::NoConflictCheck), Some("append")),
        ("bank: the total", S::Rule(M::NoConflictCheck), Some("bank")),
        ("counter", S::Rule(M::LostAnswerIsFailure), Some("counter")),
        (
            "cycle: one ring",
            S::Rule(M::NoConflictCheck),
            Some("cycle"),
        ),
        ("index: agrees", S::Rule(M::ReadSkipsLocks), Some("index")),
        (
            "large: one number",
            S::Rule(M::ReadSkipsLocks),
            Some("large"),
        ),
        (
            "large: own writes",
            S::Rule(M::OwnWritesNotRead),
            Some("large"),
        ),
        (
            "again: one table",
            S::Rule(M::TablesNotPinned),
            Some("again"),
        ),
        (
            "clusters are told apart",
            S::Rule(M::ReplacedClusterTaken),
            None,
        ),
        ("lost data is missed", S::Rule(M::LossNotNoticed), None),
        (
            "observers: none is lost",
            S::Rule(M::NotifiedLater),
            Some("observe"),
        ),
        (
            "observers: at most one commits",
            S::Rule(M::AckForgotten),
            Some("observe"),
        ),
        (
            "workers: none is lost",
            S::Rule(M::DeadLetterForgotten),
            None,
        ),
        (
            "workers: at most one commits",
            S::Rule(M::AckNotChecked),
            Some("react"),
        ),
        (
            "changes: each once",
            S::Rule(M::RecentForgetsSecondaries),
            Some("changes"),
        ),
        ("skew: one is on", S::Rule(M::NoConflictCheck), Some("skew")),
    ];
    all.map(|(invariant, mutation, workload)| Use {
        invariant,
        mutation,
        workload,
    })
    .into()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::invariants;

    #[test]
    fn every_invariant_is_shown_to_be_of_use() {
        let shown: BTreeSet<&str> = all().iter().map(|one| one.invariant).collect();
        let known: BTreeSet<&str> = invariants::names().into_iter().collect();
        assert_eq!(shown, known);
        assert_eq!(all().len(), known.len(), "each once");
    }
}
