//! A fleet of clusters over an API server that keeps what it is given, and that makes pods of StatefulSets as Kubernetes does.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::*;
use crate::cluster::COMPONENT_LABEL;

const CLUSTERS: usize = 60;
/// As many clusters change at a time, by `shared`.
const AT_A_TIME: usize = 10;
/// So many of those that wait are reconciled in each round.
const WAITING_LOOKED_AT: usize = 12;

const CLUSTERS_PATH: &str = "/apis/percolator.dev/v1alpha1/namespaces/n/percolatorclusters";
const SETS_PATH: &str = "/apis/apps/v1/namespaces/n/statefulsets";
const PODS_PATH: &str = "/api/v1/namespaces/n/pods";

/// Objects by their paths.
#[derive(Default)]
struct World {
    objects: BTreeMap<String, Value>,
    /// The sets that their controller has not rolled out, by their names.
    sets: BTreeSet<String>,
    /// The most clusters that were between two images at a time.
    most: usize,
}

fn name(number: usize) -> String {
    format!("c{number:04}")
}

fn path_of(cluster: &str) -> String {
    format!("{CLUSTERS_PATH}/{cluster}")
}

fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object
        .pointer(path)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn image(set: &Value) -> &str {
    text(set, "/spec/template/spec/containers/0/image")
}

impl World {
    fn answer(&mut self, method: &hyper::Method, uri: &hyper::Uri, body: Value) -> (u16, Value) {
        let path = uri.path();
        if *method == hyper::Method::GET {
            return self.get(path, uri.query().unwrap_or_default());
        }
        if *method == hyper::Method::POST {
            // An event.
            return (201, body);
        }
        if let Some(path) = path.strip_suffix("/status") {
            let object = self.objects.get_mut(path).expect("a cluster");
            object["status"] = body["status"].clone();
            return (200, object.clone());
        }
        assert_eq!(*method, hyper::Method::PATCH, "{path}");
        (200, self.apply(path, body))
    }

