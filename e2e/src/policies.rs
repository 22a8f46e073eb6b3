//! The controller that carries out NetworkPolicies on the nodes of the test's Kubernetes, as the network of a real cluster does.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{nodes, output, print_end, skip};

/// The variable with the program's path, set by `cargo xtask test e2e`.
const PROGRAM: &str = "PERCOLATOR_NETWORK_POLICIES";
/// The same services as `cargo xtask kube` has.
const SERVICES: &str = "--service-cluster-ip-range=10.96.0.0/16";
/// The most time of a cleanup.
const CLEANS_UP_WITHIN: Duration = Duration::from_secs(30);

/// One process for each node. With the value they end, and nobody is kept out any more.
#[derive(Debug)]
pub struct PoliciesCarriedOut {
    processes: Vec<Child>,
    logs: tempfile::TempDir,
}

impl PoliciesCarriedOut {
    /// Starts them. None, and a word about it, where there is no such program.
    pub fn start() -> Option<Self> {
        let Some(program) = std::env::var_os(PROGRAM).map(PathBuf::from) else {
            skip("nothing carries out NetworkPolicies: kube-router is built from its Go module");
            return None;
        };
        let kubeconfig = std::env::var("KUBECONFIG").expect("a configuration");
        let logs = tempfile::tempdir().expect("a folder");
        let processes = nodes::all().map(|node| {
            let log = fs::File::create(logs.path().join(format!("node-{node}"))).expect("a log");
            nodes::inside(node)
                .arg(&program)
                .arg(format!("--kubeconfig={kubeconfig}"))
                .arg(format!("--hostname-override=node-{node}"))
                .arg(SERVICES)
                // Should this program be killed, they end with the Kubernetes.
                .env(nodes::MARK, "1")
                .stdin(Stdio::null())
                .stderr(log)
                .spawn()
                .expect("what carries out NetworkPolicies")
        });
        Some(Self {
            processes: processes.collect(),
            logs,
        })
    }
}

impl Drop for PoliciesCarriedOut {
    fn drop(&mut self) {
        for process in &self.processes {
            let _ = output(Command::new("kill").arg(process.id().to_string()));
        }
        let started = Instant::now();
        for process in &mut self.processes {
            while let Ok(None) = process.try_wait() {
                if started.elapsed() > CLEANS_UP_WITHIN {
                    let _ = process.kill();
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        if std::thread::panicking() {
            for node in nodes::all() {
                let name = format!("node-{node}");
                print_end(&name, &self.logs.path().join(&name));
            }
        }
    }
}
