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
use percolator_local::{logs, settings};
use serde_json::{Value, json};

use super::kubernetes::OnKubernetes;
use super::metrics::{MetricsSource, Places};
use super::redact::redacted;
use super::survey::Survey;
use super::{page, problems, status};
use crate::errors::Usage;
use crate::gc::{self, owner_json};
use crate::output::Output;

/// What is kept of each log, in bytes from its end.
const LOG_BYTES_MAX: u64 = 256 << 10;
/// Pages of each process, which are held in memory.
const SCRAPES_MAX: u32 = 999;
const NO_METRICS: &str = "metrics/none.txt";
const KUBERNETES: &str = "kubernetes/";
/// Of a cluster on Kubernetes, its settings.
const RESOURCE: &str = "kubernetes/percolatorcluster.json";
const REFUSED: &str = "kubernetes/refused.txt";
const SETTINGS: &str = "settings.json";
const LOGS: &str = "logs/";
/// Transactions that are named.
const TXNS_MAX: u32 = 1_000;

/// For anyone who asks others for help.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "Example:\n  percolator debug bundle")]
pub(crate) enum Command {
    Bundle(Args),
}

/// Put what says how the cluster is into one archive, a .tar.gz to attach to a report.
///
/// In it are versions, settings, `status`, `gc status`, the transactions that run, where each tablet is, the metrics of
/// each process that is reached, scraped again and again for a while, and the ends of the logs that `up --processes`
/// keeps; with --kubernetes, what kubectl tells of a cluster too: objects, events and logs. Rows, columns and values are
/// not, unless --with-keys asks for them; names of tables, hosts and applications are. A README in it says what is
/// missing and how to add it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  percolator debug bundle
  percolator debug bundle --file report.tar.gz --for 1m
  percolator debug bundle --metrics tablet-0=127.0.0.1:9090     through kubectl port-forward
  percolator debug bundle --kubernetes default/demo             with what kubectl tells")]
pub(crate) struct Args {
    /// The archive; it must not be there yet. Default: percolator-debug-SECONDS.tar.gz.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The rows too at which tablets begin and end, the cells of locks that are in the way, transactions' primaries, and
    /// logs as they are: without it, of errors, panics and other libraries' lines only what can't name a cell.
    #[arg(long)]
    with_keys: bool,
    /// Scrape metrics for so long, from which rates can be computed; 0s: once.
    #[arg(long = "for", value_name = "DURATION", default_value = "10s", value_parser = humantime::parse_duration)]
    scraped_for: Duration,
    /// Between two scrapes of metrics.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = humantime::parse_duration)]
    interval: Duration,
    #[command(flatten)]
    places: MetricsSource,
    #[command(flatten)]
    on_kubernetes: OnKubernetes,
    /// How long the master and the oracle may take to answer.
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = humantime::parse_duration)]
    request_timeout: Duration,
}

/// What is to be archived, by name.
type Files = BTreeMap<String, Vec<u8>>;

pub(crate) async fn run(
    cluster: &str,
    command: Command,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let Command::Bundle(args) = command;
    let scrapes = scrapes(&args)?;
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
    // The bundle names what doesn't answer: it is most needed then.
    let places = match ask(cluster, &args, &places, &mut files).await {
        Ok(survey) => places.with(&survey.metrics),
        Err(error) => {
            put(&mut files, "unreachable.txt", &format!("{error:#}\n"));
            output.note(&format!(
                "{error:#}\nthe bundle goes without what the master says"
            ));
            places
        }
    };
    scrape(&places, scrapes, args.interval, &mut files).await;
    kept(&places, args.with_keys, &mut files)?;
    kubernetes(&args, &mut files, output).await?;
    let versions = json!({
        "percolator": env!("CARGO_PKG_VERSION"),
        "made_at_unix_seconds": seconds,
        "os": std::env::consts::OS,
        "architecture": std::env::consts::ARCH,
        "servers": builds(&files),
    });
    put_json(&mut files, "versions.json", &versions)?;
    let readme = readme(&files, args.with_keys);
    put(&mut files, "README.txt", &readme);
    for missing in readme.lines().filter_map(|line| line.strip_prefix("- ")) {
        let what = missing.split_once(". ").map_or(missing, |(what, _)| what);
        output.note(&format!("not in it: {}", what.trim_end_matches('.')));
    }
    pack(archive, &files, seconds).with_context(|| format!("cannot write {}", path.display()))?;
    let names: Vec<&String> = files.keys().collect();
    output.result(
        &path.display().to_string(),
        &json!({"file": path, "holds": names, "with_keys": args.with_keys}),
    )?;
    Ok(ExitCode::SUCCESS)
}

