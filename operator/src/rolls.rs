//! How many clusters change their servers at a time. A change of many clusters at once, as by a tool that gives all of them a new
//! image, is a change of a few at first: if these don't come up with it, the others go on as they were.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::StatefulSet;
use kube::Client;
use kube::api::{Api, ListParams};
use serde_json::json;

use crate::cluster::{self, CLUSTER_LABEL, MANAGER};

/// So many are named.
const NAMED_MAX: usize = 3;

/// The clusters whose servers are being changed, by their full names.
#[derive(Debug)]
pub(crate) struct Rolls {
    at_most: usize,
    under_way: BTreeSet<String>,
}

impl Rolls {
    pub(crate) fn new(at_most: usize) -> Self {
        Self {
            at_most,
            under_way: BTreeSet::new(),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.under_way.len()
    }

    /// Notes that the servers of a cluster are being changed, by this operator or by another one.
    pub(crate) fn note(&mut self, cluster: &str) {
        self.under_way.insert(cluster.to_owned());
    }

    /// Notes that the servers of a cluster are rolled out, or gone.
    pub(crate) fn end(&mut self, cluster: &str) {
        self.under_way.remove(cluster);
    }

    /// Begins to change the servers of a cluster, or says what is waited for.
    ///
    /// # Errors
    /// It is not its turn.
    pub(crate) fn begin(&mut self, cluster: &str) -> Result<(), String> {
        if self.under_way.contains(cluster) {
            return Ok(());
        }
        if self.under_way.len() < self.at_most {
            self.under_way.insert(cluster.to_owned());
            return Ok(());
        }
        let named: Vec<&str> = self
            .under_way
            .iter()
            .take(NAMED_MAX)
            .map(|it| &**it)
            .collect();
        let more = match self.under_way.len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        Err(format!(
            "waiting for its turn: the servers of {}{more} are being changed, as many clusters at a time as the operator's \
             --rolls-max allows",
            named.join(", ")
        ))
    }
}

/// How many StatefulSets come at a time.
const LISTED_AT_A_TIME: u32 = 100;

/// Finds the clusters of these namespaces, or of all if none is named, whose servers are being changed: they count before any other
/// changes its own. Those of which the API server tells nothing now count from the first look at them on.
pub(crate) async fn find(client: &Client, namespaces: &[String], mut note: impl FnMut(&str)) {
    let apis: Vec<Api<StatefulSet>> = if namespaces.is_empty() {
        vec![Api::all(client.clone())]
    } else {
        let namespaces = namespaces.iter();
        let of_each = namespaces.map(|name| Api::namespaced(client.clone(), name));
        of_each.collect()
    };
    for api in apis {
        if let Err(error) = find_in(&api, &mut note).await {
            tracing::warn!(%error, "cannot list the StatefulSets");
        }
    }
}

async fn find_in(api: &Api<StatefulSet>, note: &mut impl FnMut(&str)) -> kube::Result<()> {
    let ours = format!("app.kubernetes.io/managed-by={MANAGER}");
    let mut page = ListParams::default().labels(&ours).limit(LISTED_AT_A_TIME);
    loop {
        let list = api.list(&page).await?;
        for set in list
            .items
            .iter()
            .filter(|set| cluster::changes_pods(&json!(set)))
        {
            let labels = set.metadata.labels.as_ref();
            let cluster = labels.and_then(|labels| labels.get(CLUSTER_LABEL));
            if let (Some(namespace), Some(cluster)) = (&set.metadata.namespace, cluster) {
                note(&format!("{namespace}/{cluster}"));
            }
        }
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_thousand_clusters_some_change_at_a_time() {
        let mut rolls = Rolls::new(10);
        let mut waiting: Vec<String> = (0..1_000).map(|it| format!("n/{it}")).collect();
        let mut rounds = 0;
        while !waiting.is_empty() {
            let began = |cluster: &String| rolls.begin(cluster).is_ok();
            let (under_way, rest) = waiting.into_iter().partition::<Vec<_>, _>(began);
            assert_eq!(under_way.len(), 10);
            assert_eq!(rolls.count(), 10);
            // Those that are under way may go on.
            assert!(under_way.iter().all(|it| rolls.begin(it).is_ok()));
            under_way.iter().for_each(|it| rolls.end(it));
            waiting = rest;
            rounds += 1;
        }
        assert_eq!((rounds, rolls.count()), (100, 0));
    }

    #[test]
    fn who_waits_hears_for_whom() {
        let mut rolls = Rolls::new(1);
        rolls.begin("a/x").expect("its turn");
        let waits = rolls.begin("b/y").expect_err("it waits");
        assert!(waits.contains("the servers of a/x are"), "{waits}");
        ["c/z", "d/z", "e/z"].iter().for_each(|it| rolls.note(it));
        let waits = rolls.begin("b/y").expect_err("it waits");
        assert!(waits.contains("a/x, c/z, d/z and 1 more"), "{waits}");
    }
}
