//! The library's own observer workers: each change is copied into a log by the transaction that acknowledges it, or becomes a dead
//! letter because the handler refuses its value. Workers begin, stop and are dropped all the time, in several processes.
//!
//! Neither writers nor handlers are recorded here: they are transactions of [`percolator_client::Client::transact`] and of workers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use percolator_client::transport::BoxFuture;
use percolator_client::{
    Change, DeadLetter, Error, HandlerError, Observer, ObserverOptions, ObserverWorker, OpenTxn,
};

use super::{TableSpec, Workload, tagged};
use crate::recorder::Session;
use crate::world::World;

/// Its name.
pub(super) const NAME: &str = "react";
const FEED: &str = "feed";
const DIGEST: &str = "digest";
const COLUMN: &str = "text";
const ROWS: u64 = 5;
/// What it checks.
const LOST: &str = "workers: none is lost";
const TWICE: &str = "workers: at most one commits";
/// A handler refuses a value that begins so. Only the last row gets one: a dead letter that is tried again has the handler
/// run for whatever the cell holds by then, perhaps a second time.
const REFUSED: &str = "refused";
/// A handler writes on into the next row for a value that begins so.
const PASSED_ON: &str = "passed-on";
/// Entries of a row's log that are kept.
const KEPT: usize = 40;
/// At the end, with no faults any more, changes that wait are run for within so many times of [`ROUND`].
const ROUNDS_MAX: u32 = 60;
const ROUND: Duration = Duration::from_secs(1);

/// The workload.
pub struct React;

