//! A large transaction, and what it costs those who read the same table meanwhile. They are a client of their own, in
//! a thread of its own, as another process would be: what they wait for is the cluster, and a processor.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use percolator_client::{Client, Error};
use rand::RngExt;

use super::workers::Calls;
use super::{Figure, memory};
use crate::observe::metrics::{Page, Places, quantile};
use crate::output::Output;

const TABLE: &str = "bench_large";
const COLUMN: &[u8] = b"v";
const VALUE_BYTES: usize = 200;
/// Rows that are there before, for the readers, and how many of these there are.
const THERE: u32 = 10_000;
const READERS: usize = 4;
/// A reader's pause between two reads: what is measured is how long each takes, not how many there can be.
const PAUSE: Duration = Duration::from_millis(2);
/// Rows written between two looks whether there is room.
const STEP: u32 = 100;

/// What came out.
pub(super) struct Outcome {
    pub(super) figures: Vec<Figure>,
    pub(super) memory: Vec<(String, Vec<memory::Process>)>,
}

/// Writes so many rows in one transaction, over three tablets.
pub(super) async fn measure(
    cluster: &str,
    client: &Client,
    places: Places,
    rows: u32,
    duration: Duration,
    output: Output,
) -> anyhow::Result<Outcome> {
    prepare(client).await?;
    output.note("point reads, with nothing else ...");
    let mut readers = Readers::start(cluster, places).await?;
    tokio::time::sleep(duration).await;
    let mut alone = readers.phase().await;

    output.note(&format!(
        "{rows} rows of {VALUE_BYTES} bytes in one transaction ..."
    ));
    let written = Arc::new(AtomicU64::new(0));
    let peaks = Arc::new(Mutex::new(Peaks::default()));
    let watch = tokio::spawn(watch(peaks.clone(), written.clone(), output));
    let began = Instant::now();
    let txn = client.begin().await?;
    for row in 0..rows {
        txn.put(TABLE, new_row(row), COLUMN, value(row))?;
        if row % STEP == 0 {
            txn.ready().await?;
            written.store(row.into(), Ordering::Relaxed);
        }
    }
    txn.commit().await?;
    let took = began.elapsed();
    let beside = readers.phase().await;
    output.note("its locks are resolved ...");
    client.settle().await;
    let settled = began.elapsed();
    let resolved = readers.phase().await;
    output.note("point reads, with nothing else once more ...");
    tokio::time::sleep(duration).await;
    // A machine is not the same from one minute to the next: what is before counts as what is after.
    alone.add(readers.phase().await);
    readers.end()?;
    watch.abort();
    let alone = alone.figure("point reads alone, before and after");
    let [beside, resolved] = [
        (beside, "point reads beside it"),
        (resolved, "point reads while its locks go"),
    ]
    .map(|(phase, name)| {
        let mut figure = phase.figure(name);
        let ratio = figure.p99_ms / alone.p99_ms.max(0.001);
        figure.ratio = Some((ratio, "the p99 of those alone".into()));
        figure
    });
    let peaks = std::mem::take(&mut *peaks.lock());
    let large = Figure {
        name: format!("rows in one transaction of {rows}"),
        per_second: f64::from(rows) / took.as_secs_f64(),
        p50_ms: 0.0,
        p99_ms: 0.0,
        ratio: None,
        note: format!(
            "committed after {:.1} s, no lock left after {:.1} s; this client held {:.0} MiB at the most",
            took.as_secs_f64(),
            settled.as_secs_f64(),
            peaks.own_mebibytes
        ),
    };
    Ok(Outcome {
        figures: vec![large, alone, beside, resolved],
        memory: vec![(
            "at the most, in the large transaction".into(),
            peaks.servers,
        )],
    })
}

async fn prepare(client: &Client) -> anyhow::Result<()> {
    let tables = client.tables().await?;
    if !tables.iter().any(|table| table.name == TABLE) {
        // The keys begin with a digit.
        let cuts = [Bytes::from_static(b"3"), Bytes::from_static(b"6")];
        client.create_table(TABLE, &cuts).await?;
    }
    for first in (0..THERE).step_by(1000) {
        client
            .transact(|txn| async move {
                for row in first..first + 1000 {
                    txn.put(TABLE, there(row), COLUMN, value(row))?;
                }
                Ok(())
            })
            .await?;
    }
    client.settle().await;
    Ok(())
}

/// Those who read rows that are there, until they are ended.
struct Readers {
    /// Reads since the last phase began.
    reads: Arc<Mutex<Calls>>,
    since: Instant,
    places: Places,
    /// What servers showed of themselves then, by their names.
    shown: BTreeMap<String, Page>,
    stopped: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<()>>,
}

