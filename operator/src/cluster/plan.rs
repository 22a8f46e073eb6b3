//! The plan of a reconcile, from the objects that are wanted and those that are there: pure. It has the order of the roles: the
//! master, then the oracle, then the tablet servers, each only when the ones before serve.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use percolator_api::{ClusterObject, Reason};
use serde_json::{Value, json};

use super::build::Wanted;
use super::growing;
use super::monitored::UnavailableReason;
use super::names::{self, Role, RoleSpec};
use super::object::{ASKED, Kind, Object, asked_mark, fingerprint};
use super::observed::{self, Observed, Standing, is_leaving};
use super::registers;
use super::scale_in::ScaleIn;

/// The retention policy of a set's claims.
const CLAIMS_KEPT: &str = "/spec/persistentVolumeClaimRetentionPolicy";
/// Fields of a set or a Deployment that change without a restart of its pods.
const RESTARTS_NOBODY: [&str; 3] = [
    CLAIMS_KEPT,
    "/spec/replicas",
    "/metadata/annotations/percolator.dev~1volume-size",
];

/// The writes of a reconcile, and what has to wait.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    /// Objects to apply, in this order.
    pub(crate) apply: Vec<Object>,
    /// Claims to change: the claim's name and a merge patch with a larger size, a class, labels or annotations.
    pub(crate) claims: Vec<(String, Value)>,
    /// Claims that were patched, and that the API server keeps otherwise: the claim's name and the place.
    pub(crate) altered_claims: Vec<(String, &'static str)>,
    /// Objects of the cluster that its spec doesn't ask for any more.
    pub(crate) remove: Vec<(Kind, String)>,
    /// Claims to remove: they never had a volume, or their servers were drained.
    pub(crate) release: Vec<String>,
    /// Objects of other owners with names that this cluster needs: nothing is done while there are any.
    pub(crate) conflicts: Vec<Conflict>,
    /// Kinds that are asked for, and can't be made here.
    pub(crate) unavailable: Vec<(Kind, UnavailableReason)>,
    /// Tablet servers that the master is to drain, by their numbers.
    pub(crate) drain: Vec<u32>,
    /// Those that it is to undrain.
    pub(crate) undrain: Vec<u32>,
    /// It restarts servers or proxies.
    pub(crate) restarts: bool,
    /// It restarts servers or proxies, or will when others serve.
    pub(crate) is_to_restart: bool,
    /// What the roll-out waits for.
    pub(crate) waits: Option<(Reason, String)>,
}

/// An object of another owner with a name that a cluster needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Conflict {
    Object(Kind, String),
    /// A claim without the cluster's labels: a server would use its volume, and the operator would not list it.
    Claim(String),
}

/// A write of a plan that the API server refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// It is for the Prometheus operator: the servers don't need it.
    pub(crate) is_of_monitoring: bool,
    /// The API server's message.
    pub(crate) why: String,
}

/// The API server's message before the name of a webhook that it can't call.
pub(crate) const FAILED_WEBHOOK: &str = "failed calling webhook \"";

impl Refusal {
    /// Whether it lasts until a person changes something. A webhook that doesn't answer may come back.
    pub(crate) fn is_lasting(&self) -> bool {
        !self.why.contains(FAILED_WEBHOOK)
    }

    pub(crate) fn of_servers(why: String) -> Self {
        Self {
            is_of_monitoring: false,
            why,
        }
    }

    pub(crate) fn of_monitoring(why: String) -> Self {
        Self {
            is_of_monitoring: true,
            why,
        }
    }
}

impl Plan {
    /// Whether there is nothing to write.
    pub(crate) fn is_idle(&self) -> bool {
        self.apply.is_empty() && self.remove.is_empty() && self.is_idle_but_for_monitoring()
    }

