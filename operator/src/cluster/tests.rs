//! Reconciles without an API server: a world in its place.

mod admission;
mod claims;
mod growing;
mod images;
mod interrupted;
mod kstatus;
mod masters;
mod monitoring;
mod observers;
mod oracles;
mod others;
mod proxies;
mod repair;
mod revisions;
mod scale_in;
mod troubles;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use percolator_api::{ClusterObject, Quantity, Reason, Status};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::build::tests::{EXAMPLE, cluster};
use super::*;

/// An object of one of Kubernetes' types.
pub(super) fn read<K: DeserializeOwned>(object: Value) -> K {
    serde_json::from_value(object).expect("an object of the type")
}

/// Changes an object as JSON.
fn edit<K: Serialize + DeserializeOwned>(object: &mut K, change: impl FnOnce(&mut Value)) {
    let mut value = json!(object);
    change(&mut value);
    *object = read(value);
}

/// The object is being removed.
fn terminate(metadata: &mut ObjectMeta) {
    metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
}

const SETTINGS_IMAGE: &str = "percolator:test";

/// What there is, and what StatefulSets made of it.
struct World {
    cluster: ClusterObject,
    observed: Observed,
    /// What the API server has refused last.
    refused: Vec<Refusal>,
    /// What admission makes of objects.
    admission: fn(&mut Value),
    /// The tablet servers that the master knows, if it answers.
    master: Option<BTreeMap<u32, TabletServer>>,
    /// No server has room for the tablets of others.
    is_full: bool,
    now: i64,
}

impl World {
    fn new() -> Self {
        Self {
            cluster: cluster(EXAMPLE),
            observed: Observed::default(),
            refused: Vec::new(),
            admission: |_| {},
            master: None,
            is_full: false,
            now: 1_000,
        }
    }

    fn settings() -> Settings {
        Settings {
            image: SETTINGS_IMAGE.into(),
            unschedulable_timeout_seconds: 300,
            rolls_max: 10,
        }
    }

    /// One reconcile; gives the names of what it applied, and whether it wrote a status.
    fn step(&mut self) -> (Vec<String>, bool) {
        let seen = self.observed.clone();
        self.reconcile(&seen, &mut usize::MAX.clone())
    }

    /// One reconcile by what the operator sees, which may be old. When no writes are left, the operator is
    /// killed.
    fn reconcile(&mut self, seen: &Observed, writes: &mut usize) -> (Vec<String>, bool) {
        self.now += 1;
        let mut seen = seen.clone();
        seen.remember(self.observed.altered.clone());
        self.observed.altered.clone_from(&seen.altered);
        seen.pods = seen.own_pods(&self.cluster, seen.pods.clone());
        if wants_fresh_lists(&self.cluster, &seen, &Self::settings()) {
            seen.pods = seen.own_pods(&self.cluster, self.observed.pods.clone());
            seen.claims.clone_from(&self.observed.claims);
        }
        self.ask_master(&mut seen);
        let decision = decide(&self.cluster, &seen, &Self::settings());
        let mut applied = Vec::new();
        let mut may_write = || {
            let may = *writes > 0;
            *writes = writes.saturating_sub(1);
            may
        };
        if records_first(&self.cluster, decision.plan()) {
            let status = self.status_of(&decision);
            if !may_write() {
                return (applied, false);
            }
            self.cluster.status = Some(status);
        }
        let plan = decision.plan();
        if !self.cluster.spec.paused {
            if !self.drain(plan, &mut may_write) {
                return (applied, false);
            }
            for object in &plan.apply {
                if !may_write() {
                    return (applied, false);
                }
                applied.push(object.name.clone());
                self.apply(object);
            }
            for (name, change) in &plan.claims {
                if !may_write() {
                    return (applied, false);
                }
                applied.push(name.clone());
                let claims = &mut self.observed.claims;
                let claim = claims.iter_mut().find(|claim| name_of(&**claim) == name);
                edit(claim.expect("a claim that is there"), |claim| {
                    percolator_api::merge(claim, change);
                    (self.admission)(claim);
                });
            }
            for key in &plan.remove {
                if !may_write() {
                    return (applied, false);
                }
                applied.push(format!("-{}", key.1));
                self.observed.objects.remove(key);
            }
            for name in &plan.release {
                if !may_write() {
                    return (applied, false);
                }
                applied.push(format!("-{name}"));
                let claims = &mut self.observed.claims;
                claims.retain(|claim| name_of(claim) != name);
            }
        }
        let status = self.status_of(&decision);
        let is_new = self.cluster.status.as_ref() != Some(&status);
        if is_new && may_write() {
            self.cluster.status = Some(status);
        }
        (applied, is_new)
    }

