//! `percolator gc verify`: whether the index of garbage and the data agree.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use percolator_client::{Admin, Position, Verification, escape, unescape};
use serde_json::{Value, json};

use crate::answered;
use crate::errors::shell_word;
use crate::output::{Output, columns};

/// How often it says where it is.
const SHOWN_EVERY: Duration = Duration::from_secs(5);
/// Findings that are printed.
const SHOWN_MAX: usize = 100;

/// What to verify.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Wait so many times as long as each piece took before the next, a whole number: 0 is as fast as can be.
    #[arg(long, value_name = "NUMBER", default_value_t = 3)]
    pace: u32,
    /// Go on from where an earlier walk was, as it said: SERVER/PART/KEY. What lies before is not looked at again.
    #[arg(long, value_name = "POSITION", value_parser = position)]
    resume: Option<Position>,
}

fn position(text: &str) -> Result<Position, String> {
    let mut words = text.splitn(3, '/');
    let (Some(server), Some(part), Some(after)) = (words.next(), words.next(), words.next()) else {
        return Err("a position is SERVER/PART/KEY, as a walk says it".into());
    };
    Ok(Position {
        server: server.to_owned(),
        part: part
            .parse()
            .map_err(|_| "its part is a number".to_owned())?,
        after: unescape(after).map_err(|error| error.to_string())?.into(),
    })
}

fn text(position: &Position) -> String {
    format!(
        "{}/{}/{}",
        position.server,
        position.part,
        escape(&position.after)
    )
}

pub(crate) async fn run(admin: &Admin, args: Args, output: Output) -> anyhow::Result<ExitCode> {
    let from = args.resume.unwrap_or_default();
    let mut last = from.clone();
    let mut shown = Instant::now();
    let walk = admin.verify_gc(&from, args.pace, |position, so_far| {
        last = position.clone();
        if shown.elapsed() >= SHOWN_EVERY {
            shown = Instant::now();
            let wrong = so_far.wrong();
            output.note(&format!(
                "at {}, {wrong} wrong; to go on from here: --resume {}",
                position.server,
                shell_word(&text(position))
            ));
        }
    });
    let done = match walk.await {
        Ok(done) => done,
        Err(error) => {
            if last != Position::default() {
                output.note(&format!("to go on: --resume {}", shell_word(&text(&last))));
            }
            return Err(error.into());
        }
    };
    let from_there = if from == Position::default() {
        ""
    } else {
        ", from there on"
    };
    let text = format!("{}{from_there}", shown_as(&done));
    output.result(&text, &json_of(&done))?;
    Ok(answered(done.wrong() == 0 && done.missed.is_empty()))
}

fn shown_as(done: &Verification) -> String {
    let head = [
        "SERVER", "TABLET", "RECORDS", "VALUES", "ENTRIES", "WAITING", "WRONG",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for ((server, tablet), seen) in &done.tablets {
        let tablet = match tablet {
            0 => "dropped".to_owned(),
            id => id.to_string(),
        };
        let numbers = [
            seen.records,
            seen.values,
            seen.entries,
            seen.waiting,
            seen.wrong,
        ];
        let mut row = vec![server.clone(), tablet];
        row.extend(numbers.map(|number| number.to_string()));
        rows.push(row);
    }
    let mut text = columns(&rows);
    for finding in done.findings.iter().take(SHOWN_MAX) {
        text += &format!(
            "\n{} tablet {}, cell {} at {}: {}",
            finding.server, finding.tablet, finding.cell, finding.ts, finding.what
        );
    }
    if !done.missed.is_empty() {
        let missed: Vec<String> = done.missed.iter().map(u64::to_string).collect();
        text += &format!(
            "\ntablets that moved meanwhile, and may not have been looked at: {}; walk again, faster (--pace 0)",
            missed.join(", ")
        );
    }
    text + match done.wrong() {
        0 if !done.missed.is_empty() => "\nthe index and the data agree in the others",
        0 => "\nthe index and the data agree",
        _ => "\nthe index and the data don't agree",
    }
}

fn json_of(done: &Verification) -> Value {
    json!({
        "wrong": done.wrong(),
        "missed": done.missed,
        "tablets": done.tablets.iter().map(|((server, tablet), seen)| json!({
            "server": server,
            "tablet": tablet,
            "records": seen.records,
            "values": seen.values,
            "entries": seen.entries,
            "waiting": seen.waiting,
            "wrong": seen.wrong,
        })).collect::<Vec<_>>(),
        "findings": done.findings.iter().map(|finding| json!({
            "server": finding.server,
            "tablet": finding.tablet,
            "cell": finding.cell.to_string(),
            "ts": finding.ts.to_string(),
            "what": finding.what,
        })).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_read_as_it_is_written() {
        let position_of = |after: &'static [u8]| Position {
            server: "tablet-1".into(),
            part: 2,
            after: after.into(),
        };
        for after in [&b""[..], b"a/b\x00\xff"] {
            assert_eq!(position(&text(&position_of(after))), Ok(position_of(after)));
        }
        assert!(position("tablet-1").is_err());
        assert!(position("tablet-1/x/").is_err());
    }
}
