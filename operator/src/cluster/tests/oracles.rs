//! One oracle, and several that share a register.

use k8s_openapi::ByteString;
use percolator_api::{ClaimRetention, Leader};
use percolator_protocol::election::{Leadership, Member, SwapName};
use percolator_protocol::types::Timestamp as OracleTimestamp;
use percolator_register::{StoredRecord, WriteId};

use super::*;

const REGISTER: &str = "demo-tso-register";

impl World {
    fn with_oracles(replicas: u32) -> Self {
        let mut world = Self::new();
        world.cluster.spec.oracle.replicas = replicas;
        world
    }

    pub(super) fn register(&mut self) -> Option<&mut Value> {
        let key = (Kind::ConfigMap, REGISTER.to_owned());
        self.observed.objects.get_mut(&key)
    }

    /// The oracle with this number has stored that it leads.
    pub(super) fn leads(&mut self, number: u32, term: u64) {
        let value = leadership(&format!("demo-tso-{number}"), term);
        let register = self.register().expect("the register is there");
        register["binaryData"] = value;
    }

    /// All roles serve, and the first oracle leads if there are several.
    fn with_oracles_ready(replicas: u32) -> Self {
        let mut world = Self::with_oracles(replicas);
        for role in Role::ALL {
            world.step();
            world.ready(role);
            if role == Role::Oracle && world.register().is_some() {
                world.leads(0, 1);
            }
        }
        world.step();
        assert_eq!(world.step(), (vec![], false));
        world
    }

    fn oracles(&self) -> &Value {
        let set = self.observed.set("demo", Role::Oracle);
        &set.expect("a set")["spec"]
    }

    pub(super) fn has(&self, kind: Kind, name: &str) -> bool {
        self.observed.get(kind, name).is_some()
    }

    fn leader(&self) -> Option<Leader> {
        self.cluster.status.as_ref()?.oracle.leader.clone()
    }
}

/// The data of a ConfigMap in which a server has stored that it leads.
pub(super) fn leadership(server: &str, term: u64) -> Value {
    let value = Leadership {
        term,
        limit: OracleTimestamp::from_millis(1_000),
        register: 7,
        holder: Some(Member {
            name: server.to_owned(),
            address: "10.0.0.1:7400".into(),
            incarnation: 5,
            replica: 6,
        }),
        promisers: Vec::new(),
        swap: SwapName {
            incarnation: 5,
            sequence: 1,
        },
    };
    let record = StoredRecord::encode(WriteId([1; 16]), &[&value.encode()]);
    json!({"register": ByteString(record)})
}

pub(super) fn arguments(set: &Value) -> String {
    set["template"]["spec"]["containers"][0]["args"].to_string()
}

#[test]
fn an_oracle_that_is_alone_needs_no_api_server() {
    let world = World::with_oracles_ready(1);
    let pod = &world.oracles()["template"]["spec"];
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert_eq!(pod["serviceAccountName"], "demo");
    assert!(!arguments(world.oracles()).contains("--register"));
    for (kind, name) in [
        (Kind::ConfigMap, REGISTER),
        (Kind::Role, "demo-tso"),
        (Kind::RoleBinding, "demo-tso"),
        (Kind::ServiceAccount, "demo-tso"),
    ] {
        assert!(!world.has(kind, name), "{kind:?}");
    }
    assert_eq!(world.leader(), None);
}

#[test]
fn several_oracles_of_a_new_cluster_start_at_once() {
    let mut world = World::with_oracles(3);
    world.step();
    world.ready(Role::Master);
    world.step();
    assert_eq!(world.oracles()["replicas"], 3);
    let pod = &world.oracles()["template"]["spec"];
    assert_eq!(pod["automountServiceAccountToken"], true);
    assert_eq!(pod["serviceAccountName"], "demo-tso");
    let arguments = arguments(world.oracles());
    assert!(arguments.contains("--register=kube:demo-tso-register"));
    assert!(arguments.contains("--advertise=$(POD_IP)"));
    let role = world.observed.get(Kind::Role, "demo-tso").expect("a role");
    let rule = json!([{
        "apiGroups": [""], "resources": ["configmaps"], "resourceNames": [REGISTER], "verbs": ["get", "patch"],
    }]);
    assert_eq!(role["rules"], rule);
    // Volumes are there before the register has a value: nobody is sent away for that.
    world.ready(Role::Oracle);
    assert_eq!(world.step().0, ["demo", "demo-tablet"]);
    assert_eq!(world.oracles()["replicas"], 3);
}

