//! One transaction of a test: what it was to write, how it ended for its client, and whether that is true.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use percolator_client::{Cell, Client, Error, Options, Outcome, Timestamp, Txn};

use crate::cluster::{Cluster, TABLE, cell};
use crate::network::Network;

/// After so long every late message has arrived, and what goes on in the background has ended.
const SETTLED_AFTER: Duration = Duration::from_secs(60);

/// How it ended for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Committed,
    /// Any error by which nothing will be visible.
    Aborted,
    Unknown,
}

/// A cluster, and a client whose messages the test's script has.
pub(crate) struct Bench {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) network: Arc<Network>,
    pub(crate) client: Client,
}

/// What a transaction was to do, and its end.
pub(crate) struct Ended {
    pub(crate) start_ts: Timestamp,
    pub(crate) rows: Vec<&'static str>,
    pub(crate) result: Result<Timestamp, Error>,
}

pub(crate) fn old(row: &str) -> Bytes {
    format!("old-{row}").into()
}

pub(crate) fn new(row: &str) -> Bytes {
    format!("new-{row}").into()
}

pub(crate) fn put_all(txn: &Txn, rows: &[&'static str], value: fn(&str) -> Bytes) {
    for row in rows {
        txn.put(TABLE, row, "c", value(row)).expect("it is kept");
    }
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with(Options::default())
    }

    pub(crate) fn with(options: Options) -> Self {
        let cluster = Cluster::new();
        let network = Network::new(&cluster);
        let client = network.client(options);
        Self {
            cluster,
            network,
            client,
        }
    }

    /// Another client of the same cluster, all of whose messages arrive.
    pub(crate) fn other(&self) -> (Arc<Network>, Client) {
        let network = Network::new(&self.cluster);
        let client = network.client(Options::default());
        (network, client)
    }

    pub(crate) fn run<T>(&self, main: impl Future<Output = T>) -> T {
        self.cluster.world.run(main)
    }

    pub(crate) async fn sleep(&self, time: Duration) {
        self.cluster.world.sleep(time).await;
    }

    /// Writes the old values, by another client.
    pub(crate) fn fill(&self, rows: &[&'static str]) {
        let (_network, client) = self.other();
        self.run(async {
            let txn = client.begin().await.expect("it begins");
            put_all(&txn, rows, old);
            txn.commit().await.expect("it commits");
            client.settle().await;
        });
    }

    /// Lets everything arrive and end, and compares the client's result with what the servers hold.
    pub(crate) fn check(&self, ended: &Ended) -> Class {
        self.network.heal();
        self.run(self.sleep(SETTLED_AFTER));
        let cells: Vec<Cell> = ended.rows.iter().map(|row| cell(row)).collect();
        let values: Vec<_> = cells.iter().map(|cell| self.cluster.value(cell)).collect();
        let news: Vec<_> = ended.rows.iter().map(|row| Some(new(row))).collect();
        let is_committed = values == news;
        if !is_committed {
            let olds: Vec<_> = ended.rows.iter().map(|row| Some(old(row))).collect();
            assert_eq!(values, olds, "the client received {:?}", ended.result);
        }
        let start_ts = ended.start_ts;
        match &ended.result {
            Ok(commit_ts) => {
                assert!(is_committed, "{start_ts} is not committed");
                assert!(*commit_ts > start_ts);
                for (cell, row) in cells.iter().zip(&ended.rows) {
                    let before = Timestamp::from_u64(commit_ts.as_u64() - 1);
                    let at = |snapshot| self.cluster.value_at(cell, snapshot);
                    let seen = (at(before), at(*commit_ts));
                    assert_eq!(seen, (Some(old(row)), Some(new(row))), "{cell}");
                }
                Class::Committed
            }
            Err(Error::Unknown {
                start_ts: named,
                primary,
                ..
            }) => {
                assert_eq!((*named, primary), (start_ts, &cells[0]));
                let sent = self.network.monitor.has_sent_commit(start_ts);
                assert!(sent, "no commit of {start_ts} was sent");
                self.check_outcome(start_ts, primary, is_committed);
                Class::Unknown
            }
            Err(error) => {
                assert!(!is_committed, "{start_ts} is committed: {error}");
                Class::Aborted
            }
        }
    }

    /// Asks what became of an unknown transaction.
    fn check_outcome(&self, start_ts: Timestamp, primary: &Cell, is_committed: bool) {
        let asked = self.run(self.client.outcome(start_ts, primary));
        match asked.expect("every server answers") {
            Outcome::Committed(_) => assert!(is_committed),
            Outcome::RolledBack => assert!(!is_committed),
            other => panic!("{start_ts} is {other:?} after all that time"),
        }
    }
}
