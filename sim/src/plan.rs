//! What a run is to be: drawn from its seed, and possible to cut down. Each seed has some kinds of faults
//! and not others, each at its own rate: bugs hide where everything fails at once (Groce et al., "Swarm
//! testing", 2012). A third of the seeds are narrow (`narrow`).

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use percolator_tablet::Limits;

use crate::invariants;
use crate::mutation::Mutation;
use crate::narrow::narrow;
use crate::replicas::{self, Replicas, replicate};
use crate::rng::Rng;
use crate::trace::shown;
use crate::workloads;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "each says what it is in `about`")]
pub enum Fault {
    Loss,
    Late,
    Duplicate,
    Reorder,
    Reset,
    Cut,
    KillServer,
    KillClient,
    PauseClient,
    PauseServer,
    DiskError,
    DiskFull,
    DiskSlow,
    ClockJump,
    ClockPace,
    ClockStop,
    Burst,
    LoseMaster,
    TwoProcesses,
    OlderFolder,
    DiskHang,
    NewCluster,
    LoseFolder,
    HandOver,
    KillLeader,
    PauseLeader,
    CutLeader,
    RegisterAway,
    RegisterSlow,
    StaleCommitTs,
    SplitAndMerge,
    MoveTablets,
    Balance,
    ChangeSettings,
    JoinLater,
    SwapFolders,
}

impl Fault {
    /// Every kind.
    pub const ALL: [Self; 36] = [
        Self::Loss,
        Self::Late,
        Self::Duplicate,
        Self::Reorder,
        Self::Reset,
        Self::Cut,
        Self::KillServer,
        Self::KillClient,
        Self::PauseClient,
        Self::PauseServer,
        Self::DiskError,
        Self::DiskFull,
        Self::DiskSlow,
        Self::ClockJump,
        Self::ClockPace,
        Self::ClockStop,
        Self::Burst,
        Self::LoseMaster,
        Self::TwoProcesses,
        Self::OlderFolder,
        Self::DiskHang,
        Self::NewCluster,
        Self::LoseFolder,
        Self::HandOver,
        Self::KillLeader,
        Self::PauseLeader,
        Self::CutLeader,
        Self::RegisterAway,
        Self::RegisterSlow,
        Self::StaleCommitTs,
        Self::SplitAndMerge,
        Self::MoveTablets,
        Self::Balance,
        Self::ChangeSettings,
        Self::JoinLater,
        Self::SwapFolders,
    ];

    /// Those of a cluster whatever its size: every kind but those of several oracles or masters, and but those that
    /// seeds draw for themselves.
    pub fn of_any() -> Vec<Self> {
        let mut all = Self::of_one_each();
        all.retain(|fault| DRAWN_APART.iter().all(|(apart, _)| apart != fault));
        all
    }

