//! The proxies: when they come, change and go, and what is said of them.

use percolator_api::{Proxy, ServiceType, WorkloadStatus};

use super::*;

const PROXIES: &str = "demo-proxy";

fn asks(replicas: Option<u32>) -> impl FnOnce(&mut ClusterObject) {
    move |cluster| {
        cluster.spec.proxy = Some(Proxy {
            replicas,
            ..Proxy::default()
        });
    }
}

impl World {
    fn deployment(&mut self) -> &mut Value {
        let key = (Kind::Deployment, PROXIES.to_owned());
        let deployments = &mut self.observed.objects;
        deployments.get_mut(&key).expect("a Deployment")
    }

    /// The Deployment has so many pods, and all of them serve.
    fn proxies_serve(&mut self, replicas: i64) {
        let live = self.deployment();
        live["spec"]["replicas"] = json!(replicas);
        live["status"] = json!({
            "observedGeneration": live["metadata"]["generation"],
            "replicas": replicas,
            "readyReplicas": replicas,
            "updatedReplicas": replicas,
        });
    }

    fn with_proxies(replicas: Option<u32>) -> Self {
        let mut world = Self::all_ready();
        world.change(asks(replicas));
        world.step();
        world.proxies_serve(replicas.map_or(1, i64::from));
        world.step();
        world
    }

    fn status_of_proxies(&self) -> Option<WorkloadStatus> {
        self.cluster
            .status
            .as_ref()
            .expect("a status")
            .proxy
            .clone()
    }
}

/// As an autoscaler and Kubernetes itself change a Deployment all the time.
#[test]
fn altered_proxies_are_not_applied_again_when_they_are_scaled() {
    let mut world = World {
        admission: |object| {
            if object["kind"] == "Deployment" {
                object["spec"]["template"]["spec"]["containers"][0]["image"] = json!("mirror");
            }
        },
        ..World::new()
    };
    world.roll_out();
    world.change(asks(None));
    world.step();
    for replicas in [1, 2, 5] {
        world.proxies_serve(replicas);
        world.deployment()["metadata"]["annotations"]["deployment.kubernetes.io/revision"] =
            json!(replicas.to_string());
        assert_eq!(world.step().0, Vec::<String>::new(), "{replicas}");
        let drifted = reason(true, Reason::AlteredByAdmission);
        assert_eq!(world.condition("Drifted"), drifted);
    }
    // Another change of theirs is changed back.
    world.deployment()["spec"]["template"]["spec"]["containers"][0]["image"] = json!("mine");
    assert_eq!(world.step().0, [PROXIES]);
}

#[test]
fn proxies_come_behind_the_servers_and_are_waited_for() {
    let mut world = World::new();
    world.change(asks(Some(2)));
    // What their pods need is there from the start.
    let (applied, _) = world.step();
    let of_proxies = applied.iter().filter(|name| name.starts_with(PROXIES));
    let of_proxies: Vec<&str> = of_proxies.map(String::as_str).collect();
    assert_eq!(of_proxies, ["demo-proxy", "demo-proxy-pods", "demo-proxy"]);
    for role in Role::ALL {
        assert!(!world.observed.has_deployments(), "{role:?}");
        world.ready(role);
        world.step();
    }
    assert!(world.observed.has_deployments());
    assert_eq!(
        world.condition("Progressing"),
        reason(true, Reason::WaitingForProxy)
    );
    let message = world.message("Progressing").to_owned();
    assert!(message.contains("0 of 2 serve"), "{message}");
    // Rows can be read and written without them.
    assert!(world.condition("Available").0);
    assert!(!world.condition("Ready").0);
    world.proxies_serve(2);
    world.step();
    assert_eq!(world.condition("Ready"), reason(true, Reason::UpToDate));
    let status = world.status_of_proxies().expect("a status of proxies");
    assert_eq!(
        (status.desired, status.ready, &*status.summary),
        (2, 2, "2/2")
    );
    assert_eq!(world.step(), (vec![], false));
}

