//! Admission webhooks and policies that change what the operator applies, as GKE Autopilot and Kyverno do.

use super::*;

/// Every container gets resources, and its image from a mirror.
fn autopilot(object: &mut Value) {
    if let Some(container) = object.pointer_mut("/spec/template/spec/containers/0") {
        container["resources"] = json!({"requests": {"cpu": "500m"}});
        let image = container["image"].as_str().expect("an image");
        if !image.starts_with("mirror/") {
            container["image"] = json!(format!("mirror/{image}"));
        }
    }
}

fn world() -> World {
    World {
        admission: autopilot,
        ..World::new()
    }
}

#[test]
fn a_cluster_starts_though_admission_changes_its_sets() {
    let mut world = world();
    for role in Role::ALL {
        let (applied, _) = world.step();
        assert_eq!(applied.last(), Some(&role.set("demo")));
        // Nothing is applied again and again.
        assert!(!world.step().0.contains(&role.set("demo")));
        world.ready(role);
    }
    assert_eq!(world.step().0, Vec::<String>::new());
    for (kind, expected) in [
        ("Ready", reason(true, Reason::UpToDate)),
        ("Progressing", reason(false, Reason::UpToDate)),
        ("Degraded", reason(false, Reason::AsExpected)),
        ("Drifted", reason(true, Reason::AlteredByAdmission)),
    ] {
        assert_eq!(world.condition(kind), expected, "{kind}");
    }
    let message = world.message("Drifted");
    for set in ["demo-master", "demo-tso", "demo-tablet"] {
        let place = format!("StatefulSet {set} at .spec.template.spec.containers[0].image");
        assert!(message.contains(&place), "{message}");
    }
}

/// What was altered is known from answers, which another operator has not had.
#[test]
fn an_operator_that_follows_applies_once_and_restarts_nobody() {
    let mut world = world();
    for role in Role::ALL {
        world.step();
        world.ready(role);
    }
    world.step();
    let before = world.observed.clone();
    world.observed.altered.clear();
    for role in Role::ALL {
        assert_eq!(world.step().0, [role.set("demo")]);
    }
    assert_eq!(world.step(), (vec![], false));
    assert_eq!(world.observed.objects, before.objects);
    assert_eq!(world.observed.altered, before.altered);
    assert_eq!(world.condition("Ready"), reason(true, Reason::UpToDate));
}

#[test]
fn an_operator_that_follows_waits_for_no_turn() {
    let mut world = world();
    for role in Role::ALL {
        world.step();
        world.ready(role);
    }
    world.step();
    world.observed.altered.clear();
    world.observed.turn_wait = Some("waiting for its turn: others".into());
    let decision = decide(&world.cluster, &world.observed, &World::settings());
    assert!(!decision.plan().is_to_restart, "{decision:?}");
    for role in Role::ALL {
        assert_eq!(world.step().0, [role.set("demo")]);
    }
    assert_eq!(world.condition("Ready"), reason(true, Reason::UpToDate));
    // Another image restarts servers, and waits.
    world.change(|cluster| cluster.spec.image = Some("percolator:2".into()));
    assert_eq!(world.step().0, Vec::<String>::new());
    let waits = reason(true, Reason::WaitingForTurn);
    assert_eq!(world.condition("Progressing"), waits);
}

