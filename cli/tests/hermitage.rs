//! The anomalies of Hermitage (Kleppmann, 2014), by name, through the client on a real cluster: what
//! snapshot isolation prevents, and the one that it allows, with the way to prevent that too.

use crate::support::{Cluster, block_on};
use percolator_client::{Bytes, Client, Error, Range, Txn};

/// Runs a test on a cluster with the table `test` holding 1 => 10 and 2 => 20.
fn on_cluster<Fut: Future<Output = Result<(), Error>>>(test: impl FnOnce(Client) -> Fut) {
    let cluster = Cluster::threads();
    block_on(async {
        let client = Client::connect(&cluster.master).await?;
        client.create_table("test", &["2".into()]).await?;
        let txn = client.begin().await?;
        set(&txn, "1", "10")?;
        set(&txn, "2", "20")?;
        txn.commit().await?;
        test(client).await
    })
    .expect("no error but those expected");
}

fn set(txn: &Txn, row: &str, value: &str) -> Result<(), Error> {
    txn.put("test", row, "value", value.to_owned())
}

async fn get(txn: &Txn, row: &str) -> Result<String, Error> {
    let value = txn.get("test", row, "value").await?;
    Ok(text(&value.unwrap_or_default()))
}

async fn all(client: &Client) -> Result<Vec<String>, Error> {
    let txn = client.begin().await?;
    values(&txn).await
}

async fn values(txn: &Txn) -> Result<Vec<String>, Error> {
    let entries = txn.scan("test", Range::all()).await?.collect().await?;
    Ok(entries.iter().map(|entry| text(&entry.value)).collect())
}

fn text(value: &Bytes) -> String {
    String::from_utf8_lossy(value).into_owned()
}

fn assert_conflict(result: Result<percolator_client::Timestamp, Error>) {
    assert!(matches!(result, Err(Error::Conflict(_))), "{result:?}");
}

#[test]
fn g0_write_cycles() {
    on_cluster(|client| async move {
        let (t1, t2) = (client.begin().await?, client.begin().await?);
        set(&t1, "1", "11")?;
        set(&t2, "1", "12")?;
        set(&t1, "2", "21")?;
        t1.commit().await?;
        set(&t2, "2", "22")?;
        assert_conflict(t2.commit().await);
        assert_eq!(all(&client).await?, ["11", "21"]);
        Ok(())
    });
}

#[test]
fn g1a_aborted_reads() {
    on_cluster(|client| async move {
        let (t1, t2) = (client.begin().await?, client.begin().await?);
        set(&t1, "1", "101")?;
        assert_eq!(get(&t2, "1").await?, "10");
        t1.rollback();
        assert_eq!(values(&t2).await?, ["10", "20"]);
        t2.commit().await?;
        assert_eq!(all(&client).await?, ["10", "20"]);
        Ok(())
    });
}

#[test]
fn g1b_intermediate_reads() {
    on_cluster(|client| async move {
        let (t1, t2) = (client.begin().await?, client.begin().await?);
        set(&t1, "1", "101")?;
        assert_eq!(get(&t2, "1").await?, "10");
        set(&t1, "1", "11")?;
        t1.commit().await?;
        assert_eq!(values(&t2).await?, ["10", "20"]);
        assert_eq!(all(&client).await?, ["11", "20"]);
        Ok(())
    });
}

#[test]
fn g1c_circular_information_flow() {
    on_cluster(|client| async move {
        let (t1, t2) = (client.begin().await?, client.begin().await?);
        set(&t1, "1", "11")?;
        set(&t2, "2", "22")?;
        assert_eq!(get(&t1, "2").await?, "20");
        assert_eq!(get(&t2, "1").await?, "10");
        t1.commit().await?;
        t2.commit().await?;
        Ok(())
    });
}

#[test]
fn otv_observed_transaction_vanishes() {
    on_cluster(|client| async move {
        let (t1, t2) = (client.begin().await?, client.begin().await?);
        set(&t1, "1", "11")?;
        set(&t1, "2", "19")?;
        set(&t2, "1", "12")?;
        t1.commit().await?;
        let t3 = client.begin().await?;
        assert_eq!(get(&t3, "1").await?, "11");
        set(&t2, "2", "18")?;
        assert_conflict(t2.commit().await);
        assert_eq!(get(&t3, "2").await?, "19");
        assert_eq!(values(&t3).await?, ["11", "19"]);
        Ok(())
    });
}

#[test]
fn pmp_predicate_many_preceders() {
    on_cluster(|client| async move {
        let (t1, t2) = (client.begin().await?, client.begin().await?);
        assert_eq!(values(&t1).await?.len(), 2);
        set(&t2, "3", "30")?;
        t2.commit().await?;
        assert_eq!(values(&t1).await?.len(), 2, "a phantom");
        Ok(())
    });
}

#[test]
fn pmp_write_predicate_conflicts() {
    on_cluster(|client| async move {
        let (t1, t2) = (client.begin().await?, client.begin().await?);
        for (row, value) in [("1", "20"), ("2", "30")] {
            set(&t1, row, value)?;
        }
        // T2 deletes whatever is 20 in its snapshot: row 2, that T1 has made 30.
        for entry in t2.scan("test", Range::all()).await?.collect().await? {
            if text(&entry.value) == "20" {
                t2.delete("test", &entry.row, &entry.column)?;
            }
        }
        t1.commit().await?;
        assert_conflict(t2.commit().await);
        assert_eq!(all(&client).await?, ["20", "30"]);
        Ok(())
    });
}

