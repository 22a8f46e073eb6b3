//! Tablet servers are taken away when the master has moved everything off them, and not before; and a larger number takes that
//! back at any time.

use super::*;

const SILENT: &str = "the master doesn't answer";

impl World {
    /// Asks the master, if something depends on it.
    pub(super) fn ask_master(&mut self, seen: &mut Observed) {
        seen.master = match masters_to_ask(&self.cluster, seen) {
            None => MasterReport::NotAsked,
            Some(addresses) => match &self.master {
                Some(servers) if !addresses.is_empty() => MasterReport::Servers(servers.clone()),
                _ => MasterReport::Away(SILENT),
            },
        };
        self.observed.master.clone_from(&seen.master);
    }

    /// Asks the master what the plan says. Whether the operator lives on.
    pub(super) fn drain(&mut self, plan: &Plan, may_write: &mut impl FnMut() -> bool) -> bool {
        if self.is_full && !plan.drain.is_empty() {
            self.observed.master = MasterReport::NoRoom;
            return true;
        }
        let drain = plan.drain.iter().map(|ordinal| (*ordinal, true));
        let undrain = plan.undrain.iter().map(|ordinal| (*ordinal, false));
        for (ordinal, is_draining) in drain.chain(undrain) {
            if !may_write() {
                return false;
            }
            let servers = self.master.as_mut().expect("a master that has answered");
            let server = servers.get_mut(&ordinal).expect("one that it has named");
            server.is_draining = is_draining;
            server.is_drained &= is_draining;
            self.observed.master.note(ordinal, server.clone());
        }
        true
    }

    /// All is ready, and the servers have so many tablets.
    fn with_tablets(tablets: &[u64]) -> Self {
        let mut world = Self::new();
        let count = u32::try_from(tablets.len()).unwrap();
        world.cluster.spec.tablets.replicas = count;
        let server = |tablets: &u64| TabletServer {
            is_up: true,
            tablets: *tablets,
            ..TabletServer::default()
        };
        world.master = Some((0..).zip(tablets.iter().map(server)).collect());
        for role in Role::ALL {
            world.step();
            world.ready(role);
        }
        world.step();
        assert_eq!(world.condition("Ready"), reason(true, Reason::UpToDate));
        world
    }

    fn server(&mut self, ordinal: u32) -> &mut TabletServer {
        let servers = self.master.as_mut().expect("a master");
        servers.get_mut(&ordinal).expect("a server")
    }

    /// A person asks for it: `percolator server drain`.
    fn person_drains(&mut self, ordinal: u32, drain: bool) {
        let server = self.server(ordinal);
        server.is_draining = drain;
        server.is_drained = false;
    }

    /// The master moves what draining servers have to others, and they say so.
    fn move_all(&mut self) {
        for server in self.master.as_mut().expect("a master").values_mut() {
            if server.is_draining && server.is_up {
                server.tablets = 0;
                server.is_drained = true;
            }
        }
    }

    fn scale(&mut self, replicas: u32) {
        self.change(|cluster| cluster.spec.tablets.replicas = replicas);
    }

    /// How many servers the set is to have.
    fn running(&self) -> i64 {
        let set = self.observed.set("demo", Role::Tablet).expect("a set");
        observed::number(set, "/spec/replicas")
    }

    fn recorded(&self) -> Vec<i32> {
        let status = self.cluster.status.as_ref().expect("a status");
        status.tablets.draining.clone()
    }

    /// Those that are to have no tablets, as the master knows.
    fn draining(&self) -> Vec<u32> {
        let servers = self.master.iter().flatten();
        let draining = servers.filter(|(_, server)| server.is_draining);
        draining.map(|(ordinal, _)| *ordinal).collect()
    }

    /// The servers that are gone are, and Kubernetes says so.
    fn pods_end(&mut self) {
        let running = u32::try_from(self.running()).unwrap();
        self.observed.pods.retain(|pod| {
            let ordinal = name_of(pod).strip_prefix("demo-tablet-");
            ordinal.is_none_or(|it| it.parse::<u32>().unwrap() < running)
        });
        for (ordinal, server) in self.master.iter_mut().flatten() {
            server.is_up = *ordinal < running;
        }
        self.ready(Role::Tablet);
    }

