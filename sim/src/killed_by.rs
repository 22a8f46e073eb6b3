//! Which invariants may kill which mutant. If another one kills it, then something else
//! was found, or the mutant does harm that nobody expected: look into it.
//!
//! Several are named where a mutant does harm in several ways, and the first that is checked kills: what reads
//! see wrongly is found by the invariant that knows what is stored, at the end, and before that by whichever workload
//! reads it.

use percolator_protocol::mutants::Mutant as M;

use crate::mutation::Mutation;

/// Reads don't see what they should.
const READS: &[&str] = &[
    "reads are exact",
    "snapshot isolation",
    "append",
    "bank: the total",
    "counter",
    "cycle: one ring",
    "index: agrees",
    "large: one number",
    "skew: one is on",
    "again: one table",
];
/// A transaction ends in two ways, or otherwise than was answered.
const FATES: &[&str] = &[
    "one fate",
    "one outcome",
    "answers hold",
    "atomic",
    "errors are true",
];
/// Two write one cell at the same time.
const WRITERS: &[&str] = &["first committer wins"];
const DURABLE: &[&str] = &["durable"];
const TIMESTAMPS: &[&str] = &["timestamps increase"];
const BOUNDED: &[&str] = &["bounded memory"];
const LIVENESS: &[&str] = &[
    "liveness: progress",
    "liveness: ends",
    "liveness: the cluster serves",
    "errors are true",
];

