//! `percolator gc`: garbage collection, for administrators.

use std::process::ExitCode;
use std::time::Duration;

use percolator_client::{
    Admin, GcChange, GcHolder, GcObstacle, GcStatus, GcTablet, Timestamp, TxnOwner,
};
use serde_json::{Value, json};

use crate::answered;
use crate::output::{Format, Output, columns};

/// Garbage collection: how far it is, and what holds it back.
///
/// Versions that a newer one hides are kept for the retention, and longer where a transaction still reads them. Two
/// points go forward for that. What began below the barrier is refused; what no snapshot at or above the safe
/// point sees is collected.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  percolator gc status
  percolator gc why-blocked
  percolator gc set --retention 1h
  percolator gc release 449812345678901234")]
pub(crate) enum Command {
    /// How far the points are, by their ages; of each tablet server, what waits to be collected and was collected.
    ///
    /// WAITING are places that are to be looked at once the safe point has passed them, OLDEST is the age of the
    /// first. COLLECTED records and BYTES count from the server's start, values of more than 255 bytes not among them.
    #[command(
        after_help = "Examples:\n  percolator gc status --tablets\n  percolator gc status -o json"
    )]
    Status {
        /// Each tablet too.
        #[arg(long)]
        tablets: bool,
    },
    /// Name what holds the points back, and what to do about it.
    ///
    /// Ends with 0 where nothing is to be done about it, with 7 where something is.
    #[command(after_help = "Example:\n  percolator gc why-blocked")]
    WhyBlocked,
    /// Change the settings, at once and durably.
    ///
    /// What the cluster's manifest says in spec.gc wins: such a setting is changed there, and refused here.
    #[command(after_help = "\
Examples:
  percolator gc set --retention 90s
  percolator gc set --max-hold 6h     end the gc-locks of clients that read for longer
  percolator gc set --max-hold 0s     no limit
  percolator gc set --pause true      nothing more is refused, and no more may be collected
  percolator gc set --pause false     go on")]
    Set(SetArgs),
    /// Walk everything that is stored, slowly, and see that collection misses nothing.
    ///
    /// Ends with 7 where the index of what is to be collected and the data don't agree.
    #[command(
        after_help = "Examples:\n  percolator gc verify\n  percolator gc verify --pace 0 -o json"
    )]
    Verify(crate::verify::Args),
    /// End the gc-lock of a transaction, by its timestamp as `why-blocked` and `percolator txn list` name it.
    ///
    /// What its process began before it goes too. Nothing is undone: the transaction is refused when it reads or
    /// commits after the barrier has passed it.
    #[command(after_help = "Example:\n  percolator gc release 449812345678901234")]
    Release {
        /// Where the transaction began.
        start_ts: u64,
    },
}