    fn claim_is_there(&self, ordinal: u32) -> bool {
        let claims = self.observed.claims_of("demo", Role::Tablet);
        claims.contains_key(&ordinal)
    }

    fn is_up_to_date(&mut self) {
        self.step();
        assert_eq!(self.condition("Ready"), reason(true, Reason::UpToDate));
        assert_eq!(self.step(), (vec![], false), "nothing is left to be done");
    }

    fn is_waiting(&self, why: Reason, words: &[&str]) {
        assert_eq!(self.condition("Progressing"), reason(true, why));
        let message = self.message("Progressing");
        for part in words {
            assert!(message.contains(part), "{part}: {message}");
        }
    }
}

#[test]
fn the_set_shrinks_when_all_that_go_are_drained() {
    let mut world = World::with_tablets(&[4, 3, 5]);
    world.scale(1);
    // The master's configuration alone.
    assert_eq!(world.step().0, ["demo"]);
    assert_eq!(
        (world.draining(), world.recorded()),
        (vec![1, 2], vec![1, 2])
    );
    let words = ["demo-tablet-1, demo-tablet-2", "8 tablets left"];
    world.is_waiting(Reason::DrainingTablets, &words);
    assert!(world.condition("Available").0);
    assert_eq!(world.step(), (vec![], false), "it is asked once");

    // One of two is no reason to take it away.
    *world.server(2) = TabletServer {
        is_drained: true,
        tablets: 0,
        ..world.server(2).clone()
    };
    assert_eq!(world.step().0, Vec::<String>::new());
    world.is_waiting(
        Reason::DrainingTablets,
        &["taking demo-tablet-1 away", "3 tablets"],
    );
    assert_eq!(world.running(), 3);

    // No tablets, and it has not said yet that it gets none.
    world.server(1).tablets = 0;
    assert_eq!(world.step().0, Vec::<String>::new());
    world.move_all();
    assert_eq!(world.step().0, ["demo-tablet"]);
    assert_eq!(world.running(), 1);
    world.pods_end();
    world.is_up_to_date();
    assert!(world.claim_is_there(2), "retained by default");
    // Who drained them is still known, for the day when they are asked for again.
    assert_eq!(world.recorded(), [1, 2]);
}

#[test]
fn servers_that_come_back_are_undrained() {
    let mut world = World::with_tablets(&[4, 3, 5]);
    world.scale(1);
    world.step();
    world.move_all();
    world.step();
    world.pods_end();
    world.step();
    world.scale(2);
    assert_eq!(world.step().0, ["demo", "demo-tablet"]);
    assert_eq!((world.draining(), world.recorded()), (vec![2], vec![2]));
    world.pods_end();
    world.is_up_to_date();
    assert_eq!(world.running(), 2);
}

#[test]
fn a_larger_number_takes_it_back_at_any_time() {
    let mut world = World::with_tablets(&[4, 3, 5]);
    world.scale(1);
    world.step();
    world.scale(2);
    world.step();
    assert_eq!((world.draining(), world.recorded()), (vec![2], vec![2]));
    assert_eq!(world.running(), 3);
    // All of it is done but the last step.
    world.move_all();
    world.scale(3);
    world.step();
    assert_eq!((world.draining(), world.recorded()), (vec![], vec![]));
    assert_eq!(world.running(), 3);
    world.is_up_to_date();
}

#[test]
fn what_a_person_has_drained_stays_drained() {
    let mut world = World::with_tablets(&[4, 3, 5]);
    world.person_drains(2, true);
    world.scale(1);
    world.step();
    assert_eq!((world.draining(), world.recorded()), (vec![1, 2], vec![1]));
    world.scale(3);
    world.step();
    assert_eq!((world.draining(), world.recorded()), (vec![2], vec![]));
    world.is_up_to_date();
    // A server that goes is drained, also if a person takes that back.
    world.scale(2);
    world.person_drains(2, false);
    world.step();
    world.person_drains(2, false);
    world.step();
    assert_eq!(world.draining(), [2]);
}