impl Mutation {
    /// The invariants that may kill it, by groups.
    #[expect(clippy::too_many_lines, reason = "a table")]
    pub fn killed_by(self) -> &'static [&'static [&'static str]] {
        use Mutation as S;
        match self {
            // Where the file is cut short it can't be read, before a timestamp is granted twice.
            S::LimitNotDurable => &[TIMESTAMPS, DURABLE],
            S::Rule(M::GrantBeforeDurable) => &[TIMESTAMPS],
            // A master whose first state is lost waits for servers of before, of which there are none.
            S::RenameNotDurable => &[TIMESTAMPS, LIVENESS],
            S::TornBatch
            | S::AnswerBeforeSync
            | S::SyncTriedAgain
            | S::CutNotDone
            | S::ReplayNotRewritten
            | S::CheckpointNotDurable
            | S::CheckpointBrokenOff
            | S::FolderOfAnotherTaken => &[DURABLE],
            S::StaleTimestamps => &[&["recency", "errors are true"], READS],
            S::TwoOwners => &[&["one owner"]],
            S::Rule(M::MovedUndecided | M::MovedAndKept) => {
                &[&["one owner"], FATES, WRITERS, READS]
            }
            S::Rule(M::MovedLocksNotCounted) => &[
                &["one lock a cell"],
                BOUNDED,
                FATES,
                WRITERS,
                READS,
                LIVENESS,
            ],
            // What nobody has can't be read, or is missing.
            S::Rule(M::DrainedWithRows) => {
                &[&["one owner"], DURABLE, FATES, WRITERS, READS, LIVENESS]
            }
            S::Rule(
                M::NotifiedLater
                | M::SecondariesNotNotified
                | M::AckHidesLaterChange
                | M::SplitForgetsObserved
                | M::MovedNotificationsForgotten
                | M::MovedObservedForgotten,
            ) => &[&["observers: none is lost"]],
            S::Rule(M::RecentForgetsSecondaries | M::ChangesPassLocks) => {
                &[&["changes: each once"]]
            }
            S::Rule(M::DeadLetterForgotten) => &[&["workers: none is lost"]],
            S::Rule(M::AckNotChecked | M::AckForgotten) => &[&["observers: at most one commits"]],
            S::Rule(M::ArrivalsNotLatched) => &[
                &["nothing is overlooked", "collected rightly"],
                FATES,
                WRITERS,
                READS,
                LIVENESS,
            ],
            S::Rule(M::MovedGarbageForgotten) => &[&["nothing is overlooked"]],
            S::Rule(
                M::MovedTailForgotten
                | M::MovedAheadForgotten
                | M::MovedInFlightForgotten
                | M::MovedRecordsNotMarked
                | M::MovedUnresolved
                | M::MovedCacheKept
                | M::MovedOntoLeftovers
                | M::MovedBarrierForgotten
                | M::MovedSettledEarly
                | M::ArrivalSettledEarly,
            ) => &[
                FATES,
                WRITERS,
                READS,
                &[
                    "nothing is overlooked",
                    "one lock a cell",
                    "collected rightly",
                    "liveness: collection",
                ],
                LIVENESS,
            ],
            S::Rule(M::FreezeIgnored | M::DroppedBeforeSafePoint | M::DroppedUnresolved) => {
                &[FATES]
            }
            S::Rule(M::FateCollected) => &[&["collected rightly"], FATES, READS],
            S::Rule(M::ResolvedForgotten | M::StartsResolved) => &[FATES, READS],
            S::Rule(M::NoConflictCheck | M::ConflictByStartTs) => &[WRITERS, READS],
            S::Rule(
                M::CommitWithoutLock
                | M::NoRollbackRecord
                | M::ForUpdateLeavesNothing
                | M::SecondariesFirst
                | M::LostAnswerIsFailure
                | M::CollectedIsRolledBack,
            ) => &[FATES, READS],
            S::Rule(M::StatusByReadersClock) => &[FATES, READS, &["renewals hold"]],
            // A long value whose lock is taken away belongs to nobody.
            S::Rule(M::RollbackOfOthers) => &[FATES, READS, &["nothing is overlooked"]],
            S::Rule(M::LocksNeverExpire) | S::AnswerAwaitedForEver => &[LIVENESS],
            S::Rule(
                M::MinCommitTsIgnored
                | M::PromiseNotWritten
                | M::ReadSkipsLocks
                | M::ReadsAfterFailure
                | M::StaleCache
                | M::CacheOfLockedCells
                | M::OnePhaseIgnoresReads
                | M::PrewriteIgnoresReads
                | M::CommitTsNotCompared
                | M::EarlierFlushesNotCompared
                | M::OnePhaseNotAwaited
                | M::OnePhaseOfAnotherLife
                | M::BarrierNotEnforcedAtReads,
            ) => &[READS],
            // The client lets go of the transaction with its commit_ts, while it prewrites.
            S::Rule(M::CommitTsBeforePrewrite) => &[READS, WRITERS, &["floors cover"]],
            // What two requests decide on one row is written over each other: locks, records, the filter, the index.
            S::Rule(M::NoLatches) => &[
                &["one lock a cell", "nothing is overlooked"],
                FATES,
                WRITERS,
                READS,
                BOUNDED,
                LIVENESS,
            ],
            // The filter of locked cells is a part of the bounded memory; who trusts it writes over locks, and doesn't find
            // those to be rolled back that scans meet.
            S::Rule(M::FilterNotLoaded) => &[BOUNDED, &["one lock a cell"], READS, LIVENESS],
            // Without the mark neither the conflict check nor the index of garbage is told of a record.
            S::Rule(M::CommitNotMarked | M::RollbackNotMarked) => {
                &[&["nothing is overlooked"], FATES, WRITERS, READS]
            }
            // A server that starts with less than it had reported is refused by the master, for good.
            S::Rule(M::HighTsNotEachTime) => {
                &[&["nothing is overlooked"], FATES, WRITERS, READS, LIVENESS]
            }
            S::Rule(
                M::RequestsUnbounded
                | M::HeldReadsUnbounded
                | M::QueuedBytesUnbounded
                | M::DecidedBytesUnbounded
                | M::GroupsUnbounded
                | M::ScansUnbounded,
            ) => &[BOUNDED],
            S::Rule(M::RecordAtStart) => &[&["commit above start"]],
            S::Rule(M::LateCreateAccepted) => &[&["stays dropped"]],
            S::Rule(
                M::BarrierNotEnforcedAtPrewrite
                | M::CoveredByOneTablet
                | M::CoveredByThoseHeard
                | M::ResolvedWithoutLooking,
            ) => &[FATES, WRITERS, READS],
            S::Rule(M::BarrierNotDurable) => &[&["points go forward"]],
            S::Rule(M::DeleteCollectedFirst | M::CollectedAtTheBarrier) => {
                &[&["collected rightly"]]
            }
            S::Rule(M::OwnWritesNotRead | M::OwnWritesNotScanned) => &[&["reads are exact"]],
            S::Rule(M::LateFlushOverwrites) => &[&["one lock a cell"]],
            S::Rule(M::CommitBeforeLastFlush) => &[FATES, WRITERS, READS],
            S::Rule(M::ResolveSkipsPiece) => &[&["resolved is resolved"]],
            S::Rule(M::LeaseIgnored | M::LeaseNotAwaited) => &[READS, FATES, WRITERS],
            // The server is brought back to what was committed, and goes on from there.
            S::Rule(M::ScanGoesBack) => &[READS, FATES, WRITERS],
            S::Rule(M::LossForgotten) => &[&["lost data is missed"]],
            // The server that was left out is refused, and its rows are empty.
            S::Rule(M::RebuildWithoutAll) => &[&["one owner"], LIVENESS, FATES, READS],
            // A table that has another one's id has its tablets, too.
            S::Rule(M::RebuiltIdsTooLow) => &[
                LIVENESS,
                &["again: one table", "stays dropped", "one owner"],
                FATES,
                READS,
            ],
            S::Rule(M::RebuiltStartsAccepted) => &[READS, FATES, WRITERS],
            S::Rule(M::OlderFolderTaken) => &[READS, FATES, WRITERS, LIVENESS],
            S::Rule(M::WritesUnaccepted) => &[&["accepted before it writes"]],
            S::Rule(M::ReplacedClusterTaken) => &[&["clusters are told apart"]],
            S::Rule(M::TablesNotPinned) => &[&["again: one table"]],
            S::Rule(M::SessionsNotAwaited | M::LongerSessionsForgotten) => {
                &[&["leases hold", "granted leases hold"]]
            }
            S::Rule(
                M::SessionsNeverEnd
                | M::FollowedSinceTheBeginning
                | M::StuckForEver
                | M::DroppedRecordsStay,
            ) => &[&["liveness: collection"]],
            S::Rule(M::ShortenedValueStays) => &[&["nothing is overlooked"]],
            // A server that can't read its index stops, and calls its log corrupt.
            S::Rule(M::LongKeysCut) => &[&["nothing is overlooked"], DURABLE, LIVENESS],
            S::Rule(M::RetentionCutShort) => &[&["retention holds"]],
            S::Rule(M::LossNotNoticed) => &[&["lost data is missed"]],
            S::StallIgnored => &[LIVENESS],
            S::RegisterAwaitedForEver => &[&["liveness: a leader"]],
            S::PromisesNotAsked => &[&["liveness: without a register"]],
            S::StandbyAnswers => &[&[
                "one leader",
                "masters show what is durable",
                "masters go on from what was shown",
            ]],
            S::ShownBeforeDurable | S::StateNotSwapped => &[&[
                "masters show what is durable",
                "masters go on from what was shown",
            ]],
            // Servers that know more than the state are refused for good.
            S::Election(mutant) if mutant.is_of_states() => {
                &[&["masters go on from what was shown"], LIVENESS]
            }
            // Its leader goes on by what the others promise.
            S::Election(mutant) if mutant.is_of_promises() => {
                &[TIMESTAMPS, &["one leader", "liveness: without a register"]]
            }
            S::Election(_) => &[TIMESTAMPS, &["one leader"]],
            S::Rule(M::LeaseFromTheAnswer) => &[&["leases hold", "granted leases hold"]],
            S::Rule(M::FloorTooHighByOne | M::FloorIsNow) => {
                &[&["floors cover", "leases hold", "granted leases hold"]]
            }
        }
    }

    /// Whether this invariant may kill it.
    pub fn may_be_killed_by(self, invariant: &str) -> bool {
        let mut names = self.killed_by().iter().flat_map(|names| names.iter());
        names.any(|name| *name == invariant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_nothing_to_do_with_it_may_not_notice_it() {
        let no_part = [
            (Mutation::TornBatch, "bank: the total"),
            (Mutation::TwoOwners, "liveness: progress"),
            (Mutation::Rule(M::LeaseFromTheAnswer), "reads are exact"),
            (Mutation::Rule(M::ScansUnbounded), "durable"),
        ];
        for (mutation, invariant) in no_part {
            assert!(!mutation.may_be_killed_by(invariant), "{invariant}");
        }
        for mutation in Mutation::all() {
            assert!(!mutation.may_be_killed_by("an assertion of the shipped code"));
            assert!(mutation.may_be_killed_by(mutation.killed_by()[0][0]));
        }
    }
}
