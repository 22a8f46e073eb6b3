//! One master, and several that share registers.

use k8s_openapi::ByteString;
use percolator_api::Leader;
use percolator_register::{StoredRecord, WriteId};

use super::oracles::{arguments, leadership};
use super::*;

const REGISTER: &str = "demo-master-register";
const STATE: &str = "demo-master-register-state";

impl World {
    fn with_masters(replicas: u32) -> Self {
        let mut world = Self::new();
        world.cluster.spec.master.replicas = replicas;
        world
    }

    /// The master with this number has stored the state, and that it leads.
    fn master_leads(&mut self, number: u32, term: u64) {
        let record = StoredRecord::encode(WriteId([2; 16]), &[b"a state"]);
        let state = json!({"register": ByteString(record)});
        let leadership = leadership(&format!("demo-master-{number}"), term);
        for (name, value) in [(STATE, state), (REGISTER, leadership)] {
            self.config_map(name)["binaryData"] = value;
        }
    }

    fn config_map(&mut self, name: &str) -> &mut Value {
        let key = (Kind::ConfigMap, name.to_owned());
        let found = self.observed.objects.get_mut(&key);
        found.expect("the register is there")
    }

    /// All roles serve, and the first master leads if there are several.
    fn with_masters_ready(replicas: u32) -> Self {
        let mut world = Self::with_masters(replicas);
        for role in Role::ALL {
            world.step();
            world.ready(role);
            if role == Role::Master && world.has(Kind::ConfigMap, REGISTER) {
                world.master_leads(0, 1);
            }
        }
        world.step();
        assert_eq!(world.step(), (vec![], false));
        world
    }

    fn of_role(&self, role: Role) -> &Value {
        &self.observed.set("demo", role).expect("a set")["spec"]
    }

    fn masters(&self) -> &Value {
        self.of_role(Role::Master)
    }

    fn master_that_leads(&self) -> Option<Leader> {
        self.cluster.status.as_ref()?.master.leader.clone()
    }

    fn may_begin_a_cluster(&mut self) -> Value {
        self.config_map("demo")["data"]["new-cluster"].clone()
    }
}

/// What the others have for `--master`.
fn addresses(count: u32) -> String {
    let address = |n| format!("demo-master-{n}.demo-master.default.svc:7400");
    let addresses: Vec<String> = (0..count).map(address).collect();
    format!("\"--master=demo.default.svc:7400,{}\"", addresses.join(","))
}

#[test]
fn a_master_that_is_alone_needs_no_api_server() {
    let world = World::with_masters_ready(1);
    let pod = &world.masters()["template"]["spec"];
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert_eq!(pod["serviceAccountName"], "demo");
    assert!(!arguments(world.masters()).contains("--register"));
    assert!(!arguments(world.masters()).contains("--advertise"));
    for role in [Role::Oracle, Role::Tablet] {
        let arguments = arguments(world.of_role(role));
        assert!(arguments.contains(&addresses(1)), "{arguments}");
        assert!(arguments.contains("--advertise=$(POD_IP)"), "{arguments}");
    }
    for (kind, name) in [
        (Kind::ConfigMap, REGISTER),
        (Kind::ConfigMap, STATE),
        (Kind::Role, "demo-master"),
        (Kind::RoleBinding, "demo-master"),
        (Kind::ServiceAccount, "demo-master"),
    ] {
        assert!(!world.has(kind, name), "{kind:?} {name}");
    }
    assert_eq!(world.master_that_leads(), None);
}

#[test]
fn several_masters_of_a_new_cluster_start_at_once() {
    let mut world = World::with_masters(3);
    world.step();
    assert_eq!(world.masters()["replicas"], 3);
    assert_eq!(world.may_begin_a_cluster(), "true");
    let pod = &world.masters()["template"]["spec"];
    assert_eq!(pod["automountServiceAccountToken"], true);
    assert_eq!(pod["serviceAccountName"], "demo-master");
    let of_masters = arguments(world.masters());
    assert!(of_masters.contains("--register=kube:demo-master-register"));
    assert!(of_masters.contains("--advertise=$(POD_IP)"));
    let role = world.observed.get(Kind::Role, "demo-master");
    let rule = json!([{
        "apiGroups": [""], "resources": ["configmaps"], "resourceNames": [REGISTER, STATE], "verbs": ["get", "patch"],
    }]);
    assert_eq!(role.expect("a role")["rules"], rule);
    // The operator doesn't say what a register holds.
    for name in [REGISTER, STATE] {
        assert_eq!(world.config_map(name)["binaryData"], Value::Null);
    }
    // Volumes are there before the registers have values: nobody is sent away for that.
    world.ready(Role::Master);
    world.step();
    assert_eq!(world.masters()["replicas"], 3);
    assert!(arguments(world.of_role(Role::Oracle)).contains(&addresses(3)));
    // From then on there is a cluster.
    world.master_leads(2, 1);
    world.step();
    assert_eq!(world.may_begin_a_cluster(), "false");
}

