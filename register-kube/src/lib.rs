//! A register in a ConfigMap: compare-and-swap by its resourceVersion.
//!
//! Why a ConfigMap and a patch, and what a cluster has to allow, is in `docs/design/register.md`.

mod answers;
mod location;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::client::ClientBuilder;
use kube::{Client, Config};
use percolator_register::{
    BoxFuture, LoadError, Register, RegisterVersion, StoredRecord, SwapError, VersionFloor,
    VersionedValue, WriteId, check_size,
};

use crate::answers::Failure;
pub use crate::location::{KubeLocation, LocationError, OpenError};

/// The key of the value in the ConfigMap's `binaryData`.
pub const KEY: &str = "register";
/// The name of the writer in the API server's managed fields.
const MANAGER: &str = "percolator-register";

/// A register in a ConfigMap. Its versions are the object's resourceVersions, which are numbers that increase: for etcd as
/// Kubernetes uses it, and for every API server since Kubernetes 1.35 (KEP-5504).
///
/// The object may be there before it has a value; then it need not be created, and keeps what else it has.
pub struct KubeRegister {
    objects: Api<ConfigMap>,
    namespace: String,
    name: String,
    created_with: ObjectMeta,
    timeout: Duration,
    floor: VersionFloor,
}

impl fmt::Debug for KubeRegister {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubeRegister")
            .field("object", &self.register())
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// What is in the object's place.
enum FoundObject {
    Absent,
    /// It has no value yet, and this version.
    WithoutValue(RegisterVersion),
    WithValue(VersionedValue),
}

impl FoundObject {
    /// Of the value; none where there is none.
    fn version(&self) -> Option<RegisterVersion> {
        match self {
            Self::Absent | Self::WithoutValue(_) => None,
            Self::WithValue(found) => Some(found.version),
        }
    }
}

impl KubeRegister {
    /// A request whose answer takes longer is given up.
    pub const TIMEOUT: Duration = Duration::from_secs(2);

    /// The register in the ConfigMap of this name, at the API server that the configuration names. To be called within a
    /// runtime.
    ///
    /// # Errors
    /// The configuration can't be used.
    pub fn new(mut config: Config, namespace: &str, name: &str) -> kube::Result<Self> {
        // The client would send a write again whose answer is 503 or 504, and the second answer would be a conflict with the
        // first attempt. The caller of a swap decides what is tried again.
        config.default_retry = false;
        let client = ClientBuilder::try_from(config)?.build();
        Ok(Self::over(client, namespace, name))
    }

    fn over(client: Client, namespace: &str, name: &str) -> Self {
        Self {
            objects: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            created_with: ObjectMeta::default(),
            timeout: Self::TIMEOUT,
            floor: VersionFloor::default(),
        }
    }

    /// The same, which waits for each answer for so long in place of [`Self::TIMEOUT`]. A swap asks once, the first one of a
    /// register twice, and one that is in conflict once more.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// The same, which gives the object these labels, annotations and owners, should it be the one that creates it.
    #[must_use]
    pub fn created_with(self, metadata: ObjectMeta) -> Self {
        Self {
            created_with: metadata,
            ..self
        }
    }

    fn register(&self) -> String {
        format!("configmap {}/{}", self.namespace, self.name)
    }

    async fn ask<T>(&self, request: impl Future<Output = kube::Result<T>>) -> Result<T, Failure> {
        match tokio::time::timeout(self.timeout, request).await {
            Ok(answer) => answer.map_err(|error| Failure::of(&error)),
            Err(_) => Err(Failure::Unknown(format!(
                "no answer within {:?}",
                self.timeout
            ))),
        }
    }

    /// Without a resourceVersion in the request the API server asks a quorum of its etcd, and not its cache.
    async fn find(&self) -> Result<FoundObject, LoadError> {
        let least = self.floor.get();
        let register = self.register();
        let object = match self.ask(self.objects.get(&self.name)).await {
            Ok(object) => Some(object),
            Err(Failure::Missing(_)) => None,
            Err(Failure::Refused(reason)) => return Err(LoadError::Refused { register, reason }),
            Err(
                Failure::Conflict(reason) | Failure::Unavailable(reason) | Failure::Unknown(reason),
            ) => return Err(LoadError::Unavailable { register, reason }),
        };
        let found = object.map_or(Ok(FoundObject::Absent), found);
        let checked = found.and_then(|found| {
            self.floor.check(least, found.version())?;
            Ok(found)
        });
        checked.map_err(|reason| LoadError::Damaged { register, reason })
    }

