//! Who makes things fail, as the plan says, and who mends them in the end.
//!
//! What is done, when and to whom is drawn before the run begins, by each kind of fault from a stream of its own: so
//! it is the same whichever other kinds there are, and a failing run can be made smaller by leaving some of them out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::administration;
use crate::cluster::Cluster;
use crate::cuts;
use crate::disk::Space;
use crate::moves;
use crate::network::NetworkFaults;
use crate::plan::{Fault, Plan, SHORT_TIMEOUT};
use crate::rng::Rng;
use crate::servers::register::{MASTERS, ORACLES, STATE, Slowness};
use crate::servers::tablet::{LAST_RESERVE_BYTES, RESERVE_BYTES};
use crate::trace::shown;
use crate::world::{Act, NodeId, World};

/// Something that fails for a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Link(NodeId, NodeId),
    Process(NodeId),
    Clock(NodeId),
    /// A server's disk, in this way.
    Disk(usize, Fault),
    Register,
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

/// The paces of clocks by which an election goes, in thousandths: they may differ by less than 1.5 times.
const ELECTED_PACES: [u64; 6] = [820, 900, 990, 1_010, 1_100, 1_200];

/// Where syncs take long, each takes about less than this, in milliseconds (`Rng::about`: up to six times of it). One that
/// has begun goes on when the fault is over.
pub(crate) const SYNC_LONGEST_MS: u64 = 750;

/// What can be done to a process, a disk or a clock.
const ACTIONS: [Fault; 28] = [
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
    Fault::TwoProcesses,
    Fault::OlderFolder,
    Fault::DiskHang,
    Fault::HandOver,
    Fault::KillLeader,
    Fault::PauseLeader,
    Fault::CutLeader,
    Fault::RegisterAway,
    Fault::RegisterSlow,
    Fault::SplitAndMerge,
    Fault::MoveTablets,
    Fault::Balance,
    Fault::ChangeSettings,
    Fault::JoinLater,
    Fault::SwapFolders,
];

/// Something that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deed {
    /// When, since the faults began.
    pub at: Duration,
    /// Of which kind it is.
    pub fault: Fault,
    /// To whom: by this number of those that there are, around and around.
    pub whom: u64,
    /// How long it lasts, where it ends.
    pub lasts: Duration,
    /// In which way, of those that there are.
    pub way: u64,
    /// How far a clock jumps, in milliseconds.
    pub by_ms: i64,
    /// When a server is killed for it as well, after it began, where servers are killed.
    pub crash: Option<(Duration, Death)>,
}

/// How a server dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Death {
    /// It is started again after this.
    pub down: Duration,
    /// Nobody is told.
    pub silent: bool,
}

impl Death {
    /// It is often back before anybody has noticed.
    fn draw(rng: &mut Rng) -> Self {
        Self {
            down: rng.about(Duration::from_millis(600)) / (1 << rng.below(10)),
            silent: rng.below(2) == 0,
        }
    }
}

/// All that is done in a run, in its order.
pub fn schedule(plan: &Plan) -> Vec<Deed> {
    let kinds = ACTIONS.into_iter().filter(|fault| plan.has(*fault));
    let mut deeds: Vec<Deed> = kinds.flat_map(|fault| of_kind(plan, fault)).collect();
    deeds.sort_by_key(|deed| deed.at);
    deeds
}

/// The pauses of a kind are of one mean length, which is drawn too.
fn of_kind(plan: &Plan, fault: Fault) -> Vec<Deed> {
    let mut rng = Rng::new(plan.seed, fault.name());
    let times = match fault {
        // Nothing fails by it.
        Fault::SplitAndMerge | Fault::MoveTablets | Fault::Balance => {
            [1, 2, 3][rng.below(3) as usize]
        }
        _ => [2, 4, 8, 16][rng.below(4) as usize],
    };
    let pause = plan.pause * if plan.often { 1 } else { times };
    let mut at = Duration::ZERO;
    let mut deeds = Vec::new();
    loop {
        at += rng.about(pause).max(Duration::from_millis(1));
        if at >= plan.faulty {
            return deeds;
        }
        deeds.push(draw(plan, fault, at, &mut rng));
    }
}

