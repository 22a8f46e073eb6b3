//! Changes of specs: settings that restart nobody, servers that are stopped, and
//! an operator whose watches are late, or that is killed in the middle. `cargo xtask test e2e` runs it.
//!
//! Under the operator's test-only switch, by which watches are three seconds late, run here: scaling out,
//! killed pods of each role, volumes that grow, a bad spec and back, another image with the operator stopped in the middle
//! and with the operator killed after each of its writes, settings with and without a restart, another version of the
//! operator, a pause, and a cluster that is deleted and made again at once. Bad specs of every kind, what happens to nodes,
//! objects of others, clusters of one name, and what deleting leaves behind run in the other files, with and without it side
//! by side.

use std::time::Duration;

use percolator_e2e::application::Application;
use percolator_e2e::audit::{Audit, Request};
use percolator_e2e::condition_monitor::ConditionMonitor;
use percolator_e2e::late::LateOperator;
use percolator_e2e::{
    Kube, Namespace, OPERATOR, TIMEOUT, kill_operators, kubectl, nodes, say, small, wait, written,
};
use serde_json::{Value, json};

const DEPLOYMENT: &str = "deployment/percolator-percolator-operator";
const LEASE: &str = "percolator-percolator-operator";
const SETS: [&str; 3] = ["demo-master", "demo-tso", "demo-tablet"];

fn operator(arguments: &[&str]) -> String {
    ask_operator(arguments).expect("an answer about the operator")
}

fn ask_operator(arguments: &[&str]) -> Result<String, String> {
    kubectl(&[&["-n", OPERATOR], arguments].concat())
}

fn image(object: &Value) -> &Value {
    &object["spec"]["template"]["spec"]["containers"][0]["image"]
}

/// How many of the cluster's StatefulSets ask for this image.
fn sets_with(space: &Namespace, wanted: &str) -> usize {
    let sets = SETS.map(|set| wait(set, || space.get("statefulset", set)));
    sets.iter().filter(|set| image(set) == wanted).count()
}

/// No operator, until somebody scales it up again.
fn no_operators() {
    operator(&["scale", DEPLOYMENT, "--replicas=0"]);
}

fn wait_for_the_operators_end() {
    wait("the operators' end", || {
        match ask_operator(&["get", "pods", "-o", "name"])?.as_str() {
            "" => Ok(()),
            pods => Err(pods.to_owned()),
        }
    });
}

/// The holder of the lease; empty: nobody.
fn leader() -> String {
    let holder = "jsonpath={.spec.holderIdentity}";
    operator(&["get", "lease", LEASE, "-o", holder])
}

/// A change has fewer writes than this, however often their writer is killed.
const WRITES_MAX: usize = 60;

