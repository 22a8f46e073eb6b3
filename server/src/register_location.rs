//! Where the registers are that several processes of one role share: what stands on the command line, and what is opened by it.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use percolator_protocol::election::Timing;
use percolator_register::{FolderRegister, LoadError, Register, VersionedValue};
#[cfg(feature = "etcd")]
use percolator_register_etcd::{EtcdLocation, EtcdRegister, LocationError as EtcdLocationError};
#[cfg(feature = "kubernetes")]
use percolator_register_kube::{KubeLocation, KubeRegister, LocationError};
use percolator_telemetry::Limited;

use crate::Error;

/// How often an API server is asked by a standby. A planned end takes half of that longer, and each standby of each cluster
/// costs the API server as many reads from its etcd.
#[cfg(feature = "kubernetes")]
const POLL_OF_API_SERVER_MS: u64 = 200;
/// The pause after a load at the start that the store did not answer.
const RETRY: Duration = Duration::from_millis(500);

/// Where the registers of several processes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegisterLocation {
    /// In a folder that processes of one machine share; created if it's missing.
    File(PathBuf),
    /// In ConfigMaps, for pods. This is the one of the leadership.
    #[cfg(feature = "kubernetes")]
    Kubernetes(KubeLocation),
    /// In keys of etcd. This is the one of the leadership.
    #[cfg(feature = "etcd")]
    Etcd(EtcdLocation),
}

/// One of the registers at a location.
#[derive(Clone, Copy, Debug)]
pub struct RegisterPart {
    /// Its file in the folder.
    pub file: &'static str,
    /// What its ConfigMap, or its key of etcd, has behind the location's name.
    pub object_suffix: &'static str,
    /// An answer that takes longer is given up.
    pub timeout: Duration,
    /// The most bytes of a value in a file. A ConfigMap, or a key of etcd, takes [`percolator_register::VALUE_BYTES_MAX`].
    pub file_bytes_max: usize,
}

impl FromStr for RegisterLocation {
    type Err = String;

    /// As on the command line: `file:DIR`, `kube:NAMESPACE/NAME`, `kube:NAME` or `etcd:HOST:PORT/KEY`, where several members of one
    /// etcd have commas between.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("file", folder)) if !folder.is_empty() => Ok(Self::File(folder.into())),
            #[cfg(feature = "kubernetes")]
            Some(("kube", object)) => {
                let location = object.parse();
                location
                    .map(Self::Kubernetes)
                    .map_err(|error: LocationError| error.to_string())
            }
            #[cfg(not(feature = "kubernetes"))]
            Some(("kube", _)) => Err(
                "this program was built without a client of Kubernetes: build it with --features kubernetes, or take the \
                 program of the image"
                    .into(),
            ),
            #[cfg(feature = "etcd")]
            Some(("etcd", key)) => {
                let location = key.parse();
                location
                    .map(Self::Etcd)
                    .map_err(|error: EtcdLocationError| error.to_string())
            }
            #[cfg(not(feature = "etcd"))]
            Some(("etcd", _)) => Err(
                "this program was built without a client of etcd: build it with --features etcd, or take the program of the image"
                    .into(),
            ),
            _ => Err(
                "a register is written file:DIR, as in file:/var/lib/percolator/register, kube:NAMESPACE/NAME, as in \
                 kube:default/demo-tso-register, or etcd:HOST:PORT/KEY, as in etcd:etcd-0:2379,etcd-1:2379/percolator/demo-tso"
                    .into(),
            ),
        }
    }
}

impl RegisterLocation {
    /// Opens one of its registers, within a runtime. The store of a ConfigMap is not asked yet. `creates`: whether the folder is
    /// made if it's missing; one that was there before may be a volume that is away.
    ///
    /// # Errors
    /// The folder can't be created; the process is in no pod.
    pub fn open(&self, part: RegisterPart, creates: bool) -> Result<Arc<dyn Register>, Error> {
        match self {
            Self::File(folder) => {
                if creates {
                    std::fs::create_dir_all(folder).map_err(|cause| Error::File {
                        action: "create the folder",
                        path: folder.clone(),
                        cause,
                    })?;
                }
                let register = FolderRegister::new(folder.join(part.file))
                    .with_timeout(part.timeout)
                    .with_value_bytes_max(part.file_bytes_max);
                Ok(Arc::new(register))
            }
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(location) => {
                let location = KubeLocation {
                    name: format!("{}{}", location.name, part.object_suffix),
                    ..location.clone()
                };
                let register = KubeRegister::of_pod(&location)
                    .map_err(|error| Error::OpenRegister(error.into()))?;
                Ok(Arc::new(register.with_timeout(part.timeout)))
            }
            #[cfg(feature = "etcd")]
            Self::Etcd(location) => {
                let location = location.with_suffix(part.object_suffix);
                let register = EtcdRegister::at(&location)
                    .map_err(|error| Error::OpenRegister(error.into()))?;
                Ok(Arc::new(register.with_timeout(part.timeout)))
            }
        }
    }

    /// What one of its registers is called, for messages: a path, or an object.
    pub fn describe(&self, part: RegisterPart) -> String {
        match self {
            Self::File(folder) => folder.join(part.file).display().to_string(),
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(location) => format!("configmap {location}{}", part.object_suffix),
            #[cfg(feature = "etcd")]
            Self::Etcd(location) => location.with_suffix(part.object_suffix).to_string(),
        }
    }

    /// The times of an election over it.
    pub fn timing(&self) -> Timing {
        match self {
            Self::File(_) => Timing::default(),
            #[cfg(feature = "etcd")]
            Self::Etcd(_) => Timing::default(),
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(_) => Timing {
                poll_ms: POLL_OF_API_SERVER_MS,
                ..Timing::default()
            },
        }
    }
}

/// What the register holds, as soon as it can be read: a process that ended instead would be started again after pauses of
/// minutes.
///
/// # Errors
/// Those that don't pass by themselves.
pub async fn load_when_available(
    register: &dyn Register,
) -> Result<Option<VersionedValue>, LoadError> {
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
        for text in ["", "file:", "/a/b", "consul:a"] {
            let error = text.parse::<RegisterLocation>().unwrap_err();
            assert!(error.contains("file:DIR"), "{text}: {error}");
        }
    }

    #[cfg(feature = "etcd")]
    #[test]
    fn keys_of_etcd_begin_with_the_one_of_the_location() {
        let location: RegisterLocation = "etcd:a:2379,[::1]:2380/x/demo".parse().unwrap();
        let part = RegisterPart {
            file: "f",
            object_suffix: "-state",
            timeout: Duration::from_secs(1),
            file_bytes_max: 1,
        };
        let name = location.describe(part);
        assert_eq!(name, "etcd:a:2379,[::1]:2380/x/demo-state");
        let error = "etcd:a".parse::<RegisterLocation>().unwrap_err();
        assert!(error.contains("HOST:PORT"), "{error}");
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