#[test]
fn without_a_server_for_the_tablets_nothing_is_drained() {
    let mut world = World::with_tablets(&[0, 3, 5]);
    world.person_drains(0, true);
    world.scale(1);
    assert_eq!(world.step().0, ["demo"]);
    assert_eq!((world.draining(), world.recorded()), (vec![0], vec![]));
    world.is_waiting(Reason::DrainBlocked, &["percolator server undrain"]);
    assert_eq!(
        world.condition("Degraded"),
        reason(true, Reason::DrainBlocked)
    );
    assert!(world.condition("Available").0);
    world.person_drains(0, false);
    world.step();
    assert_eq!(world.draining(), [1, 2]);
    assert_eq!(
        world.condition("Degraded"),
        reason(false, Reason::AsExpected)
    );
}

#[test]
fn servers_that_the_others_have_no_room_for_stay() {
    let mut world = World::with_tablets(&[4, 3, 5]);
    world.is_full = true;
    world.scale(1);
    for _ in 0..2 {
        world.step();
        assert_eq!((world.draining(), world.running()), (vec![], 3));
        world.is_waiting(Reason::DrainBlocked, &["have no room for all tablets"]);
        assert_eq!(
            world.condition("Degraded"),
            reason(true, Reason::DrainBlocked)
        );
        assert!(
            world
                .message("Degraded")
                .contains("give them larger volumes")
        );
    }
    // It is taken back, or there is room.
    world.scale(3);
    world.step();
    assert_eq!(world.recorded(), Vec::<i32>::new());
    world.is_up_to_date();
    world.is_full = false;
    world.scale(1);
    world.step();
    assert_eq!(world.draining(), [1, 2]);
    assert_eq!(
        world.condition("Degraded"),
        reason(false, Reason::AsExpected)
    );
    // Volumes fill while tablets are moved.
    for (is_without_room, expected) in [
        (true, reason(true, Reason::DrainBlocked)),
        (false, reason(false, Reason::AsExpected)),
    ] {
        world.server(2).is_without_room = is_without_room;
        assert_eq!(world.step().0, Vec::<String>::new());
        assert_eq!((world.draining(), world.running()), (vec![1, 2], 3));
        assert_eq!(world.condition("Degraded"), expected);
    }
    // A copy is there that its owner has still to decide about.
    let what = "tablet 7, on its way there from demo-tablet-0, which is down";
    world.server(1).waits_for = what.into();
    world.step();
    let waits = format!("demo-tablet-1 waits for {what}");
    world.is_waiting(Reason::DrainBlocked, &[&waits]);
}

#[test]
fn while_the_master_is_away_no_server_goes() {
    let mut world = World::with_tablets(&[4, 3, 5]);
    let master = world.master.take();
    world.scale(2);
    assert_eq!(world.step().0, ["demo"]);
    world.is_waiting(Reason::DrainBlocked, &["taking demo-tablet-2 away", SILENT]);
    assert_eq!(world.recorded(), Vec::<i32>::new());
    // Its claim has lost its labels, and isn't listed.
    let claims = world.observed.claims.clone();
    let claims_listed = &mut world.observed.claims;
    claims_listed.retain(|it| name_of(it) != "data-demo-tablet-2");
    assert_eq!(world.step().0, Vec::<String>::new());
    assert_eq!(world.running(), 3);
    world.observed.claims = claims;
    // Nor is one known to be drained.
    world.master = master;
    world.step();
    world.move_all();
    let master = world.master.take();
    assert_eq!(world.step().0, Vec::<String>::new());
    assert_eq!((world.running(), world.recorded()), (3, vec![2]));
    // What is to be undrained is, when it answers.
    world.scale(3);
    world.step();
    world.is_waiting(
        Reason::DrainBlocked,
        &["demo-tablet-2 is to be undrained", SILENT],
    );
    assert_eq!(world.recorded(), [2]);
    world.master = master;
    world.step();
    assert_eq!((world.draining(), world.recorded()), (vec![], vec![]));
    world.is_up_to_date();
}