#[test]
fn an_oracle_that_was_alone_begins_the_register_before_another_one_joins() {
    let mut world = World::with_oracles_ready(1);
    world.change(|cluster| cluster.spec.oracle.replicas = 2);
    assert_eq!(
        world.step().0,
        [
            "demo-tso", REGISTER, "demo-tso", "demo-tso", "demo", "demo-tso"
        ]
    );
    assert_eq!(world.oracles()["replicas"], 1);
    assert!(arguments(world.oracles()).contains("--register"));
    // However long it takes, and also where the spec asks for more meanwhile.
    world.change(|cluster| cluster.spec.oracle.replicas = 3);
    // The manifest alone says how many there are to be.
    assert_eq!(world.step().0, ["demo"]);
    world.ready(Role::Oracle);
    world.leads(0, 1);
    assert_eq!(world.step().0, ["demo-tso"]);
    assert_eq!(world.oracles()["replicas"], 3);
    assert_eq!(
        world.condition("Progressing"),
        reason(true, Reason::WaitingForOracle)
    );
    world.ready(Role::Oracle);
    world.step();
    assert_eq!(
        world.condition("Progressing"),
        reason(false, Reason::UpToDate)
    );
}

/// As of a cluster that was deleted, and is made again with more oracles than it had.
#[test]
fn an_oracle_with_a_volume_begins_the_register_alone_also_without_its_set() {
    let mut world = World::with_oracles_ready(1);
    world.observed.objects.clear();
    world.observed.pods.clear();
    world.cluster.status = None;
    world.change(|cluster| cluster.spec.oracle.replicas = 2);
    world.step();
    world.ready(Role::Master);
    world.step();
    assert_eq!(world.oracles()["replicas"], 1);
    assert!(arguments(world.oracles()).contains("--register"));
}

#[test]
fn a_cluster_that_has_a_register_keeps_it() {
    let mut world = World::with_oracles_ready(2);
    world.leads(0, 4);
    let before = world.register().expect("a register").clone();
    let template = world.oracles()["template"].clone();
    let keep = |world: &mut World| {
        world.step();
        assert_eq!(world.register(), Some(&mut before.clone()));
        assert_eq!(world.oracles()["template"], template);
    };
    for replicas in [1, 3, 2, 1] {
        world.change(|cluster| cluster.spec.oracle.replicas = replicas);
        keep(&mut world);
        assert_eq!(world.oracles()["replicas"], replicas);
        world.ready(Role::Oracle);
        keep(&mut world);
    }
    world.change(|cluster| cluster.spec.paused = true);
    keep(&mut world);
    // What is refused changes nothing.
    world.change(|cluster| {
        cluster.spec.paused = false;
        cluster.spec.oracle.replicas = 4;
    });
    keep(&mut world);
    assert_eq!(
        world.condition("Degraded"),
        reason(true, Reason::InvalidSpec)
    );
    // Also where somebody has removed it: without it, one oracle alone would go on from nowhere.
    world.change(|cluster| cluster.spec.oracle.replicas = 1);
    let key = (Kind::ConfigMap, REGISTER.to_owned());
    world.observed.objects.remove(&key);
    assert_eq!(world.step().0, [REGISTER]);
    assert_eq!(world.oracles()["template"], template);
    assert_eq!(world.register().unwrap()["binaryData"], Value::Null);
}

