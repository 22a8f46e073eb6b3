//! Where the register of a cluster is, and how a pod opens it.

use std::fmt;
use std::str::FromStr;

use kube::Config;

use crate::KubeRegister;

/// What a name of Kubernetes may have, in bytes.
const NAME_BYTES_MAX: usize = 253;

/// A ConfigMap that holds a register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeLocation {
    /// None: the pod's own.
    pub namespace: Option<String>,
    /// The ConfigMap's name.
    pub name: String,
}

/// The text names no ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} names no ConfigMap: write NAMESPACE/NAME, or NAME for one in the pod's own namespace, each of a-z, 0-9, '-' \
     and '.', starting and ending with a letter or digit"
)]
pub struct LocationError {
    text: String,
}

impl FromStr for KubeLocation {
    type Err = LocationError;

    /// `NAMESPACE/NAME` or `NAME`.
    fn from_str(text: &str) -> Result<Self, LocationError> {
        let (namespace, name) = match text.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, text),
        };
        if !is_name(name) || !namespace.is_none_or(is_name) {
            let text = text.to_owned();
            return Err(LocationError { text });
        }
        Ok(Self {
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
        })
    }
}

impl fmt::Display for KubeLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.name)
    }
}

fn is_name(text: &str) -> bool {
    let outer = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let inner = |b: u8| outer(Some(b)) || b == b'-' || b == b'.';
    text.len() <= NAME_BYTES_MAX
        && outer(text.bytes().next())
        && outer(text.bytes().last())
        && text.bytes().all(inner)
}

/// Why a pod can't open a register.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The process has no service account.
    #[error(
        "a register in a ConfigMap is for pods, and this process has no service account of Kubernetes: {0}; in a pod set \
         automountServiceAccountToken: true, and elsewhere use a register of another kind"
    )]
    NoServiceAccount(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The configuration can't be used.
    #[error("the API server cannot be asked with the configuration of this pod: {0}")]
    Client(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl KubeRegister {
    /// Opens the register of a pod, with the token of its service account. To be called within a runtime. It asks the API
    /// server nothing yet.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn of_pod(location: &KubeLocation) -> Result<Self, OpenError> {
        let config = Config::incluster();
        let config = config.map_err(|error| OpenError::NoServiceAccount(error.into()))?;
        let own = config.default_namespace.trim().to_owned();
        let namespace = location.namespace.clone().unwrap_or(own);
        let register = Self::new(config, &namespace, &location.name);
        register.map_err(|error| OpenError::Client(error.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_read_as_it_is_written() {
        for (text, namespace, name) in [
            ("demo-tso-register", None, "demo-tso-register"),
            ("default/a.b", Some("default"), "a.b"),
        ] {
            let location: KubeLocation = text.parse().unwrap();
            assert_eq!(location.namespace.as_deref(), namespace);
            assert_eq!(location.name, name);
            assert_eq!(location.to_string(), text);
        }
        for text in ["", "/", "a/", "/b", "a/b/c", "A", "-a", "a b", "a/B", "a_b"] {
            let error = text.parse::<KubeLocation>().unwrap_err().to_string();
            assert!(error.contains("NAMESPACE/NAME"), "{text}: {error}");
        }
        assert!("a".repeat(254).parse::<KubeLocation>().is_err());
    }

    #[tokio::test]
    #[allow(clippy::print_stdout, reason = "the word that xtask listens for")]
    async fn outside_of_a_pod_the_error_says_what_is_missing() {
        if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
            println!("SKIPPED: the tests run in a pod");
            return;
        }
        let location = "demo".parse().unwrap();
        let error = KubeRegister::of_pod(&location).unwrap_err().to_string();
        assert!(error.contains("automountServiceAccountToken"), "{error}");
    }
}
