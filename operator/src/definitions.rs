//! Which kinds of the Prometheus operator's the API server knows: their definitions may come later, or go.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use kube::Client;

use crate::cluster::{Kind, UnavailableReason};

/// How long a response is cached for the reconciles of all clusters.
const CACHED_FOR: Duration = Duration::from_secs(30);

/// The last response, and its time.
#[derive(Debug, Default)]
pub(crate) struct Definitions {
    last: Mutex<Option<(Instant, BTreeMap<Kind, UnavailableReason>)>>,
}

impl Definitions {
    /// The kinds without definitions. If the API server doesn't answer, its last response counts.
    ///
    /// # Errors
    /// The API server doesn't answer, and never has.
    pub(crate) async fn unavailable(
        &self,
        client: &Client,
    ) -> kube::Result<BTreeMap<Kind, UnavailableReason>> {
        let now = Instant::now();
        let last = self
            .last
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if let Some((at, unavailable)) = &last
            && now.duration_since(*at) < CACHED_FOR
        {
            return Ok(unavailable.clone());
        }
        let version = Kind::PodMonitor.api().api_version;
        let all = |reason| Kind::OF_MONITORING.map(|kind| (kind, reason)).into();
        let mut unavailable: BTreeMap<Kind, UnavailableReason> = all(UnavailableReason::Definition);
        match client.list_api_group_resources(&version).await {
            Ok(list) => unavailable.retain(|kind, _| {
                let mut known = list.resources.iter();
                !known.any(|known| known.kind == kind.name())
            }),
            // The response is text, and no Status: the API server has nothing of this group.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            // No reason to leave the servers alone.
            Err(kube::Error::Api(status)) if status.code == 403 => {
                unavailable = all(UnavailableReason::Permission);
            }
            Err(error) => match last {
                Some((_, known)) => unavailable = known,
                None => return Err(error),
            },
        }
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((now, unavailable.clone()));
        Ok(unavailable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An API server that answers everything with this.
    fn that_says(status: u16, text: &'static str) -> Client {
        let answer = move |_: hyper::Request<kube::client::Body>| {
            let body = kube::client::Body::from(text.as_bytes().to_vec());
            let answer = hyper::Response::builder().status(status).body(body);
            std::future::ready(answer)
        };
        Client::new(tower::service_fn(answer), "n")
    }

    #[tokio::test]
    async fn what_there_is_no_definition_of_is_known() {
        let some = r#"{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "monitoring.coreos.com/v1",
            "resources": [{"name": "podmonitors", "singularName": "podmonitor", "namespaced": true,
                "kind": "PodMonitor", "verbs": ["get"]}]}"#;
        for (status, text, expected) in [
            (404, "404 page not found\n", &Kind::OF_MONITORING[..]),
            (200, some, &[Kind::PrometheusRule]),
        ] {
            let found = Definitions::default()
                .unavailable(&that_says(status, text))
                .await;
            let found: Vec<_> = found.expect("an answer").into_keys().collect();
            assert_eq!(found, expected);
        }
        let forbidden = Definitions::default()
            .unavailable(&that_says(403, "forbidden\n"))
            .await;
        let mut forbidden = forbidden.expect("an answer").into_values();
        assert!(forbidden.all(|reason| reason == UnavailableReason::Permission));
    }

    #[tokio::test]
    async fn an_answer_is_good_for_a_while_and_none_is_not_taken_for_one() {
        let definitions = Definitions::default();
        let failed = definitions.unavailable(&that_says(503, "later")).await;
        assert!(failed.is_err());
        let first = definitions
            .unavailable(&that_says(404, "none"))
            .await
            .expect("an answer");
        let second = definitions.unavailable(&that_says(503, "later")).await;
        assert_eq!(second.expect("the one before"), first);
        // Also when it is old: reconciles go on though the group doesn't answer.
        if let Some((at, _)) = &mut *definitions.last.lock().unwrap() {
            *at = at
                .checked_sub(2 * CACHED_FOR)
                .expect("a clock that has run");
        }
        let third = definitions.unavailable(&that_says(503, "later")).await;
        assert_eq!(third.expect("the one before"), first);
    }
}
