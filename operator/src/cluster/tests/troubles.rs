//! What is wrong with pods, and how the status reports it.

use k8s_openapi::api::core::v1::Event;

use super::*;

#[test]
fn troubles_of_pods_are_reported() {
    for (status, expected) in [
        (
            json!({"conditions": [
                {"type": "PodScheduled", "reason": "Unschedulable", "message": "0/3 nodes"}
            ]}),
            reason(true, Reason::PodUnschedulable),
        ),
        (
            json!({"containerStatuses": [{
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"message": "error: the folder is another's"}},
            }]}),
            reason(true, Reason::ServerCrashing),
        ),
        (
            json!({"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}),
            reason(false, Reason::AsExpected),
        ),
    ] {
        let mut world = World::all_ready();
        world.pod("demo-tablet-1", status);
        world.step();
        assert_eq!(world.condition("Degraded"), expected);
    }
}

/// The error is in the last line of the log, and is reported in the same words each time.
#[test]
fn the_last_error_of_a_server_in_a_crash_loop_is_reported() {
    let lines = |last: &str| format!("{{\"message\":\"{}\"}}\n{last}\n", "begins ".repeat(200));
    for (log, said) in [
        (
            lines(
                r#"{"timestamp":"2026-01-01T00:00:00Z","level":"ERROR","message":"stopping","error":"no room"}"#,
            ),
            "stopping: no room",
        ),
        (
            lines("2026-01-01T00:00:00.000000Z ERROR stopping error=no room"),
            "ERROR stopping error=no room",
        ),
        (
            lines("error: the folder is another's"),
            "error: the folder is another's",
        ),
        (lines(r#"{"level":"ERROR"}"#), r#"{"level":"ERROR"}"#),
        (
            lines(
                "error: unexpected argument '--x' found\n\nUsage: a [OPTIONS]\n\nFor more information, try '--help'.",
            ),
            "error: unexpected argument '--x' found",
        ),
        (
            lines(
                "thread 'main' panicked at src/a.rs:1:2:\nno room\nnote: run with `RUST_BACKTRACE=1`",
            ),
            "thread 'main' panicked at src/a.rs:1:2: no room",
        ),
    ] {
        let mut world = World::all_ready();
        let status = json!({"containerStatuses": [{
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"message": log}},
        }]});
        world.pod("demo-tablet-1", status);
        world.step();
        let message = world.message("Degraded");
        assert!(message.ends_with(&format!(": {said}")), "{message}");
    }
}

/// A time of a condition. The first reconcile is at second 1,009.
fn at(second: i64) -> String {
    Timestamp::from_second(second).unwrap().to_string()
}

#[test]
fn a_node_that_does_not_answer_is_named() {
    let mut world = World::all_ready();
    let unready = |containers: &str, since| {
        json!({"conditions": [
            {"type": "Ready", "status": "False", "lastTransitionTime": at(since)},
            {"type": "ContainersReady", "status": containers},
        ], "containerStatuses": [{"ready": true, "state": {"running": {}}}]})
    };
    world.pod("demo-tablet-1", unready("True", world.now));
    world.step();
    assert_eq!(
        world.condition("Degraded"),
        reason(false, Reason::AsExpected)
    );
    let message = world.message("Available");
    assert_eq!(
        message,
        "ready: tablet servers 3/3 (demo-tablet-1: its node node-1 doesn't answer)"
    );
    let now = Timestamp::from_second(world.now).unwrap();
    assert!(matches!(
        due_in(&world.cluster, &world.observed, &World::settings(), now),
        Some(1..=10)
    ));
    world.now += 10;
    world.step();
    assert_eq!(
        world.condition("Degraded"),
        reason(true, Reason::NodeUnreachable)
    );
    let message = world.message("Degraded");
    assert!(
        message.contains("kubectl taint node node-1 node.kubernetes.io/out-of-service"),
        "{message}"
    );
    // Kubernetes marks its pods for deletion later. Its node doesn't answer that either.
    let pod = world.observed.pods.last_mut().expect("it is there");
    terminate(&mut pod.metadata);
    assert_eq!(world.step(), (vec![], false));
    // It says itself that it isn't ready.
    world.pod("demo-tablet-1", unready("False", 0));
    world.step();
    assert_eq!(
        world.condition("Degraded"),
        reason(false, Reason::AsExpected)
    );
    assert_eq!(
        world.message("Available"),
        "ready: tablet servers 3/3 (demo-tablet-1: runs, and isn't ready on node node-1)"
    );
}