fn row(number: u64) -> String {
    format!("r{number}")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Copies the change into the log of its row.
async fn handle(world: Arc<World>, change: Change, txn: OpenTxn) -> Result<(), HandlerError> {
    let row = text(&change.row);
    let Some(value) = change.value.as_deref().map(text) else {
        world.fail(LOST, format!("a worker runs for {row}, which is empty"));
        return Ok(());
    };
    if value.starts_with(REFUSED) {
        return Err("the handler refuses this".into());
    }
    let log = txn.get(DIGEST, &row, COLUMN).await?.unwrap_or_default();
    let log = text(&log);
    let mut entries: Vec<&str> = log.lines().collect();
    entries.push(&value);
    let first = entries.len().saturating_sub(KEPT);
    txn.put(DIGEST, &row, COLUMN, entries[first..].join("\n"))?;
    if let Some(rest) = value.strip_prefix(PASSED_ON) {
        let number: u64 = row[1..].parse()?;
        txn.put(FEED, self::row(number + 1), COLUMN, format!("from{rest}"))?;
    }
    Ok(())
}

async fn start(session: &Session, options: ObserverOptions) -> Result<ObserverWorker, Error> {
    let world = session.world.clone();
    let observer = Observer::new(FEED, COLUMN, move |change, txn| {
        handle(world.clone(), change, txn)
    });
    observer.with_options(options).start(&session.client).await
}

async fn write(session: &Session) -> Result<(), Error> {
    let mut cells = Vec::new();
    for _ in 0..1 + session.below(2) {
        let value = tagged(1, session);
        cells.push(match session.below(6) {
            0 => (row(ROWS - 1), format!("{REFUSED} {value}")),
            1 => (row(session.key(ROWS - 1)), format!("{PASSED_ON} {value}")),
            _ => (row(session.key(ROWS)), value),
        });
    }
    let put = |txn: OpenTxn| {
        let cells = cells.clone();
        async move {
            for (row, value) in cells {
                txn.put(FEED, row, COLUMN, value)?;
            }
            Ok(())
        }
    };
    session.client.transact(put).await?;
    session.wrote.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// A worker for a moment.
async fn work(session: &Session) -> Result<(), Error> {
    let ms = Duration::from_millis;
    let options = ObserverOptions {
        concurrency: 1 + session.below(4) as usize,
        attempts_max: 1 + session.below(2) as u32,
        backoff: ms(1 + session.below(50)),
        backoff_max: ms(50),
        lease: ms([0, 100, 400][session.below(3) as usize]),
        chain_max: 8,
    };
    let worker = start(session, options).await?;
    let lasts = session.rng.lock().about(ms(150));
    session.world.sleep(lasts).await;
    if session.below(4) > 0 {
        worker.stop().await;
    }
    Ok(())
}

async fn dead_letters(session: &Session) -> Result<Vec<DeadLetter>, Error> {
    session.client.dead_letters(FEED, COLUMN).await
}

/// Has observers try a change again that was given up.
async fn retry(session: &Session) -> Result<(), Error> {
    let letters = dead_letters(session).await?;
    if letters.is_empty() {
        return Ok(());
    }
    let letter = &letters[session.below(letters.len() as u64) as usize];
    session.client.retry_dead_letter(letter).await
}

/// Runs for what waits until nothing does. What is wrong, if something waits for ever.
async fn drain(session: &Session) -> Result<Option<String>, Error> {
    let options = ObserverOptions {
        attempts_max: 1,
        backoff: Duration::from_millis(1),
        lease: Duration::ZERO,
        ..ObserverOptions::default()
    };
    let worker = start(session, options).await?;
    let mut waiting = 0;
    for _ in 0..ROUNDS_MAX {
        waiting = session.client.observed(FEED, COLUMN).await?.waiting;
        if waiting == 0 {
            break;
        }
        session.world.sleep(ROUND).await;
    }
    let counts = worker.stop().await;
    Ok((waiting > 0).then(|| format!("{waiting} changes wait beside an idle worker: {counts:?}")))
}

/// What the logs have, beside what there is.
async fn compare(session: &Session) -> Result<Option<String>, Error> {
    let letters = dead_letters(session).await?;
    let given_up: BTreeSet<String> = letters.iter().map(|letter| text(&letter.row)).collect();
    if given_up.len() != letters.len() {
        return Ok(Some(format!("a row has two dead letters: {letters:?}")));
    }
    let txn = session.client.begin().await?;
    for number in 0..ROWS {
        let row = row(number);
        let value = txn.get(FEED, &row, COLUMN).await?;
        let value = value.as_deref().map(text);
        let log = txn.get(DIGEST, &row, COLUMN).await?.unwrap_or_default();
        let log = text(&log);
        let entries: BTreeSet<&str> = log.lines().collect();
        if number + 1 < ROWS && entries.len() != log.lines().count() {
            let why = format!("the log of {row} has an entry twice: {log:?}");
            session.world.fail(TWICE, why);
        }
        let is_done = match value.as_deref() {
            Some(value) if value.starts_with(REFUSED) => given_up.contains(&row),
            value => value == log.lines().last(),
        };
        if !is_done {
            return Ok(Some(format!(
                "{row} is {value:?}, its log is {log:?}, and the dead letters are {letters:?}"
            )));
        }
    }
    Ok(None)
}

impl Workload for React {
    fn name(&self) -> &'static str {
        NAME
    }

    fn invariants(&self) -> &'static [&'static str] {
        &[LOST, TWICE]
    }

    fn tables(&self) -> Vec<TableSpec> {
        vec![(FEED, vec!["r2", "r4"]), (DIGEST, vec!["r3"])]
    }

    fn is_left_out(&self, table: &str) -> bool {
        [FEED, DIGEST].contains(&table)
    }

    fn load<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<(), Error>> {
        async move { session.client.observe(FEED, COLUMN).await }.boxed()
    }

    fn step<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            match session.below(10) {
                0..5 => write(session).await,
                5..9 => work(session).await,
                _ => retry(session).await,
            }
        }
        .boxed()
    }

    fn check<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<Option<String>, Error>> {
        async move {
            if let Some(why) = drain(session).await? {
                return Ok(Some(why));
            }
            if let Some(why) = compare(session).await? {
                return Ok(Some(why));
            }
            for letter in dead_letters(session).await? {
                session.client.discard_dead_letter(&letter).await?;
            }
            let left = session.client.count_dead_letters(1).await?;
            Ok((!left.is_empty()).then(|| format!("dead letters stay: {left:?}")))
        }
        .boxed()
    }
}
