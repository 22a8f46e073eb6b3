//! The reports of `percolator` about a cluster from outside of it, through `kubectl port-forward`, as docs/monitoring.md says.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use percolator_e2e::{Namespace, say, wait};
use serde_json::Value;

/// A port of this machine that leads to one of a pod; it ends with the value.
struct Forwarded {
    process: Child,
    address: String,
    /// Not closed before: kubectl writes a line for each connection, and ends where nobody can read it.
    _says: BufReader<ChildStdout>,
}

impl Drop for Forwarded {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Forwarded {
    fn to(space: &Namespace, target: &str, port: u16) -> Self {
        wait(&format!("kubectl port-forward {target} :{port}"), || {
            let mut process = Command::new("kubectl")
                .args(["-n", space.name(), "port-forward", target])
                .arg(format!(":{port}"))
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()
                .map_err(|error| error.to_string())?;
            let mut first = String::new();
            let mut says = BufReader::new(process.stdout.take().expect("a pipe"));
            let read = says.read_line(&mut first);
            // Forwarding from 127.0.0.1:40123 -> 7400
            let address = first
                .split_whitespace()
                .nth(2)
                .unwrap_or_default()
                .to_owned();
            let forwarded = Self {
                process,
                address,
                _says: says,
            };
            match read {
                Ok(_) if forwarded.address.starts_with("127.0.0.1:") => Ok(forwarded),
                _ => Err(format!("{read:?}: {first:?}")),
            }
        })
    }
}

/// The program of this machine, which lies where the tests' own are made.
fn program() -> PathBuf {
    let own = std::env::current_exe().expect("this test");
    let folder = own.parent().and_then(|folder| folder.parent());
    folder.expect("a folder").join("percolator")
}

/// A cluster that is reached through forwarded ports: of its master, and for the metrics of some of its servers. Each
/// command has its own: kubectl ends one for good when the pod's side resets a connection.
pub(crate) struct ForwardedCluster<'a> {
    space: &'a Namespace,
    cluster: &'a str,
    servers: &'a [&'a str],
}

impl<'a> ForwardedCluster<'a> {
    pub(crate) fn new(space: &'a Namespace, cluster: &'a str, servers: &'a [&'a str]) -> Self {
        Self {
            space,
            cluster,
            servers,
        }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let cluster = self.cluster;
        let master = Forwarded::to(self.space, &format!("service/{cluster}"), 7400);
        let metrics: Vec<(String, Forwarded)> = self
            .servers
            .iter()
            .map(|server| {
                let pod = format!("{cluster}-{server}");
                let forwarded = Forwarded::to(self.space, &format!("pod/{pod}"), 9090);
                (pod, forwarded)
            })
            .collect();
        let mut command = Command::new(program());
        command
            .args(["-c", &master.address])
            .args(arguments)
            .stdin(Stdio::null());
        for (server, forwarded) in &metrics {
            command.args(["--metrics", &format!("{server}={}", forwarded.address)]);
        }
        command.output().expect("the program lies beside the tests")
    }

    /// Waits until `status` ends with this code and says all of these words, and `top` reports these problems as JSON.
    pub(crate) fn check(&self, code: i32, words: &[&str], kinds: &[&str]) {
        let text = wait(&format!("percolator status with {code}: {words:?}"), || {
            let output = self.run(&["status"]);
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let missing = words.iter().find(|words| !said.contains(**words));
            match (output.status.code() == Some(code), missing) {
                (true, None) => Ok(said),
                (_, missing) => Err(format!("no {missing:?} in {output:?}")),
            }
        });
        text.lines().for_each(say);
        wait(&format!("percolator top: {kinds:?}"), || {
            let output = self.run(&["top", "--once", "-o", "json"]);
            let json: Value =
                serde_json::from_slice(&output.stdout).map_err(|_| format!("{output:?}"))?;
            let problems = json["status"]["problems"].as_array();
            let found = problems.into_iter().flatten();
            let found: Vec<&str> = found.filter_map(|it| it["kind"].as_str()).collect();
            // The bank asks all the time; where there is none, the load is there all the same, and is 0.
            let load = json["load"]["requests_per_second"].as_f64();
            let unreached = json["metrics_not_reached"].as_object();
            // The master knows where all of them are, by names that only pods can resolve.
            let of_forwarded = |pod: &String| self.servers.iter().any(|it| pod.ends_with(it));
            let all_reached = unreached.is_some_and(|them| !them.keys().any(of_forwarded));
            let is_all = kinds.iter().all(|kind| found.contains(kind));
            let is_right = is_all && found.is_empty() == kinds.is_empty();
            if output.status.success() && is_right && load.is_some() && all_reached {
                Ok(())
            } else {
                Err(format!("{output:?}"))
            }
        });
    }
}

/// Checks that a bundle has all that kubectl shows of the cluster.
pub(crate) fn check_bundle(space: &Namespace, cluster: &str) {
    wait("a bundle with all that kubectl shows", || {
        read_bundle(space, cluster)
    });
}

fn read_bundle(space: &Namespace, cluster: &str) -> Result<(), String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let file = folder.path().join("bundle.tar.gz");
    let made = Command::new(program())
        .args([
            "-c",
            "127.0.0.1:1",
            "debug",
            "bundle",
            "--request-timeout",
            "1s",
        ])
        .args(["--for", "0s", "--data-dir", "nowhere", "--kubernetes"])
        .arg(format!("{}/{cluster}", space.name()))
        .arg("--file")
        .arg(&file)
        .output();
    let made = made.expect("the program lies beside the tests");
    let holds = |is_so: bool, what: String| {
        if is_so {
            Ok(())
        } else {
            Err(format!("{what}: {made:?}"))
        }
    };
    holds(made.status.success(), "it was not made".into())?;
    let unpacked = Command::new("tar")
        .arg("-xzf")
        .arg(&file)
        .arg("-C")
        .arg(folder.path())
        .status();
    assert!(unpacked.expect("tar").success());
    let read = |name: &str| {
        let path = folder.path().join("percolator-debug").join(name);
        std::fs::read_to_string(path).map_err(|error| format!("{name}: {error}: {made:?}"))
    };
    for (name, words) in [
        ("kubernetes/percolatorcluster.json", "PercolatorCluster"),
        ("kubernetes/statefulsets.json", "-master"),
        ("kubernetes/pods.json", "-tablet-0"),
        ("kubernetes/configmaps.json", "log-level"),
        ("kubernetes/events.json", "-tso-0"),
        ("kubernetes/operator-pods.json", "percolator-operator"),
    ] {
        let said = read(name)?;
        holds(
            said.contains(words),
            format!("no {words} in {name}: {said}"),
        )?;
    }
    let pods = read("kubernetes/pods.json")?;
    let pods: Value = serde_json::from_str(&pods).map_err(|error| error.to_string())?;
    for server in ["master-0", "tso-0", "tablet-0"] {
        let pod = format!("{cluster}-{server}");
        let mut items = pods["items"].as_array().into_iter().flatten();
        let found = items.find(|it| it["metadata"]["name"] == pod.as_str());
        let container = found.and_then(|pod| pod["spec"]["containers"][0]["name"].as_str());
        let container = container.ok_or_else(|| format!("no pod {pod}: {pods}"))?;
        let log = read(&format!("logs/{pod}.{container}.log"))?;
        let says = format!("\"server\":\"{pod}\"");
        holds(log.contains(&says), format!("{pod}: {log}"))?;
    }
    let refused = read("kubernetes/refused.txt").ok();
    holds(refused.is_none(), format!("{refused:?}"))
}
