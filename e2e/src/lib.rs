//! Shared code of the tests against a real Kubernetes: commands, waiting for conditions, and namespaces that go away. `cargo xtask
//! test e2e` starts the Kubernetes and sets the variables; without them the tests say that they skip.
#![allow(
    clippy::missing_panics_doc,
    reason = "a test fails by panicking, and says why"
)]

pub mod adapter;
pub mod api;
pub mod application;
pub mod audit;
pub mod breakdown;
mod command;
pub mod condition_monitor;
mod files;
mod followed;
pub mod image_webhook;
pub mod late;
pub mod leaders;
pub mod nodes;
pub mod policies;
pub mod prometheus;
pub mod proxies;
pub mod receiver;
pub mod watched;

use std::ffi::OsStr;
use std::process::Command;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use api::Api;
use files::print_end;
pub use files::written;
use serde_json::Value;

/// The label that enforces the restricted pod security standard: on every namespace of the tests.
const RESTRICTED: &str = "pod-security.kubernetes.io/enforce=restricted";
/// A condition that isn't met by then won't be.
pub const WAIT_MAX: Duration = Duration::from_secs(300);
/// A longer poll counts as this one: the machine, or the cluster, stood still.
const POLL_MAX: Duration = Duration::from_secs(2);

/// The namespace of the operator's release.
pub const OPERATOR: &str = "percolator-system";
/// The operator's release.
const RELEASE: &str = "percolator";

/// The program, in every pod.
pub const PROGRAM: &str = "/usr/local/bin/percolator";
/// The exit code of a command that has found money lost, or rows that disagree.
const CHECK_FAILED: i32 = 7;
/// The folder in which a pod that a test starts may write.
pub const SCRATCH: &str = "/scratch";
/// Of Helm and of rollouts: as long as conditions are waited for.
pub const TIMEOUT: &str = "--timeout=300s";

/// The Kubernetes that `cargo xtask test e2e` has started.
#[derive(Clone, Debug)]
pub struct Kube {
    /// The image of all programs.
    pub image: String,
    /// The same programs, under another tag.
    pub other_image: String,
    /// An image that has the program `measure`, for observers.
    pub handler_image: String,
    /// The folder of the project.
    pub root: std::path::PathBuf,
    /// The folder of the Prometheus operator's definitions.
    pub definitions: std::path::PathBuf,
    api: Arc<Api>,
}

impl Kube {
    /// None, and a word about it, where there is no Kubernetes for tests.
    pub fn find() -> Option<Self> {
        let variable = |name| std::env::var(name).ok();
        let (Some(image), Some(other_image), Some(handler_image), Some(definitions)) = (
            variable("PERCOLATOR_E2E_IMAGE"),
            variable("PERCOLATOR_E2E_OTHER_IMAGE"),
            variable("PERCOLATOR_E2E_HANDLER_IMAGE"),
            variable("PERCOLATOR_E2E_DEFINITIONS"),
        ) else {
            skip("there is no Kubernetes to test on: cargo xtask test e2e starts one");
            return None;
        };
        keep_failures();
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        Some(Self {
            image,
            other_image,
            handler_image,
            root,
            definitions: definitions.into(),
            api: Arc::new(Api::start()),
        })
    }

    /// The chart's folder.
    pub fn chart(&self) -> String {
        let chart = self.root.join("charts/percolator-operator");
        chart.display().to_string()
    }

    /// The cluster that README has people apply.
    pub fn example(&self) -> String {
        std::fs::read_to_string(self.root.join("examples/cluster.yaml")).expect("the example")
    }

    /// The block of YAML in a page of docs/ that begins so.
    pub fn documented(&self, page: &str, begins: &str) -> String {
        let text = std::fs::read_to_string(self.root.join("docs").join(page)).expect("a page");
        let blocks = text.split("```").skip(1).step_by(2);
        let mut blocks = blocks.filter_map(|block| block.strip_prefix("yaml\n"));
        let found = blocks.find(|block| block.starts_with(begins));
        found
            .unwrap_or_else(|| panic!("docs/{page} has no block that begins with {begins}"))
            .to_owned()
    }