    fn get(&self, path: &str, query: &str) -> (u16, Value) {
        if let Some(object) = self.objects.get(path) {
            return (200, object.clone());
        }
        let (before, kind) = path.rsplit_once('/').unwrap_or_default();
        let is_list = [
            "pods",
            "persistentvolumeclaims",
            "events",
            "deployments",
            "statefulsets",
            "percolatorclusters",
        ];
        if !is_list.contains(&kind) {
            let missing = json!({
                "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure", "message": "none",
                "reason": "NotFound", "code": 404,
            });
            return (404, missing);
        }
        let query = query.replace("%2F", "/").replace("%3D", "=");
        let selector = query
            .split('&')
            .find_map(|it| it.strip_prefix("labelSelector="));
        let selector: Vec<(&str, &str)> = selector
            .into_iter()
            .flat_map(|all| all.split("%2C"))
            .map(|label| label.split_once('=').expect("a label with its value"))
            .collect();
        let is_selected = |object: &&Value| {
            let labels = &object["metadata"]["labels"];
            selector
                .iter()
                .all(|(label, value)| labels[label] == *value)
        };
        let mut base = if before.ends_with("/namespaces/n") {
            format!("{path}/")
        } else {
            format!("{before}/namespaces/n/{kind}/")
        };
        // Names begin with that of the cluster. Without this each reconcile would pass over the whole fleet.
        if let Some((_, cluster)) = selector.iter().find(|(label, _)| *label == CLUSTER_LABEL) {
            base.push_str(cluster);
        }
        let items = self.objects.range(base.clone()..);
        let items = items.take_while(|(path, _)| path.starts_with(&base));
        let items: Vec<&Value> = items
            .map(|(_, object)| object)
            .filter(is_selected)
            .collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items});
        (200, list)
    }

    fn apply(&mut self, path: &str, mut object: Value) -> Value {
        let old = self.objects.get(path);
        let mut generation = 1;
        if let Some(old) = old {
            let is_change = i64::from(old["spec"] != object["spec"]);
            generation = old["metadata"]["generation"].as_i64().expect("a number") + is_change;
            object["status"] = old["status"].clone();
        }
        object["metadata"]["generation"] = json!(generation);
        object["metadata"]["uid"] = json!(format!("uid of {path}"));
        object["metadata"]["namespace"] = json!("n");
        self.objects.insert(path.to_owned(), object.clone());
        if let Some(set) = path.strip_prefix(SETS_PATH) {
            self.sets.insert(set[1..].to_owned());
        }
        object
    }

    /// The clusters of which some servers have another image than others, or pods are being replaced.
    fn between_images(&self) -> BTreeSet<&str> {
        let mut images = BTreeMap::<&str, BTreeSet<&str>>::new();
        let mut changing = BTreeSet::new();
        for (_, set) in self.sets_there() {
            let cluster = set["metadata"]["labels"][CLUSTER_LABEL].as_str();
            let cluster = cluster.expect("a cluster");
            images.entry(cluster).or_default().insert(image(set));
            if cluster::changes_pods(set) {
                changing.insert(cluster);
            }
        }
        images.retain(|_, images| images.len() > 1);
        changing.extend(images.into_keys());
        changing
    }

    fn sets_there(&self) -> impl Iterator<Item = (&String, &Value)> {
        let sets = self.objects.range(format!("{SETS_PATH}/")..);
        sets.take_while(|(path, _)| path.starts_with(SETS_PATH))
    }

    /// The controller of StatefulSets sees each change first, and then replaces all pods.
    fn go_on(&mut self) {
        self.most = self.most.max(self.between_images().len());
        for name in std::mem::take(&mut self.sets) {
            let set = self.objects.get_mut(&format!("{SETS_PATH}/{name}"));
            let set = set.expect("a set");
            let revision = json!(image(set));
            let generation = set["metadata"]["generation"].clone();
            let replicas = set["spec"]["replicas"].clone();
            let status = set["status"].as_object().cloned().unwrap_or_default();
            let is_seen = status.get("observedGeneration") == Some(&generation);
            let current = status.get("currentRevision").filter(|_| !is_seen);
            let current = current.unwrap_or(&revision).clone();
            let ready = if is_seen { replicas.clone() } else { json!(0) };
            set["status"] = json!({
                "observedGeneration": generation,
                "currentRevision": current,
                "updateRevision": revision,
                "replicas": replicas,
                "updatedReplicas": ready,
                "readyReplicas": ready,
            });
            if is_seen {
                let set = set.clone();
                self.make_pods(&name, &set);
            } else {
                self.sets.insert(name);
            }
        }
    }

    fn make_pods(&mut self, name: &str, set: &Value) {
        let replicas = set["spec"]["replicas"].as_i64().expect("a number");
        for ordinal in 0..replicas {
            let pod = format!("{name}-{ordinal}");
            let owner = json!({
                "apiVersion": "apps/v1", "kind": "StatefulSet", "name": name, "controller": true,
                "uid": set["metadata"]["uid"],
            });
            let labels = &set["spec"]["template"]["metadata"]["labels"];
            assert!(labels[COMPONENT_LABEL].is_string(), "{labels}");
            let object = json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": pod, "namespace": "n", "labels": labels, "ownerReferences": [owner]},
                "spec": set["spec"]["template"]["spec"],
                "status": {"conditions": [{"type": "Ready", "status": "True"}]},
            });
            self.objects.insert(format!("{PODS_PATH}/{pod}"), object);
        }
    }

    /// The number of clusters whose servers all have this image.
    fn with_image(&self, of: &str) -> usize {
        let between = self.between_images();
        let sets = self.sets_there().map(|(_, set)| set);
        let masters = sets.filter(|set| set["metadata"]["labels"][COMPONENT_LABEL] == "master");
        masters
            .filter(|set| image(set) == of)
            .filter(|set| !between.contains(text(set, "/metadata/labels/percolator.dev~1cluster")))
            .count()
    }
}

