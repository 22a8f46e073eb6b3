//! What is kept going though something is wrong: a cluster whose spec is invalid, and tablet servers whose master is down.

use super::*;

fn is_invalid(cluster: &mut ClusterObject) {
    cluster.spec.oracle.replicas = 4;
    cluster
        .spec
        .service
        .labels
        .insert("team".into(), "a".into());
}

#[test]
fn a_deleted_service_comes_back_while_the_spec_is_invalid() {
    let mut world = World::all_ready();
    let key = (Kind::Service, "demo".to_owned());
    let before = world.observed.objects[&key].clone();
    world.change(is_invalid);
    assert_eq!(world.step().0, Vec::<String>::new());
    world.observed.objects.remove(&key);
    assert_eq!(world.step().0, ["demo"]);
    // As the last valid spec has it.
    assert_eq!(world.observed.objects[&key], before);
    let role = (Kind::StatefulSet, "demo-tablet".to_owned());
    world.observed.objects.remove(&role);
    assert_eq!(world.step().0, ["demo-tablet"]);
    assert_eq!(
        world.condition("Degraded"),
        reason(true, Reason::InvalidSpec)
    );
    world.ready(Role::Tablet);
    world.change(|cluster| cluster.spec.paused = true);
    world.observed.objects.remove(&key);
    assert_eq!(
        world.step().0,
        Vec::<String>::new(),
        "the newest spec says so"
    );
}

/// Objects that are to be repaired have to be read.
#[test]
fn objects_of_the_last_valid_spec_are_read_while_the_spec_is_invalid() {
    let mut world = World::all_ready();
    world.change(|cluster| cluster.spec.proxy = Some(percolator_api::Proxy::default()));
    world.step();
    world.change(|cluster| {
        cluster.spec.proxy = None;
        is_invalid(cluster);
    });
    let needed = names_needed(&world.cluster, &World::settings(), &[]);
    let proxies = (Kind::Service, "demo-proxy".to_owned());
    assert!(needed.contains(&proxies), "{needed:?}");
}

#[test]
fn a_cluster_that_never_had_a_valid_spec_has_nothing_to_repair() {
    let mut world = World::new();
    world.change(is_invalid);
    assert_eq!(world.step().0, Vec::<String>::new());
    world.change(|cluster| cluster.spec.oracle.replicas = 1);
    assert!(world.step().0.contains(&"demo-master".to_owned()));
}

/// The role's roll-out is done, and its servers have stopped serving since.
fn is_down(world: &mut World, role: Role, revisions: [&str; 2]) {
    let key = (Kind::StatefulSet, role.set("demo"));
    let set = world.observed.objects.get_mut(&key).expect("a set");
    set["status"]["readyReplicas"] = json!(0);
    let [current, updated] = revisions;
    set["status"]["currentRevision"] = json!(current);
    set["status"]["updateRevision"] = json!(updated);
    world.serves(&format!("{}-0", role.set("demo")), false);
}

fn more_memory(cluster: &mut ClusterObject) {
    let pod = json!({"resources": {"limits": {"memory": "4Gi"}}});
    cluster.spec.tablets.pod = serde_json::from_value(pod).expect("a pod");
}

#[test]
fn a_master_that_is_down_does_not_keep_tablet_servers_from_more_memory() {
    let mut world = World::all_ready();
    is_down(&mut world, Role::Master, ["a", "a"]);
    world.change(more_memory);
    assert_eq!(world.step().0, ["demo-tablet"]);
    assert_eq!(
        world.condition("Progressing"),
        reason(true, Reason::WaitingForMaster)
    );
}

/// That is no master that is down, but a change that doesn't work: it stops there.
#[test]
fn a_master_that_does_not_come_up_with_a_change_keeps_others_from_theirs() {
    let mut world = World::all_ready();
    is_down(&mut world, Role::Master, ["a", "b"]);
    world.change(more_memory);
    assert_eq!(world.step().0, Vec::<String>::new());
    // A change of its own is to be rolled out first.
    let mut world = World::all_ready();
    is_down(&mut world, Role::Master, ["a", "a"]);
    world.change(|cluster| cluster.spec.image = Some("percolator:2".into()));
    assert_eq!(world.step().0, ["demo-master"]);
    assert_eq!(world.step().0, Vec::<String>::new());
}

/// Nothing is made that has never been there before what it needs serves.
#[test]
fn servers_are_not_made_while_the_master_is_down() {
    let mut world = World::new();
    world.step();
    world.ready(Role::Master);
    is_down(&mut world, Role::Master, ["a", "a"]);
    assert_eq!(world.step().0, Vec::<String>::new());
}
