//! What a manifest may say about pods, services and volumes: nothing here has an effect on a local cluster.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::{
    Affinity, EnvVar, PodSecurityContext, SecurityContext, Toleration, TopologySpreadConstraint,
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, de};

use crate::Quantity;
use crate::definition::rules;
use crate::quantity::{BILLION, Number};

// Of a field that may be null, the definition and the reference show this text, and not the field's own.
/// When to pull the image: Always, IfNotPresent or Never. Changing it restarts the servers, one after the other. Default:
/// Kubernetes' own, Always for the tag latest and IfNotPresent for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PullPolicy {
    /// At each start of a container.
    Always,
    /// When the node doesn't have it.
    IfNotPresent,
    /// Never: the node has it, or the container doesn't start.
    Never,
}

impl PullPolicy {
    /// The policy's name, as Kubernetes spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

/// A secret of the cluster's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretName {
    /// The secret's name.
    pub name: String,
}

/// What becomes of the volumes' claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Claims {
    /// What becomes of the claims, and with them of all data, when the cluster is deleted: Retain or
    /// Delete. A cluster that is made again with the same name takes retained claims up. Default: Retain.
    pub when_deleted: ClaimRetention,
    /// What becomes of the claim of a tablet server that its StatefulSet no longer has: Retain or Delete. Nothing
    /// asks for fewer tablet servers yet (`tablets.replicas` must not shrink), so it counts for anyone who scales the
    /// StatefulSet by hand, behind a paused operator as a rule; with Delete that server's data is lost. The claims of
    /// oracles and of the master stay. Default: Retain.
    pub when_scaled: ClaimRetention,
}

/// What becomes of a claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ClaimRetention {
    /// It stays.
    #[default]
    Retain,
    /// It goes, and the data with it.
    Delete,
}

impl ClaimRetention {
    /// The word that Kubernetes has for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Retain => "Retain",
            Self::Delete => "Delete",
        }
    }
}

/// What the servers log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Log {
    /// From which level on: error, warn, info, debug or trace. A change counts within two minutes and restarts nobody.
    /// Default: info.
    pub level: LogLevel,
    /// How a line looks: text for people, json for programs. Changing it restarts the servers, one after the other.
    /// Default: json.
    pub format: LogFormat,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            level: LogLevel::Info,
            format: LogFormat::Json,
        }
    }
}

/// How much is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum LogLevel {
    /// What went wrong.
    Error,
    /// And what may go wrong.
    Warn,
    /// And what happens.
    Info,
    /// And how.
    Debug,
    /// And everything else.
    Trace,
}

impl LogLevel {
    /// The level's name, as the servers take it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl LogFormat {
    /// The format's name, as the servers take it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// How a service is marked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Service {
    /// More labels of the service; not those that every object of the cluster has. Default: none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the service. Default: none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// The volume of a server that keeps little.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Volume {
    /// The volume's size, in bytes, at least 16Mi; it may grow, and not shrink below what the volume was asked for.
    /// Default: 1Gi.
    #[schemars(extend("x-kubernetes-validations" = rules(&[("quantity(string(self)).compareTo(quantity('16Mi')) >= 0", "must be at least 16Mi")])))]
    pub size: Quantity,
    /// The volume's storage class; it can't be changed once there is a volume. Default: the Kubernetes cluster's default
    /// class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_class_name: Option<String>,
}

impl Default for Volume {
    fn default() -> Self {
        Self {
            size: Quantity::from_bytes(1 << 30),
            storage_class_name: None,
        }
    }
}

