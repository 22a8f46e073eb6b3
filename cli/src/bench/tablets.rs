//! What it takes to move a tablet and to split one, what a move costs those who write to the tablet meanwhile, and what balance is
//! worth to those who write to one server alone.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use percolator_client::{Client, Error, ServerRole, Tablet};
use rand::RngExt as _;

use super::Figure;
use super::access::{COLUMN, create};
use super::workers::{self, Calls, Timed};
use crate::output::Output;

const TABLE: &str = "bench_tablets";
/// A table that the master may split and spread.
const SKEWED: &str = "bench_skewed";
const SKEWED_ROWS: u32 = 4_000;
const VALUE_BYTES: usize = 1_000;
/// Rows that one transaction makes.
const BATCH: u32 = 500;
const WRITERS: usize = 8;
/// Moves of a tablet that nobody uses.
const IDLE_MOVES: u32 = 6;
const SPLITS: u32 = 20;
/// A server may have to remove what it has left of the tablet before it gets it again.
const AGAIN: Duration = Duration::from_millis(100);
const ACCOUNTS: u32 = 10_000;
const BANK_CLIENTS: u32 = 64;
/// A table is balanced when its tablets have stayed where they are for so long; at the latest after [`BALANCED_MAX`].
const BALANCED: Duration = Duration::from_secs(20);
const BALANCED_MAX: Duration = Duration::from_secs(180);

/// A table of some tens of megabytes: moves and splits of its tablet.
pub(super) async fn measure(
    client: &Client,
    smoke: bool,
    duration: Duration,
    output: Output,
) -> anyhow::Result<Vec<Figure>> {
    let servers = client.servers().await?.into_iter();
    let servers = servers.filter(|it| it.role == ServerRole::Tablet && it.alive);
    let servers: Vec<String> = servers.map(|it| it.server).collect();
    if servers.len() < 2 {
        anyhow::bail!(
            "a tablet is moved between two tablet servers, and the cluster has {}",
            servers.len()
        );
    }
    let rows = if smoke { 2_000 } else { 64_000 };
    output.note(&format!("making {rows} rows of {VALUE_BYTES} bytes ..."));
    prepare(client, TABLE, rows).await?;
    output.note("moves of a tablet that nobody uses ...");
    let mut idle = Vec::new();
    for _ in 0..if smoke { 1 } else { IDLE_MOVES } {
        idle.push(move_once(client, &servers).await?);
    }
    output.note("writes to it, and no move ...");
    let mut alone = write(client, TABLE, rows, duration).await?;
    output.note("writes to it while it moves ...");
    let end = Instant::now() + duration;
    let moving = async {
        let mut moves = Vec::new();
        while moves.is_empty() || Instant::now() < end {
            moves.push(move_once(client, &servers).await?);
        }
        Ok::<_, anyhow::Error>(moves)
    };
    let (beside, moves) = tokio::try_join!(write(client, TABLE, rows, duration), moving)?;
    output.note("writes to it, and no move, once more ...");
    // A machine is not the same from one minute to the next.
    alone.add(&write(client, TABLE, rows, duration).await?);
    output.note("splits ...");
    let splits = split(client, rows, if smoke { 2 } else { SPLITS }).await?;
    let of_balance = if smoke {
        Vec::new()
    } else {
        let skewed = skewed(client, duration, output).await?;
        let at_one = at_one_server(client, &servers, duration, output).await?;
        [skewed, at_one].concat()
    };

    let bytes = u64::from(rows) * VALUE_BYTES as u64;
    let alone_figure = with_tail(&alone, "writes to a tablet");
    let beside_figure = Figure {
        ratio: Some((
            beside.ms(0.99) / alone.ms(0.99).max(0.001),
            "the p99 of those alone".into(),
        )),
        ..with_tail(&beside, "writes to a tablet that moves")
    };
    let figures = vec![
        moved("MB moved, of a tablet that nobody uses", bytes, &idle),
        moved("MB moved, of a tablet that is written to", bytes, &moves),
        alone_figure,
        beside_figure,
        Figure {
            name: "splits".into(),
            note: "asked for by a client, until it hears that it is done".into(),
            ..splits.figure("splits")
        },
    ];
    Ok([figures, of_balance].concat())
}

/// Writes to a table of one tablet, and again when the master has split and spread it.
async fn skewed(
    client: &Client,
    duration: Duration,
    output: Output,
) -> anyhow::Result<Vec<Figure>> {
    prepare(client, SKEWED, SKEWED_ROWS).await?;
    output.note("writes to a table of one tablet ...");
    let before = write(client, SKEWED, SKEWED_ROWS, duration).await?;
    output.note("writes to it until it is balanced ...");
    let balancing = async {
        let (begun, mut since, mut before) = (Instant::now(), Instant::now(), Vec::new());
        while begun.elapsed() < BALANCED_MAX && (before.len() < 2 || since.elapsed() < BALANCED) {
            tokio::time::sleep(AGAIN).await;
            let now = places(client, SKEWED).await?;
            if now != before {
                (before, since) = (now, Instant::now());
            }
        }
        Ok::<_, anyhow::Error>(before)
    };
    tokio::pin!(balancing);
    let places = loop {
        tokio::select! {
            places = &mut balancing => break places?,
            written = write(client, SKEWED, SKEWED_ROWS, BALANCED) => drop(written?),
        }
    };
    let after = write(client, SKEWED, SKEWED_ROWS, duration).await?;
    let servers: BTreeSet<&String> = places.iter().map(|(_, server)| server).collect();
    let rate = |calls: &Calls| calls.figure("").per_second;
    let note = format!("{} tablets at {} servers", places.len(), servers.len());
    Ok(vec![
        with_tail(&before, "writes to a table of one tablet"),
        Figure {
            ratio: Some((
                rate(&after) / rate(&before).max(0.001),
                "those before".into(),
            )),
            note,
            ..after.figure("the same when the master has balanced it")
        },
    ])
}