/// Objects that the cluster owns go with it.
#[test]
fn the_register_goes_with_the_cluster_only_where_the_volumes_do() {
    let mut world = World::with_oracles_ready(2);
    let owners = |world: &mut World| {
        let register = world.register().expect("a register");
        register["metadata"]["ownerReferences"].clone()
    };
    assert_eq!(owners(&mut world), Value::Null);
    world.change(|cluster| cluster.spec.claims.when_deleted = ClaimRetention::Delete);
    world.step();
    let uid = json!(world.cluster.metadata.uid);
    assert_eq!(owners(&mut world)[0]["uid"], uid);
    world.change(|cluster| cluster.spec.claims.when_deleted = ClaimRetention::Retain);
    assert!(world.step().0.contains(&REGISTER.to_owned()));
    assert_eq!(owners(&mut world), Value::Null);
}

#[test]
fn the_register_of_a_former_cluster_is_taken_up_with_its_volumes() {
    let mut world = World::with_oracles_ready(2);
    world.leads(1, 9);
    let key = (Kind::ConfigMap, REGISTER.to_owned());
    world.observed.objects.retain(|other, _| *other == key);
    world.observed.pods.clear();
    world.cluster.status = None;
    world.cluster.metadata.uid = Some("another".into());
    // Also by one that asks for a single oracle.
    world.change(|cluster| cluster.spec.oracle.replicas = 1);
    let before = world.register().expect("a register")["binaryData"].clone();
    world.step();
    world.ready(Role::Master);
    world.step();
    assert!(arguments(world.oracles()).contains("--register"));
    assert_eq!(world.oracles()["replicas"], 1);
    assert_eq!(world.register().unwrap()["binaryData"], before);
}

#[test]
fn a_config_map_of_somebody_else_is_no_register() {
    let mut world = World::with_oracles_ready(1);
    let key = (Kind::ConfigMap, REGISTER.to_owned());
    let foreign = json!({"metadata": {"name": REGISTER}, "data": {"a": "b"}});
    world.observed.objects.insert(key, foreign.clone());
    assert_eq!(world.step(), (vec![], false));
    world.change(|cluster| cluster.spec.oracle.replicas = 2);
    assert_eq!(world.step().0, Vec::<String>::new());
    assert_eq!(
        world.condition("Degraded"),
        reason(true, Reason::ObjectConflict)
    );
    assert_eq!(world.register(), Some(&mut foreign.clone()));
}

