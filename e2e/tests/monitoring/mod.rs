//! A Prometheus that finds the pods as docs/monitoring.md says, with the chart's alerts: every expression is answered
//! while all is well, and alerts fire by what goes wrong, and no others. `cargo xtask test e2e` runs it.

mod command;
mod expressions;
mod faults;
mod rules;

use std::collections::BTreeSet;

use percolator_e2e::application::Application;
use percolator_e2e::prometheus::{DISCOVERY, Prometheus, documented_jobs};
use percolator_e2e::{Kube, Namespace, OPERATOR, kubectl, say, small, wait};

/// The namespace of all clusters here.
const SPACE: &str = "monitored";
/// The port of the bank's metrics.
const BANK_PORT: u16 = 9091;

/// The configuration of docs/monitoring.md, for this Kubernetes; and the bank, which is an application.
fn configuration(kube: &Kube) -> String {
    let jobs = documented_jobs(kube);
    format!(
        "global: {{scrape_interval: 2s, scrape_timeout: 2s, evaluation_interval: 1s}}
rule_files: [alerts.yaml, calm.yaml]
{jobs}
  - job_name: bank
    {DISCOVERY}
    relabel_configs:
      - {{source_labels: [__meta_kubernetes_pod_label_app_kubernetes_io_name], regex: bank, action: keep}}
      - {{source_labels: [__meta_kubernetes_pod_phase], regex: Failed|Succeeded, action: drop}}
      - {{source_labels: [__meta_kubernetes_pod_ip], replacement: \"$1:{BANK_PORT}\", target_label: __address__}}
      - {{source_labels: [__meta_kubernetes_namespace], target_label: namespace}}
"
    )
}

/// The Prometheus operator's definitions; they go away with the value.
struct Definitions {
    files: [String; 2],
}

impl Definitions {
    /// None is there.
    fn none(kube: &Kube) -> Self {
        let definition = |kind| {
            let file = format!("monitoring.coreos.com_{kind}.yaml");
            kube.definitions.join(file).display().to_string()
        };
        let definitions = Self {
            files: ["podmonitors", "prometheusrules"].map(definition),
        };
        definitions.remove();
        definitions
    }

    fn remove(&self) {
        for file in &self.files {
            let gone = ["delete", "-f", file, "--ignore-not-found"];
            kubectl(&gone).expect("no definition");
        }
    }

    fn install(&self) {
        for file in &self.files {
            kubectl(&["apply", "--server-side", "-f", file]).expect("a definition");
        }
    }
}

impl Drop for Definitions {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.remove();
        }
    }
}

/// The monitoring in the spec of `calm`.
const MONITORING: &str = "  monitoring: {podMonitor: {enabled: true, labels: {release: prometheus}}, prometheusRule: {enabled: true}}";

/// The real definition has taken the PodMonitor, and dropped nothing of it: it finds the pods by their labels, and their
/// port by its name.
fn check_monitor(space: &Namespace) {
    let monitor = space.get("podmonitor", "calm").expect("a PodMonitor");
    assert_eq!(monitor["metadata"]["labels"]["release"], "prometheus");
    let spec = &monitor["spec"];
    let labels = spec["selector"]["matchLabels"].as_object().expect("labels");
    let selector: Vec<String> = labels
        .iter()
        .map(|(name, value)| format!("{name}={}", value.as_str().expect("a value")))
        .collect();
    let endpoint = &spec["podMetricsEndpoints"][0];
    assert_eq!(endpoint["interval"], "30s");
    assert_eq!(
        endpoint["relabelings"][0]["targetLabel"],
        "percolator_cluster"
    );
    assert_eq!(endpoint["relabelings"][0]["replacement"], "calm");
    let port = endpoint["port"].as_str().expect("a port");
    let named = format!(
        "jsonpath={{range .items[*]}}{{.metadata.name}} {{.spec.containers[0].ports[?(@.name==\"{port}\")].containerPort}} {{end}}"
    );
    let found = space.kubectl(&["get", "pods", "-l", &selector.join(","), "-o", &named]);
    let found = found.expect("pods");
    let found: Vec<&str> = found.split_whitespace().collect();
    let expected = [
        "calm-master-0",
        "9090",
        "calm-tablet-0",
        "9090",
        "calm-tso-0",
        "9090",
    ];
    assert_eq!(found, expected);
}