    /// Those that need no replicas of servers.
    pub fn of_one_each() -> Vec<Self> {
        let mut all = Self::ALL.to_vec();
        all.retain(|fault| !replicas::FAULTS.contains(fault));
        all
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::Late => "late",
            Self::Duplicate => "duplicate",
            Self::Reorder => "reorder",
            Self::Reset => "reset",
            Self::Cut => "cut",
            Self::KillServer => "kill-server",
            Self::KillClient => "kill-client",
            Self::PauseClient => "pause-client",
            Self::PauseServer => "pause-server",
            Self::DiskError => "disk-error",
            Self::DiskFull => "disk-full",
            Self::DiskSlow => "disk-slow",
            Self::ClockJump => "clock-jump",
            Self::ClockPace => "clock-pace",
            Self::ClockStop => "clock-stop",
            Self::Burst => "burst",
            Self::LoseMaster => "lose-master",
            Self::TwoProcesses => "two-processes",
            Self::OlderFolder => "older-folder",
            Self::DiskHang => "disk-hang",
            Self::NewCluster => "new-cluster",
            Self::LoseFolder => "lose-folder",
            Self::HandOver => "hand-over",
            Self::KillLeader => "kill-leader",
            Self::PauseLeader => "pause-leader",
            Self::CutLeader => "cut-leader",
            Self::RegisterAway => "register-away",
            Self::RegisterSlow => "register-slow",
            Self::StaleCommitTs => "stale-commit-ts",
            Self::SplitAndMerge => "split-and-merge",
            Self::MoveTablets => "move-tablets",
            Self::Balance => "balance",
            Self::ChangeSettings => "change-settings",
            Self::JoinLater => "join-later",
            Self::SwapFolders => "swap-folders",
        }
    }

    /// What it does.
    pub fn about(self) -> &'static str {
        match self {
            Self::Loss => "messages are lost",
            Self::Late => "messages are late, up to more than three times as long as locks live",
            Self::Duplicate => "requests arrive twice",
            Self::Reorder => "messages overtake each other",
            Self::Reset => "connections are reset after the request was handled, before its answer",
            Self::Cut => "one process hears nothing from another, while the way back is open",
            Self::KillServer => {
                "servers are killed and started again; disks lose what wasn't synced"
            }
            Self::KillClient => "clients are killed in the middle of what they do",
            Self::PauseClient => "clients stand still for longer than their locks live, and go on",
            Self::PauseServer => "servers stand still, and go on",
            Self::DiskError => "disks answer with errors",
            Self::DiskFull => "disks have no space",
            Self::DiskSlow => "syncs take long",
            Self::ClockJump => "the oracle's wall clock jumps, either way",
            Self::ClockPace => "clocks run fast or slow",
            Self::ClockStop => "the oracle's wall clock stands still",
            Self::LoseMaster => "the master loses its state, and is told everything again",
            Self::TwoProcesses => {
                "a tablet server is started elsewhere with its volume, and goes on where it was"
            }
            Self::OlderFolder => {
                "a tablet server is started with an older copy of its folder, then with its own again"
            }
            Self::DiskHang => {
                "disks neither take a write nor refuse it: of tablet servers until the process ends, of replicas for some takeovers"
            }
            Self::NewCluster => {
                "in the end the cluster is deleted and another one made in its place, while clients go on"
            }
            Self::LoseFolder => "in the end a tablet server comes back with an empty folder",
            Self::HandOver => {
                "the leader of several oracles or masters is told to end, and hands over"
            }
            Self::KillLeader => "the leader is killed, and started again",
            Self::PauseLeader => {
                "the leader stands still until another one leads, or not so long, and goes on"
            }
            Self::CutLeader => {
                "the leader is cut off from the register, or from others too, one way or both"
            }
            Self::RegisterAway => {
                "the register stands still, or is away, or somebody changes its object around the value"
            }
            Self::RegisterSlow => "the register carries out late, answers late, and refuses",
            Self::StaleCommitTs => {
                "clients get a commit_ts below what the oracle has granted since, as two oracles at a time would grant it"
            }
            Self::SplitAndMerge => "tablets are split and merged, at rows that are there",
            Self::MoveTablets => "tablets are handed over to other servers, and back",
            Self::Balance => {
                "the master splits tablets that grow and moves them to even servers out; these are drained, and undrained"
            }
            Self::ChangeSettings => {
                "the retention is changed, collection is paused, and masters are started again with another lease"
            }
            Self::JoinLater => "a tablet server joins while clients go on",
            Self::SwapFolders => {
                "two tablet servers are started with each other's folder, then with their own again"
            }
            Self::Burst => "many more transactions at once for a while",
        }
    }

    /// The kind of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.name() == name)
    }
}

/// What a run is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The seed that everything else is drawn from.
    pub seed: u64,
    /// How long there are faults.
    pub faulty: Duration,
    /// Kinds of faults that happen.
    pub faults: BTreeSet<Fault>,
    /// How often something is done to a process, a disk or a clock, of each kind: so often, or some times less often.
    pub pause: Duration,
    /// The network fails as often as it ever does, in each of its ways: for a mutation.
    pub often: bool,
    /// Tablet servers.
    pub tablet_servers: usize,
    /// Client processes.
    pub clients: usize,
    /// Workers in each client.
    pub workers: usize,
    /// Retention of locks.
    pub lock_ttl: Duration,
    /// How long the client library tries.
    pub request_timeout: Duration,
    /// How long the transport waits for an answer.
    pub timeout: Duration,
    /// How long a worker pauses between two transactions, about.
    pub think: Duration,
    /// What a transaction buffers before it flushes, in bytes.
    pub buffer_bytes: usize,
    /// Workloads use few keys.
    pub few_keys: bool,
    /// What a tablet server holds at the most.
    pub limits: Limits,
    /// How long versions are kept.
    pub retention: Duration,
    /// How long a server answers without hearing from the master.
    pub lease: Duration,
    /// How long a tablet server waits for a disk that hangs.
    pub stall_max: Duration,
    /// The plan is made for takeovers: see [`Plan::failover`].
    pub failover: bool,
    /// How many oracles and masters there are, and the times of their elections.
    pub replicas: Replicas,
    /// How long a tablet server doesn't know yet that a group is durable, at most, in microseconds.
    pub window_us: u64,
    /// What clients do.
    pub workloads: Vec<&'static str>,
    /// The one invariant that counts, where it is not all of them: to see what it finds alone.
    pub only: Option<&'static str>,
    /// What is wrong on purpose.
    pub mutation: Option<Mutation>,
}