    fn status_of(&self, decision: &Decision) -> Status {
        let now = Timestamp::from_second(self.now).unwrap();
        let settings = Self::settings();
        let mut observed = self.observed.clone();
        observed.pods = observed.own_pods(&self.cluster, observed.pods.clone());
        status_after(
            &self.cluster,
            &observed,
            &settings,
            decision,
            &self.refused,
            now,
        )
    }

    fn apply(&mut self, object: &Object) {
        let key = (object.kind, object.name.clone());
        let old = self.observed.objects.get(&key);
        let mut live = object.value.clone();
        (self.admission)(&mut live);
        live["metadata"]["uid"] = json!(format!("uid of {}", object.name));
        let mut generation = 1;
        if let Some(old) = old {
            live["status"] = old["status"].clone();
            live["metadata"]["generation"] = old["metadata"]["generation"].clone();
            let is_change = i64::from(live["spec"] != old["spec"]);
            generation = old["metadata"]["generation"].as_i64().unwrap() + is_change;
        }
        live["metadata"]["generation"] = json!(generation);
        self.observed.note_applied(object, live);
    }

    /// A pod is as this says.
    fn pod(&mut self, name: &str, status: Value) {
        self.observed.pods.retain(|pod| name_of(pod) != name);
        let spec = json!({"nodeName": "node-1"});
        let set = name.rsplit_once('-').map_or(name, |(set, _)| set);
        let owner = json!({"controller": true, "uid": format!("uid of {set}")});
        let metadata = json!({"name": name, "ownerReferences": [owner]});
        let pod = json!({"metadata": metadata, "spec": spec, "status": status});
        self.observed.pods.push(read(pod));
    }

    /// A pod serves, or not any more.
    fn serves(&mut self, name: &str, serves: bool) {
        let serves = if serves { "True" } else { "False" };
        self.pod(
            name,
            json!({"conditions": [{"type": "Ready", "status": serves}], "podIP": "10.0.0.1"}),
        );
    }

    /// The role's StatefulSet has made its pods, and all of them serve.
    fn ready(&mut self, role: Role) {
        let key = (Kind::StatefulSet, role.set("demo"));
        let set = self.observed.objects.get_mut(&key).expect("a set");
        let replicas = set["spec"]["replicas"].clone();
        set["status"] = json!({
            "observedGeneration": set["metadata"]["generation"],
            "replicas": replicas,
            "readyReplicas": replicas,
            "updatedReplicas": replicas,
        });
        let size = set
            .pointer("/spec/volumeClaimTemplates/0/spec/resources/requests/storage")
            .cloned();
        for ordinal in 0..replicas.as_i64().unwrap() {
            self.serves(&format!("{}-{ordinal}", role.set("demo")), true);
            let name = format!("data-{}-{ordinal}", role.set("demo"));
            let claims = &mut self.observed.claims;
            if !claims.iter().any(|claim| name_of(claim) == name) {
                claims.push(read(json!({
                    "metadata": {"name": name},
                    "spec": {"resources": {"requests": {"storage": size}}},
                    "status": {"phase": "Bound", "capacity": {"storage": size}},
                })));
            }
        }
    }

