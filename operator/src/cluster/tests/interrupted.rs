//! An operator that is killed at every one of its writes, while a cluster is made and changed; and one whose lists of
//! pods and claims are old. What there is in the end is the same, and on the way one role changes at a time.

use std::collections::VecDeque;

use super::*;

/// What happens to the cluster's spec, one after the other.
const CHANGES: [fn(&mut ClusterObject); 8] = [
    |_| {},
    |cluster| cluster.spec.tablets.replicas = 5,
    |cluster| cluster.spec.image = Some("percolator:2".into()),
    |cluster| cluster.spec.oracle.replicas = 3,
    |cluster| cluster.spec.tablets.storage.size = Quantity::from_bytes(11 << 30),
    |cluster| {
        let spec = &mut cluster.spec;
        spec.service.labels.insert("team".into(), "a".into());
        spec.image = None;
        for pod in [
            &mut spec.master.pod,
            &mut spec.oracle.pod,
            &mut spec.tablets.pod,
        ] {
            pod.service_account_name = Some("mine".into());
        }
    },
    |cluster| {
        cluster.spec.service.labels.clear();
        cluster.spec.oracle.pod.service_account_name = None;
    },
    |cluster| cluster.spec.oracle.replicas = 1,
];

/// Reconciles that each change is done within, whatever happens.
const RECONCILES_MAX: usize = 60;

fn unsettled(world: &World) -> Vec<Role> {
    let sets = Role::ALL.into_iter();
    sets.filter(|role| {
        let set = world.observed.set("demo", *role);
        set.is_some_and(|set| !observed::is_settled(set))
    })
    .collect()
}

/// Kubernetes does its part: the pods of what was applied serve, and volumes have what they ask for.
fn kubernetes(world: &mut World) {
    for role in unsettled(world) {
        world.ready(role);
        // The first oracle with a register gives it a value before it serves.
        let is_empty = |register: &mut Value| register["binaryData"].is_null();
        if role == Role::Oracle && world.register().is_some_and(is_empty) {
            let set = world.observed.set("demo", Role::Oracle).expect("a set");
            assert_eq!(
                set["spec"]["replicas"], 1,
                "before the register has a value"
            );
            world.leads(0, 1);
        }
    }
    for claim in &mut world.observed.claims {
        edit(claim, |claim| {
            let asked = claim["spec"]["resources"]["requests"]["storage"].clone();
            claim["status"]["capacity"]["storage"] = asked;
        });
    }
}

/// Goes through all changes. The operator is killed at the write of number `killed_at`, and every `again_after` writes
/// from then on; it sees pods and claims as they were `lag` reconciles ago. Gives the world in the end, and how many writes
/// that took.
fn through(killed_at: usize, again_after: usize, lag: usize) -> (World, usize) {
    let mut world = World::new();
    let mut left = killed_at;
    let mut written = 0;
    let mut before: VecDeque<Observed> = VecDeque::new();
    for change in CHANGES {
        world.change(change);
        let mut quiet = 0;
        for reconcile in 0.. {
            assert!(
                reconcile < RECONCILES_MAX,
                "killed at {killed_at}, lag {lag}: no end"
            );
            before.push_back(world.observed.clone());
            if before.len() > lag + 1 {
                before.pop_front();
            }
            let mut seen = world.observed.clone();
            if let Some(old) = before.front() {
                seen.pods.clone_from(&old.pods);
                seen.claims.clone_from(&old.claims);
            }
            let had = left;
            let (applied, wrote_status) = world.reconcile(&seen, &mut left);
            written += had - left;
            if left == 0 {
                left = again_after;
            }
            let changing = unsettled(&world);
            assert!(changing.len() <= 1, "at a time: {changing:?}");
            kubernetes(&mut world);
            // As many reconciles without a write as what is seen may be old.
            let is_quiet =
                applied.is_empty() && !wrote_status && changing.is_empty() && had == left;
            quiet = if is_quiet { quiet + 1 } else { 0 };
            if quiet > lag + 1 {
                break;
            }
        }
        assert_eq!(
            world.condition("Progressing"),
            reason(false, Reason::UpToDate),
            "killed at {killed_at}, lag {lag}"
        );
        assert!(world.condition("Available").0);
    }
    (world, written)
}

/// What was asked for, without what counts how often.
fn objects(world: &World) -> Vec<(Kind, String, Value)> {
    let objects = world.observed.objects.iter();
    objects
        .map(|((kind, name), object)| {
            let mut object = object.clone();
            object["metadata"]["generation"] = Value::Null;
            object["status"] = Value::Null;
            (*kind, name.clone(), object)
        })
        .collect()
}

#[test]
fn an_operator_that_is_killed_at_any_write_is_followed_by_one_that_goes_on() {
    let (undisturbed, writes) = through(usize::MAX, usize::MAX, 0);
    assert!(writes > 30, "{writes} writes");
    for killed_at in 1..=writes {
        for again_after in [1, 3, usize::MAX] {
            let (world, _) = through(killed_at, again_after, 0);
            assert_eq!(objects(&world), objects(&undisturbed), "at {killed_at}");
            assert_eq!(world.observed.claims, undisturbed.observed.claims);
        }
    }
}

#[test]
fn old_lists_of_pods_and_claims_lead_to_the_same_end() {
    let (undisturbed, writes) = through(usize::MAX, usize::MAX, 0);
    for lag in 1..=4 {
        for killed_at in [usize::MAX, writes / 3, writes / 2] {
            let (world, _) = through(killed_at, usize::MAX, lag);
            assert_eq!(objects(&world), objects(&undisturbed), "lag {lag}");
            assert_eq!(world.observed.claims, undisturbed.observed.claims);
        }
    }
}
