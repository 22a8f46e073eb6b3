//! Oracles and masters over registers in a real etcd: leaders are killed, etcd stands still while all servers are up, and
//! transactions go on.

mod support;

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use support::server::{Place, Running, start};
use support::{CommandOutput, percolator, signal, wait_for, wait_until_ready};

const MASTERS: [&str; 2] = ["gc-master-0", "gc-master-1"];
const ORACLES: [&str; 2] = ["tso-0", "tso-1"];

fn free_address() -> String {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    free.expect("a free port").to_string()
}

/// An etcd, which ends with the value.
struct Etcd {
    process: Child,
    address: String,
    _folder: tempfile::TempDir,
}

impl Etcd {
    /// None, and a word about it, where there is no etcd.
    fn start() -> Option<Self> {
        let program =
            std::env::var_os("PERCOLATOR_ETCD").map_or_else(|| "etcd".into(), PathBuf::from);
        let folder = tempfile::tempdir().expect("a folder");
        let [address, peers] = [(); 2].map(|()| free_address());
        let started = Command::new(&program)
            .arg("--data-dir")
            .arg(folder.path())
            .arg(format!("--listen-client-urls=http://{address}"))
            .arg(format!("--advertise-client-urls=http://{address}"))
            .arg(format!("--listen-peer-urls=http://{peers}"))
            .arg(format!("--initial-advertise-peer-urls=http://{peers}"))
            .arg(format!("--initial-cluster=default=http://{peers}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let process = match started {
            Ok(process) => process,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                eprintln!("SKIPPED: there is no etcd: install Debian's etcd-server");
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
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Two masters and two oracles over one etcd, and a tablet server.
struct Servers {
    etcd: Etcd,
    folder: tempfile::TempDir,
    /// Each with where it listens.
    running: Vec<(&'static str, String, Running)>,
}

impl Servers {
    fn start(etcd: Etcd) -> Self {
        let all = MASTERS.into_iter().chain(ORACLES).chain(["tablet-0"]);
        let mut servers = Self {
            etcd,
            folder: tempfile::tempdir().expect("a folder"),
            running: all
                .map(|it| (it, free_address(), Running::default()))
                .collect(),
        };
        for at in 0..servers.running.len() {
            servers.start_one(at);
        }
        servers
    }

    fn masters(&self) -> String {
        let masters = self.running.iter().take(MASTERS.len());
        let addresses: Vec<&str> = masters.map(|(_, address, _)| &**address).collect();
        addresses.join(",")
    }

    fn start_one(&mut self, at: usize) {
        let (masters, etcd) = (self.masters(), self.etcd.address.clone());
        let (server, address, running) = &mut self.running[at];
        let place = Place {
            server,
            listen: address,
            advertise: None,
            master: &masters,
            folder: self.folder.path(),
        };
        let child = start(&place, |program| {
            let mut command = Command::new(program);
            if let Some((role @ ("gc-master" | "tso"), _)) = server.rsplit_once('-') {
                command.args(["--register", &format!("etcd:{etcd}/percolator/{role}")]);
            }
            command
        });
        *running = Running::new(child);
    }

    fn run(&self, arguments: &[&str]) -> CommandOutput {
        percolator(&[&["-c", &self.masters()], arguments].concat())
    }

    /// The master and the oracle that lead, once they do and all others are up.
    fn leaders(&self) -> [String; 2] {
        wait_for("leaders, and all other servers", || {
            let said = self.run(&["status", "-o", "json"]);
            let status: Value = serde_json::from_str(&said.out).ok()?;
            let servers = status["servers"].as_array()?;
            let up = servers.iter().filter(|server| server["up"] == true).count();
            // The leading master has no line.
            if up + 1 < self.running.len() {
                return None;
            }
            let oracle = servers.iter().find(|it| it["leads_term"].is_u64())?;
            let names = [&status["master_name"], &oracle["server"]];
            let [master, oracle] = names.map(|name| name.as_str().map(str::to_owned));
            Some([master?, oracle?])
        })
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for (server, _, running) in &mut self.running {
            running.end(self.folder.path(), server);
        }
    }
}

#[test]
fn leaders_over_etcd_are_replaced_and_go_on_without_it() {
    let Some(etcd) = Etcd::start() else { return };
    let mut servers = Servers::start(etcd);
    wait_until_ready(|arguments| servers.run(arguments));
    servers.run(&["table", "create", "t"]).ok();
    for (round, killed) in ["gc-master", "tso"].into_iter().enumerate() {
        let before = servers.leaders();
        let at = servers.running.iter().position(|(server, _, _)| {
            server.starts_with(killed) && before.iter().any(|leader| leader == server)
        });
        let at = at.expect("it leads");
        servers.running[at].2.kill();
        let value = round.to_string();
        servers.run(&["put", "t", "row", "c", &value]).ok();
        // Only a master makes it.
        servers.run(&["table", "create", &format!("t{round}")]).ok();
        servers.start_one(at);
        let after = servers.leaders();
        assert_ne!(after, before, "nobody has taken over from the {killed}");
    }

    // Both promise each other not to take over, and keep what they store.
    let etcd = servers.etcd.process.id();
    signal(etcd, "STOP");
    let bank = [
        "bank",
        "--accounts",
        "20",
        "--clients",
        "2",
        "--duration",
        "8s",
    ];
    let said = servers.run(&bank).ok();
    servers.run(&["table", "create", "meanwhile"]).ok();
    signal(etcd, "CONT");
    assert!(said.contains("no money was lost or made"), "{said}");
    std::thread::sleep(Duration::from_secs(1));
    servers.leaders();
    let got = servers.run(&["get", "t", "row", "c"]).ok();
    assert_eq!(got.trim(), "1");
}
