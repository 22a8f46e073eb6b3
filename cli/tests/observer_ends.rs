//! How observing ends: loops of observers, columns that are observed no more; and what a worker shows of itself.

use crate::support;
use std::io::BufRead as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::support::observing::{observed, start_failing};
use crate::support::{Cluster, SERVERS, block_on, signal, wait_for};
use percolator_client::{Bytes, Change, Client, Error, Observer, ObserverOptions, OpenTxn};
use percolator_telemetry::endpoint;

/// Runs for changes of a column, and writes each value to another one.
async fn copier(
    client: &Client,
    from: &str,
    to: &'static str,
) -> percolator_client::ObserverWorker {
    let copy = move |change: Change, txn: OpenTxn| async move {
        let value = change.value.unwrap_or_default();
        txn.put(to, &change.row, "c", value)?;
        Ok(())
    };
    let options = ObserverOptions {
        chain_max: 6,
        ..ObserverOptions::default()
    };
    let observer = Observer::new(from, "c", copy).with_options(options);
    observer.start(client).await.expect("a worker")
}

#[test]
fn a_loop_of_observers_is_reported_and_ends() {
    let cluster = Cluster::threads();
    block_on(async {
        let client = observed(&cluster).await;
        client.create_table("u", &[]).await.expect("made");
        client.observe("u", "c").await.expect("observed");
        let workers = [
            copier(&client, "t", "u").await,
            copier(&client, "u", "t").await,
        ];
        let put = |txn: OpenTxn| async move { txn.put("t", "r", "c", "x") };
        client.transact(put).await.expect("written");
        let mut letters = Vec::new();
        for _ in 0..6000 {
            letters = client.dead_letters("t", "c").await.expect("letters");
            if !letters.is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let [letter] = &letters[..] else {
            panic!("{letters:?}");
        };
        assert_eq!((&letter.row[..], letter.attempts), (&b"r"[..], 0));
        let reason = "a chain of 6 runs of observers, one because of the other, perhaps a loop: of columns \"c\" of t, \"c\" of u";
        assert_eq!(letter.reason, reason);
        // Servers say it a moment later.
        wait_until_none_waits(&client).await;
        let [first, second] = workers;
        let (first, second) = (first.stop().await, second.stop().await);
        assert_eq!((first.committed, second.committed), (3, 3));
        assert_eq!((first.dead_letters, second.dead_letters), (1, 0));
        assert_eq!(client.dead_letters("u", "c").await.expect("letters"), []);
    });
}

async fn wait_until_none_waits(client: &Client) {
    for _ in 0..6000 {
        let status = client.observed("t", "c").await.expect("a status");
        if status.waiting == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("a change still waits");
}

/// However often a run fails for the cluster, its change is not given up; for the handler's own errors it is.
#[test]
fn errors_of_the_cluster_are_no_failures_of_the_handler() {
    let cluster = Cluster::threads();
    block_on(async {
        let client = observed(&cluster).await;
        let options = ObserverOptions {
            backoff: Duration::from_millis(1),
            backoff_max: Duration::from_millis(10),
            ..ObserverOptions::default()
        };
        let failures = Arc::new(AtomicU32::new(0));
        let handler = move |change: Change, _: OpenTxn| {
            let is_early = failures.fetch_add(1, Ordering::Relaxed) < options.attempts_max + 2;
            let timeout = Error::Timeout {
                after: Duration::from_secs(10),
                doing: "reading",
                last: "no answer".to_owned(),
            };
            let result: Result<(), Box<dyn std::error::Error + Send + Sync>> = match &change.row[..]
            {
                b"timeout" if is_early => Err(timeout.into()),
                b"own" => Err("no such document".into()),
                _ => Ok(()),
            };
            async move { result }
        };
        let observer = Observer::new("t", "c", handler).with_options(options);
        let worker = observer.start(&client).await.expect("a worker");
        for (row, ends) in [("timeout", (1, 0)), ("own", (1, 1))] {
            let put = move |txn: OpenTxn| async move { txn.put("t", row, "c", "x") };
            client.transact(put).await.expect("written");
            let ended = || (worker.counts().committed, worker.counts().dead_letters);
            let (before, began) = (ended(), std::time::Instant::now());
            while ended() == before && began.elapsed() < Duration::from_secs(60) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            assert_eq!(ended(), ends, "{row}");
        }
        worker.stop().await;
    });
}

#[test]
fn what_was_given_up_is_told_until_it_is_tried_again_or_forgotten() {
    let cluster = Cluster::threads();
    cluster.run(&["table", "create", "t"]).ok();
    cluster.run(&["table", "observe", "t", "c"]).ok();
    for row in ["a", "b"] {
        cluster.run(&["put", "t", row, "c", "x"]).ok();
    }
    let run = ["observe", "run", "t", "c", "--exec", "exit 3"];
    let once = ["--attempts", "1", "--until-idle"];
    assert_eq!(cluster.run(&[&run[..], &once].concat()).code(), 7);
    cluster.run(&["table", "unobserve", "t", "c"]).ok();
    let status = cluster.run(&["observe", "status"]);
    assert_eq!(status.code(), 7, "{status:?}");
    assert!(status.out.contains("not observed"), "{status:?}");
    let letters = cluster.run(&["observe", "status", "t", "c"]);
    assert!(letters.out.contains("exit status: 3"), "{letters:?}");
    let retry = cluster.run(&["observe", "retry", "t", "c"]);
    retry.refused(2, &["not observed"]);
    let one = ["observe", "discard", "t", "c", "--row", "a"];
    assert!(cluster.run(&one).ok().contains("1 changes are forgotten"));
    assert_eq!(cluster.run(&one).code(), 7);
    // Also when the table is gone.
    cluster.run(&["table", "delete", "t", "--yes"]).ok();
    let told = "observers of table t have given up 1 changes";
    let status = cluster.run(&["status"]);
    assert!(status.out.contains(told), "{status:?}");
    let status = cluster.run(&["observe", "status", "t"]);
    assert_eq!(status.code(), 7, "{status:?}");
    cluster.run(&["observe", "discard", "t", "c"]).ok();
    let status = cluster.run(&["status"]);
    assert!(!status.out.contains("given up"), "{status:?}");
    cluster.run(&["observe", "status"]).ok();
}

#[test]
fn rows_as_long_as_can_be_have_letters_of_their_own() {
    let cluster = Cluster::threads();
    block_on(async {
        let client = observed(&cluster).await;
        let worker = start_failing(&client).await;
        // They differ in their last bytes alone.
        let rows: Vec<Bytes> = (0..3_u8)
            .map(|last| [vec![0; 4095], vec![last]].concat().into())
            .collect();
        let letters_when = async |number: usize| {
            for _ in 0..6000 {
                let letters = client.dead_letters("t", "c").await.expect("letters");
                if letters.len() == number {
                    return letters;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            panic!("{:?}", client.dead_letters("t", "c").await);
        };
        for (already, row) in rows.iter().enumerate() {
            let put = |txn: OpenTxn| async move { txn.put("t", row, "c", "x") };
            client.transact(put).await.expect("written");
            letters_when(already + 1).await;
        }
        worker.stop().await;
        let mut letters = letters_when(3).await;
        letters.sort_by_key(|letter| letter.row.clone());
        let of: Vec<&Bytes> = letters.iter().map(|letter| &letter.row).collect();
        assert_eq!(of, rows.iter().collect::<Vec<_>>());
        assert!(letters.iter().all(|letter| letter.reason == "it rains"));
        for letter in &letters[..2] {
            client.retry_dead_letter(letter).await.expect("tried again");
        }
        assert_eq!(letters_when(1).await, &letters[2..]);
        let status = client.observed("t", "c").await.expect("a status");
        assert_eq!(status.waiting, 2);
    });
}

#[test]
fn a_column_that_is_observed_no_more_has_no_runs() {
    let cluster = Cluster::threads();
    cluster
        .run(&["table", "create", "t", "--split-at", "m"])
        .ok();
    cluster.run(&["table", "observe", "t", "c"]).ok();
    for row in ["a", "z"] {
        cluster.run(&["put", "t", row, "c", "x"]).ok();
    }
    let status = cluster.run(&["observe", "status", "t", "c"]).ok();
    assert!(status.contains("2 changes wait"), "{status}");
    // Again and again it is the same.
    for _ in 0..2 {
        let said = cluster
            .run(&["table", "unobserve", "t", "c", "-o", "json"])
            .ok();
        let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        assert_eq!(said["observed"], false, "{said}");
        let status = cluster.run(&["observe", "status", "t", "c"]);
        status.refused(2, &["not observed"]);
    }
    let run = ["observe", "run", "t", "c", "--exec", "true", "--until-idle"];
    cluster.run(&run).refused(2, &["not observed"]);
    cluster.run(&["put", "t", "b", "c", "x"]).ok();
    // Observed again: only what changes from then on.
    cluster.run(&["table", "observe", "t", "c"]).ok();
    cluster.run(&["put", "t", "z", "c", "y"]).ok();
    let said = cluster.run(&run).ok();
    assert!(said.contains("1 runs committed"), "{said}");
    cluster
        .run(&["table", "unobserve", "nowhere", "c"])
        .refused(6, &["nowhere"]);
}

#[test]
fn a_run_that_is_under_way_commits_no_more() {
    let cluster = Cluster::threads();
    block_on(async {
        let client = observed(&cluster).await;
        let unobserving = client.clone();
        let unobserves = move |change: Change, txn: OpenTxn| {
            let client = unobserving.clone();
            async move {
                client.unobserve("t", "c").await?;
                txn.put("t", &change.row, "done", "1")?;
                Ok(())
            }
        };
        let worker = Observer::new("t", "c", unobserves).start(&client).await;
        let worker = worker.expect("a worker");
        let put = |txn: OpenTxn| async move { txn.put("t", "r", "c", "x") };
        client.transact(put).await.expect("written");
        while worker.counts().overtaken == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(worker.stop().await.committed, 0);
        let txn = client.begin().await.expect("a transaction");
        assert_eq!(txn.get("t", "r", "done").await.expect("read"), None);
        let status = client.observed("t", "c").await;
        assert!(matches!(status, Err(Error::Invalid(_))), "{status:?}");
    });
}

fn page(address: &str) -> String {
    let page = block_on(endpoint::get(address, "/metrics"));
    page.expect("an answer").body
}

/// The sum of the series of a page that begin so.
fn value(page: &str, series: &str) -> f64 {
    let lines = page.lines().filter(|line| line.starts_with(series));
    let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
    values.sum()
}

#[test]
fn a_worker_shows_its_runs_and_servers_show_what_waits() {
    let cluster = Cluster::processes();
    cluster.run(&["table", "create", "t"]).ok();
    cluster.run(&["table", "observe", "t", "c"]).ok();
    for row in ["a", "b"] {
        cluster.run(&["put", "t", row, "c", "x"]).ok();
    }
    let waiting = || -> f64 {
        let servers = SERVERS.iter().filter(|server| server.starts_with("tablet"));
        let pages = servers.map(|server| page(&cluster.metrics_address(server)));
        pages
            .map(|page| value(&page, "percolator_tablet_notifications"))
            .sum()
    };
    assert_eq!(waiting(), 2.0);
    let mut worker = Command::new(support::PERCOLATOR)
        .args(["-c", &cluster.master, "observe", "run", "t", "c"])
        .args(["--exec", "false", "--attempts", "2"])
        .args(["--metrics-listen", "127.0.0.1:0"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program");
    let mut said = std::io::BufReader::new(worker.stderr.take().expect("a pipe"));
    let mut line = String::new();
    let address = loop {
        line.clear();
        let bytes = said.read_line(&mut line).expect("a line");
        assert!(bytes > 0, "it ended before it said where");
        if let Some((_, address)) = line.trim().split_once("metrics on ") {
            break address.to_owned();
        }
    };
    let page = wait_for("a dead letter", || {
        let page = page(&address);
        let runs = "percolator_client_observer_runs_total";
        (value(&page, &format!("{runs}{{end=\"dead_letter\"")) == 2.0).then_some(page)
    });
    // In order: what it has committed of late is cleared by then.
    signal(worker.id(), "TERM");
    worker.wait().expect("ended");
    for (series, expected) in [
        ("percolator_client_observer_retries_total", 2.0),
        ("percolator_client_observer_lag_seconds_count", 2.0),
    ] {
        assert_eq!(value(&page, series), expected, "{series}\n{page}");
    }
    assert!(page.contains("role=\"observer\""), "{page}");
    wait_for("nothing that waits", || (waiting() == 0.0).then_some(()));
}

/// The cell changes while a run fails: that run knew nothing of the newer value.
#[test]
fn a_value_that_no_run_has_failed_on_becomes_no_dead_letter() {
    let cluster = Cluster::threads();
    block_on(async {
        let client = observed(&cluster).await;
        let put = |value: &'static str| {
            client.transact(move |txn: OpenTxn| async move { txn.put("t", "r", "c", value) })
        };
        let other = client.clone();
        let handler = move |change: Change, _: OpenTxn| {
            let other = other.clone();
            async move {
                if change.value.as_deref() == Some(b"good") {
                    return Ok(());
                }
                let good = |txn: OpenTxn| async move { txn.put("t", "r", "c", "good") };
                other.transact(good).await?;
                Err("it can do nothing with that".into())
            }
        };
        let options = ObserverOptions {
            attempts_max: 1,
            ..ObserverOptions::default()
        };
        let observer = Observer::new("t", "c", handler).with_options(options);
        let worker = observer.start(&client).await.expect("a worker");
        put("bad").await.expect("written");
        wait_until_none_waits(&client).await;
        let counts = worker.stop().await;
        assert_eq!((counts.committed, counts.dead_letters), (1, 0));
        assert_eq!(client.dead_letters("t", "c").await.expect("letters"), []);
    });
}

#[test]
fn a_worker_that_stops_leaves_no_change_leased() {
    let cluster = Cluster::threads();
    block_on(async {
        let client = observed(&cluster).await;
        client.create_table("u", &[]).await.expect("made");
        let put = |row: &'static str| {
            client.transact(move |txn: OpenTxn| async move { txn.put("t", row, "c", "x") })
        };
        let worker = copier(&client, "t", "u").await;
        put("a").await.expect("written");
        while worker.counts().committed == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // It waits for more, in both tablets.
        worker.stop().await;
        for row in ["b", "y"] {
            put(row).await.expect("written");
        }
        let query = percolator_client::NotificationQuery {
            limit: 10,
            lease: Duration::ZERO,
        };
        let found = client.notifications("t", "c", query).await.expect("found");
        let rows: Vec<&[u8]> = found.iter().map(|change| &change.row[..]).collect();
        assert_eq!(rows, [b"b", b"y"]);
    });
}

/// How many processes have this argument.
fn processes_with(argument: &str) -> usize {
    let entries = std::fs::read_dir("/proc").expect("Linux").flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines
        .filter(|line| {
            let mut arguments = line.split(|byte| *byte == 0);
            arguments.any(|it| it == argument.as_bytes())
        })
        .count()
}

#[test]
fn a_pipeline_that_takes_too_long_is_killed_with_its_parts() {
    let cluster = Cluster::threads();
    cluster.run(&["table", "create", "t"]).ok();
    cluster.run(&["table", "observe", "t", "c"]).ok();
    cluster.run(&["put", "t", "r", "c", "x"]).ok();
    let seconds = format!("1{:08}", std::process::id());
    let exec = format!("sleep {seconds} | cat");
    let run = ["observe", "run", "t", "c", "--exec", &exec, "--until-idle"];
    let limits = ["--timeout", "300ms", "--attempts", "2"];
    let said = cluster.run(&[&run[..], &limits].concat());
    assert_eq!(said.code(), 7, "{said:?}");
    let status = cluster.run(&["observe", "status", "t", "c"]);
    assert!(status.out.contains("it took longer"), "{status:?}");
    wait_for("its parts to end", || {
        (processes_with(&seconds) == 0).then_some(())
    });
}
