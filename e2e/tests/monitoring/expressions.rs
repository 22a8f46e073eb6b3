//! That every expression of the dashboards and of the alerts is answered by what real pods show.

use std::collections::{BTreeMap, BTreeSet};

use percolator_e2e::prometheus::{Prometheus, Sample};
use percolator_e2e::{Kube, Namespace, say, wait};
use serde_json::Value;

/// The expressions that aren't answered while all is well, each below the reason.
const SILENT: &str = "e2e/testdata/silent-expressions.txt";

/// An alert's expression that is answered with 0 where the alert wouldn't fire: its labels and what it joins are put to
/// the test also while all is well.
fn unfiltered(expression: &str) -> String {
    let mut made = String::new();
    let (mut quoted, mut braces) = (false, 0_u32);
    let mut rest = expression;
    while let Some(next) = rest.chars().next() {
        if rest.starts_with(" unless ") {
            // What is left out there stays left out.
            made.push_str(rest);
            break;
        }
        if !quoted && braces == 0 {
            let operators = [" == ", " != ", " >= ", " <= ", " > ", " < "];
            if let Some(operator) = operators
                .iter()
                .find(|operator| rest.starts_with(**operator))
            {
                made.push_str(operator);
                made.push_str("bool ");
                rest = &rest[operator.len()..];
                continue;
            }
        }
        match next {
            '"' => quoted = !quoted,
            '{' if !quoted => braces += 1,
            '}' if !quoted => braces -= 1,
            _ => {}
        }
        made.push(next);
        rest = &rest[next.len_utf8()..];
    }
    made
}

/// What a dashboard shows where nothing is chosen but the cluster.
fn chosen(expression: &str) -> String {
    let expression = expression
        .replace("$__rate_interval", "1m")
        .replace("$namespace", ".*")
        .replace("$cluster", "calm|");
    assert!(!expression.contains('$'), "{expression}: what is that?");
    expression
}

/// The expressions of all dashboards and alerts, by what they are called in the list.
fn all(kube: &Kube, prometheus: &Prometheus) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let folder = kube
        .root
        .join("charts/percolator-operator/files/dashboards");
    for file in std::fs::read_dir(&folder).expect("dashboards") {
        let path = file.expect("a dashboard").path();
        let text = std::fs::read_to_string(&path).expect("a dashboard");
        let board: Value = serde_json::from_str(&text).expect("a dashboard is JSON");
        for panel in board["panels"].as_array().expect("panels") {
            for target in panel["targets"].as_array().expect("targets") {
                let word = |value: &Value| value.as_str().expect("a word").to_owned();
                let name = format!(
                    "{}: {} {}",
                    word(&board["uid"]),
                    word(&panel["title"]),
                    word(&target["refId"])
                );
                found.insert(name, chosen(&word(&target["expr"])));
            }
        }
    }
    for rule in prometheus.rules().expect("rules") {
        found.insert(
            format!("{}: {}", rule.file, rule.alert),
            unfiltered(&rule.expression),
        );
    }
    found
}

/// Whether there's anything to see.
fn is_answer(samples: &[Sample]) -> bool {
    samples.iter().any(|sample| !sample.value.is_nan())
}

pub(crate) fn check(kube: &Kube, space: &Namespace, prometheus: &Prometheus) {
    let list = std::fs::read_to_string(kube.root.join(SILENT)).expect(SILENT);
    let lines = list
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let silent: BTreeSet<String> = lines.map(str::to_owned).collect();
    wait("each rule to be looked at once", || prometheus.rules());
    let all = all(kube, prometheus);
    let mut looks = 0_u32..;
    wait(
        "every expression that isn't on the list to be answered",
        || {
            // An idle operator has no looks to measure.
            let seen = format!("seen={}", looks.next().unwrap_or_default());
            space.kubectl(&["annotate", "--overwrite", "perc", "calm", &seen])?;
            let mut wrong = String::new();
            for (name, expression) in all.iter().filter(|(name, _)| !silent.contains(*name)) {
                if !is_answer(&prometheus.ask(expression)?) {
                    wrong += &format!("\n{name}: {expression}");
                }
            }
            if wrong.is_empty() { Ok(()) } else { Err(wrong) }
        },
    );
    for name in &silent {
        let expression = all.get(name);
        let expression = expression.unwrap_or_else(|| panic!("{SILENT}: nothing is called {name}"));
        let answer = prometheus.ask(expression).expect(name);
        assert!(
            !is_answer(&answer),
            "{name} is on {SILENT}, and is answered: {answer:?}"
        );
    }
    say(&format!(
        "{} expressions are answered, {} are silent as listed",
        all.len() - silent.len(),
        silent.len()
    ));
}
