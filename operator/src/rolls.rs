//! The limit of clusters that change their servers at a time. If a tool gives many clusters a new image at once, a few of them
//! change first. If these don't come up with it, the others stay as they are.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::{Client, Resource};
use percolator_api::ClusterObject;
use serde::Deserialize as _;
use serde_json::json;

use crate::api::scopes;
use crate::cluster::{self, CLUSTER_LABEL, COMPONENT_LABEL, MANAGER, PROXY};

/// How many clusters a message names.
const NAMED_MAX: usize = 3;

/// The clusters whose servers are being changed, by their full names.
#[derive(Debug)]
pub(crate) struct Rolls {
    at_most: usize,
    under_way: BTreeSet<String>,
}

impl Rolls {
    pub(crate) fn new(at_most: usize) -> Self {
        Self {
            at_most,
            under_way: BTreeSet::new(),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.under_way.len()
    }

    /// Notes that the servers of a cluster are being changed, by this operator or by another one.
    pub(crate) fn note(&mut self, cluster: &str) {
        self.under_way.insert(cluster.to_owned());
    }

    /// Notes that the servers of a cluster are rolled out, or gone.
    pub(crate) fn end(&mut self, cluster: &str) {
        self.under_way.remove(cluster);
    }

    /// Begins to change the servers of a cluster, or returns a message about what it waits for.
    ///
    /// # Errors
    /// It is not its turn.
    pub(crate) fn begin(&mut self, cluster: &str) -> Result<(), String> {
        if self.under_way.contains(cluster) {
            return Ok(());
        }
        if self.under_way.len() < self.at_most {
            self.under_way.insert(cluster.to_owned());
            return Ok(());
        }
        let named: Vec<&str> = self
            .under_way
            .iter()
            .take(NAMED_MAX)
            .map(|it| &**it)
            .collect();
        let more = match self.under_way.len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        Err(format!(
            "waiting for its turn: the servers and proxies of {}{more} are being changed, as many clusters at a time as the operator's \
             --rolls-max allows",
            named.join(", ")
        ))
    }
}

/// How many objects are listed at a time.
const LISTED_AT_A_TIME: u32 = 100;

/// Finds the clusters of these namespaces, or of all if none is named, whose servers are being changed: they count before any other
/// changes its own. Clusters that the API server can't list now count from their first reconcile on.
pub(crate) async fn find(client: &Client, namespaces: &[String], mut note: impl FnMut(&str)) {
    for namespace in scopes(namespaces) {
        if let Err(error) = find_in(client, namespace, &mut note).await {
            tracing::warn!(%error, namespace, "cannot list the clusters whose servers change");
        }
    }
}

async fn find_in(
    client: &Client,
    namespace: Option<&str>,
    note: &mut impl FnMut(&str),
) -> kube::Result<()> {
    let ours = format!("app.kubernetes.io/managed-by={MANAGER}");
    let ours = ListParams::default().labels(&ours);
    let mut note_cluster = |object: &DynamicObject| {
        let labels = object.metadata.labels.as_ref();
        let cluster = labels.and_then(|labels| labels.get(CLUSTER_LABEL));
        if let (Some(namespace), Some(cluster)) = (&object.metadata.namespace, cluster) {
            note(&format!("{namespace}/{cluster}"));
        }
    };
    list::<StatefulSet>(client, namespace, ours.clone(), |set| {
        if cluster::changes_pods(&json!(set)) {
            note_cluster(set);
        }
    })
    .await?;
    list::<Deployment>(client, namespace, ours, |deployment| {
        let labels = deployment.metadata.labels.as_ref();
        let component = labels.and_then(|labels| labels.get(COMPONENT_LABEL));
        if component.is_some_and(|it| it == PROXY) && cluster::replaces_pods(&json!(deployment)) {
            note_cluster(deployment);
        }
    })
    .await?;
    // Between two roles no set changes, and the status says which servers the next role waits for. If there is no next role, the
    // first reconcile of the cluster ends it.
    list::<ClusterObject>(client, namespace, ListParams::default(), |cluster| {
        // One that this operator can't read gets no reconcile that would end its turn.
        let read = ClusterObject::deserialize(&json!(cluster));
        let status = read.ok().and_then(|cluster| cluster.status);
        if status.is_some_and(|status| cluster::waits_for_servers(&status)) {
            note(&cluster::full_name(&cluster.metadata));
        }
    })
    .await
}

/// Calls `see` with each object of a kind: an object that can't be decoded doesn't hide the others.
async fn list<K: Resource<DynamicType = ()>>(
    client: &Client,
    namespace: Option<&str>,
    page: ListParams,
    mut see: impl FnMut(&DynamicObject),
) -> kube::Result<()> {
    let kind = ApiResource::erase::<K>(&());
    let api: Api<DynamicObject> = match namespace {
        None => Api::all_with(client.clone(), &kind),
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &kind),
    };
    let mut page = page.limit(LISTED_AT_A_TIME);
    loop {
        let list = api.list(&page).await?;
        list.items.iter().for_each(&mut see);
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_thousand_clusters_some_change_at_a_time() {
        let mut rolls = Rolls::new(10);
        let mut waiting: Vec<String> = (0..1_000).map(|it| format!("n/{it}")).collect();
        let mut rounds = 0;
        while !waiting.is_empty() {
            let began = |cluster: &String| rolls.begin(cluster).is_ok();
            let (under_way, rest) = waiting.into_iter().partition::<Vec<_>, _>(began);
            assert_eq!(under_way.len(), 10);
            assert_eq!(rolls.count(), 10);
            // Those that are under way may go on.
            assert!(under_way.iter().all(|it| rolls.begin(it).is_ok()));
            under_way.iter().for_each(|it| rolls.end(it));
            waiting = rest;
            rounds += 1;
        }
        assert_eq!((rounds, rolls.count()), (100, 0));
    }

    /// An API server with the StatefulSets and the status of some clusters.
    fn with_some() -> Client {
        let set = |cluster: &str, generation: u32, updated: &str| {
            json!({
                "metadata": {"name": "s", "namespace": "n", "generation": generation, "labels": {CLUSTER_LABEL: cluster}},
                "status": {"observedGeneration": 1, "currentRevision": "1", "updateRevision": updated},
            })
        };
        let deployment = |cluster: &str, component: &str, updated: u32| {
            json!({
                "metadata": {"name": "d", "namespace": "n", "labels": {CLUSTER_LABEL: cluster, COMPONENT_LABEL: component}},
                "status": {"replicas": 2, "updatedReplicas": updated},
            })
        };
        let cluster = |name: &str, engine: &str, reason: &str| {
            let condition = json!({
                "type": "Progressing", "status": "True", "reason": reason, "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            });
            json!({
                "metadata": {"name": name, "namespace": "n"},
                "spec": {"tablets": {"storage": {"engine": engine}}},
                "status": {"conditions": [condition]},
            })
        };
        let answer = move |request: hyper::Request<kube::client::Body>| {
            let items = match request.uri().path().rsplit('/').next() {
                Some("statefulsets") => vec![
                    set("a", 1, "1"),
                    set("b", 1, "1"),
                    set("c", 1, "2"),
                    // Kubernetes has not seen its change yet.
                    set("d", 2, "1"),
                ],
                Some("deployments") => vec![
                    deployment("f", PROXY, 1),
                    deployment("g", PROXY, 2),
                    deployment("h", "observer-a", 1),
                ],
                _ => vec![
                    cluster("a", "redb", "WaitingForTurn"),
                    cluster("b", "redb", "WaitingForOracle"),
                    cluster("c", "redb", "Settled"),
                    cluster("d", "redb", "Settled"),
                    cluster("e", "of a newer operator", "WaitingForOracle"),
                ],
            };
            let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items});
            let body = kube::client::Body::from(list.to_string().into_bytes());
            std::future::ready(Ok::<_, std::convert::Infallible>(hyper::Response::new(
                body,
            )))
        };
        Client::new(tower::service_fn(answer), "n")
    }

    /// A cluster between two roles has no pods of two templates, and is in its turn all the same.
    #[tokio::test]
    async fn an_operator_that_starts_finds_what_is_under_way() {
        let mut rolls = Rolls::new(1);
        find(&with_some(), &[], |cluster| rolls.note(cluster)).await;
        let found = BTreeSet::from(["n/b", "n/c", "n/d", "n/f"].map(str::to_owned));
        assert_eq!(rolls.under_way, found);
    }

    #[test]
    fn who_waits_hears_for_whom() {
        let mut rolls = Rolls::new(1);
        rolls.begin("a/x").expect("its turn");
        let waits = rolls.begin("b/y").expect_err("it waits");
        assert!(
            waits.contains("the servers and proxies of a/x are"),
            "{waits}"
        );
        ["c/z", "d/z", "e/z"].iter().for_each(|it| rolls.note(it));
        let waits = rolls.begin("b/y").expect_err("it waits");
        assert!(waits.contains("a/x, c/z, d/z and 1 more"), "{waits}");
    }
}
