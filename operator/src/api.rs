//! The API server: reading what is there of a cluster, and carrying out what was decided.

use futures_util::future::{try_join, try_join_all};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, Preconditions};
use kube::api::{ApiResource, ObjectMeta};
use kube::{Client, Resource as _};
use percolator_api::{ClusterObject, Status};
use serde_json::{Value, json};

use crate::cluster::{self, MANAGER, Observed, Plan, Settings};

/// The API server, for one namespace.
#[derive(Clone)]
pub(crate) struct Objects {
    client: Client,
    namespace: String,
}

impl Objects {
    pub(crate) fn new(client: Client, namespace: &str) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
        }
    }

    fn kind(&self, kind: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, kind)
    }

    fn clusters(&self) -> Api<ClusterObject> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The resource itself, none if it's gone.
    pub(crate) async fn cluster(&self, name: &str) -> kube::Result<Option<ClusterObject>> {
        self.clusters().get_opt(name).await
    }

    /// What the API server remembers, without asking its store: a moment old at most, and cheap where there are
    /// many objects of other clusters.
    async fn remembered<K>(&self, selector: &str) -> kube::Result<Vec<Value>>
    where
        K: kube::Resource<DynamicType = ()>,
    {
        let parameters = ListParams::default().labels(selector).match_any();
        let list = self
            .kind(&ApiResource::erase::<K>(&()))
            .list(&parameters)
            .await?;
        Ok(list.items.into_iter().map(|object| json!(object)).collect())
    }

    /// Reads what is there of the cluster, and whatever has a name that it needs. What decisions rest on is as the
    /// store has it.
    pub(crate) async fn observe(
        &self,
        cluster: &ClusterObject,
        settings: &Settings,
    ) -> kube::Result<Observed> {
        let name = cluster.metadata.name.as_deref().unwrap_or_default();
        let of_cluster = cluster::selector_text(&cluster::selector(name));
        let needed = cluster::names_needed(cluster, settings);
        let objects = needed.into_iter().map(|key| async move {
            let found = self.kind(&key.0.api()).get_opt(&key.1).await?;
            kube::Result::Ok(found.map(|object| (key, json!(object))))
        });
        let (objects, (pods, claims)) = try_join(
            try_join_all(objects),
            try_join(
                self.remembered::<Pod>(&of_cluster),
                self.remembered::<PersistentVolumeClaim>(&of_cluster),
            ),
        )
        .await?;
        Ok(Observed {
            objects: objects.into_iter().flatten().collect(),
            pods,
            claims,
        })
    }

    /// Does what was planned, and notes in `observed` what is there then.
    ///
    /// # Errors
    /// The first that the API server refuses, or doesn't answer: the rest is not done then.
    pub(crate) async fn carry_out(&self, plan: &Plan, observed: &mut Observed) -> kube::Result<()> {
        let parameters = PatchParams::apply(MANAGER).force();
        for object in &plan.apply {
            let applied = self
                .kind(&object.kind.api())
                .patch(&object.name, &parameters, &Patch::Apply(&object.value))
                .await?;
            tracing::info!(kind = object.kind.name(), name = object.name, "applied");
            observed
                .objects
                .insert((object.kind, object.name.clone()), json!(applied));
        }
        let claims = ApiResource::erase::<PersistentVolumeClaim>(&());
        for (name, size) in &plan.grow {
            let change =
                json!({"spec": {"resources": {"requests": {"storage": size.to_string()}}}});
            let grown = self
                .kind(&claims)
                .patch(name, &PatchParams::default(), &Patch::Merge(change))
                .await?;
            tracing::info!(claim = name, %size, "asked for a larger volume");
            let grown = json!(grown);
            let known = observed
                .claims
                .iter_mut()
                .find(|claim| cluster::name(claim) == name);
            if let Some(known) = known {
                *known = grown;
            }
        }
        for (kind, name) in &plan.remove {
            let live = &observed.objects[&(*kind, name.clone())];
            // The very object that was looked at, and no other that has taken its name since.
            let uid = live.pointer("/metadata/uid").and_then(Value::as_str);
            let parameters = DeleteParams {
                preconditions: Some(Preconditions {
                    uid: uid.map(str::to_owned),
                    resource_version: None,
                }),
                ..DeleteParams::default()
            };
            match self.kind(&kind.api()).delete(name, &parameters).await {
                Ok(_) => tracing::info!(kind = kind.name(), name, "removed"),
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes the status, unless it's there already.
    pub(crate) async fn tell(
        &self,
        cluster: &ClusterObject,
        status: &Status,
    ) -> kube::Result<bool> {
        if cluster.status.as_ref() == Some(status) {
            return Ok(false);
        }
        let name = cluster.metadata.name.as_deref().unwrap_or_default();
        // The object that was looked at, and no other of its name.
        let object = json!({
            "apiVersion": ClusterObject::api_version(&()),
            "kind": ClusterObject::kind(&()),
            "metadata": ObjectMeta {
                name: Some(name.to_owned()),
                uid: cluster.metadata.uid.clone(),
                ..ObjectMeta::default()
            },
            "status": status,
        });
        let parameters = PatchParams::apply(MANAGER).force();
        self.clusters()
            .patch_status(name, &parameters, &Patch::Apply(object))
            .await?;
        Ok(true)
    }
}
