//! What applications lean on of the client library, against a real cluster.

use std::time::Duration;

use crate::support::{Cluster, block_on};
use futures_util::TryStreamExt as _;
use percolator_client::{Client, Error, Options, Range, blocking, tuple};

#[derive(Debug)]
enum TransferError {
    TooLittle(u32),
    Database(Error),
}

impl From<Error> for TransferError {
    fn from(error: Error) -> Self {
        Self::Database(error)
    }
}

fn number(value: Option<percolator_client::Bytes>) -> u32 {
    value.map_or(0, |value| {
        let text = String::from_utf8(value.to_vec()).expect("text");
        text.parse().expect("a number")
    })
}

async fn taken(client: &Client, amount: u32) -> Result<u32, TransferError> {
    let mut runs = 0;
    client
        .try_transact(|txn| {
            runs += 1;
            async move {
                let has = number(txn.get("t", "bob", "balance").await?);
                if has < amount {
                    return Err(TransferError::TooLittle(has));
                }
                if runs == 1 {
                    // Another one is first, so that this one's commit conflicts.
                    let other = client.begin().await?;
                    other.put("t", "bob", "balance", (has - 1).to_string())?;
                    other.commit().await?;
                }
                let left = has - amount;
                txn.put("t", "bob", "balance", left.to_string())?;
                Ok(left)
            }
        })
        .await
}

#[test]
fn a_closure_has_errors_of_the_application_s_own() {
    let cluster = Cluster::threads();
    cluster.run(&["table", "create", "t"]).ok();
    cluster.run(&["put", "t", "bob", "balance", "10"]).ok();
    block_on(async {
        let client = Client::connect(&cluster.master).await.expect("connected");
        let left = taken(&client, 4).await.expect("begun again, and committed");
        assert_eq!(left, 5);
        let refused = taken(&client, 6).await;
        assert!(
            matches!(refused, Err(TransferError::TooLittle(5))),
            "{refused:?}"
        );
        cluster.run(&["table", "create", "gone"]).ok();
        let unknown = client
            .try_transact(|txn| async move {
                txn.get("nowhere", "a", "c").await?;
                Ok::<_, TransferError>(())
            })
            .await;
        assert!(
            matches!(
                &unknown,
                Err(TransferError::Database(Error::UnknownTable { .. }))
            ),
            "{unknown:?}"
        );
    });
}

/// What the closure makes of an error doesn't hide that the transaction is to be begun again.
#[test]
fn a_transaction_that_was_rolled_back_is_begun_again_whatever_its_closure_says() {
    let cluster = Cluster::threads();
    cluster.run(&["table", "create", "t"]).ok();
    block_on(async {
        let client = Client::connect(&cluster.master).await.expect("connected");
        // Its locks are flushed, and can be met.
        let client = client.with_options(Options {
            buffer_bytes: 1,
            ..*client.options()
        });
        let mut runs = 0;
        let done = client
            .try_transact(|txn| {
                runs += 1;
                let cluster = &cluster;
                async move {
                    txn.put("t", "a", "c", "1")?;
                    txn.ready().await?;
                    let start_ts = txn.start_ts().to_string();
                    // The flush goes on between two tries, on this thread.
                    while runs == 1 && cluster.run(&["txn", "abort", &start_ts]).code() != 0 {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    txn.get("t", "a", "c")
                        .await
                        .map_err(|_| TransferError::TooLittle(runs))?;
                    Ok::<_, TransferError>(runs)
                }
            })
            .await;
        assert!(matches!(done, Ok(2)), "{done:?}");
    });
}

#[test]
fn a_scan_is_a_stream_and_keys_are_in_the_order_of_what_they_hold() {
    let cluster = Cluster::threads();
    cluster.run(&["table", "create", "t"]).ok();
    let ages = [-7_i64, -1, 0, 3, 255, 256, 70_000];
    block_on(async {
        let client = Client::connect(&cluster.master).await.expect("connected");
        let client = client.with_options(Options {
            request_timeout: Duration::from_secs(20),
            ..*client.options()
        });
        let txn = client.begin().await.expect("begun");
        for age in ages.iter().rev() {
            let row = tuple::pack(&("user", age));
            txn.put("t", row, "age", age.to_string()).expect("put");
        }
        // Its own writes are among what it scans.
        let prefix = tuple::pack(&("user",));
        let scan = txn.scan("t", Range::prefix(prefix)).await.expect("a scan");
        let rows: Vec<_> = scan.into_stream().try_collect().await.expect("read");
        let read = rows.iter().map(|entry| {
            let (user, age): (String, i64) = tuple::unpack(&entry.row).expect("a row's key");
            assert_eq!(user, "user");
            age
        });
        assert_eq!(read.collect::<Vec<_>>(), ages);
        txn.commit().await.expect("committed");
    });
}

#[test]
fn an_application_without_a_runtime_has_transactions_too() {
    let cluster = Cluster::threads();
    let client = blocking::Client::connect(&cluster.master).expect("connected");
    client.create_table("t", &[]).expect("made");
    let threads = (0..4).map(|_| {
        let client = client.clone();
        std::thread::spawn(move || {
            for _ in 0..5 {
                client
                    .transact(|txn| {
                        let count = number(txn.get("t", "row", "count")?);
                        txn.put("t", "row", "count", (count + 1).to_string())
                    })
                    .expect("committed");
            }
        })
    });
    let threads: Vec<_> = threads.collect();
    for thread in threads {
        thread.join().expect("it ends");
    }
    let txn = client.begin().expect("begun");
    let cells: Result<Vec<_>, Error> = txn.scan("t", Range::all()).expect("a scan").collect();
    let cells = cells.expect("read");
    assert_eq!(cells.len(), 1);
    assert_eq!(&*cells[0].value, b"20");
    txn.put("t", "row", "count", "0").expect("put");
    txn.rollback();
    let refused: Result<(), TransferError> = client.transact(|txn| {
        txn.put("t", "row", "count", "0")?;
        Err(TransferError::TooLittle(1))
    });
    assert!(matches!(refused, Err(TransferError::TooLittle(1))));
    let txn = client.begin().expect("begun");
    let value = txn.get("t", "row", "count").expect("read");
    assert_eq!(number(value), 20);
    // On a runtime's thread it would stop all that the runtime does.
    let misused = block_on(async { client.begin().map(drop) });
    assert!(matches!(misused, Err(Error::Invalid(_))), "{misused:?}");
    client.settle().expect("settled");
}

async fn commits_a_clone(txn: &percolator_client::Txn) -> Result<(), Error> {
    txn.put("t", "a", "c", "1")?;
    txn.clone().commit().await.map(drop)
}

#[test]
fn a_closure_can_t_commit_by_a_clone() {
    let cluster = Cluster::threads();
    cluster.run(&["table", "create", "t"]).ok();
    block_on(async {
        let client = Client::connect(&cluster.master).await.expect("connected");
        let done = client
            .transact(|txn| async move { commits_a_clone(&txn).await })
            .await;
        assert!(matches!(done, Err(Error::Invalid(_))), "{done:?}");
        let txn = client.begin().await.expect("begun");
        assert_eq!(txn.get("t", "a", "c").await.expect("read"), None);
    });
}
