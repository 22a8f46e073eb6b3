//! The documentation of all metrics, made from their declarations.

use std::fmt::Write as _;

use crate::names::{TABLES, Table};
use crate::{Kind, Metric, Values};

const HEAD: &str = "\
# Metrics

Generated from `telemetry/src/names/` by `cargo xtask generate`; don't edit it.

Every server serves `/metrics` for Prometheus, `/healthz` (200: no restart is needed) and `/readyz`
(200: it serves) on a port of its own: the one of `--metrics-listen`, which `percolator up` sets and prints,
and port 9090 of every pod. Counters and histograms begin at 0 with each start of a process.

Labels have bounds: a label for names, such as those of tables, has so many values, and the others are
summed as `other`. Keys, values and clients are never labels.
";

/// All of it, in Markdown.
pub fn markdown() -> String {
    let mut text = HEAD.to_owned();
    for table in TABLES {
        // Writing to a string can't fail.
        let _ = write_table(&mut text, table);
    }
    let _ = write_rare(&mut text);
    text
}

fn write_table(text: &mut String, table: &Table) -> std::fmt::Result {
    writeln!(text, "\n## {}\n\n{}\n", table.title, table.about)?;
    writeln!(text, "| Name | Type | Labels | Meaning |")?;
    writeln!(text, "|---|---|---|---|")?;
    for metric in table.metrics {
        let kind = metric.kind.name();
        let meaning = match metric.kind {
            Kind::Histogram { usual, .. } => format!("{} Usual (p50, p99): {usual}.", metric.help),
            _ => metric.help.to_owned(),
        };
        let labels = labels(metric);
        writeln!(
            text,
            "| `{}` | {kind} | {labels} | {meaning} |",
            metric.name
        )?;
    }
    Ok(())
}

fn labels(metric: &Metric) -> String {
    let label = |label: &crate::Label| match label.values {
        Values::OneOf(values) => format!("`{}`: {}", label.name, values.join(", ")),
        Values::UpTo(most, what) => format!("`{}`: up to {most} {what}", label.name),
        Values::Of(other) => format!("`{}`: that of the `{other}`", label.name),
    };
    let all: Vec<String> = metric.labels.iter().map(label).collect();
    all.join("; ")
}

fn write_rare(text: &mut String) -> std::fmt::Result {
    writeln!(text, "\n## Zero until something happens\n")?;
    writeln!(text, "| Name | Stays 0 until |")?;
    writeln!(text, "|---|---|")?;
    let metrics = TABLES.iter().flat_map(|table| table.metrics);
    for metric in metrics.filter(|metric| !metric.after.is_empty()) {
        writeln!(text, "| `{}` | {} |", metric.name, metric.after)?;
    }
    Ok(())
}