fn draw(plan: &Plan, fault: Fault, at: Duration, rng: &mut Rng) -> Deed {
    let ms = Duration::from_millis;
    let ttl = plan.lock_ttl;
    let whom = rng.next();
    let mut deed = Deed {
        at,
        fault,
        whom,
        lasts: Duration::ZERO,
        way: rng.next(),
        by_ms: 0,
        crash: None,
    };
    match fault {
        Fault::Cut => deed.lasts = rng.about(ms(1_500)),
        Fault::KillServer => deed.crash = Some((Duration::ZERO, Death::draw(rng))),
        Fault::KillClient => deed.lasts = rng.about(ms(500)),
        // Longer than its locks live, mostly.
        Fault::PauseClient => deed.lasts = ttl / 2 + rng.about(2 * ttl),
        Fault::PauseServer => deed.lasts = rng.about(ms(800)),
        Fault::DiskError | Fault::DiskFull | Fault::DiskSlow => {
            deed.lasts = rng.about(ms(600));
            // A crash while the disk is in trouble is where writes are lost.
            let after = Duration::from_micros(rng.below(deed.lasts.as_micros() as u64 + 1));
            let death = Death::draw(rng);
            deed.crash = (rng.below(2) == 0).then_some((after, death));
        }
        Fault::ClockJump => {
            let most = [50, 2_000, 9_000, 60_000, 3_600_000][rng.below(5) as usize];
            deed.by_ms = rng.below(2 * most) as i64 - most as i64;
        }
        Fault::ClockStop => deed.lasts = rng.about(ms(2_000)),
        // Some until leases of before are over, where that isn't long.
        Fault::LoseMaster if plan.lease <= ms(3_000) && rng.below(3) == 0 => {
            deed.lasts = plan.lease + rng.about(plan.lease);
        }
        Fault::LoseMaster => deed.lasts = rng.about(ms(300)),
        // Some of them until long after the other one serves.
        Fault::TwoProcesses => deed.lasts = plan.lease / 2 + rng.about(2 * plan.lease),
        Fault::OlderFolder | Fault::SwapFolders => deed.lasts = rng.about(ms(2_000)),
        // A standby takes over meanwhile, or not.
        Fault::KillLeader | Fault::PauseLeader | Fault::CutLeader | Fault::RegisterAway => {
            // All of them may be down at the end: a leader is to be there again within some takeovers from then on.
            let most = plan.replicas.takeover() * 3;
            deed.lasts = rng.about(most / 2).min(most);
        }
        Fault::HandOver => deed.lasts = rng.about(ms(300)),
        Fault::RegisterSlow => deed.lasts = rng.about(plan.replicas.takeover() * 3),
        Fault::ClockPace
        | Fault::DiskHang
        | Fault::Burst
        | Fault::Loss
        | Fault::Late
        | Fault::Duplicate
        | Fault::Reorder
        | Fault::Reset
        | Fault::NewCluster
        | Fault::LoseFolder
        | Fault::StaleCommitTs
        | Fault::SplitAndMerge
        | Fault::MoveTablets
        | Fault::Balance
        | Fault::ChangeSettings
        | Fault::JoinLater => {}
    }
    deed
}

/// How often something happens, of a million cases: at a rate of its own for each kind of fault, up to `most`; at low
/// ones as often as at high ones.
pub fn rate(plan: &Plan, fault: Fault, most: u32) -> u32 {
    let drawn = most >> Rng::new(plan.seed, fault.name()).stream("rate").below(6);
    if !plan.has(fault) {
        0
    } else if plan.often {
        most
    } else {
        drawn
    }
}