#[test]
fn a_master_that_was_alone_moves_its_state_before_another_one_joins() {
    let mut world = World::with_masters_ready(1);
    world.change(|cluster| cluster.spec.master.replicas = 2);
    let applied = world.step().0;
    assert!(applied.contains(&STATE.to_owned()), "{applied:?}");
    assert_eq!(applied.last().unwrap(), "demo-master");
    assert_eq!(world.masters()["replicas"], 1);
    assert!(arguments(world.masters()).contains("--register"));
    assert_eq!(world.may_begin_a_cluster(), "false");
    // However long it takes, and also where the spec asks for more meanwhile.
    world.change(|cluster| cluster.spec.master.replicas = 3);
    // The manifest alone says how many there are to be.
    assert_eq!(world.step().0, ["demo"]);
    world.ready(Role::Master);
    world.master_leads(0, 1);
    assert_eq!(world.step().0, ["demo-master"]);
    assert_eq!(world.masters()["replicas"], 3);
    assert_eq!(
        world.condition("Progressing"),
        reason(true, Reason::WaitingForMaster)
    );
    // The others get their addresses when all are there, one role after the other.
    for role in [Role::Oracle, Role::Tablet] {
        assert!(arguments(world.of_role(role)).contains(&addresses(1)));
    }
    for (before, role) in [(Role::Master, Role::Oracle), (Role::Oracle, Role::Tablet)] {
        world.ready(before);
        assert_eq!(world.step().0, [role.set("demo")]);
        assert!(arguments(world.of_role(role)).contains(&addresses(3)));
    }
    world.ready(Role::Tablet);
    world.step();
    assert_eq!(
        world.condition("Progressing"),
        reason(false, Reason::UpToDate)
    );
    // Another number of masters restarts nobody.
    let templates = Role::ALL.map(|role| world.of_role(role)["template"].clone());
    for replicas in [2, 1, 3] {
        world.change(|cluster| cluster.spec.master.replicas = replicas);
        assert_eq!(world.step().0, ["demo", "demo-master"]);
        world.ready(Role::Master);
        world.step();
    }
    let now = Role::ALL.map(|role| world.of_role(role)["template"].clone());
    assert_eq!(now, templates);
}

/// As of a cluster that was deleted, and is made again.
#[test]
fn a_master_with_a_volume_moves_its_state_alone_also_without_its_set() {
    let mut world = World::with_masters_ready(1);
    world.observed.objects.clear();
    world.observed.pods.clear();
    world.cluster.status = None;
    world.change(|cluster| cluster.spec.master.replicas = 2);
    world.step();
    assert_eq!(world.masters()["replicas"], 1);
    assert!(arguments(world.masters()).contains("--register"));
    assert_eq!(world.may_begin_a_cluster(), "false");
}

#[test]
fn a_cluster_that_has_registers_of_masters_keeps_them() {
    let mut world = World::with_masters_ready(2);
    world.master_leads(0, 4);
    let template = world.masters()["template"].clone();
    let before = [REGISTER, STATE].map(|name| world.config_map(name).clone());
    for replicas in [1, 3, 2, 1] {
        world.change(|cluster| cluster.spec.master.replicas = replicas);
        world.step();
        assert_eq!(world.masters()["template"], template);
        assert_eq!(world.masters()["replicas"], replicas);
        world.ready(Role::Master);
        world.step();
        let now = [REGISTER, STATE].map(|name| world.config_map(name).clone());
        assert_eq!(now, before);
    }
    world.change(|cluster| cluster.spec.master.replicas = 4);
    world.step();
    assert_eq!(
        world.condition("Degraded"),
        reason(true, Reason::InvalidSpec)
    );
    // The state alone is enough to know that by, also for a cluster that is made again.
    world.change(|cluster| cluster.spec.master.replicas = 1);
    let state = (Kind::ConfigMap, STATE.to_owned());
    world.observed.objects.retain(|other, _| *other == state);
    world.observed.pods.clear();
    world.cluster.status = None;
    world.cluster.metadata.uid = Some("another".into());
    world.step();
    assert_eq!(world.masters()["template"], template);
    assert_eq!(
        world.config_map(STATE)["binaryData"],
        before[1]["binaryData"]
    );
}

#[test]
fn one_of_several_masters_is_enough_and_the_status_names_the_leader() {
    let mut world = World::with_masters_ready(2);
    let leader = |server: &str, term| {
        let server = server.to_owned();
        Some(Leader { server, term })
    };
    assert_eq!(world.master_that_leads(), leader("demo-master-0", 1));
    world.serves("demo-master-0", false);
    world.master_leads(1, 2);
    world.step();
    assert_eq!(world.master_that_leads(), leader("demo-master-1", 2));
    assert_eq!(
        world.condition("Available"),
        reason(true, Reason::StandbysNotReady)
    );
    world.serves("demo-master-1", false);
    world.step();
    assert_eq!(
        world.condition("Available"),
        reason(false, Reason::ServersNotReady)
    );
}

#[test]
fn a_register_of_masters_that_has_lost_its_value_is_reported_until_it_is_back() {
    let mut world = World::with_masters_ready(2);
    for (name, words) in [
        (REGISTER, "they begin it anew"),
        (STATE, "percolator master rebuild"),
    ] {
        let before = world.config_map(name)["binaryData"].take();
        for _ in 0..2 {
            world.step();
            assert_eq!(world.condition("Degraded"), reason(true, Reason::DataLost));
            let message = world.message("Degraded");
            assert!(
                message.contains(name) && message.contains(words),
                "{message}"
            );
        }
        world.config_map(name)["binaryData"] = before;
        world.step();
        assert_eq!(
            world.condition("Degraded"),
            reason(false, Reason::AsExpected)
        );
    }
}