/// Transfers while the first server has all tablets, and again when all servers have some.
async fn at_one_server(
    client: &Client,
    servers: &[String],
    duration: Duration,
    output: Output,
) -> anyhow::Result<Vec<Figure>> {
    let (_, others) = servers.split_first().context("no tablet server")?;
    let mut figures: Vec<Figure> = Vec::new();
    for drain in [true, false] {
        let mut infos = client.drain_servers(others, drain).await?;
        while drain && infos.iter().any(|info| !info.drained) {
            tokio::time::sleep(AGAIN).await;
            infos = client.drain_servers(others, drain).await?;
        }
        let (figure, holds) = super::bank(client, ACCOUNTS, BANK_CLIENTS, duration, output).await?;
        anyhow::ensure!(holds, "the sum of the accounts is wrong");
        figures.push(match figures.first() {
            None => Figure {
                name: format!("{}, at one server", figure.name),
                ..figure
            },
            Some(one) => Figure {
                name: format!("{}, at {} servers", figure.name, servers.len()),
                ratio: Some((
                    figure.per_second / one.per_second.max(0.001),
                    "those at one".into(),
                )),
                ..figure
            },
        });
    }
    Ok(figures)
}

/// A table's tablets, and their servers.
async fn places(client: &Client, table: &str) -> anyhow::Result<Vec<(u64, String)>> {
    let tables = client.tables().await?.into_iter();
    let tablets = tables
        .filter(|it| it.name == table)
        .flat_map(|it| it.tablets);
    Ok(tablets.map(|it| (it.id, it.server)).collect())
}

fn moved(name: &str, bytes: u64, moves: &[Duration]) -> Figure {
    let total: Duration = moves.iter().sum();
    let mut sorted: Vec<f64> = moves.iter().map(|it| 1e3 * it.as_secs_f64()).collect();
    sorted.sort_by(f64::total_cmp);
    Figure {
        name: name.into(),
        per_second: bytes as f64 * moves.len() as f64 / 1e6 / total.as_secs_f64(),
        p50_ms: sorted[sorted.len() / 2],
        p99_ms: sorted[sorted.len() - 1],
        ratio: None,
        note: format!(
            "{} moves of {} MB of values",
            moves.len(),
            bytes / 1_000_000
        ),
    }
}

fn with_tail(calls: &Calls, name: &str) -> Figure {
    Figure {
        note: format!(
            "p99.9 {:.1} ms, longest {:.1} ms",
            calls.ms(0.999),
            calls.ms(1.0)
        ),
        ..calls.figure(name)
    }
}

async fn prepare(client: &Client, table: &'static str, rows: u32) -> Result<(), anyhow::Error> {
    create(client, table).await?;
    for first in (0..rows).step_by(BATCH as usize) {
        client
            .transact(|txn| async move {
                for number in first..first + BATCH {
                    txn.put(table, row(number), COLUMN, value())?;
                }
                Ok(())
            })
            .await?;
    }
    client.settle().await;
    Ok(())
}

fn row(number: u32) -> Bytes {
    format!("{number:08}").into()
}

fn value() -> Bytes {
    let mut value = vec![0; VALUE_BYTES];
    rand::rng().fill(&mut value[..]);
    value.into()
}

async fn tablet(client: &Client) -> anyhow::Result<Tablet> {
    let tables = client.tables().await?.into_iter();
    let mut tablets = tables
        .filter(|table| table.name == TABLE)
        .flat_map(|it| it.tablets);
    tablets.next().context("the table has no tablet")
}

/// Moves the table's first tablet to the next server. How long that took.
async fn move_once(client: &Client, servers: &[String]) -> anyhow::Result<Duration> {
    let tablet = tablet(client).await?;
    let here = servers.iter().position(|server| *server == tablet.server);
    let next = here.map_or(0, |here| (here + 1) % servers.len());
    loop {
        let begun = Instant::now();
        match client.move_tablet(tablet.id, &servers[next]).await {
            Ok(()) => return Ok(begun.elapsed()),
            // What it had of the tablet before is still to be removed.
            Err(Error::Unavailable(why) | Error::Invalid(why))
                if why.contains("still to be removed") =>
            {
                tokio::time::sleep(AGAIN).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Rows overwritten by many at once, each in a transaction.
async fn write(
    client: &Client,
    table: &'static str,
    rows: u32,
    duration: Duration,
) -> anyhow::Result<Calls> {
    let client = client.clone();
    workers::calls(WRITERS, duration, Timed::Each, move |_| {
        let client = client.clone();
        async move {
            let number = rand::rng().random_range(0..rows);
            client
                .transact(|txn| async move { txn.put(table, row(number), COLUMN, value()) })
                .await
        }
    })
    .await
}

async fn split(client: &Client, rows: u32, count: u32) -> anyhow::Result<Calls> {
    let mut calls = Calls::new();
    let begun = Instant::now();
    for number in 1..=count {
        let at = row(rows / (count + 1) * number);
        let begun = Instant::now();
        client.split_table(TABLE, &[at]).await?;
        calls.record(begun.elapsed());
    }
    Ok(calls.within(begun.elapsed()))
}