/// Lets things fail until all is mended.
pub fn begin(world: &Arc<World>, cluster: &Arc<Cluster>) {
    let plan = &cluster.plan;
    world.network.lock().set_faults(NetworkFaults {
        loss_ppm: rate(plan, Fault::Loss, 30_000),
        late_ppm: rate(plan, Fault::Late, 200_000),
        late_max: 3 * plan.lock_ttl + Duration::from_millis(500),
        duplicate_ppm: rate(plan, Fault::Duplicate, 200_000),
        reorders: plan.has(Fault::Reorder),
        // A client with a short request timeout that gets no answer to its second request either doesn't know how it ended.
        reset_ppm: if plan.request_timeout < SHORT_TIMEOUT {
            rate(plan, Fault::Reset, 500_000)
        } else {
            rate(plan, Fault::Reset, 50_000)
        },
    });
    *cluster.master().die_ppm.lock() = rate(plan, Fault::KillServer, 300_000);
    let turns = Turns::default();
    for deed in schedule(plan) {
        let (cluster, turns) = (cluster.clone(), turns.clone());
        let act = move |world: &Arc<World>| {
            if !cluster.is_healed() {
                carry_out(world, &cluster, &turns, &deed);
            }
        };
        world.at(deed.at, Box::new(act));
    }
}

fn one_of<T: Clone>(number: u64, of: &[T]) -> T {
    of[(number % of.len() as u64) as usize].clone()
}

fn carry_out(world: &Arc<World>, cluster: &Arc<Cluster>, turns: &Turns, deed: &Deed) {
    let Deed {
        whom, lasts, way, ..
    } = *deed;
    let server = (whom % cluster.servers() as u64) as usize;
    let client = (whom % cluster.plan.clients as u64) as usize;
    match deed.fault {
        Fault::Cut => {
            cut(world, turns, one_of(whom, &cluster.links()), lasts);
        }
        Fault::KillServer => {
            if let Some((_, death)) = deed.crash {
                cluster.kill_server(world, server, death.down, death.silent);
            }
        }
        Fault::KillClient => cluster.kill_client(world, client, lasts),
        Fault::PauseClient => pause(world, turns, cluster.client_node(client), lasts),
        Fault::PauseServer => pause(world, turns, cluster.server_node(server), lasts),
        Fault::DiskError | Fault::DiskFull | Fault::DiskSlow => {
            disk(world, cluster, turns, deed);
        }
        Fault::ClockJump => {
            let by_ms = deed.by_ms;
            let node = one_of(whom, &cluster.oracles).node;
            world.note(|| format!("the oracle's clock jumps by {by_ms} ms"));
            world.clock(node, |clock, now| clock.jump_wall(now, by_ms));
        }
        Fault::ClockStop => {
            let node = one_of(whom, &cluster.oracles).node;
            world.note(|| "the oracle's clock stops".to_owned());
            world.clock(node, |clock, now| clock.stop_wall(now, true));
            let mend = move |world: &Arc<World>| {
                world.clock(node, |clock, now| clock.stop_wall(now, false));
            };
            mend_later(world, turns, Place::Clock(node), lasts, Box::new(mend));
        }
        Fault::ClockPace => pace(world, cluster, one_of(whom, &cluster.nodes()), way),
        Fault::LoseMaster => cluster.lose_master(world, lasts),
        Fault::TwoProcesses => {
            let number = (whom % cluster.plan.tablet_servers as u64) as usize;
            cluster.move_tablet_server(world, number, lasts);
        }
        Fault::OlderFolder => {
            let number = (whom % cluster.plan.tablet_servers as u64) as usize;
            let age = Duration::from_millis(500 + way % 5_000);
            cluster.go_back(world, number, age, lasts);
        }
        Fault::SwapFolders => cluster.swap_folders(world, whom, lasts, way),
        Fault::DiskHang => hang(world, cluster, deed),
        Fault::SplitAndMerge => cuts::split_or_merge(world, cluster, whom, way),
        Fault::MoveTablets => moves::move_one(world, cluster, whom, way),
        Fault::Balance if way % 4 == 3 => moves::stop_when_empty(world, cluster, whom, way),
        Fault::Balance => moves::drain_or_undrain(world, cluster, whom, way),
        Fault::ChangeSettings => administration::change_settings(world, cluster, way),
        Fault::JoinLater => administration::join_behind_a_start(world, cluster, way),
        Fault::Burst => cluster.burst(world, client, (way % 8) as usize + 4),
        Fault::HandOver
        | Fault::KillLeader
        | Fault::PauseLeader
        | Fault::CutLeader
        | Fault::RegisterAway
        | Fault::RegisterSlow => election(world, cluster, turns, deed),
        Fault::Loss
        | Fault::Late
        | Fault::Duplicate
        | Fault::Reorder
        | Fault::Reset
        | Fault::NewCluster
        | Fault::LoseFolder
        | Fault::StaleCommitTs => {}
    }
}

