//! Which image a cluster has that names none.

use super::*;

fn with_default(image: &str) -> Settings {
    Settings {
        image: image.into(),
        ..World::settings()
    }
}

fn image_of(object: &Object) -> &Value {
    &object.value["spec"]["template"]["spec"]["containers"][0]["image"]
}

#[test]
fn a_new_operator_with_another_default_restarts_nobody() {
    let world = World::all_ready();
    let status = world.cluster.status.clone().expect("a status");
    assert_eq!(status.default_image.as_deref(), Some(SETTINGS_IMAGE));
    let newer = with_default("percolator:newer");
    let decision = decide(&world.cluster, &world.observed, &newer);
    assert!(decision.plan().is_idle(), "{decision:?}");
    let now = Timestamp::from_second(world.now).expect("a time");
    let then = status_after(&world.cluster, &world.observed, &newer, &decision, &[], now);
    assert_eq!(then.default_image, status.default_image);
}

/// A ConfigMap had it once: anyone who may edit that could choose the image.
#[test]
fn no_object_decides_the_image() {
    let mut world = World::all_ready();
    for object in world.observed.objects.values_mut() {
        if object["kind"] == "ConfigMap" {
            assert!(object["data"].get("default-image").is_none());
            object["data"]["default-image"] = json!("evil:1");
        }
        object["metadata"]["annotations"]["percolator.dev/default-image"] = json!("evil:1");
        if let Some(image) = object.pointer_mut("/spec/template/spec/containers/0/image") {
            *image = json!("evil:1");
        }
    }
    let decision = decide(&world.cluster, &world.observed, &World::settings());
    let applied = &decision.plan().apply;
    assert_eq!(applied.len(), 1, "{applied:?}");
    assert_eq!(image_of(&applied[0]), SETTINGS_IMAGE);
}

/// An operator that is killed before it applies anything has recorded the image, so that the next one takes the same.
#[test]
fn the_image_is_recorded_before_anything_is_applied() {
    let mut world = World::new();
    let seen = world.observed.clone();
    let (applied, _) = world.reconcile(&seen, &mut 1);
    assert_eq!(applied, Vec::<String>::new());
    let newer = with_default("percolator:newer");
    let decision = decide(&world.cluster, &world.observed, &newer);
    let mut sets = decision.plan().apply.iter();
    let set = sets.find(|object| object.kind == Kind::StatefulSet);
    assert_eq!(image_of(set.expect("a set")), SETTINGS_IMAGE);
}

#[test]
fn a_spec_that_names_an_image_and_none_again_takes_the_operators_default() {
    let mut world = World::all_ready();
    world.change(|cluster| cluster.spec.image = Some("percolator:2".into()));
    world.step();
    let status = world.cluster.status.as_ref().expect("a status");
    assert_eq!(status.default_image, None);
    world.change(|cluster| cluster.spec.image = None);
    let newer = with_default("percolator:newer");
    let decision = decide(&world.cluster, &world.observed, &newer);
    let mut sets = decision.plan().apply.iter();
    let set = sets.find(|object| object.kind == Kind::StatefulSet);
    assert_eq!(image_of(set.expect("a set")), "percolator:newer");
}

/// The last valid spec names none, and a newer operator has another default.
#[test]
fn the_image_stays_while_the_spec_is_invalid() {
    let mut world = World::all_ready();
    world.change(|cluster| {
        cluster.spec.image = Some("percolator:2".into());
        cluster.spec.tablets.replicas = 0;
    });
    world.step();
    let newer = with_default("percolator:newer");
    let decision = decide(&world.cluster, &world.observed, &newer);
    assert!(matches!(decision, Decision::Invalid(..)));
    assert!(decision.plan().is_idle(), "{decision:?}");
}
