//! Observers: what a worker says of the changes that it has, and when.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use percolator_client::{Change, Client, Observer, ObserverOptions, ObserverWorker, OpenTxn};
use percolator_wire::v1::request::Body as Ask;
use tokio::sync::{mpsc, watch};

use crate::cluster::TABLE;
use crate::network::{Fault, Kind, Sent};
use crate::outcome::Bench;

const ROW: &str = "a";
const COLUMN: &str = "c";
/// Of what a worker has.
const LEASE: Duration = Duration::from_secs(9);

/// Whether the worker says that it still has the row's change.
fn renews(sent: &Sent) -> bool {
    matches!(&sent.body, Some(Ask::Notifications(asked)) if !asked.renewed.is_empty())
}

/// A worker of the column.
async fn worker<Fut>(
    client: &Client,
    handler: impl Fn(Change, OpenTxn) -> Fut + Send + Sync + 'static,
) -> ObserverWorker
where
    Fut: Future<Output = Result<(), Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    client.observe(TABLE, COLUMN).await.expect("observed");
    let options = ObserverOptions {
        lease: LEASE,
        ..ObserverOptions::default()
    };
    let observer = Observer::new(TABLE, COLUMN, handler).with_options(options);
    observer.start(client).await.expect("a worker")
}

async fn write(client: &Client, value: &'static str) {
    let written = client.transact(move |txn| async move { txn.put(TABLE, ROW, COLUMN, value) });
    written.await.expect("written");
}

/// A run commits while the worker's word that it still has the change is on its way: the row's next change is run for at once.
#[test]
fn a_lease_that_is_begun_anew_too_late_delays_nothing() {
    let bench = Bench::new();
    let (world, client) = (bench.cluster.world.clone(), bench.client.clone());
    let renewed = Arc::new(watch::Sender::new(false));
    let tells = renewed.clone();
    bench.network.script(move |sent| {
        renews(sent).then(|| {
            tells.send_replace(true);
            Fault::SlowRequest(Duration::from_millis(100))
        })
    });
    let (began, mut runs) = mpsc::unbounded_channel();
    let first = Arc::new(Mutex::new(Some(renewed.subscribe())));
    let handler = move |change: Change, _: OpenTxn| {
        let (began, first) = (began.clone(), first.lock().take());
        async move {
            began.send(change.value)?;
            if let Some(mut renewed) = first {
                renewed.wait_for(|renewed| *renewed).await?;
            }
            Ok(())
        }
    };
    world.clone().run(async move {
        let worker = worker(&client, handler).await;
        write(&client, "first").await;
        assert_eq!(runs.recv().await, Some(Some("first".into())));
        renewed
            .subscribe()
            .wait_for(|it| *it)
            .await
            .expect("a renewal");
        // The run commits, and the renewal arrives behind that.
        world.sleep(Duration::from_millis(500)).await;
        assert_eq!(worker.counts().committed, 1);
        let before = world.now();
        write(&client, "second").await;
        assert_eq!(runs.recv().await, Some(Some("second".into())));
        let waited = world.now() - before;
        assert!(waited < Duration::from_secs(1), "{waited:?}");
        worker.stop().await;
    });
}

/// What comes for a row while the answer to its run's commit is on its way is run for as soon as that is there, and not when its
/// lease ends.
#[test]
fn what_came_for_a_row_before_its_run_had_ended_is_run_for_behind_it() {
    let bench = Bench::new();
    let (world, client) = (bench.cluster.world.clone(), bench.client.clone());
    let slow = Arc::new(AtomicBool::new(false));
    let is_slow = slow.clone();
    bench.network.script(move |sent| {
        let commits = [Kind::OnePhase, Kind::Commit].contains(&sent.kind);
        let is_it = commits && is_slow.swap(false, Ordering::Relaxed);
        is_it.then_some(Fault::SlowAnswer(Duration::from_secs(1)))
    });
    let (began, mut runs) = mpsc::unbounded_channel();
    let handler = move |change: Change, _: OpenTxn| {
        slow.store(change.value == Some("first".into()), Ordering::Relaxed);
        let began = began.clone();
        async move { Ok(began.send(change.value)?) }
    };
    world.clone().run(async move {
        let worker = worker(&client, handler).await;
        write(&client, "first").await;
        assert_eq!(runs.recv().await, Some(Some("first".into())));
        // Committed, and the worker hasn't heard of it.
        world.sleep(Duration::from_millis(300)).await;
        assert_eq!(worker.counts().committed, 0);
        let before = world.now();
        write(&client, "second").await;
        assert_eq!(runs.recv().await, Some(Some("second".into())));
        let waited = world.now() - before;
        assert!(waited > Duration::from_millis(500), "{waited:?}");
        assert!(waited < Duration::from_secs(2), "{waited:?}");
        worker.stop().await;
    });
}

