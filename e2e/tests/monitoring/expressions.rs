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

/// The branches of an expression: what `or` joins outside of all brackets. Each of them has to be answered.
fn branches(expression: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let (mut quoted, mut depth, mut began) = (false, 0_u32, 0);
    for (at, byte) in expression.bytes().enumerate() {
        match byte {
            b'"' => quoted = !quoted,
            b'(' | b'{' | b'[' if !quoted => depth += 1,
            b')' | b'}' | b']' if !quoted => depth -= 1,
            _ if !quoted && depth == 0 && at >= began && expression[at..].starts_with(" or ") => {
                found.push(expression[began..at].trim());
                began = at + " or ".len();
                // How it is joined belongs to no side.
                for joins in ["on (", "on(", "ignoring (", "ignoring("] {
                    if expression[began..].starts_with(joins) {
                        let end = expression[began..].find(')');
                        began += end.expect("a bracket that ends") + 1;
                    }
                }
            }
            _ => {}
        }
    }
    found.push(expression[began..].trim());
    for branch in &found {
        assert!(
            found.len() == 1 || !branch.contains(" or "),
            "{branch}: teach this test to read it"
        );
    }
    found
}

/// Each branch by the name under which it is in the list.
fn named(name: &str, expression: &str) -> Vec<(String, String)> {
    let branches = branches(expression);
    match branches[..] {
        [one] => vec![(name.to_owned(), one.to_owned())],
        _ => branches
            .iter()
            .zip(1..)
            .map(|(branch, number)| (format!("{name}, branch {number}"), (*branch).to_owned()))
            .collect(),
    }
}

/// The expressions of a dashboard if nothing is chosen but the cluster.
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
                found.extend(named(&name, &chosen(&word(&target["expr"]))));
            }
        }
    }
    for rule in prometheus.rules().expect("rules") {
        let name = format!("{}: {}", rule.file, rule.alert);
        let branches = named(&name, &rule.expression).into_iter();
        found.extend(branches.map(|(name, branch)| (name, unfiltered(&branch))));
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
    wait("each rule to be evaluated once", || prometheus.rules());
    let all = all(kube, prometheus);
    let mut reconciles = 0_u32..;
    wait(
        "every expression that isn't on the list to be answered",
        || {
            // An idle operator has no reconciles to measure.
            let seen = format!("seen={}", reconciles.next().unwrap_or_default());
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
        // A scrape that failed once is reported for a while.
        wait(&format!("{name}, on {SILENT}, to be silent"), || {
            let answer = prometheus.ask(expression)?;
            if is_answer(&answer) {
                Err(format!("it is answered: {answer:?}"))
            } else {
                Ok(())
            }
        });
    }
    say(&format!(
        "{} expressions are answered, {} are silent as listed",
        all.len() - silent.len(),
        silent.len()
    ));
}

#[test]
fn branches_are_what_or_joins() {
    for (expression, expected) in [
        ("up{a=\"x or y\"} == 0", &["up{a=\"x or y\"} == 0"][..]),
        (
            "(a - b > 0) or on (job, instance) c > 1 or vector(0)",
            &["(a - b > 0)", "c > 1", "vector(0)"],
        ),
        (
            "(sum by (x) (a) and b < 1) or (c unless d)",
            &["(sum by (x) (a) and b < 1)", "(c unless d)"],
        ),
    ] {
        assert_eq!(branches(expression), expected, "{expression}");
    }
    assert_eq!(unfiltered("(a > 0) * b"), "(a > bool 0) * b");
}