#[test]
fn the_right_to_the_register_is_of_the_account_that_the_spec_names_and_of_pods_that_are_there() {
    let mut world = World::with_oracles_ready(2);
    let subjects = |world: &World| {
        let binding = world.observed.get(Kind::RoleBinding, "demo-tso");
        let subjects = &binding.expect("a binding")["subjects"];
        let subjects = subjects.as_array().expect("subjects").iter();
        subjects
            .map(|subject| subject["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(subjects(&world), ["demo-tso"]);
    let template = world.oracles()["template"].clone();
    let pod = |account: &str| {
        let mut pod = template.clone();
        pod["metadata"]["name"] = json!("demo-tso-0");
        pod["spec"]["serviceAccountName"] = json!(account);
        pod["spec"]["nodeName"] = json!("node-1");
        let owner = json!({"controller": true, "uid": "uid of demo-tso"});
        pod["metadata"]["ownerReferences"] = json!([owner]);
        pod["status"] = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        pod
    };
    let replace = |world: &mut World, account: &str| {
        let pods = &mut world.observed.pods;
        pods.retain(|pod| name_of(pod) != "demo-tso-0");
        pods.push(read(pod(account)));
    };
    replace(&mut world, "demo-tso");
    world.change(|cluster| cluster.spec.oracle.pod.service_account_name = Some("own".into()));
    world.step();
    // The leader goes on until its pod is another one.
    assert_eq!(subjects(&world), ["demo-tso", "own"]);
    world.ready(Role::Oracle);
    replace(&mut world, "own");
    world.step();
    assert_eq!(subjects(&world), ["own"]);
    world.step();
    assert!(!world.has(Kind::ServiceAccount, "demo-tso"));
    assert!(world.has(Kind::ServiceAccount, "demo"));
}

#[test]
fn one_of_several_oracles_is_enough() {
    let mut world = World::with_oracles_ready(2);
    world.serves("demo-tso-1", false);
    world.step();
    assert_eq!(
        world.condition("Available"),
        reason(true, Reason::StandbysNotReady)
    );
    assert!(world.message("Available").contains("demo-tso-1"));
    world.serves("demo-tso-0", false);
    world.step();
    assert_eq!(
        world.condition("Available"),
        reason(false, Reason::ServersNotReady)
    );
    // A tablet server has nobody in its place.
    world.serves("demo-tso-0", true);
    world.serves("demo-tablet-1", false);
    world.step();
    assert!(!world.condition("Available").0);
    let message = world.message("Available");
    assert!(message.contains("demo-tso-1") && message.contains("demo-tablet-1"));
}

#[test]
fn the_status_names_the_leader_and_does_not_change_with_each_limit() {
    let mut world = World::with_oracles_ready(2);
    let leader = |server: &str, term| {
        let server = server.to_owned();
        Some(Leader { server, term })
    };
    assert_eq!(world.leader(), leader("demo-tso-0", 1));
    world.register().unwrap()["metadata"]["resourceVersion"] = json!("8");
    world.leads(0, 1);
    assert_eq!(world.step(), (vec![], false));
    world.leads(1, 2);
    assert_eq!(world.step(), (vec![], true));
    assert_eq!(world.leader(), leader("demo-tso-1", 2));
}

#[test]
fn a_register_that_has_lost_its_value_is_reported_until_it_is_back() {
    let mut world = World::with_oracles_ready(2);
    let before = world.register().unwrap()["binaryData"].clone();
    let leader = world.leader();
    assert!(leader.is_some());
    // What somebody has edited says nothing.
    let edited = json!("aGVsbG8=");
    for value in [Some(edited), None] {
        match value {
            Some(value) => world.register().unwrap()["binaryData"]["register"] = value,
            None => {
                let key = (Kind::ConfigMap, REGISTER.to_owned());
                world.observed.objects.remove(&key);
            }
        }
        for _ in 0..3 {
            world.step();
            assert_eq!(world.condition("Degraded"), reason(true, Reason::DataLost));
            assert!(
                world
                    .message("Degraded")
                    .contains("demo-tso-0 led in term 1")
            );
        }
        world.register().unwrap()["binaryData"] = before.clone();
        world.step();
        assert_eq!(
            world.condition("Degraded"),
            reason(false, Reason::AsExpected)
        );
        assert_eq!(world.leader(), leader);
    }
}

#[test]
fn while_a_register_lacks_its_value_no_oracle_is_stopped() {
    let mut world = World::with_oracles_ready(2);
    let before = world.register().unwrap()["binaryData"].clone();
    world.register().unwrap()["binaryData"] = json!({});
    world.change(|cluster| cluster.spec.image = Some("percolator:2".into()));
    for _ in 0..4 {
        let (applied, _) = world.step();
        assert!(!applied.contains(&"demo-tso".to_owned()), "{applied:?}");
        world.ready(Role::Master);
    }
    assert_eq!(
        world.condition("Progressing"),
        reason(true, Reason::DataLost)
    );
    world.register().unwrap()["binaryData"] = before.clone();
    assert!(world.step().0.contains(&"demo-tso".to_owned()));
    world.ready(Role::Oracle);
    // Nor is one taken away.
    world.register().unwrap()["binaryData"] = json!({});
    world.change(|cluster| cluster.spec.oracle.replicas = 1);
    world.step();
    assert!(!world.step().0.contains(&"demo-tso".to_owned()));
}

/// Of before there was one for each role.
#[test]
fn the_budget_of_all_pods_is_removed() {
    let mut world = World::all_ready();
    let key = |name: &str| (Kind::PodDisruptionBudget, name.to_owned());
    let mut old = world.observed.objects[&key("demo-tso")].clone();
    old["metadata"]["name"] = json!("demo");
    world.observed.objects.insert(key("demo"), old);
    assert_eq!(world.step().0, ["-demo"]);
    assert!(world.has(Kind::PodDisruptionBudget, "demo-tso"));
    let names = names_needed(&world.cluster, &World::settings(), &[]);
    assert!(names.contains(&key("demo")));
}