/// Reads of some time.
struct Phase {
    reads: Calls,
    /// What each tablet server showed of itself at its beginning and at its end.
    shown: Vec<(Page, Page)>,
}

impl Phase {
    /// And those of another time.
    fn add(&mut self, other: Self) {
        self.reads.add(&other.reads);
        self.shown.extend(other.shown);
    }

    fn figure(&self, name: &str) -> Figure {
        let mut figure = self.reads.figure(name);
        figure.note = format!(
            "{READERS} readers, p99.9 {:.1} ms, longest {:.1} ms",
            self.reads.ms(0.999),
            self.reads.ms(1.0)
        );
        let shown: Vec<(&Page, &Page)> = self.shown.iter().map(|(from, to)| (from, to)).collect();
        let gets: &[(&str, &[&str])] = &[("method", &["get"])];
        let within = |part| {
            quantile(
                part,
                &shown,
                "percolator_tablet_request_duration_seconds",
                gets,
            )
        };
        // What isn't theirs is the way to them, and waiting for a processor.
        if let (Some(p99), Some(p999)) = (within(0.99), within(0.999)) {
            figure.note += &format!(
                "; of that in the servers p99 up to {:.3} ms, p99.9 up to {:.3} ms",
                p99 * 1e3,
                p999 * 1e3
            );
        }
        figure
    }
}

impl Readers {
    async fn start(cluster: &str, places: Places) -> anyhow::Result<Self> {
        let reads = Arc::new(Mutex::new(Calls::new()));
        let stopped = Arc::new(AtomicBool::new(false));
        let (cluster, times, stop) = (cluster.to_owned(), reads.clone(), stopped.clone());
        let thread = std::thread::Builder::new()
            .name("readers".into())
            .spawn(move || {
                percolator_server::run_on_current_thread("readers", async {
                    let client = Client::connect(&cluster).await?;
                    let readers = (0..READERS).map(|_| read(&client, &times, &stop));
                    futures_util::future::try_join_all(readers).await?;
                    anyhow::Ok(())
                })?
            })?;
        Ok(Self {
            reads,
            since: Instant::now(),
            shown: places.reached().await,
            places,
            stopped,
            thread,
        })
    }

    /// What there was of reads since the last one; the next phase begins.
    async fn phase(&mut self) -> Phase {
        let since = std::mem::replace(&mut self.since, Instant::now());
        let reads = std::mem::replace(&mut *self.reads.lock(), Calls::new());
        let now = self.places.reached().await;
        let mut before = std::mem::replace(&mut self.shown, now.clone());
        let shown = now
            .into_iter()
            .filter_map(|(server, page)| Some((before.remove(&server)?, page)))
            .collect();
        Phase {
            reads: reads.within(since.elapsed()),
            shown,
        }
    }

    fn end(self) -> anyhow::Result<()> {
        self.stopped.store(true, Ordering::Relaxed);
        match self.thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

async fn read(client: &Client, times: &Mutex<Calls>, stopped: &AtomicBool) -> Result<(), Error> {
    while !stopped.load(Ordering::Relaxed) {
        let row = there(rand::rng().random_range(0..THERE));
        let begun = Instant::now();
        let txn = client.begin().await?;
        if txn.get(TABLE, row, COLUMN).await?.is_none() {
            return Err(Error::application("a row of the benchmark is missing"));
        }
        times.lock().record(begun.elapsed());
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

/// What processes held at the most.
#[derive(Default)]
struct Peaks {
    own_mebibytes: f64,
    servers: Vec<memory::Process>,
}

/// Looks at memory, and says how far it is, until it is stopped.
async fn watch(peaks: Arc<Mutex<Peaks>>, written: Arc<AtomicU64>, output: Output) {
    for tick in 1_u64.. {
        tokio::time::sleep(Duration::from_millis(200)).await;
        {
            let (mut peaks, (_, now)) = (peaks.lock(), memory::now(""));
            peaks.own_mebibytes = peaks.own_mebibytes.max(memory::own());
            for process in now {
                match peaks
                    .servers
                    .iter_mut()
                    .find(|known| known.name == process.name)
                {
                    Some(known) => known.mebibytes = known.mebibytes.max(process.mebibytes),
                    None => peaks.servers.push(process),
                }
            }
        }
        if tick % 50 == 0 {
            output.note(&format!("{} rows written", written.load(Ordering::Relaxed)));
        }
    }
}

/// A row that readers read.
fn there(number: u32) -> Bytes {
    format!("{}-there-{number:08}", number % 9).into()
}

/// A row of the large transaction, among the others.
fn new_row(number: u32) -> Bytes {
    format!("{}-new-{number:08}", number % 9).into()
}

fn value(number: u32) -> Bytes {
    format!("{number:0VALUE_BYTES$}").into()
}
