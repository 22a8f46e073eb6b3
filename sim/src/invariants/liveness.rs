//! When faults stop, every client makes progress, what was begun ends, and the cluster serves again (the promise
//! "Liveness" of `docs/correctness.md`). These look at a whole run that goes on, so `run` asks them, not the watch.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use percolator_protocol::types::Timestamp;

use crate::cluster::Cluster;
use crate::invariants::collection_ends;
use crate::nemesis::SYNC_LONGEST_MS;
use crate::plan::Fault;
use crate::trace::shown;
use crate::world::World;

/// After the faults have stopped every worker commits something that it wrote within this and the client's request timeout; and
/// so do the other things that have to happen then.
const BOUND: Duration = Duration::from_secs(60);

const PROGRESS: &str = "liveness: progress";
const ENDS: &str = "liveness: ends";
const SERVES: &str = "liveness: the cluster serves";
const READERS: &str = "liveness: readers";
const LEADER: &str = "liveness: a leader";
const OUTAGE: &str = "liveness: without a register";
pub(crate) const COLLECTION: &str = "liveness: collection";
/// Their names.
pub(super) const NAMES: [&str; 7] = [PROGRESS, ENDS, SERVES, READERS, LEADER, OUTAGE, COLLECTION];

/// What a read of a well cluster takes, with the pauses before it looks at a lock again.
const READ: Duration = Duration::from_secs(2);

/// A longer retention is not waited for: this one is set.
const RETENTION_WAITED: Duration = Duration::from_secs(2);
/// The longest lease that was granted is waited for (`gc-master/src/collection.rs`).
const LEASE_MAX: Duration = Duration::from_secs(60);

/// After the faults a process may have to start, and the master to accept it, before it waits to take over.
const LEADER_MARGIN: Duration = Duration::from_secs(10);

/// The register is away for as long as so many takeovers take.
const OUTAGE_TAKEOVERS: u32 = 2;

/// How often it is looked whether collection has ended.
const LOOK: Duration = Duration::from_millis(10);

fn bound(cluster: &Cluster) -> Duration {
    BOUND + cluster.plan.request_timeout
}

/// Of several oracles one leads, and of several masters. Whether the run goes on, as of [`ends`].
pub(crate) fn leader(world: &Arc<World>, cluster: &Arc<Cluster>) -> bool {
    // A master without a state accepts no process of an oracle. A state is rebuilt when no two servers have one name.
    let has_state = || cluster.master().has_state();
    if !serves(world, cluster, "a rebuild of the state", has_state, || {
        "the master has no state".to_owned()
    }) {
        return false;
    }
    let bound = LEADER_MARGIN + 2 * cluster.plan.replicas.takeover();
    let oracle_leads = || cluster.oracles.iter().any(|oracle| oracle.leads(world));
    let master_leads = || cluster.masters.iter().any(|master| master.leads());
    if world.run(world.now() + bound, || oracle_leads() && master_leads()) {
        return true;
    }
    if world.failure().is_none() {
        world.fail(
            LEADER,
            format!(
                "no {} leads within {} after the faults",
                if oracle_leads() { "master" } else { "oracle" },
                shown(bound)
            ),
        );
    }
    world.failure().is_none()
}

/// While all oracles and masters are up those that lead go on without their registers. Whether the run goes on, as of [`ends`].
pub(crate) fn outage(world: &Arc<World>, cluster: &Arc<Cluster>) -> bool {
    cluster.set_calm(true);
    let goes_on = stays_led(world, cluster);
    cluster.set_calm(false);
    goes_on
}

