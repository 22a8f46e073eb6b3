//! A real etcd, for tests of registers.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use percolator_register::Register as _;
use tonic::transport::Endpoint;

use crate::EtcdRegister;

/// The program; `cargo xtask test` sets where it is.
const VARIABLE: &str = "PERCOLATOR_ETCD";
/// A machine that is busy with other tests may take long to answer.
const LONG_TIMEOUT: Duration = Duration::from_secs(60);

/// An etcd that ends with the value.
#[derive(Debug)]
pub struct Etcd {
    process: Child,
    address: String,
    _folder: tempfile::TempDir,
}

impl Etcd {
    /// Starts one, and waits until it serves. None, and a word about it, where there is no etcd.
    ///
    /// # Panics
    /// It can't be started.
    pub async fn start() -> Option<Self> {
        let addresses = [(); 2].map(|()| {
            let free = TcpListener::bind("127.0.0.1:0").expect("a port");
            free.local_addr().expect("an address").to_string()
        });
        let mut etcd = Self::launch(|program| Command::new(program), addresses)?;
        if etcd.serves().await {
            return Some(etcd);
        }
        // A port that was free is another's by now.
        Box::pin(Self::start()).await
    }

    /// Starts one with `launch`, which makes a command of the program's path, at the usual ports of this host. It may be one that this
    /// process doesn't reach, so this doesn't wait until it serves. Returns none, and logs why, if there is no etcd.
    ///
    /// # Panics
    /// It can't be started.
    pub fn start_at(launch: impl FnOnce(&Path) -> Command, host: &str) -> Option<Self> {
        Self::launch(launch, [2379, 2380].map(|port| format!("{host}:{port}")))
    }

    #[allow(clippy::print_stdout, reason = "the word that xtask listens for")]
    fn launch(
        launch: impl FnOnce(&Path) -> Command,
        [address, peers]: [String; 2],
    ) -> Option<Self> {
        let program = std::env::var_os(VARIABLE).map_or_else(|| "etcd".into(), PathBuf::from);
        let folder = tempfile::tempdir().expect("a folder");
        let process = launch(&program)
            .arg("--data-dir")
            .arg(folder.path())
            .arg(format!("--listen-client-urls=http://{address}"))
            .arg(format!("--advertise-client-urls=http://{address}"))
            .arg(format!("--listen-peer-urls=http://{peers}"))
            .arg(format!("--initial-advertise-peer-urls=http://{peers}"))
            .arg(format!("--initial-cluster=default=http://{peers}"))
            // It would start on every processor, and complain about some.
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
        Some(Self {
            process,
            address,
            _folder: folder,
        })
    }

    /// Waits until it answers, or has ended.
    async fn serves(&mut self) -> bool {
        let member = Endpoint::from_shared(format!("http://{}", self.address));
        let member = member.expect("an address");
        let register = EtcdRegister::new(vec![member], "/probe").with_timeout(LONG_TIMEOUT);
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

    /// Where it serves, HOST:PORT.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.id()
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
