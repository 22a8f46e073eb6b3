//! What a transaction of many cells asks of servers: small pieces, few at a time, so that others have their turn.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;
use parking_lot::Mutex;
use percolator_client::transport::{BoxFuture, Lost, MasterError, Transport};
use percolator_client::{Client, Error, Options, Timestamp, TraceParent};
use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::request_error::Kind;
use percolator_wire::v1::response::Body;

const SERVERS: [&str; 2] = ["tablet-0", "tablet-1"];
const ROWS: u32 = 4_000;
/// The second server's first row.
const MIDDLE: u32 = ROWS / 2;
/// A server has so many cells in hand at the most: two requests of 512.
const IN_HAND_MAX: usize = 2 * 512;

/// What a server has in hand, and had at the most.
#[derive(Default)]
struct Server {
    cells: usize,
    most_cells: usize,
    requests: usize,
    prewrites: usize,
    prewritten: usize,
    committed: usize,
    /// Requests to resolve locks.
    resolves: usize,
}

/// Servers that say yes to everything, after a while, or that they are busy.
struct Yes {
    takes: Duration,
    busy: bool,
    directories: AtomicU64,
    began: Instant,
    timestamps: AtomicU64,
    servers: Mutex<HashMap<String, Server>>,
}

impl Yes {
    async fn answer(&self, address: &str, request: v1::Request) -> v1::Response {
        let resolves = usize::from(matches!(&request.body, Some(Ask::Resolve(_))));
        let cells = match &request.body {
            Some(Ask::Prewrite(prewrite)) => prewrite.mutations.len(),
            Some(Ask::Commit(commit)) => commit.cells.len(),
            Some(Ask::Rollback(rollback)) => rollback.cells.len(),
            Some(Ask::Resolve(_)) => 0,
            other => panic!("{other:?} is asked of a transaction that writes blindly"),
        };
        {
            let mut servers = self.servers.lock();
            let server = servers.entry(address.to_owned()).or_default();
            server.requests += 1;
            server.prewrites += usize::from(matches!(&request.body, Some(Ask::Prewrite(_))));
            server.cells += cells;
            server.most_cells = server.most_cells.max(server.cells);
            server.resolves += resolves;
        }
        tokio::time::sleep(self.takes).await;
        let mut servers = self.servers.lock();
        let server = servers.entry(address.to_owned()).or_default();
        server.cells -= cells;
        let body = match request.body {
            Some(Ask::Rollback(_)) => Body::Rollback(v1::RollbackResponse::default()),
            _ if self.busy => Body::Error(v1::RequestError {
                kind: Some(Kind::Busy("there is too much to do".into())),
            }),
            Some(Ask::Resolve(_)) => Body::Resolve(v1::ResolveResponse::default()),
            Some(Ask::Prewrite(_)) => {
                server.prewritten += cells;
                Body::Prewrite(v1::PrewriteResponse {
                    min_commit_ts: 1,
                    ..v1::PrewriteResponse::default()
                })
            }
            _ => {
                server.committed += cells;
                Body::Commit(v1::CommitResponse {
                    result: Some(v1::commit_response::Result::Done(v1::Absent {})),
                })
            }
        };
        v1::Response {
            id: request.id,
            body: Some(body),
        }
    }
}

fn none() -> MasterError {
    MasterError::Invalid("nobody asks for that here".into())
}

impl Transport for Yes {
    fn tablet(
        &self,
        address: &str,
        request: v1::Request,
    ) -> BoxFuture<'_, Result<v1::Response, Lost>> {
        let address = address.to_owned();
        async move { Ok(self.answer(&address, request).await) }.boxed()
    }

    fn timestamp(&self, _: Option<TraceParent>) -> BoxFuture<'_, Result<Timestamp, Lost>> {
        let next = 1 + self.timestamps.fetch_add(1, Ordering::Relaxed);
        async move { Ok(Timestamp::from_u64(next)) }.boxed()
    }

    fn session(
        &self,
        _: v1::SessionRequest,
        _: Option<TraceParent>,
    ) -> BoxFuture<'_, Result<v1::SessionResponse, MasterError>> {
        async move {
            Ok(v1::SessionResponse {
                lease_ms: 60_000,
                barrier: 0,
                cluster_id: String::new(),
            })
        }
        .boxed()
    }

    /// One table of two tablets, a server each.
    fn directory(
        &self,
        _: Option<TraceParent>,
    ) -> BoxFuture<'_, Result<v1::DirectoryResponse, MasterError>> {
        async { Err(none()) }.boxed()
    }

    /// The whole table.
    fn locate(
        &self,
        _: v1::LocateRequest,
        _: Option<TraceParent>,
    ) -> BoxFuture<'_, Result<v1::LocateResponse, MasterError>> {
        let middle = Bytes::from(row(MIDDLE));
        let bounds = [(Bytes::new(), middle.clone()), (middle, Bytes::new())];
        let tablets = bounds.into_iter().zip(SERVERS).zip(1..);
        let tablets = tablets.map(|(((start_row, end_row), server), id)| v1::LocatedTablet {
            tablet: Some(v1::TabletInfo {
                id,
                table_id: 1,
                table_name: "t".into(),
                start_row,
                end_row,
                epoch: 1,
                state: v1::TabletState::Serving.into(),
            }),
            server: server.into(),
            address: server.into(),
            incarnation: 0,
        });
        let located = v1::LocateResponse {
            tables: vec![v1::TableInfo {
                id: 1,
                name: "t".into(),
                state: v1::TableState::Ready.into(),
            }],
            tablets: tablets.collect(),
            ..v1::LocateResponse::default()
        };
        self.directories.fetch_add(1, Ordering::Relaxed);
        async move { Ok(located) }.boxed()
    }

    fn create_table(
        &self,
        _: v1::CreateTableRequest,
    ) -> BoxFuture<'_, Result<v1::CreateTableResponse, MasterError>> {
        async { Err(none()) }.boxed()
    }

    fn delete_table(
        &self,
        _: v1::DeleteTableRequest,
    ) -> BoxFuture<'_, Result<v1::DeleteTableResponse, MasterError>> {
        async { Err(none()) }.boxed()
    }

    fn split_table(
        &self,
        _: v1::SplitTableRequest,
    ) -> BoxFuture<'_, Result<v1::SplitTableResponse, MasterError>> {
        async { Err(none()) }.boxed()
    }

    fn merge_table(
        &self,
        _: v1::MergeTableRequest,
    ) -> BoxFuture<'_, Result<v1::MergeTableResponse, MasterError>> {
        async { Err(none()) }.boxed()
    }

    fn move_tablet(
        &self,
        _: v1::MoveTabletRequest,
    ) -> BoxFuture<'_, Result<v1::MoveTabletResponse, MasterError>> {
        async { Err(none()) }.boxed()
    }

    fn drain_servers(
        &self,
        _: v1::DrainServersRequest,
    ) -> BoxFuture<'_, Result<v1::DrainServersResponse, MasterError>> {
        async { Err(none()) }.boxed()
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'_, ()> {
        tokio::time::sleep(duration).boxed()
    }

    fn random(&self) -> u64 {
        0
    }

    fn spawn(&self, future: BoxFuture<'static, ()>) {
        tokio::spawn(future);
    }
}