fn stays_led(world: &Arc<World>, cluster: &Arc<Cluster>) -> bool {
    let replicas = &cluster.plan.replicas;
    let store = cluster.store.as_ref();
    let Some(store) = store.filter(|_| replicas.promises && replicas.are_several()) else {
        return true;
    };
    // A standby whose disk was slow until now keeps a promise late, and the leader has the last one for some time yet.
    world.run(world.now() + Duration::from_millis(SYNC_LONGEST_MS), || {
        false
    });
    // The terms of those that are several; 0 of one that is alone.
    let promised = || {
        let mut oracles = cluster.oracles.iter();
        let oracle = match replicas.oracles {
            1 => Some(0),
            _ => oracles.find_map(|oracle| oracle.promised_term(world)),
        };
        let mut masters = cluster.masters.iter();
        let master = match replicas.masters {
            1 => Some(0),
            _ => masters.find_map(|master| master.promised_term()),
        };
        oracle.zip(master)
    };
    let bound = LEADER_MARGIN + 2 * replicas.takeover();
    // A swap whose outcome is unknown since the faults may turn out to be none, so that its leader gives up. A leader that was asked
    // to end serves until it is drained, and then ends.
    let is_settled = || {
        let mut masters = cluster.masters.iter();
        !masters.any(|master| master.is_ahead() || master.is_ending())
    };
    if !world.run(world.now() + bound, || promised().is_some() && is_settled()) {
        if world.failure().is_none() {
            let bound = shown(bound);
            let why =
                format!("no oracle or no master could go on without the register within {bound}");
            world.fail(OUTAGE, why);
        }
        return world.failure().is_none();
    }
    let before = promised();
    world.note(|| "the register is away, and all oracles and masters are up".to_owned());
    world.has_outage.store(true, Ordering::Relaxed);
    world.kill(store.node, false);
    world.run(world.now() + OUTAGE_TAKEOVERS * replicas.takeover(), || {
        false
    });
    if world.failure().is_some() || !goes_on(world, cluster, OUTAGE, "in an outage") {
        return false;
    }
    let after = promised();
    store.boot_again(world);
    if before != after {
        let terms = format!("{before:?} and {after:?}");
        let why = format!(
            "the oracle and the master that go on lead in the terms {terms}, before and in an outage"
        );
        world.fail(OUTAGE, why);
    }
    world.failure().is_none()
}

/// Every worker commits something that it wrote or got for update. Whether the run goes on, as of [`ends`].
pub(crate) fn progress(world: &Arc<World>, cluster: &Arc<Cluster>) -> bool {
    goes_on(world, cluster, PROGRESS, "after the faults")
}

fn goes_on(
    world: &Arc<World>,
    cluster: &Arc<Cluster>,
    invariant: &'static str,
    when: &str,
) -> bool {
    let (before, done_before) = (cluster.progress(), cluster.done());
    let bound = bound(cluster);
    let stuck_workload = || {
        let mut done = cluster.done().into_iter().zip(&done_before);
        done.find_map(|((name, now), (_, before))| (now == *before).then_some(name))
    };
    let all_go_on = || {
        let now = cluster.progress();
        now.iter().zip(&before).all(|(now, before)| now > before) && stuck_workload().is_none()
    };
    if world.run(world.now() + bound, all_go_on) {
        return true;
    }
    if world.failure().is_some() {
        return false;
    }
    let now = cluster.progress();
    if let Some(workload) = stuck_workload()
        && now.iter().zip(&before).all(|(now, before)| now > before)
    {
        let why = format!(
            "no step of {workload} ended well within {} {when}",
            shown(bound)
        );
        world.fail(invariant, why);
        return false;
    }
    let stuck = now
        .iter()
        .zip(&before)
        .position(|(now, before)| now <= before);
    let who = stuck.unwrap_or_default();
    let (client, worker) = (who / cluster.plan.workers, who % cluster.plan.workers);
    world.fail(
        invariant,
        format!(
            "client-{client}.{worker} committed nothing that it wrote within {} {when}",
            shown(bound)
        ),
    );
    world.failure().is_none()
}

/// Workers that were told to stop come to their end.
pub(crate) fn ends(world: &Arc<World>, cluster: &Arc<Cluster>) -> bool {
    let bound = bound(cluster);
    if world.run(world.now() + bound, || cluster.working() == 0) {
        return true;
    }
    if world.failure().is_none() {
        let working = cluster.working();
        world.fail(
            ENDS,
            format!("{working} workers have not ended within {}", shown(bound)),
        );
    }
    world.failure().is_none()
}

