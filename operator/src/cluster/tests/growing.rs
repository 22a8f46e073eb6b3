//! Volumes that don't grow by themselves.

use super::*;

fn size(gibibytes: u64) -> Quantity {
    Quantity::from_bytes(gibibytes << 30)
}

fn edit_status(world: &mut World, name: &str, change: impl FnOnce(&mut Value)) {
    let mut claims = world.observed.claims.iter_mut();
    let claim = claims.find(|claim| name_of(&**claim) == name);
    edit(claim.expect("a claim"), |claim| {
        change(&mut claim["status"])
    });
}

/// Tablet servers whose volumes have begun to grow.
fn growing() -> World {
    let mut world = World::all_ready();
    world.change(|cluster| cluster.spec.tablets.storage.size = size(20));
    world.step();
    world.ready(Role::Tablet);
    world.step();
    world
}

fn is_well(world: &World) -> bool {
    world.condition("Degraded") == reason(false, Reason::AsExpected)
}

#[test]
fn a_file_system_that_grows_at_a_restart_names_its_pod() {
    let mut world = growing();
    let since = world.now;
    let time = Timestamp::from_second(since).expect("a time").to_string();
    edit_status(&mut world, "data-demo-tablet-1", |status| {
        status["conditions"] = json!([{
            "type": "FileSystemResizePending", "status": "True", "lastTransitionTime": time,
        }]);
    });
    world.step();
    // Most nodes grow it by themselves.
    assert!(is_well(&world));
    let now = Timestamp::from_second(world.now).expect("a time");
    let due = due_in(&world.cluster, &world.observed, &World::settings(), now);
    assert_eq!(due, Some(119));
    world.now = since + 119;
    world.step();
    assert_eq!(
        world.condition("Degraded"),
        reason(true, Reason::VolumeNotGrown)
    );
    let message = world.message("Degraded");
    assert!(
        message.contains("kubectl delete pod demo-tablet-1"),
        "{message}"
    );
    edit_status(&mut world, "data-demo-tablet-1", |status| {
        *status = json!({"phase": "Bound", "capacity": {"storage": "20Gi"}});
    });
    world.step();
    assert!(is_well(&world));
}

#[test]
fn a_size_that_a_volume_cannot_have_is_reported_in_the_drivers_words() {
    for (state, condition, words) in [
        (
            "ControllerResizeInfeasible",
            json!({"type": "ControllerResizeError", "status": "True", "message": "at most 16Gi here"}),
            "can't grow from 10Gi to 20Gi: at most 16Gi here; ",
        ),
        (
            "NodeResizeInfeasible",
            json!({"type": "NodeResizeError", "status": "False", "message": "earlier"}),
            "can't grow from 10Gi to 20Gi: the storage doesn't say why; ",
        ),
        (
            "NodeResizePending",
            json!({"type": "NodeResizeError", "status": "True", "message": "no room"}),
            ": no room; ",
        ),
    ] {
        let mut world = growing();
        edit_status(&mut world, "data-demo-tablet-1", |status| {
            status["allocatedResourceStatuses"] = json!({"storage": state});
            status["conditions"] = json!([condition]);
        });
        world.step();
        assert_eq!(
            world.condition("Degraded"),
            reason(true, Reason::VolumeNotGrown)
        );
        let message = world.message("Degraded");
        assert!(message.contains("claim data-demo-tablet-1 "), "{message}");
        assert!(message.contains(words), "{message}");
    }
}

/// No server starts on it: the wait for its file system would never end.
#[test]
fn a_claim_that_a_drained_server_left_is_not_waited_for() {
    let mut world = World::all_ready();
    world.observed.claims.push(read(json!({
        "metadata": {"name": "data-demo-tablet-7"},
        "spec": {"resources": {"requests": {"storage": "10Gi"}}},
        "status": {
            "phase": "Bound",
            "capacity": {"storage": "5Gi"},
            "allocatedResourceStatuses": {"storage": "ControllerResizeInfeasible"},
        },
    })));
    let growths = super::super::growing::wait(&world.cluster, &world.observed);
    assert_eq!(growths, None);
    let now = Timestamp::from_second(world.now).expect("a time");
    let trouble = super::super::growing::trouble(&world.cluster, &world.observed, now);
    assert_eq!(trouble, None);
}