/// How a role's pods run. Changing anything here restarts the role's servers, one at a time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Pod {
    /// What a server asks for, and what it may not exceed. Default: none.
    pub resources: Resources,
    /// Labels that a node must have. Default: any node.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Rules about nodes, and about other pods on them, as Kubernetes' own `affinity`. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Taints of nodes to put up with, as Kubernetes' own `tolerations`. Default: none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// How pods are spread, as Kubernetes' own `topologySpreadConstraints`. Default: tablet servers over
    /// zones and over nodes, as evenly as can be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_spread_constraints: Option<Vec<TopologySpreadConstraint>>,
    /// Priority class of the pods. Default: the Kubernetes cluster's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Service account of the pods; they never use its token. Default: one of the cluster's name, that the
    /// operator makes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
    /// More labels of the pods; not below app.kubernetes.io or percolator.dev. Default: none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pods. Default: none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// More variables of the environment, as Kubernetes' own `env`; `OTEL_EXPORTER_OTLP_ENDPOINT` turns traces on. Default:
    /// none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
    /// Replaces the pods' security context. Default: user and group 65532, not root, the runtime's
    /// default seccomp profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub security_context: Option<PodSecurityContext>,
    /// Replaces the containers' security context, as Kubernetes' own `securityContext` of a container; what both say, counts
    /// from here. Default: no more rights than at the start, a root file system that can't be written, no capabilities.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_security_context: Option<SecurityContext>,
}

/// What a container asks for, and what it may not exceed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Resources {
    /// What a node must have free: cpu in cores (500m is half of one), memory in bytes. Default: none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, Amount>,
    /// What the container is held to, in the same units. Default: none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, Amount>,
}

/// An amount of a resource, in Kubernetes' notation: `2`, `500m`, `1Gi`. It stays as it was written, and is equal to
/// another by what both are: the API server writes `1000m` as `1`, and `1024Mi` as `1Gi`.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub struct Amount(pub String);

impl Amount {
    /// Whether a manifest may have it: a number, if need be with m or one of the suffixes of a [`Quantity`], of at most
    /// 2^63 - 1: of more than that the API server makes that.
    pub fn is_valid(&self) -> bool {
        Number::read(&self.0).is_some_and(|number| {
            let most = u128::from(i64::MAX.unsigned_abs()) * BILLION;
            let is_fine = ["u", "n"].contains(&number.suffix);
            !is_fine && number.billionths.is_some_and(|amount| amount <= most)
        })
    }
}

impl PartialEq for Amount {
    fn eq(&self, other: &Self) -> bool {
        let amount = |text: &str| Number::read(text)?.billionths;
        self.0 == other.0 || amount(&self.0).is_some_and(|it| amount(&other.0) == Some(it))
    }
}

impl Eq for Amount {}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Amount;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an amount, such as 2, \"500m\" or \"1Gi\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Amount, E> {
                Ok(Amount(text.into()))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Amount, E> {
                Ok(Amount(number.to_string()))
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Amount, E> {
                Ok(Amount(number.to_string()))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl JsonSchema for Amount {
    fn schema_name() -> Cow<'static, str> {
        "Amount".into()
    }

    fn inline_schema() -> bool {
        true
    }

    // The form in which Kubernetes' own schemas describe a quantity.
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [{ "type": "integer" }, { "type": "string" }],
            "pattern": r"^[0-9]+(\.[0-9]{1,18})?(m|[KMGTPE]i|[kMGTPE])?$",
            "x-kubernetes-int-or-string": true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(text: &str) -> Amount {
        Amount(text.into())
    }

    #[test]
    fn amounts_are_compared_by_what_they_are() {
        for (written, kept) in [
            ("1000m", "1"),
            ("0.5", "500m"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("1000", "1k"),
            ("0.0001", "100u"),
            ("0.0000000001", "1n"),
            ("x", "x"),
        ] {
            assert_eq!(amount(written), amount(kept));
        }
        for (written, other) in [("1000m", "2"), ("1Gi", "1G"), ("1", "1m"), ("x", "y")] {
            assert_ne!(amount(written), amount(other));
        }
    }

    #[test]
    fn what_is_no_amount_is_refused() {
        for text in ["2", "500m", "1.5", "1Gi", "9223372036854775807"] {
            assert!(amount(text).is_valid(), "{text}");
        }
        for text in [
            "",
            "m",
            "1Kim",
            "1.m",
            "1u",
            "1n",
            "1e3",
            "-1",
            "+1",
            "9223372036854775808",
            "8Ei",
        ] {
            assert!(!amount(text).is_valid(), "{text}");
        }
    }
}