/// What is asked of the well cluster is done: locks are cleared, tables deleted, and every tablet takes writes.
pub(crate) fn serves(
    world: &Arc<World>,
    cluster: &Arc<Cluster>,
    doing: &str,
    done: impl Fn() -> bool,
    last: impl Fn() -> String,
) -> bool {
    let bound = bound(cluster);
    if world.run(world.now() + bound, done) {
        return true;
    }
    if world.failure().is_none() {
        let last = last();
        world.fail(
            SERVES,
            format!("{doing} did not end within {}; last: {last}", shown(bound)),
        );
    }
    false
}

/// Anyone who reads what a dead client has left behind has read it all, none of them later than its locks live.
pub(crate) fn readers(
    world: &Arc<World>,
    cluster: &Arc<Cluster>,
    all: impl Fn() -> bool,
    longest: impl Fn() -> Duration,
) -> bool {
    let began = world.now();
    let done = world.run(began + bound(cluster), all);
    // By the oracle's time, which goes at half the pace as long as it is ahead of its clock.
    let bound = 2 * cluster.plan.lock_ttl + READ;
    let longest = if done { longest() } else { world.now() - began };
    if done && longest <= bound {
        return true;
    }
    if world.failure().is_none() {
        world.fail(
            READERS,
            format!(
                "a reader waited for {} for what a dead client had locked, and locks live for {}",
                shown(longest),
                shown(cluster.plan.lock_ttl)
            ),
        );
    }
    world.failure().is_none()
}

/// What happened until now is collected when no client holds it back any more and the retention is over.
pub(crate) fn collection(world: &Arc<World>, cluster: &Arc<Cluster>) -> bool {
    let past = *cluster.highest.lock();
    if cluster.plan.retention > RETENTION_WAITED || cluster.plan.has(Fault::ChangeSettings) {
        cluster.set_retention_at_last(world, RETENTION_WAITED);
    }
    collected(world, cluster, past)
}

/// How long after it happened it is collected.
fn collection_bound(cluster: &Cluster) -> Duration {
    // The oracle's time goes at half the pace as long as it is ahead of its clock.
    bound(cluster) + LEASE_MAX + 2 * RETENTION_WAITED
}

/// All of them have collected what is not above `past`.
pub(crate) fn collected(world: &Arc<World>, cluster: &Cluster, past: Timestamp) -> bool {
    let bound = collection_bound(cluster);
    let unfinished = || {
        let watch = world.watch.lock();
        let mut holdings = watch.holdings();
        holdings.find_map(|holding| collection_ends::unfinished(&holding, past))
    };
    // Of what all servers hold, and not after each event.
    let looked = Cell::new(Duration::ZERO);
    let is_done = || {
        let now = world.now();
        now >= looked.get() + LOOK && {
            looked.set(now);
            unfinished().is_none()
        }
    };
    let done = world.run(world.now() + bound, is_done);
    if world.failure().is_some() {
        return false;
    }
    let ended = match unfinished() {
        Some(why) if !done => Err(format!("{why}, {} after the last session", shown(bound))),
        _ => {
            let watch = world.watch.lock();
            let mut holdings = watch.holdings();
            holdings.try_for_each(|holding| collection_ends::check(&holding))
        }
    };
    if let Err(wrong) = ended {
        world.fail(COLLECTION, wrong);
    }
    world.failure().is_none()
}

/// Collection doesn't wait for this tablet server, which is down: the others' safe point passes that time.
pub(crate) fn others_collect(
    world: &Arc<World>,
    cluster: &Cluster,
    down: &str,
    past: Timestamp,
) -> bool {
    let behind = || {
        let watch = world.watch.lock();
        let mut others = watch.holdings().filter(|it| it.server != down);
        others.find_map(|it| {
            let safe_point = it.points.safe_point;
            (safe_point <= past).then(|| format!("that of {} is {safe_point}", it.server))
        })
    };
    let bound = collection_bound(cluster);
    let done = world.run(world.now() + bound, || behind().is_none());
    if let Some(why) = behind()
        && !done
        && world.failure().is_none()
    {
        let why = format!(
            "no safe point has passed {past}, {} after {down} was killed: {why}",
            shown(bound)
        );
        world.fail(COLLECTION, why);
    }
    world.failure().is_none()
}
