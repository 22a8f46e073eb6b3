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
            "data-demo-master-0",
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
    note_claim(&world.cluster, &mut world.observed, read(claim.clone()));
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
        "percolator.dev/cluster=demo",
    ] {
        assert!(message.contains(said), "{message}");
    }
    // With the cluster's label it's one that a former cluster of this name left behind.
    world.observed.foreign_claims.clear();
    claim["metadata"]["labels"]["percolator.dev/cluster"] = json!("demo");
    note_claim(&world.cluster, &mut world.observed, read(claim));
    assert!(!world.observed.is_new("demo"));
    assert!(world.step().0.contains(&"demo-master".to_owned()));
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
    note_claim(&world.cluster, &mut world.observed, read(claim));
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
    assert!(world.step().0.contains(&"demo-master".to_owned()));
}

/// `kubectl delete perc demo --cascade=orphan`: pods run on, and a cluster of the same name takes them up.
#[test]
fn objects_that_a_former_cluster_left_to_themselves_are_taken_up() {
    let mut world = of_a_former_one(|object| {
        object["metadata"]["ownerReferences"] = json!([]);
    });
    assert!(adopts(&world.cluster, &world.observed));
    let mut applied = world.step().0;
    for role in Role::ALL {
        assert!(applied.contains(&role.set("demo")), "{applied:?}");
        world.ready(role);
        applied = world.step().0;
    }
    assert_eq!(applied, Vec::<String>::new());
    assert!(!adopts(&world.cluster, &world.observed));
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
fn an_object_of_another_owner_with_our_labels_is_left_alone() {
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
            object["metadata"]["labels"]["percolator.dev/cluster"] = json!("other");
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

/// Anyone may give a pod these labels; a StatefulSet takes up none that it didn't make, but for its names.
#[test]
fn a_foreign_pod_with_the_clusters_labels_changes_neither_status_nor_conditions() {
    let mut world = World::all_ready();
    let before = world.cluster.status.clone();
    let labels = json!({
        "app.kubernetes.io/name": "percolator",
        "app.kubernetes.io/instance": "demo",
        "app.kubernetes.io/component": "tablet",
        "percolator.dev/cluster": "demo",
        "percolator.dev/component": "tablet",
    });
    for owners in [
        json!([]),
        json!([{"controller": true, "kind": "ReplicaSet", "uid": "another"}]),
        // It is named as an owner, and doesn't control the pod.
        json!([{"controller": false, "kind": "StatefulSet", "uid": "uid of demo-tablet"}]),
    ] {
        let foreign = json!({
            "metadata": {"name": "demo-tablet-3", "labels": labels, "ownerReferences": owners},
            "spec": {"nodeName": "node-1", "containers": [{"name": "tablet", "image": "other:9"}]},
            "status": {"containerStatuses": [
                {"name": "tablet", "state": {"waiting": {"reason": "CrashLoopBackOff"}}},
            ]},
        });
        world.observed.pods.push(read(foreign));
        assert_eq!(world.step(), (vec![], false));
        assert_eq!(world.cluster.status, before);
    }
}

#[test]
fn every_object_has_the_operators_own_label() {
    let world = World::all_ready();
    for (key, object) in &world.observed.objects {
        let labels = &object["metadata"]["labels"];
        assert_eq!(labels["percolator.dev/cluster"], "demo", "{key:?}");
        if key.0 != Kind::StatefulSet {
            continue;
        }
        for template in ["/spec/template", "/spec/volumeClaimTemplates/0"] {
            let labels = &object.pointer(template).expect(template)["metadata"]["labels"];
            assert_eq!(labels["percolator.dev/cluster"], "demo", "{key:?}");
        }
    }
}

/// A template of claims can't change either.
#[test]
fn a_set_of_an_older_operator_keeps_its_template_of_claims() {
    let mut world = World::all_ready();
    let key = (Kind::StatefulSet, Role::Tablet.set("demo"));
    let set = world.observed.objects.get_mut(&key).expect("a set");
    let labels = &mut set["spec"]["volumeClaimTemplates"][0]["metadata"]["labels"];
    labels
        .as_object_mut()
        .expect("labels")
        .remove("percolator.dev/cluster");
    let old = set["spec"]["volumeClaimTemplates"].clone();
    world.change(|cluster| cluster.spec.tablets.replicas = 4);
    world.step();
    assert_eq!(world.observed.objects[&key]["spec"]["replicas"], 4);
    assert_eq!(
        world.observed.objects[&key]["spec"]["volumeClaimTemplates"],
        old
    );
}
