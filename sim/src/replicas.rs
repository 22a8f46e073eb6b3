//! How many oracles and masters a run has, and the times of their elections. Most seeds have one of each, without a register.

use std::time::Duration;

use percolator_protocol::election::Timing;

use crate::plan::{Fault, Plan};
use crate::rng::Rng;

/// Of so many seeds one has several oracles, one several masters, and one several of both.
const OF: u64 = 10;
/// Takeovers take time, so that seeds with several oracles have faults for so long at least, in takeovers.
const TAKEOVERS_MIN: u32 = 6;

/// Faults of those that are several, and of their register.
pub const FAULTS: [Fault; 6] = [
    Fault::HandOver,
    Fault::KillLeader,
    Fault::PauseLeader,
    Fault::CutLeader,
    Fault::RegisterAway,
    Fault::RegisterSlow,
];

/// See the module's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// Oracles; one has no register.
    pub oracles: usize,
    /// Masters; one has no register.
    pub masters: usize,
    /// The times of an election.
    pub timing: Timing,
    /// A request to a register is given up after this.
    pub timeout: Duration,
    /// Oracles promise to each other, and masters, so that one goes on without the register.
    pub promises: bool,
}

impl Default for Replicas {
    fn default() -> Self {
        Self {
            oracles: 1,
            masters: 1,
            timing: Timing::default(),
            timeout: Duration::from_secs(1),
            promises: true,
        }
    }
}

impl Replicas {
    /// So many, with a part of the shipped times: takeovers are as many times more.
    pub fn several(oracles: usize, masters: usize, part: u64) -> Self {
        let usual = Timing::default();
        let timing = Timing {
            renew_ms: usual.renew_ms / part,
            right_ms: usual.right_ms / part,
            takeover_ms: usual.takeover_ms / part,
            poll_ms: usual.poll_ms / part,
            retry_ms: usual.retry_ms / part,
            promise_ms: usual.promise_ms / part,
        };
        Self {
            oracles,
            masters,
            timing,
            timeout: Duration::from_millis(timing.renew_ms),
            promises: true,
        }
    }

    /// Whether there are several oracles or several masters.
    pub fn are_several(&self) -> bool {
        self.oracles > 1 || self.masters > 1
    }

    /// How long a standby waits before it takes over.
    pub fn takeover(&self) -> Duration {
        Duration::from_millis(self.timing.takeover_ms)
    }
}

/// Gives the plan several oracles or masters, and faults of theirs, if its seed is one of those.
pub(crate) fn replicate(plan: &mut Plan) {
    if plan.is_healthy() {
        return;
    }
    let mut rng = Rng::new(plan.seed, "replicas");
    let mut several = || 2 + rng.below(2) as usize;
    let (oracles, masters) = (several(), several());
    let (oracles, masters) = match rng.below(OF) {
        0 => (oracles, 1),
        1 => (1, masters),
        2 => (oracles, masters),
        _ => return,
    };
    let part = *rng.pick(&[1, 5, 5]);
    plan.replicas = Replicas::several(oracles, masters, part);
    if masters > 1 {
        // What a folder of one of several loses, promises and a copy, makes it another replica: the model of the election has that.
        plan.faults.remove(&Fault::LoseMaster);
    }
    // Some stores are waited for until the right is over, or longer.
    plan.replicas.timeout *= *rng.pick(&[1, 1, 2, 6]);
    plan.faulty = plan
        .faulty
        .max(plan.replicas.takeover() * TAKEOVERS_MIN)
        .min(Duration::from_secs(20));
    let likely = 1 + rng.below(3);
    for fault in FAULTS {
        if rng.below(4) < likely {
            plan.faults.insert(fault);
        }
    }
}

/// Several oracles, of which another one leads again and again, and clients who do little else than to ask them.
pub(crate) fn elect(plan: &mut Plan) {
    plan.replicas = Replicas::several(3, 1, 5);
    // Answers count that come when the right is over.
    plan.replicas.timeout = Duration::from_secs(2);
    plan.pause = Duration::from_millis(500);
    plan.faulty = Duration::from_secs(30);
    plan.workloads = vec!["counter"];
    plan.clients = 2;
    plan.workers = 2;
    plan.tablet_servers = 1;
    plan.think = Duration::from_millis(20);
    plan.timeout = Duration::from_secs(1);
}

impl Plan {
    /// The plan of a seed with several oracles and masters in any case, of which others lead as often as can be.
    pub fn failover(seed: u64) -> Self {
        let mut plan = Self::new(seed);
        elect(&mut plan);
        plan.failover = true;
        let mut rng = Rng::new(seed, "failover");
        let several = 2 + rng.below(2) as usize;
        plan.replicas = Replicas::several(several, several, 5);
        plan.replicas.timeout *= *rng.pick(&[1, 1, 2, 6]);
        plan.pause = Duration::from_millis(250);
        plan.faults.extend(FAULTS);
        for fault in [Fault::LoseMaster, Fault::NewCluster, Fault::LoseFolder] {
            plan.faults.remove(&fault);
        }
        plan
    }
}
