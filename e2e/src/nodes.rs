//! Faults of nodes of the test's Kubernetes, which are network namespaces of this machine.

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::{Namespace, kubectl, output, wait};

/// The variable by which `cargo xtask kube` marks its processes.
pub(crate) const MARK: &str = "PERCOLATOR_KUBE";

pub(crate) fn sh(script: &str) -> String {
    let result = output(Command::new("sh").args(["-euc", script]));
    result.unwrap_or_else(|error| panic!("{script}: {error}"))
}

/// The numbers of all nodes.
pub fn all() -> impl Iterator<Item = u32> {
    (1..=9).filter(|node| netns(*node).exists())
}

fn netns(node: u32) -> PathBuf {
    PathBuf::from(format!("/run/netns/percolator-kube-node-{node}"))
}

/// The folder of a node: `cargo xtask kube` has it beside the cluster's configuration.
pub(crate) fn folder(node: u32) -> PathBuf {
    let configuration = std::env::var_os("KUBECONFIG").map(PathBuf::from);
    let configuration = configuration.expect("KUBECONFIG says where the cluster is");
    configuration.with_file_name(format!("node-{node}"))
}

/// A command in a node's network: its program comes as the first argument.
pub(crate) fn inside(node: u32) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", netns(node).display()));
    command
}

/// The address of a node for the machine.
pub(crate) fn address(node: u32) -> String {
    format!("172.30.0.1{node}")
}

/// Whether somebody takes a connection to this address, made from a node.
pub fn connects(node: u32, address: &str, port: u16) -> Result<(), String> {
    let connect = format!("exec 3<>/dev/tcp/{address}/{port}");
    output(inside(node).args(["timeout", "5", "bash", "-c", &connect]))
        .map(drop)
        .map_err(|error| format!("{address}:{port} from node-{node}: {error}"))
}

/// A node without its cable, until the value goes.
#[derive(Debug)]
pub struct CutOff {
    node: u32,
}

/// Pulls the cable of a node.
pub fn cut_off(node: u32) -> CutOff {
    sh(&format!("ip link set perc-kube-{node} down"));
    CutOff { node }
}

impl Drop for CutOff {
    fn drop(&mut self) {
        let node = self.node;
        // The machine forgot the way to the node's pods with the link, where it did.
        sh(&format!(
            "ip link set perc-kube-{node} up
             ip route replace 10.244.{node}.0/24 via {}",
            address(node)
        ));
    }
}

/// The processes of a node, without containers.
const PROGRAMS: [&str; 3] = ["containerd", "kubelet", "kube-proxy"];

/// A node whose power was cut, until the value goes: the command lines of what ran on it.
#[derive(Debug)]
pub struct Dead {
    node: u32,
    programs: Vec<Vec<String>>,
}

/// Kills everything on a node at once: its kubelet, its containerd, and all containers.
pub fn cut_power(node: u32) -> Dead {
    let name = format!("node-{node}");
    let pids = sh(&format!(
        "for p in /proc/[0-9]*; do
           if grep -qz '^{MARK}=1$' $p/environ 2>/dev/null; then
             if tr '\\0' ' ' < $p/cmdline | grep -qE '/percolator-kube/{name}(/|\\.)'; then basename $p; fi
           fi
         done"
    ));
    let mut programs = Vec::new();
    for pid in pids.lines() {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<String> = line
            .split(|byte| *byte == 0)
            .filter(|word| !word.is_empty())
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect();
        // Containers' shims come back with their containers; and what makes a container just now has the mark, too.
        let program = words.first().and_then(|path| path.rsplit('/').next());
        if program.is_some_and(|program| PROGRAMS.contains(&program)) {
            programs.push(words);
        }
    }
    assert_eq!(programs.len(), PROGRAMS.len(), "{PROGRAMS:?}: {programs:?}");
    // The order in which they start.
    programs.sort_by_key(|words| !words[0].contains("containerd"));
    let pids = pids.replace('\n', " ");
    // Much of it ends by itself meanwhile.
    sh(&format!(
        "kill -9 {pids} 2>/dev/null || true
         for i in 1 2 3; do
           pids=$(find /sys/fs/cgroup/pids/percolator-kube-{name} -name cgroup.procs -exec cat {{}} + 2>/dev/null || true)
           if [ -n \"$pids\" ]; then kill -9 $pids 2>/dev/null || true; fi
         done"
    ));
    Dead { node, programs }
}

impl Drop for Dead {
    fn drop(&mut self) {
        let node = self.node;
        for words in &self.programs {
            let mut command = inside(node);
            command
                .args(words)
                .env(MARK, "1")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .process_group(0);
            let mut program = command.spawn().expect("a program that ran before");
            // It outlives the test; should it end before, it's not to stay as a zombie.
            std::thread::spawn(move || program.wait());
            if words[0].contains("containerd") {
                let socket = format!("/run/percolator-kube/node-{node}/containerd.sock");
                wait("containerd", || {
                    output(Command::new("ctr").args(["-a", &socket, "version"]))
                });
            }
        }
    }
}

/// A node that is out of service, until the value goes: the node is back by then.
#[derive(Debug)]
pub struct OutOfService {
    node: String,
}

/// Takes a node out of service, by the command that the condition names.
pub fn out_of_service(command: &str, node: u32) -> OutOfService {
    let node = format!("node-{node}");
    sh(command);
    OutOfService { node }
}

impl Drop for OutOfService {
    fn drop(&mut self) {
        let taint = "node.kubernetes.io/out-of-service-";
        if let Err(error) = kubectl(&["taint", "node", &self.node, taint])
            && !std::thread::panicking()
        {
            panic!("{}: {error}", self.node);
        }
    }
}

/// The operators' processes, wherever they run.
pub fn operators() -> Vec<String> {
    let mut pids = Vec::new();
    for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let mut words = line.split(|byte| *byte == 0);
        let is_it = words.next() == Some(b"/usr/local/bin/percolator-operator".as_slice());
        // Those that ask another one whether it's ready have no image.
        if is_it
            && words
                .next()
                .is_some_and(|word| word.starts_with(b"--image"))
        {
            pids.push(process.file_name().to_string_lossy().into_owned());
        }
    }
    pids
}

