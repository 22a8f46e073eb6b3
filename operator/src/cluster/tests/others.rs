//! Objects with names that the cluster needs, and that it didn't make: somebody else's, and a former cluster's of its name.

use super::*;

#[test]
fn an_object_of_somebody_else_is_left_alone() {
    let mut world = World::new();
    let key = (Kind::Service, "demo".to_owned());
    let foreign = json!({"metadata": {"name": "demo"}, "spec": {}});
    world.observed.objects.insert(key.clone(), foreign.clone());
    assert_eq!(world.step().0, Vec::<String>::new());
    assert_eq!(
        world.condition("Degraded"),
        reason(true, Reason::ObjectConflict)
    );
    assert_eq!(world.observed.objects[&key], foreign);
    world.observed.objects.remove(&key);
    assert!(!world.step().0.is_empty());
}

/// As one that was restored by hand: a StatefulSet goes by names.
#[test]
fn a_claim_without_labels_is_not_taken_up() {
    let mut world = World::new();
    let asked = claims_to_ask_for(&world.cluster, &world.observed);
    assert_eq!(
        asked,
        [
            "data-demo-gc-master-0",
            "data-demo-tso-0",
            "data-demo-tablet-0",
            "data-demo-tablet-1",
            "data-demo-tablet-2",
        ]
    );
    let mut claim = json!({
        "metadata": {"name": "data-demo-tablet-1", "labels": {"app.kubernetes.io/instance": "demo"}},
        "spec": {"volumeName": "v"},
    });
    note_claim(&world.cluster, &mut world.observed, claim.clone());
    assert_eq!(world.step().0, Vec::<String>::new());
    assert_eq!(
        world.condition("Degraded"),
        reason(true, Reason::ObjectConflict)
    );
    let status = world.cluster.status.clone().unwrap();
    let degraded = status.conditions.iter().find(|it| it.type_ == "Degraded");
    let message = &degraded.unwrap().message;
    for said in [
        "PersistentVolumeClaim data-demo-tablet-1",
        "app.kubernetes.io/instance=demo,app.kubernetes.io/name=percolator",
    ] {
        assert!(message.contains(said), "{message}");
    }
    // With both labels it's one that a former cluster of this name left behind.
    world.observed.foreign_claims.clear();
    claim["metadata"]["labels"]["app.kubernetes.io/name"] = json!("percolator");
    note_claim(&world.cluster, &mut world.observed, claim);
    assert!(!world.observed.is_new("demo"));
    assert!(world.step().0.contains(&"demo-gc-master".to_owned()));
    // What sets there are have made their claims with labels.
    let mut world = World::all_ready();
    assert_eq!(
        claims_to_ask_for(&world.cluster, &world.observed),
        Vec::<String>::new()
    );
    // But they would take up somebody else's for a server more.
    world.change(|cluster| cluster.spec.tablets.replicas = 4);
    let asked = claims_to_ask_for(&world.cluster, &world.observed);
    assert_eq!(asked, ["data-demo-tablet-3"]);
    let claim = json!({"metadata": {"name": "data-demo-tablet-3"}, "spec": {"volumeName": "v"}});
    note_claim(&world.cluster, &mut world.observed, claim);
    assert_eq!(world.step().0, Vec::<String>::new());
    assert_eq!(
        world.condition("Degraded"),
        reason(true, Reason::ObjectConflict)
    );
}

/// What there is of a cluster, as if one of the same name had made it before.
fn of_a_former_one(change: impl Fn(&mut Value)) -> World {
    let mut world = World::all_ready();
    world.cluster.status = None;
    world.observed.objects.values_mut().for_each(change);
    world
}

#[test]
fn objects_that_a_former_cluster_leaves_are_waited_for() {
    let mut world = of_a_former_one(|object| {
        object["metadata"]["ownerReferences"][0]["uid"] = json!("of-the-former-one");
    });
    assert_eq!(world.step().0, Vec::<String>::new());
    assert_eq!(
        world.condition("Progressing"),
        reason(true, Reason::WaitingForRemoval)
    );
    // Nobody has to do anything about it; and its pods are not this cluster's.
    assert_eq!(
        world.condition("Degraded"),
        reason(false, Reason::AsExpected)
    );
    assert_eq!(
        world.condition("Available"),
        reason(false, Reason::ServersNotReady)
    );
    world.observed.objects.clear();
    world.observed.pods.clear();
    assert!(world.step().0.contains(&"demo-gc-master".to_owned()));
}

/// `kubectl delete perc demo --cascade=orphan`: pods run on, and a cluster of the same name takes them up.
#[test]
fn objects_that_a_former_cluster_left_to_themselves_are_taken_up() {
    let mut world = of_a_former_one(|object| {
        object["metadata"]["ownerReferences"] = json!([]);
    });
    let mut applied = world.step().0;
    for role in Role::ALL {
        assert!(applied.contains(&role.set("demo")), "{applied:?}");
        world.ready(role);
        applied = world.step().0;
    }
    assert_eq!(applied, Vec::<String>::new());
    assert!(world.condition("Available").0);
    let uid = json!(world.cluster.metadata.uid);
    for (key, object) in &world.observed.objects {
        assert_eq!(
            object["metadata"]["ownerReferences"][0]["uid"], uid,
            "{key:?}"
        );
    }
}

#[test]
fn what_looks_like_ours_and_belongs_to_somebody_is_left_alone() {
    for change in [
        (|object| object["metadata"]["ownerReferences"][0]["name"] = json!("other"))
            as fn(&mut Value),
        |object| object["metadata"]["ownerReferences"][0]["kind"] = json!("Deployment"),
        |object| {
            object["metadata"]["ownerReferences"] = json!([]);
            object["metadata"]["annotations"] = json!({});
        },
        |object| {
            object["metadata"]["ownerReferences"] = json!([]);
            object["metadata"]["labels"]["app.kubernetes.io/instance"] = json!("other");
        },
    ] {
        let mut world = of_a_former_one(|object| {
            object["metadata"]["ownerReferences"][0]["uid"] = json!("another");
            change(object);
        });
        let before = world.observed.objects.clone();
        assert_eq!(world.step().0, Vec::<String>::new());
        assert_eq!(
            world.condition("Degraded"),
            reason(true, Reason::ObjectConflict)
        );
        assert_eq!(world.observed.objects, before);
    }
}

/// The configuration has the image of a cluster that names none; a newer operator has another one.
#[test]
fn a_lost_configuration_changes_no_image() {
    let mut world = World::all_ready();
    let key = (Kind::ConfigMap, "demo".to_owned());
    let before = world.observed.objects.remove(&key);
    for set in Role::ALL.map(|role| (Kind::StatefulSet, role.set("demo"))) {
        let newer = Settings {
            image: "percolator:newer".into(),
        };
        let Decision::Do(plan) = decide(&world.cluster, &world.observed, &newer) else {
            panic!("the spec is good");
        };
        assert!(plan.apply.iter().all(|object| object.name != set.1));
        let config = &plan.apply[0];
        assert_eq!(config.kind, Kind::ConfigMap);
        assert_eq!(
            Some(&config.value["data"]),
            before.as_ref().map(|it| &it["data"])
        );
    }
}