    fn all_ready() -> Self {
        let mut world = Self::new();
        world.roll_out();
        world
    }

    /// What is asked for is applied, role by role, and serves.
    fn roll_out(&mut self) {
        for role in Role::ALL {
            self.step();
            self.ready(role);
        }
        self.step();
    }

    fn change(&mut self, change: impl FnOnce(&mut ClusterObject)) {
        change(&mut self.cluster);
        *self.cluster.metadata.generation.as_mut().unwrap() += 1;
    }

    fn condition(&self, kind: &str) -> (bool, String) {
        let condition = self.condition_of(kind);
        (condition.status == "True", condition.reason.clone())
    }

    fn message(&self, kind: &str) -> &str {
        &self.condition_of(kind).message
    }

    fn condition_of(&self, kind: &str) -> &Condition {
        let status = self.cluster.status.as_ref().expect("a status");
        let condition = status.conditions.iter().find(|found| found.type_ == kind);
        condition.expect("every condition is there")
    }
}

fn reason(is_true: bool, reason: Reason) -> (bool, String) {
    (is_true, reason.name())
}

#[test]
fn servers_start_one_role_after_the_other() {
    let mut world = World::new();
    let (applied, _) = world.step();
    assert_eq!(
        applied,
        [
            "demo",
            "demo",
            "demo",
            "demo-master",
            "demo-tso",
            "demo-tablet",
            "demo-master",
            "demo-tso",
            "demo-tablet",
            "demo-master",
        ]
    );
    assert_eq!(
        world.condition("Available"),
        reason(false, Reason::ServersNotReady)
    );
    assert_eq!(
        world.condition("Progressing"),
        reason(true, Reason::WaitingForMaster)
    );
    assert_eq!(world.step(), (vec![], false));
    world.ready(Role::Master);
    assert_eq!(world.step().0, ["demo-tso"]);
    assert_eq!(
        world.condition("Progressing"),
        reason(true, Reason::WaitingForOracle)
    );
    world.ready(Role::Oracle);
    // No master without state may begin a new cluster any more.
    assert_eq!(world.step().0, ["demo", "demo-tablet"]);
    assert_eq!(
        world.condition("Progressing"),
        reason(true, Reason::WaitingForTablets)
    );
    world.ready(Role::Tablet);
    assert_eq!(world.step(), (vec![], true));
    assert_eq!(
        world.condition("Available"),
        reason(true, Reason::AllServersReady)
    );
    assert_eq!(
        world.condition("Progressing"),
        reason(false, Reason::UpToDate)
    );
    assert_eq!(
        world.condition("Degraded"),
        reason(false, Reason::AsExpected)
    );
    // And then nothing is written any more, however late it is.
    world.now += 1_000_000;
    assert_eq!(world.step(), (vec![], false));
}

#[test]
fn a_new_image_goes_from_role_to_role() {
    let mut world = World::all_ready();
    world.change(|cluster| cluster.spec.image = Some("percolator:2".into()));
    for role in Role::ALL {
        assert_eq!(world.step().0, [role.set("demo")]);
        assert_eq!(world.step().0, Vec::<String>::new());
        assert!(world.condition("Progressing").0);
        world.ready(role);
    }
    assert_eq!(world.step().0, Vec::<String>::new());
    assert_eq!(
        world.condition("Progressing"),
        reason(false, Reason::UpToDate)
    );
}

#[test]
fn that_claims_stay_is_asked_of_every_role_at_once() {
    let mut world = World::all_ready();
    let master = (Kind::StatefulSet, Role::Master.set("demo"));
    let master = world.observed.objects.get_mut(&master).expect("a set");
    master["status"]["readyReplicas"] = json!(0);
    world.change(|cluster| {
        cluster.spec.claims.when_deleted = percolator_api::ClaimRetention::Delete
    });
    let sets = Role::ALL.map(|role| role.set("demo"));
    assert_eq!(world.step().0, sets);
    // What restarts servers goes one role after the other, with it or without.
    world.change(|cluster| {
        cluster.spec.claims.when_deleted = percolator_api::ClaimRetention::Retain;
        cluster.spec.image = Some("percolator:other".into());
    });
    assert_eq!(world.step().0, sets[..1]);
}

