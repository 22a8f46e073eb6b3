//! A real Kubernetes of several nodes on this machine, for tests and experiments: `cargo xtask kube`. No container engine, no
//! virtual machine: every node is a network namespace with a containerd and a kubelet.
//!
//! It starts its own program again, as `kube up` and `kube volumes`. So a program that uses it has [`KubeCommand`] as its
//! command `kube`.

#![allow(
    clippy::print_stdout,
    reason = "a part of a program for people, which prints on their terminal"
)]

pub mod cmd;
mod control_plane;
mod crowd;
pub mod lock;
mod machine;
pub mod network;
mod nodes;
pub mod oci;
mod pki;
pub mod platform;
pub mod programs;
pub mod release;
mod sh;
pub mod traces;
mod volumes;

use std::{
    ffi::OsStr,
    fs,
    io::ErrorKind,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

use network::{Family, Network};
use nodes::Node;
use programs::Programs;
use release::Release;
use sh::{output, sh, start, wait};

const PORT: u16 = 6443;
/// Not the usual ones: a machine may have an etcd of its own.
const ETCD: &str = "127.0.0.1:23790";
const ETCD_PEERS: &str = "127.0.0.1:23800";
/// There is one such cluster on a machine, anyone who made it. Everything of it outside of its folder has this name, too: a
/// machine may have other Kubernetes, and containers of its own.
const FOLDER: &str = "/var/lib/percolator-kube";
/// The file that says which release it is.
const RELEASE: &str = "release";
const READY: Duration = Duration::from_secs(120);
/// Also where another one has been built over it since it was started.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// Addresses of a cluster.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
pub enum Addresses {
    /// Of IPv4.
    #[default]
    Ipv4,
    /// Of IPv6.
    Ipv6,
    /// Of IPv4 first, and of IPv6.
    Both,
}

impl Addresses {
    fn network(self) -> Network {
        match self {
            Self::Ipv4 => Network::IPV4,
            Self::Ipv6 => Network::IPV6,
            Self::Both => Network::BOTH,
        }
    }
}

/// A command of `cargo xtask kube`.
#[derive(Debug, clap::Subcommand)]
pub enum KubeCommand {
    /// Build what it needs (some eight minutes, once on a machine), and start it: seconds.
    Up {
        /// How many nodes, from 1 to 9.
        #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=9))]
        nodes: u32,
        /// Which addresses nodes, pods and services have.
        #[arg(long, value_enum, default_value_t)]
        addresses: Addresses,
        /// Which version of Kubernetes.
        #[arg(long, value_enum, default_value_t)]
        kubernetes: Release,
        /// The caller, a test, holds the lock.
        #[arg(long, hide = true)]
        under_lock: bool,
    },
    /// Stop it, and remove everything that it made, also what a crash left behind.
    Down,
    /// Load an image, an OCI archive as `cargo xtask image` makes it, into every node.
    Load {
        /// The archive.
        #[arg(value_name = "FILE")]
        image: PathBuf,
    },
    /// Say what runs.
    Status,
    /// Print what a shell needs to use kubectl and helm: eval "$(cargo xtask kube env)".
    Env,
    /// Measure the operator, built for release, with many clusters: an API server, and no nodes.
    ///
    /// One that runs already goes first.
    #[command(after_help = "Example:\n  cargo xtask kube crowd --clusters 100")]
    Crowd {
        /// How many.
        #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        clusters: u32,
        /// How long the idle operator is measured, in seconds.
        #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3_600))]
        idle: u64,
    },
    /// Make volumes for claims: a part of `up`.
    #[command(hide = true)]
    Volumes,
}

/// Carries out a command. `root`: the folder of the workspace. `build_operator` gives the operator's program, built for release.
///
/// # Errors
/// It failed, or this machine can't run a Kubernetes.
pub fn run(
    root: &Path,
    command: &KubeCommand,
    build_operator: impl FnOnce() -> anyhow::Result<PathBuf>,
) -> anyhow::Result<ExitCode> {
    match command {
        KubeCommand::Up {
            nodes,
            addresses,
            kubernetes,
            under_lock,
        } => {
            // Without root not even the lock can be taken.
            programs::is_possible(root, *kubernetes)?;
            let take = || lock::take("cargo xtask kube up", Duration::ZERO);
            let _alone = (!under_lock).then(take).transpose()?;
            let kube = up(root, *kubernetes, addresses.network(), *nodes)?;
            println!("{}", kube.kubectl(["get", "nodes", "-o", "wide"])?);
            println!("to use it: eval \"$(cargo xtask kube env)\"");
        }
        KubeCommand::Down if !is_any() => {}
        KubeCommand::Down => {
            let _alone = lock::take("cargo xtask kube down", Duration::ZERO)?;
            down()?;
        }
        KubeCommand::Load { image } => {
            let kube = Kube::running(root)?;
            kube.load(image)?;
            println!("{} nodes have {}", kube.nodes()?.len(), image.display());
        }
        KubeCommand::Status => match Kube::running(root) {
            Ok(kube) => {
                println!("{}", kube.kubectl(["get", "nodes", "-o", "wide"])?);
                println!("{}", kube.kubectl(["get", "pods", "-A", "-o", "wide"])?);
            }
            Err(error) => {
                println!("{error:#}");
                return Ok(ExitCode::FAILURE);
            }
        },
        KubeCommand::Env => {
            let kube = Kube::running(root)?;
            let folder =
                |program: &Path| program.parent().map(|folder| folder.display().to_string());
            println!(
                "export KUBECONFIG={} KUBECACHEDIR={} PATH={}:{}:$PATH",
                kube.kubeconfig().display(),
                kube.cache().display(),
                folder(&kube.programs.of("kubectl")).unwrap_or_default(),
                folder(&kube.programs.helm()).unwrap_or_default(),
            );
        }
        KubeCommand::Crowd { clusters, idle } => {
            programs::is_possible(root, Release::Usual)?;
            let _alone = lock::take("cargo xtask kube crowd", Duration::ZERO)?;
            crowd::run(root, build_operator, *clusters, Duration::from_secs(*idle))?;
        }
        KubeCommand::Volumes => volumes::run(&Kube::running(root)?)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A cluster on this machine.
#[derive(Clone, Debug)]
pub struct Kube {
    /// Its folder: certificates, logs, volumes.
    pub folder: PathBuf,
    /// The programs that it runs.
    pub programs: Programs,
}

impl Kube {
    /// The one that runs.
    ///
    /// # Errors
    /// None does.
    pub fn running(root: &Path) -> anyhow::Result<Self> {
        let folder = PathBuf::from(FOLDER);
        if !folder.exists() {
            bail!("no Kubernetes runs here: cargo xtask kube up");
        }
        let release = fs::read_to_string(folder.join(RELEASE)).unwrap_or_default();
        // Until it is written nothing answers.
        let release = Release::of_name(&release).unwrap_or_default();
        let kube = Self {
            folder,
            programs: Programs::find(root, release)?,
        };
        kube.kubectl(["get", "--raw=/readyz"])
            .context("there is one, but it doesn't answer: cargo xtask kube down, and then up")?;
        Ok(kube)
    }

    /// The configuration of an administrator.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("admin.conf")
    }

    /// The cache of kubectl and helm: it goes with the cluster.
    pub fn cache(&self) -> PathBuf {
        self.folder.join("cache")
    }

    /// The audit log of the operator's requests. Tests expect it beside the configuration.
    fn audit(&self) -> PathBuf {
        self.folder.join("audit.log")
    }

    fn log(&self, name: &str) -> PathBuf {
        self.folder.join("log").join(format!("{name}.log"))
    }

    /// A command with the cluster's configuration.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("KUBECONFIG", self.kubeconfig());
        command.env("KUBECACHEDIR", self.cache());
        command
    }

    /// Runs kubectl, and gives what it prints.
    pub fn kubectl<A: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = A>,
    ) -> anyhow::Result<String> {
        let mut command = self.command(&self.programs.of("kubectl"));
        let arguments: Vec<A> = arguments.into_iter().collect();
        let line: Vec<_> = arguments
            .iter()
            .map(|word| word.as_ref().to_string_lossy())
            .collect();
        let line = format!("kubectl {}", line.join(" "));
        output(command.args(&arguments)).context(line)
    }

    /// Applies a manifest.
    pub fn apply(&self, manifest: &str) -> anyhow::Result<String> {
        let mut file = tempfile::NamedTempFile::new()?;
        std::io::Write::write_all(&mut file, manifest.as_bytes())?;
        self.kubectl([
            OsStr::new("apply"),
            OsStr::new("-f"),
            file.path().as_os_str(),
        ])
    }

    /// Its nodes.
    pub(crate) fn nodes(&self) -> anyhow::Result<Vec<Node>> {
        let nodes = (1..=9).map(Node).filter(|node| node.socket().exists());
        Ok(nodes.collect())
    }

    /// Loads an image into every node.
    pub fn load(&self, archive: &Path) -> anyhow::Result<()> {
        let nodes = self.nodes()?;
        nodes.into_iter().try_for_each(|node| node.load(archive))
    }
}

