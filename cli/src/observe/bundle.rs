//! `percolator debug bundle`: one archive to attach to a report.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use flate2::Compression;
use flate2::write::GzEncoder;
use percolator_client::{Admin, escape};
use serde_json::{Value, json};

use super::metrics::{Places, Where};
use super::survey::Survey;
use super::{page, problems, status};
use crate::cluster::{logs, settings};
use crate::gc::{self, owner_json};
use crate::output::Output;

/// What is kept of each log, in bytes from its end.
const LOG_BYTES_MAX: u64 = 256 << 10;
/// Transactions that are named.
const TXNS_MAX: u32 = 1_000;

/// For whoever asks others for help.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "Example:\n  percolator debug bundle")]
pub(crate) enum Command {
    Bundle(Args),
}

/// Put what says how the cluster is into one archive, a .tar.gz to attach to a report.
///
/// In it are versions, settings, `status`, `gc status`, the transactions that run, where each tablet is, two scrapes of
/// the metrics of each process that is reached, and the ends of the logs that `up --processes` keeps. Rows, columns and
/// values are not, unless --with-keys asks for them; names of tables, hosts and applications are.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  percolator debug bundle
  percolator debug bundle --file report.tar.gz
  percolator debug bundle --metrics tablet-0=127.0.0.1:9090     through kubectl port-forward")]
pub(crate) struct Args {
    /// The archive; it must not be there yet. Default: percolator-debug-SECONDS.tar.gz.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The rows too at which tablets begin and end, the cells of locks that are in the way, and transactions' primaries.
    #[arg(long)]
    with_keys: bool,
    /// Between the two scrapes of metrics.
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = humantime::parse_duration)]
    interval: Duration,
    #[command(flatten)]
    places: Where,
    /// How long the master and the oracle may take to answer.
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = humantime::parse_duration)]
    patience: Duration,
}

/// What is to be archived, by name.
type Files = BTreeMap<String, Vec<u8>>;

pub(crate) async fn run(
    cluster: &str,
    command: Command,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let Command::Bundle(args) = command;
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let path = args
        .file
        .clone()
        .unwrap_or_else(|| format!("percolator-debug-{seconds}.tar.gz").into());
    let archive = std::fs::File::create_new(&path)
        .with_context(|| format!("cannot make {}; choose another --file", path.display()))?;
    let places = args.places.find(cluster);
    let mut files = Files::new();
    // Whatever doesn't answer is said in the bundle: it is most needed then.
    if let Err(error) = ask(cluster, &args, &mut files).await {
        put(&mut files, "unreachable.txt", &format!("{error:#}\n"));
        output.note(&format!(
            "{error:#}\nthe bundle goes without what the master says"
        ));
    }
    scrape(&places, args.interval, &mut files).await;
    kept(&places, &mut files)?;
    let versions = json!({
        "percolator": env!("CARGO_PKG_VERSION"),
        "made_at_unix_seconds": seconds,
        "os": std::env::consts::OS,
        "architecture": std::env::consts::ARCH,
        "servers": builds(&files),
    });
    put_json(&mut files, "versions.json", &versions)?;
    pack(archive, &files, seconds).with_context(|| format!("cannot write {}", path.display()))?;
    let names: Vec<&String> = files.keys().collect();
    output.result(
        &path.display().to_string(),
        &json!({"file": path, "holds": names, "with_keys": args.with_keys}),
    )?;
    Ok(ExitCode::SUCCESS)
}

async fn ask(cluster: &str, args: &Args, files: &mut Files) -> anyhow::Result<()> {
    let (client, admin) = status::connect(cluster, args.patience).await?;
    let survey = Survey::take(&client, &admin, cluster).await?;
    put_json(files, "tablets.json", &tablets(&survey, args.with_keys))?;
    let survey = match args.with_keys {
        true => survey,
        false => survey.without_keys(),
    };
    let pages = args.places.find(cluster).reached().await;
    let problems = problems::find(&survey, &pages);
    put(
        files,
        "status.txt",
        &(page::text(&survey, &problems) + "\n"),
    );
    put_json(files, "status.json", &page::json(&survey, &problems))?;
    put_json(files, "gc-status.json", &gc::json(&survey.gc))?;
    put_json(files, "txn-list.json", &txns(&admin, args.with_keys).await)
}

async fn txns(admin: &Admin, with_keys: bool) -> Value {
    let running = match admin.running(TXNS_MAX).await {
        Ok(running) => running,
        Err(error) => return json!({"error": error.to_string()}),
    };
    let txns = running.txns.iter().map(|txn| {
        let primary = txn.primary.as_ref().filter(|_| with_keys);
        json!({
            "start_ts": txn.start_ts.to_string(),
            "age_ms": page::age_ms(running.now, txn.start_ts),
            "locks": txn.locks,
            "owner": txn.owner.as_ref().map(owner_json),
            "primary": primary.map(ToString::to_string),
        })
    });
    let uncounted = running.uncounted.iter().map(|(server, _)| server);
    json!({
        "transactions": txns.collect::<Vec<_>>(),
        "more": running.more,
        "locks_not_all_counted_on": uncounted.collect::<Vec<_>>(),
    })
}

