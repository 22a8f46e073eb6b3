//! Conditions as kstatus reads them, and with it Flux, Argo CD and Helm.

use super::*;

/// What kstatus makes of a status: its rules for resources that it doesn't know (sigs.k8s.io/cli-utils/pkg/kstatus).
fn kstatus(world: &World) -> &'static str {
    let status = world.cluster.status.as_ref().expect("a status");
    if status.observed_generation != world.cluster.metadata.generation {
        return "InProgress";
    }
    let is = |kind, value| {
        let mut conditions = status.conditions.iter();
        conditions.any(|it| it.type_ == kind && it.status == value)
    };
    match () {
        () if is("Reconciling", "True") => "InProgress",
        () if is("Stalled", "True") => "Failed",
        () if is("Ready", "True") => "Current",
        () => "InProgress",
    }
}

#[test]
fn a_cluster_is_current_when_all_of_it_is_rolled_out() {
    let mut world = World::new();
    for role in Role::ALL {
        world.step();
        assert_eq!(kstatus(&world), "InProgress");
        assert!(!world.condition("Ready").0);
        world.ready(role);
    }
    world.step();
    assert_eq!(kstatus(&world), "Current");
    assert_eq!(world.condition("Ready"), reason(true, Reason::UpToDate));
    for abnormal in ["Reconciling", "Stalled", "Degraded", "Drifted"] {
        assert_eq!(world.condition_of(abnormal).status, "False", "{abnormal}");
    }
    for condition in &world.cluster.status.as_ref().expect("a status").conditions {
        assert_eq!(
            condition.observed_generation,
            world.cluster.metadata.generation
        );
    }
    world.change(|cluster| cluster.spec.image = Some("percolator:2".into()));
    assert_eq!(kstatus(&world), "InProgress", "before any operator sees it");
    for role in Role::ALL {
        world.step();
        assert_eq!(kstatus(&world), "InProgress");
        world.ready(role);
    }
    world.step();
    assert_eq!(kstatus(&world), "Current");
}

#[test]
fn ready_names_the_server_that_is_missing() {
    let mut world = World::all_ready();
    world.change(|cluster| cluster.spec.image = Some("percolator:2".into()));
    world.step();
    let key = (Kind::StatefulSet, Role::Master.set("demo"));
    let set = world.observed.objects.get_mut(&key).expect("a set");
    set["status"]["readyReplicas"] = json!(0);
    world.pod("demo-master-0", json!({"conditions": []}));
    let pod = world.observed.pods.last_mut().expect("a pod");
    edit(pod, |pod| pod["spec"] = json!({}));
    world.step();
    assert_eq!(
        world.condition("Ready"),
        reason(false, Reason::WaitingForMaster)
    );
    let message = world.message("Ready");
    for words in [
        "waiting for the master: 0 of 1 serve",
        "demo-master-0: waits for a node",
    ] {
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn what_only_a_person_can_mend_is_stalled() {
    let mut world = World::all_ready();
    world.change(|cluster| cluster.spec.oracle.replicas = 4);
    world.step();
    assert_eq!(kstatus(&world), "Failed");
    assert_eq!(
        world.condition("Stalled"),
        reason(true, Reason::InvalidSpec)
    );
    assert_eq!(world.condition("Ready"), reason(false, Reason::InvalidSpec));
    world.change(|cluster| cluster.spec.oracle.replicas = 1);
    world.step();
    assert_eq!(kstatus(&world), "Current");
    // A refusal lasts, and a webhook that doesn't answer may come back.
    for (why, expected) in [
        ("exceeded quota", "Failed"),
        ("failed calling webhook \"policies\"", "InProgress"),
    ] {
        world.refused = vec![Refusal::of_servers(why.to_owned())];
        world.step();
        assert_eq!(kstatus(&world), expected, "{why}");
        assert!(world.condition("Degraded").0);
    }
    world.refused.clear();
    world.step();
    // A server that fails is no reason to give up.
    world.pod(
        "demo-tablet-1",
        json!({"containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}),
    );
    world.step();
    assert!(world.condition("Degraded").0);
    assert_eq!(kstatus(&world), "InProgress");
}

#[test]
fn a_paused_cluster_is_ready_if_it_is_what_the_spec_says() {
    let mut world = World::all_ready();
    world.change(|cluster| cluster.spec.paused = true);
    world.step();
    assert_eq!(kstatus(&world), "Current");
    world.change(|cluster| cluster.spec.tablets.replicas = 4);
    world.step();
    assert_eq!(
        world.condition("Ready"),
        reason(false, Reason::PausedBySpec)
    );
    assert_eq!(kstatus(&world), "InProgress");
}

/// Nodes that autoscalers add come within minutes.
#[test]
fn a_pod_that_waits_for_a_node_is_degraded_only_after_the_timeout() {
    let mut world = World::all_ready();
    let since = Timestamp::from_second(world.now)
        .expect("a time")
        .to_string();
    world.pod(
        "demo-tablet-1",
        json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "0/3 nodes are available", "lastTransitionTime": since}]}),
    );
    world.step();
    assert!(!world.condition("Degraded").0);
    assert!(!world.condition("Available").0);
    // Each step is a second.
    world.now += World::settings().unschedulable_timeout_seconds - 3;
    world.step();
    assert!(!world.condition("Degraded").0);
    let now = Timestamp::from_second(world.now).expect("a time");
    assert_eq!(
        due_in(&world.cluster, &world.observed, &World::settings(), now),
        Some(1)
    );
    world.step();
    assert_eq!(
        world.condition("Degraded"),
        reason(true, Reason::PodUnschedulable)
    );
}

/// It says the same as others do.
#[test]
fn what_kstatus_goes_by_makes_no_events() {
    let mut world = World::all_ready();
    let before = world.cluster.status.clone();
    world.change(|cluster| cluster.spec.oracle.replicas = 4);
    world.step();
    let status = world.cluster.status.clone().expect("a status");
    let events: Vec<&str> = turned(before.as_ref(), &status)
        .into_iter()
        .map(|(condition, _)| condition.type_.as_str())
        .collect();
    assert_eq!(events, ["Progressing", "Degraded"]);
}