/// Clients that take all connections of a proxy don't have it restarted: its probes come to another port.
#[test]
fn proxies_are_probed_beside_their_clients() {
    let mut world = World::with_proxies(Some(1));
    let probes = |world: &mut World| {
        let container = &world.deployment()["spec"]["template"]["spec"]["containers"][0];
        ["startupProbe", "readinessProbe", "livenessProbe"].map(|probe| {
            let by_http = &container[probe]["httpGet"];
            (by_http["port"].clone(), container[probe]["grpc"].is_null())
        })
    };
    assert_eq!(probes(&mut world), [(); 3].map(|()| (json!(9090), true)));
    // As they were made before.
    world.change(|cluster| cluster.spec.template_revision = Some(3));
    for role in Role::ALL {
        world.step();
        world.ready(role);
    }
    world.step();
    assert_eq!(probes(&mut world), [(); 3].map(|()| (Value::Null, false)));
}

/// A session's calls have to reach its proxy, also from where no pod has an address.
#[test]
fn connections_from_outside_stay_with_one_proxy() {
    let mut world = World::with_proxies(Some(2));
    let service = |world: &World| {
        let live = world
            .observed
            .get(Kind::Service, PROXIES)
            .expect("it is there");
        (
            live["spec"]["type"].clone(),
            live["spec"]["sessionAffinity"].clone(),
        )
    };
    assert_eq!(service(&world), (json!("ClusterIP"), json!("None")));
    for kind in [ServiceType::NodePort, ServiceType::LoadBalancer] {
        world.change(|cluster| {
            let proxy = cluster.spec.proxy.as_mut().expect("proxies");
            proxy.service.kind = kind;
        });
        world.step();
        assert_eq!(service(&world), (json!(kind.name()), json!("ClientIP")));
    }
}

#[test]
fn a_new_image_comes_to_the_proxies_last() {
    let mut world = World::with_proxies(Some(1));
    world.change(|cluster| cluster.spec.image = Some("percolator:2".into()));
    for role in Role::ALL {
        assert_eq!(world.step().0, [role.set("demo")]);
        assert_eq!(world.step().0, Vec::<String>::new());
        world.ready(role);
    }
    assert_eq!(world.step().0, [PROXIES]);
    assert_eq!(
        world.condition("Progressing"),
        reason(true, Reason::WaitingForProxy)
    );
    world.proxies_serve(1);
    world.step();
    assert!(world.condition("Ready").0);
}

#[test]
fn proxies_are_changed_in_their_clusters_turn() {
    let mut world = World::with_proxies(Some(2));
    world.observed.turn_wait = Some("waiting for its turn: others".into());
    // What restarts nobody is done, also that the number becomes an autoscaler's, or the spec's again.
    for replicas in [Some(3), None, Some(5), Some(3)] {
        world.change(asks(replicas));
        assert_eq!(world.step().0, [PROXIES], "{replicas:?}");
        world.proxies_serve(replicas.map_or(4, i64::from));
    }
    world.change(|cluster| {
        let proxy = cluster.spec.proxy.as_mut().expect("proxies");
        proxy.idle_max = percolator_api::Duration::from_millis(60_000);
    });
    let decision = decide(&world.cluster, &world.observed, &World::settings());
    assert!(!decision.plan().restarts && decision.plan().is_to_restart);
    assert_eq!(world.step().0, Vec::<String>::new());
    let waits = reason(true, Reason::WaitingForTurn);
    assert_eq!(world.condition("Progressing"), waits);
    world.observed.turn_wait = None;
    let decision = decide(&world.cluster, &world.observed, &World::settings());
    assert!(decision.plan().restarts);
    let is_changing = |world: &World| is_changing(&world.cluster, &world.observed);
    assert!(!is_changing(&world));
    assert_eq!(world.step().0, [PROXIES]);
    // Kubernetes hasn't seen it yet, and then it is under way.
    assert!(is_changing(&world));
    world.proxies_serve(3);
    world.deployment()["status"]["replicas"] = json!(4);
    world.deployment()["status"]["updatedReplicas"] = json!(1);
    assert!(is_changing(&world));
    world.step();
    assert!(waits_for_servers(
        world.cluster.status.as_ref().expect("a status")
    ));
    // A quota, and a roll-out that Kubernetes has given up, keep no other cluster waiting.
    for (kind, status) in [("ReplicaFailure", "True"), ("Progressing", "False")] {
        world.deployment()["status"]["conditions"] = json!([{"type": kind, "status": status}]);
        assert!(!is_changing(&world), "{kind}");
    }
    world.proxies_serve(3);
    assert!(!is_changing(&world));
}