/// As Kubernetes before 1.34 drops the class, and a policy the label.
#[test]
fn what_the_api_server_drops_of_a_claim_is_asked_for_once() {
    let mut world = World::all_ready();
    world.admission = |object| {
        for (place, field) in [
            ("/spec", "volumeAttributesClassName"),
            ("/metadata/labels", "backup"),
        ] {
            if let Some(fields) = object.pointer_mut(place).and_then(Value::as_object_mut) {
                fields.remove(field);
            }
        }
    };
    world.change(|cluster| {
        let claim = &mut cluster.spec.tablets.storage.claim;
        claim.labels.insert("backup".into(), "daily".into());
        claim.volume_attributes_class_name = Some("fast".into());
    });
    let claims = [0, 1, 2].map(|ordinal| format!("data-demo-tablet-{ordinal}"));
    assert_eq!(world.step().0, claims);
    assert_eq!(world.step().0, Vec::<String>::new());
    assert_eq!(world.condition("Ready"), reason(true, Reason::UpToDate));
    let drifted = reason(true, Reason::AlteredByAdmission);
    assert_eq!(world.condition("Drifted"), drifted);
    let message = world.message("Drifted");
    for claim in &claims {
        let place = format!("PersistentVolumeClaim {claim} at .spec.volumeAttributesClassName");
        assert!(message.contains(&place), "{message}");
    }
    // Volumes grow all the same, and what else is asked for is asked for once more.
    world.change(|cluster| cluster.spec.tablets.storage.size = Quantity::from_bytes(11 << 30));
    assert_eq!(world.step().0[1..], claims);
    world.change(|cluster| {
        let claim = &mut cluster.spec.tablets.storage.claim;
        claim.labels.insert("team".into(), "a".into());
    });
    assert_eq!(world.step().0, claims);
    assert_eq!(world.step().0, Vec::<String>::new());
}

#[test]
fn what_others_change_of_an_altered_set_is_changed_back() {
    let mut world = world();
    for role in Role::ALL {
        world.step();
        world.ready(role);
    }
    let key = (Kind::StatefulSet, "demo-tablet".to_owned());
    let set = world.observed.objects.get_mut(&key).expect("a set");
    set["spec"]["replicas"] = json!(1);
    assert_eq!(world.step().0, ["demo-tablet"]);
    assert_eq!(world.observed.objects[&key]["spec"]["replicas"], 3);
    assert_eq!(world.step().0, Vec::<String>::new());
}

#[test]
fn an_object_that_is_as_asked_for_again_is_not_reported() {
    let mut world = world();
    world.step();
    assert!(world.condition("Drifted").0);
    let key = (Kind::StatefulSet, "demo-master".to_owned());
    let decision = decide(&world.cluster, &Observed::default(), &World::settings());
    let mut asked = decision.plan().apply.iter();
    let asked = asked.find(|object| object.name == key.1 && object.kind == key.0);
    let template = asked.expect("a set").value["spec"]["template"].clone();
    let set = world.observed.objects.get_mut(&key).expect("a set");
    set["spec"]["template"] = template;
    world.step();
    assert!(!world.condition("Drifted").0);
}

#[test]
fn a_new_spec_is_rolled_out_through_admission_and_one_role_at_a_time() {
    let mut world = world();
    for role in Role::ALL {
        world.step();
        world.ready(role);
    }
    world.change(|cluster| cluster.spec.image = Some("percolator:2".into()));
    for role in Role::ALL {
        assert_eq!(world.step().0, [role.set("demo")]);
        assert_eq!(world.step().0, Vec::<String>::new());
        assert!(!world.condition("Ready").0);
        world.ready(role);
    }
    world.step();
    assert_eq!(world.condition("Ready"), reason(true, Reason::UpToDate));
}

/// No set is made anew for ever because admission asks for another size of its claims.
#[test]
fn altered_claims_are_no_reason_to_make_a_set_anew() {
    let mut world = World {
        admission: |object| {
            let template = object.pointer_mut("/spec/volumeClaimTemplates/0/spec/resources");
            if let Some(resources) = template {
                resources["requests"]["storage"] = json!("20Gi");
            }
        },
        ..World::new()
    };
    world.step();
    assert_eq!(world.step().0, Vec::<String>::new());
    world.ready(Role::Master);
    // There is a volume now: the claims that the set makes are asked for as they are.
    assert_eq!(world.step().0, ["demo-master"]);
    assert_eq!(world.step().0, ["demo-tso"]);
}

#[test]
fn drift_ends_with_the_policy() {
    let mut world = world();
    for role in Role::ALL {
        world.step();
        world.ready(role);
    }
    world.step();
    world.admission = |_| {};
    world.change(|cluster| cluster.spec.image = Some("percolator:2".into()));
    for role in Role::ALL {
        world.step();
        world.ready(role);
    }
    world.step();
    assert_eq!(
        world.condition("Drifted"),
        reason(false, Reason::NotAltered)
    );
}