#[test]
fn a_bad_image_stops_at_the_first_role_and_a_good_one_recovers() {
    let mut world = World::all_ready();
    world.change(|cluster| cluster.spec.image = Some("percolator:none".into()));
    assert_eq!(world.step().0, ["demo-master"]);
    world.pod(
        "demo-master-0",
        json!({"containerStatuses": [
            {"image": "percolator:none", "state": {"waiting": {"reason": "ErrImageNeverPull"}}}
        ]}),
    );
    world.step();
    assert_eq!(
        world.condition("Degraded"),
        reason(true, Reason::ImageUnavailable)
    );
    world.change(|cluster| cluster.spec.image = None);
    assert_eq!(world.step().0, ["demo-master"]);
    world.ready(Role::Master);
    assert_eq!(world.step().0, Vec::<String>::new());
    assert_eq!(
        world.condition("Degraded"),
        reason(false, Reason::AsExpected)
    );
    assert_eq!(
        world.condition("Available"),
        reason(true, Reason::AllServersReady)
    );
}

#[test]
fn a_bad_spec_changes_nothing_and_says_why() {
    let mut world = World::all_ready();
    for change in [
        (|cluster| cluster.spec.tablets.storage.size = Quantity::from_bytes(1 << 30))
            as fn(&mut ClusterObject),
        |cluster| cluster.spec.tablets.storage.engine = percolator_api::Engine::Sled,
        |cluster| cluster.spec.oracle.replicas = 4,
    ] {
        let good = world.cluster.spec.clone();
        world.change(change);
        assert_eq!(world.step().0, Vec::<String>::new());
        assert_eq!(
            world.condition("Degraded"),
            reason(true, Reason::InvalidSpec)
        );
        assert!(world.condition("Available").0);
        world.change(|cluster| cluster.spec = good);
        assert_eq!(world.step().0, Vec::<String>::new());
        assert_eq!(
            world.condition("Degraded"),
            reason(false, Reason::AsExpected)
        );
    }
}

#[test]
fn a_paused_cluster_is_left_alone() {
    let mut world = World::all_ready();
    world.change(|cluster| {
        cluster.spec.paused = true;
        cluster.spec.tablets.replicas = 4;
    });
    assert_eq!(world.step().0, Vec::<String>::new());
    assert_eq!(
        world.condition("Paused"),
        reason(true, Reason::PausedBySpec)
    );
    assert_eq!(
        world.condition("Progressing"),
        reason(false, Reason::PausedBySpec)
    );
    assert!(
        world.condition("Available").0,
        "nobody waits for a server that isn't to be made"
    );
    world.change(|cluster| cluster.spec.paused = false);
    assert_eq!(world.step().0, ["demo", "demo-tablet"]);
}

#[test]
fn servers_that_are_added_count_when_they_have_served() {
    let mut world = World::all_ready();
    world.change(|cluster| cluster.spec.tablets.replicas = 5);
    assert_eq!(world.step().0, ["demo", "demo-tablet"]);
    let available = |world: &mut World| {
        world.step();
        world.condition("Available").0
    };
    assert!(available(&mut world), "none of the new ones holds a row");
    world.serves("demo-tablet-1", false);
    assert!(!available(&mut world), "an old one does");
    world.serves("demo-tablet-1", true);
    assert!(available(&mut world));
    world.serves("demo-tablet-3", true);
    assert!(available(&mut world));
    assert_eq!(world.cluster.status.as_ref().unwrap().tablets.joined, 4);
    world.serves("demo-tablet-3", false);
    assert!(!available(&mut world), "it may hold rows since it served");
    world.ready(Role::Tablet);
    assert!(available(&mut world));
    assert_eq!(world.cluster.status.as_ref().unwrap().tablets.joined, 5);
}

