//! What garbage collection costs: those who read and write beside it, and the master that keeps the gc-locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use percolator_client::{Admin, Client, GcChange, GcStatus};
use percolator_wire::v1;
use rand::RngExt;
use tokio::task::JoinSet;

use super::access::{COLUMN, blind_write, row, value};
use super::workers::{self, Timed};
use super::{Figure, memory};
use crate::output::Output;

const TABLE: &str = "bench-gc";
/// Of each kind, readers and writers.
const CALLERS: usize = 8;
/// Rows of one transaction that makes garbage.
const BATCH: u32 = 1_000;
/// Collection begins within this.
const BEGINS_WITHIN: Duration = Duration::from_secs(60);

/// Reads and writes of single rows, while collection goes as fast as it can, and with it paused before and after.
pub(super) async fn beside(
    client: &Client,
    admin: &Admin,
    smoke: bool,
    duration: Duration,
    output: Output,
) -> anyhow::Result<Vec<Figure>> {
    let (rows, versions) = if smoke { (1_000, 2) } else { (50_000, 8) };
    let before = admin.gc_status().await?;
    let pause = |paused| GcChange {
        life_time: Some(Duration::from_secs(1)),
        paused: Some(paused),
        ..GcChange::default()
    };
    admin.set_gc(pause(true)).await?;
    if client
        .tables()
        .await?
        .iter()
        .all(|table| table.name != TABLE)
    {
        client.create_table(TABLE, &[]).await?;
    }
    output.note(&format!("{rows} rows of {versions} versions ..."));
    for _ in 0..versions {
        for first in (0..rows).step_by(BATCH as usize) {
            let write = |txn: percolator_client::Txn| async move {
                for number in first..first + BATCH {
                    txn.put(TABLE, row(number), COLUMN, value())?;
                }
                Ok(())
            };
            client.transact(write).await?;
        }
    }
    output.note("reads and writes, collection paused ...");
    let paused = mix(client, rows, duration, "paused").await?;
    output.note("reads and writes, collection as fast as it can ...");
    admin.set_gc(pause(false)).await?;
    let begun = Instant::now();
    let at_first = collected(&before);
    let mut status = admin.gc_status().await?;
    while collected(&status) == at_first {
        if begun.elapsed() > BEGINS_WITHIN {
            bail!("collection did not begin within {BEGINS_WITHIN:?}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        status = admin.gc_status().await?;
    }
    let (from, since) = (collected(&status), Instant::now());
    let mut figures = mix(client, rows, duration, "collecting").await?;
    let status = admin.gc_status().await?;
    let rate = (collected(&status) - from) as f64 / since.elapsed().as_secs_f64();
    // Servers change while they run, by what they hold and by what their store does: before and after.
    admin.set_gc(pause(true)).await?;
    output.note("reads and writes, collection paused again ...");
    let again = mix(client, rows, duration, "paused again").await?;
    for (figure, (paused, again)) in figures.iter_mut().zip(paused.iter().zip(&again)) {
        figure.note = format!(
            "p99 is {:.2} of that paused; {rate:.0} versions collected a second",
            2.0 * figure.p99_ms / (paused.p99_ms + again.p99_ms)
        );
    }
    admin
        .set_gc(GcChange {
            life_time: Some(before.life_time),
            paused: Some(before.paused),
            ..GcChange::default()
        })
        .await?;
    Ok(paused.into_iter().chain(figures).chain(again).collect())
}

fn collected(status: &GcStatus) -> u64 {
    status.servers.iter().map(|server| server.collected).sum()
}

async fn mix(
    client: &Client,
    rows: u32,
    duration: Duration,
    when: &str,
) -> anyhow::Result<Vec<Figure>> {
    let (reader, writer) = (client.clone(), client.clone());
    let reads = workers::run(
        format!("reads, {when}"),
        CALLERS,
        duration,
        Timed::Each,
        move |_| {
            let client = reader.clone();
            async move {
                let txn = client.begin().await?;
                let row = row(rand::rng().random_range(0..rows));
                txn.get(TABLE, row, COLUMN).await.map(drop)
            }
        },
    );
    let writes = workers::run(
        format!("writes, {when}"),
        CALLERS,
        duration,
        Timed::Each,
        move |_| {
            let client = writer.clone();
            async move { blind_write(&client, TABLE, rows).await }
        },
    );
    let (reads, writes) = tokio::try_join!(reads, writes)?;
    Ok(vec![reads, writes])
}

/// Sessions that hold gc-locks at the master, and renew them as clients do, each by a connection of its own.
pub(super) async fn sessions(
    connect: impl Fn() -> Result<Admin, percolator_client::Error>,
    smoke: bool,
    duration: Duration,
    output: Output,
) -> anyhow::Result<Figure> {
    let (sessions, locks) = if smoke {
        (100, 1_000)
    } else {
        (10_000, 100_000)
    };
    output.note(&format!("{sessions} sessions with {locks} gc-locks ..."));
    let now = connect()?.gc_status().await?.now.as_u64();
    let request = move |session: u64| v1::SessionRequest {
        session,
        owner: Some(v1::Owner {
            host: format!("host-{session:08}.example.com"),
            process: 4711,
            application: "an-application".into(),
            label: "benchmark".into(),
        }),
        floor: now,
        transactions: (0..locks / sessions).map(|number| now + number).collect(),
        unnamed: 0,
    };
    percolator_server::many_connections();
    let mut lease = Duration::ZERO;
    let mut begun = Vec::new();
    for session in 1..=sessions {
        let admin = Arc::new(connect()?);
        let told = admin.session(request(session)).await?;
        lease = Duration::from_millis(told.lease_ms.into());
        begun.push((session, admin));
    }
    let every = lease / 3;
    let renewed = Arc::new(AtomicU64::new(0));
    let mut renewing = JoinSet::new();
    for (session, admin) in begun.iter().cloned() {
        let first = every.mul_f64(rand::rng().random_range(0.0..1.0));
        let renewed = renewed.clone();
        renewing.spawn(async move {
            tokio::time::sleep(first).await;
            loop {
                // One that is lost is made up for by the next.
                let told = admin.session(request(session)).await;
                renewed.fetch_add(u64::from(told.is_ok()), Ordering::Relaxed);
                tokio::time::sleep(every).await;
            }
        });
    }
    let master = || {
        let (_, processes) = memory::now("");
        processes
            .into_iter()
            .find(|process| process.name.contains("gc-master"))
    };
    let since = Instant::now();
    let first =
        master().context("the servers have to be processes: `percolator up --processes`")?;
    tokio::time::sleep(duration).await;
    let last = master().context("the master has ended")?;
    let took = since.elapsed().as_secs_f64();
    let renewals = renewed.load(Ordering::Relaxed) as f64 / took;
    renewing.shutdown().await;
    let there = connect()?.gc_status().await?.sessions;
    ensure!(
        u64::from(there) >= sessions,
        "of {sessions} sessions {there} are there"
    );
    for (session, admin) in begun {
        let last = v1::SessionRequest {
            session,
            ..v1::SessionRequest::default()
        };
        admin.session(last).await?;
    }
    Ok(Figure {
        name: format!("{sessions} sessions, {locks} gc-locks"),
        per_second: renewals,
        p50_ms: 0.0,
        p99_ms: 0.0,
        ratio: None,
        note: format!(
            "renewals; the master takes {:.2} of a core and {:.0} MiB",
            (last.cpu_seconds - first.cpu_seconds) / took,
            last.mebibytes
        ),
    })
}
