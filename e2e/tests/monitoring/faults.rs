//! Injected faults, each in a cluster of its own, so that an alert's labels name its fault.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use percolator_e2e::leaders;
use percolator_e2e::nodes::SmallVolume;
use percolator_e2e::prometheus::{Firing, Prometheus};
use percolator_e2e::{Kube, Namespace, OPERATOR, TIMEOUT, kubectl, say, small, wait};

/// The clusters, what becomes of each, and the alerts that are to fire about it, and no others.
const FAULTS: [(&str, &str, &[&str]); 6] = [
    (
        "away",
        "one of two tablet servers is scaled away",
        // Collection goes on without it.
        &["PercolatorServerMissing", "PercolatorTabletsDown"],
    ),
    (
        "headless",
        "the master is scaled away",
        // The oracle hands out nothing when its lease is over.
        &["PercolatorNotReady", "PercolatorRoleMissing"],
    ),
    (
        "hung",
        "the oracle's process stands still",
        &["PercolatorRoleDown", "PercolatorServerMissing"],
    ),
    (
        "held",
        "a transaction stays open",
        &["PercolatorOldGcLock", "PercolatorSafePointStuck"],
    ),
    (
        "late",
        "the oracle's clock is set back by a minute",
        &["PercolatorOracleClockOff"],
    ),
    (
        "full",
        "a tablet server's volume is full",
        &["PercolatorDiskFilling", "PercolatorDiskFull"],
    ),
];
/// The alert of no cluster: the operator is scaled away.
const OF_THE_OPERATOR: [&str; 1] = ["PercolatorOperatorIdle"];
/// Alerts that may fire for a moment when a fault is injected, because alerts wait for a sixtieth of the time here, and the reasons.
const FOR_A_MOMENT: [(&str, &str, &str); 4] = [
    (
        "away",
        "PercolatorRoleDown",
        "a pod that ends is a target for some seconds still",
    ),
    (
        "headless",
        "PercolatorRoleDown",
        "a pod that ends is a target for some seconds still",
    ),
    (
        "",
        "PercolatorRoleDown",
        "the operator's pod that ends is a target for some seconds still",
    ),
    (
        "hung",
        "PercolatorSafePointStuck",
        "collection waits for the oracle, until kubelet starts it again",
    ),
];
/// Nothing else than expected fires for so long, before all alerts that have fired are checked.
const LONG_ENOUGH: Duration = Duration::from_secs(10);
/// Of the small volume: new data is refused below 64 MiB.
const VOLUME_MIB: u32 = 176;
const ROOM_MIB: u64 = 48;

/// The injected faults, which end with the value.
#[derive(Default)]
pub(crate) struct Faulty {
    volume: Option<SmallVolume>,
    shell: Option<Shell>,
}

