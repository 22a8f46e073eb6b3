//! The proxies: transactions for applications that have no client library.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Duration;
use crate::definition::{count_between, duration_between};
use crate::pod::{ClientService, Pod};
use crate::resources::{PROXY_LEAST, least_memory};

/// The proxies: they carry out transactions for applications in any language, over gRPC and over HTTP with JSON, at the service
/// with the cluster's name and `-proxy`. A local cluster has one proxy, and
/// takes `idleMax` and `sessionMax` from here. Default: none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = least_memory(PROXY_LEAST)))]
pub struct Proxy {
    /// How many proxies, from 0 to 100; 0 is the same as no `proxy` at all. Left out: the Deployment begins with 1, and the
    /// operator leaves its number to others, as a HorizontalPodAutoscaler. Default: left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = count_between(0, 100)))]
    pub replicas: Option<u32>,
    /// A session without a call for so long is rolled back, from 1s to 1h. Changing it replaces the proxies. Default: 30s.
    #[schemars(extend("x-kubernetes-validations" = duration_between("1s", "1h")))]
    pub idle_max: Duration,
    /// A session that is open for so long is rolled back, from 1s to 1h. Changing it replaces the proxies. Default: 5m.
    #[schemars(extend("x-kubernetes-validations" = duration_between("1s", "1h")))]
    pub session_max: Duration,
    /// How long the sessions of a proxy that is to stop may go on, from 0s to 1h; then they are rolled back. Its pod has so much
    /// longer to end. Changing it replaces the proxies. Default: 10s.
    #[schemars(extend("x-kubernetes-validations" = duration_between("0s", "1h")))]
    pub grace: Duration,
    /// The service that sessions are begun at. Of a type other than ClusterIP, it leads a client's connections to the same proxy.
    pub service: ClientService,
    /// The proxies' pods.
    pub pod: Pod,
}

impl Default for Proxy {
    fn default() -> Self {
        Self {
            replicas: None,
            idle_max: Duration::from_millis(30_000),
            session_max: Duration::from_millis(300_000),
            grace: Duration::from_millis(10_000),
            service: ClientService::default(),
            pod: Pod::default(),
        }
    }
}
