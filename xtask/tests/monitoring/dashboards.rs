//! Grafana's dashboards, made from `boards.rs`: that those of the chart are these, and ask what can be answered.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{
    boards::{BOARDS, Board, Panel},
    metrics, metrics_of, promtool, read, root,
};

const FOLDER: &str = "charts/percolator-operator/files/dashboards";
const RUNBOOKS: &str = "https://github.com/percolator-dev/percolator/blob/main/docs/runbooks";
/// What `%` stands for: both are everything where nothing is chosen.
const CHOSEN: &str = "namespace=~\"$namespace\",percolator_cluster=~\"$cluster\"";

/// Panels lie two in a row, of the 24 columns that there are.
const WIDTH: usize = 12;
const HEIGHT: usize = 8;

fn source() -> Value {
    json!({"type": "prometheus", "uid": "${source}"})
}

fn expression(text: &str) -> String {
    text.replace('%', CHOSEN)
}

fn dashboard(board: &Board) -> Value {
    let panels: Vec<Value> = board
        .panels
        .iter()
        .zip(0..)
        .map(|(panel, at)| picture(panel, at))
        .collect();
    json!({
        "uid": board.uid,
        "title": board.title,
        "tags": ["percolator"],
        "schemaVersion": 39,
        "editable": false,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [{"title": "Percolator", "type": "dashboards", "tags": ["percolator"], "asDropdown": true,
            "includeVars": true, "keepTime": true, "targetBlank": false, "icon": "", "tooltip": "", "url": ""}],
        "templating": {"list": variables(board)},
        "panels": panels,
    })
}

/// What can be chosen. What no panel asks for isn't offered: the operator is of no cluster.
fn variables(board: &Board) -> Vec<Value> {
    let source = json!({"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"});
    if is_of_clusters(board) {
        let namespace = variable("namespace", "Namespace", "namespace");
        let cluster = variable("cluster", "Cluster", "percolator_cluster");
        vec![source, namespace, cluster]
    } else {
        vec![source]
    }
}

fn is_of_clusters(board: &Board) -> bool {
    let mut lines = board.panels.iter().flat_map(|panel| panel.lines);
    lines.any(|(line, _)| line.contains('%'))
}

fn variable(name: &str, title: &str, label: &str) -> Value {
    json!({
        "name": name,
        "label": title,
        "type": "query",
        "datasource": source(),
        "query": {"query": format!("label_values(percolator_build_info, {label})"), "refId": name},
        "refresh": 2,
        "includeAll": true,
        // Also what has no such label, as outside of Kubernetes.
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    })
}

fn picture(panel: &Panel, at: usize) -> Value {
    let targets: Vec<Value> = panel
        .lines
        .iter()
        .zip('A'..)
        .map(|((line, legend), id)| {
            json!({"refId": id, "datasource": source(), "expr": expression(line), "legendFormat": legend})
        })
        .collect();
    let mut steps = vec![json!({"color": "green", "value": null})];
    steps.extend(
        panel
            .bad_from
            .map(|value| json!({"color": "red", "value": value})),
    );
    let shown = if panel.bad_from.is_some() {
        "line"
    } else {
        "off"
    };
    json!({
        "id": at + 1,
        "type": "timeseries",
        "title": panel.question,
        "datasource": source(),
        "gridPos": {"x": at % 2 * WIDTH, "y": at / 2 * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "links": [{"title": "What to do", "type": "link", "url": format!("{RUNBOOKS}/{}.md", panel.runbook), "targetBlank": true,
            "icon": "", "tooltip": "", "tags": [], "asDropdown": false, "includeVars": false, "keepTime": false}],
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "thresholds": {"mode": "absolute", "steps": steps},
                "custom": {"thresholdsStyle": {"mode": shown}},
            },
            "overrides": [],
        },
        "options": {
            "legend": {"calcs": ["lastNotNull"], "displayMode": "table", "placement": "bottom", "showLegend": true},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": targets,
    })
}

fn lines() -> impl Iterator<Item = String> {
    let panels = BOARDS.iter().flat_map(|board| board.panels);
    panels
        .flat_map(|panel| panel.lines)
        .map(|(line, _)| expression(line))
}

#[test]
fn the_charts_dashboards_are_fresh() {
    let made: BTreeSet<String> = BOARDS
        .iter()
        .map(|board| format!("{}.json", board.uid))
        .collect();
    for board in BOARDS {
        let path = format!("{FOLDER}/{}.json", board.uid);
        let text = format!("{:#}\n", dashboard(board));
        if std::env::var_os("REWRITE").is_some_and(|value| value == "1") {
            std::fs::write(root().join(&path), &text).expect(&path);
        }
        assert!(
            read(&path) == text,
            "{path} is not what boards.rs says; `cargo xtask generate` writes it anew"
        );
    }
    let kept = std::fs::read_dir(root().join(FOLDER)).expect(FOLDER);
    let kept: BTreeSet<String> = kept
        .map(|file| file.expect(FOLDER).file_name().display().to_string())
        .collect();
    assert_eq!(kept, made);
}

#[test]
fn promtool_can_read_every_expression() {
    let rules: Vec<Value> = lines()
        .zip(0..)
        .map(|(line, number)| {
            let line = line
                .replace("$__rate_interval", "5m")
                .replace("$namespace", ".*")
                .replace("$cluster", ".*");
            assert!(
                !line.contains('$'),
                "{line}: a variable that no dashboard has"
            );
            json!({"record": format!("dashboard:line_{number}"), "expr": line})
        })
        .collect();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("rules.yaml");
    // JSON is YAML too.
    let text = json!({"groups": [{"name": "dashboards", "rules": rules}]}).to_string();
    std::fs::write(&file, text).expect("a file");
    promtool(&["check", "rules", &file.display().to_string()]);
}

#[test]
fn dashboards_ask_for_metrics_that_exist() {
    let known = metrics();
    for line in lines() {
        let named = metrics_of(&line);
        let unknown: Vec<_> = named.difference(&known).collect();
        assert!(
            !named.is_empty() && unknown.is_empty(),
            "{line}: {unknown:?}"
        );
    }
}

/// Whatever is chosen on a board counts for all that its panels show.
#[test]
fn every_metric_of_a_panel_is_chosen_by_namespace_and_cluster() {
    let mut names = metrics();
    names.insert("up".into());
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    for board in BOARDS {
        let is_chosen = is_of_clusters(board);
        assert_eq!(is_chosen, board.uid != "percolator-operator");
        for (line, _) in board.panels.iter().flat_map(|panel| panel.lines) {
            let mut rest = *line;
            while let Some(start) = rest.find(is_word) {
                let word = &rest[start..];
                let end = word.find(|c| !is_word(c)).unwrap_or(word.len());
                rest = &word[end..];
                assert!(
                    !names.contains(&word[..end]) || rest.starts_with("{%") == is_chosen,
                    "{}: {line}: {}",
                    board.uid,
                    &word[..end]
                );
            }
        }
    }
}

#[test]
fn every_panel_asks_a_question_and_leads_to_a_runbook() {
    for panel in BOARDS.iter().flat_map(|board| board.panels) {
        assert!(panel.question.ends_with('?'), "{}", panel.question);
        let runbook = format!("docs/runbooks/{}.md", panel.runbook);
        assert!(
            root().join(&runbook).exists(),
            "{}: {runbook}",
            panel.question
        );
    }
}