    /// Whether there is nothing to write that the servers need.
    pub(super) fn is_idle_but_for_monitoring(&self) -> bool {
        let mut apply = self.apply.iter().map(|object| object.kind);
        let mut remove = self.remove.iter().map(|(kind, _)| *kind);
        apply.all(Kind::is_of_monitoring)
            && remove.all(Kind::is_of_monitoring)
            && self.claims.is_empty()
            && self.release.is_empty()
            && self.drain.is_empty()
            && self.undrain.is_empty()
    }
}

pub(crate) fn plan(cluster: &ClusterObject, wanted: &Wanted, observed: &Observed) -> Plan {
    let mut plan = Plan::default();
    let mut former = Vec::new();
    for object in wanted.all() {
        let live = observed.get(object.kind, &object.name);
        match live.map(|live| observed::standing(live, cluster)) {
            // No reason to leave the servers alone.
            Some(Standing::Foreign) if object.kind.is_of_monitoring() => {
                plan.unavailable
                    .push((object.kind, UnavailableReason::Name));
            }
            Some(Standing::Foreign) => {
                let conflict = Conflict::Object(object.kind, object.name.clone());
                plan.conflicts.push(conflict);
            }
            Some(Standing::Former) => {
                former.push(format!("{} {}", object.kind.name(), object.name))
            }
            Some(Standing::Ours) | None => {}
        }
    }
    let foreign_claims = observed.foreign_claims.iter().cloned();
    plan.conflicts.extend(foreign_claims.map(Conflict::Claim));
    if !plan.conflicts.is_empty() {
        return plan;
    }
    if observed.namespace_ends {
        let message = "the namespace is being deleted: nothing more can be made in it".to_owned();
        plan.waits = Some((Reason::WaitingForRemoval, message));
        return plan;
    }
    if !former.is_empty() {
        let message = format!(
            "waiting until Kubernetes has removed what a former cluster of this name had: {}",
            former.join(", ")
        );
        plan.waits = Some((Reason::WaitingForRemoval, message));
        return plan;
    }
    let differs = |object: &&Object| !observed.has(object);
    plan.apply
        .extend(wanted.common.iter().filter(differs).cloned());
    let gate = plan_sets(cluster, wanted, observed, &mut plan);
    let beside = wanted.beside_deployments.iter();
    plan.apply.extend(beside.filter(differs).cloned());
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    plan_deployments(name, gate, wanted, observed, &mut plan);
    for object in &wanted.monitoring {
        let is_unavailable = plan
            .unavailable
            .iter()
            .any(|(kind, _)| *kind == object.kind);
        match observed.unavailable.get(&object.kind) {
            Some(reason) => plan.unavailable.push((object.kind, *reason)),
            None if !is_unavailable && differs(&object) => plan.apply.push(object.clone()),
            None => {}
        }
    }
    let scale_in = ScaleIn::of(cluster, observed);
    plan.drain = scale_in.drain;
    plan.undrain = scale_in.undrain;
    plan.release.extend(scale_in.release);
    // Servers that are to go need not all serve, or run as the spec says. The message about them is more precise.
    if matches!(plan.waits, None | Some((Reason::WaitingForTablets, _))) {
        plan.waits = scale_in.waits.or(plan.waits.take());
    }
    plan_claims(cluster, observed, &mut plan);
    plan_removals(cluster, wanted, observed, &mut plan);
    plan
}

fn plan_removals(cluster: &ClusterObject, wanted: &Wanted, observed: &Observed, plan: &mut Plan) {
    for ((kind, name), live) in &observed.objects {
        if plan.waits.is_some() && !kind.is_of_monitoring() && !is_of_deployment(*kind, live) {
            // Pods that are there still may need it.
            continue;
        }
        let is_asked_for = wanted
            .all()
            .any(|object| (object.kind, &object.name) == (*kind, name));
        if !is_asked_for && observed::is_ours(live, cluster) && !is_leaving(live) {
            plan.remove.push((*kind, name.clone()));
        }
    }
}

