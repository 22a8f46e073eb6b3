//! Transactions against plain access: the same tablet server, the same connection, the same durability.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use percolator_client::{Client, Error, ServerRole};
use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;
use rand::RngExt;

use super::Figure;
use super::workers::{self, Timed};
use crate::output::Output;

const TABLE: &str = "bench";
pub(super) const COLUMN: &[u8] = b"v";
const CALLERS: usize = 64;
const VALUE_BYTES: usize = 100;
/// Rows that one transaction makes.
const BATCH: u32 = 1000;

/// A table of one tablet, and its server.
pub(super) struct Table {
    rows: u32,
    address: String,
}

/// Fails, before anything is made, where the servers allow no plain access.
pub(super) async fn check_raw(client: &Client) -> anyhow::Result<()> {
    let servers = client.servers().await?;
    let tablet = servers
        .iter()
        .find(|server| server.role == ServerRole::Tablet)
        .context("there is no tablet server")?;
    let ask = Ask::RawGet(v1::RawGetRequest { key: row(0) });
    client
        .raw(&tablet.address, ask)
        .await
        .context("the servers have to be started with `percolator up --raw`, and for this alone")?;
    Ok(())
}

/// Makes a table, unless it is there.
pub(super) async fn create(client: &Client, table: &str) -> anyhow::Result<()> {
    let tables = client.tables().await?;
    if !tables.iter().any(|known| known.name == table) {
        client.create_table(table, &[]).await?;
    }
    Ok(())
}

/// Makes the rows, and the plain keys, of one server.
pub(super) async fn prepare(client: &Client, smoke: bool, output: Output) -> anyhow::Result<Table> {
    let rows = if smoke { 1000 } else { 100_000 };
    output.note(&format!("making {rows} rows ..."));
    create(client, TABLE).await?;
    for first in (0..rows).step_by(BATCH as usize) {
        client
            .transact(|txn| async move {
                for number in first..first + BATCH {
                    txn.put(TABLE, row(number), COLUMN, value())?;
                }
                Ok(())
            })
            .await?;
    }
    let tables = client.tables().await?;
    let owner = tables
        .iter()
        .find(|table| table.name == TABLE)
        .and_then(|table| table.tablets.first())
        .map(|tablet| tablet.server.clone())
        .context("the table has no tablet")?;
    let address = client
        .servers()
        .await?
        .into_iter()
        .find(|server| server.server == owner)
        .map(|server| server.address)
        .context("the tablet's server is unknown")?;
    Ok(Table { rows, address })
}

#[expect(clippy::too_many_lines, reason = "one measurement, told in its order")]
pub(super) async fn overhead(
    client: &Client,
    table: &Table,
    duration: Duration,
    output: Output,
) -> anyhow::Result<Vec<Figure>> {
    output.note("plain keys ...");
    for number in 0..table.rows {
        // In packs of many: only the last of each is waited for.
        if number % 1000 == 0 {
            let puts = (number..number + 1000).map(|number| raw_put(client, table, number));
            for put in futures_util::future::join_all(puts).await {
                put?;
            }
        }
    }
    let rows = table.rows;

    output.note("plain reads ...");
    let (reader, address) = (client.clone(), table.address.clone());
    let raw_reads = workers::run(
        "plain reads, 64 callers",
        CALLERS,
        duration,
        Timed::Each,
        move |_| {
            let (client, address) = (reader.clone(), address.clone());
            async move {
                let ask = Ask::RawGet(v1::RawGetRequest {
                    key: row(rand::rng().random_range(0..rows)),
                });
                client.raw(&address, ask).await.map(drop)
            }
        },
    )
    .await?;

    output.note("reads in open snapshots ...");
    let mut snapshots = Vec::new();
    for _ in 0..CALLERS {
        snapshots.push(client.begin().await?);
    }
    let snapshots = Arc::new(snapshots);
    let mut snapshot_reads = workers::run(
        "reads in open snapshots, 64 callers",
        CALLERS,
        duration,
        Timed::Each,
        move |number| {
            let snapshots = snapshots.clone();
            async move {
                let row = row(rand::rng().random_range(0..rows));
                found(
                    snapshots[number]
                        .batch_get(&[(TABLE, &row, COLUMN)])
                        .await?,
                )
            }
        },
    )
    .await?;
    snapshot_reads.ratio = Some(ratio(&snapshot_reads, &raw_reads, "plain"));

    let mut txn_reads = transactional_reads(client, rows, duration, output).await?;
    txn_reads.ratio = Some(ratio(&txn_reads, &raw_reads, "plain"));

    output.note("plain durable writes ...");
    let (writer, address) = (client.clone(), table.address.clone());
    let raw_writes = workers::run(
        "plain writes, 64 callers",
        CALLERS,
        duration,
        Timed::Each,
        move |_| {
            let (client, address) = (writer.clone(), address.clone());
            async move {
                let ask = Ask::RawPut(v1::RawPutRequest {
                    key: row(rand::rng().random_range(0..rows)),
                    value: value(),
                });
                client.raw(&address, ask).await.map(drop)
            }
        },
    )
    .await?;

    let mut txn_writes = blind_writes(client, table, duration, output).await?;
    txn_writes.ratio = Some(ratio(&txn_writes, &raw_writes, "plain"));
    Ok(vec![
        raw_reads,
        snapshot_reads,
        txn_reads,
        raw_writes,
        txn_writes,
    ])
}

