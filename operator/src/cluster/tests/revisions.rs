//! By which templates pods are made, and when a cluster's turn comes to change its servers.

use super::*;
use crate::cluster::revisions::NEWEST;

fn arguments_of(world: &World) -> String {
    let key = (Kind::StatefulSet, Role::Tablet.set("demo"));
    let set = &world.observed.objects[&key];
    set.pointer("/spec/template/spec/containers/0/args")
        .expect("arguments")
        .to_string()
}

fn recorded(world: &World) -> (u32, String) {
    let status = world.cluster.status.as_ref().expect("a status");
    let templates = status.templates.clone().expect("templates");
    (templates.revision, templates.image)
}

/// A cluster that an operator made which knew of one revision alone.
fn made_by_a_former_operator() -> World {
    let mut world = World::new();
    world.cluster.spec.template_revision = Some(1);
    world.roll_out();
    assert!(!arguments_of(&world).contains("--drain-on-stop"));
    world.cluster.spec.template_revision = None;
    let status = world.cluster.status.as_mut().expect("a status");
    status.templates = None;
    status.last_valid_spec = None;
    world
}

#[test]
fn a_new_operator_with_other_templates_restarts_nobody() {
    let mut world = made_by_a_former_operator();
    let decision = decide(&world.cluster, &world.observed, &World::settings());
    assert!(decision.plan().is_idle(), "{decision:?}");
    assert_eq!(world.step().0, Vec::<String>::new());
    assert_eq!(recorded(&world), (1, SETTINGS_IMAGE.to_owned()));
    assert_eq!(world.step(), (vec![], false));
    // Nor does a change that needs no restart.
    world.change(|cluster| cluster.spec.tablets.replicas = 5);
    world.step();
    assert!(!arguments_of(&world).contains("--drain-on-stop"));
}

/// Somebody may have written a status before the operator's first reconcile.
#[test]
fn a_new_cluster_with_a_status_has_the_newest_templates() {
    let mut world = World::new();
    world.cluster.status = Some(Status::default());
    world.roll_out();
    assert_eq!(recorded(&world).0, NEWEST);
    assert!(arguments_of(&world).contains("--drain-on-stop"));
}

#[test]
fn with_its_next_image_a_cluster_takes_the_newest_templates() {
    let mut world = made_by_a_former_operator();
    world.step();
    world.change(|cluster| cluster.spec.image = Some("percolator:2.0.0".into()));
    world.roll_out();
    assert_eq!(recorded(&world), (NEWEST, "percolator:2.0.0".to_owned()));
    assert!(arguments_of(&world).contains("--drain-on-stop"));
    // And with an older one those that it fits.
    world.change(|cluster| cluster.spec.image = Some("percolator:0.0.1".into()));
    world.roll_out();
    assert_eq!(recorded(&world).0, 1);
}

#[test]
fn a_spec_may_ask_for_a_revision() {
    let mut world = made_by_a_former_operator();
    world.change(|cluster| cluster.spec.template_revision = Some(2));
    world.roll_out();
    assert!(arguments_of(&world).contains("--drain-on-stop"));
    // It stays when nobody asks for it any more.
    world.change(|cluster| cluster.spec.template_revision = None);
    world.step();
    assert_eq!(recorded(&world).0, 2);
    assert!(arguments_of(&world).contains("--drain-on-stop"));
    for (image, asked, words) in [
        (
            "percolator:test",
            5,
            "5 must be 1 to 4, which are those of this operator",
        ),
        ("percolator:test", 0, "0 must be 1 to 4"),
        (
            "percolator:0.0.1",
            2,
            "2 must be at most 1 with percolator:0.0.1",
        ),
    ] {
        world.change(|cluster| {
            cluster.spec.image = Some(image.into());
            cluster.spec.template_revision = Some(asked);
        });
        let Decision::Invalid(problems, plan) =
            decide(&world.cluster, &world.observed, &World::settings())
        else {
            panic!("{asked} is taken");
        };
        assert!(problems[0].message.contains(words), "{problems:?}");
        // The cluster is kept as it is.
        assert!(plan.is_idle(), "{plan:?}");
        world.step();
        assert_eq!(recorded(&world).0, 2);
    }
}