/// Something befalls the oracle or the master that leads, or the register, where there are several.
fn election(world: &Arc<World>, cluster: &Arc<Cluster>, turns: &Turns, deed: &Deed) {
    let Deed {
        fault,
        whom,
        lasts,
        way,
        ..
    } = *deed;
    let Some(store) = cluster.store.clone() else {
        return;
    };
    let leader = cluster.leader(world, whom);
    let node = cluster.server_node(leader);
    match fault {
        Fault::HandOver => cluster.hand_over(world, leader, lasts),
        Fault::KillLeader => cluster.kill_server(world, leader, lasts, way % 2 == 0),
        Fault::PauseLeader => pause(world, turns, node, lasts),
        Fault::CutLeader => {
            let mut others: Vec<NodeId> = cluster.elected().filter(|it| *it != node).collect();
            // From the register alone, or also from one or all of those that could promise.
            match way / 3 % 3 {
                0 => others.clear(),
                1 => others = vec![one_of(way / 9, &others)],
                _ => {}
            }
            others.push(store.node);
            for (from, to) in others
                .iter()
                .flat_map(|other| [(node, *other), (*other, node)])
            {
                // One way, the other, or both.
                if way % 3 == u64::from(from == node) {
                    continue;
                }
                cut(world, turns, (from, to), lasts);
            }
        }
        Fault::RegisterAway => match way % 4 {
            0 => {
                world.note(|| "the register's object is changed around its value".to_owned());
                store.touch(one_of(whom, &[ORACLES, MASTERS, STATE]));
            }
            1 => {
                world.note(|| "the register is away".to_owned());
                world.kill(store.node, whom % 2 == 0);
                world.at(lasts, Box::new(move |world| store.boot_again(world)));
            }
            _ => pause(world, turns, store.node, lasts),
        },
        _ => {
            let by = Duration::from_millis(cluster.plan.replicas.timing.right_ms);
            let by = by * one_of(way, &[1, 8, 16, 32, 64]) / 32;
            let (before, after) = one_of(way / 5, &[(by, by), (by, by / 64), (by / 64, by)]);
            let elected: Vec<NodeId> = cluster.elected().collect();
            let only = match way / 15 % 3 {
                0 => None,
                1 => Some(node),
                _ => Some(one_of(way / 45, &elected)),
            };
            world.note(|| {
                let (before, after) = (shown(before), shown(after));
                format!("the register carries out late by {before}, and answers late by {after}")
            });
            *store.slow.lock() = Slowness {
                before,
                after,
                only,
            };
            *store.refused_ppm.lock() = one_of(whom, &[0, 100_000, 500_000]);
            let mend = move |_: &Arc<World>| store.mend();
            let place = Place::Register;
            mend_later(world, turns, place, lasts, Box::new(mend));
        }
    }
}

