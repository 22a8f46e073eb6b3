//! Garbage collection on a real cluster: what no snapshot needs goes, what an open one needs stays, and what is
//! below the barrier is refused, whoever was killed.

mod support;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use percolator_client::{Client, Error, Timestamp, Txn};
use serde_json::Value;
use support::{Cluster, PATIENCE, Said, block_on};

const TABLE: &str = "accounts";

fn on_cluster<Fut: Future<Output = ()>>(test: impl FnOnce(Arc<Mutex<Cluster>>, Client) -> Fut) {
    let cluster = Cluster::processes();
    let master = cluster.master.clone();
    let cluster = Arc::new(Mutex::new(cluster));
    block_on(async {
        let client = Client::connect(&master).await.expect("connected");
        let created = client.create_table(TABLE, &["j".into()]).await;
        created.expect("a table");
        test(cluster, client).await;
    });
}

/// Does what takes a while, and lets the client renew its lease meanwhile.
async fn beside<T: Send + 'static>(
    cluster: &Arc<Mutex<Cluster>>,
    act: impl FnOnce(&Cluster) -> T + Send + 'static,
) -> T {
    let cluster = cluster.clone();
    let done = tokio::task::spawn_blocking(move || act(&cluster.lock().expect("whole"))).await;
    done.expect("no panic")
}

async fn run(cluster: &Arc<Mutex<Cluster>>, arguments: &[&str]) -> Said {
    let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
    let run = move |cluster: &Cluster| {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        cluster.run(&arguments)
    };
    beside(cluster, run).await
}

async fn put(client: &Client, row: &str, value: &str) -> Timestamp {
    let txn = client.begin().await.expect("a transaction");
    let put = txn.put(TABLE, row, "balance", value.to_owned());
    put.expect("put");
    txn.commit().await.expect("committed")
}

async fn get(txn: &Txn, row: &str) -> Result<Option<String>, Error> {
    let value = txn.get(TABLE, row, "balance").await?;
    Ok(value.map(|value| String::from_utf8_lossy(&value).into_owned()))
}

