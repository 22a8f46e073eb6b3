//! Of every alert: a runbook, a case in which it fires, one in which it doesn't, and metrics that exist.

use std::{collections::BTreeSet, path::Path};

use serde::Deserialize;

use crate::{metrics, metrics_of, promtool, read, root};

const ALERTS: &str = "charts/percolator-operator/files/alerts.yaml";
const CASES: &str = "xtask/testdata/alerts.yaml";
const RUNBOOKS: &str = "https://github.com/percolator-dev/percolator/blob/main/docs/runbooks/";

#[derive(Deserialize)]
struct Rules {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
struct Rule {
    alert: String,
    expr: String,
    labels: Labels,
    annotations: Annotations,
}

#[derive(Deserialize)]
struct Labels {
    severity: String,
}

#[derive(Deserialize)]
struct Annotations {
    summary: String,
    description: String,
    runbook_url: String,
}

#[derive(Deserialize)]
struct Cases {
    tests: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    #[serde(default)]
    promql_expr_test: Vec<Expected>,
}

#[derive(Deserialize)]
struct Expected {
    exp_samples: Vec<Sample>,
}

#[derive(Deserialize)]
struct Sample {
    labels: String,
}

fn alerts() -> Vec<Rule> {
    let rules: Rules = serde_saphyr::from_str(&read(ALERTS)).expect(ALERTS);
    rules
        .groups
        .into_iter()
        .flat_map(|group| group.rules)
        .collect()
}

#[test]
fn promtool_accepts_the_alerts() {
    promtool(&["check", "rules", ALERTS]);
}

#[test]
fn alerts_fire_when_they_should_and_not_else() {
    promtool(&["test", "rules", CASES]);
}

#[test]
fn every_alert_has_a_case_of_each_kind() {
    let cases: Cases = serde_saphyr::from_str(&read(CASES)).expect(CASES);
    for Rule { alert, .. } in alerts() {
        let about = format!("{alert}: ");
        let fired = format!("{{alertname=\"{alert}\"}}");
        let of_it = cases
            .tests
            .iter()
            .filter(|case| case.name.starts_with(&about));
        let (fires, quiet): (Vec<_>, Vec<_>) = of_it
            .flat_map(|case| &case.promql_expr_test)
            .partition(|test| !test.exp_samples.is_empty());
        assert!(!quiet.is_empty(), "{alert}: {CASES} has no case without it");
        assert!(!fires.is_empty(), "{alert}: {CASES} has no case with it");
        for sample in fires.iter().flat_map(|test| &test.exp_samples) {
            assert_eq!(sample.labels, fired, "a case of {alert}");
        }
    }
}

#[test]
fn every_alert_says_what_a_person_needs() {
    for rule in alerts() {
        let alert = &rule.alert;
        let severity = rule.labels.severity.as_str();
        assert!(
            ["critical", "warning"].contains(&severity),
            "{alert}: {severity}"
        );
        let Annotations {
            summary,
            description,
            runbook_url,
        } = &rule.annotations;
        assert!(summary.ends_with('.'), "{alert}: {summary}");
        assert!(description.contains("$value"), "{alert}: {description}");
        assert_eq!(*runbook_url, format!("{RUNBOOKS}{alert}.md"));
    }
}

#[test]
fn every_alert_has_a_runbook_and_every_runbook_an_alert() {
    let alerts: BTreeSet<String> = alerts().into_iter().map(|rule| rule.alert).collect();
    let files = std::fs::read_dir(root().join("docs/runbooks")).expect("runbooks");
    let runbooks: BTreeSet<String> = files
        .map(|file| file.expect("a runbook").file_name().display().to_string())
        .map(|name| name.trim_end_matches(".md").to_owned())
        .collect();
    assert_eq!(alerts, runbooks);
    let page = read("docs/monitoring.md");
    for name in &runbooks {
        let text = read(&format!("docs/runbooks/{name}.md"));
        assert!(
            text.starts_with(&format!("# {name}\n")),
            "{name}: its title"
        );
        for heading in [
            "## Meaning",
            "## Diagnosis",
            "## Mitigation",
            "## Reproduction",
        ] {
            assert!(text.contains(heading), "{name}: {heading}");
        }
        let link = format!("(runbooks/{name}.md)");
        assert!(
            page.contains(&link),
            "docs/monitoring.md doesn't name {name}"
        );
    }
}

/// The names of the test functions below this folder.
fn tests_below(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().display().to_string();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                tests_below(&path, found);
            }
        } else if name.ends_with(".rs") {
            let text = std::fs::read_to_string(&path).expect("a source");
            // Behind the attribute there may be others.
            for test in text.split("test]\n").skip(1) {
                let lines = test.lines().map(str::trim);
                let mut lines = lines.skip_while(|line| line.starts_with("#["));
                let line = lines.next().unwrap_or_default();
                let line = line.strip_prefix("async ").unwrap_or(line);
                if let Some((name, _)) = line.strip_prefix("fn ").and_then(|it| it.split_once('('))
                {
                    found.insert(name.to_owned());
                }
            }
        }
    }
}

#[test]
fn every_runbook_names_a_test_in_which_it_happens() {
    let mut tests = BTreeSet::new();
    tests_below(&root(), &mut tests);
    assert!(tests.contains("every_runbook_names_a_test_in_which_it_happens"));
    for Rule { alert, .. } in alerts() {
        let text = read(&format!("docs/runbooks/{alert}.md"));
        let how = text.split("## Reproduction").nth(1).expect("a section");
        let quoted: Vec<&str> = how.split('`').skip(1).step_by(2).collect();
        assert!(
            quoted.iter().any(|word| tests.contains(*word)),
            "{alert}: none of these is a test function: {quoted:?}"
        );
        // A word of that form is one.
        for word in quoted.iter().filter(|word| word.matches('_').count() >= 3) {
            let is_name = word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            assert!(
                !is_name || tests.contains(*word),
                "{alert}: {word} is no test"
            );
        }
    }
}

#[test]
fn alerts_use_metrics_that_exist() {
    let known = metrics();
    for rule in alerts() {
        let unknown: Vec<_> = metrics_of(&rule.expr).difference(&known).cloned().collect();
        assert_eq!(unknown, Vec::<String>::new(), "{}", rule.alert);
    }
}
