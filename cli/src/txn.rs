//! `percolator txn`: the transactions that run, for administrators.

use std::process::ExitCode;

use percolator_client::{Admin, Ending, RunningTxn, Timestamp};
use serde_json::{Value, json};

use crate::answered;
use crate::gc::{age_at, owner_json};
use crate::output::{Output, columns};

/// Transactions that run: list them, end one.
///
/// Named are those with locks, and those that have been open for a second; of the latter a client tells when it renews its
/// lease, at most 20 seconds later, and of its 100 oldest. Whose a large one is, it tells at once. A gc-lock lasts for as
/// long as its lease, which its client renews while it lives.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  percolator txn list
  percolator txn abort 449812345678901234")]
pub(crate) enum Command {
    /// The transactions that run, oldest first: whose they are, and how many cells they have locked.
    ///
    /// Ends with 5 where a tablet server doesn't say which locks it has.
    #[command(
        after_help = "Examples:\n  percolator txn list\n  percolator txn list --limit 10 -o json"
    )]
    List {
        /// The most to name.
        #[arg(long, value_name = "NUMBER", default_value_t = 100)]
        limit: u32,
    },
    /// End a transaction: it is rolled back where it has locks, and its gc-lock ends.
    ///
    /// Ends with 7 where it isn't rolled back: it was committed before, or nothing of it is found; or it has locked nothing
    /// yet, so that it may still commit.
    #[command(after_help = "Example:\n  percolator txn abort 449812345678901234")]
    Abort {
        /// Where it began, as `percolator txn list` names it.
        start_ts: u64,
    },
}

pub(crate) async fn run(
    cluster: &str,
    command: Command,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let admin = Admin::connect(cluster)?;
    match command {
        Command::List { limit } => list(&admin, limit, output).await,
        Command::Abort { start_ts } => abort(&admin, Timestamp::from_u64(start_ts), output).await,
    }
}

async fn list(admin: &Admin, limit: u32, output: Output) -> anyhow::Result<ExitCode> {
    let running = admin.running(limit).await?;
    let mut rows = vec![
        ["START_TS", "AGE", "LOCKS", "LEASE", "OWNER"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(running.txns.iter().map(|txn| {
        vec![
            txn.start_ts.to_string(),
            age_at(running.now, txn.start_ts),
            txn.locks.to_string(),
            txn.lease
                .map_or_else(|| "-".to_owned(), |lease| format!("{} s", lease.as_secs())),
            txn.owner
                .as_ref()
                .map_or_else(|| "-".to_owned(), ToString::to_string),
        ]
    }));
    let of = |txn: &RunningTxn| -> Value {
        let ms = running
            .now
            .physical_ms()
            .saturating_sub(txn.start_ts.physical_ms());
        json!({
            "start_ts": txn.start_ts.to_string(),
            "age_ms": ms,
            "locks": txn.locks,
            "primary": txn.primary,
            "owner": txn.owner.as_ref().map(owner_json),
            "lease_ms": txn.lease.map(|lease| lease.as_millis()),
        })
    };
    let txns: Vec<Value> = running.txns.iter().map(of).collect();
    output.result(&columns(&rows), &txns)?;
    if txns.is_empty() {
        output.note("none; one that holds no locks is named up to 20 s after it has begun");
    }
    if running.more {
        output.note(&format!("there are more than {limit}: --limit"));
    }
    if running.unnamed > 0 {
        output.note(&format!(
            "{} more have no name here: each client names its oldest 100",
            running.unnamed
        ));
    }
    for server in &running.uncounted {
        output.note(&format!("{server} has more locks than are counted"));
    }
    for (server, why) in &running.unreached {
        output.note(&format!("locks on {server} are not all known: {why}"));
    }
    // What a script reads is not all there is.
    Ok(if running.unreached.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(5)
    })
}

async fn abort(admin: &Admin, start_ts: Timestamp, output: Output) -> anyhow::Result<ExitCode> {
    let ended = admin.abort(start_ts).await?;
    let locks = ended.locks;
    let (mut text, outcome, done) = match ended.ending {
        Some(Ending::RolledBack) => (
            format!("rolled back; {locks} locks were cleared"),
            "rolled back",
            true,
        ),
        Some(Ending::Committed(commit_ts)) => (
            format!("it was committed at {commit_ts} before; {locks} locks were cleared"),
            "committed",
            false,
        ),
        None if ended.owners.is_empty() => (
            "nothing is found of it: it has ended, or is too young to be told of, or not among the 100 oldest of its client"
                .to_owned(),
            "not found",
            false,
        ),
        None => (
            "it has locked nothing yet, so it can't be rolled back: it may go on, and commit, until the barrier passes it"
                .to_owned(),
            "no locks",
            false,
        ),
    };
    for owner in &ended.owners {
        text += &format!("; its gc-lock, of {owner}, has ended");
    }
    let owners: Vec<Value> = ended.owners.iter().map(owner_json).collect();
    let json = json!({
        "start_ts": start_ts.to_string(),
        "outcome": outcome,
        "locks": locks,
        "owners": owners,
    });
    output.result(&text, &json)?;
    Ok(answered(done))
}
