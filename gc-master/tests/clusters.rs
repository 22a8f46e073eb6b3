//! Two clusters, of which one has the address by now that a master of the other one had.

use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::startup::options;
use percolator_client::{Admin, Error, GcChange};
use percolator_gc_master::{Options, Server};
use percolator_server::{Incarnation, heartbeat};
use percolator_wire::v1;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::Status;

use crate::masters::{BOUND, connect};

const PAUSE: Duration = Duration::from_millis(20);

/// A master in this process.
struct Running {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<()>,
}

impl Running {
    /// Returns when it answers.
    async fn start(options: &Options) -> Self {
        let bound = within("a master is bound", async {
            loop {
                // The folder and the port of one that has just ended may not be free yet.
                match Server::bind(options.clone()).await {
                    Ok(server) => return server,
                    Err(error) => eprintln!("not yet: {error}"),
                }
                tokio::time::sleep(PAUSE).await;
            }
        });
        let server = bound.await;
        let address = server.address();
        let (stop, stopped) = oneshot::channel();
        let ended = tokio::spawn(async move {
            let shutdown = async {
                let _ = stopped.await;
            };
            server.run(shutdown).await.expect("it ends as it was asked");
        });
        let mut master = connect(&address.to_string());
        let answers = async {
            while master
                .directory(v1::DirectoryRequest::default())
                .await
                .is_err()
            {
                tokio::time::sleep(PAUSE).await;
            }
        };
        within("the master answers", answers).await;
        Self {
            address,
            stop,
            ended,
        }
    }

    async fn end(self) {
        let _ = self.stop.send(());
        self.ended.await.unwrap();
    }
}

async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(BOUND, work).await;
    done.unwrap_or_else(|_| panic!("{what}: not in time"))
}

/// Heartbeats of a tablet server, and how many of them were answered.
fn beat(master: String) -> (JoinHandle<()>, Arc<AtomicU64>) {
    let options = heartbeat::Options {
        master,
        role: v1::Role::Tablet,
        server: "tablet-0".into(),
        address: "127.0.0.1:1".into(),
        metrics_address: None,
        cluster_id: None,
        process: Incarnation::without_folder(),
    };
    let report = || v1::HeartbeatRequest {
        lists_version: 1,
        ..v1::HeartbeatRequest::default()
    };
    let answered = Arc::new(AtomicU64::new(0));
    let count = answered.clone();
    let beating = tokio::spawn(async move {
        let adopt = |_: &str| Ok::<(), Status>(());
        let learn = |_: &v1::HeartbeatResponse| {
            count.fetch_add(1, Ordering::SeqCst);
        };
        heartbeat::run(options, report, adopt, learn, pending())
            .await
            .expect("its own cluster's master takes the heartbeats");
    });
    (beating, answered)
}

async fn answered_again(answered: &AtomicU64) {
    let before = answered.load(Ordering::SeqCst);
    let more = async {
        while answered.load(Ordering::SeqCst) == before {
            tokio::time::sleep(PAUSE).await;
        }
    };
    within("a heartbeat is answered", more).await;
}

/// As on Kubernetes, where the address of a pod that has ended is given to another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_masters_address_that_another_cluster_has_by_now_is_forgotten() {
    let folders = tempfile::tempdir().unwrap();
    let second = Running::start(&options(&folders.path().join("second"))).await;
    let theirs = Admin::connect(&second.address.to_string()).unwrap();
    let their_retention = || async { theirs.gc_status().await.unwrap().retention };
    let before = their_retention().await;

    let register = format!("file:{}", folders.path().join("register").display());
    let mut of_first = Options {
        // The masters' name for it, from when it had that address.
        advertise: Some(second.address.to_string()),
        register: Some(register.parse().unwrap()),
        ..options(&folders.path().join("first"))
    };
    let first = Running::start(&of_first).await;
    let given = first.address.to_string();
    let admin = Admin::connect(&given).unwrap();
    admin.gc_status().await.unwrap();
    let (beating, answered) = beat(given);
    answered_again(&answered).await;

    (of_first.listen, of_first.new_cluster) = (first.address, false);
    first.end().await;
    let change = GcChange {
        retention: Some(before + Duration::from_secs(3_600)),
        ..GcChange::default()
    };
    let error = admin.set_gc(change).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    // Meanwhile the server asks the second cluster's master, too.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!beating.is_finished());

    let _first = Running::start(&of_first).await;
    let set = admin.set_gc(change).await.unwrap();
    assert_eq!(Some(set.retention), change.retention);
    answered_again(&answered).await;
    assert_eq!(their_retention().await, before);
}