/// Whether it is a Deployment, or belongs to one: no server needs it, and it has to go when the spec doesn't ask for it.
fn is_of_deployment(kind: Kind, live: &Value) -> bool {
    let labels = live.pointer("/metadata/labels");
    let component = labels.and_then(|labels| labels[names::COMPONENT_LABEL].as_str());
    kind == Kind::Deployment || component == Some(names::PROXY)
}

/// What the StatefulSets of earlier roles allow a later role.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gate {
    /// They serve: everything.
    Open,
    /// They are rolled out, and some server has failed since: sets that are there may change. Otherwise the master would have to
    /// be mended before the tablet servers could get more memory.
    Changes,
    /// A change of theirs is under way, or is to come: nothing.
    Closed,
}

fn plan_sets(
    cluster: &ClusterObject,
    wanted: &Wanted,
    observed: &Observed,
    plan: &mut Plan,
) -> Gate {
    let mut gate = Gate::Open;
    for (role, set) in &wanted.sets {
        let live = observed.get(set.kind, &set.name);
        if let (Some(_), Some(why)) = (live, &wanted.frozen) {
            gate = Gate::Closed;
            if plan.waits.is_none() {
                plan.waits = Some((Reason::NewerTemplates, why.clone()));
            }
            continue;
        }
        if plan.waits.is_none() {
            plan.waits = make_room(cluster, *role, set, observed, plan);
            if plan.waits.is_some() {
                gate = Gate::Closed;
            }
        }
        let is_as_wanted = observed.has(set);
        let may_apply = match gate {
            Gate::Open => true,
            Gate::Changes => live.is_some(),
            // That restarts no pod. A user who retains the claims may delete the cluster next.
            Gate::Closed => live.is_some_and(|live| set.differs_only_at(&[CLAIMS_KEPT], live)),
        };
        let restarts = !is_as_wanted && live.is_some_and(|live| restarts_pods(set, live));
        let ends_servers = restarts || live.is_some_and(|live| takes_servers_away(set, live));
        if ends_servers && let Some(why) = registers::lost(cluster, observed, *role) {
            gate = Gate::Closed;
            // Those that run go on without it, and others couldn't begin.
            let message = format!("no server of the role is stopped meanwhile: {why}");
            plan.waits.get_or_insert((Reason::DataLost, message));
            continue;
        }
        plan.is_to_restart |= restarts;
        if !is_as_wanted && may_apply {
            if let Some(why) = observed.turn_wait.as_ref().filter(|_| restarts) {
                gate = Gate::Closed;
                // Also if a server of an earlier role has failed since: the cluster waits for its turn.
                plan.waits = Some((Reason::WaitingForTurn, why.clone()));
                continue;
            }
            plan.restarts |= restarts;
            plan.apply.push(set.clone());
        }
        // Accepted and rolled out, which need not mean that it is equal to what was asked for: admission may alter it.
        let is_settled = is_as_wanted && live.is_some_and(observed::is_settled);
        if is_settled {
            continue;
        }
        let is_rolled_out = is_as_wanted && live.is_some_and(observed::is_rolled_out);
        gate = match gate {
            Gate::Open | Gate::Changes if is_rolled_out => Gate::Changes,
            _ => Gate::Closed,
        };
        if plan.waits.is_none() {
            plan.waits = Some(waits_for(*role, set, live));
        }
    }
    gate
}

/// Whether the set gets fewer replicas.
fn takes_servers_away(set: &Object, live: &Value) -> bool {
    let replicas = |of: &Value| observed::number(of, "/spec/replicas");
    replicas(&set.value) < replicas(live)
}

/// Whether applying the object restarts its pods. An object with the same mark is as admission left it: another apply changes
/// nothing.
fn restarts_pods(object: &Object, live: &Value) -> bool {
    asked_mark(live) != asked_mark(&object.value) && !object.differs_only_at(&RESTARTS_NOBODY, live)
}

