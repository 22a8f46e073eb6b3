//! Observers: how soon a run begins after a commit, how many documents workers get through, what observing costs commits on
//! other columns, and what idle workers ask for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use parking_lot::Mutex;
use percolator_client::{
    Change, Client, Observer, ObserverOptions, ObserverWorker, OpenTxn, Registry,
};
use tokio::sync::mpsc;

use super::Figure;
use super::access::create;
use super::workers::{self, Calls, Timed};
use crate::output::Output;

const TABLE: &str = "bench_observed";
/// Rows of what runs make of documents.
const DERIVED: &str = "bench_derived";
const OBSERVED: &str = "text";
const OTHER: &str = "other";
const WRITERS: usize = 64;
const WORKERS: usize = 4;
const WORDS: &str = "a document of a few words that an observer counts";
/// How often it is asked whether changes wait.
const ASK_EVERY: Duration = Duration::from_millis(20);

/// All of them, on tables of their own.
pub(super) async fn measure(
    client: &Client,
    duration: Duration,
    output: Output,
) -> anyhow::Result<Vec<Figure>> {
    for table in [TABLE, DERIVED] {
        create(client, table).await?;
    }
    client.unobserve(TABLE, OBSERVED).await?;
    let mut figures = commits_on_other_columns(client, duration, output).await?;
    client.observe(TABLE, OBSERVED).await?;
    output.note("lag of one document at a time ...");
    figures.push(lag(client, duration).await?);
    output.note("documents, written by 64 writers ...");
    figures.extend(documents(client, duration).await?);
    output.note("idle workers ...");
    figures.push(idle(client, duration).await?);
    client.unobserve(TABLE, OBSERVED).await?;
    Ok(figures)
}

async fn write(client: &Client, row: &str, column: &str, value: &str) -> anyhow::Result<()> {
    let put = |txn: OpenTxn| async move { txn.put(TABLE, row, column, value.to_owned()) };
    Ok(client.transact(put).await?)
}

/// The same writes while another column of the table is observed, and while none is.
async fn commits_on_other_columns(
    client: &Client,
    duration: Duration,
    output: Output,
) -> anyhow::Result<Vec<Figure>> {
    let (mut without, mut with) = (Calls::new(), Calls::new());
    // In turns: a machine is not the same from one minute to the next.
    // And each is the first of a turn once: the table grows.
    for is_observed in [false, true, true, false] {
        if is_observed {
            client.observe(TABLE, OBSERVED).await?;
            output.note("the same while another column is observed ...");
            with.add(&commits(client, duration / 2).await?);
            client.unobserve(TABLE, OBSERVED).await?;
        } else {
            output.note("commits on a column of a table that nobody observes ...");
            without.add(&commits(client, duration / 2).await?);
        }
    }
    let without = without.figure("commits, nothing is observed");
    let with = with.figure("commits, another column is observed");
    let ratio = with.per_second / without.per_second;
    let with = Figure {
        ratio: Some((ratio, "nothing is observed".into())),
        ..with
    };
    Ok(vec![without, with])
}

async fn commits(client: &Client, duration: Duration) -> anyhow::Result<Calls> {
    let (client, next) = (client.clone(), Arc::new(AtomicU64::new(0)));
    let call = move |_| {
        let (client, number) = (client.clone(), next.fetch_add(1, Ordering::Relaxed));
        async move { write(&client, &format!("row{number:08}"), OTHER, WORDS).await }
    };
    workers::calls(WRITERS, duration, Timed::Each, call).await
}

/// From when a writer has its answer to when the run begins, with nothing else to do.
async fn lag(client: &Client, duration: Duration) -> anyhow::Result<Figure> {
    let (sender, mut began) = mpsc::unbounded_channel();
    let handler = move |_: Change, _: OpenTxn| {
        let sent = sender.send(Instant::now());
        async move { sent.map_err(Into::into) }
    };
    let worker = Observer::new(TABLE, OBSERVED, handler)
        .start(client)
        .await?;
    let (mut calls, started) = (Calls::new(), Instant::now());
    let mut number = 0_u64;
    while calls.is_empty() || started.elapsed() < duration {
        write(client, &format!("doc{number:08}"), OBSERVED, WORDS).await?;
        let answered = Instant::now();
        let began = began.recv().await.context("the worker has ended")?;
        calls.record(began.saturating_duration_since(answered));
        number += 1;
    }
    worker.stop().await;
    let figure = calls
        .within(started.elapsed())
        .figure("lag of a run, one document at a time");
    Ok(Figure {
        note: format!("from the commit's answer to the run; {}", figure.note),
        ..figure
    })
}