/// Objects that the spec doesn't ask for are deleted, and made again when it does.
fn check_removal(space: &Namespace) {
    say("monitoring is not asked for any more, and then it is");
    let monitoring = |is_asked: bool| {
        let switch = format!(r#"{{"enabled":{is_asked}}}"#);
        let spec =
            format!(r#"{{"monitoring":{{"podMonitor":{switch},"prometheusRule":{switch}}}}}"#);
        space.change("calm", &spec).expect("monitoring");
    };
    monitoring(false);
    space.wait_for_none("podmonitors,prometheusrules");
    space.wait_for("calm", "Monitored", "False", "NotAskedFor");
    monitoring(true);
    space.wait_for("calm", "Monitored", "True", "AsAskedFor");
}

/// Starts a bank that shows its client's metrics.
fn start_bank<'a>(kube: &Kube, space: &'a Namespace, cluster: &str) -> Application<'a> {
    let metrics = format!("0.0.0.0:{BANK_PORT}");
    let bank = Application::bank(
        kube,
        space,
        cluster,
        100,
        2,
        &["--metrics-listen", &metrics],
    );
    let label = "app.kubernetes.io/name=bank";
    space
        .kubectl(&["label", "pod", "bank", label])
        .expect("a label");
    bank
}

/// Waits until Prometheus scrapes all of these targets, and each answers.
fn wait_for_targets(prometheus: &Prometheus, expected: &BTreeSet<String>) {
    wait("what Prometheus finds", || {
        let targets = prometheus.targets()?;
        let name = |labels: &std::collections::BTreeMap<String, String>| {
            let label = |name: &str| labels.get(name).cloned().unwrap_or_default();
            match label("pod") {
                _ if label("percolator_cluster").is_empty() => {
                    format!("{} of {}", label("job"), label("namespace"))
                }
                pod => pod,
            }
        };
        let found: BTreeSet<String> = targets.iter().map(|(labels, _)| name(labels)).collect();
        let wrong: Vec<&String> = targets
            .iter()
            .map(|(_, wrong)| wrong)
            .filter(|wrong| !wrong.is_empty())
            .collect();
        if found == *expected && wrong.is_empty() {
            Ok(())
        } else {
            Err(format!("{found:?}, {wrong:?}, and not {expected:?}"))
        }
    });
}

#[test]
fn every_expression_is_answered_and_alerts_fire_by_their_faults() {
    let Some(kube) = Kube::find() else { return };
    kube.install(&[]);
    let space = kube.namespace(SPACE);
    let definitions = Definitions::none(&kube);
    space.apply(&small("calm", MONITORING)).expect("a cluster");
    space.wait_for("calm", "Monitored", "False", "WaitingForDefinitions");
    definitions.install();
    faults::begin(&space);
    space.wait_until_up_to_date("calm");
    let bank = start_bank(&kube, &space, "calm");
    let mut faulty = faults::ready(&kube, &space);
    // The operator gets no event for the definitions: it polls for them.
    space.wait_for("calm", "Monitored", "True", "AsAskedFor");
    check_monitor(&space);
    check_removal(&space);
    let rules = rules::files(&kube, &space, "calm");
    let Some(prometheus) = Prometheus::start(&configuration(&kube), &rules, &[SPACE, OPERATOR])
    else {
        return;
    };
    let calm = ["master-0", "tso-0", "tablet-0"].map(|role| format!("calm-{role}"));
    let others = [
        format!("percolator of {OPERATOR}"),
        format!("bank of {SPACE}"),
    ];
    let expected = calm.into_iter().chain(others).chain(faults::pods());
    wait_for_targets(&prometheus, &expected.collect());
    say("scraped: every pod, the operator and the bank");
    expressions::check(&kube, &space, &prometheus);
    let servers = ["master-0", "tso-0", "tablet-0"];
    command::ForwardedCluster::new(&space, "calm", &servers).check(0, &[": healthy", "bank"], &[]);
    command::check_bundle(&space, "calm");
    faults::check_quiet(&prometheus);
    faults::produce(&kube, &space, &mut faulty);
    faults::check(&prometheus);
    let words = ["things aren't well", "away-tablet-1", "do: "];
    command::ForwardedCluster::new(&space, "away", &servers).check(7, &words, &["server-down"]);
    bank.ends_well();
}