/// Plans the Deployments. Proxies and workers are clients of all servers: they are made, and change, when these serve. Deployments
/// don't wait for each other. Proxies change in their cluster's turn. Workers don't, because a broken application would keep other
/// clusters waiting.
fn plan_deployments(name: &str, gate: Gate, wanted: &Wanted, observed: &Observed, plan: &mut Plan) {
    for deployment in &wanted.deployments {
        let live = observed.get(deployment.kind, &deployment.name);
        let is_as_wanted = observed.has(deployment);
        let may_apply = match gate {
            Gate::Open => true,
            Gate::Changes => live.is_some(),
            Gate::Closed => false,
        };
        let is_proxy = deployment.name == names::proxies(name);
        let is_new = |live: &Value| !is_as_wanted && restarts_pods(deployment, live);
        let restarts = is_proxy && live.is_some_and(is_new);
        plan.is_to_restart |= restarts;
        if !is_as_wanted && may_apply {
            if let Some(why) = observed.turn_wait.as_ref().filter(|_| restarts) {
                plan.waits = Some((Reason::WaitingForTurn, why.clone()));
                continue;
            }
            plan.restarts |= restarts;
            plan.apply.push(deployment.clone());
        }
        let is_settled = is_as_wanted && live.is_some_and(observed::is_settled);
        if !is_settled && plan.waits.is_none() {
            let at = |path| live.map_or(0, |live| observed::number(live, path));
            // Of one whose number is others' to say, Kubernetes knows it.
            let desired = deployment.value.pointer("/spec/replicas");
            let desired = desired.and_then(Value::as_i64);
            let desired = desired.unwrap_or_else(|| at("/spec/replicas").max(1));
            let (reason, what) = if is_proxy {
                (Reason::WaitingForProxy, "the proxies".to_owned())
            } else {
                let workers = format!("the workers of {}", deployment.name);
                (Reason::WaitingForObservers, workers)
            };
            let message = format!(
                "waiting for {what}: {} of {desired} serve, {} of {desired} run as the spec says",
                at("/status/readyReplicas").min(desired),
                at("/status/updatedReplicas").min(desired),
            );
            plan.waits = Some((reason, message));
        }
    }
}

/// Plans the removal of a StatefulSet and of claims that never had a volume, if the spec asks for other claims: neither can change,
/// and nothing is lost. Claims of servers that the spec doesn't ask for any more go, too, if they never had a volume. Returns what
/// the roll-out waits for.
fn make_room(
    cluster: &ClusterObject,
    role: Role,
    set: &Object,
    observed: &Observed,
    plan: &mut Plan,
) -> Option<(Reason, String)> {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let waits = |what: String| {
        let message = format!(
            "waiting for the end of {what}: {} asks for others",
            role.asked(&cluster.spec).path
        );
        Some((Reason::ReplacingClaims, message))
    };
    let live = observed.get(set.kind, &set.name);
    if let Some(live) = live
        && observed::made_with(live) != observed::made_with(&set.value)
        && !observed.has(set)
    {
        if !is_leaving(live) {
            plan.remove.push((set.kind, set.name.clone()));
        }
        return waits(format!(
            "StatefulSet {}, whose claims never had a volume",
            set.name
        ));
    }
    let at = |path| live.map_or(0, |live| observed::number(live, path));
    let needed = at("/spec/replicas").max(at("/status/replicas"));
    let mut unused = Vec::new();
    for (ordinal, claim) in observed.claims_of(name, role) {
        if i64::from(ordinal) >= needed && !observed::has_volume(claim) {
            if !observed::is_terminating(claim) {
                plan.release.push(observed::name_of(claim).to_owned());
            }
            unused.push(observed::name_of(claim).to_owned());
        }
    }
    match (live, &unused[..]) {
        (None, [first, ..]) => waits(format!("claim {first}, which never had a volume")),
        _ => None,
    }
}

