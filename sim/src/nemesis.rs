//! Who makes things fail, as the plan says, and who mends them in the end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::cluster::Cluster;
use crate::disk::Space;
use crate::network::NetworkFaults;
use crate::plan::Fault;
use crate::rng::Rng;
use crate::servers::tablet::{LAST_RESERVE_BYTES, RESERVE_BYTES};
use crate::world::{Act, NodeId, World};

/// Something that fails for a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Link(NodeId, NodeId),
    Process(NodeId),
    Clock(NodeId),
    /// A server's disk, in this way.
    Disk(usize, Fault),
}

/// How often each place was made to fail.
type Turns = Arc<Mutex<BTreeMap<Place, u64>>>;

/// Mends a place when its time is over, unless it was made to fail again meanwhile: then that one's mending
/// does it.
fn mend_later(world: &Arc<World>, turns: &Turns, place: Place, after: Duration, mend: Act) {
    let turn = {
        let mut turns = turns.lock();
        let turn = turns.entry(place).or_default();
        *turn += 1;
        *turn
    };
    let turns = turns.clone();
    let act = move |world: &Arc<World>| {
        let is_last = turns.lock().get(&place) == Some(&turn);
        if is_last {
            mend(world);
        }
    };
    world.at(after, Box::new(act));
}

/// What can be done to a process, a disk or a clock.
const ACTIONS: [Fault; 13] = [
    Fault::Cut,
    Fault::KillServer,
    Fault::KillClient,
    Fault::PauseClient,
    Fault::PauseServer,
    Fault::DiskError,
    Fault::DiskFull,
    Fault::DiskSlow,
    Fault::ClockJump,
    Fault::ClockPace,
    Fault::ClockStop,
    Fault::Burst,
    Fault::LoseMaster,
];

/// Lets things fail until it is told to stop.
pub async fn run(world: Arc<World>, cluster: Arc<Cluster>) {
    let plan = &cluster.plan;
    let mut rng = Rng::new(plan.seed, "nemesis");
    let ms = Duration::from_millis;
    let mut rate = |fault: Fault, most: u32| {
        // A rate of its own for each kind of fault, up to `most`; low ones as often as high ones.
        let rate = most >> rng.below(6);
        match plan.has(fault) {
            true if plan.often => most,
            true => rate,
            false => 0,
        }
    };
    world.network.lock().set_faults(NetworkFaults {
        loss_ppm: rate(Fault::Loss, 30_000),
        late_ppm: rate(Fault::Late, 200_000),
        late_max: 3 * plan.lock_ttl + ms(500),
        duplicate_ppm: rate(Fault::Duplicate, 200_000),
        reorders: plan.has(Fault::Reorder),
        reset_ppm: rate(Fault::Reset, 50_000),
    });
    *cluster.master.die_ppm.lock() = rate(Fault::KillServer, 300_000);
    let actions: Vec<Fault> = ACTIONS
        .into_iter()
        .filter(|fault| plan.has(*fault))
        .collect();
    if actions.is_empty() {
        return;
    }
    let turns = Turns::default();
    loop {
        world.sleep(rng.about(plan.pause)).await;
        if cluster.is_healed() {
            return;
        }
        let fault = *rng.pick(&actions);
        act(&world, &cluster, &turns, fault, &mut rng);
    }
}

fn act(world: &Arc<World>, cluster: &Arc<Cluster>, turns: &Turns, fault: Fault, rng: &mut Rng) {
    let ms = Duration::from_millis;
    let ttl = cluster.plan.lock_ttl;
    match fault {
        Fault::Cut => {
            let (from, to) = *rng.pick(&cluster.links());
            let (from_name, to_name) = (world.name(from), world.name(to));
            world.note(|| format!("cut from {from_name} to {to_name}"));
            world.network.lock().cut(from, to, true);
            let mend = move |world: &Arc<World>| world.network.lock().cut(from, to, false);
            let lasts = rng.about(ms(1_500));
            mend_later(world, turns, Place::Link(from, to), lasts, Box::new(mend));
        }
        Fault::KillServer => {
            let server = rng.below(cluster.servers() as u64) as usize;
            kill(world, cluster, server, rng);
        }
        Fault::KillClient => {
            let client = rng.below(cluster.plan.clients as u64) as usize;
            let down = rng.about(ms(500));
            cluster.kill_client(world, client, down);
        }
        Fault::PauseClient => {
            let client = cluster.client_node(rng.below(cluster.plan.clients as u64) as usize);
            // Longer than its locks live, mostly.
            pause(world, turns, client, ttl / 2 + rng.about(2 * ttl));
        }
        Fault::PauseServer => {
            let server = cluster.server_node(rng.below(cluster.servers() as u64) as usize);
            pause(world, turns, server, rng.about(ms(800)));
        }
        Fault::DiskError | Fault::DiskFull | Fault::DiskSlow => {
            let lasts = rng.about(ms(600));
            disk(world, cluster, turns, (fault, lasts), rng);
        }
        Fault::ClockJump => {
            let most = [50, 2_000, 9_000, 60_000, 3_600_000][rng.below(5) as usize];
            let by_ms = rng.below(2 * most) as i64 - most as i64;
            world.note(|| format!("the oracle's clock jumps by {by_ms} ms"));
            world.clock(cluster.oracle.node, |clock, now| {
                clock.jump_wall(now, by_ms)
            });
        }
        Fault::ClockStop => {
            let node = cluster.oracle.node;
            world.note(|| "the oracle's clock stops".to_owned());
            world.clock(node, |clock, now| clock.stop_wall(now, true));
            let mend = move |world: &Arc<World>| {
                world.clock(node, |clock, now| clock.stop_wall(now, false));
            };
            let lasts = rng.about(ms(2_000));
            mend_later(world, turns, Place::Clock(node), lasts, Box::new(mend));
        }
        Fault::ClockPace => {
            let node = *rng.pick(&cluster.nodes());
            let pace = [100, 500, 900, 990, 1_010, 1_100, 2_000, 5_000][rng.below(8) as usize];
            let name = world.name(node);
            world.note(|| format!("the clocks of {name} go at {pace}/1000"));
            world.clock(node, |clock, now| clock.set_pace(now, pace));
        }
        Fault::LoseMaster => {
            world.note(|| "the master loses its state".to_owned());
            cluster.kill_server(world, 0, rng.about(ms(300)), false);
            cluster.master.disk.lose();
        }
        Fault::Burst => cluster.burst(world, rng.below(8) as usize + 4),
        Fault::Loss | Fault::Late | Fault::Duplicate | Fault::Reorder | Fault::Reset => {}
    }
}

