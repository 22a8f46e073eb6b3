//! Workers that run for changes of observed columns.

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Duration, Needs, Pod, Quantity, Resources};

/// Workers that run a program, or call a URL, for each change of a column, as `percolator observe run` does: a Deployment with
/// the cluster's name, `-observer-` and this name. They have the column observed before they start. A local cluster ignores
/// them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Observer {
    /// What the workers are called: 1 to 20 of a-z, 0-9 and '-', starting and ending with a letter or digit.
    pub name: String,
    /// The table, which has to be there.
    pub table: String,
    /// The column.
    pub column: String,
    /// The program that is run for each change, and its arguments, as a shell takes them. It needs `image`: the servers' image has
    /// no shell. Either this or `webhook` is set. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<String>,
    /// The URL that is called for each change. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Webhook>,
    /// The image for `exec`: it has the program, a shell, and `percolator` in its PATH, as copied from the servers' image.
    /// Default: the servers' image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// How many workers, from 0 to 100; they share the changes. Left out: the Deployment begins with 1, and the operator leaves its
    /// number to others, as a HorizontalPodAutoscaler. Default: left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    /// Runs at a time, of each worker, from 1 to 1000. Default: 4.
    #[serde(default = "four")]
    pub concurrency: u32,
    /// A change on whose value runs have failed so often becomes a dead letter, from 1 to 1000. Default: 5.
    #[serde(default = "five")]
    pub attempts: u32,
    /// A run that takes longer has failed, from 1s to 1h. Default: 30s.
    #[serde(default = "half_a_minute")]
    pub timeout: Duration,
    /// Variables of the environment, as Kubernetes' own `env`. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
    /// More of them, from secrets and ConfigMaps, as Kubernetes' own `envFrom`. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env_from: Vec<EnvFromSource>,
    /// What a worker asks for, and what it may not exceed, together with the programs that it runs.
    #[serde(default)]
    pub resources: Resources,
}

/// A URL that is called for each change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Webhook {
    /// The URL: http:// or https://.
    pub url: String,
    /// The secret that has the key by which calls are signed.
    pub key_secret: SecretKey,
}

/// A key of a secret of the cluster's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKey {
    /// The secret's name.
    pub name: String,
    /// The key in it.
    pub key: String,
}

fn four() -> u32 {
    4
}

fn five() -> u32 {
    5
}

fn half_a_minute() -> Duration {
    Duration::from_millis(30_000)
}

impl Observer {
    /// What a worker needs beside the programs that it runs.
    pub fn needs(&self) -> Needs {
        Needs {
            cpu_millis: 50,
            request: Quantity::from_bytes(64 << 20),
            limit: Quantity::from_bytes(512 << 20),
            least: Quantity::from_bytes(32 << 20),
        }
    }

    /// How its pods run.
    pub fn pod(&self) -> Pod {
        Pod {
            resources: self.resources.clone(),
            env: self.env.clone(),
            ..Pod::default()
        }
    }

    /// Arguments of `percolator observe run`.
    pub fn to_args(&self) -> Vec<String> {
        let mut arguments = vec![
            format!("--concurrency={}", self.concurrency),
            format!("--attempts={}", self.attempts),
            format!("--timeout={}ms", self.timeout.as_millis()),
        ];
        if let Some(command) = &self.exec {
            arguments.push(format!("--exec={command}"));
        }
        if let Some(webhook) = &self.webhook {
            arguments.push(format!("--webhook={}", webhook.url));
        }
        arguments.extend(["--".to_owned(), self.table.clone(), self.column.clone()]);
        arguments
    }
}