fn waits_for(role: Role, set: &Object, live: Option<&Value>) -> (Reason, String) {
    let reason = match role {
        Role::Master => Reason::WaitingForMaster,
        Role::Oracle => Reason::WaitingForOracle,
        Role::Tablet => Reason::WaitingForTablets,
    };
    let desired = observed::number(&set.value, "/spec/replicas");
    let at = |path| live.map_or(0, |live| observed::number(live, path));
    let message = format!(
        "waiting for {}: {} of {desired} serve, {} of {desired} run as the spec says",
        role.plural(),
        at("/status/readyReplicas").min(desired),
        at("/status/updatedReplicas").min(desired),
    );
    (reason, message)
}

fn plan_claims(cluster: &ClusterObject, observed: &Observed, plan: &mut Plan) {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    for role in Role::ALL {
        let asked = role.asked(&cluster.spec);
        for claim in observed.claims_of(name, role).into_values() {
            if !observed::is_bound(claim) {
                continue;
            }
            let (change, altered) = change_of(claim, &asked);
            let name = || observed::name_of(claim).to_owned();
            plan.claims.extend(change.map(|change| (name(), change)));
            plan.altered_claims
                .extend(altered.map(|place| (name(), place)));
        }
    }
    if plan.waits.is_none() {
        plan.waits = growing::wait(cluster, observed);
    }
}

/// The merge patch that brings a claim to what is asked for, and the first place that the API server keeps otherwise. A
/// StatefulSet's template of claims can't change, so that each claim is changed by itself. A claim with the mark of what is asked
/// for was given all of it: a policy changes it, or this version of Kubernetes doesn't know the field.
fn change_of(
    claim: &PersistentVolumeClaim,
    asked: &RoleSpec<'_>,
) -> (Option<Value>, Option<&'static str>) {
    let (mut change, mut altered) = (json!({}), None);
    if let Some((place, attributes)) = attributes_of(claim, asked) {
        let wanted = &asked.claim;
        let class = &wanted.volume_attributes_class_name;
        let mark = fingerprint(&json!([class, wanted.labels, wanted.annotations]));
        let annotations = claim.metadata.annotations.as_ref();
        if annotations.and_then(|it| it.get(ASKED)) == Some(&mark) {
            altered = Some(place);
        } else {
            change = attributes;
            change["metadata"]["annotations"][ASKED] = json!(mark);
        }
    }
    if observed::claim_size(claim).is_some_and(|has| has < asked.size) {
        change["spec"]["resources"]["requests"]["storage"] = json!(asked.size.to_string());
    }
    let is_change = change.as_object().is_some_and(|it| !it.is_empty());
    (is_change.then_some(change), altered)
}

/// The first place at which a claim differs in class, labels or annotations from what is asked for, and a merge patch.
fn attributes_of(
    claim: &PersistentVolumeClaim,
    asked: &RoleSpec<'_>,
) -> Option<(&'static str, Value)> {
    let mut change = json!({});
    let mut place = None;
    let attributes = &asked.claim;
    let spec = claim.spec.as_ref();
    let live = spec.and_then(|spec| spec.volume_attributes_class_name.as_ref());
    if let Some(class) = &attributes.volume_attributes_class_name
        && live != Some(class)
    {
        change["spec"]["volumeAttributesClassName"] = json!(class);
        place = Some(".spec.volumeAttributesClassName");
    }
    let metadata = &claim.metadata;
    for (field, at, live, wanted) in [
        (
            "labels",
            ".metadata.labels",
            &metadata.labels,
            &attributes.labels,
        ),
        (
            "annotations",
            ".metadata.annotations",
            &metadata.annotations,
            &attributes.annotations,
        ),
    ] {
        for (key, value) in wanted {
            if live.as_ref().and_then(|live| live.get(key)) != Some(value) {
                change["metadata"][field][key] = json!(value);
                place = place.or(Some(at));
            }
        }
    }
    Some((place?, change))
}
