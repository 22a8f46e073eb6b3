//! What a register that is away for long costs: nothing while all replicas are up, and everything when one is gone. And what disks
//! cost that hang.

use super::*;

const MINUTE_MS: u64 = 60_000;

impl World {
    /// Goes on without faults for so long. Returns when each request was answered.
    fn pass(&mut self, ms: u64) -> Vec<u64> {
        let until = self.now + ms;
        let mut answered = Vec::new();
        while self.now < until {
            let before = self.answers;
            self.step();
            assert_eq!(self.violation, None);
            if self.answers > before {
                answered.push(self.now);
            }
        }
        answered
    }

    fn of_role(&self, role: RoleKind) -> usize {
        let processes = 0..REPLICAS;
        let mut found = processes.filter(|process| self.processes[*process].role() == Some(role));
        found.next().expect("no process has this role")
    }

    /// Ends a process for good.
    fn kill(&mut self, process: usize) {
        self.stop(process, u64::MAX / 2);
    }
}

/// A world without faults, whose leader has the promises of all others when the register goes away for ever.
fn without_register(elected: Elected, seed: u64) -> World {
    let mut world = World::new(seed, elected);
    world.trouble = 0;
    world.pass(20_000);
    let value = &world.register.as_ref().unwrap().value;
    assert_eq!(value.promisers.len(), REPLICAS - 1, "{value:?}");
    world.away_until = u64::MAX;
    world
}

fn longest_gap_ms(from: u64, answered: &[u64], to: u64) -> u64 {
    let times = [&[from], answered, &[to]].concat();
    let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
    gaps.max().unwrap()
}

#[test]
fn ten_minutes_without_a_register_cost_nothing_while_all_replicas_are_up() {
    for elected in [Elected::Oracle, Elected::Master] {
        for seed in 0..10 {
            let mut world = without_register(elected, seed);
            let (from, leader) = (world.now, world.of_role(RoleKind::Leader));
            let answered = world.pass(10 * MINUTE_MS);
            // Some of the clients ask standbys, and nobody is answered for a moment by chance.
            let gap_ms = longest_gap_ms(from, &answered, world.now);
            assert!(gap_ms < 600, "seed {seed}: nobody for {gap_ms} ms");
            let term = world.takeovers();
            world.away_until = 0;
            let answered = world.pass(MINUTE_MS);
            assert!(answered.len() > 1_000, "seed {seed}: {}", answered.len());
            assert_eq!(
                (world.takeovers(), world.of_role(RoleKind::Leader)),
                (term, leader),
                "seed {seed}"
            );
        }
    }
}

#[test]
fn a_leader_whose_standby_is_gone_too_stops_until_the_register_is_back() {
    for seed in 0..10 {
        let mut world = without_register(Elected::Oracle, seed);
        world.pass(MINUTE_MS);
        let gone = world.of_role(RoleKind::Standby);
        let killed = world.now;
        world.kill(gone);
        let answered = world.pass(MINUTE_MS);
        let last = answered.last().copied().unwrap_or(killed) - killed;
        // Two seconds by the leader's clock, which goes slow or fast.
        assert!((1_000..2_400).contains(&last), "seed {seed}: {last} ms");
        world.away_until = 0;
        let back = world.now;
        let answered = world.pass(10_000);
        let first = answered.first().expect("it doesn't go on") - back;
        // A request that was sent before is given up after six seconds.
        assert!(first < 7_000, "seed {seed}: {first} ms");
        // The one that is gone isn't waited for.
        world.away_until = u64::MAX;
        let from = world.now;
        let answered = world.pass(MINUTE_MS);
        let gap_ms = longest_gap_ms(from, &answered, world.now);
        assert!(gap_ms < 600, "seed {seed}: nobody for {gap_ms} ms");
    }
}

#[test]
fn a_standby_that_comes_back_with_its_folder_promises_again() {
    for (keeps_folder, seed) in (0..10).flat_map(|seed| [(true, seed), (false, seed)]) {
        let mut world = without_register(Elected::Oracle, seed);
        let standby = world.of_role(RoleKind::Standby);
        world.stop(standby, 10_000);
        if !keeps_folder {
            world.processes[standby].folder = promises::empty_folder(77);
        }
        world.pass(20_000);
        let answered = world.pass(MINUTE_MS).len();
        assert_eq!(answered > 1_000, keeps_folder, "seed {seed}: {answered}");
        world.away_until = 0;
        let answered = world.pass(MINUTE_MS).len();
        assert!(answered > 1_000, "seed {seed}: {answered}");
    }
}

#[test]
fn a_leader_that_is_gone_is_followed_when_the_register_is_back() {
    for seed in 0..10 {
        let mut world = without_register(Elected::Oracle, seed);
        world.pass(MINUTE_MS);
        let leader = world.of_role(RoleKind::Leader);
        world.kill(leader);
        assert_eq!(world.pass(MINUTE_MS).len(), 0, "seed {seed}");
        world.away_until = 0;
        // It goes on above what only the folders have.
        let answered = world.pass(10_000).len();
        assert!(answered > 50, "seed {seed}: {answered}");
    }
}

/// The leader dies while the disks of all standbys hang, and starts again when one of them has taken over. Whether its role has a leader before they go on.
fn is_led_while_disks_hang(elected: Elected, seed: u64) -> bool {
    let mut world = World::new(seed, elected);
    world.trouble = 0;
    world.pass(20_000);
    let leader = world.of_role(RoleKind::Leader);
    for standby in (0..REPLICAS).filter(|process| *process != leader) {
        world.hang_disk(standby, 10 * MINUTE_MS);
    }
    world.stop(leader, 8_000);
    world.pass(30_000);
    world.pass(MINUTE_MS).len() > 100
}

#[test]
fn a_leader_whose_disk_hangs_makes_room_for_others() {
    for elected in [Elected::Oracle, Elected::Master] {
        for seed in 0..10 {
            assert!(is_led_while_disks_hang(elected, seed), "seed {seed}");
        }
    }
    mutants::set(Some(ElectionMutant::UnkeptTermHeld));
    let is_led = (0..10).any(|seed| is_led_while_disks_hang(Elected::Oracle, seed));
    mutants::set(None);
    assert!(!is_led);
}

#[test]
fn a_replica_whose_disk_goes_on_leads_again() {
    for elected in [Elected::Oracle, Elected::Master] {
        for seed in 0..10 {
            let mut world = World::new(seed, elected);
            world.trouble = 0;
            world.pass(20_000);
            let leader = world.of_role(RoleKind::Leader);
            for standby in (0..REPLICAS).filter(|process| *process != leader) {
                world.hang_disk(standby, MINUTE_MS);
            }
            world.kill(leader);
            assert_eq!(world.pass(MINUTE_MS).len(), 0, "seed {seed}");
            let answered = world.pass(10_000).len();
            assert!(answered > 100, "seed {seed}: {answered}");
        }
    }
}
