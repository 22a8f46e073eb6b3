//! The chart's alerts, as it renders them, and in a hurry.

use percolator_e2e::{Kube, Namespace, OPERATOR};
use serde_json::{Value, json};

/// Alerts wait for minutes; here, and only here, everything that they wait for is this many times shorter: each `for`, down to
/// [`AT_LEAST_SECONDS`], the seconds of [`IN_EXPRESSIONS`], and the ranges of [`RANGES`]. Other ranges and thresholds are those of the chart.
const FACTOR: u32 = 60;
/// Seconds that alerts wait for in their expressions: what stands before them, and how many they are.
const IN_EXPRESSIONS: [(&str, &str, u32); 2] = [
    ("PercolatorOldGcLock", " + ", 600),
    ("PercolatorSafePointStuck", " > ", 1_800),
];

/// Averages over a range that is longer than this test, which would keep for its whole length what was in its first
/// moments: what they average over here.
const RANGES: [(&str, &str, &str); 3] = [
    ("PercolatorOperatorFailing", "[10m]", "[30s]"),
    ("PercolatorSlowRequests", "[10m]", "[10s]"),
    ("PercolatorUnknownOutcomes", "[10m]", "[10s]"),
];
/// Three scrapes: one that got lost is no fault.
const AT_LEAST_SECONDS: u32 = 6;

fn pending(text: &str) -> String {
    let minutes: Option<u32> = text.strip_suffix('m').and_then(|text| text.parse().ok());
    let minutes =
        minutes.unwrap_or_else(|| panic!("{text}: not in minutes; teach this test to read it"));
    format!("{}s", (minutes * 60 / FACTOR).max(AT_LEAST_SECONDS))
}

fn hurry(rule: &mut Value) {
    if let Some(text) = rule["for"].as_str().map(pending) {
        rule["for"] = json!(text);
    }
    let alert = rule["alert"].as_str().expect("a name").to_owned();
    let mut replace = |waits: &str, shorter: &str| {
        let expression = rule["expr"].as_str().expect("an expression");
        assert!(
            expression.contains(waits),
            "{alert} doesn't say {waits} any more"
        );
        rule["expr"] = json!(expression.replace(waits, shorter));
    };
    for (_, before, seconds) in IN_EXPRESSIONS.iter().filter(|(name, ..)| *name == alert) {
        let shorter = seconds / FACTOR;
        replace(&format!("{before}{seconds}"), &format!("{before}{shorter}"));
    }
    for (_, range, shorter) in RANGES.iter().filter(|(name, ..)| *name == alert) {
        replace(range, shorter);
    }
}

/// The rules of a PrometheusRule, as a rule file: JSON is YAML too.
fn file(mut rule: Value) -> String {
    let groups = rule["spec"]["groups"].as_array_mut().expect("groups");
    for group in groups {
        let rules = group["rules"].as_array_mut().expect("rules");
        rules.iter_mut().for_each(hurry);
    }
    rule["spec"].to_string()
}

/// Those that the chart renders, about all clusters.
fn of_the_chart(kube: &Kube) -> Value {
    let chart = kube.chart();
    let only = ["--show-only", "templates/prometheusrule.yaml"];
    let set = ["--set", "metrics.prometheusRule.enabled=true"];
    let arguments = ["template", "percolator", &chart, "-n", OPERATOR];
    let manifest = kube.helm(&[&arguments[..], &only, &set].concat());
    serde_saphyr::from_str(&manifest.expect("helm template")).expect("it is YAML")
}

/// All rules: those of the chart, and those that the operator has made of one cluster.
pub(crate) fn files(kube: &Kube, space: &Namespace, cluster: &str) -> [(&'static str, String); 2] {
    let own = space.get("prometheusrule", cluster).expect("its rules");
    [
        ("alerts.yaml", file(of_the_chart(kube))),
        ("calm.yaml", file(own)),
    ]
}
