//! A Prometheus beside the cluster: the nodes' networks are this machine's, so that it reaches pods as one in a pod would.
//!
//! Debian's is built without the discovery of pods (`kubernetes_sd_configs`): a thread lists them, and writes to
//! a file what that discovery would report, under the same names.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use serde_json::{Value, json};

use crate::{Kube, api, kubectl, print_end, skip, wait};

/// The variable with the program's path, set by `cargo xtask test e2e`.
const PROGRAM: &str = "PERCOLATOR_PROMETHEUS";
/// How often pods are asked for.
const DISCOVER_EVERY: Duration = Duration::from_secs(1);

/// The file of pods for Prometheus, in place of the discovery that is missing in Debian's.
pub const DISCOVERY: &str = "file_sd_configs: [{files: [pods.json], refresh_interval: 1s}]";

/// The `scrape_configs` of docs/monitoring.md, for this Kubernetes.
pub fn documented_jobs(kube: &Kube) -> String {
    let documented = kube.documented("monitoring.md", "scrape_configs:");
    let discovered = "kubernetes_sd_configs: [{role: pod}]";
    assert!(documented.contains(discovered), "{documented}");
    let documented = documented.replace(discovered, DISCOVERY);
    let (jobs, _) = documented
        .split_once("rule_files: [alerts.yaml]")
        .expect("it loads the alerts");
    jobs.to_owned()
}

/// The whole configuration that has these jobs, and nothing else.
pub fn documented_configuration(kube: &Kube) -> String {
    let jobs = documented_jobs(kube);
    format!("global: {{scrape_interval: 2s, scrape_timeout: 2s}}\n{jobs}")
}

/// A running Prometheus; it ends with the value.
#[derive(Debug)]
pub struct Prometheus {
    process: Child,
    address: String,
    folder: tempfile::TempDir,
    /// Its end ends the discovery.
    _discovery: Sender<()>,
}

/// One line of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The line's labels.
    pub labels: BTreeMap<String, String>,
    /// Its value now.
    pub value: f64,
}

/// An alert that fires, or has fired.
#[derive(Clone, Debug, PartialEq)]
pub struct Firing {
    /// The alert's name.
    pub alert: String,
    /// The cluster that it names; empty where it names none.
    pub cluster: String,
    /// Its other labels, as text.
    pub labels: String,
    /// When it was first seen to fire, in seconds since 1970.
    pub first: f64,
    /// And when last.
    pub last: f64,
}

/// For people: which, and from when to when.
impl fmt::Display for Firing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            alert,
            labels,
            first,
            last,
            ..
        } = self;
        let lasted = last - first;
        write!(
            f,
            "{alert} fired for {lasted:.0} s, until {last:.0}: {labels}"
        )
    }
}

/// A rule of an alert, as Prometheus has read it.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The alert's name.
    pub alert: String,
    /// Its expression, in Prometheus' own spelling.
    pub expression: String,
    /// The name of the file that it is from.
    pub file: String,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.explain();
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The labels of what is scraped, and what is wrong with it: empty where nothing is.
pub type Target = (BTreeMap<String, String>, String);