/// Starts a cluster; one that runs already goes first. The caller has the lock, and knows that one can be run here.
pub fn up(root: &Path, release: Release, network: Network, count: u32) -> anyhow::Result<Kube> {
    programs::install_packages()?;
    let kube = Kube {
        folder: FOLDER.into(),
        programs: Programs::build(root, release)?,
    };
    down()?;
    let started = Instant::now();
    let result = start_all(&kube, root, network, count);
    if let Err(error) = result {
        let logs = tails(&kube);
        down()?;
        return Err(error.context(format!("Kubernetes did not start{logs}")));
    }
    println!(
        "{count} nodes are ready after {:.1} s",
        started.elapsed().as_secs_f64()
    );
    Ok(kube)
}

fn tails(kube: &Kube) -> String {
    let logs = kube.folder.join("log");
    sh(&format!(
        "cd {} && tail -n 5 *.log | cut -c1-300",
        logs.display()
    ))
    .map_or_else(|_| String::new(), |logs| format!("\n{logs}"))
}

fn start_all(kube: &Kube, root: &Path, network: Network, count: u32) -> anyhow::Result<()> {
    for folder in ["log", "etcd", "volumes"] {
        fs::create_dir_all(kube.folder.join(folder))
            .with_context(|| format!("cannot make {}/{folder}", kube.folder.display()))?;
    }
    let release = kube.programs.release().name();
    fs::write(kube.folder.join(RELEASE), release).context("cannot write the release")?;
    machine::remember(&kube.folder)?;
    let pause = &*pause_image(root, kube)?;
    nodes::make_network(network, count)?;
    control_plane::start_all(kube, network)?;
    thread::scope(|scope| {
        let nodes: Vec<_> = (1..=count)
            .map(|number| scope.spawn(move || nodes::up(kube, network, Node(number), &[pause])))
            .collect::<Vec<_>>();
        nodes.into_iter().try_for_each(|node| {
            node.join()
                .unwrap_or_else(|_| bail!("a thread ended in a panic"))
        })
    })?;
    kube.apply(STORAGE_CLASS)?;
    // A copy: the program that runs may be built anew meanwhile, and this one is to go on.
    let us = kube.folder.join("xtask");
    fs::copy(THIS_PROGRAM, &us).context("cannot copy this program")?;
    let mut volumes = kube.command(&us);
    volumes.args(["kube", "volumes"]);
    start(&mut volumes, &kube.log("volumes"))?;
    wait(READY, || {
        let nodes = kube
            .kubectl(["get", "nodes", "--no-headers"])
            .map_err(|error| format!("{error:#}"))?;
        let ready = nodes
            .lines()
            .filter(|line| line.contains(" Ready "))
            .count();
        if ready == count as usize {
            Ok(())
        } else {
            Err(format!("{ready} of {count} nodes are ready"))
        }
    })
}

