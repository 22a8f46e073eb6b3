//! The API server, through one `kubectl proxy`: requests are many, and a kubectl for each of them would take half of the
//! machine.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::nodes::MARK;

/// The address of etcd under `cargo xtask kube`.
const ETCD: &str = "127.0.0.1:23790";

/// A request without a response within this is sent again.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The kinds that tests read, and their paths.
const KINDS: [(&str, &str, &str); 10] = [
    ("perc", "apis/percolator.dev/v1alpha1", "percolatorclusters"),
    ("statefulset", "apis/apps/v1", "statefulsets"),
    ("pod", "api/v1", "pods"),
    ("pvc", "api/v1", "persistentvolumeclaims"),
    ("service", "api/v1", "services"),
    ("serviceaccount", "api/v1", "serviceaccounts"),
    ("configmap", "api/v1", "configmaps"),
    ("resourcequota", "api/v1", "resourcequotas"),
    ("podmonitor", "apis/monitoring.coreos.com/v1", "podmonitors"),
    (
        "prometheusrule",
        "apis/monitoring.coreos.com/v1",
        "prometheusrules",
    ),
];

/// A `kubectl proxy`, which ends with the value.
#[derive(Debug)]
pub(crate) struct Api {
    kubectl: Child,
    address: String,
}

impl Api {
    /// Starts it, and waits until it says where it listens.
    pub(crate) fn start() -> Self {
        let mut kubectl = Command::new("kubectl")
            .args(["proxy", "--port=0"])
            // Should this program be killed, it ends with the Kubernetes.
            .env(MARK, "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("kubectl");
        let mut said = String::new();
        let stdout = kubectl.stdout.take().expect("it is piped");
        let read = BufReader::new(stdout).read_line(&mut said);
        let address = said.split_whitespace().last().unwrap_or_default();
        assert!(
            read.is_ok() && address.contains(':'),
            "kubectl proxy: {said}"
        );
        Self {
            kubectl,
            address: address.to_owned(),
        }
    }

    /// An object.
    pub(crate) fn object(&self, namespace: &str, kind: &str, name: &str) -> Result<Value, String> {
        let text = self.text(&format!("{}/{name}", path(namespace, kind)))?;
        serde_json::from_str(&text).map_err(|error| error.to_string())
    }

    /// The objects of a kind that have these labels, each with an `=` between its name and its value.
    pub(crate) fn objects(
        &self,
        namespace: &str,
        kind: &str,
        labels: &str,
    ) -> Result<Vec<Value>, String> {
        let path = format!("{}?labelSelector={labels}", path(namespace, kind));
        crate::items(&self.text(&path)?)
    }

    /// The log of a pod.
    pub(crate) fn log(&self, namespace: &str, pod: &str) -> Result<String, String> {
        let text = self.text(&format!("{}/{pod}/log", path(namespace, "pod")))?;
        Ok(text.trim().to_owned())
    }

    fn text(&self, path: &str) -> Result<String, String> {
        get(&self.address, path)
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        let _ = self.kubectl.kill();
        let _ = self.kubectl.wait();
    }
}

fn path(namespace: &str, kind: &str) -> String {
    let known = KINDS.iter().find(|(name, _, _)| *name == kind);
    let (_, group, plural) = known.unwrap_or_else(|| panic!("{kind} is not among {KINDS:?}"));
    format!("/{group}/namespaces/{namespace}/{plural}")
}

/// A custom resource as etcd has it, by its place below `/registry/`.
///
/// # Errors
/// There is none, or it isn't stored as JSON.
pub fn stored(place: &str) -> Result<Value, String> {
    let key = STANDARD.encode(format!("/registry/{place}"));
    let answer = post(ETCD, "/v3/kv/range", &json!({"key": key}))?;
    let value = answer["kvs"][0]["value"].as_str();
    let value = value.ok_or_else(|| format!("{place}: {answer}"))?;
    let value = STANDARD.decode(value).map_err(|error| error.to_string())?;
    serde_json::from_slice(&value).map_err(|error| error.to_string())
}

/// The response of an HTTP server, if it is a success.
pub(crate) fn get(address: &str, path: &str) -> Result<String, String> {
    ask(address, "GET", path, "", "")
}

/// The response of an HTTP server to a JSON object, if it is a success: over a connection of its own.
pub(crate) fn post(address: &str, path: &str, body: &Value) -> Result<Value, String> {
    let body = body.to_string();
    let length = body.len();
    let head = format!("Content-Type: application/json\r\nContent-Length: {length}\r\n");
    let answer = ask(address, "POST", path, &head, &body)?;
    serde_json::from_str(&answer).map_err(|error| format!("{path}: {answer}: {error}"))
}

fn ask(address: &str, method: &str, path: &str, head: &str, body: &str) -> Result<String, String> {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
        // Of version 1.0: the answer comes in one piece, and ends with the connection.
        let first = format!("{method} {path} HTTP/1.0\r\nHost: {address}");
        write!(stream, "{first}\r\n{head}\r\n{body}")?;
        let mut text = Vec::new();
        stream.read_to_end(&mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    };
    let text = ask().map_err(|error| format!("{path}: {error}"))?;
    let (head, body) = text
        .split_once("\r\n\r\n")
        .ok_or("half an answer".to_owned())?;
    match head.split_whitespace().nth(1) {
        Some("200") => Ok(body.to_owned()),
        _ => Err(format!("{path}: {text}")),
    }
}