/// A `percolator shell`, which ends with the value.
struct Shell {
    process: Child,
    /// Not closed before: it might not outlive that.
    says: BufReader<ChildStderr>,
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Makes the clusters.
pub(crate) fn begin(space: &Namespace) {
    for (name, _, _) in FAULTS {
        let more = match name {
            // Collection waits for a tablet server for as long as this, at most a minute, and then goes on without it. The
            // alert of a safe point that stands still waits for a sixtieth of its time here.
            "away" | "held" => "  gc: {retention: 5s}",
            _ => "",
        };
        let manifest = small(name, more);
        let manifest = match name {
            // It would move its tablets to the other one first.
            "away" => manifest.replace("replicas: 1", "replicas: 2\n    drainOnStop: 0s"),
            _ => manifest,
        };
        space.apply(&manifest).expect(name);
    }
}

/// Their pods, as long as all is well.
pub(crate) fn pods() -> impl Iterator<Item = String> {
    let roles =
        |(name, _, _)| ["master-0", "tso-0", "tablet-0"].map(|role| format!("{name}-{role}"));
    let more = ["away-tablet-1", "full-tablet-1"].map(str::to_owned);
    FAULTS.into_iter().flat_map(roles).chain(more)
}

/// Waits until they serve, and prepares what can go wrong only then.
pub(crate) fn ready(kube: &Kube, space: &Namespace) -> Faulty {
    for (name, _, _) in FAULTS {
        space.wait_until_up_to_date(name);
    }
    let mut faulty = Faulty::default();
    // Its second tablet server finds a claim that is there already, with a volume of its own file system.
    space
        .apply(
            "
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data-full-tablet-1}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 256Mi}}}
",
        )
        .expect("a claim");
    faulty.volume = Some(SmallVolume::mount(
        folder(space, "data-full-tablet-1"),
        VOLUME_MIB,
    ));
    // Without the cluster's labels it would be in the way.
    let label = ["label", "pvc", "data-full-tablet-1"];
    let labels = ["percolator.dev/cluster=full"];
    space
        .kubectl(&[&label[..], &labels].concat())
        .expect("labels");
    space
        .change("full", r#"{"tablets":{"replicas":2}}"#)
        .expect("a tablet server more");
    space.wait_until_up_to_date("full");
    for name in ["away", "full"] {
        // One tablet on each of its servers.
        let server = format!("{name}:7400");
        let pod = format!("table-of-{name}");
        space.start(
            kube,
            &pod,
            &["-c", &server, "table", "create", "t", "--split-at", "m"],
        );
        assert!(space.wait_for_end(&pod).0);
    }
    // The operator would undo the rest.
    for name in ["away", "headless", "late"] {
        space.change(name, r#"{"paused":true}"#).expect(name);
        space.wait_for(name, "Paused", "True", "PausedBySpec");
    }
    let clock = r#"[{"op":"add","path":"/spec/template/spec/containers/0/args/-","value":"--test-clock=/data/clock"}]"#;
    space
        .kubectl(&[
            "patch",
            "statefulset",
            "late-tso",
            "--type=json",
            "-p",
            clock,
        ])
        .expect("a clock that a test can set");
    space
        .kubectl(&["rollout", "status", "statefulset/late-tso", TIMEOUT])
        .expect("the oracle serves");
    faulty
}

/// The folder behind a claim, once it has one.
fn folder(space: &Namespace, claim: &str) -> PathBuf {
    let volume = wait(claim, || {
        let found = space.get("pvc", claim)?;
        match (
            found["status"]["phase"].as_str(),
            found["spec"]["volumeName"].as_str(),
        ) {
            (Some("Bound"), Some(volume)) => Ok(volume.to_owned()),
            _ => Err(found.to_string()),
        }
    });
    let path = ["get", "pv", &volume, "-o", "jsonpath={.spec.local.path}"];
    kubectl(&path).expect("its volume").into()
}

/// Lets everything go wrong at once.
pub(crate) fn produce(kube: &Kube, space: &Namespace, faulty: &mut Faulty) {
    for (name, what, _) in FAULTS {
        say(&format!("{name}: {what}"));
        match name {
            "away" => scale(space, "away-tablet", 1),
            "headless" => scale(space, "headless-master", 0),
            "hung" => leaders::signal(space, "hung-tso-0", "STOP"),
            "held" => faulty.shell = Some(open_transaction(space)),
            "late" => std::fs::write(folder(space, "data-late-tso-0").join("clock"), "-60000")
                .expect("a clock"),
            "full" => {
                let volume = faulty.volume.as_ref().expect("a volume");
                volume.fill(ROOM_MIB);
                // It notices when it is asked to write.
                space.start(kube, "put", &["-c", "full:7400", "put", "t", "z", "c", "v"]);
            }
            other => panic!("{other}: how?"),
        }
    }
    let operator = "deployment/percolator-percolator-operator";
    // What it says in a failure of this test would be gone with it.
    let log = kubectl(&["-n", OPERATOR, "logs", operator, "--tail=5000"]).unwrap_or_default();
    let warned = |line: &&str| line.contains(r#""WARN""#) || line.contains(r#""ERROR""#);
    let warnings: Vec<&str> = log.lines().filter(warned).collect();
    say(&format!("the operator's warnings: {}", warnings.len()));
    for line in warnings.iter().rev().take(5) {
        say(line);
    }
    kubectl(&["-n", OPERATOR, "scale", operator, "--replicas=0"]).expect("no operator");
}

fn scale(space: &Namespace, set: &str, replicas: u32) {
    let replicas = format!("--replicas={replicas}");
    space
        .kubectl(&["scale", "statefulset", set, &replicas])
        .expect(set);
}

/// A transaction that goes on as long as the value.
fn open_transaction(space: &Namespace) -> Shell {
    let ask = || -> std::io::Result<(Shell, String)> {
        let mut process = Command::new("kubectl")
            .args(["-n", space.name(), "exec", "-i", "held-master-0", "--"])
            .args(["/usr/local/bin/percolator", "-c", "held:7400", "shell"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let input = process.stdin.as_mut().expect("a pipe");
        // One that has ended already says why below.
        let _ = input.write_all(b"begin\n");
        let says = BufReader::new(process.stderr.take().expect("a pipe"));
        let mut shell = Shell { process, says };
        let mut first = String::new();
        shell.says.read_line(&mut first)?;
        Ok((shell, first))
    };
    wait("an open transaction", || {
        let (shell, said) = ask().map_err(|error| error.to_string())?;
        if said.starts_with("start_ts") {
            Ok(shell)
        } else {
            Err(said)
        }
    })
}

/// The alerts that are to fire, with the clusters that they are about.
fn expected() -> BTreeSet<(String, String)> {
    let of_clusters = FAULTS.into_iter().flat_map(|(cluster, _, alerts)| {
        alerts
            .iter()
            .map(move |alert| (cluster.to_owned(), (*alert).to_owned()))
    });
    let of_operator = OF_THE_OPERATOR.map(|alert| (String::new(), alert.to_owned()));
    of_clusters.chain(of_operator).collect()
}

/// Whether an alert says something of what the faults don't touch: the volumes of these tests are folders of this
/// machine's disk, and what others write there is a trend too, the small volume alone is a file system; and on a disk that
/// stands still for seconds requests are slow, and limits late.
fn is_of_this_machine(firing: &Firing) -> bool {
    match &*firing.alert {
        "PercolatorDiskFilling" => firing.cluster != "full",
        "PercolatorSlowRequests" | "PercolatorOracleLimitNear" => true,
        // They repeat what other alerts say, of every fault that the operator sees before it is scaled away.
        "PercolatorClusterDegraded" | "PercolatorClusterUnavailable" => true,
        _ => false,
    }
}

/// All that has fired since Prometheus was started, but what is of this machine.
fn fired(prometheus: &Prometheus) -> Result<Vec<Firing>, String> {
    let mut fired = prometheus.fired()?;
    fired.retain(|firing| !is_of_this_machine(firing));
    Ok(fired)
}

/// Panics if one of these has fired: an alert that ends again has woken somebody.
fn refuse(when: &str, wrong: &[&Firing]) {
    let lines: Vec<String> = wrong.iter().map(|firing| format!("\n{firing}")).collect();
    assert!(wrong.is_empty(), "{when}:{}", lines.concat());
}

/// Nothing goes wrong, and nothing has fired since Prometheus was started.
pub(crate) fn check_quiet(prometheus: &Prometheus) {
    let fired = fired(prometheus).expect("the alerts");
    refuse(
        "alerts have fired while all was well",
        &fired.iter().collect::<Vec<_>>(),
    );
}

/// Each fault has its alerts, and no others have ever fired. One that has ended meanwhile was seen: Kubernetes starts again
/// what hangs.
pub(crate) fn check(prometheus: &Prometheus) {
    let expected = expected();
    let others = |fired: &Firing| !expected.contains(&(fired.cluster.clone(), fired.alert.clone()));
    let is_for_a_moment = |fired: &Firing| {
        let mut known = FOR_A_MOMENT.iter();
        known.any(|(cluster, alert, _)| (*cluster, *alert) == (&*fired.cluster, &*fired.alert))
    };
    let check = || {
        let fired = fired(prometheus)?;
        let wrong: Vec<&Firing> = fired
            .iter()
            .filter(|fired| others(fired) && !is_for_a_moment(fired))
            .collect();
        refuse("alerts have fired that are about no fault", &wrong);
        Ok::<_, String>(fired)
    };
    wait("each fault's alerts", || {
        let mut missing = expected.clone();
        for firing in check()? {
            missing.remove(&(firing.cluster, firing.alert));
        }
        if missing.is_empty() {
            Ok(())
        } else {
            Err(format!("missing {missing:?}"))
        }
    });
    // What is for a moment has ended, and stays so.
    wait("what fires for a moment to end", || {
        let now = prometheus
            .ask("vector(time())")?
            .first()
            .map(|now| now.value);
        let now = now.ok_or("no time")?;
        let fired = check()?;
        let lasting: Vec<String> = fired
            .iter()
            .filter(|fired| others(fired) && fired.last > now - LONG_ENOUGH.as_secs_f64())
            .map(ToString::to_string)
            .collect();
        if lasting.is_empty() {
            Ok(())
        } else {
            Err(lasting.join(", "))
        }
    });
    for firing in fired(prometheus).expect("the alerts") {
        let why = FOR_A_MOMENT
            .iter()
            .find(|(cluster, alert, _)| (*cluster, *alert) == (&*firing.cluster, &*firing.alert));
        let why = why.map_or_else(String::new, |(_, _, why)| format!(" ({why})"));
        say(&format!("{firing}{why}"));
    }
}