impl Plan {
    /// The plan of a seed.
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed, "plan");
        let ms = Duration::from_millis;
        let likely = [1, 2, 3][rng.below(3) as usize];
        let mut faults: BTreeSet<Fault> = Fault::of_any()
            .into_iter()
            // It came later: what else a seed is stays as it was.
            .filter(|fault| *fault != Fault::LoseFolder)
            .filter(|_| rng.below(4) < likely)
            .collect();
        if Rng::new(seed, "lose-folder").below(4) < likely {
            faults.insert(Fault::LoseFolder);
        }
        let mut workloads: Vec<&'static str> = Vec::new();
        let all = workloads::names(&[]);
        for _ in 0..1 + rng.below(3) {
            let name = *rng.pick(&all);
            if !workloads.contains(&name) {
                workloads.push(name);
            }
        }
        let mut plan = Self {
            seed,
            faulty: ms(rng.between(2_000, 10_000)),
            faults,
            pause: ms(rng.between(50, 800)),
            often: false,
            tablet_servers: 2 + rng.below(2) as usize,
            clients: 2 + rng.below(3) as usize,
            workers: 1 + rng.below(3) as usize,
            lock_ttl: ms(rng.between(100, 3_000)),
            request_timeout: request_timeout(seed, ms(rng.between(500, 8_000))),
            timeout: ms(rng.between(100, 3_000)),
            think: ms(rng.between(1, 40)),
            buffer_bytes: buffer_bytes(seed),
            few_keys: false,
            limits: limits(seed),
            lease: lease(seed),
            stall_max: stall_max(seed),
            retention: retention(seed),
            failover: false,
            replicas: Replicas::default(),
            window_us: [0, 300, 5_000][rng.below(3) as usize],
            workloads,
            only: None,
            mutation: None,
        };
        if Rng::new(seed, "observe").below(5) == 0 {
            plan.workloads.push("observe");
        }
        if Rng::new(seed, "react").below(6) == 0 {
            plan.workloads.push("react");
        }
        if Rng::new(seed, "changes").below(5) == 0 {
            plan.workloads.push("changes");
        }
        if Rng::new(seed, "pipelined").below(4) == 0 {
            plan.workloads.push("pipelined");
        }
        if !narrow(&mut plan) {
            plan.faults.extend(drawn_apart(seed));
        }
        replicate(&mut plan);
        plan
    }

    /// What it is, a line each, for people.
    pub fn words(&self) -> Vec<String> {
        let faults: Vec<&str> = self.faults.iter().map(|fault| fault.name()).collect();
        let faults = if faults.is_empty() {
            "no faults".to_owned()
        } else {
            format!(
                "faults for {}, of each kind every {} or less often: {}",
                shown(self.faulty),
                shown(self.pause),
                faults.join(", ")
            )
        };
        let mut words = vec![
            format!("seed {}", self.seed),
            faults,
            format!(
                "{} tablet servers, which hear of a group up to {} us late",
                self.tablet_servers, self.window_us
            ),
            format!(
                "{} clients of {} workers, who pause for {}: {}",
                self.clients,
                self.workers,
                shown(self.think),
                self.workloads.join(", ")
            ),
            format!(
                "locks live for {}, versions for {}; an answer is waited for for {}, and tried for again for {}",
                shown(self.lock_ttl),
                shown(self.retention),
                shown(self.timeout),
                shown(self.request_timeout)
            ),
        ];
        if self.replicas.are_several() {
            let Replicas {
                oracles,
                masters,
                timing,
                ..
            } = self.replicas;
            words.push(format!(
                "oracles: {oracles}, masters: {masters}; another one leads when the register hasn't changed for {} ms",
                timing.takeover_ms
            ));
        }
        if let Some(mutation) = self.mutation {
            words.push(format!("wrong on purpose: {}", mutation.name()));
        }
        if let Some(only) = self.only {
            words.push(format!("nothing is looked at but: {only}"));
        }
        words
    }

    /// Whether this kind of fault happens.
    pub fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }
}

/// Kinds of faults that came later, each with a draw of its own, of so many seeds for one: what else a seed is stays as it was.
const DRAWN_APART: [(Fault, u64); 7] = [
    (Fault::StaleCommitTs, 4),
    (Fault::SplitAndMerge, 3),
    (Fault::MoveTablets, 3),
    (Fault::Balance, 3),
    (Fault::ChangeSettings, 4),
    (Fault::JoinLater, 4),
    (Fault::SwapFolders, 4),
];

fn drawn_apart(seed: u64) -> impl Iterator<Item = Fault> {
    let drawn = DRAWN_APART
        .into_iter()
        .filter(move |(fault, one_of)| Rng::new(seed, fault.name()).below(*one_of) == 0);
    drawn.map(|(fault, _)| fault)
}

