//! Mutants, for the proof that they are killed: those of the shipped rules
//! (`protocol::mutants`, with the feature `mutants` alone), and those of the world around them.

use std::time::Duration;

use percolator_protocol::election::mutants::ElectionMutant;
use percolator_protocol::mutants::Mutant;
use percolator_tablet::Limits;

use crate::elections;
use crate::plan::{Fault, Plan};
use crate::replicas::{Replicas, elect};

/// What goes wrong in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// A mutant of the shipped rules.
    Rule(Mutant),
    /// A mutant of the election between several oracles.
    Election(ElectionMutant),
    /// The file of the oracle's limit takes its name before it is synced.
    LimitNotDurable,
    /// The folders of the oracle's limit and the master's state are not synced when a file has taken its name.
    RenameNotDurable,
    /// A batch comes to the disk in pieces.
    TornBatch,
    /// A group is answered before it is synced.
    AnswerBeforeSync,
    /// A sync that has failed is tried again, and that is believed.
    SyncTriedAgain,
    /// A file of the log isn't cut, and is said to be.
    CutNotDone,
    /// What is read from the log at a start is synced, and not written anew.
    ReplayNotRewritten,
    /// A store's checkpoint is called durable and isn't.
    CheckpointNotDurable,
    /// A store's checkpoint is called durable when it was broken off.
    CheckpointBrokenOff,
    /// A client gets the timestamp that its call before has asked for.
    StaleTimestamps,
    /// Every tablet has two owners.
    TwoOwners,
    /// Nobody gives up waiting for an answer that was lost.
    AnswerAwaitedForEver,
    /// A server waits for a disk that hangs for as long as that lasts.
    StallIgnored,
    /// An oracle never gives up waiting for an answer of the register that was lost.
    RegisterAwaitedForEver,
    /// The oracle that leads asks no other one for a promise.
    PromisesNotAsked,
    /// One of several masters goes on answering when it leads no more.
    StandbyAnswers,
    /// One of several masters answers before the state that it has seen is durable.
    ShownBeforeDurable,
    /// A new leader of several masters serves the state that it has loaded, without a swap.
    StateNotSwapped,
    /// A tablet server takes any folder for its own.
    FolderOfAnotherTaken,
}

impl Mutation {
    /// Each has to be killed within so many seeds. Most are killed by one of the first ten, one of masters' states by one of two hundred.
    pub const KILLED_WITHIN: u64 = 1_000;

    /// All that there is in this build.
    pub fn all() -> Vec<Self> {
        let all = vec![
            Self::LimitNotDurable,
            Self::RenameNotDurable,
            Self::TornBatch,
            Self::AnswerBeforeSync,
            Self::SyncTriedAgain,
            Self::CutNotDone,
            Self::ReplayNotRewritten,
            Self::CheckpointNotDurable,
            Self::CheckpointBrokenOff,
            Self::StaleTimestamps,
            Self::TwoOwners,
            Self::AnswerAwaitedForEver,
            Self::StallIgnored,
            Self::RegisterAwaitedForEver,
            Self::PromisesNotAsked,
            Self::StandbyAnswers,
            Self::ShownBeforeDurable,
            Self::StateNotSwapped,
            Self::FolderOfAnotherTaken,
        ];
        #[cfg(feature = "mutants")]
        let all = {
            let rules = Mutant::ALL.map(Self::Rule);
            // Some of promises need more to coincide than happens in some hundred seeds: the model of the election kills those
            // (`protocol`).
            let election = ElectionMutant::ALL.into_iter();
            let election =
                election.filter(|it| !it.is_of_promises() || elections::OF_PROMISES.contains(it));
            let election = election
                .chain(elections::OF_STATES)
                .map(Self::Election)
                .collect();
            [all, rules.to_vec(), election].concat()
        };
        all
    }

