//! The register of several oracles: where it is, how it is opened, and its first value.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use percolator_protocol::election::{Leadership, Timing};
use percolator_protocol::types::Timestamp;
use percolator_register::{FileRegister, LoadError, Register, SwapError, VersionedValue};
use percolator_server::{DurableValue as _, Folder, SmallFile};
use percolator_telemetry::Limited;

use crate::Error;
use crate::core::StartError;

/// The file of the oracles' register, in the folder that they share.
const FILE: &str = "oracle";
/// A store that takes longer is asked again: a leader has to renew its right within two seconds.
const TIMEOUT: Duration = Duration::from_secs(1);
/// How often an API server is asked by a standby. A planned end takes half of that longer, and each standby of each cluster
/// costs the API server as many reads from its etcd.
#[cfg(feature = "kubernetes")]
const POLL_OF_API_SERVER_MS: u64 = 200;
/// The pause after a load at the start that the store did not answer.
const RETRY: Duration = Duration::from_millis(500);

/// Where the register of several oracles is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegisterLocation {
    /// In a folder that processes of one machine share; created if it's missing.
    File(PathBuf),
    /// In a ConfigMap, for pods.
    #[cfg(feature = "kubernetes")]
    Kubernetes(percolator_register_kube::KubeLocation),
}

impl FromStr for RegisterLocation {
    type Err = String;

    /// As on the command line: `file:DIR`, `kube:NAMESPACE/NAME` or `kube:NAME`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("file", folder)) if !folder.is_empty() => Ok(Self::File(folder.into())),
            #[cfg(feature = "kubernetes")]
            Some(("kube", object)) => {
                let location = object.parse();
                location
                    .map(Self::Kubernetes)
                    .map_err(|error: percolator_register_kube::LocationError| error.to_string())
            }
            #[cfg(not(feature = "kubernetes"))]
            Some(("kube", _)) => Err(
                "this program was built without a client of Kubernetes: build it with --features kubernetes, or take the \
                 program of the image"
                    .into(),
            ),
            _ => Err(
                "a register is written file:DIR, as in file:/var/lib/percolator/register, or kube:NAMESPACE/NAME, as in \
                 kube:default/demo-tso-register"
                    .into(),
            ),
        }
    }
}

impl RegisterLocation {
    /// Opens it. An oracle that has taken part in it waits for it where it was; another one creates the folder of a file.
    ///
    /// # Errors
    /// The folder can't be created; the process is in no pod.
    pub(crate) fn open(&self, has_taken_part: bool) -> Result<Arc<dyn Register>, Error> {
        match self {
            Self::File(folder) => {
                if !has_taken_part {
                    std::fs::create_dir_all(folder).map_err(|cause| {
                        percolator_server::Error::File {
                            action: "create the folder",
                            path: folder.clone(),
                            cause,
                        }
                    })?;
                }
                let register = FileRegister::new(folder.join(FILE));
                Ok(Arc::new(register.with_timeout(TIMEOUT)))
            }
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(location) => {
                let register = percolator_register_kube::KubeRegister::of_pod(location)?;
                Ok(Arc::new(register.with_timeout(TIMEOUT)))
            }
        }
    }

    /// The times of an election over it.
    pub(crate) fn timing(&self) -> Timing {
        match self {
            Self::File(_) => Timing::default(),
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(_) => Timing {
                poll_ms: POLL_OF_API_SERVER_MS,
                ..Timing::default()
            },
        }
    }
}

/// A register that has a value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BegunRegister {
    /// Which one it is, by its value.
    pub(crate) id: u64,
    /// What this oracle has granted at most while it was alone.
    pub(crate) limit: Timestamp,
}

