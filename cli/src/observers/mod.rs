//! `percolator observe`: programs that run when cells change, what waits for them, and what was given up.

mod exec;
mod operations;
mod webhook;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use percolator_client::{
    Bytes, Change, Client, DeadLetter, Error, HandlerError, ObservedStatus, Observer,
    ObserverOptions, OpenTxn, escape,
};
use percolator_telemetry::logs;
use serde_json::json;

use crate::answered;
use crate::cells::{Escaped, Waiting};
use crate::errors::Usage;
use crate::output::{Format, Output, columns, with_bytes};

/// Run programs when cells of an observed column change, and see what waits for them.
///
/// A column is observed from `percolator table observe` on. Each change is run for in a transaction of its own, which commits
/// at most once for a change; several changes of a cell may be one run, which sees the last.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  percolator table observe documents text
  percolator observe run documents text --exec ./count-words
  percolator observe status documents text
  percolator observe retry documents text
  percolator observe discard documents text")]
pub(crate) enum Command {
    Run(RunArgs),
    /// Which columns are observed, how many changes wait, for how long the oldest has, and which were given up.
    ///
    /// Ends with 7 where some were given up.
    #[command(
        after_help = "Examples:\n  percolator observe status                       all observed columns\n  percolator observe status documents text\n  percolator observe status documents text -o json"
    )]
    Status(StatusArgs),
    /// Forget changes that were given up: nobody runs for them any more.
    ///
    /// Ends with 7 where there is none.
    #[command(
        after_help = "Examples:\n  percolator observe discard documents text\n  percolator observe discard documents text --row doc7"
    )]
    Discard(LetterArgs),
    /// Run again for the changes that were given up.
    ///
    /// Ends with 7 where there is none.
    #[command(
        after_help = "Examples:\n  percolator observe retry documents text\n  percolator observe retry documents text --row doc7"
    )]
    Retry(LetterArgs),
}

/// An observed column.
#[derive(Debug, clap::Args)]
pub(crate) struct ColumnArgs {
    /// The table.
    #[arg(add = crate::complete::tables())]
    table: String,
    /// The column.
    column: Escaped,
    #[command(flatten)]
    waiting: Waiting,
}

/// Changes of a column that were given up.
#[derive(Debug, clap::Args)]
pub(crate) struct LetterArgs {
    #[command(flatten)]
    column: ColumnArgs,
    /// Only the change of this row.
    #[arg(long)]
    row: Option<Escaped>,
}

/// What is asked about.
#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    /// The table. Default: all.
    #[arg(add = crate::complete::tables())]
    table: Option<String>,
    /// The column, whose changes that were given up are listed, too. Default: all that are observed.
    column: Option<Escaped>,
    #[command(flatten)]
    waiting: Waiting,
}

/// Run a program for each change, or call a URL, until it is interrupted.
///
/// The program is started for each change. On its standard input it has one line, a JSON object: table, row, column, value
/// (null: it was deleted), changed_at, start_ts. It reads that line, and not to the end of its input, which stays open. What it
/// prints are JSON objects, one a line, that belong to the transaction of the run:
///   {"put": {"table": "t", "row": "r", "column": "c", "value": "v"}}
///   {"delete": {"table": "t", "row": "r", "column": "c"}}
///   {"get": {"table": "t", "row": "r", "column": "c"}}
/// After a get it reads one line: {"value": ...}. Without a table the observed one is meant, without a column the empty one.
/// Bytes that are not UTF-8 are in base64 under the name with _base64 behind it. When it ends with exit code 0, the
/// transaction commits; otherwise nothing of it is written, and it runs again later. It may run more than once for a change:
/// only what it prints takes effect exactly once.
///
/// A URL is called by POST, with the same JSON as the body. With a status of 2xx the lines of its answer, put and delete, belong
/// to the transaction, which commits. Any other status, or no answer in time, has it called again later. Calls are signed by
/// HMAC-SHA256, as the Standard Webhooks specification says: webhook-id is the same for each call for a change,
/// webhook-timestamp has the seconds since 1970, webhook-signature is over both and the body.
///
/// Any number of such commands share the changes of a column.
#[derive(Debug, clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  percolator observe run documents text --exec ./count-words
  percolator observe run documents text --exec ./count-words --concurrency 4 --attempts 10
  percolator observe run documents text --exec ./count-words --until-idle    run for what waits, and end
  percolator observe run documents text --webhook https://example.com/changed --webhook-key-file key"
)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    column: ColumnArgs,
    #[command(flatten)]
    handler: HandlerArgs,
    /// The key that signs calls: a file with `whsec_` and base64, or with a text of 24 bytes at least. Default: what
    /// PERCOLATOR_WEBHOOK_KEY has.
    #[arg(long, value_name = "FILE", requires = "webhook")]
    webhook_key_file: Option<PathBuf>,
    /// Programs, or calls, at a time.
    #[arg(long, default_value_t = 4)]
    concurrency: usize,
    /// A change for whose value the program, or the call, has failed so often is given up.
    #[arg(long, default_value_t = 5)]
    attempts: u32,
    /// A change behind so many runs, one because of what the other wrote, is given up: observers that cause each other run in
    /// a loop.
    #[arg(long, value_name = "RUNS", default_value_t = 64)]
    chain_max: u32,
    /// A program that takes longer is killed, and has failed; so has a call.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = humantime::parse_duration)]
    timeout: Duration,
    /// When this process dies, others run for the changes that it had after this: 100ms to 60s, or 0s, and they may at once.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = humantime::parse_duration)]
    lease: Duration,
    /// Show what the worker does: /metrics, /healthz and /readyz at IP:PORT; port 0 picks a free one, which it reports.
    /// Default: nowhere.
    #[arg(long, value_name = "IP:PORT")]
    metrics_listen: Option<SocketAddr>,
    /// End when no change waits: with 7 where changes were given up.
    #[arg(long)]
    until_idle: bool,
}