/// A process's clocks go fast or slow from now on.
fn pace(world: &Arc<World>, cluster: &Arc<Cluster>, node: NodeId, way: u64) {
    let pace = if cluster.elected().any(|elected| elected == node) {
        one_of(way, &ELECTED_PACES)
    } else {
        one_of(way, &[100, 500, 900, 990, 1_010, 1_100, 2_000, 5_000])
    };
    let name = world.name(node);
    world.note(|| format!("the clocks of {name} go at {pace}/1000"));
    world.clock(node, |clock, now| clock.set_pace(now, pace));
}

fn cut(world: &Arc<World>, turns: &Turns, (from, to): (NodeId, NodeId), lasts: Duration) {
    let (from_name, to_name) = (world.name(from), world.name(to));
    world.note(|| format!("cut from {from_name} to {to_name}"));
    world.network.lock().cut(from, to, true);
    let mend = move |world: &Arc<World>| world.network.lock().cut(from, to, false);
    mend_later(world, turns, Place::Link(from, to), lasts, Box::new(mend));
}

fn pause(world: &Arc<World>, turns: &Turns, node: NodeId, lasts: Duration) {
    let name = world.name(node);
    world.note(|| format!("{name} stands still for {}", shown(lasts)));
    world.pause(node);
    let resume = move |world: &Arc<World>| {
        let name = world.name(node);
        world.note(|| format!("{name} goes on"));
        world.resume(node);
    };
    mend_later(world, turns, Place::Process(node), lasts, Box::new(resume));
}

/// Some server's disk fails in this way for so long.
fn hang(world: &Arc<World>, cluster: &Arc<Cluster>, deed: &Deed) {
    let replicas = cluster.replica_numbers();
    let server = if replicas.is_empty() || deed.way % 2 == 1 {
        let tablets = cluster.tablet_numbers();
        tablets.start + (deed.whom % cluster.plan.tablet_servers as u64) as usize
    } else {
        one_of(deed.whom, &replicas)
    };
    let name = world.name(cluster.server_node(server));
    world.note(|| format!("the disk of {name} hangs"));
    // No term that a replica begins meanwhile is in its folder in time.
    let until = world.now() + cluster.plan.replicas.takeover() * 2;
    cluster.hang_disk(server, until);
}

fn disk(world: &Arc<World>, cluster: &Arc<Cluster>, turns: &Turns, deed: &Deed) {
    let Deed {
        fault, way, lasts, ..
    } = *deed;
    let server = (deed.whom % cluster.servers() as u64) as usize;
    let name = world.name(cluster.server_node(server));
    world.note(|| format!("{}: {name}", fault.about()));
    match fault {
        Fault::DiskError => {
            let ppm = one_of(way, &[1_000, 20_000, 500_000]);
            cluster.set_disk_error_ppm(server, ppm);
        }
        Fault::DiskFull => {
            let between = (LAST_RESERVE_BYTES + RESERVE_BYTES) / 2;
            let space = [
                Space::Left(0),
                Space::Left(between),
                Space::NoneAndDoesNotTell,
            ];
            cluster.set_disk_space(server, one_of(way, &space));
        }
        _ => cluster.set_disk_slow(server, Duration::from_millis(way % SYNC_LONGEST_MS)),
    }
    if let Some((after, death)) = deed.crash
        && cluster.plan.has(Fault::KillServer)
    {
        let cluster = cluster.clone();
        let act = move |world: &Arc<World>| {
            if !cluster.is_healed() {
                cluster.kill_server(world, server, death.down, death.silent);
            }
        };
        world.at(after, Box::new(act));
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
    world.held_back.lock().stop();
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
    if let Some(store) = &cluster.store {
        store.mend();
        store.boot_again(world);
    }
    administration::join(world, cluster);
    if cluster.plan.has(Fault::ChangeSettings) {
        cluster.collect_at_last(world);
    }
    cluster.end_left_behind(world);
    cluster.swap_all_folders_back(world);
    cluster.bring_all_newest(world);
    (0..cluster.servers()).for_each(|server| cluster.mend_disk(server));
    *cluster.master().die_ppm.lock() = 0;
}
