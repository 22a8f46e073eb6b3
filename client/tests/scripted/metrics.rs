//! What a client that is measured counts of what it has done.

use std::time::Duration;

use percolator_client::{Change, Conflict, Error, Observer, OpenTxn};
use percolator_telemetry::{Registry, text};

use crate::cluster::TABLE;
use crate::network::{Fault, Kind};
use crate::outcome::{Bench, new, old, put_all};

const ROWS: [&str; 2] = ["a", "k"];
const SLOW: Duration = Duration::from_millis(700);

/// Checks the lines of these metrics.
fn assert_shown(registry: &Registry, lines: &[(&str, u64)]) {
    let shown = text(registry).expect("text");
    let shown = String::from_utf8_lossy(shown.as_ref()).into_owned();
    for (metric, value) in lines {
        let line = format!("percolator_client_{metric} {value}");
        let all: Vec<&str> = shown.lines().filter(|line| !line.contains('#')).collect();
        assert!(all.contains(&&*line), "no {line} in {all:#?}");
    }
}

#[test]
fn transactions_and_how_they_end_are_counted() {
    let bench = Bench::new();
    bench.fill(&ROWS);
    let registry = Registry::new();
    bench.client.measure(&registry).expect("measured");
    assert!(bench.client.measure(&Registry::new()).is_err());
    bench.network.script(|sent| {
        let is_first = sent.kind == Kind::Timestamp && sent.nth == 0;
        is_first.then_some(Fault::SlowAnswer(SLOW))
    });
    let (_network, other) = bench.other();
    bench.run(async {
        let txn = bench.client.begin().await.expect("it begins");
        put_all(&txn, &ROWS, new);
        txn.commit().await.expect("it commits");
        let reads = bench.client.begin().await.expect("it begins");
        let value = reads.get(TABLE, "a", "c").await.expect("an answer");
        assert_eq!(value, Some(new("a")));
        reads.commit().await.expect("it has only read");
        let late = bench.client.begin().await.expect("it begins");
        put_all(&late, &ROWS[..1], old);
        let txn = other.begin().await.expect("it begins");
        put_all(&txn, &ROWS[..1], old);
        txn.commit().await.expect("it commits");
        let refused = late.commit().await;
        let is_conflict = matches!(refused, Err(Error::Conflict(Conflict::Committed { .. })));
        assert!(is_conflict, "{refused:?}");
    });
    // A read of one cell is one message, of the short kind.
    let log = bench.network.log();
    let sent = |kind| log.iter().filter(|sent| sent.kind == kind).count();
    assert_eq!((sent(Kind::GetOne), sent(Kind::Get)), (1, 0));
    assert_shown(
        &registry,
        &[
            ("transactions_begun_total", 3),
            ("timestamp_duration_seconds_count", 3),
            ("timestamp_duration_seconds_bucket{le=\"0.5\"}", 2),
            ("timestamp_duration_seconds_bucket{le=\"1\"}", 3),
            ("commits_total{outcome=\"committed\"}", 1),
            ("commits_total{outcome=\"read_only\"}", 1),
            ("commits_total{outcome=\"conflict\"}", 1),
            ("commit_duration_seconds_count", 3),
            ("commit_cells_sum", 3),
            ("requests_total{method=\"get\",result=\"ok\"}", 1),
        ],
    );
}

#[test]
fn runs_of_an_observer_are_counted() {
    let bench = Bench::new();
    let registry = Registry::new();
    bench.client.measure(&registry).expect("measured");
    let client = bench.client.clone();
    bench.run(async {
        client.observe(TABLE, "c").await.expect("observed");
        let handler = |_: Change, _: OpenTxn| async { Ok(()) };
        let observer = Observer::new(TABLE, "c", handler);
        let worker = observer.start(&client).await.expect("a worker");
        for row in ROWS {
            client
                .transact(move |txn| async move { txn.put(TABLE, row, "c", "x") })
                .await
                .expect("written");
        }
        bench.sleep(Duration::from_secs(5)).await;
        worker.stop().await;
    });
    assert_shown(
        &registry,
        &[
            ("observer_runs_total{end=\"committed\"}", 2),
            ("observer_lag_seconds_count", 2),
            ("observer_retries_total", 0),
            ("observer_running", 0),
        ],
    );
}