/// What is run.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct HandlerArgs {
    /// The program, and its arguments, as a shell takes them.
    #[arg(long, value_name = "COMMAND")]
    exec: Option<String>,
    /// The URL that is called: http:// or https://. Redirections are failures.
    #[arg(long, value_name = "URL")]
    webhook: Option<String>,
}

/// What handles changes outside of this process.
#[derive(Clone)]
enum External {
    Program(exec::Program),
    Webhook(Arc<webhook::Webhook>),
}

impl External {
    fn of(args: &RunArgs) -> anyhow::Result<Self> {
        let handler = &args.handler;
        if let Some(command) = &handler.exec {
            return Ok(Self::Program(exec::Program::new(
                command.clone(),
                args.timeout,
            )));
        }
        let url = handler.webhook.as_deref().unwrap_or_default();
        let key_file = args.webhook_key_file.as_deref();
        let webhook = webhook::Webhook::new(url, key_file, args.timeout)?;
        Ok(Self::Webhook(Arc::new(webhook)))
    }

    async fn run(&self, change: Change, txn: OpenTxn) -> Result<(), HandlerError> {
        match self {
            Self::Program(program) => program.run(change, txn).await,
            Self::Webhook(webhook) => webhook.run(change, txn).await,
        }
    }
}

impl Command {
    pub(crate) fn waiting(&self) -> Waiting {
        match self {
            Self::Run(args) => args.column.waiting,
            Self::Status(args) => args.waiting,
            Self::Retry(args) | Self::Discard(args) => args.column.waiting,
        }
    }
}

pub(crate) async fn run(
    client: &Client,
    command: Command,
    output: Output,
) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run(args) => work(client, args, output).await,
        Command::Status(StatusArgs {
            table: Some(table),
            column: Some(column),
            ..
        }) => status(client, &table, &column.0, output).await,
        Command::Status(args) => overview(client, args.table, output).await,
        Command::Retry(args) => retry(client, &args, output).await,
        Command::Discard(args) => discard(client, &args, output).await,
    }
}

/// How often changes that wait are counted, if the worker is to end without any.
const COUNT_EVERY: Duration = Duration::from_millis(200);