#[test]
fn p4_lost_update() {
    on_cluster(|client| async move {
        let (t1, t2) = (client.begin().await?, client.begin().await?);
        assert_eq!(get(&t1, "1").await?, "10");
        assert_eq!(get(&t2, "1").await?, "10");
        set(&t1, "1", "11")?;
        set(&t2, "1", "11")?;
        t1.commit().await?;
        assert_conflict(t2.commit().await);
        Ok(())
    });
}

#[test]
fn g_single_read_skew() {
    on_cluster(|client| async move {
        let (t1, t2) = (client.begin().await?, client.begin().await?);
        assert_eq!(get(&t1, "1").await?, "10");
        assert_eq!(values(&t2).await?, ["10", "20"]);
        set(&t2, "1", "12")?;
        set(&t2, "2", "18")?;
        t2.commit().await?;
        assert_eq!(get(&t1, "2").await?, "20");
        Ok(())
    });
}

#[test]
fn g_single_write_predicate() {
    on_cluster(|client| async move {
        let (t1, t2) = (client.begin().await?, client.begin().await?);
        assert_eq!(get(&t1, "1").await?, "10");
        set(&t2, "1", "12")?;
        set(&t2, "2", "18")?;
        t2.commit().await?;
        // T1 deletes what is 20 in its snapshot, which isn't 20 any more.
        t1.delete("test", "2", "value")?;
        assert_conflict(t1.commit().await);
        Ok(())
    });
}

#[test]
fn g2_item_write_skew_is_allowed_by_snapshot_isolation() {
    on_cluster(|client| async move {
        let (t1, t2) = (client.begin().await?, client.begin().await?);
        assert_eq!(values(&t1).await?, ["10", "20"]);
        assert_eq!(values(&t2).await?, ["10", "20"]);
        set(&t1, "1", "11")?;
        set(&t2, "2", "21")?;
        t1.commit().await?;
        t2.commit().await?;
        Ok(())
    });
}

#[test]
fn g2_item_write_skew_is_prevented_by_get_for_update() {
    on_cluster(|client| async move {
        let (t1, t2) = (client.begin().await?, client.begin().await?);
        t1.get_for_update("test", "2", "value").await?;
        t2.get_for_update("test", "1", "value").await?;
        set(&t1, "1", "11")?;
        set(&t2, "2", "21")?;
        t1.commit().await?;
        assert_conflict(t2.commit().await);
        Ok(())
    });
}

/// The parent that a child was given is not deleted by an older transaction.
#[test]
fn an_older_transaction_conflicts_with_a_committed_get_for_update() {
    on_cluster(|client| async move {
        let older = client.begin().await?;
        let younger = client.begin().await?;
        let parent = younger.get_for_update("test", "1", "value").await?;
        assert!(parent.is_some());
        younger.put("test", "child", "parent", "1")?;
        younger.commit().await?;
        older.get_for_update("test", "1", "value").await?;
        older.delete("test", "1", "value")?;
        assert_conflict(older.commit().await);
        Ok(())
    });
}

#[test]
fn g2_anti_dependency_cycles_over_predicates_are_allowed() {
    on_cluster(|client| async move {
        let (t1, t2) = (client.begin().await?, client.begin().await?);
        assert_eq!(values(&t1).await?.len(), 2);
        assert_eq!(values(&t2).await?.len(), 2);
        set(&t1, "3", "30")?;
        set(&t2, "4", "42")?;
        t1.commit().await?;
        t2.commit().await?;
        assert_eq!(all(&client).await?, ["10", "20", "30", "42"]);
        Ok(())
    });
}

/// A start_ts is the name of its writer: two of one name would take each other's locks and
/// answers for their own.
#[test]
fn a_chosen_snapshot_only_reads() {
    on_cluster(|client| async move {
        let other = client.begin().await?;
        set(&other, "1", "11")?;
        let past = client.begin_at(other.start_ts()).await?;
        for refused in [
            set(&past, "1", "12"),
            past.delete("test", "1", "value"),
            past.get_for_update("test", "1", "value").await.map(drop),
        ] {
            assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
        }
        assert_eq!(get(&past, "1").await?, "10");
        other.commit().await?;
        assert_eq!(all(&client).await?, ["11", "20"]);
        Ok(())
    });
}

/// What a commit has written when its caller goes away is done or undone as a whole, and in nobody's way.
#[test]
fn a_commit_that_is_dropped_leaves_no_lock() {
    on_cluster(|client| async move {
        let mut committed = 0;
        for number in 0..100_u64 {
            let dropped = client.begin().await?;
            let value = format!("dropped {number}");
            set(&dropped, "1", &value)?;
            set(&dropped, "2", &value)?;
            // At another moment of it each time.
            let moment = std::time::Duration::from_micros(number * 40);
            let _ = tokio::time::timeout(moment, dropped.commit()).await;
            client.settle().await;
            let seen = all(&client).await?;
            assert_eq!(seen[0] == value, seen[1] == value, "half of it: {seen:?}");
            committed += usize::from(seen[0] == value);
            // It is younger: a lock of the other's would end it.
            let next = client.begin().await?;
            set(&next, "1", "next")?;
            set(&next, "2", "next")?;
            next.commit().await?;
        }
        assert!(committed < 100, "none was dropped before its end");
        Ok(())
    });
}
