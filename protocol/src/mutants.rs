//! Mutants of the rules, for the proof that the simulator kills them: a test that never fails proves
//! nothing.
//!
//! Without the feature `mutants` [`on`] is constantly false, and costs nothing. Builds for tests have the feature, no release
//! build accepts it, and only the simulator turns a mutant on. One thread has at most one mutant at a time, so that runs
//! go side by side.

/// A rule with a bug on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// A prewrite doesn't check for commits since its snapshot.
    NoConflictCheck,
    /// A prewrite checks for transactions that began since its snapshot, not for those that committed.
    ConflictByStartTs,
    /// A commit doesn't check that the lock is there.
    CommitWithoutLock,
    /// A rollback leaves no record.
    NoRollbackRecord,
    /// A rollback takes anybody's lock away.
    RollbackOfOthers,
    /// Locks live for ever.
    LocksNeverExpire,
    /// A commit goes below the timestamp that readers were promised.
    MinCommitTsIgnored,
    /// Readers are promised a timestamp, and nothing is written of it.
    PromiseNotWritten,
    /// A read takes no notice of locks.
    ReadSkipsLocks,
    /// A tablet server whose disk has failed answers reads until it ends.
    ReadsAfterFailure,
    /// A commit's record stands at its transaction's start.
    RecordAtStart,
    /// A cell that was read for update gets no record when it is committed.
    ForUpdateLeavesNothing,
    /// The commit_ts is taken before the cells are locked.
    CommitTsBeforePrewrite,
    /// The secondaries are committed first.
    SecondariesFirst,
    /// A reader judges by its own clock and the lock's ttl, without asking the primary.
    StatusByReadersClock,
    /// The oracle grants below a limit that is still being written.
    GrantBeforeDurable,
    /// A commit that isn't answered is called aborted.
    LostAnswerIsFailure,
    /// Requests don't wait for each other's rows.
    NoLatches,
    /// The cache of cells doesn't take commits.
    StaleCache,
    /// After a restart a tablet server doesn't know which cells are locked.
    FilterNotLoaded,
    /// A commit in one phase doesn't ask who has read the row.
    OnePhaseIgnoresReads,
    /// A prewrite's min_commit_ts doesn't count who has read the cell.
    PrewriteIgnoresReads,
    /// A coordinator commits at any commit_ts that it gets, whatever its prewrites were answered.
    CommitTsNotCompared,
    /// A pipelined transaction compares its commit_ts with the answers to its last flush alone.
    EarlierFlushesNotCompared,
    /// Reads don't wait for commits in one phase that are on their way to the disk.
    OnePhaseNotAwaited,
    /// A commit in one phase is taken by a later life of the server too.
    OnePhaseOfAnotherLife,
    /// The cache of cells is also used for cells that may be locked.
    CacheOfLockedCells,
    /// A commit's record raises no mark, and the conflict check isn't made where no mark says so.
    CommitNotMarked,
    /// A rollback's record raises no mark.
    RollbackNotMarked,
    /// The highest timestamp of the write records isn't made durable with every group.
    HighTsNotEachTime,
    /// Any number of requests wait.
    RequestsUnbounded,
    /// Any number of reads wait for the disk.
    HeldReadsUnbounded,
    /// Requests of any size wait for rows.
    QueuedBytesUnbounded,
    /// Batches of any size wait for the disk.
    DecidedBytesUnbounded,
    /// All that is decided goes to the disk together.
    GroupsUnbounded,
    /// Answers to scans are of any size.
    ScansUnbounded,
    /// A tablet whose table is being deleted says that it is frozen, and takes writes all the same.
    FreezeIgnored,
    /// The tablets of a deleted table are dropped as soon as all of them are frozen.
    DroppedBeforeSafePoint,
    /// The fate of a commit goes with its record, while locks of its transaction may be left.
    FateCollected,
    /// The tablets of a deleted table are dropped at the safe point, while locks may be left whose primary is there.
    DroppedUnresolved,
    /// A master that starts takes everything below the safe point for resolved.
    ResolvedForgotten,
    /// A tablet server that starts takes everything below the safe point for resolved.
    StartsResolved,
    /// An order to make a tablet that comes after the table was deleted is carried out.
    LateCreateAccepted,
    /// A tablet server takes the barrier, and reads below it all the same.
    BarrierNotEnforcedAtReads,
    /// A tablet server takes the barrier, and prewrites below it all the same.
    BarrierNotEnforcedAtPrewrite,
    /// A tablet server says that it has the barrier, and has forgotten it when it is started again.
    BarrierNotDurable,
    /// Of a transaction whose records may have been collected it is said that it was rolled back.
    CollectedIsRolledBack,
    /// The safe point goes as far as the locks of some tablet are resolved.
    CoveredByOneTablet,
    /// The safe point covers only the tablets that were reported.
    CoveredByThoseHeard,
    /// A master that starts takes the reported tablets for all that there are.
    LossForgotten,
    /// A scan goes on at the first row of the tablet that it was in, also where that tablet was split meanwhile.
    ScanGoesBack,
    /// A lost state is rebuilt without the named servers that have not reported.
    RebuildWithoutAll,
    /// A rebuilt state gives ids that were given before.
    RebuiltIdsTooLow,
    /// A rebuilt state takes any reporting incarnation of a server for the accepted one.
    RebuiltStartsAccepted,
    /// A tablet server reports locks below its barrier as resolved without having scanned for them.
    ResolvedWithoutLooking,
    /// A delete is collected before what it hides.
    DeleteCollectedFirst,
    /// A tablet server collects up to the barrier, instead of its safe point.
    CollectedAtTheBarrier,
    /// A late copy of a pipelined transaction's earlier flush overwrites what a later one has written.
    LateFlushOverwrites,
    /// A pipelined transaction commits while its last flush is on its way.
    CommitBeforeLastFlush,
    /// The resolution of a pipelined transaction's locks leaves out a piece.
    ResolveSkipsPiece,
    /// A transaction doesn't read what it wrote itself.
    OwnWritesNotRead,
    /// A transaction's scans leave out what it wrote itself.
    OwnWritesNotScanned,
    /// A client asks for its oldest transaction to be kept readable by a floor that is one too high.
    FloorTooHighByOne,
    /// A client counts its lease from the answer on, not from before it asked.
    LeaseFromTheAnswer,
    /// A tablet server answers whatever it is asked, lease or not.
    LeaseIgnored,
    /// The master accepts another incarnation of a server without waiting for the lease of the one before.
    LeaseNotAwaited,
    /// The master takes a server whose folder is older than what it has reported.
    OlderFolderTaken,
    /// A tablet server writes to its folder before a master has accepted its start.
    WritesUnaccepted,
    /// A client takes the tables of a cluster that was made in the place of its own for its own.
    ReplacedClusterTaken,
    /// A transaction resolves a table's name anew with each use.
    TablesNotPinned,
    /// A tablet server whose tablets are lost says that it is ready.
    LossNotNoticed,
    /// The lease of a client that has died never ends.
    SessionsNeverEnd,
    /// A stream of changes holds all that was committed since it began.
    FollowedSinceTheBeginning,
    /// A master that starts doesn't wait for the leases of clients that one before it has granted.
    SessionsNotAwaited,
    /// A master that starts doesn't wait for leases of clients that are longer than those that are granted now.
    LongerSessionsForgotten,
    /// A safe point waits for a tablet server that is away for as long as it is.
    StuckForEver,
    /// The write records of a dropped tablet stay.
    DroppedRecordsStay,
    /// Versions are kept for a tenth of the retention.
    RetentionCutShort,
    /// A client's lease covers what begins from now on, and not what is under way.
    FloorIsNow,
    /// A flush that makes a long value short leaves the long one.
    ShortenedValueStays,
    /// An entry of the index counts the bytes of a key in one byte.
    LongKeysCut,
    /// A tablet is served where its copy is complete, before its owner has decided that.
    MovedUndecided,
    /// Changes during the copy of a tablet don't follow.
    MovedTailForgotten,
    /// A piece of a tablet that comes while the one before is being written is counted, and dropped.
    MovedAheadForgotten,
    /// The end of a tablet's copy doesn't wait for batches on their way to the owner's disk.
    MovedInFlightForgotten,
    /// Locks that come with a tablet are not counted by who gets it.
    MovedLocksNotCounted,
    /// Nor are the newest records of its cells.
    MovedRecordsNotMarked,
    /// Nor is what is to be collected of it.
    MovedGarbageForgotten,
    /// The new owner of a tablet goes on to report locks as resolved, without those that come with it.
    MovedUnresolved,
    /// A server to which a tablet comes back remembers the newest versions of its cells from before.
    MovedCacheKept,
    /// A tablet comes back while its rows of before are still to be removed.
    MovedOntoLeftovers,
    /// An owner that gives a tablet away serves on, and may give it to another server as well.
    MovedAndKept,
    /// The new owner of a tablet goes on to answer requests that the old one has refused.
    MovedBarrierForgotten,
    /// An owner forgets to which server it has given a tablet, before that server has received it.
    MovedSettledEarly,
    /// A server that gets a tablet drops it when another one reports the tablet, also at an earlier epoch.
    ArrivalSettledEarly,
    /// A server is drained when others own its tablets, though they may ask it for them yet.
    DrainedWithRows,
    /// Two tablets of the same rows may arrive at a server, if that is decided at once.
    ArrivalsNotLatched,
    /// A notification is written in a batch of its own, behind that of its commit.
    NotifiedLater,
    /// The commit of a secondary leaves no notification.
    SecondariesNotNotified,
    /// An acknowledgement removes a notification of a change that its snapshot has not seen.
    AckHidesLaterChange,
    /// An acknowledgement is prewritten whether or not a notification waits.
    AckNotChecked,
    /// The transaction of an observer writes no acknowledgement.
    AckForgotten,
    /// A change that a worker gives up is acknowledged, and its dead letter isn't written.
    DeadLetterForgotten,
    /// The second part of a tablet that is split doesn't know which columns are observed.
    SplitForgetsObserved,
    /// Notifications don't come along with a tablet that is handed over.
    MovedNotificationsForgotten,
    /// Nor does the server that gets a tablet know which of its columns are observed.
    MovedObservedForgotten,
    /// A tablet's list of recent changes leaves out cells that are not their transaction's primary.
    RecentForgetsSecondaries,
    /// A scan for changes takes no notice of locks.
    ChangesPassLocks,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Self; 108] = [
        Self::NoConflictCheck,
        Self::ConflictByStartTs,
        Self::CommitWithoutLock,
        Self::NoRollbackRecord,
        Self::RollbackOfOthers,
        Self::LocksNeverExpire,
        Self::MinCommitTsIgnored,
        Self::PromiseNotWritten,
        Self::ReadSkipsLocks,
        Self::ReadsAfterFailure,
        Self::RecordAtStart,
        Self::ForUpdateLeavesNothing,
        Self::CommitTsBeforePrewrite,
        Self::SecondariesFirst,
        Self::StatusByReadersClock,
        Self::GrantBeforeDurable,
        Self::LostAnswerIsFailure,
        Self::NoLatches,
        Self::StaleCache,
        Self::FilterNotLoaded,
        Self::OnePhaseIgnoresReads,
        Self::PrewriteIgnoresReads,
        Self::CommitTsNotCompared,
        Self::EarlierFlushesNotCompared,
        Self::OnePhaseNotAwaited,
        Self::OnePhaseOfAnotherLife,
        Self::CacheOfLockedCells,
        Self::CommitNotMarked,
        Self::RollbackNotMarked,
        Self::HighTsNotEachTime,
        Self::RequestsUnbounded,
        Self::HeldReadsUnbounded,
        Self::QueuedBytesUnbounded,
        Self::DecidedBytesUnbounded,
        Self::GroupsUnbounded,
        Self::ScansUnbounded,
        Self::FreezeIgnored,
        Self::DroppedBeforeSafePoint,
        Self::FateCollected,
        Self::DroppedUnresolved,
        Self::ResolvedForgotten,
        Self::StartsResolved,
        Self::LateCreateAccepted,
        Self::BarrierNotEnforcedAtReads,
        Self::BarrierNotEnforcedAtPrewrite,
        Self::BarrierNotDurable,
        Self::CollectedIsRolledBack,
        Self::CoveredByOneTablet,
        Self::CoveredByThoseHeard,
        Self::LossForgotten,
        Self::ScanGoesBack,
        Self::RebuildWithoutAll,
        Self::RebuiltIdsTooLow,
        Self::RebuiltStartsAccepted,
        Self::ResolvedWithoutLooking,
        Self::DeleteCollectedFirst,
        Self::CollectedAtTheBarrier,
        Self::LateFlushOverwrites,
        Self::CommitBeforeLastFlush,
        Self::ResolveSkipsPiece,
        Self::OwnWritesNotRead,
        Self::OwnWritesNotScanned,
        Self::FloorTooHighByOne,
        Self::LeaseFromTheAnswer,
        Self::LeaseIgnored,
        Self::LeaseNotAwaited,
        Self::OlderFolderTaken,
        Self::WritesUnaccepted,
        Self::ReplacedClusterTaken,
        Self::TablesNotPinned,
        Self::LossNotNoticed,
        Self::SessionsNeverEnd,
        Self::FollowedSinceTheBeginning,
        Self::SessionsNotAwaited,
        Self::LongerSessionsForgotten,
        Self::StuckForEver,
        Self::DroppedRecordsStay,
        Self::RetentionCutShort,
        Self::FloorIsNow,
        Self::ShortenedValueStays,
        Self::LongKeysCut,
        Self::MovedUndecided,
        Self::MovedTailForgotten,
        Self::MovedAheadForgotten,
        Self::MovedInFlightForgotten,
        Self::MovedLocksNotCounted,
        Self::MovedRecordsNotMarked,
        Self::MovedGarbageForgotten,
        Self::MovedUnresolved,
        Self::MovedCacheKept,
        Self::MovedOntoLeftovers,
        Self::MovedAndKept,
        Self::MovedBarrierForgotten,
        Self::MovedSettledEarly,
        Self::ArrivalSettledEarly,
        Self::DrainedWithRows,
        Self::ArrivalsNotLatched,
        Self::NotifiedLater,
        Self::SecondariesNotNotified,
        Self::AckHidesLaterChange,
        Self::AckNotChecked,
        Self::AckForgotten,
        Self::DeadLetterForgotten,
        Self::SplitForgetsObserved,
        Self::MovedNotificationsForgotten,
        Self::MovedObservedForgotten,
        Self::RecentForgetsSecondaries,
        Self::ChangesPassLocks,
    ];
}

#[cfg(all(feature = "mutants", not(debug_assertions)))]
compile_error!("mutants are for tests: no release build may have them");

#[cfg(feature = "mutants")]
mod switch {
    use std::cell::Cell;

    use super::Mutant;

    thread_local! {
        static ON: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// From now on this thread runs this mutant, or none.
    pub fn set(mutant: Option<Mutant>) {
        ON.set(mutant);
    }

    /// Whether this thread runs it.
    pub fn on(mutant: Mutant) -> bool {
        ON.get() == Some(mutant)
    }
}

#[cfg(feature = "mutants")]
pub use switch::{on, set};

/// Whether this thread runs this mutant.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn on(_: Mutant) -> bool {
    false
}
