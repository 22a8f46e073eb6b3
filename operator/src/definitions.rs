//! Which kinds of the Prometheus operator's the API server knows: their definitions may come later, or go.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use kube::Client;

use crate::cluster::{Kind, Lack};

/// For so long an answer is good for the reconciles of all clusters.
const GOOD_FOR: Duration = Duration::from_secs(30);

/// What was last said about it.
#[derive(Debug, Default)]
pub(crate) struct Definitions {
    last: Mutex<Option<(Instant, BTreeMap<Kind, Lack>)>>,
}

impl Definitions {
    /// The kinds that there are no definitions of. Where the API server doesn't say, what it said before counts.
    ///
    /// # Errors
    /// The API server doesn't answer, and never has.
    pub(crate) async fn lacking(&self, client: &Client) -> kube::Result<BTreeMap<Kind, Lack>> {
        let now = Instant::now();
        let last = self
            .last
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if let Some((at, lacking)) = &last
            && now.duration_since(*at) < GOOD_FOR
        {
            return Ok(lacking.clone());
        }
        let version = Kind::PodMonitor.api().api_version;
        let all_lack = |lack| Kind::OF_MONITORING.map(|kind| (kind, lack)).into();
        let mut lacking: BTreeMap<Kind, Lack> = all_lack(Lack::Definition);
        match client.list_api_group_resources(&version).await {
            Ok(list) => lacking.retain(|kind, _| {
                let mut known = list.resources.iter();
                !known.any(|known| known.kind == kind.name())
            }),
            // In words, and not as a Status: there's nothing at all of this group.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            // No reason to leave the servers alone.
            Err(kube::Error::Api(status)) if status.code == 403 => {
                lacking = all_lack(Lack::Permission)
            }
            Err(error) => match last {
                Some((_, known)) => lacking = known,
                None => return Err(error),
            },
        }
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, lacking.clone()));
        Ok(lacking)
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
                .lacking(&that_says(status, text))
                .await;
            let found: Vec<_> = found.expect("an answer").into_keys().collect();
            assert_eq!(found, expected);
        }
        let forbidden = Definitions::default()
            .lacking(&that_says(403, "forbidden\n"))
            .await;
        let mut forbidden = forbidden.expect("an answer").into_values();
        assert!(forbidden.all(|lack| lack == Lack::Permission));
    }

    #[tokio::test]
    async fn an_answer_is_good_for_a_while_and_none_is_not_taken_for_one() {
        let definitions = Definitions::default();
        let failed = definitions.lacking(&that_says(503, "later")).await;
        assert!(failed.is_err());
        let first = definitions
            .lacking(&that_says(404, "none"))
            .await
            .expect("an answer");
        let second = definitions.lacking(&that_says(503, "later")).await;
        assert_eq!(second.expect("the one before"), first);
        // Also when it is old: a group that doesn't answer is no reason to leave all clusters alone.
        if let Some((at, _)) = &mut *definitions.last.lock().unwrap() {
            *at = at.checked_sub(2 * GOOD_FOR).expect("a clock that has run");
        }
        let third = definitions.lacking(&that_says(503, "later")).await;
        assert_eq!(third.expect("the one before"), first);
    }
}