/// Asks until the answer is as wanted.
async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Result<T, String>) -> T {
    let since = Instant::now();
    loop {
        match look().await {
            Ok(found) => return found,
            Err(seen) if since.elapsed() > PATIENCE => panic!("{what} did not come; seen: {seen}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn status(cluster: &Arc<Mutex<Cluster>>) -> Value {
    let said = run(cluster, &["gc", "status", "-o", "json"]).await.ok();
    serde_json::from_str(&said).expect("JSON")
}

fn point(status: &Value, name: &str) -> u64 {
    let text = status[name].as_str().expect("a timestamp");
    text.parse().expect("a number")
}

fn collected(status: &Value) -> u64 {
    let servers = status["servers"].as_array().expect("servers");
    servers
        .iter()
        .filter_map(|server| server["collected"].as_u64())
        .sum()
}

#[test]
fn what_an_open_snapshot_reads_stays_and_is_collected_when_it_ends() {
    on_cluster(|cluster, client| async move {
        for row in ["ann", "joe"] {
            put(&client, row, "1").await;
        }
        let held = client.begin().await.expect("a snapshot");
        let old = held.start_ts();
        for value in ["2", "3"] {
            for row in ["ann", "joe"] {
                put(&client, row, value).await;
            }
        }
        run(&cluster, &["delete", TABLE, "joe"]).await.ok();
        run(&cluster, &["gc", "set", "--life-time", "2s"])
            .await
            .ok();

        let what = "the open snapshot as what blocks";
        let told = until(what, async || {
            let said = run(&cluster, &["gc", "why-blocked", "-o", "json"]).await;
            let named = said.out.contains(&old.to_string());
            match named && said.code() == 7 {
                true => Ok(said.out),
                false => Err(format!("{said:?}")),
            }
        })
        .await;
        let process = format!("\"process\":{}", std::process::id());
        assert!(told.contains(&process), "{told}");
        // Held below the others' barrier for several life times.
        tokio::time::sleep(Duration::from_secs(5)).await;
        let now = status(&cluster).await;
        assert!(point(&now, "barrier") <= old.as_u64(), "{now}");
        for row in ["ann", "joe"] {
            let value = get(&held, row).await.expect("readable");
            assert_eq!(value.as_deref(), Some("1"), "{row}");
        }

        drop(held);
        // Of ann two versions are hidden, of joe three, and what hides them; and by then nobody reads at `old`.
        let now = until("collected versions", async || {
            let now = status(&cluster).await;
            match collected(&now) >= 6 {
                true => Ok(now),
                false => Err(now.to_string()),
            }
        })
        .await;
        assert!(point(&now, "ready") > old.as_u64(), "{now}");
        assert!(point(&now, "ready") <= point(&now, "barrier"), "{now}");
        let late = client.begin_at(old).await.expect("a transaction");
        let error = get(&late, "ann").await.expect_err("too old");
        assert!(matches!(error, Error::TooOld(_)), "{error}");
        let at = old.to_string();
        run(&cluster, &["scan", TABLE, "--at", &at])
            .await
            .refused(3, &["is too old", "begin a new transaction"]);
        let new = client.begin().await.expect("a transaction");
        assert_eq!(get(&new, "ann").await.expect("read").as_deref(), Some("3"));
        assert_eq!(get(&new, "joe").await.expect("read"), None);
    });
}

#[test]
fn the_points_stay_where_they_are_when_everybody_is_killed() {
    on_cluster(|cluster, client| async move {
        let old = put(&client, "ann", "1").await;
        put(&client, "ann", "2").await;
        run(&cluster, &["gc", "set", "--life-time", "1s"])
            .await
            .ok();
        let before = until("a collected version", async || {
            let now = status(&cluster).await;
            match collected(&now) {
                0 => Err(now.to_string()),
                _ => Ok(now),
            }
        })
        .await;
        run(&cluster, &["gc", "set", "--pause", "true"]).await.ok();
        for server in ["tablet-0", "tablet-1", "tablet-2", "gc-master-0"] {
            beside(&cluster, move |cluster| cluster.kill(server)).await;
        }
        let after = until("all of them", async || {
            let said = run(&cluster, &["gc", "status", "-o", "json"]).await;
            let now: Value = serde_json::from_str(&said.out).map_err(|_| format!("{said:?}"))?;
            let reached = |server: &Value| point(server, "barrier") >= point(&before, "barrier");
            match now["servers"].as_array() {
                Some(servers) if servers.len() == 3 && servers.iter().all(reached) => Ok(now),
                _ => Err(said.out),
            }
        })
        .await;
        for name in ["barrier", "ready"] {
            assert!(
                point(&after, name) >= point(&before, name),
                "{before} {after}"
            );
        }
        assert_eq!(after["paused"], true);
        let late = client.begin_at(old).await.expect("a transaction");
        let error = get(&late, "ann").await.expect_err("too old");
        assert!(matches!(error, Error::TooOld(_)), "{error}");
    });
}

#[test]
fn a_tablet_server_that_is_away_holds_collection_back_and_is_named() {
    on_cluster(|cluster, client| async move {
        put(&client, "ann", "1").await;
        let pid = beside(&cluster, |cluster| cluster.pid("tablet-1")).await;
        support::signal(pid, "STOP");
        run(&cluster, &["gc", "set", "--life-time", "1s"])
            .await
            .ok();
        let what = "the tablet server as what blocks";
        let said = until(what, async || {
            let said = run(&cluster, &["gc", "why-blocked"]).await;
            match said.code() == 7 && said.out.contains("tablet-1") {
                true => Ok(said.out),
                false => Err(format!("{said:?}")),
            }
        })
        .await;
        assert!(said.contains("does not answer"), "{said}");
        support::signal(pid, "CONT");
        until("nothing that blocks", async || {
            let said = run(&cluster, &["gc", "why-blocked"]).await;
            match said.code() {
                0 => Ok(()),
                _ => Err(format!("{said:?}")),
            }
        })
        .await;
    });
}

#[test]
fn a_life_time_out_of_bounds_is_refused() {
    on_cluster(|cluster, _| async move {
        for time in ["10ms", "20years"] {
            run(&cluster, &["gc", "set", "--life-time", time])
                .await
                .refused(2, &["life time", "from 1 s to"]);
        }
        run(&cluster, &["gc", "set"])
            .await
            .refused(2, &["--life-time"]);
    });
}