    /// Runs helm.
    pub fn helm(&self, arguments: &[&str]) -> Result<String, String> {
        output(Command::new("helm").args(arguments))
    }

    /// Installs the operator, or brings it up to date, with these values on top of the test's.
    pub fn install(&self, more: &[&str]) {
        self.upgrade(RELEASE, OPERATOR, &[&["--wait", TIMEOUT], more].concat());
        // Helm doesn't wait for those of before, which may be about to do something still.
        wait("the operators of before to end", || {
            let pods = kubectl(&["-n", OPERATOR, "get", "pods", "-o", "json"])?;
            match items(&pods)?.iter().find(|pod| is_ending(pod)) {
                Some(pod) => Err(pod["metadata"]["name"].to_string()),
                None => Ok(()),
            }
        });
    }

    /// Installs the operator from a chart of another release, with the image of that release.
    pub fn install_older(&self, chart: &str, image: &str) {
        let (_, tag) = image.rsplit_once(':').expect("a tag");
        let tag = format!("image.tag={tag}");
        let more = ["--wait", TIMEOUT, "--set", &tag];
        self.upgrade_to(chart, RELEASE, OPERATOR, &more);
    }

    /// Installs a release of the chart, or brings it up to date, with these arguments on top of the test's.
    fn upgrade(&self, release: &str, namespace: &str, more: &[&str]) {
        self.upgrade_to(&self.chart(), release, namespace, more);
    }

    fn upgrade_to(&self, chart: &str, release: &str, namespace: &str, more: &[&str]) {
        let repository = self.image.rsplit_once(':').expect("an image has a tag").0;
        let repository = format!("image.repository={repository}");
        // The operator's pods hold what is asked of those of clusters.
        let _ = kubectl(&["create", "namespace", namespace]);
        kubectl(&["label", "--overwrite", "namespace", namespace, RESTRICTED]).expect("a label");
        let mut arguments = vec!["upgrade", "--install", release, chart, "-n", namespace];
        arguments.extend(["--set", &repository]);
        if release != RELEASE {
            // The first release has it.
            arguments.extend(["--set", "crds.create=false"]);
        }
        // No autoscaler adds a node here.
        arguments.extend(["--set", "unschedulableTimeout=10s"]);
        arguments.extend(more);
        self.helm(&arguments).expect("helm upgrade --install");
    }

    /// A namespace that goes away with the value.
    pub fn namespace(&self, name: &str) -> Namespace {
        // One of this name may be about to go.
        wait("a new namespace", || {
            kubectl(&["create", "namespace", name])
        });
        kubectl(&["label", "namespace", name, RESTRICTED]).expect("a label");
        Namespace {
            name: name.to_owned(),
            api: self.api.clone(),
        }
    }
}

/// Says why a test doesn't do its work.
#[allow(clippy::print_stdout, reason = "the word that xtask listens for")]
pub fn skip(why: &str) {
    println!("SKIPPED: {why}");
}

/// The failures of this program.
static FAILURES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Keeps the messages of failures. Other threads may go on for minutes after a failure, and print much: the messages are printed
/// again after all that.
fn keep_failures() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let as_ever = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |failure| {
            lock(&FAILURES).push(failure.to_string());
            as_ever(failure);
        }));
    });
}

/// Prints what happens, with the time since the first line.
#[allow(
    clippy::print_stdout,
    reason = "tests that take minutes say what they do"
)]
pub fn say(what: &str) {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    println!("  {:5.0} s  {what}", START.elapsed().as_secs_f64());
}

/// Locks a mutex, also after a panic of its holder.
fn lock<T>(kept: &Mutex<T>) -> MutexGuard<'_, T> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(format!(
            "{}\n{}",
            text(&output.stderr),
            text(&output.stdout)
        ))
    }
}

/// Runs a command; gives its exit code, where no signal ended it, and all that it said.
pub(crate) fn outcome(command: &mut Command) -> Result<(Option<i32>, String), String> {
    let output = command.output().map_err(|error| error.to_string())?;
    let said = [output.stderr, output.stdout].concat();
    let said = String::from_utf8_lossy(&said).trim().to_owned();
    Ok((output.status.code(), said))
}