async fn ask(
    cluster: &str,
    args: &Args,
    places: &Places,
    files: &mut Files,
) -> anyhow::Result<Survey> {
    let (client, admin) = status::connect(cluster, args.request_timeout).await?;
    let survey = Survey::take(&client, &admin).await?;
    put_json(files, "tablets.json", &tablets(&survey, args.with_keys))?;
    let mut survey = if args.with_keys {
        survey
    } else {
        survey.without_keys()
    };
    let pages = places.clone().with(&survey.metrics).reached().await;
    survey.add_shown(&pages);
    let problems = problems::find(&survey, &pages);
    let unseen = problems::unseen(&survey, &pages);
    let text = page::text(&survey, &problems, &unseen);
    put(files, "status.txt", &(text + "\n"));
    let json = page::json(&survey, &problems, &unseen);
    put_json(files, "status.json", &json)?;
    put_json(files, "gc-status.json", &gc::json(&survey.gc))?;
    put_json(files, "txn-list.json", &txns(&admin, args.with_keys).await)?;
    Ok(survey)
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
            "primary": primary,
        })
    });
    let unreached = running.unreached.iter().map(|(server, _)| server);
    let uncounted = running.uncounted.iter().chain(unreached);
    json!({
        "transactions": txns.collect::<Vec<_>>(),
        "more": running.more,
        "locks_not_all_counted_on": uncounted.collect::<Vec<_>>(),
    })
}

/// Where each tablet is. Its bounds are rows: without keys only their sequence is shown.
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

/// How often metrics are scraped.
fn scrapes(args: &Args) -> Result<u32, Usage> {
    // No time between two scrapes are more than any number of them.
    let more = args
        .scraped_for
        .as_nanos()
        .checked_div(args.interval.as_nanos());
    let scrapes = more.and_then(|more| u32::try_from(more + 1).ok());
    match scrapes.filter(|scrapes| *scrapes <= SCRAPES_MAX) {
        Some(scrapes) => Ok(scrapes),
        None => Err(Usage(format!(
            "that would be more than {SCRAPES_MAX} scrapes: a shorter --for, or a longer --interval"
        ))),
    }
}

async fn scrape(places: &Places, scrapes: u32, interval: Duration, files: &mut Files) {
    if places.metrics.is_empty() {
        let why = "It isn't known where any process shows its metrics: --data-dir, or --metrics SERVER=HOST:PORT.\n";
        return put(files, NO_METRICS, why);
    }
    let mut next = tokio::time::interval(interval);
    // One that takes long is no reason for two at once.
    next.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for number in 1..=scrapes {
        next.tick().await;
        let at = SystemTime::now();
        for (server, page) in places.scrape().await {
            let (kind, text) = match page {
                Ok(page) => ("txt", page),
                Err(why) => ("unreachable.txt", why + "\n"),
            };
            // A comment to whatever reads such a page.
            let text = format!("# at {}\n{text}", humantime::format_rfc3339_millis(at));
            put(
                files,
                &format!("metrics/{server}-{number:03}.{kind}"),
                &text,
            );
        }
    }
}

/// What `up` keeps in the data folder: settings, and the ends of logs.
fn kept(places: &Places, with_keys: bool, files: &mut Files) -> anyhow::Result<()> {
    let Some(data_dir) = &places.data_dir else {
        return Ok(());
    };
    put_json(files, SETTINGS, &settings(data_dir))?;
    for log in logs(data_dir) {
        let name = log.file_name().unwrap_or_default().to_string_lossy();
        let text = match tail(&log) {
            Ok(text) if with_keys => text,
            Ok(text) => redacted(&text),
            Err(error) => format!("cannot be read: {error}\n").into(),
        };
        files.insert(format!("{LOGS}{name}"), text);
    }
    Ok(())
}

/// What `kubectl` tells. Without one, the bundle goes without that.
async fn kubernetes(args: &Args, files: &mut Files, output: Output) -> anyhow::Result<()> {
    let told = match args.on_kubernetes.ask().await {
        Ok(None) => return Ok(()),
        Ok(Some(told)) => told,
        Err(error) => {
            let why = format!("kubectl can't be run here: {error}");
            put(files, REFUSED, &format!("{why}\n"));
            output.note(&format!(
                "{why}; the bundle goes without what Kubernetes says"
            ));
            return Ok(());
        }
    };
    for (name, object) in &told.objects {
        put_json(files, &format!("{KUBERNETES}{name}.json"), object)?;
    }
    for (name, log) in told.logs {
        let log = end(log);
        let log = if args.with_keys { log } else { redacted(&log) };
        files.insert(format!("{LOGS}{name}"), log);
    }
    if !told.refused.is_empty() {
        let refused = told.refused.join("\n");
        output.note(&format!(
            "{refused}\nthe bundle goes without what kubectl was refused"
        ));
        put(files, REFUSED, &(refused + "\n"));
    }
    Ok(())
}