/// Below this a client gives up before an answer that was lost has come by another way.
pub const SHORT_TIMEOUT: Duration = Duration::from_millis(100);

/// How long the client library tries: in some runs so short that, where answers get lost, many stay unknown.
fn request_timeout(seed: u64, usual: Duration) -> Duration {
    let mut rng = Rng::new(seed, "request timeout");
    match rng.below(3) {
        0 => Duration::from_millis(rng.between(8, 60)),
        _ => usual,
    }
}

/// How long versions are kept: in most runs shorter than many transactions last.
fn retention(seed: u64) -> Duration {
    let mut rng = Rng::new(seed, "retention");
    match rng.below(3) {
        0 => Duration::from_secs(600),
        _ => Duration::from_millis(rng.between(20, 2_000)),
    }
}

/// How long a server answers without hearing from the master: in many runs not much longer than between two heartbeats.
fn lease(seed: u64) -> Duration {
    let mut rng = Rng::new(seed, "lease");
    Duration::from_millis(*rng.pick(&[2_000, 3_000, 10_000]))
}

/// How long a tablet server waits for a disk that hangs: shorter than a lease lasts, or longer.
fn stall_max(seed: u64) -> Duration {
    let mut rng = Rng::new(seed, "stall");
    Duration::from_secs(*rng.pick(&[1, 5]))
}

/// What a transaction buffers: in many runs so little that those of two cells are large ones, or those of some more.
fn buffer_bytes(seed: u64) -> usize {
    let mut rng = Rng::new(seed, "buffer");
    *rng.pick(&[200, 2_000, 2_000, 16 << 20])
}

/// A server's limits: some of them small, so that runs reach them.
fn limits(seed: u64) -> Limits {
    let mut rng = Rng::new(seed, "limits");
    let usual = Limits::default();
    let mut one_of = |choices: &[usize]| *rng.pick(choices);
    Limits {
        // Some versions of cells that are read fit, others don't.
        cache_bytes: one_of(&[1 << 10, 16 << 10]) as u64,
        marks: one_of(&[1, 16, usual.marks]),
        waiting: one_of(&[4, 32, usual.waiting]),
        queued_bytes: one_of(&[1 << 10, 16 << 10, usual.queued_bytes]),
        decided_bytes: one_of(&[1 << 10, 16 << 10, usual.decided_bytes]),
        group_bytes: one_of(&[64, 16 << 10, usual.group_bytes]),
        get_bytes: one_of(&[1, 1_000, usual.get_bytes]),
        scan_cells: one_of(&[1, 7, usual.scan_cells]),
        scan_bytes: one_of(&[1, 1_000, usual.scan_bytes]),
        scan_records: one_of(&[1, 20, usual.scan_records]),
        scan_locks: one_of(&[1, 5, usual.scan_locks]),
        resolve_locks: one_of(&[1, 7, usual.resolve_locks]),
        large_cells_a_second: if seed.is_multiple_of(2) {
            800
        } else {
            usual.large_cells_a_second
        },
        scan_records_of_one_cell: one_of(&[1, 5, usual.scan_records_of_one_cell]),
        move_bytes: one_of(&[200, 2_000, usual.move_bytes]),
        verify_pairs: one_of(&[20, usual.verify_pairs]),
        followed_ms: one_of(&[20, 300, usual.followed_ms as usize]) as u64,
        index_garbage: true,
    }
}

impl fmt::Display for Plan {
    /// The arguments that repeat the run.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--seed {}", self.seed)?;
        let drawn = match self.mutation {
            Some(mutation) => mutation.plan(self.seed),
            None if self.failover => Self::failover(self.seed),
            None => Self::new(self.seed),
        };
        if self.failover {
            write!(f, " --failover")?;
        }
        if self.faults != drawn.faults {
            let names: Vec<&str> = self.faults.iter().map(|fault| fault.name()).collect();
            let names = if names.is_empty() {
                "none".to_owned()
            } else {
                names.join(",")
            };
            write!(f, " --faults {names}")?;
        }
        if self.workloads != drawn.workloads {
            write!(f, " --workloads {}", self.workloads.join(","))?;
        }
        if self.clients != drawn.clients {
            write!(f, " --clients {}", self.clients)?;
        }
        if self.workers != drawn.workers {
            write!(f, " --workers {}", self.workers)?;
        }
        if self.faulty != drawn.faulty {
            write!(f, " --faulty-ms {}", self.faulty.as_millis())?;
        }
        if let Some(mutation) = self.mutation {
            write!(f, " --mutant {}", mutation.name())?;
        }
        if let Some(only) = self.only {
            write!(f, " --alone {}", invariants::argument(only))?;
        }
        Ok(())
    }
}
