//! The Prometheus Adapter beside the cluster, which answers autoscalers with what Prometheus knows: the API server asks it in
//! their name.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::prometheus::Prometheus;
use crate::{Namespace, kubectl, print_end, skip, wait};

/// The variable with the program's path, set by `cargo xtask test e2e`.
const PROGRAM: &str = "PERCOLATOR_PROMETHEUS_ADAPTER";
/// The API that the adapter serves.
const API: &str = "v1beta1.external.metrics.k8s.io";

/// A running adapter; it ends with the value, and nobody asks it any more.
#[derive(Debug)]
pub struct Adapter {
    process: Child,
    folder: tempfile::TempDir,
}

impl Adapter {
    /// Starts one with this configuration, and waits until the API server has its answers. None, and a word about it, where there is no
    /// such program.
    pub fn start(configuration: &str, prometheus: &Prometheus, space: &Namespace) -> Option<Self> {
        let Some(program) = std::env::var_os(PROGRAM).map(PathBuf::from) else {
            skip("there is no Prometheus Adapter, which is built from its Go module");
            return None;
        };
        let kubeconfig = std::env::var("KUBECONFIG").expect("a configuration");
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("rules.yaml");
        fs::write(&file, configuration).expect("a configuration");
        let log = fs::File::create(folder.path().join("log")).expect("a log");
        // Nobody else takes it within the moment, as a rule; who does makes this fail, and says so.
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = free.expect("a free port").port();
        let kubeconfigs = ["lister", "authentication", "authorization"];
        let process = Command::new(program)
            .arg(format!("--config={}", file.display()))
            .arg(format!("--prometheus-url={}", prometheus.url()))
            .args(["--metrics-relist-interval=2s", "--metrics-max-age=30s"])
            .arg("--bind-address=127.0.0.1")
            .arg(format!("--secure-port={port}"))
            .arg(format!("--cert-dir={}", folder.path().display()))
            .args(kubeconfigs.map(|it| format!("--{it}-kubeconfig={kubeconfig}")))
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the adapter");
        let mut started = Self { process, folder };
        let namespace = space.name();
        let manifest = format!(
            "
apiVersion: v1
kind: Service
metadata: {{name: metrics}}
spec: {{type: ExternalName, externalName: localhost, ports: [{{port: {port}}}]}}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {{name: {API}}}
spec:
  service: {{name: metrics, namespace: {namespace}, port: {port}}}
  group: external.metrics.k8s.io
  version: v1beta1
  insecureSkipTLSVerify: true
  groupPriorityMinimum: 100
  versionPriority: 100
"
        );
        space.apply(&manifest).expect("an API");
        wait("the adapter", || {
            let ended = started.process.try_wait().expect("a process");
            assert_eq!(ended, None, "the adapter ended");
            kubectl(&["get", "--raw", "/apis/external.metrics.k8s.io/v1beta1"])
        });
        Some(started)
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        // With an API that nobody answers for, no namespace can be removed.
        let _ = kubectl(&["delete", "--ignore-not-found", "apiservice", API]);
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            print_end("adapter", &self.folder.path().join("log"));
        }
    }
}