fn row(number: u32) -> String {
    format!("{number:08}")
}

fn servers(takes: Duration) -> Arc<Yes> {
    servers_that_are(false, takes)
}

fn servers_that_are(busy: bool, takes: Duration) -> Arc<Yes> {
    Arc::new(Yes {
        takes,
        busy,
        directories: AtomicU64::new(0),
        began: Instant::now(),
        timestamps: AtomicU64::new(0),
        servers: Mutex::default(),
    })
}

#[tokio::test]
async fn what_is_left_of_a_call_is_not_sent_when_the_time_is_over() {
    let servers = servers(Duration::from_millis(100));
    let options = Options {
        request_timeout: Duration::from_millis(250),
        // Nothing is renewed on the way.
        lock_ttl: Duration::from_secs(600),
        ..Options::default()
    };
    let client = Client::over(servers.clone(), options);
    let txn = client.begin().await.expect("a timestamp");
    // Sixteen requests for the second server, two at a time.
    for number in MIDDLE..MIDDLE + 16 * 512 {
        txn.put("t", row(number), b"c".as_slice(), b"v".as_slice())
            .expect("it is kept");
    }
    let error = txn.commit().await.expect_err("it takes 800 ms");
    assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
    let sent = servers.servers.lock()[SERVERS[1]].prewrites;
    assert!((2..12).contains(&sent), "{sent} of 16 were sent");
}

#[tokio::test]
async fn no_server_has_more_than_a_few_pieces_of_a_transaction_in_hand() {
    let servers = servers(Duration::from_millis(1));
    let client = Client::over(servers.clone(), Options::default());
    let txn = client.begin().await.expect("a timestamp");
    for number in 0..ROWS {
        txn.put("t", row(number), b"c".as_slice(), b"v".as_slice())
            .expect("it is kept");
    }
    txn.commit().await.expect("it is committed");
    client.settle().await;
    for (address, server) in &*servers.servers.lock() {
        let half = ROWS as usize / 2;
        assert_eq!(
            (server.prewritten, server.committed),
            (half, half),
            "{address}"
        );
        assert!(
            server.most_cells <= IN_HAND_MAX,
            "{address} had {} cells in hand",
            server.most_cells
        );
        // Small, and not one by one.
        assert!(
            (8..=12).contains(&server.requests),
            "{} for {address}",
            server.requests
        );
    }
    assert_eq!(servers.servers.lock().len(), SERVERS.len());
}

#[tokio::test]
async fn a_busy_server_is_not_flooded_by_what_gives_up() {
    const TXNS: u32 = 50;
    let servers = servers_that_are(true, Duration::from_millis(1));
    let options = Options {
        request_timeout: Duration::from_millis(50),
        buffer_bytes: 1,
        lock_ttl: Duration::from_secs(600),
        ..Options::default()
    };
    let client = Client::over(servers.clone(), options);
    let go_on = (0..TXNS).map(|number| {
        let client = client.clone();
        async move {
            let txn = client.begin().await.expect("a timestamp");
            for column in [b"a".as_slice(), b"b"] {
                let put = txn.put("t", row(number), column, b"v".as_slice());
                put.expect("it is kept");
            }
            let error = txn.commit().await.expect_err("nothing can be written");
            assert!(error.to_string().contains("too much to do"), "{error}");
        }
    });
    futures_util::future::join_all(go_on).await;
    // Each has rolled back its primary, and wants to resolve what else it may have left there.
    tokio::time::sleep(Duration::from_secs(1)).await;
    {
        let servers = servers.servers.lock();
        let server = &servers[SERVERS[0]];
        // Each once, and then one after the other, and not all of them again and again.
        let (seen, txns) = (server.resolves, TXNS as usize);
        assert!((txns..3 * txns).contains(&seen), "{seen}");
    }
    // It is known where everything is.
    let directories = servers.directories.load(Ordering::Relaxed);
    assert!(
        directories <= u64::from(TXNS),
        "{directories} for {TXNS} transactions"
    );
}