#[test]
fn a_pod_that_does_not_start_is_reported_when_that_lasts() {
    for containers in [
        json!(null),
        json!([{"state": {"waiting": {"reason": "ContainerCreating"}}}]),
    ] {
        let mut world = World::all_ready();
        let conditions = json!([
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(100)},
            // Its node was off meanwhile.
            {"type": "Ready", "status": "False", "lastTransitionTime": at(world.now)},
        ]);
        world.pod(
            "demo-tablet-1",
            json!({"conditions": conditions, "containerStatuses": containers}),
        );
        world.step();
        assert_eq!(
            world.condition("Degraded"),
            reason(false, Reason::AsExpected)
        );
        let message = world.message("Available");
        assert!(
            message.ends_with("(demo-tablet-1: starts on node node-1)"),
            "{message}"
        );
        world.now += 120;
        world.step();
        assert_eq!(
            world.condition("Degraded"),
            reason(true, Reason::PodNotStarted)
        );
    }
}

#[test]
fn an_image_that_is_tried_again_and_again_is_reported_once() {
    let mut world = World::all_ready();
    let waits = |reason: &str| json!({"containerStatuses": [{"image": "x:1", "state": {"waiting": {"reason": reason}}}]});
    world.pod("demo-tablet-1", waits("ErrImagePull"));
    world.step();
    assert_eq!(
        world.condition("Degraded"),
        reason(true, Reason::ImageUnavailable)
    );
    world.pod("demo-tablet-1", waits("ImagePullBackOff"));
    assert_eq!(world.step(), (vec![], false), "the same message");
}

#[test]
fn of_many_pods_some_are_named() {
    let mut world = World::all_ready();
    for ordinal in 0..3 {
        world
            .observed
            .pods
            .retain(|pod| name_of(pod) != format!("demo-tablet-{ordinal}"));
    }
    world.serves("demo-tso-0", false);
    world.change(|cluster| cluster.spec.paused = true);
    world.step();
    assert_eq!(
        world.message("Available"),
        "ready: oracle 1/1 (demo-tso-0: starts on node node-1), tablet servers 3/3 (demo-tablet-0: isn't there; \
         demo-tablet-1: isn't there; demo-tablet-2: isn't there)"
    );
}

/// A mesh adds a container, and Kubernetes sorts containers by their names.
#[test]
fn a_server_that_crashes_beside_others_in_its_pod_is_reported() {
    let mut world = World::all_ready();
    world.pod(
        "demo-tablet-1",
        json!({"containerStatuses": [
            {"name": "proxy", "ready": true, "started": true, "state": {"running": {}}},
            {"name": "tablet", "state": {"waiting": {"reason": "CrashLoopBackOff"}}},
        ]}),
    );
    let pod = world.observed.pods.last_mut().expect("it is there");
    edit(pod, |pod| {
        pod["metadata"]["labels"] = json!({"percolator.dev/component": "tablet"});
    });
    world.step();
    assert_eq!(
        world.condition("Degraded"),
        reason(true, Reason::ServerCrashing)
    );
}