#[test]
fn what_blocks_a_drain_is_reported() {
    let mut world = World::with_tablets(&[4, 3, 5]);
    world.scale(2);
    world.step();
    world.server(2).is_up = false;
    world.serves("demo-tablet-2", false);
    world.step();
    let words = ["5 tablets left", "demo-tablet-2 is down"];
    world.is_waiting(Reason::DrainBlocked, &words);
    assert!(!world.condition("Available").0, "its rows can't be read");
    world.server(2).is_up = true;
    for ordinal in [0, 1] {
        world.server(ordinal).is_up = false;
    }
    world.step();
    let words = ["none of the servers that stay is up"];
    world.is_waiting(Reason::DrainBlocked, &words);
    // It is down and has nothing: nobody misses it.
    world.server(0).is_up = true;
    world.server(1).is_up = true;
    world.move_all();
    world.server(2).is_up = false;
    world.step();
    assert!(world.condition("Available").0);
    assert_eq!(world.running(), 2);
}

#[test]
fn a_server_that_the_master_does_not_know_goes_without_its_claim() {
    let mut world = World::with_tablets(&[4, 3, 5]);
    world.master.as_mut().unwrap().remove(&2);
    world.scale(2);
    assert_eq!(world.step().0, ["demo"]);
    let words = ["doesn't know demo-tablet-2", "data-demo-tablet-2"];
    world.is_waiting(Reason::DrainBlocked, &words);
    let claims = &mut world.observed.claims;
    let claim = claims
        .iter_mut()
        .find(|it| name_of(&**it) == "data-demo-tablet-2");
    terminate(&mut claim.unwrap().metadata);
    assert_eq!(world.step().0, ["demo-tablet"]);
    // One that it knows is drained all the same.
    let claims = &mut world.observed.claims;
    let claim = claims
        .iter_mut()
        .find(|it| name_of(&**it) == "data-demo-tablet-1");
    terminate(&mut claim.unwrap().metadata);
    world.pods_end();
    world.scale(1);
    world.step();
    assert_eq!((world.running(), world.draining()), (2, vec![1]));
}

#[test]
fn a_set_that_somebody_scales_by_hand_gets_its_servers_back() {
    let mut world = World::with_tablets(&[4, 3, 5]);
    world.scale(2);
    world.step();
    let key = (Kind::StatefulSet, "demo-tablet".to_owned());
    let by_hand = |world: &mut World, replicas: u32| {
        let set = world.observed.objects.get_mut(&key).expect("a set");
        set["spec"]["replicas"] = json!(replicas);
    };
    by_hand(&mut world, 2);
    assert_eq!(world.step().0, ["demo-tablet"]);
    assert_eq!(world.running(), 3);
    // The same if a master has begun to lead since, to which the server has never reported.
    by_hand(&mut world, 2);
    let left = std::mem::take(&mut world.server(2).tablets);
    world.server(2).is_up = false;
    world.step();
    assert_eq!(world.running(), 3);
    world.server(2).tablets = left;
    world.server(2).is_up = true;
    world.move_all();
    by_hand(&mut world, 2);
    world.step();
    assert_eq!(world.running(), 2);
    // And servers that somebody adds by hand are drained as well: they may have got tablets.
    world.pods_end();
    by_hand(&mut world, 4);
    let server = TabletServer {
        is_up: true,
        tablets: 1,
        ..TabletServer::default()
    };
    world.master.as_mut().unwrap().insert(3, server);
    world.ready(Role::Tablet);
    world.step();
    assert_eq!((world.running(), world.draining()), (4, vec![2, 3]));
    world.move_all();
    world.step();
    assert_eq!(world.running(), 2);
}

#[test]
fn claims_of_drained_servers_go_if_the_spec_says_so() {
    let mut world = World::with_tablets(&[4, 3, 5]);
    world.change(|cluster| {
        cluster.spec.claims.when_scaled = percolator_api::ClaimRetention::Delete;
        cluster.spec.tablets.replicas = 2;
    });
    assert_eq!(world.step().0, ["demo"]);
    world.move_all();
    assert_eq!(world.step().0, ["demo-tablet"]);
    assert_eq!(
        world.step().0,
        Vec::<String>::new(),
        "its pod is still there"
    );
    // The set doesn't count its pod any more, which ends still.
    let ends = world.observed.pods.clone();
    world.pods_end();
    let after = std::mem::replace(&mut world.observed.pods, ends);
    assert_eq!(world.step().0, Vec::<String>::new());
    world.observed.pods = after;
    // By what the master says, and by nothing else.
    let master = world.master.take();
    assert_eq!(world.step().0, Vec::<String>::new());
    world.master = master;
    assert_eq!(world.step().0, ["-data-demo-tablet-2"]);
    world.is_up_to_date();
    assert!(world.claim_is_there(1));
}

