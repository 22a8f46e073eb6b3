//! The conditions of clusters as metrics: what an alert can ask for without reading the resources.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use percolator_api::Status;
use percolator_telemetry::IntGaugeVec;
use percolator_telemetry::names::operator::CONDITION_CLUSTERS;

/// The conditions in the last status of each cluster, by its namespace and its name.
#[derive(Debug, Default)]
pub(crate) struct ClusterConditions(Mutex<BTreeMap<(String, String), Vec<Condition>>>);

/// A condition's type and its status.
type Condition = (String, String);

impl ClusterConditions {
    fn all(&self) -> MutexGuard<'_, BTreeMap<(String, String), Vec<Condition>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the conditions of a cluster's status.
    pub(crate) fn note(&self, namespace: &str, name: &str, status: &Status) {
        let conditions = status.conditions.iter();
        let conditions = conditions.map(|it| (it.type_.clone(), it.status.clone()));
        let key = (namespace.to_owned(), name.to_owned());
        self.all().insert(key, conditions.collect());
    }

    /// There is no such cluster any more.
    pub(crate) fn forget(&self, namespace: &str, name: &str) {
        self.all().remove(&(namespace.to_owned(), name.to_owned()));
    }

    /// Sets the series, and drops those of clusters that are gone: a cluster that leaves nothing behind is not reconciled after its
    /// end.
    pub(crate) fn show(&self, gauges: &IntGaugeVec, is_there: impl Fn(&str, &str) -> bool) {
        gauges.reset();
        let mut all = self.all();
        all.retain(|(namespace, name), _| is_there(namespace, name));
        for ((namespace, name), conditions) in all.iter().take(CONDITION_CLUSTERS) {
            for (kind, status) in conditions {
                gauges
                    .with_label_values(&[namespace, name, kind, status])
                    .set(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use percolator_api::ConditionType;
    use percolator_telemetry::names::operator as names;
    use serde_json::json;

    use super::*;
    use crate::metrics::Metrics;

    fn status(degraded: &str) -> Status {
        let condition = json!({
            "type": "Degraded", "status": degraded, "reason": "A", "message": "b",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        serde_json::from_value(json!({"conditions": [condition]})).unwrap()
    }

    #[test]
    fn a_condition_has_one_series_with_the_status_that_it_has() {
        let metrics = Metrics::new().unwrap();
        let known = ClusterConditions::default();
        let shown_of = |is_there: fn(&str, &str) -> bool| {
            known.show(&metrics.conditions, is_there);
            let text = percolator_telemetry::text(&metrics.registry).unwrap();
            let lines = text.lines();
            let lines = lines.filter(|line| line.starts_with("percolator_cluster_condition{"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        let shown = || shown_of(|_, _| true);
        known.note("n", "a", &status("True"));
        known.note("n", "b", &status("False"));
        let of = |name: &str, status: &str| {
            format!(
                "percolator_cluster_condition{{name=\"{name}\",namespace=\"n\",status=\"{status}\",type=\"Degraded\"}} 1"
            )
        };
        assert_eq!(shown(), [of("a", "True"), of("b", "False")]);
        known.note("n", "a", &status("False"));
        known.forget("n", "b");
        assert_eq!(shown(), [of("a", "False")]);
        // It went with its namespace, and no watch brought anything of it.
        assert_eq!(shown_of(|_, name| name != "a"), Vec::<String>::new());
        assert_eq!(shown(), Vec::<String>::new());
    }

    #[test]
    fn every_condition_is_declared() {
        let all = ConditionType::ALL.map(ConditionType::name);
        assert_eq!(names::CONDITION_TYPES, all);
    }
}