/// Counts words, and how long ago the document was written.
async fn start_worker(
    client: &Client,
    began: Instant,
    lags: &Arc<Mutex<Calls>>,
) -> anyhow::Result<ObserverWorker> {
    let lags = lags.clone();
    let handler = move |change: Change, txn: OpenTxn| {
        let lags = lags.clone();
        async move {
            let text = change.value.unwrap_or_default();
            let text = std::str::from_utf8(&text)?;
            let (written, words) = text.split_once(' ').ok_or("no document")?;
            let written = Duration::from_micros(written.parse()?);
            lags.lock().record(began.elapsed().saturating_sub(written));
            let words = words.split(' ').count();
            txn.put(DERIVED, &change.row, "words", words.to_string())?;
            Ok(())
        }
    };
    let options = ObserverOptions {
        concurrency: 64,
        ..ObserverOptions::default()
    };
    let observer = Observer::new(TABLE, OBSERVED, handler).with_options(options);
    Ok(observer.start(client).await?)
}

/// Until nothing waits.
async fn until_idle(client: &Client) -> anyhow::Result<()> {
    while !client.observed(TABLE, OBSERVED).await?.is_idle() {
        tokio::time::sleep(ASK_EVERY).await;
    }
    Ok(())
}

async fn documents(client: &Client, duration: Duration) -> anyhow::Result<Vec<Figure>> {
    until_idle(client).await?;
    let (began, lags) = (Instant::now(), Arc::new(Mutex::new(Calls::new())));
    let mut observers = Vec::new();
    for _ in 0..WORKERS {
        observers.push(start_worker(client, began, &lags).await?);
    }
    let (writing, next) = (client.clone(), Arc::new(AtomicU64::new(0)));
    let call = move |_| {
        let (client, number) = (writing.clone(), next.fetch_add(1, Ordering::Relaxed));
        async move {
            let text = format!("{} {WORDS}", began.elapsed().as_micros());
            write(&client, &format!("doc{number:08}"), OBSERVED, &text).await
        }
    };
    let written = workers::calls(WRITERS, duration, Timed::Each, call).await?;
    until_idle(client).await?;
    let took = began.elapsed();
    let (mut committed, mut retries) = (0, 0);
    for observer in observers {
        let counts = observer.stop().await;
        committed += counts.committed;
        retries += counts.retries;
    }
    let lags = std::mem::replace(&mut *lags.lock(), Calls::new()).within(took);
    let run = Figure {
        per_second: committed as f64 / took.as_secs_f64(),
        note: format!(
            "lag from before the write to the run, {:.0} ms at the most; {retries} begun again",
            lags.ms(1.0)
        ),
        ..lags.figure(format!("documents run for, {WORKERS} workers"))
    };
    Ok(vec![written.figure("documents written meanwhile"), run])
}

/// The requests of workers that have nothing to do.
async fn idle(client: &Client, duration: Duration) -> anyhow::Result<Figure> {
    let registry = Registry::new();
    // A client is measured once; of one that is, the figures are its own.
    client.measure(&registry)?;
    let lags = Arc::new(Mutex::new(Calls::new()));
    let mut observers = Vec::new();
    for _ in 0..WORKERS {
        observers.push(start_worker(client, Instant::now(), &lags).await?);
    }
    let before = requests(&registry)?;
    let began = Instant::now();
    tokio::time::sleep(duration).await;
    let took = began.elapsed();
    let after = requests(&registry)?;
    for observer in observers {
        observer.stop().await;
    }
    let reads = after.reads - before.reads;
    anyhow::ensure!(reads == 0.0, "idle workers have read {reads} times");
    Ok(Figure {
        name: format!("requests of {WORKERS} idle workers"),
        per_second: (after.all - before.all) / took.as_secs_f64(),
        p50_ms: 0.0,
        p99_ms: 0.0,
        ratio: None,
        note: "each waits at its server; no get, no scan".into(),
    })
}

/// Requests that a client has made to tablet servers.
struct Requests {
    all: f64,
    /// Gets and scans among them.
    reads: f64,
}

fn requests(registry: &Registry) -> anyhow::Result<Requests> {
    let page = percolator_telemetry::text(registry)?;
    let mut requests = Requests {
        all: 0.0,
        reads: 0.0,
    };
    for line in page.lines() {
        let Some(series) = line.strip_prefix("percolator_client_requests_total{") else {
            continue;
        };
        let value: f64 = series.rsplit(' ').next().unwrap_or_default().parse()?;
        requests.all += value;
        if series.contains("method=\"get\"") || series.contains("method=\"scan\"") {
            requests.reads += value;
        }
    }
    Ok(requests)
}
