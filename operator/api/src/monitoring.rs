//! What the operator makes for the Prometheus operator: part of a manifest.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Duration;
use crate::definition::duration_between;

/// What is made for the Prometheus operator (`monitoring.coreos.com/v1`). Where its definitions aren't there, the
/// condition Monitored says so, and they are waited for; the servers don't wait. A change restarts nobody.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Monitoring {
    /// A PodMonitor with the cluster's name: every server is scraped.
    pub pod_monitor: PodMonitor,
    /// A PrometheusRule with the cluster's name: the alerts about this cluster. Where the chart makes one for all
    /// (`metrics.prometheusRule`), each of these alerts would fire twice.
    pub prometheus_rule: PrometheusRule,
}

/// Who scrapes the servers, and how often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodMonitor {
    /// Make one. Default: false.
    pub enabled: bool,
    /// How often each server is scraped, from 1s to 1m: some alerts wait for a minute. Default: 30s.
    #[schemars(extend("x-kubernetes-validations" = duration_between("1s", "1m")))]
    pub interval: Duration,
    /// More labels of it: those by which a Prometheus finds it. Default: none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl Default for PodMonitor {
    fn default() -> Self {
        Self {
            enabled: false,
            interval: Duration::from_millis(30_000),
            labels: BTreeMap::new(),
        }
    }
}

/// The PrometheusRule with the alerts of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PrometheusRule {
    /// Make one. Default: false.
    pub enabled: bool,
    /// More labels of it: those by which a Prometheus finds it. Default: none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}
