//! How the operator ends: SIGTERM is enough, also while an API server owes an answer, and the lease is handed back.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// More than enough on a busy machine, and no time that the operator is to take.
const WITHIN: Duration = Duration::from_secs(120);
const CLUSTERS: &str = "/apis/percolator.dev/v1alpha1/percolatorclusters";
const CLUSTER: &str = "/apis/percolator.dev/v1alpha1/namespaces/n/percolatorclusters/demo";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/n/leases";

/// Killed when it is dropped.
struct Operator(Child);

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the API server keeps.
#[derive(Clone)]
struct ApiServer {
    lease: Arc<Mutex<Option<Value>>>,
    /// Receives an item for each request for the cluster, which gets no response.
    asked: mpsc::Sender<()>,
}

impl ApiServer {
    /// The answer to a request, none if it stays away.
    fn answer(&self, method: &str, target: &str, body: &[u8]) -> Option<(u16, Value)> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        if query.contains("watch=true") {
            return None;
        }
        if path == CLUSTER {
            let _ = self.asked.send(());
            return None;
        }
        if path.starts_with(LEASES) {
            let mut lease = self.lease.lock().expect("no panic");
            if method != "GET" {
                *lease = Some(serde_json::from_slice(body).expect("a lease"));
            }
            let missing = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
                "status": "Failure", "reason": "NotFound", "message": "none", "code": 404});
            return Some(lease.clone().map_or((404, missing), |lease| (200, lease)));
        }
        let clusters = json!([{"apiVersion": "percolator.dev/v1alpha1", "kind": "PercolatorCluster",
            "metadata": {"name": "demo", "namespace": "n", "uid": "u", "generation": 1}, "spec": {}}]);
        let items = if path == CLUSTERS {
            clusters
        } else {
            json!([])
        };
        let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items});
        Some((200, list))
    }

    /// Serves one connection until its end.
    fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        loop {
            let mut first = String::new();
            if reader.read_line(&mut first)? == 0 {
                return Ok(());
            }
            let mut words = first.split_whitespace();
            let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
            let mut headers = BTreeMap::new();
            loop {
                let mut line = String::new();
                reader.read_line(&mut line)?;
                let Some((name, value)) = line.trim().split_once(':') else {
                    break;
                };
                headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
            }
            let length = headers.get("content-length");
            let length = length.and_then(|length| length.parse().ok()).unwrap_or(0);
            let mut body = vec![0; length];
            reader.read_exact(&mut body)?;
            let Some((code, answer)) = self.answer(method, target, &body) else {
                // The connection stays open, and nothing comes.
                continue;
            };
            let text = answer.to_string();
            write!(
                stream,
                "HTTP/1.1 {code} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{text}",
                text.len()
            )?;
        }
    }
}

#[test]
fn sigterm_ends_it_though_an_answer_stays_away_and_the_lease_is_handed_back() {
    let (send, asked) = mpsc::channel();
    let server = ApiServer {
        lease: Arc::default(),
        asked: send,
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let serving = server.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let server = serving.clone();
            std::thread::spawn(move || server.serve(stream));
        }
    });
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("config");
    let text = format!(
        "{{apiVersion: v1, kind: Config, current-context: a, contexts: [{{name: a, context: {{cluster: a, user: a}}}}], \
         clusters: [{{name: a, cluster: {{server: 'http://{address}'}}}}], users: [{{name: a, user: {{}}}}]}}"
    );
    std::fs::write(&config, text).expect("writable");
    let child = Command::new(env!("CARGO_BIN_EXE_percolator-operator"))
        .args(["--listen", "127.0.0.1:0", "--identity", "me"])
        .args(["--lease-namespace", "n", "--lease", "l"])
        .env("KUBECONFIG", &config)
        .stderr(Stdio::null())
        .spawn();
    let mut operator = Operator(child.expect("it runs"));
    let holder = || {
        let lease = server.lease.lock().expect("no panic");
        lease
            .as_ref()
            .map(|lease| lease["spec"]["holderIdentity"].clone())
    };
    asked.recv_timeout(WITHIN).expect("a reconcile begins");
    assert_eq!(holder(), Some(json!("me")));
    let pid = operator.0.id().to_string();
    let sent = Command::new("kill").args(["-TERM", &pid]).status();
    assert!(sent.expect("kill runs").success());
    let deadline = Instant::now() + WITHIN;
    let status = loop {
        if let Some(status) = operator.0.try_wait().expect("a child") {
            break status;
        }
        assert!(Instant::now() < deadline, "it goes on");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(status.success(), "{status}");
    assert_eq!(holder(), Some(json!("")), "the next one need not wait");
}