/// Where each tablet is. Its bounds are rows: without keys only the order is told.
fn tablets(survey: &Survey, with_keys: bool) -> Value {
    let tables = survey.tables.iter().map(|table| {
        let tablets = table.tablets.iter().map(|tablet| {
            let mut value = json!({
                "tablet": tablet.id,
                "epoch": tablet.epoch,
                "server": tablet.server,
                "server_up": tablet.server_alive,
                "lost": survey.is_lost(tablet.id),
            });
            if with_keys {
                value["start_row"] = escape(&tablet.start_row).into();
                value["end_row"] = escape(&tablet.end_row).into();
            }
            value
        });
        json!({
            "table": table.name,
            "id": table.id,
            "ready": table.ready,
            "deleting": table.deleting,
            "tablets_in_order_of_rows": tablets.collect::<Vec<_>>(),
        })
    });
    tables.collect()
}

async fn scrape(places: &Places, interval: Duration, files: &mut Files) {
    if places.metrics.is_empty() {
        let why = "It isn't known where any process shows its metrics: --data-dir, or --metrics SERVER=HOST:PORT.\n";
        return put(files, "metrics/none.txt", why);
    }
    for number in 1..=2 {
        if number > 1 {
            tokio::time::sleep(interval).await;
        }
        for (server, page) in places.scrape().await {
            match page {
                Ok(page) => put(files, &format!("metrics/{server}-{number}.txt"), &page),
                Err(why) => put(
                    files,
                    &format!("metrics/{server}-{number}.unreachable.txt"),
                    &(why + "\n"),
                ),
            }
        }
    }
}

/// What `up` keeps in the data folder: settings, and the ends of logs.
fn kept(places: &Places, files: &mut Files) -> anyhow::Result<()> {
    let Some(data_dir) = &places.data_dir else {
        put(
            files,
            "logs/none.txt",
            "The data folder of `percolator up --processes` isn't at hand; of pods: kubectl logs --previous.\n",
        );
        return Ok(());
    };
    put_json(files, "settings.json", &settings(data_dir))?;
    for log in logs(data_dir) {
        let name = log.file_name().unwrap_or_default().to_string_lossy();
        let text = tail(&log).unwrap_or_else(|error| format!("cannot be read: {error}\n").into());
        files.insert(format!("logs/{name}"), text);
    }
    Ok(())
}

/// The end of a log, from the begin of a line on.
fn tail(log: &Path) -> io::Result<Vec<u8>> {
    let mut file = std::fs::File::open(log)?;
    let length = file.metadata()?.len();
    let from = length.saturating_sub(LOG_BYTES_MAX);
    file.seek(SeekFrom::Start(from))?;
    let mut text = Vec::new();
    file.take(LOG_BYTES_MAX).read_to_end(&mut text)?;
    if from > 0 {
        let line = text.iter().position(|byte| *byte == b'\n');
        text.drain(..line.map_or(0, |end| end + 1));
    }
    Ok(text)
}

/// What the processes say of their builds.
fn builds(files: &Files) -> BTreeMap<&str, &str> {
    let pages = files.iter().filter_map(|(name, text)| {
        let server = name.strip_prefix("metrics/")?.strip_suffix("-1.txt")?;
        let mut lines = std::str::from_utf8(text).ok()?.lines();
        let build = lines.find(|line| line.starts_with("percolator_build_info{"))?;
        Some((server, build))
    });
    pages.collect()
}

fn put(files: &mut Files, name: &str, text: &str) {
    files.insert(name.to_owned(), text.as_bytes().to_owned());
}

fn put_json(files: &mut Files, name: &str, value: &Value) -> anyhow::Result<()> {
    put(files, name, &(serde_json::to_string_pretty(value)? + "\n"));
    Ok(())
}

fn pack(archive: impl Write, files: &Files, seconds: u64) -> io::Result<()> {
    let mut tar = tar::Builder::new(GzEncoder::new(archive, Compression::default()));
    for (name, text) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(seconds);
        tar.append_data(
            &mut header,
            format!("percolator-debug/{name}"),
            text.as_slice(),
        )?;
    }
    tar.into_inner()?.finish()?.flush()
}

#[cfg(test)]
mod tests {
    use super::super::problems::tests::ill;
    use super::*;

    #[test]
    fn bounds_of_tablets_are_told_only_when_asked_for() {
        let survey = ill();
        assert!(!tablets(&survey, false).to_string().contains("secret"));
        assert!(tablets(&survey, true).to_string().contains("secret"));
    }

    #[test]
    fn of_a_long_log_whole_lines_of_the_end_are_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("x.log");
        let lines: String = (0..40_000).map(|n| format!("line {n:06}\n")).collect();
        std::fs::write(&log, &lines).expect("written");
        let kept = String::from_utf8(tail(&log).expect("readable")).expect("text");
        assert!(kept.starts_with("line ") && lines.ends_with(&kept));
        assert!(kept.len() as u64 > LOG_BYTES_MAX - 20, "{}", kept.len());
    }
}