/// Makes a change, and kills the operator after each of its writes until nothing is left to be done.
fn kill_at_each_write(space: &Namespace, change: impl FnOnce()) {
    let audit = Audit::find();
    let (mut writes, mut start) = (Vec::new(), audit.end());
    change();
    loop {
        let operator = wait("one operator", || match &nodes::operators()[..] {
            [operator] => Ok(operator.clone()),
            other => Err(format!("{other:?}")),
        });
        let write = wait("a write, or the end of the change", || {
            // Soon, before there is another one.
            for _ in 0..200 {
                let made = |request: &Request| {
                    request.is_write() && request.code < 300 && request.deed.resource != "events"
                };
                if let Some(write) = audit.since(start).into_iter().find(made) {
                    return Ok(Some(write));
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            space.is_up_to_date("demo").map(|()| None)
        });
        let Some(write) = write else { break };
        nodes::kill_process(&operator);
        // What the next one does before this is read counts.
        start = audit.end();
        writes.push(write.to_string());
        assert!(writes.len() < WRITES_MAX, "{writes:?}");
        another_operator_acts();
    }
    say(&format!(
        "it was killed after {} writes: {}",
        writes.len(),
        writes.join("; ")
    ));
    assert!(!writes.is_empty(), "nothing was written");
}

/// In the place of those that were killed, and without waiting until their lease has run out.
fn another_operator_acts() {
    kill_operators();
    wait("another operator to act", || {
        let lease = ["get", "lease", LEASE, "--ignore-not-found", "-o", "json"];
        let lease = ask_operator(&lease)?;
        let lease: Value = serde_json::from_str(&lease).unwrap_or_default();
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
        let pods = ask_operator(&["get", "pods", "-o", "name"])?;
        if pods.lines().any(|pod| pod == format!("pod/{holder}")) {
            return Ok(());
        }
        // One that nobody holds, or that isn't there, keeps nobody waiting.
        if !holder.is_empty() {
            end_lease(&lease["metadata"])?;
        }
        Err(format!("'{holder}' of {pods}"))
    });
}

/// Deletes the operator's lease, unless somebody has written it since it was read.
fn end_lease(read: &Value) -> Result<(), String> {
    let options = json!({
        "kind": "DeleteOptions",
        "apiVersion": "v1",
        "preconditions": {"uid": read["uid"], "resourceVersion": read["resourceVersion"]},
    });
    let file = written(&options.to_string())?;
    let body = file.path().display().to_string();
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{OPERATOR}/leases/{LEASE}");
    kubectl(&["delete", "--raw", &path, "-f", &body]).map(drop)
}

/// With pods that are killed and an operator that is killed, each change ends where the spec says.
#[expect(clippy::too_many_lines, reason = "one story in its order")]
fn late_and_killed(kube: &Kube) {
    let late = LateOperator::begin(kube);
    let space = kube.namespace("late");
    space.apply(&small("demo", "")).expect("a cluster");
    space.wait_until_up_to_date("demo");
    let application = Application::start(kube, &space, "demo", 100, 4);
    let monitor = ConditionMonitor::follow(&space, "demo");

    say("late: a tablet server more, and one is killed");
    space
        .kubectl(&["scale", "perc", "demo", "--replicas=2"])
        .expect("scale");
    space.wait_until_up_to_date("demo");
    for pod in ["demo-tablet-0", "demo-tso-0", "demo-master-0"] {
        space.kill(pod);
        space.wait_until_up_to_date("demo");
        application.goes_on();
    }

    say("late: volumes grow, and a bad spec and back");
    let size = r#"{"tablets":{"storage":{"size":"300Mi"}}}"#;
    space.change("demo", size).expect("a size");
    space.wait_until_up_to_date("demo");
    for claim in ["data-demo-tablet-0", "data-demo-tablet-1"] {
        let claim = space.get("pvc", claim).expect("a claim");
        assert_eq!(claim["status"]["capacity"]["storage"], "300Mi");
    }
    let label = |value: &str| format!(r#"{{"tablets":{{"pod":{{"labels":{value}}}}}}}"#);
    space
        .change("demo", &label(r#"{"percolator.dev/x":"y"}"#))
        .expect("the API server knows no better");
    space.wait_for("demo", "Degraded", "True", "InvalidSpec");
    space.change("demo", &label("null")).expect("back");
    space.wait_until_up_to_date("demo");
    application.goes_on();

    say("late: another image, and the operator is stopped in the middle");
    let other = kube.other_image.as_str();
    space
        .change("demo", &format!(r#"{{"image":"{other}"}}"#))
        .expect("an image");
    wait("the first set", || match sets_with(&space, other) {
        0 => Err("none has the image".to_owned()),
        _ => Ok(()),
    });
    // After SIGTERM, it has ended when its pod is gone; a killed one might still write.
    no_operators();
    wait_for_the_operators_end();
    let done = sets_with(&space, other);
    say(&format!("it was stopped after {done} of 3 sets"));
    // What was under way goes on without it, and nothing else.
    space
        .kubectl(&["rollout", "status", "statefulset/demo-master", TIMEOUT])
        .expect("the master serves");
    space
        .kubectl(&["scale", "perc", "demo", "--replicas=3"])
        .expect("a change that no operator receives yet");
    assert_eq!(sets_with(&space, other), done);
    let tablets = space.get("statefulset", "demo-tablet").expect("a set");
    assert_eq!(tablets["spec"]["replicas"], 2);
    application.goes_on();
    operator(&["scale", DEPLOYMENT, "--replicas=1"]);
    space.wait_until_up_to_date("demo");
    assert_eq!(sets_with(&space, other), 3);
    let tablets = space.get("statefulset", "demo-tablet").expect("a set");
    assert_eq!(tablets["status"]["readyReplicas"], 3);
    application.goes_on();

    say("late: back to the image before, and the operator is killed after each of its writes");
    let incarnations = space.incarnations("demo");
    kill_at_each_write(&space, || {
        space.change("demo", r#"{"image":null}"#).expect("no image");
    });
    assert_eq!(sets_with(&space, other), 0);
    // Each server is another one.
    let now = space.incarnations("demo");
    assert_eq!(now.len(), incarnations.len());
    assert_eq!(now, space.restarted("demo", &incarnations));
    application.goes_on();

    say("late: settings with and without a restart");
    let incarnations = space.incarnations("demo");
    let settings = r#"{"oracle":{"window":"2s"},"service":{"labels":{"team":"early"}}}"#;
    space.change("demo", settings).expect("settings");
    space.wait_until_up_to_date("demo");
    let changed = space.restarted("demo", &incarnations);
    assert!(
        changed.len() == 1 && changed[0].starts_with("demo-tso-0 "),
        "{changed:?}"
    );
    application.goes_on();

    say("late: another version of the operator, and nobody restarts");
    let incarnations = space.incarnations("demo");
    let tag = other.rsplit_once(':').expect("a tag").1;
    // What isn't the chart's stays as it is, and that is the switch.
    kube.install(&["--set", &format!("image.tag={tag}")]);
    let found = operator(&[
        "get",
        DEPLOYMENT,
        "-o",
        "jsonpath={.spec.template.spec.containers[0]}",
    ]);
    let (is_late, is_other) = (found.contains("TEST_WATCH_DELAY"), found.contains(other));
    assert!(is_late && is_other, "{found}");
    space.give_team("demo", "newer");
    space.wait_until_up_to_date("demo");
    assert_eq!(space.incarnations("demo"), incarnations);
    monitor.holds();
    application.ends_well();

    say("late: paused, nothing happens, whatever is asked for; and then it does");
    let incarnations = space.incarnations("demo");
    let team = r#"{"paused":true,"service":{"labels":{"team":"late"}}}"#;
    space.change("demo", team).expect("paused");
    space.wait_for("demo", "Progressing", "False", "PausedBySpec");
    space.wait_for_team("demo", "newer");
    space.change("demo", r#"{"paused":false}"#).expect("on");
    space.wait_for_team("demo", "late");
    space.wait_until_up_to_date("demo");
    assert_eq!(space.incarnations("demo"), incarnations);

    say("late: deleted, and made again at once, with the same volumes");
    space.kubectl(&["delete", "perc", "demo"]).expect("gone");
    let again = small("demo", "").replace("replicas: 1", "replicas: 3");
    space
        .apply(&again.replace("256Mi", "300Mi"))
        .expect("the same again");
    space.wait_until_up_to_date("demo");
    space.all_money_is_there("demo", 100);

    say("stopped, the operator hands its lease back");
    assert_ne!(leader(), "");
    no_operators();
    wait_for_the_operators_end();
    assert_eq!(leader(), "");
    drop(late);
}

/// Deletes a pod as Kubernetes does for a drain or a new image, and gives its server's exit code.
fn stop(space: &Namespace, pod: &str) -> Value {
    // Without it nothing would be left to ask.
    let finalizers = |value: &str| {
        let patch = format!(r#"{{"metadata":{{"finalizers":{value}}}}}"#);
        space
            .kubectl(&["patch", "pod", pod, "--type=merge", "-p", &patch])
            .expect(pod);
    };
    finalizers(r#"["percolator.dev/test"]"#);
    space
        .kubectl(&["delete", "pod", pod, "--wait=false"])
        .expect(pod);
    let code = wait(&format!("the end of {pod}"), || {
        let found = space.get("pod", pod)?;
        let state = &found["status"]["containerStatuses"][0]["state"];
        match &state["terminated"]["exitCode"] {
            Value::Null => Err(state.to_string()),
            code => Ok(code.clone()),
        }
    });
    space.wait_for("demo", "Available", "False", "ServersNotReady");
    finalizers("null");
    code
}

/// Changes what needs no restart, of a new cluster; gives the incarnations of its pods before.
fn change_settings(space: &Namespace) -> Vec<String> {
    space.apply(&small("demo", "")).expect("a cluster");
    space.wait_until_up_to_date("demo");
    say("collection's retention and the log's level change");
    let incarnations = space.incarnations("demo");
    space
        .change(
            "demo",
            r#"{"gc":{"retention":"7m"},"log":{"level":"debug"}}"#,
        )
        .expect("settings");
    space.wait_until_up_to_date("demo");
    incarnations
}

const PODS: [&str; 3] = ["demo-master-0", "demo-tso-0", "demo-tablet-0"];

/// Kubernetes takes more than a minute until it brings them into the pods.
fn wait_for_settings(space: &Namespace) {
    for pod in PODS {
        wait(&format!("the level of {pod}"), || {
            let log = space.log(pod)?;
            if log.contains(r#""message":"log level","from":"info","to":"debug""#) {
                Ok(())
            } else {
                Err("not yet".to_owned())
            }
        });
    }
    wait("the retention", || {
        let said = space.percolator("demo-master-0", "demo", &["gc", "status"])?;
        if said.contains("retention 7m") {
            Ok(())
        } else {
            Err(said)
        }
    });
}

fn servers_stop_in_time(kube: &Kube, space: &Namespace) {
    say("servers are stopped while money moves: each ends by itself");
    let application = Application::start(kube, space, "demo", 100, 4);
    for pod in PODS {
        // A server that isn't done within the grace period is killed, and ends with 137.
        assert_eq!(stop(space, pod), 0, "{pod}");
        space.wait_until_up_to_date("demo");
        application.goes_on();
    }
    application.ends_well();
}

#[test]
fn each_spec_comes_true_whatever_becomes_of_the_operator() {
    let Some(kube) = Kube::find() else { return };
    kube.install(&[]);
    let space = kube.namespace("settings");
    let incarnations = change_settings(&space);
    late_and_killed(&kube);
    kube.install(&[]);
    say("the settings count, and nobody has restarted");
    wait_for_settings(&space);
    assert_eq!(space.incarnations("demo"), incarnations);
    servers_stop_in_time(&kube, &space);
}
