//! `percolator gc`: garbage collection, for whoever runs the cluster.

use std::process::ExitCode;
use std::time::Duration;

use percolator_client::{Admin, GcStatus, Timestamp};
use serde_json::{Value, json};

use crate::answered;
use crate::output::{Format, Output, columns};

/// Garbage collection: how far it is, and what holds it back.
///
/// Versions that a newer one hides are kept for a life time, and longer where a transaction still reads them. Two
/// points go forward for that. What began below the barrier is refused; what no snapshot at or above the ready
/// point sees is collected.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  percolator gc status
  percolator gc why-blocked
  percolator gc set --life-time 1h")]
pub(crate) enum Command {
    /// How far the points are, by their ages, and each tablet server's.
    #[command(after_help = "Examples:\n  percolator gc status\n  percolator gc status -o json")]
    Status,
    /// Name what holds the points back, and what to do about it.
    ///
    /// Ends with 0 where the life time alone does, with 7 where something else does.
    #[command(after_help = "Example:\n  percolator gc why-blocked")]
    WhyBlocked,
    /// Change the settings, at once and durably.
    #[command(after_help = "\
Examples:
  percolator gc set --life-time 90s
  percolator gc set --pause true      nothing is collected any more, and nothing more is refused
  percolator gc set --pause false     go on")]
    Set(SetArgs),
}

/// What to set.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
pub(crate) struct SetArgs {
    /// How long versions are kept that no transaction reads: from 1s to 366 days.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    life_time: Option<Duration>,
    /// Whether to stand still.
    #[arg(long, value_name = "BOOL")]
    pause: Option<bool>,
}

pub(crate) async fn run(
    cluster: &str,
    command: Command,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let admin = Admin::connect(cluster)?;
    if let Command::Set(args) = &command {
        admin.set_gc(args.life_time, args.pause).await?;
    }
    let status = admin.gc_status().await?;
    match command {
        Command::Status => output.result(&text(&status), &json(&status))?,
        Command::WhyBlocked => {
            let reasons = reasons(&status);
            let lines: Vec<&str> = reasons.iter().map(|reason| &*reason.what).collect();
            let values: Vec<Value> = reasons.iter().map(Reason::json).collect();
            output.result(&lines.join("\n"), &values)?;
            return Ok(answered(reasons.iter().all(|reason| reason.usual)));
        }
        Command::Set(_) => {
            let life_time = humantime::format_duration(status.life_time);
            let paused = if status.paused { ", paused" } else { "" };
            match output.format {
                Format::Text => output.note(&format!("versions are kept for {life_time}{paused}")),
                Format::Json => output.line(&json(&status).to_string())?,
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// How long before the oracle's time that is.
fn age(status: &GcStatus, point: Timestamp) -> String {
    if point == Timestamp::ZERO || status.now == Timestamp::ZERO {
        return "-".to_owned();
    }
    let ms = status.now.physical_ms().saturating_sub(point.physical_ms());
    let rounded = match ms {
        ..10_000 => ms,
        _ => ms / 1000 * 1000,
    };
    humantime::format_duration(Duration::from_millis(rounded)).to_string()
}

fn text(status: &GcStatus) -> String {
    let mut rows = vec![
        ["", "age", "at", "collected"].map(str::to_owned),
        row("barrier", status, status.barrier, String::new()),
        row("ready", status, status.ready, String::new()),
    ];
    for server in &status.servers {
        let collected = server.collected.to_string();
        rows.push(row(&server.server, status, server.ready, collected));
    }
    let table = columns(&rows.iter().map(|row| row.to_vec()).collect::<Vec<_>>());
    let paused = if status.paused { "; paused" } else { "" };
    format!(
        "{table}\nlife time {}{paused}; sessions {}",
        humantime::format_duration(status.life_time),
        status.sessions
    )
}

fn row(name: &str, status: &GcStatus, point: Timestamp, collected: String) -> [String; 4] {
    let at = match point {
        Timestamp::ZERO => "-".to_owned(),
        point => point.to_string(),
    };
    [name.to_owned(), age(status, point), at, collected]
}

fn json(status: &GcStatus) -> Value {
    json!({
        "life_time_ms": u64::try_from(status.life_time.as_millis()).unwrap_or(u64::MAX),
        "paused": status.paused,
        "now": status.now.to_string(),
        "barrier": status.barrier.to_string(),
        "ready": status.ready.to_string(),
        "sessions": status.sessions,
        "servers": status.servers.iter().map(|server| json!({
            "server": server.server,
            "barrier": server.barrier.to_string(),
            "ready": server.ready.to_string(),
            "collected": server.collected,
        })).collect::<Vec<_>>(),
    })
}

/// Why a point is where it is.
struct Reason {
    point: &'static str,
    kind: &'static str,
    what: String,
    /// Nothing is to be done about it.
    usual: bool,
    facts: Value,
}

impl Reason {
    fn json(&self) -> Value {
        json!({
            "point": self.point,
            "kind": self.kind,
            "what": self.what,
            "facts": self.facts,
        })
    }
}

fn reasons(status: &GcStatus) -> Vec<Reason> {
    let mut reasons = Vec::new();
    if status.paused {
        reasons.push(Reason {
            point: "barrier",
            kind: "paused",
            what: "collection is paused; go on with `percolator gc set --pause false`".to_owned(),
            usual: false,
            facts: json!({}),
        });
    }
    let life_ms = u64::try_from(status.life_time.as_millis()).unwrap_or(u64::MAX);
    let oldest = status.now.physical_ms().saturating_sub(life_ms);
    for holder in &status.holders {
        if holder.floor.physical_ms() >= oldest {
            break;
        }
        let transactions = match holder.transactions.first() {
            Some(first) => format!("transaction {first}, begun {} ago", age(status, *first)),
            None => format!("a snapshot of {} ago", age(status, holder.floor)),
        };
        reasons.push(Reason {
            point: "barrier",
            kind: "gc-lock",
            what: format!(
                "{transactions} of {} (process {} on {}) is still open: it is kept readable until it ends; end \
                 it there, or the process",
                holder.application, holder.process, holder.host
            ),
            usual: false,
            facts: json!({
                "session": holder.session.to_string(),
                "host": holder.host,
                "process": holder.process,
                "application": holder.application,
                "floor": holder.floor.to_string(),
                "transactions": holder.transactions.iter().map(ToString::to_string).collect::<Vec<_>>(),
            }),
        });
    }
    for obstacle in &status.obstacles {
        reasons.push(Reason {
            point: "ready",
            kind: "tablet-server",
            what: format!("{}: {}", obstacle.server, obstacle.what),
            usual: false,
            facts: json!({"server": obstacle.server}),
        });
    }
    if reasons.is_empty() {
        reasons.push(Reason {
            point: "barrier",
            kind: "life-time",
            what: format!(
                "nothing but the life time, {}; change it with `percolator gc set --life-time`",
                humantime::format_duration(status.life_time)
            ),
            usual: true,
            facts: json!({"life_time_ms": life_ms}),
        });
    }
    reasons
}
