//! Nodes: each has a network namespace, a containerd, a kubelet and a kube-proxy of its own.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::Context as _;

use super::{
    Kube,
    network::{Family, Network},
    pki,
    sh::{output, sh, start, wait},
};

/// The prefix of all names of nodes on this machine: network namespaces, links, control groups.
pub(super) const PREFIX: &str = "percolator-kube";
/// Of links, whose names have 15 letters at the most.
pub(super) const LINK: &str = "perc-kube";
/// The folder of their sockets and of what runs on them.
pub(super) const RUN: &str = "/run/percolator-kube";
/// The mark of the machine's routes, a number that no other program is known to use.
const ROUTES: &str = "proto 213";

const CONTROLLERS: [&str; 9] = [
    "cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd",
];

/// A node by its number, from 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node(pub u32);

impl Node {
    /// The node's name.
    pub(crate) fn name(self) -> String {
        format!("node-{}", self.0)
    }

    /// The name of its network namespace, and of its control groups.
    fn own(self) -> String {
        format!("{PREFIX}-{}", self.name())
    }

    fn link(self) -> String {
        format!("{LINK}-{}", self.0)
    }

    /// Short: a socket's path may have some hundred letters.
    fn run(self) -> PathBuf {
        Path::new(RUN).join(self.name())
    }

    /// The socket of the node's containerd.
    pub(crate) fn socket(self) -> PathBuf {
        self.run().join("containerd.sock")
    }

    fn inside(self, program: &Path) -> Command {
        // `ip netns exec` would mount /sys anew, and hide the control groups.
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.own()));
        command.arg(program);
        command
    }

    /// Imports an image into the node's containerd.
    pub(crate) fn load(self, archive: &Path) -> anyhow::Result<()> {
        output(
            Command::new("ctr")
                .arg("-a")
                .arg(self.socket())
                .args(["-n", "k8s.io", "images", "import"])
                .arg(archive),
        )
        .with_context(|| format!("cannot load {} into {}", archive.display(), self.name()))?;
        Ok(())
    }
}

/// Makes the network of all nodes.
pub(crate) fn make_network(network: Network, count: u32) -> anyhow::Result<()> {
    sh(&format!(
        "ip link add {LINK} type bridge
         ip link set {LINK} up"
    ))?;
    for number in 1..=count {
        let node = Node(number);
        let (own, link) = (node.own(), node.link());
        sh(&format!(
            "ip netns add {own}
             ip link add {link} type veth peer name eth0 netns {own}
             ip link set {link} master {LINK} up
             nsenter --net=/run/netns/{own} sh -euc 'ip link set eth0 up; ip link set lo up'"
        ))?;
    }
    let mut families = network.families().iter();
    families.try_for_each(|family| make_routes(*family, count))
}

/// Gives nodes and their pods addresses of a family, and ways to each other.
fn make_routes(family: Family, count: u32) -> anyhow::Result<()> {
    let (ip, iptables, hub, mask) = (family.ip(), family.iptables(), family.hub(), family.mask());
    let (forwarding, added) = (family.forwarding(), family.added());
    let (pods, services) = (family.pods(), family.services());
    sh(&format!(
        "{ip} addr add {hub}/{mask} dev {LINK} {added}
         # Nothing of the cluster leaves the machine.
         {ip} route add blackhole {pods} {ROUTES}
         {ip} route add blackhole {services} {ROUTES}
         {iptables} -I FORWARD -i {LINK} ! -o {LINK} -j DROP"
    ))?;
    if family == Family::Ipv4 {
        // Of IPv6 the machine itself has nothing to pass on, and would take no more routes from its routers.
        sh(&format!("sysctl -qw {forwarding}=1"))?;
    }
    for number in 1..=count {
        let own = Node(number).own();
        let (address, pods) = (family.node(number), family.pods_of(number));
        let mut routes = String::new();
        for other in (1..=count).filter(|other| *other != number) {
            let (pods, node) = (family.pods_of(other), family.node(other));
            routes += &format!("{ip} route add {pods} via {node}; ");
        }
        sh(&format!(
            "nsenter --net=/run/netns/{own} sh -euc '{ip} addr add {address}/{mask} dev eth0 {added}
               {ip} route add default via {hub}; {routes}
               sysctl -qw {forwarding}=1'
             {ip} route add {pods} via {address}"
        ))?;
    }
    Ok(())
}