async fn work(client: &Client, args: RunArgs, output: Output) -> anyhow::Result<ExitCode> {
    if args.attempts == 0 || args.concurrency == 0 || args.chain_max == 0 {
        let why = "--attempts, --concurrency and --chain-max are 1 at least";
        return Err(Usage(why.into()).into());
    }
    if !ObserverOptions::is_lease(args.lease) {
        let (least, most) = (ObserverOptions::LEASE_MIN, ObserverOptions::LEASE_MAX);
        let why = format!("--lease is {least:?} to {most:?}, or 0s: others may run for the same");
        return Err(Usage(why).into());
    }
    // Handlers that fail, and servers that are away.
    logs::init_with(logs::Settings::from("warn"));
    let (table, column) = (args.column.table.clone(), args.column.column.0.clone());
    let external = External::of(&args)?;
    let handler = move |change, txn| {
        let external = external.clone();
        async move { external.run(change, txn).await }
    };
    let options = ObserverOptions {
        concurrency: args.concurrency,
        attempts_max: args.attempts,
        lease: args.lease,
        chain_max: args.chain_max,
        ..ObserverOptions::default()
    };
    let _endpoint = match args.metrics_listen {
        Some(address) => Some(crate::metrics::show(client, address, "observer", output)?),
        None => None,
    };
    let observer = Observer::new(&table, &column, handler).with_options(options);
    let worker = observer.start(client).await?;
    let name = format!("column {:?} of table {table}", escape(&column));
    output.note(&format!("runs for changes of {name}"));
    let idle = async {
        // Runs that commit between the counts of two tablets may leave changes behind: nothing may have happened from one count
        // to the next.
        let mut found_idle = None;
        loop {
            tokio::time::sleep(COUNT_EVERY).await;
            // Who isn't there is asked again.
            match client.observed(&table, &column).await {
                Ok(status) if status.is_idle() => {
                    let counts = worker.counts();
                    if found_idle.replace(counts) == Some(counts) {
                        return Ok(());
                    }
                    continue;
                }
                // It is observed no more.
                Err(error @ (Error::Invalid(_) | Error::UnknownTable { .. })) => return Err(error),
                _ => {}
            }
            found_idle = None;
        }
    };
    let ended = tokio::select! {
        () = percolator_server::signals::shutdown() => Ok(()),
        ended = idle, if args.until_idle => ended,
        why = worker.ended() => Err(Error::Invalid(why)),
    };
    let counts = worker.stop().await;
    ended?;
    let json = json!({
        "committed": counts.committed,
        "retries": counts.retries,
        "dead_letters": counts.dead_letters,
        "overtaken": counts.overtaken,
        "unknown": counts.unknown,
    });
    let mut text = format!(
        "{} runs committed, {} were begun again; {} changes were given up, {} were others' before",
        counts.committed, counts.retries, counts.dead_letters, counts.overtaken
    );
    if counts.dead_letters > 0 {
        let column = escape(&column);
        text += &format!("\nwhy: percolator observe status {table} {column}");
    }
    output.result(&text, &json)?;
    Ok(answered(!args.until_idle || counts.dead_letters == 0))
}

/// All observed columns, of one table or of all.
async fn overview(
    client: &Client,
    table: Option<String>,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let mut given_up: BTreeMap<(String, Bytes), usize> =
        client.count_dead_letters(usize::MAX).await?;
    given_up.retain(|(of, _), _| table.as_ref().is_none_or(|table| table == of));
    let none_given_up = given_up.is_empty();
    // A table may be deleted meanwhile.
    let is_overview = table.is_none();
    let tables = match table {
        Some(table) => vec![table],
        None => client
            .tables()
            .await?
            .into_iter()
            .map(|it| it.name)
            .collect(),
    };
    let head = ["TABLE", "COLUMN", "WAITING", "OLDEST", "GIVEN UP"];
    let mut rows = vec![head.map(String::from).to_vec()];
    for table in tables {
        let observed = match client.observed_columns(&table).await {
            Err(Error::UnknownTable { .. }) if is_overview || !none_given_up => continue,
            observed => observed?,
        };
        for column in observed {
            let letters = given_up.remove(&(table.clone(), column.clone()));
            let status = match client.observed(&table, &column).await {
                // Somebody is about to observe it, or to observe it no more, or was interrupted.
                Err(Error::Invalid(why)) => {
                    let (table, column) = (&table, escape(&column));
                    output.note(&format!(
                        "table {table}: {why} in a part of the tablets; repeat `percolator table observe {table} {column}`, or unobserve"
                    ));
                    None
                }
                Err(Error::UnknownTable { .. }) if is_overview => continue,
                status => Some(status?),
            };
            if output.format == Format::Json {
                let letters = client.dead_letters(&table, &column).await?;
                output.line(&status_json(&table, &column, status.as_ref(), &letters))?;
                continue;
            }
            let lag = status.filter(|status| status.oldest.is_some());
            let lag = lag.map(|status| format!("{:.1} s", status.lag().as_secs_f64()));
            let waiting = status.map(|status| status.waiting.to_string());
            rows.push(vec![
                table.clone(),
                escape(&column),
                waiting.unwrap_or("-".to_owned()),
                lag.unwrap_or("-".to_owned()),
                letters.unwrap_or_default().to_string(),
            ]);
        }
    }
    // Of columns that are observed no more, and of tables that are gone.
    for ((table, column), count) in given_up {
        if output.format == Format::Json {
            let letters = client.dead_letters(&table, &column).await?;
            let none = ObservedStatus::default();
            output.line(&status_json(&table, &column, Some(&none), &letters))?;
            continue;
        }
        rows.push(vec![
            table,
            escape(&column),
            "-".to_owned(),
            "not observed".to_owned(),
            count.to_string(),
        ]);
    }
    if output.format != Format::Json {
        output.line(&columns(&rows))?;
    }
    Ok(answered(none_given_up))
}