impl Prometheus {
    /// Starts one with this configuration, and waits until it answers. It may name these files of rules, and
    /// `pods.json`, with the pods of these namespaces. None, and a word about it, where there is no Prometheus.
    pub fn start(
        configuration: &str,
        rules: &[(&str, String)],
        namespaces: &[&str],
    ) -> Option<Self> {
        let Some(program) = std::env::var_os(PROGRAM).map(PathBuf::from) else {
            skip("there is no Prometheus, of Debian's package prometheus");
            return None;
        };
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str| folder.path().join(name);
        fs::write(file("prometheus.yaml"), configuration).expect("a configuration");
        for (name, text) in rules {
            fs::write(file(name), text).expect(name);
        }
        let discovery = discover(file("pods.json"), namespaces);
        let log = fs::File::create(file("log")).expect("a log");
        // Nobody else takes it within the moment, as a rule; who does makes this fail, and says so.
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let address = free.expect("a free port").to_string();
        let process = Command::new(program)
            .arg(format!(
                "--config.file={}",
                file("prometheus.yaml").display()
            ))
            .arg(format!("--storage.tsdb.path={}", file("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("prometheus");
        let mut started = Self {
            process,
            address,
            folder,
            _discovery: discovery,
        };
        wait("Prometheus", || {
            let ended = started.process.try_wait().expect("a process");
            assert_eq!(ended, None, "Prometheus ended");
            started.get("/-/ready")
        });
        Some(started)
    }

    /// Its address on this machine.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn explain(&self) {
        print_end("prometheus", &self.folder.path().join("log"));
    }

    fn get(&self, path: &str) -> Result<String, String> {
        api::get(&self.address, path)
    }

    fn data(&self, path: &str) -> Result<Value, String> {
        let answer: Value =
            serde_json::from_str(&self.get(path)?).map_err(|error| format!("{path}: {error}"))?;
        Ok(answer["data"].clone())
    }

    fn query(&self, expression: &str) -> Result<Value, String> {
        let mut query = String::new();
        for byte in expression.bytes() {
            let _ = write!(query, "%{byte:02X}");
        }
        self.data(&format!("/api/v1/query?query={query}"))
    }

    /// The present value of an expression.
    ///
    /// # Errors
    /// Prometheus' words about it.
    pub fn ask(&self, expression: &str) -> Result<Vec<Sample>, String> {
        let data = self.query(expression)?;
        let samples = data["result"].as_array().cloned().unwrap_or_default();
        samples
            .iter()
            .map(|sample| {
                let value = sample["value"][1]
                    .as_str()
                    .and_then(|text| text.parse().ok());
                Ok(Sample {
                    labels: labels(&sample["metric"]),
                    value: value.ok_or_else(|| format!("{expression}: {sample}"))?,
                })
            })
            .collect()
    }

    /// The targets that it scrapes, and what is wrong with each.
    ///
    /// # Errors
    /// No answer.
    pub fn targets(&self) -> Result<Vec<Target>, String> {
        let data = self.data("/api/v1/targets?state=active")?;
        let targets = data["activeTargets"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let wrong = |target: &Value| match target["health"].as_str() {
            Some("up") => String::new(),
            _ => format!("{} {}", target["health"], target["lastError"]),
        };
        Ok(targets
            .iter()
            .map(|target| (labels(&target["labels"]), wrong(target)))
            .collect())
    }

    /// All alerts that have fired since Prometheus was started, however shortly.
    ///
    /// # Errors
    /// No answer.
    pub fn fired(&self) -> Result<Vec<Firing>, String> {
        // As often as rules are evaluated, a sample of each alert that fires.
        let data = self.query(r#"ALERTS{alertstate="firing"}[1d]"#)?;
        let series = data["result"].as_array().cloned().unwrap_or_default();
        let mut fired = Vec::new();
        for series in &series {
            let labels = labels(&series["metric"]);
            let label = |name: &str| labels.get(name).cloned().unwrap_or_default();
            let at = |sample: Option<&Value>| sample?[0].as_f64();
            let samples = series["values"].as_array();
            let ends = samples.map(|samples| (at(samples.first()), at(samples.last())));
            let Some((Some(first), Some(last))) = ends else {
                return Err(format!("ALERTS: {series}"));
            };
            fired.push(Firing {
                alert: label("alertname"),
                cluster: label("percolator_cluster"),
                labels: format!("{labels:?}"),
                first,
                last,
            });
        }
        Ok(fired)
    }

    /// The rules that were loaded, in their order; one that can't be evaluated is an error.
    ///
    /// # Errors
    /// No answer, or what is wrong with a rule.
    pub fn rules(&self) -> Result<Vec<Rule>, String> {
        let data = self.data("/api/v1/rules")?;
        let groups = data["groups"].as_array().cloned().unwrap_or_default();
        let rules = groups.iter().flat_map(|group| {
            let rules = group["rules"].as_array().into_iter().flatten();
            rules.map(|rule| (&group["file"], rule))
        });
        rules
            .map(|(file, rule)| {
                let text = |field: &str| rule[field].as_str().unwrap_or_default().to_owned();
                if rule["health"] != "ok" {
                    return Err(format!("{} is {rule}", text("name")));
                }
                Ok(Rule {
                    alert: text("name"),
                    expression: text("query"),
                    file: file
                        .as_str()
                        .and_then(|path| path.rsplit('/').next())
                        .unwrap_or_default()
                        .to_owned(),
                })
            })
            .collect()
    }
}

/// Keeps a file with the pods of these namespaces, until the sender goes.
fn discover(file: PathBuf, namespaces: &[&str]) -> Sender<()> {
    let namespaces: Vec<String> = namespaces.iter().map(|name| (*name).to_owned()).collect();
    let (sender, end) = channel();
    std::thread::spawn(move || {
        while end.recv_timeout(DISCOVER_EVERY) == Err(RecvTimeoutError::Timeout) {
            let pods = namespaces.iter().map(|namespace| {
                let list = kubectl(&["-n", namespace, "get", "pods", "-o", "json"])?;
                let list: Value = serde_json::from_str(&list).map_err(|error| error.to_string())?;
                let pods = list["items"].as_array().cloned().unwrap_or_default();
                Ok(pods.iter().flat_map(targets_of).collect::<Vec<_>>())
            });
            // What can't be asked for just now stays what it was.
            let Ok(targets) = pods.collect::<Result<Vec<_>, String>>() else {
                continue;
            };
            let text = Value::from(targets.concat()).to_string();
            let part = file.with_extension("part");
            let written = fs::write(&part, text).and_then(|()| fs::rename(&part, &file));
            if written.is_err() {
                // The folder goes with the value.
                return;
            }
        }
    });
    sender
}

/// The targets that the discovery of pods makes of one: a target for each port.
fn targets_of(pod: &Value) -> Vec<Value> {
    let text = |path: &str| {
        pod.pointer(path)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let ip = text("/status/podIP");
    // Nobody could scrape it.
    if ip.is_empty() {
        return Vec::new();
    }
    let mut common = json!({
        "__meta_kubernetes_namespace": text("/metadata/namespace"),
        "__meta_kubernetes_pod_name": text("/metadata/name"),
        "__meta_kubernetes_pod_phase": text("/status/phase"),
        "__meta_kubernetes_pod_ip": ip,
    });
    for (name, value) in pod["metadata"]["labels"].as_object().into_iter().flatten() {
        let name = name.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
        common[format!("__meta_kubernetes_pod_label_{name}")] = value.clone();
    }
    let containers = pod.pointer("/spec/containers").and_then(Value::as_array);
    let ports = containers.into_iter().flatten().flat_map(|container| {
        let ports = container["ports"].as_array().cloned().unwrap_or_default();
        let none = ports.is_empty().then_some(Value::Null);
        ports.into_iter().chain(none)
    });
    ports
        .map(|port| {
            let mut labels = common.clone();
            labels["__meta_kubernetes_pod_container_port_name"] =
                port["name"].as_str().unwrap_or_default().into();
            let host = if ip.contains(':') {
                format!("[{ip}]")
            } else {
                ip.to_owned()
            };
            let address = match &port["containerPort"] {
                Value::Null => host,
                number => format!("{host}:{number}"),
            };
            json!({"targets": [address], "labels": labels})
        })
        .collect()
}

fn labels(object: &Value) -> BTreeMap<String, String> {
    let labels = object.as_object().into_iter().flatten();
    labels
        .map(|(name, value)| {
            let value = value.as_str().unwrap_or_default();
            (name.clone(), value.to_owned())
        })
        .collect()
}
