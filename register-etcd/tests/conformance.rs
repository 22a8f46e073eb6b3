//! The register in etcd passes the suite, on a real etcd.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use percolator_register::conformance::{self, Bed, FaultyProxy, FaultyRegister};
use percolator_register::{BoxFuture, LoadError, Register, SwapError};
use percolator_register_etcd::EtcdRegister;
use percolator_register_etcd::testbed::Etcd;
use tonic::transport::Endpoint;

/// A machine that is busy with other tests may take long to answer.
const LONG_TIMEOUT: Duration = Duration::from_secs(60);
/// For answers that never come.
const SHORT_TIMEOUT: Duration = Duration::from_secs(3);

fn endpoint(address: &str) -> Endpoint {
    Endpoint::from_shared(format!("http://{address}")).expect("an address")
}

struct EtcdBed<'a> {
    etcd: &'a Etcd,
    key: String,
}

impl Bed for EtcdBed<'_> {
    fn open(&self) -> BoxFuture<'_, Arc<dyn Register>> {
        Box::pin(async {
            let member = endpoint(self.etcd.address());
            let register = EtcdRegister::new(vec![member], &*self.key).with_timeout(LONG_TIMEOUT);
            Arc::new(register) as Arc<dyn Register>
        })
    }

    fn open_faulty(&self) -> BoxFuture<'_, FaultyRegister> {
        Box::pin(async {
            let proxy = FaultyProxy::start(self.etcd.address().to_owned()).await;
            let member = endpoint(&proxy.address.to_string());
            let register = EtcdRegister::new(vec![member], &*self.key).with_timeout(SHORT_TIMEOUT);
            FaultyRegister {
                register: Arc::new(register),
                fault: proxy.fault,
            }
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_register_in_etcd() {
    let Some(etcd) = Etcd::start().await else {
        return;
    };
    conformance::run(async |case| EtcdBed {
        etcd: &etcd,
        key: format!("/registers/{case}"),
    })
    .await;
}

#[tokio::test]
async fn a_member_that_does_not_answer_is_passed_over() {
    let Some(etcd) = Etcd::start().await else {
        return;
    };
    // It takes connections, and never says anything; no process listens at the other.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let gone = TcpListener::bind("127.0.0.1:0").expect("a port");
    let closed = gone.local_addr().expect("an address");
    drop(gone);
    let addresses = [
        silent.local_addr().expect("an address").to_string(),
        closed.to_string(),
        etcd.address().to_owned(),
    ];
    let members = addresses.iter().map(|address| endpoint(address)).collect();
    let register = EtcdRegister::new(members, "/passed-over").with_timeout(SHORT_TIMEOUT);
    let silent = register.swap(None, b"one".to_vec()).await.unwrap_err();
    assert!(matches!(silent, SwapError::Unknown { .. }), "{silent}");
    let refused = register.swap(None, b"one".to_vec()).await.unwrap_err();
    assert!(
        matches!(refused, SwapError::Unavailable { .. }),
        "{refused}"
    );
    let version = register.swap(None, b"one".to_vec()).await.expect("a swap");
    let found = register.load().await.expect("a load").expect("a value");
    assert_eq!(found.version, version);
}

#[tokio::test]
async fn without_a_member_nothing_is_sent() {
    let register = EtcdRegister::new(Vec::new(), "/no-member");
    let error = register.load().await.unwrap_err();
    assert!(matches!(error, LoadError::Refused { .. }), "{error}");
    let error = register.swap(None, Vec::new()).await.unwrap_err();
    assert!(matches!(error, SwapError::Refused { .. }), "{error}");
}
