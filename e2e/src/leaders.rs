//! Roles in which one of several servers leads: who it is, and how it is ended at once.

use crate::nodes::{self, CutOffPod};
use crate::{Namespace, kubectl, say, wait, written};

/// The leader's name and term, as the cluster's status has it. `role` is the role's field there.
pub fn leader(space: &Namespace, role: &str) -> Result<(String, u64), String> {
    let leader = space.get("perc", "demo")?["status"][role]["leader"].clone();
    let (server, term) = (leader["server"].as_str(), leader["term"].as_u64());
    let found = server.zip(term).ok_or_else(|| leader.to_string())?;
    Ok((found.0.to_owned(), found.1))
}

/// Waits until the status has another term, and says who leads.
pub fn wait_for_another_term(space: &Namespace, role: &str, before: u64) -> String {
    wait_for_leader(space, role, |_, term| term > before)
}

/// Waits until another server than this one leads. What was killed may lead once more before its pod is removed: its
/// container starts again at once, in the next term.
pub fn wait_for_another_leader(space: &Namespace, role: &str, before: &str) -> String {
    wait_for_leader(space, role, |server, _| server != before)
}

fn wait_for_leader(space: &Namespace, role: &str, is_it: impl Fn(&str, u64) -> bool) -> String {
    let (server, term) = wait("another leader", || match leader(space, role)? {
        found if is_it(&found.0, found.1) => Ok(found),
        found => Err(format!("{found:?}")),
    });
    say(&format!("{server} leads in term {term}"));
    server
}

/// Nodes that take no new pod, until the value goes: what was killed doesn't come back meanwhile.
#[derive(Debug)]
pub struct Cordon;

impl Cordon {
    const NODES: &str = "kubernetes.io/hostname";

    /// Begins on all nodes.
    pub fn begin() -> Self {
        kubectl(&["cordon", "-l", Self::NODES]).expect("cordon");
        Self
    }
}

impl Drop for Cordon {
    fn drop(&mut self) {
        let ended = kubectl(&["uncordon", "-l", Self::NODES]);
        if !std::thread::panicking() {
            ended.expect("uncordon");
        }
    }
}

/// The argument by which the process of a pod is known, of any role but a master that is alone.
fn argument_of(space: &Namespace, pod: &str) -> String {
    let found = wait(pod, || space.get("pod", pod));
    let address = found["status"]["podIP"].as_str().expect("an address");
    // To the end of the argument: another pod's address may begin with this one.
    format!("--advertise={address}$")
}

/// Sends a signal to the process of a pod.
pub fn signal(space: &Namespace, pod: &str, signal: &str) {
    nodes::signal(&argument_of(space, pod), signal);
}

/// The process of a pod stands still until another server leads, and goes on then as if nothing had been.
pub fn stand_still(space: &Namespace, role: &str, pod: &str) {
    signal(space, pod, "STOP");
    wait_for_another_leader(space, role, pod);
    signal(space, pod, "CONT");
}

/// In a manifest: a volume whose disk can hang.
pub const OWN_DISK: &str =
    r#"storage: {size: 16Mi, claim: {annotations: {bed.percolator.dev/own-disk: "true"}}}"#;

/// A disk that hangs until the value goes: who writes to it waits.
struct HungDisk(String);

/// The disk of a leader of [`OWN_DISK`] hangs, and all goes on; then its process is killed, and can't end, and another server leads.
pub fn hang_disk_and_kill(space: &Namespace, role: &str, pod: &str, goes_on: impl Fn()) {
    let disk = hang_disk(space, pod);
    goes_on();
    signal(space, pod, "KILL");
    wait_for_another_leader(space, role, pod);
    goes_on();
    drop(disk);
}

fn hang_disk(space: &Namespace, pod: &str) -> HungDisk {
    let claim = wait(pod, || space.get("pvc", &format!("data-{pod}")));
    let volume = claim["spec"]["volumeName"].as_str().expect("a volume");
    let path = "jsonpath={.spec.local.path}";
    let folder = kubectl(&["get", "pv", volume, "-o", path]).expect("a folder");
    nodes::sh(&format!("fsfreeze -f {folder}"));
    HungDisk(folder)
}

impl Drop for HungDisk {
    fn drop(&mut self) {
        nodes::sh(&format!("fsfreeze -u {}", self.0));
    }
}

/// SIGKILL to its process, and then its pod is removed. A pod that is deleted without grace gets SIGTERM as well.
pub fn kill_at_once(space: &Namespace, pod: &str) {
    signal(space, pod, "KILL");
    space.kill(pod);
}

/// Evicts a pod, as a node that is drained does.
///
/// # Errors
/// Its disruption budget is used up, or the API server said something else.
pub fn evict(space: &Namespace, pod: &str) -> Result<(), String> {
    let namespace = space.name();
    let body = format!(
        r#"{{"apiVersion":"policy/v1","kind":"Eviction","metadata":{{"name":"{pod}","namespace":"{namespace}"}}}}"#
    );
    let file = written(&body)?;
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/eviction");
    kubectl(&[
        "create",
        "--raw",
        &path,
        "-f",
        &file.path().display().to_string(),
    ])
    .map(drop)
}

/// Evicts the leader of two, which hands over; nobody can evict the other one meanwhile.
pub fn evict_leader(space: &Namespace, role: &str, servers: [&str; 2]) {
    let (evicted, term) = wait("a leader", || leader(space, role));
    let other = servers.into_iter().find(|it| *it != evicted);
    wait("an eviction", || evict(space, &evicted));
    let refused = evict(space, other.expect("a standby"));
    let refused = refused.expect_err("one of two at a time");
    assert!(refused.contains("disruption budget"), "{refused}");
    wait_for_another_term(space, role, term);
}

/// Waits until the leader could go on without its register: all that could take over promise not to. `metric` says so.
pub fn wait_until_promised(space: &Namespace, leader: &str, metric: &str) {
    let namespace = space.name();
    let path = format!("/api/v1/namespaces/{namespace}/pods/{leader}:9090/proxy/metrics");
    let line = format!("{metric} 1");
    wait("promises of standbys", || {
        let shown = kubectl(&["get", "--raw", &path])?;
        let of_metric = shown.lines().find(|shown| shown.starts_with(metric));
        match of_metric {
            Some(shown) if shown == line => Ok(()),
            other => Err(format!("{leader}: {other:?}")),
        }
    });
}

/// Cuts a pod off the network until the value goes.
pub fn cut_off(space: &Namespace, pod: &str) -> CutOffPod {
    nodes::cut_off_pod(&argument_of(space, pod))
}