/// Starts a node's programs, and loads `images` into it.
pub(crate) fn up(
    kube: &Kube,
    network: Network,
    node: Node,
    images: &[&Path],
) -> anyhow::Result<()> {
    let name = node.name();
    let addresses = network.list(|family| family.node(node.0));
    let folder = kube.folder.join(&name);
    let run = node.run();
    fs::create_dir_all(folder.join("cni"))?;
    fs::create_dir_all(&run)?;
    for controller in CONTROLLERS {
        fs::create_dir_all(format!("/sys/fs/cgroup/{controller}/{}", node.own()))?;
    }
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let all = fs::read_to_string(format!("/sys/fs/cgroup/cpuset/{file}"))?;
        fs::write(format!("/sys/fs/cgroup/cpuset/{}/{file}", node.own()), all)?;
    }
    let pki = kube.folder.join("pki");
    let hosts = network.list(|family| format!("IP:{}", family.node(node.0)));
    let hosts = format!("DNS:{name},{hosts}");
    pki::certificate(
        &pki,
        &name,
        &format!("/O=system:nodes/CN=system:node:{name}"),
        &hosts,
    )?;
    let kubeconfig = kube.folder.join(format!("{name}.conf"));
    pki::kubeconfig(&pki, &name, &network.first().server(), &kubeconfig)?;
    write_configurations(kube, network, node)?;

    let mut containerd = node.inside(Path::new("containerd"));
    containerd
        .arg("--config")
        .arg(folder.join("containerd.toml"));
    start(
        &mut containerd,
        &kube.log(&format!("containerd-{}", node.0)),
    )?;
    wait(Duration::from_secs(60), || {
        let mut version = Command::new("ctr");
        version.arg("-a").arg(node.socket()).arg("version");
        output(&mut version).map_err(|error| format!("{name}'s containerd: {error:#}"))
    })?;
    for image in images {
        node.load(image)?;
    }
    let mut kubelet = node.inside(&kube.programs.of("kubelet"));
    kubelet
        .arg(format!(
            "--config={}",
            folder.join("kubelet.yaml").display()
        ))
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .arg(format!("--hostname-override={name}"))
        .arg(format!("--node-ip={addresses}"))
        .arg(format!(
            "--node-labels=topology.kubernetes.io/zone=zone-{}",
            node.0
        ))
        .arg(format!("--root-dir={}", folder.join("kubelet").display()));
    start(&mut kubelet, &kube.log(&format!("kubelet-{}", node.0)))?;
    let mut proxy = node.inside(&kube.programs.of("kube-proxy"));
    proxy.arg(format!("--config={}", folder.join("proxy.yaml").display()));
    start(&mut proxy, &kube.log(&format!("proxy-{}", node.0)))
}