#[test]
fn a_number_that_the_spec_leaves_out_is_others_to_say() {
    let mut world = World::with_proxies(None);
    world.proxies_serve(7);
    assert_eq!(world.step().0, Vec::<String>::new());
    let status = world.status_of_proxies().expect("a status of proxies");
    assert_eq!((status.desired, &*status.summary), (7, "7/7"));
    // Another change leaves it as it is, too.
    world.change(|cluster| {
        let proxy = cluster.spec.proxy.as_mut().expect("proxies");
        proxy.pod.priority_class_name = Some("high".into());
    });
    let decision = decide(&world.cluster, &world.observed, &World::settings());
    let applied = &decision.plan().apply;
    let deployment = applied.iter().find(|it| it.kind == Kind::Deployment);
    let deployment = deployment.expect("a Deployment to apply");
    assert_eq!(deployment.value["spec"].get("replicas"), None);
    // One that it names is the operator's.
    world.change(asks(Some(3)));
    assert_eq!(world.step().0, [PROXIES]);
    assert_eq!(world.deployment()["spec"]["replicas"], 3);
}

#[test]
fn what_was_made_for_proxies_goes_with_them() {
    for change in [
        (|cluster| cluster.spec.proxy = None) as fn(&mut ClusterObject),
        |cluster| cluster.spec.proxy.as_mut().expect("proxies").replicas = Some(0),
    ] {
        let mut world = World::with_proxies(Some(2));
        world.change(change);
        // The spec doesn't name them any more, and they may remain when their Deployment was removed.
        let needed = names_needed(&world.cluster, &World::settings(), &[]);
        let of_proxies: Vec<_> = names::of_deployment(PROXIES).into();
        for key in &of_proxies {
            assert!(world.observed.objects.contains_key(key), "{key:?}");
            assert!(needed.contains(key), "{key:?}");
        }
        let (applied, _) = world.step();
        assert_eq!(
            applied,
            [
                "-demo-proxy",
                "-demo-proxy-pods",
                "-demo-proxy",
                "-demo-proxy"
            ]
        );
        assert_eq!(world.status_of_proxies(), None);
        assert!(world.condition("Ready").0);
        assert_eq!(world.step(), (vec![], false));
    }
    let world = World::with_proxies(Some(2));
    let mut kinds = world.observed.objects.keys().map(|(kind, _)| *kind);
    assert!(kinds.any(|kind| kind == Kind::Deployment));
    let mut of_proxies = names::of_deployment(PROXIES);
    of_proxies.sort();
    assert_eq!(of_proxies[3].0, Kind::Deployment, "it is removed last");
}

/// A ReplicaSet of the Deployment controls them, and anyone can give a pod the same labels.
#[test]
fn what_is_wrong_with_a_proxy_is_reported() {
    let mut world = World::with_proxies(Some(1));
    let waits = json!({"containerStatuses": [
        {"name": "proxy", "image": "percolator:none", "state": {"waiting": {"reason": "ErrImagePull"}}}
    ]});
    world.pod("demo-proxy-1a-x", waits);
    let good = reason(false, Reason::AsExpected);
    world.step();
    assert_eq!(world.condition("Degraded"), good, "it is somebody else's");
    let owner = json!({"controller": true, "uid": "uid of demo-proxy"});
    let metadata =
        json!({"name": "demo-proxy-1a", "uid": "uid of demo-proxy-1a", "ownerReferences": [owner]});
    world.observed.replica_sets = vec![read(json!({"metadata": metadata}))];
    world.step();
    assert_eq!(
        world.condition("Degraded"),
        reason(true, Reason::ImageUnavailable)
    );
    world
        .observed
        .pods
        .retain(|pod| name_of(pod) != "demo-proxy-1a-x");
    let failure = json!({"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"});
    world.deployment()["status"]["conditions"] = json!([failure]);
    world.step();
    assert_eq!(
        world.condition("Degraded"),
        reason(true, Reason::PodsRefused)
    );
    let message = world.message("Degraded");
    assert!(message.contains("exceeded quota"), "{message}");
}

#[test]
fn a_foreign_deployment_of_the_name_is_a_conflict() {
    let mut world = World::all_ready();
    let foreign = json!({"metadata": {"name": PROXIES}});
    let key = (Kind::Deployment, PROXIES.to_owned());
    world.observed.objects.insert(key, foreign);
    assert_eq!(world.step().0, Vec::<String>::new());
    assert!(!world.condition("Degraded").0);
    world.change(asks(Some(1)));
    world.step();
    assert_eq!(
        world.condition("Degraded"),
        reason(true, Reason::ObjectConflict)
    );
}
