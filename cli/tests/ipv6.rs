//! A cluster that has no address of IPv4: servers, the command and what it prints.

use std::net::TcpListener;
use std::process::Command;

use crate::support::server::{Place, Running, start};
use crate::support::{CommandOutput, percolator, wait_until_ready};

const SERVERS: [&str; 3] = ["master-0", "tso-0", "tablet-0"];

/// Servers on the loopback address of IPv6, each in a process of its own.
struct Servers {
    master: String,
    running: Vec<Running>,
    folder: tempfile::TempDir,
}

impl Servers {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let free = TcpListener::bind("[::1]:0").and_then(|listener| listener.local_addr());
        let master = free.expect("a port").to_string();
        let started = SERVERS.map(|server| {
            let place = Place {
                server,
                listen: if server == "master-0" {
                    &master
                } else {
                    "[::]:0"
                },
                // As a pod knows its address: without a port, and without brackets.
                advertise: Some("::1"),
                master: &master,
                folder: folder.path(),
            };
            Running::new(start(&place, |program| Command::new(program)))
        });
        Self {
            master,
            running: started.into(),
            folder,
        }
    }

    fn run(&self, arguments: &[&str]) -> CommandOutput {
        percolator(&[&["-c", &self.master], arguments].concat())
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for (running, server) in self.running.iter_mut().zip(SERVERS) {
            running.end(self.folder.path(), server);
        }
    }
}

#[test]
fn a_cluster_works_over_ipv6_alone() {
    if TcpListener::bind("[::1]:0").is_err() {
        eprintln!("SKIPPED: this machine has no loopback address of IPv6");
        return;
    }
    let servers = Servers::start();
    wait_until_ready(|arguments| servers.run(arguments));
    servers.run(&["table", "create", "t"]).ok();
    servers.run(&["put", "t", "a", "c", "1"]).ok();
    let got = servers.run(&["get", "t", "a", "c"]).ok();
    assert_eq!(got.trim(), "1");
    let bank = [
        "bank",
        "--accounts",
        "20",
        "--clients",
        "2",
        "--duration",
        "1s",
    ];
    servers.run(&bank).ok();
    // Every server is reached where it said that it is.
    let status = servers.run(&["status"]).ok();
    let addresses = status.matches("[::1]:").count();
    assert!(addresses >= SERVERS.len(), "{status}");
}
