//! Volumes' claims stand in the way of some changes: of those that would lose rows, and of no others.

use super::*;

/// A claim of the role's server, with or without a volume.
fn claim(world: &mut World, name: &str, phase: &str) {
    let spec = if name.contains("tablet") {
        json!({"resources": {"requests": {"storage": "10Gi"}}})
    } else {
        json!({"resources": {"requests": {"storage": "1Gi"}}})
    };
    world.observed.claims.retain(|claim| name_of(claim) != name);
    world.observed.claims.push(read(json!({
        "metadata": {"name": name}, "spec": spec, "status": {"phase": phase},
    })));
}

fn said(world: &World) -> String {
    world.message("Degraded").to_owned()
}

/// Deleted, with its claims retained, and made again with fewer servers: rows would be missing.
#[test]
fn claims_of_a_former_cluster_ask_for_their_servers() {
    let mut world = World::new();
    for ordinal in 0..3 {
        claim(&mut world, &format!("data-demo-tablet-{ordinal}"), "Bound");
    }
    world.change(|cluster| cluster.spec.tablets.replicas = 1);
    assert_eq!(world.step().0, Vec::<String>::new());
    assert_eq!(
        world.condition("Degraded"),
        reason(true, Reason::InvalidSpec)
    );
    let message = said(&world);
    for part in [
        "spec.tablets.replicas: 1 must be at least 3",
        "data-demo-tablet-2",
        "data-demo-tablet-1 on",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
    // Anyone who doesn't need these rows deletes the claims.
    terminate(&mut world.observed.claims[1].metadata);
    world.observed.claims.pop();
    assert!(!world.step().0.is_empty());
    assert_eq!(
        world.condition("Degraded"),
        reason(false, Reason::AsExpected)
    );
    // And anyone who does asks for all of them.
    let mut world = World::new();
    claim(&mut world, "data-demo-tablet-2", "Lost");
    assert!(!world.step().0.is_empty());
}

/// 30 for 3: of the others none has a volume, as the storage gives no more, or no node takes them.
#[test]
fn servers_that_never_had_a_volume_can_be_taken_back() {
    let mut world = World::all_ready();
    world.change(|cluster| cluster.spec.tablets.replicas = 30);
    assert_eq!(world.step().0, ["demo", "demo-tablet"]);
    claim(&mut world, "data-demo-tablet-3", "Bound");
    claim(&mut world, "data-demo-tablet-4", "Pending");
    world.change(|cluster| cluster.spec.tablets.replicas = 3);
    assert_eq!(
        world.step().0,
        ["demo"],
        "the master doesn't say that it has no rows"
    );
    assert_eq!(
        world.condition("Progressing"),
        reason(true, Reason::DrainBlocked)
    );
    assert_eq!(world.cluster.status.as_ref().unwrap().tablets.volumes, 4);
    world.change(|cluster| cluster.spec.tablets.replicas = 4);
    assert_eq!(world.step().0, ["demo", "demo-tablet"]);
    world.ready(Role::Tablet);
    // What it would have had goes, too.
    assert_eq!(world.step().0, ["-data-demo-tablet-4"]);
    assert_eq!(
        world.condition("Progressing"),
        reason(false, Reason::UpToDate)
    );
    assert!(world.condition("Available").0);
}

/// A storage class that doesn't exist, or a size that it can't give: no server ever started.
#[test]
fn claims_that_never_had_a_volume_are_made_anew() {
    for change in [
        (|cluster: &mut ClusterObject| {
            cluster.spec.master.storage.storage_class_name = Some("none".into());
        }) as fn(&mut ClusterObject),
        |cluster| cluster.spec.master.storage.size = Quantity::from_bytes(1 << 50),
    ] {
        let mut world = World::new();
        let good = world.cluster.spec.clone();
        world.change(change);
        assert!(world.step().0.contains(&"demo-master".to_owned()));
        claim(&mut world, "data-demo-master-0", "Pending");
        world.change(|cluster| cluster.spec = good);
        assert_eq!(world.step().0, ["-demo-master"]);
        assert_eq!(
            world.condition("Progressing"),
            reason(true, Reason::ReplacingClaims)
        );
        assert_eq!(world.step().0, ["-data-demo-master-0"]);
        assert_eq!(world.step().0, ["demo-master"]);
        for role in Role::ALL {
            world.ready(role);
            world.step();
        }
        assert_eq!(
            world.condition("Progressing"),
            reason(false, Reason::UpToDate)
        );
        assert!(world.condition("Available").0);
    }
}

/// What the operator remembers of claims may be old: nothing is removed by that.
#[test]
fn a_claim_that_has_a_volume_by_now_stays() {
    let mut world = World::all_ready();
    let mut old = world.observed.clone();
    for claim in &mut old.claims {
        edit(claim, |claim| claim["status"] = json!({"phase": "Pending"}));
    }
    let good = world.cluster.spec.clone();
    world.change(|cluster| cluster.spec.tablets.replicas = 1);
    let written = world.reconcile(&old, &mut usize::MAX.clone()).0;
    assert_eq!(written, ["demo"], "no set, and no claim");
    assert_eq!(
        world.condition("Progressing"),
        reason(true, Reason::DrainBlocked)
    );
    world.change(|cluster| cluster.spec = good);
    world.step();
    world.change(|cluster| {
        cluster.spec.oracle.storage.storage_class_name = Some("other".into());
    });
    let written = world.reconcile(&old, &mut usize::MAX.clone()).0;
    assert_eq!(written, Vec::<String>::new());
    // When it knows better, it says why.
    world.step();
    assert_eq!(
        world.condition("Degraded"),
        reason(true, Reason::InvalidSpec)
    );
}

/// A class that can't expand: the claims still ask for what they have, and so can the spec.
#[test]
fn a_size_that_claims_cannot_have_can_be_taken_back() {
    let mut world = World::all_ready();
    world.change(|cluster| cluster.spec.tablets.storage.size = Quantity::from_bytes(20 << 30));
    let Decision::Do(plan) = decide(&world.cluster, &world.observed, &World::settings()) else {
        panic!("it is for the API server to refuse it");
    };
    assert_eq!(plan.claims.len(), 3);
    let status = world.cluster.status.as_ref().unwrap();
    assert_eq!(status.tablets.claimed, Some(Quantity::from_bytes(10 << 30)));
    world.change(|cluster| cluster.spec.tablets.storage.size = Quantity::from_bytes(10 << 30));
    assert_eq!(world.step().0, Vec::<String>::new());
    assert_eq!(
        world.condition("Progressing"),
        reason(false, Reason::UpToDate)
    );
}

/// By mistake: a claim that is to go stays for as long as its pod does, and the server serves on.
#[test]
fn a_claim_that_is_to_go_keeps_its_statefulset() {
    let mut world = World::all_ready();
    world.change(|cluster| cluster.spec.master.storage.size = Quantity::from_bytes(2 << 30));
    world.step();
    for claim in &mut world.observed.claims {
        if name_of(claim).contains("master") {
            terminate(&mut claim.metadata);
        }
    }
    let written = world.step().0;
    assert!(
        written.iter().all(|name| !name.starts_with('-')),
        "{written:?}"
    );
    assert!(world.condition("Available").0);
}

/// Its server runs on its volume all the same.
#[test]
fn a_claim_that_lost_its_labels_keeps_its_statefulset() {
    for (role, class) in [(Role::Master, None), (Role::Oracle, Some("fast"))] {
        let mut world = World::all_ready();
        let lost = format!("data-{}-0", role.set("demo"));
        world.observed.claims.retain(|claim| name_of(claim) != lost);
        world.change(|cluster| {
            let storage = match role {
                Role::Oracle => &mut cluster.spec.oracle.storage,
                _ => &mut cluster.spec.master.storage,
            };
            storage.size = Quantity::from_bytes(2 << 30);
            storage.storage_class_name = class.map(str::to_owned);
        });
        for _ in 0..3 {
            let written = world.step().0;
            let gone = written.iter().find(|name| name.starts_with('-'));
            assert_eq!(gone, None, "{written:?}");
        }
    }
}

/// It waits for its first pod, as its class says: what it is made of is there already.
#[test]
fn a_claim_that_is_made_of_a_snapshot_is_taken_up() {
    for field in ["dataSource", "dataSourceRef"] {
        let mut world = World::new();
        claim(&mut world, "data-demo-tablet-3", "Pending");
        let restored = world.observed.claims.last_mut().expect("a claim");
        edit(restored, |claim| {
            claim["spec"][field] = json!({"kind": "VolumeSnapshot", "name": "a"});
        });
        world.step();
        let message = said(&world);
        assert!(message.contains("3 must be at least 4"), "{message}");
        world.change(|cluster| cluster.spec.tablets.replicas = 4);
        for role in Role::ALL {
            let written = world.step().0;
            assert!(
                written.iter().all(|name| !name.starts_with('-')),
                "{written:?}"
            );
            world.ready(role);
        }
    }
}

/// As by anyone who watches how full volumes are: that the spec asks for less is no reason to leave the cluster alone.
#[test]
fn a_claim_that_somebody_else_grew_is_left_as_it_is() {
    let mut world = World::all_ready();
    for claim in &mut world.observed.claims {
        edit(claim, |claim| {
            claim["spec"]["resources"]["requests"]["storage"] = json!("20Gi");
            claim["status"]["capacity"] = json!({"storage": "20Gi"});
        });
    }
    assert_eq!(world.step().0, Vec::<String>::new());
    assert_eq!(
        world.condition("Degraded"),
        reason(false, Reason::AsExpected)
    );
    world.change(|cluster| cluster.spec.tablets.replicas = 4);
    assert_eq!(world.step().0, ["demo", "demo-tablet"]);
    // What was asked for before is no less for it: the first time, and each other.
    let mut size = |gibibytes: u64| {
        let size = Quantity::from_bytes(gibibytes << 30);
        world.change(|cluster| cluster.spec.tablets.storage.size = size);
        world.step();
        said(&world)
    };
    assert!(size(5).contains("must be at least 20Gi"));
    assert!(!size(20).contains("must be at least"));
    assert!(size(15).contains("must be at least 20Gi"));
}