#[test]
fn claims_that_are_there_get_labels_and_attributes() {
    let mut world = World::all_ready();
    world.change(|cluster| {
        let claim = &mut cluster.spec.tablets.storage.claim;
        claim.labels.insert("backup".into(), "daily".into());
        claim
            .annotations
            .insert("example.com/snapshot".into(), "true".into());
        claim.volume_attributes_class_name = Some("fast".into());
    });
    let (applied, _) = world.step();
    assert_eq!(
        applied,
        [
            "data-demo-tablet-0",
            "data-demo-tablet-1",
            "data-demo-tablet-2"
        ]
    );
    for claim in &world.observed.claims {
        let is_of_tablets = name_of(claim).contains("tablet");
        let claim = json!(claim);
        assert_eq!(
            claim["metadata"]["labels"]["backup"] == "daily",
            is_of_tablets
        );
        let annotation = &claim["metadata"]["annotations"]["example.com/snapshot"];
        assert_eq!(annotation == "true", is_of_tablets);
        assert_eq!(
            claim["spec"]["volumeAttributesClassName"] == "fast",
            is_of_tablets
        );
    }
    assert_eq!(world.step().0, Vec::<String>::new());
}

#[test]
fn volumes_grow_and_what_sets_make_stays_as_it_is() {
    let mut world = World::all_ready();
    let spec = |world: &World| {
        let set = world.observed.get(Kind::StatefulSet, "demo-tablet");
        set.expect("a set")["spec"].clone()
    };
    let before = spec(&world);
    world.change(|cluster| cluster.spec.tablets.storage.size = Quantity::from_bytes(11 << 30));
    let (applied, _) = world.step();
    assert_eq!(spec(&world), before);
    assert_eq!(
        applied,
        [
            // It keeps what was asked for.
            "demo-tablet",
            "data-demo-tablet-0",
            "data-demo-tablet-1",
            "data-demo-tablet-2"
        ]
    );
    world.ready(Role::Tablet);
    world.step();
    assert_eq!(
        world.condition("Progressing"),
        reason(true, Reason::GrowingVolumes)
    );
    for claim in &mut world.observed.claims {
        edit(claim, |claim| {
            claim["status"]["capacity"]["storage"] = json!("11Gi");
        });
    }
    assert_eq!(world.step().0, Vec::<String>::new());
    assert_eq!(
        world.condition("Progressing"),
        reason(false, Reason::UpToDate)
    );
}

#[test]
fn what_is_not_asked_for_any_more_is_removed_when_nobody_needs_it() {
    let mut world = World::all_ready();
    world.change(|cluster| {
        let spec = &mut cluster.spec;
        for pod in [
            &mut spec.master.pod,
            &mut spec.oracle.pod,
            &mut spec.tablets.pod,
        ] {
            pod.service_account_name = Some("own".into());
        }
    });
    for role in Role::ALL {
        // A pod that is made again before its role's turn has come still asks for it.
        assert_eq!(world.step().0, [role.set("demo")]);
        assert!(world.observed.get(Kind::ServiceAccount, "demo").is_some());
        world.ready(role);
    }
    assert_eq!(world.step().0, ["-demo"]);
    assert!(world.observed.get(Kind::ServiceAccount, "demo").is_none());
    assert_eq!(world.step(), (vec![], false));
}

#[test]
fn what_others_change_is_changed_back() {
    let mut world = World::all_ready();
    let key = (Kind::StatefulSet, "demo-tablet".to_owned());
    let set = world.observed.objects.get_mut(&key).unwrap();
    set["spec"]["replicas"] = json!(1);
    assert_eq!(world.step().0, ["demo-tablet"]);
    assert_eq!(world.observed.objects[&key]["spec"]["replicas"], 3);
}