    async fn swap_value(
        &self,
        expected: Option<RegisterVersion>,
        value: &[u8],
    ) -> Result<RegisterVersion, SwapError> {
        check_size(value)?;
        let write = WriteId::random();
        let record = StoredRecord::encode(write, &[value]);
        let swapped = match expected {
            // For the API server 0 is any version. No object has it.
            Some(RegisterVersion(0)) => Err(Failure::Conflict("no object has it".to_owned())),
            Some(version) => self.ask(self.patch(version, record)).await,
            None => match self.find().await? {
                FoundObject::Absent => self.ask(self.create(record)).await,
                FoundObject::WithoutValue(version) => self.ask(self.patch(version, record)).await,
                FoundObject::WithValue(found) => {
                    return Err(SwapError::Conflict {
                        register: self.register(),
                        expected,
                        found: Some(found.version),
                    });
                }
            },
        };
        let register = self.register();
        match swapped {
            Ok(object) => version(&object)
                .inspect(|version| self.floor.raise(*version))
                .map_err(|reason| SwapError::Unknown {
                    register,
                    write,
                    reason,
                }),
            Err(Failure::Conflict(reason) | Failure::Missing(reason)) => {
                self.after_conflict(expected, write, reason).await
            }
            Err(Failure::Refused(reason)) => Err(SwapError::Refused { register, reason }),
            Err(Failure::Unavailable(reason)) => Err(SwapError::Unavailable { register, reason }),
            Err(Failure::Unknown(reason)) => Err(SwapError::Unknown {
                register,
                write,
                reason,
            }),
        }
    }

    /// The API server reports another version. That may be ours: something between us and it may have sent the request
    /// twice, and this is the second one's response.
    async fn after_conflict(
        &self,
        expected: Option<RegisterVersion>,
        write: WriteId,
        reason: String,
    ) -> Result<RegisterVersion, SwapError> {
        let register = self.register();
        match self.find().await {
            Ok(FoundObject::WithValue(found)) if found.write == write => Ok(found.version),
            // As of a namespace that is missing, or of a quota that others change.
            Ok(found) if found.version() == expected => {
                Err(SwapError::Unavailable { register, reason })
            }
            Ok(found) => Err(SwapError::Conflict {
                register,
                expected,
                found: found.version(),
            }),
            Err(error) => Err(SwapError::Unknown {
                register,
                write,
                reason: format!("{reason}, and then: {error}"),
            }),
        }
    }

    async fn create(&self, record: Vec<u8>) -> kube::Result<ConfigMap> {
        let object = ConfigMap {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                namespace: Some(self.namespace.clone()),
                ..self.created_with.clone()
            },
            binary_data: Some(data(record)),
            ..ConfigMap::default()
        };
        let parameters = PostParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PostParams::default()
        };
        self.objects.create(&parameters, &object).await
    }

    /// A patch leaves alone what else the object has. One with a resourceVersion is refused when the object has another.
    async fn patch(&self, version: RegisterVersion, record: Vec<u8>) -> kube::Result<ConfigMap> {
        let changed = ConfigMap {
            metadata: ObjectMeta {
                resource_version: Some(version.to_string()),
                ..ObjectMeta::default()
            },
            binary_data: Some(data(record)),
            ..ConfigMap::default()
        };
        let parameters = PatchParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PatchParams::default()
        };
        self.objects
            .patch(&self.name, &parameters, &Patch::Merge(&changed))
            .await
    }
}

fn data(record: Vec<u8>) -> BTreeMap<String, ByteString> {
    BTreeMap::from([(KEY.to_owned(), ByteString(record))])
}

fn found(mut object: ConfigMap) -> Result<FoundObject, String> {
    let version = version(&object)?;
    let record = object
        .binary_data
        .as_mut()
        .and_then(|data| data.remove(KEY));
    let Some(ByteString(record)) = record else {
        return Ok(FoundObject::WithoutValue(version));
    };
    let StoredRecord { write, value } = StoredRecord::decode(record)?;
    Ok(FoundObject::WithValue(VersionedValue {
        value,
        version,
        write,
    }))
}

fn version(object: &ConfigMap) -> Result<RegisterVersion, String> {
    let text = object.metadata.resource_version.as_deref();
    match text.unwrap_or_default().parse() {
        Ok(version @ 1..) => Ok(RegisterVersion(version)),
        _ => Err(format!("the resourceVersion {text:?} is no number")),
    }
}

impl Register for KubeRegister {
    fn load(&self) -> BoxFuture<'_, Result<Option<VersionedValue>, LoadError>> {
        Box::pin(async {
            Ok(match self.find().await? {
                FoundObject::Absent | FoundObject::WithoutValue(_) => None,
                FoundObject::WithValue(found) => Some(found),
            })
        })
    }

    fn swap(
        &self,
        expected: Option<RegisterVersion>,
        value: Vec<u8>,
    ) -> BoxFuture<'_, Result<RegisterVersion, SwapError>> {
        Box::pin(async move { self.swap_value(expected, &value).await })
    }
}

#[cfg(test)]
mod tests;