    /// The plan of a seed with this mutant. Those that only show where certain things fail together
    /// get nothing but those, and often: with all kinds drawn at random it would take hundreds of seeds.
    #[expect(clippy::too_many_lines, reason = "a table")]
    pub fn plan(self, seed: u64) -> Plan {
        let mut plan = Plan::new(seed);
        plan.replicas = Replicas::default();
        // It came later: for all others it stays as it was.
        plan.workloads
            .retain(|name| !["observe", "react"].contains(name));
        for fault in [Fault::ChangeSettings, Fault::JoinLater, Fault::SwapFolders] {
            plan.faults.remove(&fault);
        }
        if plan.workloads.is_empty() {
            plan.workloads.push("bank");
        }
        let mut only = |faults: &[Fault]| {
            plan.faults = faults.iter().copied().collect();
            plan.pause = Duration::from_millis(50);
        };
        match self {
            Self::Election(mutant) => {
                only(elections::faults_for(mutant));
                elect(&mut plan);
                // A request is late and a leader leads no more: both at a time.
                plan.often = true;
                plan.pause = Duration::from_millis(700);
                // They make up for what is wrong with the rest.
                plan.replicas.promises = mutant.is_of_promises() || mutant.is_of_states();
                if mutant.is_of_states() {
                    plan.replicas.oracles = 1;
                    plan.replicas.masters = 3;
                    plan.retention = Duration::from_millis(100);
                    plan.workloads = vec!["tables"];
                }
            }
            Self::RegisterAwaitedForEver => {
                only(&[Fault::Loss]);
                plan.often = true;
                elect(&mut plan);
                plan.replicas.promises = false;
                plan.replicas.timeout = Duration::from_secs(3_600);
            }
            Self::PromisesNotAsked => {
                only(&[Fault::KillLeader]);
                elect(&mut plan);
            }
            Self::StandbyAnswers | Self::ShownBeforeDurable | Self::StateNotSwapped => {
                only(&[Fault::PauseLeader, Fault::KillLeader, Fault::CutLeader]);
                elect(&mut plan);
                plan.replicas.oracles = 1;
                plan.replicas.masters = 2;
                plan.retention = Duration::from_millis(100);
                plan.workloads = vec!["tables"];
            }
            Self::Rule(Mutant::GrantBeforeDurable)
            | Self::LimitNotDurable
            | Self::RenameNotDurable => {
                only(&[Fault::KillServer, Fault::DiskSlow, Fault::ClockJump]);
            }
            Self::SyncTriedAgain | Self::ReplayNotRewritten => {
                only(&[Fault::KillServer, Fault::DiskError]);
            }
            Self::AnswerAwaitedForEver => {
                only(&[Fault::Loss]);
                plan.timeout = Duration::from_secs(3_600);
            }
            // A prewrite has to come after its transaction was rolled back.
            Self::Rule(Mutant::NoRollbackRecord | Mutant::RollbackNotMarked) => {
                only(&[Fault::Late, Fault::Duplicate, Fault::PauseClient]);
                plan.lock_ttl = Duration::from_millis(100);
                plan.think = Duration::from_millis(2);
            }
            // A request has to be late by just so much that the server has died and is back, and somebody has read
            // the row in between, and nobody has written it; and its client must not have given up meanwhile.
            Self::Rule(Mutant::OnePhaseOfAnotherLife) => {
                only(&[Fault::KillServer, Fault::Late]);
                plan.often = true;
                plan.pause = Duration::from_millis(500);
                plan.tablet_servers = 1;
                plan.workloads = vec!["counter"];
                plan.lock_ttl = Duration::from_millis(100);
                plan.timeout = Duration::from_secs(3);
                plan.request_timeout = Duration::from_secs(8);
                plan.think = Duration::from_millis(2);
                plan.workers = 6;
                plan.faulty = Duration::from_secs(10);
            }
            Self::Rule(
                Mutant::RequestsUnbounded
                | Mutant::HeldReadsUnbounded
                | Mutant::QueuedBytesUnbounded
                | Mutant::DecidedBytesUnbounded
                | Mutant::GroupsUnbounded,
            ) => {
                only(&[Fault::DiskSlow, Fault::Burst]);
                plan.limits = Limits {
                    decided_bytes: 200,
                    group_bytes: 64,
                    ..plan.limits
                };
                plan.workloads = vec!["large", "bank"];
                plan.workers = 4;
            }
            Self::Rule(Mutant::LostAnswerIsFailure) => {
                only(&[Fault::KillServer, Fault::Cut, Fault::Loss, Fault::Reset]);
                plan.request_timeout = Duration::from_millis(500);
            }
            // Clients that have not heard of the deletion, and whose secondaries are committed late.
            Self::Rule(Mutant::FreezeIgnored) => {
                only(&[Fault::Late]);
                plan.workloads = vec!["tables"];
                plan.retention = Duration::from_millis(100);
                plan.lock_ttl = Duration::from_millis(100);
                plan.think = Duration::from_millis(2);
                plan.clients = 4;
                plan.workers = 2;
                plan.faulty = Duration::from_secs(10);
            }
            // Their clients are killed in the middle of commits, and nobody else writes.
            Self::Rule(Mutant::DroppedBeforeSafePoint) => {
                only(&[Fault::KillClient, Fault::Loss]);
                plan.workloads = vec!["tables"];
                plan.pause = Duration::from_millis(5);
                plan.think = Duration::from_millis(2);
                plan.workers = 4;
                plan.faulty = Duration::from_secs(10);
            }
            // Clients die between their primary's commit and the others, whose servers stay away for longer than collection
            // waits.
            Self::Rule(
                Mutant::DroppedUnresolved | Mutant::ResolvedForgotten | Mutant::StartsResolved,
            ) => {
                only(&[Fault::KillClient, Fault::KillServer, Fault::Loss]);
                plan.retention = Duration::from_millis(20);
                plan.lock_ttl = Duration::from_millis(100);
                plan.pause = Duration::from_millis(50);
                plan.think = Duration::from_millis(2);
                plan.workers = 4;
                plan.faulty = Duration::from_secs(10);
                plan.workloads = match self {
                    Self::Rule(Mutant::DroppedUnresolved) => vec!["tables"],
                    _ => vec!["bank", "cycle"],
                };
            }
            // What was committed is asked for when its records are gone.
            Self::Rule(Mutant::CollectedIsRolledBack) => {
                only(&[Fault::Loss, Fault::Reset, Fault::Late, Fault::PauseClient]);
                plan.workloads = vec!["bank", "counter"];
                plan.retention = Duration::from_millis(20);
                plan.lock_ttl = Duration::from_millis(100);
                plan.think = Duration::from_millis(2);
            }
            // Clients that stand still while what they began with is collected.
            Self::Rule(Mutant::BarrierNotEnforcedAtPrewrite) => {
                only(&[Fault::PauseClient]);
                plan.workloads = vec!["index"];
                plan.retention = Duration::from_millis(20);
                plan.think = Duration::from_millis(2);
                plan.faulty = Duration::from_secs(10);
            }
            // Commits that are left half done by clients that die, on servers that are slow to end them, and to take the
            // barrier: the points move without them.
            Self::Rule(Mutant::CoveredByOneTablet | Mutant::ResolvedWithoutLooking) => {
                only(&[Fault::KillClient, Fault::DiskSlow]);
                plan.workloads = vec!["bank", "index"];
                plan.retention = Duration::from_millis(20);
                plan.think = Duration::from_millis(2);
                plan.faulty = Duration::from_secs(10);
                if self == Self::Rule(Mutant::CoveredByOneTablet) {
                    plan.tablet_servers = 3;
                    plan.clients = 4;
                    plan.workers = 3;
                    plan.lock_ttl = Duration::from_millis(100);
                    plan.limits = Limits::default();
                }
            }
            // As above, and a server is away when the master starts again.
            Self::Rule(Mutant::CoveredByThoseHeard) => {
                only(&[Fault::KillClient, Fault::KillServer, Fault::DiskSlow]);
                plan.workloads = vec!["bank", "index"];
                plan.retention = Duration::from_millis(20);
                plan.think = Duration::from_millis(2);
                plan.faulty = Duration::from_secs(10);
                plan.tablet_servers = 3;
                plan.clients = 4;
                plan.workers = 3;
                plan.lock_ttl = Duration::from_millis(100);
                plan.limits = Limits::default();
            }
            Self::Rule(Mutant::ArrivalsNotLatched) => {
                only(&[Fault::SplitAndMerge, Fault::Balance, Fault::DiskSlow]);
                plan.pause = Duration::from_millis(20);
                plan.think = Duration::from_millis(2);
                plan.tablet_servers = 2;
                plan.faulty = Duration::from_secs(10);
                plan.workloads = vec!["bank", "tables"];
            }
            Self::Rule(Mutant::DrainedWithRows) => {
                only(&[Fault::Balance, Fault::Loss, Fault::Late, Fault::PauseServer]);
                plan.pause = Duration::from_millis(40);
                plan.tablet_servers = 3;
                plan.faulty = Duration::from_secs(20);
                plan.workloads = vec!["bank", "index"];
            }
            Self::Rule(Mutant::ScanGoesBack) => {
                only(&[Fault::SplitAndMerge]);
                plan.pause = Duration::from_millis(20);
                plan.think = Duration::from_millis(2);
                plan.tablet_servers = 1;
                plan.clients = 4;
                plan.workers = 3;
                plan.faulty = Duration::from_secs(10);
            }
            Self::Rule(
                Mutant::MovedUndecided
                | Mutant::MovedTailForgotten
                | Mutant::MovedAheadForgotten
                | Mutant::MovedInFlightForgotten
                | Mutant::MovedLocksNotCounted
                | Mutant::MovedRecordsNotMarked
                | Mutant::MovedGarbageForgotten
                | Mutant::MovedUnresolved
                | Mutant::MovedCacheKept
                | Mutant::MovedOntoLeftovers
                | Mutant::MovedAndKept
                | Mutant::MovedBarrierForgotten
                | Mutant::MovedSettledEarly
                | Mutant::ArrivalSettledEarly,
            ) => {
                only(&[Fault::MoveTablets, Fault::KillServer, Fault::Loss]);
                plan.pause = Duration::from_millis(20);
                plan.think = Duration::from_millis(2);
                plan.workloads = vec!["bank", "cycle", "index"];
                plan.tablet_servers = 3;
                plan.clients = 3;
                plan.workers = 3;
                plan.faulty = Duration::from_secs(10);
                match self {
                    Self::Rule(Mutant::MovedGarbageForgotten) => {
                        plan.retention = Duration::from_millis(100);
                    }
                    // Commits that are left half done, in tablets that go to servers that have resolved more.
                    Self::Rule(Mutant::MovedUnresolved) => {
                        plan.faults =
                            [Fault::MoveTablets, Fault::KillClient, Fault::DiskSlow].into();
                        plan.retention = Duration::from_millis(20);
                        plan.lock_ttl = Duration::from_millis(100);
                        plan.workloads = vec!["bank"];
                        plan.clients = 4;
                    }
                    // Clients that stand still, whose tablets go to servers that hear of the barrier later.
                    Self::Rule(Mutant::MovedBarrierForgotten) => {
                        plan.faults =
                            [Fault::MoveTablets, Fault::PauseClient, Fault::DiskSlow].into();
                        plan.retention = Duration::from_millis(20);
                        plan.workloads = vec!["index"];
                    }
                    _ => {}
                }
            }
            Self::Rule(Mutant::LossForgotten) => only(&[Fault::LoseFolder]),
            // A commit that is in the log, and not in the cache of the server that has failed.
            Self::Rule(Mutant::ReadsAfterFailure) => {
                only(&[Fault::DiskError]);
                (plan.pause, plan.think) = (Duration::from_millis(20), Duration::from_millis(1));
                plan.workloads = vec!["counter", "cycle", "bank"];
                plan.tablet_servers = 1;
                plan.workers = 4;
                plan.faulty = Duration::from_secs(10);
            }
            Self::Rule(Mutant::BarrierNotDurable | Mutant::DeleteCollectedFirst) => {
                only(&[Fault::KillServer, Fault::Cut, Fault::Loss]);
                plan.workloads = vec!["index"];
                plan.retention = Duration::from_millis(20);
                plan.think = Duration::from_millis(2);
                plan.faulty = Duration::from_secs(10);
            }
            Self::Rule(Mutant::LateFlushOverwrites) => {
                only(&[Fault::Late, Fault::Duplicate, Fault::Reorder]);
                plan.often = true;
                plan.workloads = vec!["large"];
                plan.buffer_bytes = 2_000;
                plan.think = Duration::from_millis(2);
                plan.workers = 4;
            }
            // The last flush has to be late, and somebody has to read before it comes.
            Self::Rule(Mutant::CommitBeforeLastFlush) => {
                only(&[Fault::Loss, Fault::Late, Fault::Reorder]);
                plan.often = true;
                plan.workloads = vec!["large"];
                plan.buffer_bytes = 16_000;
                plan.think = Duration::from_millis(2);
                plan.workers = 4;
            }
            Self::Rule(Mutant::ResolveSkipsPiece) => {
                plan.workloads = vec!["large"];
                plan.buffer_bytes = 2_000;
                plan.limits.resolve_locks = 7;
            }
            // Transactions that last longer than versions are kept, of clients that reach the master.
            Self::Rule(Mutant::FloorTooHighByOne) => {
                only(&[Fault::DiskSlow]);
                plan.workloads = vec!["cycle", "bank"];
                plan.retention = Duration::from_millis(50);
                plan.think = Duration::from_millis(2);
            }
            // A client that asks, stands still, and hears the answer when the lease is over.
            Self::Rule(Mutant::LeaseFromTheAnswer) => {
                only(&[Fault::PauseClient, Fault::Late]);
                plan.workloads = vec!["index", "own"];
                plan.retention = Duration::from_millis(50);
                plan.think = Duration::from_millis(2);
            }
            // Clients that stand still and have leases of before the retention was shortened, while masters start.
            Self::Rule(Mutant::SessionsNotAwaited | Mutant::LongerSessionsForgotten) => {
                only(&[Fault::ChangeSettings, Fault::PauseClient]);
                plan.pause = Duration::from_millis(500);
                plan.retention = Duration::from_secs(600);
                plan.lock_ttl = Duration::from_secs(3);
                plan.request_timeout = Duration::from_secs(8);
                plan.workloads = vec!["cycle", "own"];
                plan.faulty = Duration::from_secs(20);
            }
            Self::Rule(Mutant::OwnWritesNotRead | Mutant::OwnWritesNotScanned) => {
                plan.workloads = vec!["own"];
            }
            Self::Rule(Mutant::LateCreateAccepted) => {
                only(&[Fault::Late, Fault::Duplicate, Fault::Reorder]);
                plan.often = true;
                plan.limits = Limits::default();
                plan.workloads = vec!["tables"];
                plan.retention = Duration::from_millis(20);
                plan.think = Duration::from_millis(2);
                plan.workers = 4;
                plan.faulty = Duration::from_secs(10);
            }
            // The one that goes on is asked by clients that don't know of the other.
            Self::Rule(Mutant::LeaseIgnored | Mutant::LeaseNotAwaited) => {
                only(&[Fault::TwoProcesses]);
                plan.often = true;
                plan.pause = Duration::from_millis(3_000);
                plan.lease = Duration::from_millis(2_000);
                // One that waits for its volume goes on as long as it may.
                plan.stall_max = Duration::from_secs(30);
                // Who waits for the one that hangs reads there meanwhile.
                plan.timeout = Duration::from_secs(6);
                plan.request_timeout = Duration::from_secs(20);
                plan.workloads = vec!["bank", "cycle"];
                plan.clients = 3;
                plan.think = Duration::from_millis(20);
                plan.faulty = Duration::from_secs(15);
                if self == Self::Rule(Mutant::LeaseNotAwaited) {
                    // Much longer than a silence after which another one is taken for a successor.
                    plan.lease = Duration::from_secs(10);
                    plan.timeout = Duration::from_secs(2);
                }
            }
            Self::Rule(Mutant::RebuildWithoutAll) => {
                only(&[Fault::LoseMaster, Fault::KillServer]);
                plan.workloads = vec!["bank", "tables"];
            }
            Self::Rule(Mutant::RebuiltIdsTooLow) => {
                only(&[Fault::LoseMaster]);
                plan.workloads = vec!["tables", "again"];
                plan.retention = Duration::from_millis(20);
                plan.think = Duration::from_millis(2);
            }
            // As for leases: the one that goes on is asked by clients that don't know of the other, of which alone the master
            // that lost its state hears.
            Self::Rule(Mutant::RebuiltStartsAccepted) => {
                only(&[Fault::TwoProcesses, Fault::LoseMaster]);
                plan.often = true;
                plan.pause = Duration::from_millis(1_500);
                plan.stall_max = Duration::from_secs(30);
                plan.workloads = vec!["bank", "cycle"];
                plan.clients = 3;
                plan.think = Duration::from_millis(20);
                plan.faulty = Duration::from_secs(15);
                plan.lease = Duration::from_secs(10);
                plan.timeout = Duration::from_secs(2);
                plan.request_timeout = Duration::from_secs(20);
            }
            // Without a commit_ts that is stale they do no harm.
            Self::Rule(
                Mutant::PrewriteIgnoresReads
                | Mutant::CommitTsNotCompared
                | Mutant::EarlierFlushesNotCompared,
            ) => {
                only(&[Fault::StaleCommitTs]);
                plan.workloads = vec!["bank", "cycle"];
                plan.think = Duration::from_millis(2);
                plan.clients = 4;
                plan.workers = 3;
                if self == Self::Rule(Mutant::EarlierFlushesNotCompared) {
                    // What a server has read bounds all later flushes there: the last one has to go elsewhere, where hardly
                    // anybody reads.
                    plan.tablet_servers = 3;
                    plan.clients = 2;
                    plan.workers = 1;
                    plan.workloads = vec!["large"];
                    plan.buffer_bytes = 2_000;
                }
            }
            Self::StallIgnored => only(&[Fault::DiskHang]),
            Self::FolderOfAnotherTaken => only(&[Fault::SwapFolders]),
            Self::Rule(Mutant::ReplacedClusterTaken) => only(&[Fault::NewCluster]),
            Self::Rule(Mutant::DroppedRecordsStay) => plan.workloads = vec!["tables"],
            Self::Rule(Mutant::ShortenedValueStays | Mutant::LongKeysCut) => {
                plan.workloads = vec!["pipelined"];
                plan.buffer_bytes = 2_000;
            }
            // Between the commit and the notification its server has to be killed.
            Self::Rule(Mutant::NotifiedLater) => {
                only(&[Fault::KillServer, Fault::DiskSlow]);
                plan.workloads = vec!["observe"];
            }
            Self::Rule(Mutant::SplitForgetsObserved) => {
                only(&[Fault::SplitAndMerge]);
                plan.workloads = vec!["observe"];
            }
            Self::Rule(Mutant::MovedNotificationsForgotten | Mutant::MovedObservedForgotten) => {
                only(&[Fault::MoveTablets]);
                plan.workloads = vec!["observe"];
                // A piece of notifications alone would be written down as nothing, and never end.
                plan.limits.move_bytes = Limits::default().move_bytes;
            }
            Self::Rule(
                Mutant::SecondariesNotNotified
                | Mutant::AckHidesLaterChange
                | Mutant::AckNotChecked
                | Mutant::AckForgotten,
            ) => {
                only(&[]);
                plan.workloads = vec!["observe"];
                plan.think = Duration::from_millis(2);
            }
            Self::Rule(Mutant::DeadLetterForgotten) => {
                only(&[]);
                plan.workloads = vec!["react"];
            }
            Self::Rule(Mutant::RecentForgetsSecondaries | Mutant::ChangesPassLocks) => {
                only(&[]);
                plan.workloads = vec!["changes"];
                plan.think = Duration::from_millis(2);
            }
            Self::Rule(Mutant::FloorIsNow) => {
                only(&[Fault::KillClient]);
                plan.workloads = vec!["pipelined"];
                plan.retention = Duration::from_millis(250);
            }
            Self::Rule(Mutant::LossNotNoticed) => only(&[Fault::LoseFolder]),
            Self::Rule(Mutant::TablesNotPinned) => {
                only(&[]);
                plan.workloads = vec!["again"];
                plan.think = Duration::from_millis(2);
                plan.workers = 4;
            }
            // The copy has to be older than what the master has written down.
            Self::Rule(Mutant::OlderFolderTaken) => {
                only(&[Fault::OlderFolder]);
                plan.pause = Duration::from_millis(1_000);
                plan.faulty = Duration::from_secs(20);
                plan.workloads = vec!["bank", "cycle"];
            }
            _ => {}
        }
        plan.mutation = Some(self);
        plan
    }

    /// Its name.
    pub fn name(self) -> String {
        match self {
            Self::Rule(mutant) => format!("{mutant:?}"),
            Self::Election(mutant) => format!("{mutant:?}"),
            other => format!("{other:?}"),
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|one| one.name() == name)
    }
}

/// From now on this thread takes this mutant, or none.
pub fn begin(mutation: Option<Mutation>) {
    #[cfg(feature = "mutants")]
    {
        percolator_protocol::mutants::set(match mutation {
            Some(Mutation::Rule(mutant)) => Some(mutant),
            _ => None,
        });
        percolator_protocol::election::mutants::set(match mutation {
            Some(Mutation::Election(mutant)) => Some(mutant),
            _ => None,
        });
    }
    #[cfg(not(feature = "mutants"))]
    let _ = mutation;
}
