//! What garbage collection costs: those who read and write beside it, and the master that keeps the gc-locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use percolator_client::{Admin, Client, GcChange, GcStatus, LeaseRequest, Timestamp, TxnOwner};
use rand::RngExt;
use tokio::task::JoinSet;

use super::access::{COLUMN, blind_write, row, value};
use super::workers::{self, Calls, Timed};
use super::{Figure, memory};
use crate::output::Output;

const TABLE: &str = "bench-gc";
/// Of each kind, readers and writers.
const CALLERS: usize = 8;
/// Rows of one transaction that makes garbage.
const BATCH: u32 = 1_000;
/// Collection begins within this.
const BEGINS_WITHIN: Duration = Duration::from_secs(60);

/// Reads and writes of single rows, in rounds while collection goes as fast as it can, and in rounds with it paused.
#[expect(clippy::too_many_lines, reason = "one measurement, told in its order")]
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
        retention: Some(Duration::from_secs(1)),
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
            let write = |txn: percolator_client::OpenTxn| async move {
                for number in first..first + BATCH {
                    txn.put(TABLE, row(number), COLUMN, value())?;
                }
                Ok(())
            };
            client.transact(write).await?;
        }
    }
    // Servers change while they run, by what they hold and by what their store does: one kind of round between the others.
    let rounds: &[bool] = if smoke {
        &[false, true]
    } else {
        &[false, true, true, false, false, true, true, false]
    };
    let mut paused = [Calls::new(), Calls::new()];
    let mut collecting = [Calls::new(), Calls::new()];
    let (mut versions, mut took) = (0, 0.0);
    for (number, collects) in rounds.iter().enumerate() {
        let how = if *collects {
            "as fast as it can"
        } else {
            "paused"
        };
        let of = rounds.len();
        output.note(&format!(
            "round {} of {of}, collection {how} ...",
            number + 1
        ));
        admin.set_gc(pause(!collects)).await?;
        if *collects {
            let from = begun(admin).await?;
            let since = Instant::now();
            mix(client, rows, duration, &mut collecting).await?;
            versions += collected(&admin.gc_status().await?) - from;
            took += since.elapsed().as_secs_f64();
        } else {
            mix(client, rows, duration, &mut paused).await?;
        }
    }
    admin
        .set_gc(GcChange {
            retention: Some(before.retention),
            paused: Some(before.paused),
            ..GcChange::default()
        })
        .await?;
    let mut figures = Vec::new();
    for (kind, (paused, collecting)) in ["reads", "writes"]
        .iter()
        .zip(paused.iter().zip(&collecting))
    {
        let paused = paused.figure(format!("{kind}, paused"));
        let mut collecting = collecting.figure(format!("{kind}, collecting"));
        collecting.note = format!(
            "p99 is {:.2} of that paused; {:.0} versions collected a second",
            collecting.p99_ms / paused.p99_ms,
            versions as f64 / took
        );
        figures.extend([paused, collecting]);
    }
    Ok(figures)
}

/// What was collected when collection has begun.
async fn begun(admin: &Admin) -> anyhow::Result<u64> {
    let begun = Instant::now();
    let at_first = collected(&admin.gc_status().await?);
    loop {
        let now = collected(&admin.gc_status().await?);
        if now != at_first {
            return Ok(now);
        }
        if begun.elapsed() > BEGINS_WITHIN {
            bail!("collection did not begin within {BEGINS_WITHIN:?}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn collected(status: &GcStatus) -> u64 {
    status.servers.iter().map(|server| server.collected).sum()
}

/// A round, added to those of before: reads, and writes.
async fn mix(
    client: &Client,
    rows: u32,
    duration: Duration,
    calls: &mut [Calls; 2],
) -> anyhow::Result<()> {
    let (reader, writer) = (client.clone(), client.clone());
    let reads = workers::calls(CALLERS, duration, Timed::Each, move |_| {
        let client = reader.clone();
        async move {
            let txn = client.begin().await?;
            let row = row(rand::rng().random_range(0..rows));
            txn.get(TABLE, row, COLUMN).await.map(drop)
        }
    });
    let writes = workers::calls(CALLERS, duration, Timed::Each, move |_| {
        let client = writer.clone();
        async move { blind_write(&client, TABLE, rows).await }
    });
    let (reads, writes) = tokio::try_join!(reads, writes)?;
    let [all_reads, all_writes] = calls;
    all_reads.add(&reads);
    all_writes.add(&writes);
    Ok(())
}

/// Sessions that hold gc-locks at the master, and renew them as clients do, each by a connection of its own.
#[expect(clippy::too_many_lines, reason = "one measurement, told in its order")]
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
    let now = connect()?.gc_status().await?.now;
    let request = move |session: u64| LeaseRequest {
        session,
        owner: Some(TxnOwner {
            host: format!("host-{session:08}.example.com"),
            process: 4711,
            application: "an-application".into(),
            label: "benchmark".into(),
        }),
        floor: now,
        transactions: (0..locks / sessions)
            .map(|number| Timestamp::from_u64(now.as_u64() + number))
            .collect(),
        unnamed: 0,
    };
    percolator_server::many_connections();
    let mut lease = Duration::ZERO;
    let mut begun = Vec::new();
    for session in 1..=sessions {
        let admin = Arc::new(connect()?);
        lease = admin.renew_session(request(session)).await?;
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
                let lease = admin.renew_session(request(session)).await;
                renewed.fetch_add(u64::from(lease.is_ok()), Ordering::Relaxed);
                tokio::time::sleep(every).await;
            }
        });
    }
    let master = || {
        let (_, processes) = memory::now("");
        processes
            .into_iter()
            .find(|process| process.name.contains("master"))
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
        admin
            .renew_session(LeaseRequest::give_back(session))
            .await?;
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
