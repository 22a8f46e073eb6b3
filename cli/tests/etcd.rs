//! Oracles and masters over registers in a real etcd: leaders are killed, etcd stands still while all servers are up, and
//! transactions go on.

use std::process::Command;

use crate::support::server::{Place, Running, free_addresses, leaders, start};
use crate::support::sessions::shown;
use crate::support::{CommandOutput, block_on, percolator, signal, wait_for, wait_until_ready};
use percolator_register_etcd::testbed::Etcd;

/// The masters come first.
const SERVERS: [&str; 5] = ["master-0", "master-1", "tso-0", "tso-1", "tablet-0"];

/// Two masters and two oracles over one etcd, and a tablet server.
struct Servers {
    etcd: Etcd,
    folder: tempfile::TempDir,
    running: Vec<Server>,
}

struct Server {
    name: &'static str,
    listen: String,
    metrics: String,
    running: Running,
}

impl Servers {
    fn start(etcd: Etcd) -> Self {
        let addresses = free_addresses::<{ 2 * SERVERS.len() }>();
        let (listen, metrics) = addresses.split_at(SERVERS.len());
        let all = SERVERS.into_iter().zip(listen.iter().zip(metrics));
        let running = all.map(|(name, (listen, metrics))| Server {
            name,
            listen: listen.to_string(),
            metrics: metrics.to_string(),
            running: Running::default(),
        });
        let mut servers = Self {
            etcd,
            folder: tempfile::tempdir().expect("a folder"),
            running: running.collect(),
        };
        for at in 0..servers.running.len() {
            servers.start_one(at);
        }
        servers
    }

    fn masters(&self) -> String {
        let [first, second, ..] = &self.running[..] else {
            panic!("two masters")
        };
        format!("{},{}", first.listen, second.listen)
    }

    fn start_one(&mut self, at: usize) {
        let (masters, etcd) = (self.masters(), self.etcd.address().to_owned());
        let server = &mut self.running[at];
        let place = Place {
            server: server.name,
            listen: &server.listen,
            advertise: None,
            master: &masters,
            folder: self.folder.path(),
        };
        let child = start(&place, |program| {
            let mut command = Command::new(program);
            command.args(["--metrics-listen", &server.metrics]);
            if let Some((role @ ("master" | "tso"), _)) = server.name.rsplit_once('-') {
                command.args(["--register", &format!("etcd:{etcd}/percolator/{role}")]);
            }
            command
        });
        server.running = Running::new(child);
    }

    fn run(&self, arguments: &[&str]) -> CommandOutput {
        percolator(&[&["-c", &self.masters()], arguments].concat())
    }

    /// The master and the oracle that lead, once they do and all others are up.
    fn leaders(&self) -> [String; 2] {
        leaders(self.running.len(), |arguments| self.run(arguments))
    }

    /// Waits until those that lead could go on without etcd: all that could take over promise not to.
    fn wait_for_promises(&self) {
        let metrics = ["percolator_master_promised", "percolator_tso_promised"];
        for (leader, metric) in self.leaders().iter().zip(metrics) {
            let leader = self.running.iter().find(|server| server.name == leader);
            let leader = leader.expect("one of them");
            wait_for(metric, || {
                let shown = block_on(shown(&leader.metrics, metric))?;
                (shown > 0.0).then_some(())
            });
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for server in &mut self.running {
            server.running.end(self.folder.path(), server.name);
        }
    }
}

#[test]
fn leaders_over_etcd_are_replaced_and_go_on_without_it() {
    let Some(etcd) = block_on(Etcd::start()) else {
        return;
    };
    let mut servers = Servers::start(etcd);
    wait_until_ready(|arguments| servers.run(arguments));
    servers.run(&["table", "create", "t"]).ok();
    for (round, killed) in ["master", "tso"].into_iter().enumerate() {
        let before = servers.leaders();
        let at = servers.running.iter().position(|server| {
            server.name.starts_with(killed) && before.iter().any(|leader| leader == server.name)
        });
        let at = at.expect("it leads");
        servers.running[at].running.kill();
        let value = round.to_string();
        servers.run(&["put", "t", "row", "c", &value]).ok();
        // Only a master makes it.
        servers.run(&["table", "create", &format!("t{round}")]).ok();
        servers.start_one(at);
        let after = servers.leaders();
        assert_ne!(after, before, "nobody has taken over from the {killed}");
    }

    // Both promise each other not to take over, and keep what they store.
    servers.wait_for_promises();
    let etcd = servers.etcd.pid();
    signal(etcd, "STOP");
    let bank = ["bank", "--accounts", "20", "--clients", "2"];
    let said = servers.run(&[&bank[..], &["--duration", "8s"]].concat());
    let said = said.ok();
    servers.run(&["table", "create", "meanwhile"]).ok();
    signal(etcd, "CONT");
    assert!(said.contains("no money was lost or made"), "{said}");
    servers.leaders();
    let got = servers.run(&["get", "t", "row", "c"]).ok();
    assert_eq!(got.trim(), "1");
}