/// What is in it and what isn't, and how to add that.
fn readme(files: &Files, with_keys: bool) -> String {
    let has = |prefix: &str| files.keys().any(|name| name.starts_with(prefix));
    let mut text = "\
What `percolator debug bundle` has found, to attach to a report. Look through it before you do.

status.txt, status.json, gc-status.json, txn-list.json, tablets.json: as the master and the oracle said it
versions.json: of this command, and of the servers whose metrics were reached
metrics/SERVER-NNN.txt: pages of metrics; the first line of each says when it was read, so that rates can be computed
settings.json, logs/SERVER.log: what `percolator up` keeps in its data folder; of each log the last 256 KiB
kubernetes/*.json, logs/POD.CONTAINER.log: what kubectl told, where --kubernetes asked for it; of other variables of the
environment than Percolator's own no values

"
    .to_owned();
    text += if with_keys {
        "--with-keys was given: rows at which tablets begin and end, primaries of transactions and cells of locks \
         are in it, and logs are as they were written.\n"
    } else {
        "Rows, columns and values are not in it: without --with-keys, bounds of tablets and primaries are missing, \
         and of logs only fields that can't name a cell were kept; the others say \"[left out]\".\n"
    };
    let mut missing = String::new();
    if has("unreachable.txt") {
        missing += "- what the master says: it wasn't reached, see unreachable.txt\n";
    }
    if has(NO_METRICS) {
        missing += "- metrics: where they are wasn't known. Of a pod: `kubectl port-forward -n NAMESPACE POD 9090`, and \
                    this command with --metrics SERVER=127.0.0.1:9090, once for each\n";
    } else if files.keys().any(|name| name.ends_with(".unreachable.txt")) {
        missing += "- some pages of metrics: metrics/*.unreachable.txt say why\n";
    }
    if has(REFUSED) {
        missing += "- some of what kubectl was asked for: kubernetes/refused.txt says why\n";
    }
    if !has(SETTINGS) && !has(RESOURCE) {
        missing += "\
- settings: the data folder of `percolator up` isn't at hand (--data-dir). On Kubernetes, where this command
  has no kubectl (--kubernetes NAMESPACE/CLUSTER):
  kubectl get percolatorcluster -n NAMESPACE CLUSTER -o yaml
  kubectl describe pods -n NAMESPACE -l percolator.dev/cluster=CLUSTER
  kubectl get events -n NAMESPACE
";
    }
    if !has(LOGS) {
        missing += "\
- logs: no files are at hand. `percolator up` without --processes writes to standard error. On Kubernetes:
  kubectl logs -n NAMESPACE -l percolator.dev/cluster=CLUSTER --prefix --tail=-1
  kubectl logs -n NAMESPACE POD --previous
  kubectl logs -n percolator-system -l app.kubernetes.io/name=percolator-operator --prefix --tail=-1
  Unlike those in here they are not looked through: errors in them may name rows.
";
    }
    if missing.is_empty() {
        text
    } else {
        text + "\nNot in it:\n" + &missing
    }
}

/// The end of a log, from the begin of a line on.
fn end(mut log: Vec<u8>) -> Vec<u8> {
    let kept = usize::try_from(LOG_BYTES_MAX).unwrap_or(usize::MAX);
    let from = log.len().saturating_sub(kept);
    if from > 0 {
        let line = log[from..].iter().position(|byte| *byte == b'\n');
        log.drain(..line.map_or(from, |end| from + end + 1));
    }
    log
}

/// [`end`], of a file.
fn tail(log: &Path) -> io::Result<Vec<u8>> {
    let mut file = std::fs::File::open(log)?;
    let length = file.metadata()?.len();
    // One byte more: it tells that the log doesn't begin there.
    let bytes = LOG_BYTES_MAX + 1;
    file.seek(SeekFrom::Start(length.saturating_sub(bytes)))?;
    let mut log = Vec::new();
    file.take(bytes).read_to_end(&mut log)?;
    Ok(end(log))
}

/// What the processes say of their builds.
fn builds(files: &Files) -> BTreeMap<&str, &str> {
    let pages = files.iter().filter_map(|(name, text)| {
        let server = name.strip_prefix("metrics/")?.strip_suffix("-001.txt")?;
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