/// As network storage does it: a volume can be had from any node, and can grow.
const STORAGE_CLASS: &str = "
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: local
  annotations: {storageclass.kubernetes.io/is-default-class: 'true'}
provisioner: percolator.dev/local
allowVolumeExpansion: true
reclaimPolicy: Delete
volumeBindingMode: Immediate
";

fn pause_image(root: &Path, kube: &Kube) -> anyhow::Result<PathBuf> {
    let program = kube.folder.join("pause");
    let source = root.join("tools/pause/pause.c");
    output(
        Command::new("cc")
            .args(["-Os", "-static", "-o"])
            .arg(&program)
            .arg(&source),
    )?;
    let image = oci::Image::new("localhost/pause:1", "/pause")?;
    image.program(&program, "/pause")?;
    let archive = kube.folder.join("pause.tar");
    image.write(&archive)?;
    Ok(archive)
}

/// Whether there is anything of a cluster of ours.
pub fn is_any() -> bool {
    Path::new(FOLDER).exists() || nodes::are_any()
}

/// Begins to start a cluster, and kills what does that in the middle, as a crash would: what it has started stays. The
/// caller has the lock.
pub fn up_killed_in_the_middle(release: Release) -> anyhow::Result<()> {
    let mut up = Command::new(THIS_PROGRAM)
        .args([
            "kube",
            "up",
            "--under-lock",
            "--kubernetes",
            &release.name(),
        ])
        .stdout(Stdio::null())
        .spawn()?;
    // By then the control plane runs, and the nodes are being made.
    let is_under_way = wait(READY, || match up.try_wait() {
        Ok(None) if Node(2).socket().exists() => Ok(true),
        Ok(None) => Err("`kube up` has not come to the second node".to_owned()),
        _ => Ok(false),
    });
    // It may have ended by itself.
    let _ = up.kill();
    up.wait()?;
    anyhow::ensure!(is_under_way?, "`kube up` ended before it was killed");
    Ok(())
}

/// Stops whatever a cluster of ours left running, and removes what it made. Harmless when there is none. The caller has
/// the lock.
pub fn down() -> anyhow::Result<()> {
    let folder = Path::new(FOLDER);
    if !is_any() {
        return Ok(());
    }
    let mark = sh::MARK;
    // Anyone who has the mark was started by us; containers have not, and are found by their groups.
    sh(&format!(
        r#"marked() {{ grep -lsz '^{mark}=1$' /proc/[0-9]*/environ | cut -d/ -f3 | grep -vx $$ || true; }}
         for i in $(seq 50); do
           pids=$(marked)
           if [ -z "$pids" ]; then break; fi
           kill -9 $pids 2>/dev/null || true
           sleep 0.1
         done"#
    ))?;
    nodes::remove(folder)?;
    machine::restore(folder)?;
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot remove {FOLDER}"))?;
    }
    wait(Duration::from_secs(30), || {
        Family::ALL.into_iter().try_for_each(|family| {
            match TcpListener::bind((family.unspecified(), PORT)) {
                Err(error) if error.kind() == ErrorKind::AddrInUse => {
                    Err(format!("port {PORT} of the API server: {error}"))
                }
                // Or this machine has no such addresses.
                _ => Ok(()),
            }
        })
    })
}