/// The API server of this world; other requests come between those of a reconcile.
fn server(world: &Arc<Mutex<World>>) -> Client {
    let world = world.clone();
    let answer = move |request: hyper::Request<kube::client::Body>| {
        let world = world.clone();
        async move {
            tokio::task::yield_now().await;
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await.expect("a body");
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let answer = world.lock().unwrap().answer(&head.method, &head.uri, body);
            let body = kube::client::Body::from(answer.1.to_string().into_bytes());
            let answer = hyper::Response::builder().status(answer.0).body(body);
            Ok::<_, std::convert::Infallible>(answer.expect("an answer"))
        }
    };
    Client::new(tower::service_fn(answer), "n")
}

async fn reconcile_all(clusters: impl IntoIterator<Item = String>, shared: &Arc<Shared>) {
    let reconciles = clusters.into_iter().map(|cluster| async move {
        let result = reconcile(found(&cluster), shared.clone()).await;
        result.expect("no failure");
    });
    futures_util::future::join_all(reconciles).await;
}

/// Of a fleet that is given another image at once, some clusters change at a time, also when another operator follows.
#[tokio::test]
async fn an_upgrade_of_a_fleet_keeps_to_its_budget() {
    let world = Arc::<Mutex<World>>::default();
    let client = server(&world);
    let mut shared = self::shared(client.clone());
    let ask = |image: &str, generation: u32| {
        let mut world = world.lock().unwrap();
        for cluster in (0..CLUSTERS).map(name) {
            let spec = json!({"image": image});
            let object = json!({
                "apiVersion": "percolator.dev/v1alpha1", "kind": "PercolatorCluster",
                "metadata": {"name": cluster, "namespace": "n", "uid": format!("uid of {cluster}"), "generation": generation},
                "spec": spec,
            });
            let known = world.objects.entry(path_of(&cluster)).or_insert(object);
            known["spec"] = spec;
            known["metadata"]["generation"] = json!(generation);
        }
    };
    ask("percolator:1", 1);
    // No turn is needed for a cluster that is made: it serves nobody yet.
    for _ in 0..5 {
        reconcile_all((0..CLUSTERS).map(name), &shared).await;
        world.lock().unwrap().go_on();
        world.lock().unwrap().go_on();
    }
    reconcile_all((0..CLUSTERS).map(name), &shared).await;
    assert_eq!(world.lock().unwrap().with_image("percolator:1"), CLUSTERS);
    assert_eq!(shared.rolls().count(), 0);
    world.lock().unwrap().most = 0;

    ask("percolator:2", 2);
    let mut waiting: Vec<String> = (0..CLUSTERS).map(name).collect();
    let (mut rounds, mut before) = (0, BTreeSet::new());
    while world.lock().unwrap().with_image("percolator:2") < CLUSTERS {
        let between: BTreeSet<String> = {
            let world = world.lock().unwrap();
            world
                .between_images()
                .into_iter()
                .map(str::to_owned)
                .collect()
        };
        rounds += 1;
        if rounds % 7 == 0 {
            // The operator is killed, at any step of those that change.
            shared = self::shared(client.clone());
            rolls::find(&client, &[], |cluster| shared.rolls().note(cluster)).await;
        }
        let next = waiting.iter().take(WAITING_LOOKED_AT).cloned();
        // A change of something wakes the operator, also the last one of a roll-out.
        let changed = before.union(&between).cloned();
        let next: BTreeSet<String> = next.chain(changed).collect();
        reconcile_all(next, &shared).await;
        before = between;
        let mut world = world.lock().unwrap();
        world.go_on();
        waiting.retain(|cluster| {
            let master = &world.objects[&format!("{SETS_PATH}/{cluster}-master")];
            image(master) == "percolator:1"
        });
        assert!(rounds < 10 * CLUSTERS, "{} wait", waiting.len());
    }
    let world = world.lock().unwrap();
    assert_eq!(world.most, AT_A_TIME, "in {rounds} rounds");
}