fn write_configurations(kube: &Kube, network: Network, node: Node) -> anyhow::Result<()> {
    let name = node.name();
    let (hub, any) = (network.first().hub(), network.first().unspecified());
    let all_pods = network.list(Family::pods);
    let ranges = network.list(|family| format!(r#"[{{"subnet":"{}"}}]"#, family.pods_of(node.0)));
    let routes = network.list(|family| format!(r#"{{"dst":"{}"}}"#, family.everywhere()));
    let folder = kube.folder.join(&name);
    let (d, run) = (folder.display(), node.run());
    let run = run.display();
    let kube_folder = kube.folder.display();
    for (file, text) in [
        (
            "containerd.toml",
            format!(
                r#"version = 2
root = "{d}/containerd"
state = "{run}/state"
[grpc]
  address = "{run}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  # Not among those of the machine's other containers.
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      Root = "{run}/runc"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{d}/cni"
"#
            ),
        ),
        (
            "cni/10-bridge.conflist",
            format!(
                r#"{{"cniVersion":"1.0.0","name":"{PREFIX}","plugins":[
{{"type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":false,"hairpinMode":true,
"ipam":{{"type":"host-local","dataDir":"{d}/ipam","ranges":[{ranges}],"routes":[{routes}]}}}},
{{"type":"portmap","capabilities":{{"portMappings":true}}}}]}}
"#
            ),
        ),
        ("resolv.conf", format!("nameserver {hub}\n")),
        ("kubelet.yaml", kubelet_configuration(kube, network, node)),
        (
            "proxy.yaml",
            format!(
                "apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {{kubeconfig: {kube_folder}/proxy.conf}}
mode: iptables
bindAddress: '{any}'
clusterCIDR: '{all_pods}'
hostnameOverride: {name}
conntrack: {{maxPerCore: 0}}
"
            ),
        ),
    ] {
        let file = folder.join(file);
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

fn kubelet_configuration(kube: &Kube, network: Network, node: Node) -> String {
    let (name, own) = (node.name(), node.own());
    let (hub, any) = (network.first().hub(), network.first().unspecified());
    let (folder, run, pki) = (kube.folder.join(&name), node.run(), kube.folder.join("pki"));
    let (d, run, p) = (folder.display(), run.display(), pki.display());
    format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {{x509: {{clientCAFile: {p}/ca.crt}}, webhook: {{enabled: true}}, anonymous: {{enabled: false}}}}
authorization: {{mode: Webhook}}
address: '{any}'
clusterDNS: ['{hub}']
clusterDomain: cluster.local
cgroupDriver: cgroupfs
cgroupRoot: /{own}
enforceNodeAllocatable: []
failSwapOn: false
failCgroupV1: false
containerRuntimeEndpoint: unix://{run}/containerd.sock
tlsCertFile: {p}/{name}.crt
tlsPrivateKeyFile: {p}/{name}.key
resolvConf: {d}/resolv.conf
localStorageCapacityIsolation: false
evictionHard: {{memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}}
nodeStatusUpdateFrequency: 4s
imageMinimumGCAge: 24h
podLogsDir: {d}/logs
"
    )
}

/// Whether there is anything of nodes: their network is what comes first.
pub(crate) fn are_any() -> bool {
    Path::new(&format!("/sys/class/net/{LINK}")).exists()
}

/// Kills what runs on nodes, and takes away what they have on this machine, but for the cluster's folder; nothing that
/// isn't theirs.
pub(crate) fn remove(folder: &Path) -> anyhow::Result<()> {
    let folder = folder.display();
    sh(&format!(
        r#"for group in /sys/fs/cgroup/*/{PREFIX}-node-[1-9]; do
           [ -d $group ] || continue
           for i in $(seq 100); do
             pids=$(find $group -name cgroup.procs -exec cat {{}} + 2>/dev/null || true)
             if [ -z "$pids" ]; then break; fi
             kill -9 $pids 2>/dev/null || true
             sleep 0.2
           done
           find $group -depth -type d -exec rmdir {{}} \; 2>/dev/null || true
         done
         for i in 1 2 3; do
           grep -oE ' ({folder}|{RUN})/[^ ]*' /proc/mounts | sort -r | while read m; do umount -l "$m" || true; done
         done 2>/dev/null
         for n in 1 2 3 4 5 6 7 8 9; do
           ip netns del {PREFIX}-node-$n 2>/dev/null || true
           ip link del {LINK}-$n 2>/dev/null || true
         done
         ip link del {LINK} 2>/dev/null || true
         for ip in 'ip' 'ip -6'; do $ip route flush {ROUTES}; done
         for iptables in iptables ip6tables; do
           while $iptables -D FORWARD -i {LINK} ! -o {LINK} -j DROP 2>/dev/null; do true; done
         done
         # Files that plugins and kubelets keep in places of their own, despite their flags.
         for pod in {folder}/node-*/containerd/io.containerd.grpc.v1.cri/sandboxes/*; do
           [ -d "$pod" ] || continue
           rm -f /var/lib/cni/results/*-"${{pod##*/}}"-* /var/lib/cni/cache/results/*-"${{pod##*/}}"-*
         done
         find /var/log/containers -maxdepth 1 -type l -lname '{folder}/*' -delete 2>/dev/null || true
         rm -rf {RUN}"#
    ))?;
    Ok(())
}