/// It was started again once, as after its node, and runs: what is wrong is the server.
#[test]
fn a_server_that_crashes_behind_a_container_that_runs_beside_it_is_reported() {
    let mesh = json!([{
        "name": "mesh", "started": true, "ready": true, "restartCount": 1,
        "state": {"running": {}}, "lastState": {"terminated": {"exitCode": 137}},
    }]);
    let mut world = World::all_ready();
    let mut with_server = |server: Value| {
        world.pod(
            "demo-tablet-1",
            json!({"initContainerStatuses": mesh, "containerStatuses": [server], "podIP": "10.0.0.7"}),
        );
        let pod = world.observed.pods.last_mut().expect("it is there");
        edit(pod, |pod| {
            pod["spec"]["initContainers"] = json!([{"name": "mesh", "restartPolicy": "Always"}]);
        });
        world.step();
        (world.condition("Degraded"), to_ask(&world.observed).len())
    };
    let crashes = json!({"name": "tablet", "state": {"waiting": {"reason": "CrashLoopBackOff"}}});
    assert_eq!(with_server(crashes).0, reason(true, Reason::ServerCrashing));
    let not_ready =
        json!({"name": "tablet", "started": true, "ready": false, "state": {"running": {}}});
    assert_eq!(with_server(not_ready).1, 1);
}

/// Between two starts, its container runs for a moment, or has just ended: that is no recovery.
#[test]
fn a_server_that_crashes_does_not_seem_well_between_two_starts() {
    let words = json!({"exitCode": 1, "message": "error: the folder is another's"});
    let at = |second: i64| Timestamp::from_second(second).unwrap().to_string();
    let container = |state: Value, restarts: i64, ready: bool| {
        json!({"containerStatuses": [{
            "state": state, "lastState": {"terminated": words}, "restartCount": restarts, "ready": ready,
        }]})
    };
    let waits = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 20s"}});
    let runs = json!({"running": {"startedAt": at(900)}});
    let has_ended = json!({"terminated": words});
    let mut messages = Vec::new();
    for state in [&waits, &runs, &has_ended] {
        let mut world = World::all_ready();
        world.pod("demo-tablet-1", container(state.clone(), 2, false));
        world.step();
        let status = world.cluster.status.clone().expect("a status");
        let condition = status
            .conditions
            .into_iter()
            .find(|it| it.type_ == "Degraded");
        messages.push(condition.expect("it is there").message);
        assert_eq!(
            world.condition("Degraded"),
            reason(true, Reason::ServerCrashing)
        );
    }
    assert!(
        messages[0].contains("the folder is another's"),
        "{messages:?}"
    );
    assert!(
        messages.iter().all(|message| *message == messages[0]),
        "{messages:?}"
    );
    let ran_long = json!({"running": {"startedAt": at(10)}});
    for (state, restarts, ready) in [
        (&runs, 2, true),
        // Killed once, it comes back.
        (&runs, 1, false),
        // Ended long ago, and isn't ready for another reason.
        (&ran_long, 7, false),
    ] {
        let mut world = World::all_ready();
        world.pod("demo-tablet-1", container(state.clone(), restarts, ready));
        world.step();
        assert_eq!(
            world.condition("Degraded"),
            reason(false, Reason::AsExpected)
        );
    }
}

#[test]
fn a_server_without_the_rows_that_it_had_is_reported() {
    let mut world = World::all_ready();
    world.pod(
        "demo-tablet-1",
        json!({
            "podIP": "10.0.0.7",
            "conditions": [{"type": "Ready", "status": "False"}],
            "containerStatuses": [{"started": true, "ready": false, "state": {"running": {}}}],
        }),
    );
    let asked = to_ask(&world.observed);
    assert_eq!(
        asked,
        [("demo-tablet-1".to_owned(), "10.0.0.7:9090".to_owned())]
    );
    let words = "data lost: 5 tablets that were here are not any more\n";
    world
        .observed
        .not_ready_messages
        .insert("demo-tablet-1".into(), words.into());
    world.step();
    assert_eq!(world.condition("Degraded"), reason(true, Reason::DataLost));
    assert!(!world.condition("Available").0);
    assert_eq!(
        world.message("Degraded"),
        "pod demo-tablet-1: 5 tablets that were here are not any more"
    );
    // What else servers say passes as a rule.
    world
        .observed
        .not_ready_messages
        .insert("demo-tablet-1".into(), "not yet\n".into());
    world.step();
    assert_eq!(
        world.condition("Degraded"),
        reason(false, Reason::AsExpected)
    );
}