/// Kills a process at once.
pub fn kill_process(pid: &str) {
    // It may have ended by itself.
    let _ = output(Command::new("kill").args(["-9", pid]));
}

/// The process that has this word among its arguments, or one that begins with it.
fn process_of(argument: &str) -> String {
    let pid = sh(&format!(
        "for p in /proc/[0-9]*; do
           if tr '\\0' '\\n' < $p/cmdline 2>/dev/null | grep -q -e '^{argument}'; then basename $p; fi
         done"
    ));
    assert_eq!(
        pid.lines().count(),
        1,
        "{argument}: one process, and not {pid:?}"
    );
    pid.trim().to_owned()
}

/// Sends a signal to the process of a container that has this word among its arguments, or begins one with it.
pub fn signal(argument: &str, signal: &str) {
    let pid = process_of(argument);
    sh(&format!("kill -{signal} {pid}"));
}

/// A pod whose network loses everything, until the value goes: what comes in, and what it sends.
#[derive(Debug)]
pub struct CutOffPod {
    /// A process of the pod, while it lives.
    pid: String,
}

/// Cuts off the pod of the process that has this word among its arguments, or one that begins with it.
pub fn cut_off_pod(argument: &str) -> CutOffPod {
    let cut = CutOffPod {
        pid: process_of(argument),
    };
    cut.rules("-I");
    cut
}

impl CutOffPod {
    fn rules(&self, change: &str) {
        let Self { pid } = self;
        sh(&format!(
            "for chain in INPUT OUTPUT; do
               nsenter --net=/proc/{pid}/ns/net iptables -w {change} $chain -j DROP
             done"
        ));
    }
}

impl Drop for CutOffPod {
    fn drop(&mut self) {
        // The pod may have ended, and its network with it.
        if PathBuf::from(format!("/proc/{}", self.pid)).exists() {
            self.rules("-D");
        }
    }
}

/// An API server that stands still, until the value goes. Requests to it hang.
#[derive(Debug)]
pub struct ApiServerAway {
    pid: String,
}

/// For how long the tests let the API server stand still: `cargo xtask test e2e` says so.
pub fn api_server_away_for() -> Duration {
    let seconds = std::env::var("PERCOLATOR_E2E_API_SERVER_AWAY_SECONDS");
    let seconds = seconds.expect("PERCOLATOR_E2E_API_SERVER_AWAY_SECONDS is set");
    Duration::from_secs(seconds.parse().expect("a number of seconds"))
}

/// Stops the API server's process.
pub fn stop_api_server() -> ApiServerAway {
    let pid = process_of("--etcd-servers=");
    sh(&format!("kill -STOP {pid}"));
    ApiServerAway { pid }
}

impl Drop for ApiServerAway {
    fn drop(&mut self) {
        sh(&format!("kill -CONT {}", self.pid));
        if !std::thread::panicking() {
            wait("the API server", || kubectl(&["get", "--raw=/readyz"]));
        }
    }
}

/// Sends SIGTERM to the container of a pod, as Kubernetes would; the pod stays, with its log.
pub(crate) fn terminate(space: &Namespace, pod: &str) {
    let found = space.get("pod", pod).expect(pod);
    let id = found["status"]["containerStatuses"][0]["containerID"].as_str();
    let id = id.and_then(|id| id.strip_prefix("containerd://"));
    let id = id.unwrap_or_else(|| panic!("{pod} has no container: {found}"));
    // Its first process: others come and go with `kubectl exec`.
    let pid = sh(&format!(
        "for p in $(grep -ls {id} /proc/[0-9]*/cgroup); do
           p=${{p%/cgroup}}
           if grep -qE '^NSpid:.*[^0-9]1$' $p/status 2>/dev/null; then basename $p; fi
         done"
    ));
    assert_eq!(
        pid.lines().count(),
        1,
        "{pod}, {id}: one process, and not {pid:?}"
    );
    sh(&format!("kill -TERM {pid}"));
}

/// A file system of its own in the folder of a volume; it goes away with the value.
#[derive(Debug)]
pub struct SmallVolume {
    folder: PathBuf,
}

impl SmallVolume {
    /// Mounts one of so many MiB, before a pod uses the volume.
    pub fn mount(folder: PathBuf, mib: u32) -> Self {
        let at = folder.display();
        sh(&format!(
            "mount -t tmpfs -o size={mib}m,mode=0770 percolator-e2e {at}"
        ));
        Self { folder }
    }

    /// Fills it until so many MiB are left.
    pub fn fill(&self, left_mib: u64) {
        let at = self.folder.display();
        sh(&format!(
            "free=$(df --output=avail -BM {at} | tail -n 1 | tr -dc 0-9)
             head -c $(( (free - {left_mib}) * 1024 * 1024 )) /dev/zero > {at}/filling"
        ));
    }
}

impl Drop for SmallVolume {
    fn drop(&mut self) {
        let at = self.folder.display().to_string();
        let _ = output(Command::new("umount").args(["-l", &at]));
    }
}
