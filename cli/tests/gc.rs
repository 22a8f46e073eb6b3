//! Garbage collection on a real cluster: what no snapshot needs goes, what an open one needs stays, and what is
//! below the barrier is refused, no matter which process was killed.

use crate::support;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::{Cluster, CommandOutput, TIMEOUT, block_on};
use percolator_client::{Admin, Client, Error, OpenTxn, Range, Timestamp, Txn};
use serde_json::Value;

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

async fn run(cluster: &Arc<Mutex<Cluster>>, arguments: &[&str]) -> CommandOutput {
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

/// The values of all rows, asked of the servers each time: a transaction keeps rows that it has read cell by cell.
async fn all(txn: &Txn) -> Result<Vec<String>, Error> {
    let mut cells = txn.scan(TABLE, Range::prefix("")).await?;
    let mut values = Vec::new();
    while let Some(cell) = cells.next().await? {
        values.push(String::from_utf8_lossy(&cell.value).into_owned());
    }
    Ok(values)
}

/// Asks until the answer is as wanted.
async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Result<T, String>) -> T {
    let since = Instant::now();
    loop {
        match look().await {
            Ok(found) => return found,
            Err(seen) if since.elapsed() > TIMEOUT => panic!("{what} did not come; seen: {seen}"),
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
        run(&cluster, &["gc", "set", "--retention", "2s"])
            .await
            .ok();

        let what = "the open snapshot as what blocks";
        let told = until(what, async || {
            let said = run(&cluster, &["gc", "why-blocked", "-o", "json"]).await;
            let named = said.out.contains(&old.to_string());
            if named && said.code() == 7 {
                Ok(said.out)
            } else {
                Err(format!("{said:?}"))
            }
        })
        .await;
        let process = format!("\"process\":{}", std::process::id());
        assert!(told.contains(&process), "{told}");
        // Held below the others' barrier for several times the retention.
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
            if collected(&now) >= 6 {
                Ok(now)
            } else {
                Err(now.to_string())
            }
        })
        .await;
        assert!(point(&now, "safe_point") > old.as_u64(), "{now}");
        assert!(point(&now, "safe_point") <= point(&now, "barrier"), "{now}");
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
        run(&cluster, &["gc", "set", "--retention", "1s"])
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
        for server in ["tablet-0", "tablet-1", "tablet-2", "master-0"] {
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
        for name in ["barrier", "safe_point"] {
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
fn a_tablet_server_that_is_away_is_named_and_the_others_collect_meanwhile() {
    on_cluster(|cluster, client| async move {
        put(&client, "ann", "1").await;
        let pid = beside(&cluster, |cluster| cluster.pid("tablet-1")).await;
        support::signal(pid, "STOP");
        run(&cluster, &["gc", "set", "--retention", "1s"])
            .await
            .ok();
        let what = "the tablet server as what blocks";
        let said = until(what, async || {
            let said = run(&cluster, &["gc", "why-blocked"]).await;
            if said.code() == 7 && said.out.contains("tablet-1") {
                Ok(said.out)
            } else {
                Err(format!("{said:?}"))
            }
        })
        .await;
        assert!(said.contains("does not answer"), "{said}");
        // The row's tablet is on another server.
        let before = collected(&status(&cluster).await);
        let overwritten = [
            put(&client, "ann", "2").await,
            put(&client, "ann", "3").await,
        ];
        until("the older versions to go", async || {
            let now = status(&cluster).await;
            let passed = point(&now, "safe_point") > overwritten[1].as_u64();
            if passed && collected(&now) >= before + 2 {
                Ok(())
            } else {
                Err(now.to_string())
            }
        })
        .await;
        let now = status(&cluster).await;
        assert!(point(&now, "resolved") < overwritten[0].as_u64(), "{now}");
        support::signal(pid, "CONT");
        until("nothing that blocks", async || {
            let said = run(&cluster, &["gc", "why-blocked"]).await;
            match said.code() {
                0 => Ok(()),
                _ => Err(format!("{said:?}")),
            }
        })
        .await;
        until("locks to be resolved", async || {
            let now = status(&cluster).await;
            if point(&now, "resolved") > overwritten[1].as_u64() {
                Ok(())
            } else {
                Err(now.to_string())
            }
        })
        .await;
        run(&cluster, &["gc", "verify"]).await.ok();
        let read = client.begin().await.expect("a transaction");
        assert_eq!(get(&read, "ann").await.expect("read").as_deref(), Some("3"));
    });
}

#[test]
fn a_client_that_has_settled_holds_nothing_of_what_has_ended() {
    on_cluster(|cluster, client| async move {
        let admin = Admin::connect(&cluster.lock().expect("whole").master).expect("an address");
        let floors = async || {
            let status = admin.gc_status().await.expect("a status");
            let floors = status.holders.iter().map(|holder| holder.floor);
            floors.collect::<Vec<_>>()
        };
        // And what it begins after that is held again.
        for _ in 0..2 {
            let txn = client.begin().await.expect("a transaction");
            let start_ts = txn.start_ts();
            until("its gc-lock", async || match &floors().await[..] {
                [floor] if *floor <= start_ts => Ok(()),
                floors => Err(format!("held at {floors:?}")),
            })
            .await;
            drop(txn);
            client.settle().await;
            assert_eq!(floors().await, []);
        }
    });
}

#[test]
fn a_retention_out_of_bounds_is_refused() {
    on_cluster(|cluster, _| async move {
        for time in ["10ms", "20years"] {
            run(&cluster, &["gc", "set", "--retention", time])
                .await
                .refused(2, &["retention", "from 1s to 366 days"]);
        }
        run(&cluster, &["gc", "set"])
            .await
            .refused(2, &["--retention"]);
    });
}

#[test]
fn a_program_that_stands_still_keeps_its_snapshot() {
    on_cluster(|cluster, client| async move {
        put(&client, "ann", "1").await;
        let set = ["gc", "set", "--retention", "2s"];
        run(&cluster, &set).await.ok();
        let held = client.begin().await.expect("a snapshot");
        put(&client, "ann", "2").await;
        // The lease has to be there before nobody on this runtime can renew it any more.
        until("the gc-lock", async || {
            let said = run(&cluster, &["txn", "list", "-o", "json"]).await.ok();
            let start_ts = held.start_ts().to_string();
            if said.contains(&start_ts) {
                Ok(())
            } else {
                Err(said)
            }
        })
        .await;
        // For several leases, with the only thread of this runtime.
        std::thread::sleep(Duration::from_secs(8));
        let value = get(&held, "ann").await.expect("readable");
        assert_eq!(value.as_deref(), Some("1"));
    });
}

#[test]
fn transactions_are_listed_and_ended_and_so_are_their_gc_locks() {
    on_cluster(|cluster, client| async move {
        put(&client, "ann", "1").await;
        let held = client.begin().await.expect("a snapshot");
        let start_ts = held.start_ts().to_string();
        let listed = until("the transaction in the list", async || {
            let said = run(&cluster, &["txn", "list", "-o", "json"]).await.ok();
            let all: Value = serde_json::from_str(&said).expect("JSON");
            let all = all.as_array().expect("transactions").clone();
            let ours = all.into_iter().find(|txn| txn["start_ts"] == start_ts);
            ours.ok_or(said)
        })
        .await;
        assert_eq!(listed["owner"]["process"], std::process::id());
        let lease = listed["lease_ms"].as_u64().expect("a lease");
        assert!((1..=60_000).contains(&lease), "{listed}");
        let said = run(&cluster, &["gc", "release", &start_ts]).await.ok();
        assert!(said.contains("ended: the gc-lock of"), "{said}");
        let said = run(&cluster, &["gc", "release", "1"]).await;
        assert!(
            said.code() == 7 && said.out.contains("nobody is known to hold"),
            "{said:?}"
        );
        let set = ["gc", "set", "--retention", "1s"];
        run(&cluster, &set).await.ok();
        put(&client, "ann", "2").await;
        let error = until("the refusal of what it reads", async || {
            match all(&held).await {
                Err(error) => Ok(error),
                Ok(values) => Err(format!("{values:?}")),
            }
        })
        .await;
        assert!(matches!(error, Error::TooOld(_)), "{error}");
        let said = run(&cluster, &["txn", "abort", "1"]).await;
        assert!(
            said.code() == 7 && said.out.contains("nothing is found"),
            "{said:?}"
        );
        // And what it writes, before anything is locked, when every tablet server refuses it.
        until("the barrier of every tablet server", async || {
            let said = run(&cluster, &["gc", "status", "-o", "json"]).await.ok();
            let status: Value = serde_json::from_str(&said).expect("JSON");
            let servers = status["servers"].as_array().expect("servers").clone();
            let is_past = |server: &Value| {
                let barrier = server["barrier"].as_str().map(str::parse::<u64>);
                matches!(barrier, Some(Ok(barrier)) if barrier > held.start_ts().as_u64())
            };
            if !servers.is_empty() && servers.iter().all(is_past) {
                Ok(())
            } else {
                Err(said)
            }
        })
        .await;
        held.put(TABLE, "joe", "balance", "1").expect("buffered");
        let error = held.commit().await.expect_err("too old");
        assert!(matches!(error, Error::TooOld(_)), "{error}");
    });
}

#[test]
fn a_limit_ends_the_gc_lock_of_a_reader() {
    on_cluster(|cluster, client| async move {
        put(&client, "ann", "1").await;
        let held = client.begin().await.expect("a snapshot");
        let set = ["gc", "set", "--retention", "1s", "--max-hold", "3s"];
        run(&cluster, &set).await.ok();
        put(&client, "ann", "2").await;
        until("the refusal of what it reads", async || {
            match all(&held).await {
                Err(Error::TooOld(_)) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        let now = status(&cluster).await;
        assert_eq!(now["hold_ms_max"], 3_000);
    });
}

#[test]
fn what_is_stored_is_verified() {
    on_cluster(|cluster, client| async move {
        let long = "long".repeat(100);
        for value in ["1", &long, "3"] {
            for row in ["ann", "joe"] {
                put(&client, row, value).await;
            }
        }
        run(&cluster, &["delete", TABLE, "joe"]).await.ok();
        for (at, says) in [
            ("tablet-99/0/", "there is no tablet server tablet-99"),
            ("tablet-0/3/", "there is no part 3"),
        ] {
            let nowhere = run(&cluster, &["gc", "verify", "--resume", at]).await;
            assert!(
                nowhere.code() == 2 && nowhere.err.contains(says),
                "{nowhere:?}"
            );
        }
        let said = run(&cluster, &["gc", "verify", "-o", "json"]).await.ok();
        let found: Value = serde_json::from_str(&said).expect("JSON");
        assert_eq!(found["wrong"], 0, "{said}");
        let sum = |what: &str| -> u64 {
            let tablets = found["tablets"].as_array().expect("tablets");
            tablets.iter().filter_map(|one| one[what].as_u64()).sum()
        };
        assert_eq!(
            (sum("records"), sum("values"), sum("entries")),
            (7, 2, 5),
            "{said}"
        );
    });
}

/// How long the reader below holds its snapshot: 60 s, or as long as this variable says.
const HOLD_SECONDS: &str = "PERCOLATOR_TEST_HOLD_SECONDS";

#[test]
fn a_reader_of_a_bank_is_never_refused_and_never_wrong_however_long_it_takes() {
    const ACCOUNTS: u64 = 20;
    const EACH: u64 = 100;
    on_cluster(|cluster, client| async move {
        let row = |number: u64| format!("account-{number:02}");
        let deposit = |txn: OpenTxn| async move {
            for number in 0..ACCOUNTS {
                txn.put(TABLE, row(number), "balance", EACH.to_string())?;
            }
            Ok(())
        };
        client.transact(deposit).await.expect("deposited");
        let set = ["gc", "set", "--retention", "5s"];
        run(&cluster, &set).await.ok();
        let amount = |value: Option<String>| -> u64 {
            let value = value.expect("an account");
            value.parse().expect("an amount")
        };
        let held = client.begin().await.expect("a snapshot");
        let bank = client.clone();
        let moving = tokio::spawn(async move {
            for number in 0_u64.. {
                let (from, to) = (number % ACCOUNTS, (number * 7 + 3) % ACCOUNTS);
                if from == to {
                    continue;
                }
                let transfer = |txn: OpenTxn| async move {
                    let has = amount(get(&txn, &row(from)).await?);
                    let gets = amount(get(&txn, &row(to)).await?);
                    if has > 0 {
                        txn.put(TABLE, row(from), "balance", (has - 1).to_string())?;
                        txn.put(TABLE, row(to), "balance", (gets + 1).to_string())?;
                    }
                    Ok(())
                };
                bank.transact(transfer).await.expect("transferred");
            }
        });
        let seconds = std::env::var(HOLD_SECONDS).ok();
        let seconds = seconds.map_or(60, |text| text.parse().expect("seconds"));
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(seconds) {
            let seen = all(&held).await.expect("never refused");
            assert_eq!(seen, vec![EACH.to_string(); 20]);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        assert!(!moving.is_finished(), "no transfer was refused");
        moving.abort();
        let _ = moving.await;
        let now = status(&cluster).await;
        let before = collected(&now);
        let old = held.start_ts();
        assert!(point(&now, "safe_point") <= old.as_u64(), "{now}");
        drop(held);
        until("what was held is collected", async || {
            let now = status(&cluster).await;
            if collected(&now) > before && point(&now, "safe_point") > old.as_u64() {
                Ok(())
            } else {
                Err(now.to_string())
            }
        })
        .await;
        let txn = client.begin().await.expect("a snapshot");
        let mut sum = 0;
        for number in 0..ACCOUNTS {
            sum += amount(get(&txn, &row(number)).await.expect("readable"));
        }
        assert_eq!(sum, ACCOUNTS * EACH);
    });
}