/// A service account or a priority class that doesn't exist, a quota, a forbidden security context: only events report them.
#[test]
fn pods_that_cannot_be_made_are_reported() {
    let mut world = World::all_ready();
    world.change(|cluster| cluster.spec.tablets.replicas = 4);
    world.step();
    let uid = "uid of demo-tablet";
    let incomplete = |world: &World| {
        let now = Timestamp::from_second(world.now).unwrap();
        without_pods(&world.cluster, &world.observed, now)
    };
    assert_eq!(incomplete(&world), [], "it has just been asked for");
    world.now += 10;
    assert_eq!(
        incomplete(&world),
        [("demo-tablet".to_owned(), uid.to_owned())]
    );
    let event = |reason: &str, second: i64, message: &str| {
        let time = Timestamp::from_second(second).unwrap().to_string();
        read::<Event>(json!({"reason": reason, "lastTimestamp": time, "message": message}))
    };
    let events = [
        event("SuccessfulCreate", 5, "made"),
        event(
            "FailedCreate",
            5,
            "pods is forbidden: no PriorityClass with name none was found",
        ),
        event("RecreatingFailedPod", 6, "another matter"),
    ];
    let refusal = last_refusal(&events).expect("a refusal");
    assert!(refusal.contains("no PriorityClass"), "{refusal}");
    world
        .observed
        .refused_pods
        .insert("demo-tablet".into(), refusal);
    world.step();
    assert_eq!(
        world.condition("Degraded"),
        reason(true, Reason::PodsRefused)
    );
    assert!(world.condition("Available").0, "the others serve");
    // Since then it could.
    let events = [&events[..], &[event("SuccessfulCreate", 9, "made")]].concat();
    assert_eq!(last_refusal(&events), None);
    world.ready(Role::Tablet);
    assert_eq!(incomplete(&world), []);
}

#[test]
fn a_server_that_has_served_before_an_earlier_one_counts() {
    let mut world = World::all_ready();
    world.change(|cluster| cluster.spec.tablets.replicas = 5);
    world.step();
    world.serves("demo-tablet-4", true);
    world.step();
    assert!(world.condition("Available").0);
    assert!(
        world
            .message("Available")
            .contains("4 tablet servers serve; 1 more")
    );
    world.serves("demo-tablet-4", false);
    world.step();
    assert!(
        !world.condition("Available").0,
        "it may hold rows since it served"
    );
    assert!(world.message("Available").contains("demo-tablet-4"));
    world.ready(Role::Tablet);
    world.step();
    let status = &world.cluster.status.as_ref().unwrap().tablets;
    assert_eq!((status.joined, &status.joined_beyond[..]), (5, &[][..]));
}

#[test]
fn a_lost_server_is_reported() {
    let mut world = World::all_ready();
    let key = (Kind::StatefulSet, "demo-tablet".to_owned());
    let since = world.cluster.status.clone().unwrap();
    world.observed.objects.get_mut(&key).unwrap()["status"]["readyReplicas"] = json!(2);
    world.serves("demo-tablet-0", false);
    assert_eq!(world.step(), (vec![], true));
    assert_eq!(
        world.condition("Available"),
        reason(false, Reason::ServersNotReady)
    );
    let status = world.cluster.status.clone().unwrap();
    assert_eq!(status.tablets.summary, "2/3");
    let reported: Vec<(&str, bool)> = turned(Some(&since), &status)
        .into_iter()
        .map(|(condition, is_bad)| (condition.type_.as_str(), is_bad))
        .collect();
    assert_eq!(reported, [("Available", true), ("Progressing", false)]);
}