/// An operator that is killed before it applies anything has recorded the revision, so that a newer one takes the same.
#[test]
fn the_revision_is_recorded_before_anything_is_applied() {
    let mut world = World::new();
    world.cluster.spec.image = Some("percolator:1".into());
    let seen = world.observed.clone();
    let (applied, _) = world.reconcile(&seen, &mut 1);
    assert_eq!(applied, Vec::<String>::new());
    assert_eq!(recorded(&world), (NEWEST, "percolator:1".to_owned()));
}

/// As `helm rollback` leaves it.
#[test]
fn an_older_operator_leaves_the_pods_of_a_newer_one_as_they_are() {
    let mut world = World::all_ready();
    let newer = NEWEST + 1;
    let status = world.cluster.status.as_mut().expect("a status");
    status.templates.as_mut().expect("templates").revision = newer;
    for set in ["demo-master", "demo-tso", "demo-tablet"] {
        let key = (Kind::StatefulSet, set.to_owned());
        let set = world.observed.objects.get_mut(&key).expect("a set");
        set["spec"]["template"]["spec"]["containers"][0]["args"] = json!(["--of-a-newer-one"]);
        set["metadata"]["annotations"]["percolator.dev/asked"] = json!("otherwise");
    }
    assert_eq!(world.step().0, Vec::<String>::new());
    assert!(arguments_of(&world).contains("--of-a-newer-one"));
    assert_eq!(recorded(&world).0, newer);
    let waits = reason(true, Reason::NewerTemplates);
    assert_eq!(world.condition("Progressing"), waits);
    let message = world.message("Progressing");
    assert!(message.contains("spec.templateRevision"), "{message}");
    // All else is repaired.
    let service = (Kind::Service, "demo".to_owned());
    world.observed.objects.remove(&service);
    assert_eq!(world.step().0, ["demo"]);
    // Until somebody asks for what this operator knows.
    world.change(|cluster| cluster.spec.template_revision = Some(NEWEST));
    assert_eq!(world.step().0, ["demo-master"]);
}

#[test]
fn servers_are_changed_in_their_clusters_turn() {
    let mut world = World::all_ready();
    world.observed.turn_wait = Some("waiting for its turn: others".into());
    // What restarts nobody is done.
    world.change(|cluster| cluster.spec.tablets.replicas = 5);
    let (applied, _) = world.step();
    // The master has the number, too.
    assert_eq!(applied, ["demo", "demo-tablet"]);
    world.ready(Role::Tablet);
    world.change(|cluster| {
        cluster.spec.image = Some("percolator:2".into());
        cluster.spec.log.level = percolator_api::LogLevel::Debug;
    });
    let decision = decide(&world.cluster, &world.observed, &World::settings());
    assert!(!decision.plan().restarts && decision.plan().is_to_restart);
    let (applied, _) = world.step();
    assert_eq!(applied, ["demo"], "the configuration alone");
    let waits = reason(true, Reason::WaitingForTurn);
    assert_eq!(world.condition("Progressing"), waits);
    let message = world.message("Progressing");
    assert_eq!(message, "waiting for its turn: others");
    world.observed.turn_wait = None;
    let decision = decide(&world.cluster, &world.observed, &World::settings());
    assert!(decision.plan().restarts);
    let key = (Kind::StatefulSet, Role::Master.set("demo"));
    let status = |world: &mut World, [current, updated]: [&str; 2]| {
        let set = world.observed.objects.get_mut(&key).expect("a set");
        set["status"]["currentRevision"] = json!(current);
        set["status"]["updateRevision"] = json!(updated);
        is_changing(&world.cluster, &world.observed)
    };
    assert!(!status(&mut world, ["1", "1"]));
    let (applied, _) = world.step();
    assert_eq!(applied, [Role::Master.set("demo")]);
    // Kubernetes hasn't seen it yet, and then it is under way.
    assert!(status(&mut world, ["1", "1"]));
    world.ready(Role::Master);
    assert!(status(&mut world, ["1", "2"]));
    assert!(!status(&mut world, ["2", "2"]));
}
