//! The register in etcd passes the suite, on a real etcd.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use percolator_register::conformance::{self, Bed, FaultyProxy, FaultyRegister};
use percolator_register::{BoxFuture, LoadError, Register, SwapError};
use percolator_register_etcd::EtcdRegister;
use tonic::transport::Endpoint;

/// The program; `cargo xtask test` says where it is.
const VARIABLE: &str = "PERCOLATOR_ETCD";
/// A machine that is busy with other tests may take long to answer.
const PATIENT: Duration = Duration::from_secs(60);
/// For answers that never come.
const IMPATIENT: Duration = Duration::from_secs(3);

/// An etcd that ends with the value.
struct Etcd {
    process: Child,
    address: String,
    _folder: tempfile::TempDir,
}

impl Etcd {
    /// None, and a word about it, where there is no etcd.
    #[allow(clippy::print_stdout, reason = "the word that xtask listens for")]
    async fn start() -> Option<Self> {
        let program = std::env::var_os(VARIABLE).map_or_else(|| "etcd".into(), PathBuf::from);
        let folder = tempfile::tempdir().expect("a folder");
        let [address, peers] = [(); 2].map(|()| {
            let free = TcpListener::bind("127.0.0.1:0").expect("a port");
            free.local_addr().expect("an address").to_string()
        });
        let process = Command::new(&program)
            .arg("--data-dir")
            .arg(folder.path())
            .arg(format!("--listen-client-urls=http://{address}"))
            .arg(format!("--advertise-client-urls=http://{address}"))
            .arg(format!("--listen-peer-urls=http://{peers}"))
            .arg(format!("--initial-advertise-peer-urls=http://{peers}"))
            .arg(format!("--initial-cluster=default=http://{peers}"))
            // It starts on every processor, and says so of some.
            .env("ETCD_UNSUPPORTED_ARCH", architecture())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let process = match process {
            Ok(process) => process,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                println!("SKIPPED: there is no etcd: install Debian's etcd-server");
                return None;
            }
            Err(error) => panic!("{}: {error}", program.display()),
        };
        let mut etcd = Self {
            process,
            address,
            _folder: folder,
        };
        if etcd.serves().await {
            return Some(etcd);
        }
        // A port that was free is another's by now.
        Box::pin(Self::start()).await
    }

    /// Waits until it answers, or has ended.
    async fn serves(&mut self) -> bool {
        let register = self.register("/probe", PATIENT);
        loop {
            if register.load().await.is_ok() {
                return true;
            }
            if self.process.try_wait().expect("a process").is_some() {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn register(&self, key: &str, timeout: Duration) -> EtcdRegister {
        EtcdRegister::new(vec![endpoint(&self.address)], key).with_timeout(timeout)
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// As Go calls it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "arm64",
        other => other,
    }
}

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
            let register = self.etcd.register(&self.key, PATIENT);
            Arc::new(register) as Arc<dyn Register>
        })
    }

    fn open_faulty(&self) -> BoxFuture<'_, FaultyRegister> {
        Box::pin(async {
            let proxy = FaultyProxy::start(self.etcd.address.clone()).await;
            let member = endpoint(&proxy.address.to_string());
            let register = EtcdRegister::new(vec![member], &*self.key).with_timeout(IMPATIENT);
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
        etcd.address.clone(),
    ];
    let members = addresses.iter().map(|address| endpoint(address)).collect();
    let register = EtcdRegister::new(members, "/passed-over").with_timeout(IMPATIENT);
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