#[test]
fn a_paused_cluster_drains_nothing() {
    let mut world = World::with_tablets(&[4, 3, 5]);
    world.change(|cluster| {
        cluster.spec.paused = true;
        cluster.spec.tablets.replicas = 2;
    });
    assert_eq!(world.step().0, Vec::<String>::new());
    assert_eq!((world.draining(), world.recorded()), (vec![], vec![]));
    assert_eq!(
        world.condition("Progressing"),
        reason(false, Reason::PausedBySpec)
    );
}

#[test]
fn an_invalid_spec_keeps_what_the_operator_drains() {
    let mut world = World::with_tablets(&[4, 3, 5]);
    world.scale(2);
    world.step();
    world.change(|cluster| cluster.spec.oracle.replicas = 4);
    world.step();
    assert_eq!(world.recorded(), [2]);
    world.move_all();
    // The last valid spec is carried out.
    assert_eq!(world.step().0, ["demo-tablet"]);
    assert_eq!((world.running(), world.recorded()), (2, vec![2]));
}

#[test]
fn a_set_that_was_deleted_is_made_again_without_the_drained_servers() {
    let mut world = World::with_tablets(&[4, 3, 5]);
    world.scale(2);
    world.step();
    world.move_all();
    world.step();
    world.pods_end();
    let key = (Kind::StatefulSet, "demo-tablet".to_owned());
    world.observed.objects.remove(&key);
    assert_eq!(world.step().0, ["demo-tablet"]);
    assert_eq!(world.running(), 2);
    assert_eq!(
        world.condition("Degraded"),
        reason(false, Reason::AsExpected)
    );
}

/// Asks for fewer, takes it back, and asks again; the operator is killed at each of its writes and requests.
#[test]
fn an_operator_that_is_killed_halfway_is_followed_by_one_that_goes_on() {
    let through = |killed_at: usize| {
        let mut world = World::with_tablets(&[4, 3, 5, 1]);
        world.person_drains(1, true);
        let mut left = killed_at;
        for (replicas, has_moved) in [(2, false), (4, false), (3, true), (1, true), (2, true)] {
            world.scale(replicas);
            for _ in 0..12 {
                let seen = world.observed.clone();
                world.reconcile(&seen, &mut left);
                // The next operator.
                if left == 0 {
                    left = usize::MAX;
                }
                if has_moved {
                    world.move_all();
                }
                let running = u32::try_from(world.running()).unwrap();
                let gone = world.master.as_ref().unwrap().range(running..);
                let are_empty = gone.map(|(_, server)| server.tablets).all(|it| it == 0);
                assert!(are_empty, "killed at {killed_at}: rows are gone");
                if observed::number(
                    world.observed.set("demo", Role::Tablet).unwrap(),
                    "/status/replicas",
                ) != i64::from(running)
                {
                    world.pods_end();
                }
            }
            let is_done = has_moved || replicas == 4;
            assert_eq!(world.condition("Ready").0, is_done, "killed at {killed_at}");
            let mut expected = BTreeSet::from_iter(replicas..4);
            expected.insert(1);
            let expected = Vec::from_iter(expected);
            // Those that were added since are undrained, but for the one that a person drained.
            assert_eq!(
                world.draining(),
                expected,
                "killed at {killed_at}, {replicas}"
            );
        }
        assert_eq!(world.recorded(), [2, 3]);
        killed_at - left.min(killed_at)
    };
    let writes = through(usize::MAX);
    assert!(writes > 20, "{writes} writes");
    for killed_at in 1..=writes {
        through(killed_at);
    }
}