/// However often that is: nothing of it says that the change itself can't be run for.
#[test]
fn what_the_cluster_refuses_a_handler_makes_no_dead_letter() {
    use percolator_client::Error as E;
    let bench = Bench::new();
    let (world, client) = (bench.cluster.world.clone(), bench.client.clone());
    let left = Arc::new(Mutex::new(20));
    let (ended, mut runs) = mpsc::unbounded_channel();
    let handler = move |change: Change, _: OpenTxn| {
        let is_away = {
            let mut left = left.lock();
            *left -= i32::from(*left > 0);
            *left > 0
        };
        let ended = ended.clone();
        async move {
            if is_away {
                return Err(E::Unavailable("no answer".into()).into());
            }
            Ok(ended.send(change.value)?)
        }
    };
    world.clone().run(async move {
        let worker = worker(&client, handler).await;
        write(&client, "first").await;
        assert_eq!(runs.recv().await, Some(Some("first".into())));
        world.sleep(Duration::from_secs(1)).await;
        let counts = worker.counts();
        assert_eq!((counts.committed, counts.dead_letters), (1, 0));
        assert!(counts.retries >= 19, "{counts:?}");
        worker.stop().await;
    });
}

/// A lock whose transaction's fate a server knows that doesn't answer is in nobody's way but its own row's.
#[test]
fn a_lock_that_can_not_be_resolved_delays_no_other_change() {
    const CHANGES: u64 = 20;
    let bench = Bench::new();
    let (world, client) = (bench.cluster.world.clone(), bench.client.clone());
    let (dead_network, dead) = bench.other();
    let (_network, writer) = bench.other();
    dead_network.script(|sent| {
        let is_end = [Kind::Commit, Kind::Rollback].contains(&sent.kind);
        is_end.then_some(Fault::Silence)
    });
    bench.network.script(|sent| {
        let asks = sent.kind == Kind::CheckStatus;
        asks.then_some(Fault::Silence)
    });
    world.clone().run(async move {
        let worker = worker(&client, async |_: Change, _: OpenTxn| Ok(())).await;
        let txn = dead.begin().await.expect("it begins");
        for row in ["k", "a"] {
            txn.put(TABLE, row, COLUMN, "locked").expect("it is kept");
        }
        let commit = Box::pin(txn.commit());
        futures_util::future::select(commit, Box::pin(world.sleep(Duration::from_millis(100))))
            .await;
        dead_network.script(|_| Some(Fault::Silence));
        // It asks for locks.
        world.sleep(Duration::from_secs(4)).await;
        let before = world.now();
        for number in 0..CHANGES {
            let row = format!("b{number:02}");
            let put = writer.transact(|txn| {
                let row = row.clone();
                async move { txn.put(TABLE, row, COLUMN, "x") }
            });
            put.await.expect("written");
        }
        while worker.counts().committed < CHANGES {
            world.sleep(Duration::from_millis(10)).await;
            let waited = world.now() - before;
            assert!(waited < Duration::from_secs(2), "{:?}", worker.counts());
        }
        worker.stop().await;
    });
}

/// Two workers have a change at the same time. One gives it up, and somebody has it tried again; then the other one gives it up, for
/// the same value, before the first letter is deleted: the second letter stays.
#[test]
fn a_dead_letter_that_was_written_since_is_not_deleted() {
    let bench = Bench::new();
    let (world, client) = (bench.cluster.world.clone(), bench.client.clone());
    world.clone().run(async move {
        client.observe(TABLE, COLUMN).await.expect("observed");
        let start = async |fails: &watch::Sender<bool>| {
            let (began, runs) = mpsc::unbounded_channel();
            let fails = fails.subscribe();
            let handler = move |_: Change, _: OpenTxn| {
                let (began, mut fails) = (began.clone(), fails.clone());
                async move {
                    began.send(())?;
                    fails.wait_for(|fails| *fails).await?;
                    Err("refused".into())
                }
            };
            let options = ObserverOptions {
                attempts_max: 1,
                lease: Duration::ZERO,
                ..ObserverOptions::default()
            };
            let observer = Observer::new(TABLE, COLUMN, handler).with_options(options);
            (observer.start(&client).await.expect("a worker"), runs)
        };
        let letters = async || {
            let letters = client.dead_letters(TABLE, COLUMN).await;
            letters.expect("the letters")
        };
        let gives_up = async |worker: &ObserverWorker| {
            while worker.counts().dead_letters == 0 {
                world.sleep(Duration::from_millis(10)).await;
            }
        };
        let gates = [watch::Sender::new(false), watch::Sender::new(false)];
        let (first, mut first_runs) = start(&gates[0]).await;
        let (second, mut second_runs) = start(&gates[1]).await;
        write(&client, "odd").await;
        first_runs.recv().await.expect("a run");
        second_runs.recv().await.expect("a run");
        gates[0].send_replace(true);
        gives_up(&first).await;
        first.stop().await;
        let before = letters().await;
        // As `retry_dead_letter` does it, with the other worker between its two steps.
        let notified = client.notify(TABLE, COLUMN, &[ROW.into()]).await;
        notified.expect("notified");
        gates[1].send_replace(true);
        gives_up(&second).await;
        let since = letters().await;
        assert_eq!((before.len(), since.len()), (1, 1));
        assert_eq!(before[0].changed_at, since[0].changed_at);
        let discard = async |letter| {
            let discarded = client.discard_dead_letter(letter).await;
            discarded.expect("done");
        };
        discard(&before[0]).await;
        assert_eq!(letters().await, since);
        discard(&since[0]).await;
        assert_eq!(letters().await, []);
        second.stop().await;
    });
}