/// What to set.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
pub(crate) struct SetArgs {
    /// How long versions are kept that no transaction reads: from 1s to 366 days.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    retention: Option<Duration>,
    /// How long a transaction may keep versions from being collected: from 1s to 366 days, 0s for no limit. One
    /// that goes on after that is refused when it reads or commits. Default: no limit.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    max_hold: Option<Duration>,
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
        let set = admin
            .set_gc(GcChange {
                retention: args.retention,
                hold_max: args.max_hold,
                paused: args.pause,
            })
            .await?;
        match output.format {
            Format::Text => {
                let settings = settings(Some(set.retention), set.hold_max, set.paused);
                output.note(&settings);
            }
            Format::Json => output.line(
                &json!({
                    "retention_ms": millis(set.retention),
                    "hold_ms_max": set.hold_max.map(millis),
                    "paused": set.paused,
                })
                .to_string(),
            )?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    if let Command::Verify(args) = command {
        return crate::verify::run(&admin, args, output).await;
    }
    if let Command::Release { start_ts } = command {
        let owners = admin.release_gc_lock(Timestamp::from_u64(start_ts)).await?;
        let names: Vec<String> = owners.iter().map(ToString::to_string).collect();
        let text = if names.is_empty() {
            format!(
                "nobody is known to hold a gc-lock at {start_ts}: of each client the 100 oldest are; \
             `percolator gc why-blocked` names those in the way"
            )
        } else {
            format!("ended: the gc-lock of {}", names.join(", "))
        };
        let owners: Vec<Value> = owners.iter().map(owner_json).collect();
        output.result(
            &text,
            &json!({"start_ts": start_ts.to_string(), "owners": owners}),
        )?;
        return Ok(answered(!names.is_empty()));
    }
    let status = admin.gc_status().await?;
    if let Command::WhyBlocked = command {
        let reasons = reasons(&status);
        let lines: Vec<String> = reasons.iter().map(Reason::line).collect();
        let values: Vec<Value> = reasons.iter().map(Reason::json).collect();
        output.result(&lines.join("\n"), &values)?;
        return Ok(answered(reasons.iter().all(|reason| reason.usual)));
    }
    let with_tablets = matches!(command, Command::Status { tablets: true });
    output.result(&text(&status, with_tablets), &json(&status))?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn owner_json(owner: &TxnOwner) -> Value {
    json!({
        "host": owner.host,
        "process": owner.process,
        "application": owner.application,
        "label": owner.label,
    })
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Settings in a line; a retention that isn't known was never set.
pub(crate) fn settings(
    retention: Option<Duration>,
    hold_max: Option<Duration>,
    paused: bool,
) -> String {
    let mut text = match retention {
        Some(retention) => format!("retention {}", humantime::format_duration(retention)),
        None => "retention not set".to_owned(),
    };
    if let Some(hold_max) = hold_max {
        text += &format!(
            ", gc-locks for at most {}",
            humantime::format_duration(hold_max)
        );
    }
    text + if paused { ", paused" } else { "" }
}

fn age(status: &GcStatus, point: Timestamp) -> String {
    age_at(status.now, point)
}

/// How long before the oracle's time that is.
pub(crate) fn age_at(now: Timestamp, point: Timestamp) -> String {
    if point == Timestamp::ZERO || now == Timestamp::ZERO {
        return "-".to_owned();
    }
    let ms = now.physical_ms().saturating_sub(point.physical_ms());
    let rounded = match ms {
        ..10_000 => ms,
        _ => ms / 1000 * 1000,
    };
    humantime::format_duration(Duration::from_millis(rounded)).to_string()
}

fn text(status: &GcStatus, with_tablets: bool) -> String {
    let words = |words: [&str; 8]| words.map(str::to_owned).to_vec();
    let point = |name: &str, point| {
        let at = match point {
            Timestamp::ZERO => "-".to_owned(),
            point => point.to_string(),
        };
        let row = [name.to_owned(), age(status, point), at];
        row.into_iter()
            .chain(std::iter::repeat_n(String::new(), 5))
            .collect()
    };
    let mut rows: Vec<Vec<String>> = vec![
        words([
            "",
            "AGE",
            "AT",
            "WAITING",
            "OLDEST",
            "COLLECTED",
            "BYTES",
            "PER SECOND",
        ]),
        point("barrier", status.barrier),
        point("safe point", status.safe_point),
        point("resolved", status.resolved),
    ];
    for server in &status.servers {
        let sum = |of: fn(&GcTablet) -> u64| server.tablets.iter().map(of).sum::<u64>().to_string();
        let mut row: Vec<String> = point(&server.server, server.safe_point);
        row.truncate(3);
        row.extend([
            sum(|tablet| tablet.waiting),
            age(status, server.oldest),
            server.collected.to_string(),
            sum(|tablet| tablet.bytes),
            server.collected_per_second.to_string(),
        ]);
        rows.push(row);
        for tablet in server.tablets.iter().filter(|_| with_tablets) {
            let name = match tablet.tablet {
                0 => "  dropped".to_owned(),
                id => format!("  tablet {id}"),
            };
            let mut row = point(&name, Timestamp::ZERO);
            row[2] = String::new();
            row[1] = String::new();
            row[3] = tablet.waiting.to_string();
            row[5] = tablet.collected.to_string();
            row[6] = tablet.bytes.to_string();
            rows.push(row);
        }
    }
    let table = columns(&rows);
    let settings = settings(Some(status.retention), status.hold_max, status.paused);
    let manifest = match &status.of_manifest[..] {
        [] => String::new(),
        fields => format!("; the manifest says {}", fields.join(", ")),
    };
    format!(
        "{table}\n{settings}{manifest}; sessions {}",
        status.sessions
    )
}

pub(crate) fn json(status: &GcStatus) -> Value {
    json!({
        "retention_ms": millis(status.retention),
        "hold_ms_max": status.hold_max.map(millis),
        "paused": status.paused,
        "of_manifest": status.of_manifest,
        "now": status.now.to_string(),
        "barrier": status.barrier.to_string(),
        "safe_point": status.safe_point.to_string(),
        "resolved": status.resolved.to_string(),
        "sessions": status.sessions,
        "servers": status.servers.iter().map(|server| json!({
            "server": server.server,
            "barrier": server.barrier.to_string(),
            "safe_point": server.safe_point.to_string(),
            "collected": server.collected,
            "collected_per_second": server.collected_per_second,
            "oldest": server.oldest.to_string(),
            "tablets": server.tablets.iter().map(|tablet| json!({
                "tablet": tablet.tablet,
                "waiting": tablet.waiting,
                "collected": tablet.collected,
                "bytes": tablet.bytes,
            })).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
    })
}

/// The kind of a reason that is something in the way on a server.
pub(crate) const OBSTACLE: &str = "tablet-server";

/// Why a point is where it is.
pub(crate) struct Reason {
    pub(crate) point: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) what: String,
    /// What to do about it.
    pub(crate) todo: String,
    /// Nothing is to be done about it.
    pub(crate) usual: bool,
    facts: Value,
}

impl Reason {
    fn json(&self) -> Value {
        json!({
            "point": self.point.replace(' ', "_"),
            "kind": self.kind,
            "what": self.what,
            "todo": self.todo,
            "facts": self.facts,
        })
    }

    /// That the master gets no time of the oracle.
    pub(crate) fn is_oracle(&self) -> bool {
        self.facts["by"] == "oracle"
    }

    fn line(&self) -> String {
        format!("{}; {}", self.what, self.todo)
    }
}

fn obstacle_reason(status: &GcStatus, obstacle: &GcObstacle) -> Reason {
    let mut what = if obstacle.server.is_empty() {
        obstacle.what.clone()
    } else {
        format!("{}: {}", obstacle.server, obstacle.what)
    };
    let start_ts = obstacle.start_ts;
    if start_ts != Timestamp::ZERO {
        what += &format!("; it began {} ago", age(status, start_ts));
        if let Some(owner) = &obstacle.owner {
            what += &format!(" in {owner}");
        }
    }
    if !obstacle.since.is_zero() {
        let since = Duration::from_secs(obstacle.since.as_secs().max(1));
        what += &format!(
            "; it has been in the way for {}",
            humantime::format_duration(since)
        );
    }
    let (point, kind, todo) = match &*obstacle.by {
        "starting" => ("barrier", "starting", "nothing is to be done".to_owned()),
        "resolving" => (
            "safe point",
            "resolving",
            "nothing is to be done: `percolator txn list` counts those that are left".to_owned(),
        ),
        "table_creating" => (
            "safe point",
            OBSTACLE,
            "start what it waits for; or delete the table".to_owned(),
        ),
        "table_deleting" => (
            "safe point",
            OBSTACLE,
            "start what it waits for; or, if its tablets are lost for good, `percolator table delete --accept-data-loss`"
                .to_owned(),
        ),
        "oracle" => ("barrier", OBSTACLE, "start it again".to_owned()),
        "server_down" if obstacle.server.is_empty() => {
            ("barrier", OBSTACLE, "start them again".to_owned())
        }
        "server_down" | "server_behind" => ("safe point", OBSTACLE, "start it again".to_owned()),
        "tablets_lost" => (
            "safe point",
            OBSTACLE,
            "bring its folder back; or give up what is lost: `percolator table delete --accept-data-loss` of these tables".to_owned(),
        ),
        _ if start_ts != Timestamp::ZERO => (
            "safe point",
            OBSTACLE,
            format!(
                "it ends when its owner commits, and some seconds after its owner's end; `percolator txn abort \
                 {start_ts}` ends it now"
            ),
        ),
        _ => (
            "safe point",
            OBSTACLE,
            "`percolator status` says how that server is".to_owned(),
        ),
    };
    Reason {
        point,
        kind,
        what,
        usual: kind != OBSTACLE,
        todo,
        facts: json!({
            "by": obstacle.by,
            "server": obstacle.server,
            "since_ms": millis(obstacle.since),
            "start_ts": (start_ts != Timestamp::ZERO).then(|| start_ts.to_string()),
            "owner": obstacle.owner.as_ref().map(owner_json),
        }),
    }
}

pub(crate) fn reasons(status: &GcStatus) -> Vec<Reason> {
    let mut reasons = Vec::new();
    if status.paused {
        reasons.push(Reason {
            point: "barrier",
            kind: "paused",
            what: "collection is paused".to_owned(),
            todo: if status.of_manifest.iter().any(|field| field == "paused") {
                "go on with spec.gc.paused: false in the manifest"
            } else {
                "go on with `percolator gc set --pause false`"
            }
            .to_owned(),
            usual: false,
            facts: json!({}),
        });
    }
    let life_ms = millis(status.retention);
    let oldest = status.now.physical_ms().saturating_sub(life_ms);
    for holder in &status.holders {
        if holder.floor.physical_ms() >= oldest {
            break;
        }
        reasons.push(holder_reason(status, holder));
    }
    reasons.extend(
        status
            .obstacles
            .iter()
            .map(|it| obstacle_reason(status, it)),
    );
    if reasons.is_empty() {
        reasons.push(Reason {
            point: "barrier",
            kind: "retention",
            what: format!(
                "nothing but the retention, {}",
                humantime::format_duration(status.retention)
            ),
            todo: if status.of_manifest.iter().any(|field| field == "retention") {
                "change it with spec.gc.retention in the manifest"
            } else {
                "change it with `percolator gc set --retention`"
            }
            .to_owned(),
            usual: true,
            facts: json!({"retention_ms": life_ms}),
        });
    }
    reasons
}

fn holder_reason(status: &GcStatus, holder: &GcHolder) -> Reason {
    let named = holder.transactions.first().unwrap_or(&holder.floor);
    let transactions = match holder.transactions.first() {
        Some(first) => format!("transaction {first}, begun {} ago", age(status, *first)),
        None => format!("a snapshot of {} ago", age(status, holder.floor)),
    };
    let lease = Duration::from_secs(holder.lease.as_secs().max(1));
    let lease = humantime::format_duration(lease);
    let (what, todo) = if holder.released {
        (
            format!("what {} has named was ended by hand", holder.owner),
            format!(
                "nothing is to be done: it goes on when that process renews its lease, or in {lease}, when the lease ends"
            ),
        )
    } else {
        (
            format!(
                "{transactions} of {} is still open: it is kept readable until it ends",
                holder.owner
            ),
            format!(
                "end it there, or the process, or its gc-lock with `percolator gc release {named}`; if the process is \
             dead, it ends in {lease}, with its lease"
            ),
        )
    };
    Reason {
        point: "barrier",
        kind: "gc-lock",
        what,
        todo,
        usual: holder.released,
        facts: json!({
            "lease_ms": millis(holder.lease),
            "released": holder.released,
            "session": holder.session.to_string(),
            "host": holder.owner.host,
            "process": holder.owner.process,
            "application": holder.owner.application,
            "label": holder.owner.label,
            "floor": holder.floor.to_string(),
            "transactions": holder.transactions.iter().map(ToString::to_string).collect::<Vec<_>>(),
        }),
    }
}