fn status_json(
    table: &str,
    column: &[u8],
    status: Option<&ObservedStatus>,
    letters: &[DeadLetter],
) -> String {
    let lag_ms =
        |status: &ObservedStatus| u64::try_from(status.lag().as_millis()).unwrap_or(u64::MAX);
    let json = json!({
        "table": table,
        "waiting": status.map(|status| status.waiting),
        "lag_ms": status.map(lag_ms),
        "dead_letters": letters.iter().map(letter_json).collect::<Vec<_>>(),
    });
    with_bytes(json, &[("column", column)]).to_string()
}

async fn status(
    client: &Client,
    table: &str,
    column: &[u8],
    output: Output,
) -> anyhow::Result<ExitCode> {
    let letters = client.dead_letters(table, column).await?;
    let status = match client.observed(table, column).await {
        // What was given up before is shown all the same.
        Err(Error::Invalid(why)) if !letters.is_empty() => {
            output.note(&why);
            ObservedStatus::default()
        }
        status => status?,
    };
    if output.format == Format::Json {
        output.line(&status_json(table, column, Some(&status), &letters))?;
        return Ok(answered(letters.is_empty()));
    }
    output.line(&format!(
        "{} changes wait, the oldest for {:.1} s; {} were given up",
        status.waiting,
        status.lag().as_secs_f64(),
        letters.len()
    ))?;
    if !letters.is_empty() {
        let mut rows = vec![["ROW", "ATTEMPTS", "REASON"].map(String::from).to_vec()];
        rows.extend(letters.iter().map(|letter| {
            let (row, attempts) = (escape(&letter.row), letter.attempts.to_string());
            vec![row, attempts, letter.reason.clone()]
        }));
        output.line(&columns(&rows))?;
    }
    Ok(answered(letters.is_empty()))
}

fn letter_json(letter: &DeadLetter) -> serde_json::Value {
    let json = json!({
        "reason": letter.reason,
        "attempts": letter.attempts,
        "changed_at": letter.changed_at.to_string(),
        "given_up_at": letter.given_up_at.to_string(),
    });
    with_bytes(json, &[("row", &letter.row[..])])
}

async fn retry(client: &Client, args: &LetterArgs, output: Output) -> anyhow::Result<ExitCode> {
    // Nobody would run for them.
    client
        .observed(&args.column.table, &args.column.column.0)
        .await?;
    let letters = letters(client, args).await?;
    for letter in &letters {
        client.retry_dead_letter(letter).await?;
    }
    let retried = ("retried", "changes wait again");
    done_with(args, letters.len(), retried, output)
}

/// Also of a column that is observed no more, or of a table that is gone.
async fn discard(client: &Client, args: &LetterArgs, output: Output) -> anyhow::Result<ExitCode> {
    let letters = letters(client, args).await?;
    for letter in &letters {
        client.discard_dead_letter(letter).await?;
    }
    let discarded = ("discarded", "changes are forgotten");
    done_with(args, letters.len(), discarded, output)
}

/// Those of a column, or of one row of it.
async fn letters(client: &Client, args: &LetterArgs) -> Result<Vec<DeadLetter>, Error> {
    let (column, row) = (&args.column, args.row.as_ref());
    let mut letters = client.dead_letters(&column.table, &column.column.0).await?;
    letters.retain(|letter| row.is_none_or(|row| row.0 == letter.row));
    Ok(letters)
}

/// Reports what became of so many letters: the name for programs, and in words.
fn done_with(
    args: &LetterArgs,
    count: usize,
    (name, what): (&str, &str),
    output: Output,
) -> anyhow::Result<ExitCode> {
    let text = match &args.row {
        _ if count > 0 => format!("{count} {what}"),
        Some(row) => format!("no change of row {} was given up", escape(&row.0)),
        None => {
            let (table, column) = (&args.column.table, escape(&args.column.column.0));
            format!("no change of {table} {column} was given up")
        }
    };
    output.result(&text, &json!({ name: count }))?;
    Ok(answered(count > 0))
}
