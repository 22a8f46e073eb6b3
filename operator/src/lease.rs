//! Leader election: of several operators, the one that holds the lease acts.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, ObjectMeta, PostParams};
use tokio::time::Instant;

/// Whoever says nothing for so long has lost the lease.
const LASTS: Duration = Duration::from_secs(15);
/// A holder that could not renew for so long stops acting: before anybody else begins to.
const GIVES_UP: Duration = Duration::from_secs(10);
/// How often it is renewed, or looked at.
const EVERY: Duration = Duration::from_secs(2);

/// The lease, and who we are.
pub(crate) struct Election {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Our name: no other operator has it.
    pub(crate) me: String,
}

/// What others hold is judged by our own clock alone: since when it has not changed.
struct Seen {
    version: Option<String>,
    since: Instant,
}

impl Election {
    fn api(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Waits until the lease is ours.
    pub(crate) async fn win(&self) {
        let mut seen = None;
        loop {
            match self.try_win(&mut seen).await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, lease = self.name, "cannot ask for the lease"),
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    async fn try_win(&self, seen: &mut Option<Seen>) -> kube::Result<bool> {
        let Some(mut lease) = self.api().get_opt(&self.name).await? else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(self.name.clone()),
                    ..ObjectMeta::default()
                },
                spec: Some(self.held(0)),
            };
            return took(self.api().create(&PostParams::default(), &lease).await);
        };
        let version = lease.metadata.resource_version.clone();
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.unwrap_or_default();
        let since = match seen {
            Some(seen) if seen.version == version => seen.since,
            _ => {
                let since = Instant::now();
                if !holder.is_empty() && holder != self.me {
                    tracing::info!(
                        holder,
                        lease = self.name,
                        "another operator holds the lease"
                    );
                }
                *seen = Some(Seen { version, since });
                since
            }
        };
        if !holder.is_empty() && holder != self.me && since.elapsed() < LASTS {
            return Ok(false);
        }
        lease.spec = Some(self.held(spec.lease_transitions.unwrap_or_default() + 1));
        // With the version that was read: of two that try, one is told of a conflict.
        let result = self
            .api()
            .replace(&self.name, &PostParams::default(), &lease)
            .await;
        took(result)
    }

    fn held(&self, transitions: i32) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        LeaseSpec {
            holder_identity: Some(self.me.clone()),
            lease_duration_seconds: Some(i32::try_from(LASTS.as_secs()).unwrap_or(i32::MAX)),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }

    /// Keeps the lease; ends when it's lost, or may be.
    pub(crate) async fn keep(&self) {
        let mut renewed = Instant::now();
        while renewed.elapsed() < GIVES_UP {
            tokio::time::sleep(EVERY).await;
            let asked = Instant::now();
            match tokio::time::timeout(GIVES_UP / 2, self.renew()).await {
                Ok(Ok(true)) => renewed = asked,
                Ok(Ok(false)) => return,
                Ok(Err(error)) => {
                    tracing::warn!(%error, lease = self.name, "cannot renew the lease")
                }
                Err(_) => tracing::warn!(lease = self.name, "no answer about the lease"),
            }
        }
    }

    async fn renew(&self) -> kube::Result<bool> {
        let mut lease = self.api().get(&self.name).await?;
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(&self.me) {
            return Ok(false);
        }
        spec.renew_time = Some(MicroTime(Timestamp::now()));
        let result = self
            .api()
            .replace(&self.name, &PostParams::default(), &lease)
            .await;
        took(result)
    }

    /// Gives the lease back, so that the next one need not wait until it ends.
    pub(crate) async fn give_back(&self) -> kube::Result<()> {
        let mut lease = self.api().get(&self.name).await?;
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() == Some(&self.me) {
            spec.holder_identity = Some(String::new());
            self.api()
                .replace(&self.name, &PostParams::default(), &lease)
                .await?;
        }
        Ok(())
    }
}

/// Whether a write won: somebody else's came before one that is in conflict.
fn took<T>(result: kube::Result<T>) -> kube::Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}
