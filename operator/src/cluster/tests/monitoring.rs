//! What is made for the Prometheus operator, where it is there, and what is said where it isn't.

use super::*;

const BOTH: [Kind; 2] = Kind::OF_MONITORING;

fn ask(world: &mut World, is_asked: bool) {
    world.change(|cluster| {
        cluster.spec.monitoring.pod_monitor.enabled = is_asked;
        cluster.spec.monitoring.prometheus_rule.enabled = is_asked;
    });
}

fn make_unavailable(world: &mut World, reason: UnavailableReason) {
    world.observed.unavailable = BOTH.map(|kind| (kind, reason)).into();
}

fn kinds(world: &World) -> Vec<Kind> {
    let kinds = world.observed.objects.keys().map(|(kind, _)| *kind);
    kinds.filter(|kind| kind.is_of_monitoring()).collect()
}

#[test]
fn nothing_is_made_that_nobody_asks_for() {
    let world = World::all_ready();
    assert_eq!(kinds(&world), []);
    assert_eq!(
        world.condition("Monitored"),
        reason(false, Reason::NotAskedFor)
    );
}

#[test]
fn it_is_made_last_and_goes_when_it_is_not_asked_for_any_more() {
    let mut world = World::new();
    ask(&mut world, true);
    let (applied, _) = world.step();
    assert_eq!(
        applied[applied.len() - 3..],
        ["demo-master", "demo", "demo"]
    );
    assert_eq!(kinds(&world), BOTH);
    assert_eq!(
        world.condition("Monitored"),
        reason(true, Reason::AsAskedFor)
    );
    assert_eq!(world.step(), (vec![], false));
    ask(&mut world, false);
    assert_eq!(world.step().0, ["-demo", "-demo"]);
    assert_eq!(
        world.condition("Monitored"),
        reason(false, Reason::NotAskedFor)
    );
}

#[test]
fn servers_do_not_wait_for_definitions_and_these_are_noticed_when_they_come() {
    for (why, said) in [
        (UnavailableReason::Definition, Reason::WaitingForDefinitions),
        (UnavailableReason::Permission, Reason::WaitingForPermission),
    ] {
        let mut world = World::new();
        ask(&mut world, true);
        make_unavailable(&mut world, why);
        world.step();
        // Also as an event, also of a new cluster.
        let status = world.cluster.status.clone().expect("a status");
        let events = turned(None, &status);
        assert!(
            events
                .iter()
                .any(|(condition, _)| condition.reason == said.name())
        );
        for role in Role::ALL {
            world.ready(role);
            world.step();
        }
        assert_eq!(
            world.condition("Progressing"),
            reason(false, Reason::UpToDate)
        );
        assert_eq!(world.condition("Monitored"), reason(false, said));
        assert_eq!(kinds(&world), []);
        assert_eq!(world.step(), (vec![], false));
        world.observed.unavailable.clear();
        assert_eq!(world.step().0, ["demo", "demo"]);
        assert_eq!(
            world.condition("Monitored"),
            reason(true, Reason::AsAskedFor)
        );
    }
}

#[test]
fn a_paused_cluster_and_a_bad_spec_say_so() {
    let mut world = World::all_ready();
    ask(&mut world, true);
    world.change(|cluster| cluster.spec.paused = true);
    world.step();
    assert_eq!(
        world.condition("Monitored"),
        reason(false, Reason::PausedBySpec)
    );
    world.change(|cluster| cluster.spec.oracle.replicas = 4);
    world.step();
    assert_eq!(
        world.condition("Monitored"),
        reason(false, Reason::InvalidSpec)
    );
    assert_eq!(kinds(&world), []);
}

#[test]
fn an_object_of_somebody_else_is_left_alone() {
    let mut world = World::all_ready();
    let key = (Kind::PodMonitor, "demo".to_owned());
    let theirs = json!({"metadata": {"name": "demo"}});
    world.observed.objects.insert(key.clone(), theirs.clone());
    assert_eq!(world.step(), (vec![], false));
    ask(&mut world, true);
    // The other one is made, and so is all else: the servers have nothing to do with it.
    assert_eq!(world.step().0, ["demo"]);
    assert_eq!(kinds(&world), BOTH);
    assert_eq!(
        world.condition("Monitored"),
        reason(false, Reason::ObjectConflict)
    );
    assert_eq!(
        world.condition("Degraded"),
        reason(false, Reason::AsExpected)
    );
    world.change(|cluster| cluster.spec.image = Some("percolator:other".into()));
    assert_eq!(world.step().0, ["demo-master"]);
    assert_eq!(world.observed.objects[&key], theirs);
    world.observed.objects.remove(&key);
    assert_eq!(world.step().0, ["demo"]);
    assert_eq!(
        world.condition("Monitored"),
        reason(true, Reason::AsAskedFor)
    );
}

#[test]
fn what_is_refused_is_reported_where_it_belongs() {
    let mut world = World::all_ready();
    ask(&mut world, true);
    world.refused = vec![Refusal::of_monitoring("no rules here".into())];
    // As it is when nothing could be made.
    make_unavailable(&mut world, UnavailableReason::Permission);
    let decision = decide(&world.cluster, &world.observed, &World::settings());
    world.observed.unavailable.clear();
    world.cluster.status = Some(world.status_of(&decision));
    assert_eq!(
        world.condition("Monitored"),
        reason(false, Reason::ApplyRefused)
    );
    assert!(world.message("Monitored").contains("no rules here"));
    assert_eq!(
        world.condition("Degraded"),
        reason(false, Reason::AsExpected)
    );
    let refusals = ["claim b", "claim a", "claim b"].map(|why| Refusal::of_servers(why.into()));
    world.refused.extend(refusals);
    world.cluster.status = Some(world.status_of(&decision));
    assert_eq!(
        world.condition("Degraded"),
        reason(true, Reason::ApplyRefused)
    );
    assert_eq!(
        world.message("Degraded"),
        "the API server refuses: claim a; claim b"
    );
    assert_eq!(
        world.condition("Progressing"),
        reason(true, Reason::ApplyRefused)
    );
    // Also where what nobody asks for any more can't be removed.
    ask(&mut world, false);
    world.cluster.status = Some(world.status_of(&decision));
    assert_eq!(
        world.condition("Monitored"),
        reason(false, Reason::ApplyRefused)
    );
}
