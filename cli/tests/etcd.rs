//! Oracles and masters over registers in a real etcd: leaders are killed, etcd stands still while all servers are up, and
//! transactions go on.

use std::process::Command;

use crate::support::server::{Place, Running, free_addresses, start};
use crate::support::{CommandOutput, block_on, percolator, signal, wait_for, wait_until_ready};
use percolator_register_etcd::testbed::Etcd;
use serde_json::Value;

/// The masters come first.
const SERVERS: [&str; 5] = ["gc-master-0", "gc-master-1", "tso-0", "tso-1", "tablet-0"];

/// Two masters and two oracles over one etcd, and a tablet server.
struct Servers {
    etcd: Etcd,
    folder: tempfile::TempDir,
    /// Each with where it listens.
    running: Vec<(&'static str, String, Running)>,
}

impl Servers {
    fn start(etcd: Etcd) -> Self {
        let addresses = free_addresses::<{ SERVERS.len() }>();
        let all = SERVERS.into_iter().zip(addresses);
        let mut servers = Self {
            etcd,
            folder: tempfile::tempdir().expect("a folder"),
            running: all
                .map(|(server, address)| (server, address.to_string(), Running::default()))
                .collect(),
        };
        for at in 0..servers.running.len() {
            servers.start_one(at);
        }
        servers
    }

    fn masters(&self) -> String {
        let [(_, first, _), (_, second, _), ..] = &self.running[..] else {
            panic!("two masters")
        };
        format!("{first},{second}")
    }

    fn start_one(&mut self, at: usize) {
        let (masters, etcd) = (self.masters(), self.etcd.address().to_owned());
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
    let Some(etcd) = block_on(Etcd::start()) else {
        return;
    };
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