/// Kills a server; it is often back before anybody has noticed.
fn kill(world: &Arc<World>, cluster: &Arc<Cluster>, server: usize, rng: &mut Rng) {
    let down = rng.about(Duration::from_millis(600)) / (1 << rng.below(10));
    let silent = rng.below(2) == 0;
    cluster.kill_server(world, server, down, silent);
}

fn pause(world: &Arc<World>, turns: &Turns, node: NodeId, lasts: Duration) {
    let name = world.name(node);
    world.note(|| format!("{name} stands still for {lasts:?}"));
    world.pause(node);
    let resume = move |world: &Arc<World>| {
        let name = world.name(node);
        world.note(|| format!("{name} goes on"));
        world.resume(node);
    };
    mend_later(world, turns, Place::Process(node), lasts, Box::new(resume));
}

/// Some server's disk fails in this way for so long.
fn disk(
    world: &Arc<World>,
    cluster: &Arc<Cluster>,
    turns: &Turns,
    (fault, lasts): (Fault, Duration),
    rng: &mut Rng,
) {
    let first = usize::from(fault == Fault::DiskSlow);
    let server = first + rng.below((cluster.servers() - first) as u64) as usize;
    let name = world.name(cluster.server_node(server));
    world.note(|| format!("{}: {name}", fault.about()));
    match fault {
        Fault::DiskError => {
            let ppm = [1_000, 20_000, 500_000][rng.below(3) as usize];
            cluster.set_disk_error_ppm(server, ppm);
        }
        Fault::DiskFull => {
            let between = (LAST_RESERVE_BYTES + RESERVE_BYTES) / 2;
            let space = [
                Space::Left(0),
                Space::Left(between),
                Space::NoneAndDoesNotTell,
            ];
            cluster.set_disk_space(server, *rng.pick(&space));
        }
        _ => cluster.set_disk_slow(server, rng.about(Duration::from_millis(500))),
    }
    // A crash while the disk is in trouble is where writes are lost.
    if cluster.plan.has(Fault::KillServer) && rng.below(2) == 0 {
        let when = Duration::from_micros(rng.below(lasts.as_micros() as u64 + 1));
        let mut rng = Rng::new(rng.next(), "kill");
        let cluster = cluster.clone();
        let act = move |world: &Arc<World>| {
            if !cluster.is_healed() {
                kill(world, &cluster, server, &mut rng);
            }
        };
        world.at(when, Box::new(act));
    }
    let cluster = cluster.clone();
    let mend = move |_: &Arc<World>| match fault {
        Fault::DiskError => cluster.set_disk_error_ppm(server, 0),
        Fault::DiskFull => cluster.set_disk_space(server, Space::Plenty),
        _ => cluster.set_disk_slow(server, Duration::ZERO),
    };
    mend_later(
        world,
        turns,
        Place::Disk(server, fault),
        lasts,
        Box::new(mend),
    );
}

/// Nothing fails any more, and what has failed is mended.
pub fn heal(world: &Arc<World>, cluster: &Arc<Cluster>) {
    world.note(|| "everything is mended".to_owned());
    let nodes = cluster.nodes();
    {
        let mut network = world.network.lock();
        network.set_faults(NetworkFaults::default());
        for from in &nodes {
            for to in &nodes {
                network.cut(*from, *to, false);
            }
        }
    }
    for node in nodes {
        world.resume(node);
        world.clock(node, |clock, now| clock.heal(now));
    }
    (0..cluster.servers()).for_each(|server| cluster.mend_disk(server));
    *cluster.master.die_ppm.lock() = 0;
}