/// The objects of a list, which is JSON.
fn items(list: &str) -> Result<Vec<Value>, String> {
    let list: Value = serde_json::from_str(list).map_err(|error| error.to_string())?;
    list["items"].as_array().cloned().ok_or(list.to_string())
}

fn is_ending(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// The address for clients in a cluster's namespace.
pub fn server_of(cluster: &str) -> String {
    format!("{cluster}:7400")
}

/// Runs kubectl.
pub fn kubectl<A: AsRef<OsStr>>(arguments: &[A]) -> Result<String, String> {
    output(Command::new("kubectl").args(arguments))
}

/// Waits until `check` gives something; otherwise it says what is missing, which is what the panic says too. Time in which
/// everything stood still, as on a machine that was suspended, is no time in which the condition could have been met.
pub fn wait<T>(what: &str, mut check: impl FnMut() -> Result<T, String>) -> T {
    let mut waited = Duration::ZERO;
    loop {
        let started = Instant::now();
        match check() {
            Ok(found) => return found,
            Err(missing) if waited > WAIT_MAX => {
                panic!("{what}: not within {WAIT_MAX:?}: {missing}")
            }
            Err(_) => std::thread::sleep(Duration::from_millis(200)),
        }
        waited += started.elapsed().min(POLL_MAX);
    }
}

/// Kills every pod of the operator at once; others take their place.
pub fn kill_operators() {
    let all = ["-n", OPERATOR, "delete", "pod", "--all", "--force"];
    kubectl(&[&all[..], &["--grace-period=0"]].concat()).expect("the operators' end");
}

/// Lines of a spec that ask for a proxy, as small as the servers of [`small`].
pub const SMALL_PROXY: &str = "  proxy: {replicas: 1, pod: {resources: {requests: {cpu: 10m}}}}";

/// The smallest cluster, with more lines of its spec. It asks for so little that many of them fit on the nodes at once.
pub fn small(name: &str, more: &str) -> String {
    format!(
        "
apiVersion: percolator.dev/v1alpha1
kind: PercolatorCluster
metadata: {{name: {name}}}
spec:
  oracle:
    storage: {{size: 16Mi}}
    pod: {{resources: {{requests: {{cpu: 10m}}}}}}
  master:
    storage: {{size: 16Mi}}
    # The API server keeps them in another form, which is no difference.
    pod: {{resources: {{requests: {{cpu: \"0.01\", memory: 16384Ki}}}}, env: [{{name: EMPTY, value: \"\"}}]}}
  tablets:
    replicas: 1
    storage: {{size: 256Mi, cacheSize: 16Mi}}
    pod: {{resources: {{requests: {{cpu: 10m}}}}}}
{more}
"
    )
}

/// A namespace of one test.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    api: Arc<Api>,
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.explain();
        }
        // The next test has its own: nobody waits.
        let _ = kubectl(&["delete", "namespace", &self.name, "--wait=false"]);
    }
}

impl Namespace {
    /// The namespace's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// kubectl, in it.
    fn command(&self) -> Command {
        let mut command = Command::new("kubectl");
        command.args(["-n", &self.name]);
        command
    }

    /// Runs kubectl in it.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        let mut all = vec!["-n", &self.name];
        all.extend(arguments);
        kubectl(&all)
    }

    /// The objects of the namespace, for the message of a failure.
    #[allow(clippy::print_stdout, reason = "a failure's circumstances")]
    fn explain(&self) {
        for arguments in [
            &["get", "percolatorclusters,pods,pvc", "-o", "wide"][..],
            &["get", "percolatorclusters", "-o", "yaml"],
            &["get", "events", "--sort-by=.lastTimestamp"],
        ] {
            println!("{}", self.kubectl(arguments).unwrap_or_else(|error| error));
        }
        for namespace in [OPERATOR, late::LATE] {
            let selector = "-lapp.kubernetes.io/name=percolator-operator";
            let logs = ["-n", namespace, "logs", selector, "--tail=30", "--prefix"];
            println!("{}", kubectl(&logs).unwrap_or_else(|error| error));
        }
        // Anyone who sees only the end sees what it was.
        for failure in lock(&FAILURES).iter() {
            println!("FAILURE: {failure}");
        }
    }

    /// Applies a manifest.
    pub fn apply(&self, manifest: &str) -> Result<String, String> {
        // What begins with a brace is JSON to an older kubectl.
        let file = written(&format!("---\n{manifest}"))?;
        let path = file.path().display().to_string();
        self.kubectl(&["apply", "-f", &path])
    }

    /// Writes an object that was read before, unless it has changed since.
    pub fn replace(&self, object: &str) -> Result<String, String> {
        let file = written(object)?;
        let path = file.path().display().to_string();
        self.kubectl(&["replace", "-f", &path])
    }

    /// Changes a cluster's spec.
    pub fn change(&self, cluster: &str, spec: &str) -> Result<String, String> {
        self.change_as("perc", cluster, spec)
    }

    /// [`Self::change`], by the name of one of the definition's versions.
    pub fn change_as(&self, kind: &str, cluster: &str, spec: &str) -> Result<String, String> {
        let patch = format!("{{\"spec\":{spec}}}");
        self.kubectl(&["patch", kind, cluster, "--type=merge", "-p", &patch])
    }

    /// Logs what happens in it.
    pub fn say(&self, what: &str) {
        say(&format!("{}: {what}", self.name));
    }

    /// Gives a cluster's service the label `team`, and waits until it has it: by then the operator that runs now has reconciled the
    /// cluster.
    pub fn give_team(&self, cluster: &str, team: &str) {
        self.give_team_as("perc", cluster, team);
    }

    /// [`Self::give_team`], by the name of one of the definition's versions.
    pub fn give_team_as(&self, kind: &str, cluster: &str, team: &str) {
        let label = format!(r#"{{"service":{{"labels":{{"team":"{team}"}}}}}}"#);
        self.change_as(kind, cluster, &label).expect("a label");
        self.wait_for_team(cluster, team);
    }

    /// Waits until the label `team` of a cluster's service says so.
    pub fn wait_for_team(&self, cluster: &str, team: &str) {
        wait("the label", || {
            let service = self.get("service", cluster)?;
            match &service["metadata"]["labels"]["team"] {
                found if found == team => Ok(()),
                other => Err(other.to_string()),
            }
        });
    }

    /// Waits until there is nothing of these kinds in it.
    pub fn wait_for_none(&self, kinds: &str) {
        wait(&format!("the end of {kinds}"), || {
            match self.kubectl(&["get", kinds, "-o", "name"])?.as_str() {
                "" => Ok(()),
                left => Err(left.to_owned()),
            }
        });
    }

    /// An object as JSON.
    pub fn get(&self, kind: &str, name: &str) -> Result<Value, String> {
        self.api.object(&self.name, kind, name)
    }

    /// The log of a pod.
    pub fn log(&self, pod: &str) -> Result<String, String> {
        self.api.log(&self.name, pod)
    }

    /// A cluster's pods.
    pub fn pods(&self, cluster: &str) -> Result<Vec<Value>, String> {
        let labels = format!("percolator.dev/cluster={cluster}");
        self.api.objects(&self.name, "pod", &labels)
    }

    /// Waits until a condition of the cluster, for its newest generation, has this status and this reason.
    pub fn wait_for(&self, cluster: &str, kind: &str, status: &str, reason: &str) {
        self.wait_for_all(cluster, &[(kind, status, reason)]);
    }

    /// Waits until all of these conditions hold at a time.
    pub fn wait_for_all(&self, cluster: &str, expected: &[(&str, &str, &str)]) {
        wait(&format!("{expected:?}"), || {
            self.has_conditions(cluster, expected)
        });
    }

    /// Whether it has these conditions now; what is missing, if not.
    pub fn has_conditions(
        &self,
        cluster: &str,
        expected: &[(&str, &str, &str)],
    ) -> Result<(), String> {
        let cluster = self.get("perc", cluster)?;
        for (kind, status, reason) in expected {
            let found = condition(&cluster, kind).ok_or("no such condition yet")?;
            if found["observedGeneration"] != cluster["metadata"]["generation"]
                || found["status"] != *status
                || found["reason"] != *reason
            {
                return Err(found.to_string());
            }
        }
        Ok(())
    }

    /// Waits until a condition is true for this reason, and its message says this. The message.
    pub fn wait_for_words(
        &self,
        cluster: &str,
        kind: &str,
        reason: &str,
        words: &[&str],
    ) -> String {
        wait(&format!("{kind} {reason} {words:?}"), || {
            self.has_conditions(cluster, &[(kind, "True", reason)])?;
            let found = self.get("perc", cluster)?;
            let message = condition(&found, kind).and_then(|it| it["message"].as_str());
            let message = message.unwrap_or_default().to_owned();
            if words.iter().all(|word| message.contains(word)) {
                Ok(message)
            } else {
                Err(message)
            }
        })
    }

    /// Asserts that all the money of a bank of so many accounts is there, while others may move it.
    pub fn all_money_is_there(&self, cluster: &str, accounts: u32) {
        let (server, accounts) = (server_of(cluster), accounts.to_string());
        let pod = format!("{cluster}-master-0");
        let exec = ["exec", &pod, "--", PROGRAM, "-c", &server];
        let bank = ["bank", "--accounts", &accounts];
        let once = ["--clients", "1", "--duration", "100ms"];
        let ask = [&exec[..], &bank, &once].concat();
        // The pod may be a new one just now, or unknown to the node's proxy.
        let said = wait("the bank", || {
            let (code, said) = outcome(self.command().args(&ask))?;
            assert_ne!(code, Some(CHECK_FAILED), "{said}");
            match code {
                Some(0) => Ok(said),
                _ => Err(said),
            }
        });
        assert!(said.contains("no money was lost or made"), "{said}");
    }

    /// Waits until the cluster is what its spec says, and serves: by its conditions, and by its pods, because the
    /// operator may not have received yet what has just happened.
    pub fn wait_until_up_to_date(&self, cluster: &str) {
        wait(&format!("{cluster} as its spec says"), || {
            self.is_up_to_date(cluster)
        });
    }

    /// Whether it is so now; what is missing, if not.
    pub fn is_up_to_date(&self, cluster: &str) -> Result<(), String> {
        let conditions = [
            ("Available", "True", "AllServersReady"),
            ("Progressing", "False", "UpToDate"),
            ("Degraded", "False", "AsExpected"),
            ("Ready", "True", "UpToDate"),
            ("Reconciling", "False", "UpToDate"),
            ("Stalled", "False", "NotStalled"),
        ];
        self.pods_serve(cluster)?;
        self.has_conditions(cluster, &conditions)?;
        self.service_answers(cluster)
    }

    /// Whether a connection to where clients connect is taken on every node: a node's proxy receives a new pod when it is
    /// ready, and not at once.
    fn service_answers(&self, cluster: &str) -> Result<(), String> {
        let service = self.get("service", cluster)?;
        let addresses = service["spec"]["clusterIPs"].as_array();
        let addresses = addresses.ok_or("a service without an address")?;
        let mut addresses = addresses.iter().filter_map(Value::as_str);
        addresses.try_for_each(|address| {
            nodes::all().try_for_each(|node| nodes::connects(node, address, 7400))
        })
    }

    /// Whether there are as many pods as the spec asks for, and all are ready.
    fn pods_serve(&self, cluster: &str) -> Result<(), String> {
        let spec = &self.get("perc", cluster)?["spec"];
        let roles = ["tablets", "oracle", "master", "proxy"].map(|role| &spec[role]["replicas"]);
        let asked: u64 = roles.into_iter().filter_map(Value::as_u64).sum();
        let pods = self.pods(cluster)?;
        let serves = |pod: &&Value| {
            let ready = condition(pod, "Ready").is_some_and(|ready| ready["status"] == "True");
            ready && !is_ending(pod)
        };
        let serving = pods.iter().filter(serves).count();
        if u64::try_from(serving) == Ok(asked) {
            Ok(())
        } else {
            Err(format!("{serving} of {asked} pods are ready"))
        }
    }
}

/// A condition of a resource's status.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    let conditions = object["status"]["conditions"].as_array()?;
    conditions.iter().find(|found| found["type"] == kind)
}
