//! The part of a watched object that the operator keeps in memory: its identity and its owner. The rest, above all the managed
//! fields, is several times larger, and is dropped while it is decoded.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use kube::api::ObjectMeta;
use serde::{Deserialize, Deserializer};

/// An object of kind `K`.
pub(crate) struct KnownObject<K> {
    pub(crate) metadata: ObjectMeta,
    kind: PhantomData<fn() -> K>,
}

impl<K> KnownObject<K> {
    pub(crate) fn new(metadata: ObjectMeta) -> Self {
        Self {
            metadata,
            kind: PhantomData,
        }
    }
}

impl<K> Clone for KnownObject<K> {
    fn clone(&self) -> Self {
        Self::new(self.metadata.clone())
    }
}

impl<K> fmt::Debug for KnownObject<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.metadata.fmt(f)
    }
}

impl<'de, K> Deserialize<'de> for KnownObject<K> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Object {
            #[serde(default)]
            metadata: Metadata,
        }
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Metadata {
            name: Option<String>,
            namespace: Option<String>,
            uid: Option<String>,
            resource_version: Option<String>,
            generation: Option<i64>,
            labels: Option<std::collections::BTreeMap<String, String>>,
            owner_references: Option<Vec<OwnerReference>>,
        }
        let Object { metadata } = Object::deserialize(from)?;
        Ok(Self::new(ObjectMeta {
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            generation: metadata.generation,
            labels: metadata.labels,
            owner_references: metadata.owner_references,
            ..ObjectMeta::default()
        }))
    }
}

impl<K: Resource<DynamicType = ()>> Resource for KnownObject<K> {
    type DynamicType = ();
    type Scope = K::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        K::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        K::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        K::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        K::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;

    use super::*;

    #[test]
    fn what_an_object_is_and_whose_is_kept() {
        let text = r#"{"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7", "generation": 2,
                "labels": {"l": "1"}, "annotations": {"a": "2"}, "managedFields": [{"manager": "m"}],
                "ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "y", "controller": true}]},
            "spec": {"containers": []}}"#;
        let known: KnownObject<Pod> = serde_json::from_str(text).unwrap();
        let metadata = known.meta();
        assert_eq!(metadata.name.as_deref(), Some("a"));
        assert_eq!(metadata.generation, Some(2));
        assert_eq!(metadata.owner_references.as_ref().unwrap()[0].uid, "y");
        assert_eq!(metadata.labels.as_ref().unwrap()["l"], "1");
        assert!(metadata.managed_fields.is_none() && metadata.annotations.is_none());
        assert_eq!(KnownObject::<Pod>::plural(&()), "pods");
    }
}
