//! Figures of several sides that have their turns in each round, so that whatever gets slower or quicker with time counts
//! for all of them.

use std::path::Path;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::Args;
use crate::cmd::Cmd;

/// The measurements of each side, in the order in which they were first seen.
pub(super) struct Turns {
    sides: Vec<String>,
    figures: Vec<Figure>,
}

struct Figure {
    name: String,
    /// By side.
    measured: Vec<Vec<f64>>,
}

impl Turns {
    pub(super) fn of(sides: &[&str]) -> Self {
        Self {
            sides: sides.iter().map(|side| (*side).to_owned()).collect(),
            figures: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, side: usize, name: &str, value: f64) {
        let known = self.figures.iter().position(|figure| figure.name == name);
        let at = known.unwrap_or_else(|| {
            self.figures.push(Figure {
                name: name.to_owned(),
                measured: vec![Vec::new(); self.sides.len()],
            });
            self.figures.len() - 1
        });
        self.figures[at].measured[side].push(value);
    }

    /// Medians, each with its ratio to the first side's.
    pub(super) fn table(&self) -> String {
        let mut rows = vec![[vec!["median".to_owned()], self.sides.clone()].concat()];
        for figure in &self.figures {
            let medians: Vec<f64> = figure.measured.iter().map(|all| median(all)).collect();
            let cells = medians.iter().enumerate().map(|(side, value)| match side {
                0 => number(*value),
                _ => format!("{} ({:.3})", number(*value), value / medians[0]),
            });
            rows.push([figure.name.clone()].into_iter().chain(cells).collect());
        }
        aligned(&rows)
    }

    pub(super) fn json(&self) -> Value {
        let figures = self.figures.iter().map(|figure| {
            let sides = self.sides.iter().zip(&figure.measured);
            let sides: serde_json::Map<String, Value> = sides
                .map(|(side, all)| (side.clone(), json!(all)))
                .collect();
            json!({"name": figure.name, "measured": sides})
        });
        figures.collect()
    }

    /// Prints the table, and writes the figures where they are asked for.
    pub(super) fn finish(&self, args: &Args) -> anyhow::Result<()> {
        println!("{}", self.table());
        if let Some(file) = &args.json {
            std::fs::write(file, serde_json::to_vec_pretty(&self.json())?)
                .with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(())
    }
}

/// The order of two sides in a round: whatever gets slower or quicker within rounds is for neither.
pub(super) fn order(round: u32) -> [usize; 2] {
    if round.is_multiple_of(2) {
        [1, 0]
    } else {
        [0, 1]
    }
}

/// `cargo xtask bench before`.
pub(super) fn before(before: &Path, now: &Path, args: &Args) -> anyhow::Result<()> {
    let mut turns = Turns::of(&["before", "now"]);
    for round in 1..=args.turns {
        for side in order(round) {
            let programs = [before, now][side];
            println!("round {round}: {}", turns.sides[side]);
            for (name, value) in all(programs, args.duration.as_deref())? {
                turns.add(side, &name, value);
            }
        }
    }
    turns.finish(args)
}

/// The figures of `percolator bench all`, on a cluster of these programs.
fn all(programs: &Path, duration: Option<&str>) -> anyhow::Result<Vec<(String, f64)>> {
    let mut command = Cmd::new(programs.join("percolator"))
        .args(["up", "--processes", "--ephemeral", "--raw", "--quiet", "--"])
        .arg(programs.join("percolator"))
        .args(["bench", "all", "-o", "json", "--quiet"]);
    if let Some(duration) = duration {
        command = command.args(["--duration", duration]);
    }
    figures(&command.silent_output()?)
}

/// The output of `percolator bench -o json`.
pub(super) fn figures(said: &str) -> anyhow::Result<Vec<(String, f64)>> {
    let said: Value = serde_json::from_str(said)?;
    let figures = said["figures"].as_array().context("no figures")?;
    figures
        .iter()
        .map(|figure| {
            let name = figure["name"].as_str().context("a figure without a name")?;
            let rate = figure["per_second"].as_f64().context("no rate")?;
            Ok((format!("{name} /s"), rate))
        })
        .collect()
}

pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => sorted[count / 2],
        count => f64::midpoint(sorted[count / 2 - 1], sorted[count / 2]),
    }
}

fn number(value: f64) -> String {
    if value.abs() < 10.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.0}")
    }
}

fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths);
        let cells: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:width$}", width = *width))
            .collect();
        cells.join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_stand_beside_their_ratios() {
        let mut turns = Turns::of(&["before", "now"]);
        for (side, values) in [[100.0, 90.0, 120.0], [110.0, 99.0, 130.0]]
            .iter()
            .enumerate()
        {
            values
                .iter()
                .for_each(|value| turns.add(side, "transfers /s", *value));
        }
        turns.add(0, "memory MiB", 2.0);
        turns.add(1, "memory MiB", 3.0);
        assert_eq!(
            turns.table(),
            "\
median        before  now
transfers /s  100     110 (1.100)
memory MiB    2.00    3.00 (1.500)"
        );
        let said = r#"{"figures": [{"name": "reads", "per_second": 2.5}]}"#;
        assert_eq!(figures(said).unwrap(), [("reads /s".to_owned(), 2.5)]);
    }
}