/// Makes the register one that has a value. Refuses an empty register to an oracle that has granted timestamps with one, or has
/// taken part in `former_register`, if that isn't 0. A register that can't be read now is waited for.
pub(crate) async fn begin(
    register: &dyn Register,
    file: &SmallFile,
    folder: &Folder,
    incarnation: u64,
    former_register: u64,
) -> Result<BegunRegister, Error> {
    let stored = file.load()?;
    let limit = match stored.as_deref().map(<[u8; 8]>::try_from) {
        None => Timestamp::ZERO,
        Some(Ok(limit)) => Timestamp::from_u64(u64::from_le_bytes(limit)),
        Some(Err(_)) => {
            let bytes = stored.unwrap_or_default().len();
            let (path, cause) = (file.path().to_owned(), StartError::NoLimit { bytes });
            return Err(Error::NoLimit { path, cause });
        }
    };
    if load(register).await?.is_none() {
        let belongs_to = match folder.cluster_id() {
            Some(cluster_id) => Some(format!("cluster {cluster_id:?}")),
            None => (former_register != 0).then(|| format!("register {former_register}")),
        };
        if let (None, Some(belongs_to)) = (&stored, belongs_to) {
            return Err(Error::RegisterEmpty { belongs_to });
        }
        let first = Leadership::first(incarnation, limit);
        match register.swap(None, first.encode()).await {
            Ok(_) => {}
            Err(error @ (SwapError::Refused { .. } | SwapError::Damaged { .. })) => {
                return Err(Error::RegisterRefused(error));
            }
            // Another oracle was first, or a load shows whether this one was.
            Err(error) => tracing::debug!(%error, "the register's first value"),
        }
    }
    let found = load(register).await?.ok_or(Error::RegisterNotBegun)?;
    let mut value = Leadership::decode(&found.value)?;
    if value.limit < limit {
        // No other oracle may begin a term below what this one has granted alone.
        if value.holder.is_some() {
            return Err(Error::RegisterBehind);
        }
        value.limit = limit;
        let raised = register.swap(Some(found.version), value.encode()).await;
        raised.map_err(|error| {
            tracing::warn!(%error, "the register does not take the limit of this oracle's folder");
            Error::RegisterNotBegun
        })?;
    }
    if stored.is_some() && value.limit >= limit {
        // From here on the register alone has the limit: an oracle that is started without it must not go on from here.
        if let Err(error) = std::fs::remove_file(file.path()) {
            tracing::warn!(%error, "the limit of before can't be removed");
        }
    }
    Ok(BegunRegister {
        id: value.register,
        limit,
    })
}

/// Whether the register can't be read now.
pub(crate) async fn is_away(register: &dyn Register) -> bool {
    let loaded = register.load().await;
    matches!(loaded, Err(LoadError::Unavailable { .. }))
}

/// What the register holds, as soon as it can be read: a process that ended instead would be started again after pauses of
/// minutes.
async fn load(register: &dyn Register) -> Result<Option<VersionedValue>, LoadError> {
    loop {
        match register.load().await {
            Err(error @ LoadError::Unavailable { .. }) => {
                static LOGGED: Limited = Limited::new();
                if let Some(left_out) = LOGGED.admit() {
                    tracing::warn!(%error, left_out, "waiting for the register");
                }
                tokio::time::sleep(RETRY).await;
            }
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_read_as_it_is_written() {
        let file: RegisterLocation = "file:/a/b".parse().unwrap();
        assert_eq!(file, RegisterLocation::File("/a/b".into()));
        for text in ["", "file:", "/a/b", "etcd:a"] {
            let error = text.parse::<RegisterLocation>().unwrap_err();
            assert!(error.contains("file:DIR"), "{text}: {error}");
        }
    }

    #[cfg(feature = "kubernetes")]
    #[test]
    fn a_config_map_is_polled_less_often_than_a_file() {
        let object: RegisterLocation = "kube:default/demo".parse().unwrap();
        let RegisterLocation::Kubernetes(location) = &object else {
            panic!("{object:?}");
        };
        assert_eq!(location.namespace.as_deref(), Some("default"));
        let timing = object.timing();
        assert!(timing.poll_ms > Timing::default().poll_ms);
        // The leader renews its right in time also when it wakes only that often.
        assert!(timing.renew_ms + 2 * timing.poll_ms < timing.right_ms);
        let error = "kube:A".parse::<RegisterLocation>().unwrap_err();
        assert!(error.contains("NAMESPACE/NAME"), "{error}");
    }

    #[cfg(not(feature = "kubernetes"))]
    #[test]
    fn a_program_without_a_client_of_kubernetes_says_so() {
        let error = "kube:default/demo".parse::<RegisterLocation>();
        assert!(error.unwrap_err().contains("--features kubernetes"));
    }
}
