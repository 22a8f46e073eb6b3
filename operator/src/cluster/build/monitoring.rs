//! The objects for the Prometheus operator: a PodMonitor, and the alerts of one cluster.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Value, json};

use super::super::names;
use super::super::object::{Kind, Object};
use super::{Builder, with};

/// The chart's alerts, of all clusters.
const ALERTS: &str = include_str!("../../../../charts/percolator-operator/files/alerts.yaml");

/// Read once; a test sees to it that they can be read.
static GROUPS: LazyLock<Vec<Value>> = LazyLock::new(|| {
    let alerts: Value = serde_saphyr::from_str(ALERTS).unwrap_or_default();
    alerts["groups"].as_array().cloned().unwrap_or_default()
});

/// Metrics of processes that are no cluster's.
const OF_OTHERS: [&str; 3] = [
    "percolator_client_",
    "percolator_cluster_condition",
    "percolator_operator_",
];

/// And those of clients that may be the cluster's own: workers of observers.
const OF_OBSERVERS: &str = "percolator_client_observer_";

impl Builder<'_> {
    /// What the spec asks for.
    pub(super) fn monitoring(&self) -> Vec<Object> {
        let asked = &self.cluster.spec.monitoring;
        let (monitor, rule) = (&asked.pod_monitor, &asked.prometheus_rule);
        let mut made = Vec::new();
        if monitor.enabled {
            made.push(self.monitored(Kind::PodMonitor, &monitor.labels, self.pod_monitor()));
        }
        if rule.enabled {
            let spec = json!({"groups": alerts_of(self.namespace, self.name)});
            made.push(self.monitored(Kind::PrometheusRule, &rule.labels, spec));
        }
        made
    }

    fn monitored(&self, kind: Kind, more: &BTreeMap<String, String>, spec: Value) -> Object {
        let labels = with(names::labels(self.name), more);
        self.object(kind, self.name, labels, json!({"spec": spec}))
    }

    fn pod_monitor(&self) -> Value {
        json!({
            "selector": {"matchLabels": names::selector(self.name)},
            "podMetricsEndpoints": [{
                "port": "metrics",
                "interval": self.cluster.spec.monitoring.pod_monitor.interval.to_string(),
                // Alerts and dashboards identify clusters by it.
                "relabelings": [{"targetLabel": "percolator_cluster", "replacement": self.name}],
            }],
        })
    }
}

/// The groups of alerts, about one cluster.
fn alerts_of(namespace: &str, cluster: &str) -> Vec<Value> {
    let about = |rule: &Value| {
        let mut rule = rule.clone();
        let expression = rule["expr"].as_str()?;
        let is_of_others = OF_OTHERS.iter().any(|other| expression.contains(other));
        if is_of_others && !expression.contains(OF_OBSERVERS) {
            return None;
        }
        rule["expr"] = json!(narrow(expression, namespace, cluster));
        Some(rule)
    };
    let groups = GROUPS.iter().filter_map(|group| {
        let rules: Vec<Value> = group["rules"]
            .as_array()?
            .iter()
            .filter_map(about)
            .collect();
        (!rules.is_empty()).then(|| json!({"name": group["name"], "rules": rules}))
    });
    groups.collect()
}

/// An expression of PromQL, asked of one cluster: every metric that it names gets the cluster's labels.
fn narrow(expression: &str, namespace: &str, cluster: &str) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut made = String::new();
    let (mut is_quoted, mut is_in_braces) = (false, false);
    let mut rest = expression;
    while let Some(next) = rest.chars().next() {
        let length = match rest.find(|c| !is_word(c)) {
            Some(0) => next.len_utf8(),
            Some(end) => end,
            None => rest.len(),
        };
        let (word, after) = rest.split_at(length);
        rest = after;
        made += word;
        match next {
            '"' => is_quoted = !is_quoted,
            '{' if !is_quoted => is_in_braces = true,
            '}' if !is_quoted => is_in_braces = false,
            _ if is_quoted || is_in_braces => {}
            _ => {
                let Some(labels) = labels(word, namespace, cluster) else {
                    continue;
                };
                match rest.strip_prefix('{') {
                    Some(more) => {
                        made += &format!("{{{labels}, ");
                        rest = more;
                        is_in_braces = true;
                    }
                    None => made += &format!("{{{labels}}}"),
                }
            }
        }
    }
    made
}

/// The labels of a cluster's metric of this name, if it is one.
fn labels(word: &str, namespace: &str, cluster: &str) -> Option<String> {
    let is_ours = word == "up"
        || word.starts_with("process_")
        || word.starts_with("percolator_") && word != "percolator_cluster";
    is_ours.then(|| format!("namespace=\"{namespace}\", percolator_cluster=\"{cluster}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_of_an_expression_is_asked_of_the_cluster() {
        for (of_all, of_one) in [
            ("up == 0", "up{C} == 0"),
            (
                "percolator_ready{role!=\"bank\"}[6h]",
                "percolator_ready{C, role!=\"bank\"}[6h]",
            ),
            (
                "sum by (percolator_cluster) (rate(percolator_x_total{a=~\"percolator_y|}\"}[5m])) > 1e3",
                "sum by (percolator_cluster) (rate(percolator_x_total{C, a=~\"percolator_y|}\"}[5m])) > 1e3",
            ),
            (
                "process_d / (percolator_z > 0)",
                "process_d{C} / (percolator_z{C} > 0)",
            ),
            ("percolator_last", "percolator_last{C}"),
        ] {
            let labels = "namespace=\"n\", percolator_cluster=\"c\"";
            assert_eq!(narrow(of_all, "n", "c"), of_one.replace('C', labels));
        }
    }

    #[test]
    fn a_cluster_has_all_alerts_but_those_of_the_operator_and_of_applications() {
        let count = |groups: &[Value]| -> usize {
            let rules = groups
                .iter()
                .map(|group| group["rules"].as_array().unwrap().len());
            rules.sum()
        };
        let of_one = alerts_of("n", "c");
        assert_eq!(count(&GROUPS) - count(&of_one), 5);
        let text = json!(of_one).to_string();
        for some in [
            "PercolatorRoleDown",
            "PercolatorDiskFull",
            "PercolatorObserverDeadLetters",
        ] {
            assert!(text.contains(some), "{some}");
        }
        for none in [
            "PercolatorOperatorIdle",
            "PercolatorUnknownOutcomes",
            "percolator-operator\"",
        ] {
            assert!(!text.contains(none), "{none}");
        }
    }
}