/// Overwriting rows without a look at them, each in a transaction.
pub(super) async fn blind_writes(
    client: &Client,
    table: &Table,
    duration: Duration,
    output: Output,
) -> anyhow::Result<Figure> {
    output.note("blind writes, each a transaction ...");
    let (writer, rows) = (client.clone(), table.rows);
    workers::run(
        "blind single-row write transactions, 64 callers",
        CALLERS,
        duration,
        Timed::Each,
        move |_| {
            let client = writer.clone();
            async move { blind_write(&client, TABLE, rows).await }
        },
    )
    .await
}

pub(super) async fn reads(
    client: &Client,
    table: &Table,
    duration: Duration,
    output: Output,
) -> anyhow::Result<Vec<Figure>> {
    Ok(vec![
        transactional_reads(client, table.rows, duration, output).await?,
    ])
}

async fn transactional_reads(
    client: &Client,
    rows: u32,
    duration: Duration,
    output: Output,
) -> anyhow::Result<Figure> {
    output.note("reads, each a transaction ...");
    let reader = client.clone();
    workers::run(
        "reads, each a transaction, 64 callers",
        CALLERS,
        duration,
        Timed::Each,
        move |_| {
            let client = reader.clone();
            async move {
                let txn = client.begin().await?;
                let row = row(rand::rng().random_range(0..rows));
                found(txn.batch_get(&[(TABLE, &row, COLUMN)]).await?)
            }
        },
    )
    .await
}

/// Writes one of these rows, whatever it has, in a transaction.
pub(super) async fn blind_write(client: &Client, table: &str, rows: u32) -> Result<(), Error> {
    let txn = client.begin().await?;
    let row = row(rand::rng().random_range(0..rows));
    txn.put(table, row, COLUMN, value())?;
    match txn.commit().await {
        Ok(_) | Err(Error::Conflict(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

fn found(values: Vec<Option<Bytes>>) -> Result<(), Error> {
    match values.first() {
        Some(Some(_)) => Ok(()),
        _ => Err(Error::application("a row of the benchmark is missing")),
    }
}

async fn raw_put(client: &Client, table: &Table, number: u32) -> Result<(), Error> {
    let ask = Ask::RawPut(v1::RawPutRequest {
        key: row(number),
        value: value(),
    });
    client.raw(&table.address, ask).await.map(drop)
}

fn ratio(figure: &Figure, to: &Figure, name: &str) -> (f64, String) {
    (figure.per_second / to.per_second, name.to_owned())
}

pub(super) fn row(number: u32) -> Bytes {
    format!("row-{number:08}").into()
}

pub(super) fn value() -> Bytes {
    Bytes::from_static(&[b'v'; VALUE_BYTES])
}
