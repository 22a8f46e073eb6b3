//! A mutating admission policy changes every StatefulSet and Deployment that the operator applies, as GKE Autopilot and Kyverno do, and a webhook the
//! images of sets and pods: clusters start and change all the same, and the condition Drifted says what is kept otherwise. Its proxies carry out transactions, and its
//! observers run.

use percolator_e2e::image_webhook::ImageWebhook;
use percolator_e2e::proxies::Proxies;
use percolator_e2e::receiver::Receiver;
use percolator_e2e::{Kube, Namespace, kill_operators, kubectl, say, small, wait, written};
use serde_json::{Value, json};

const SPACE: &str = "admission";
/// The termination grace period of pods by the policy; the operator sets 30 s.
const GRACE_PERIOD_SECONDS: i64 = 31;

/// All StatefulSets and Deployments of the namespace get another grace period, and those with requests another one for processors.
const POLICY: &str = "
apiVersion: admissionregistration.k8s.io/v1beta1
kind: MutatingAdmissionPolicy
metadata: {name: percolator-e2e}
spec:
  failurePolicy: Fail
  reinvocationPolicy: Never
  matchConstraints:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: admission}}
    resourceRules:
      - {apiGroups: [apps], apiVersions: [v1], resources: [statefulsets, deployments], operations: [CREATE, UPDATE]}
  mutations:
    - patchType: JSONPatch
      jsonPatch:
        expression: >
          [JSONPatch{op: 'add', path: '/spec/template/spec/terminationGracePeriodSeconds', value: 31}]
    - patchType: JSONPatch
      jsonPatch:
        expression: >
          has(object.spec.template.spec.containers[0].resources) && has(object.spec.template.spec.containers[0].resources.requests)
          ? [JSONPatch{op: 'add', path: '/spec/template/spec/containers/0/resources/requests/cpu', value: '20m'}]
          : []
---
apiVersion: admissionregistration.k8s.io/v1beta1
kind: MutatingAdmissionPolicyBinding
metadata: {name: percolator-e2e}
spec: {policyName: percolator-e2e}
";

/// Nothing but a StatefulSet to try the policy with.
const PROBE: &str = "
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: probe}
spec:
  serviceName: probe
  replicas: 0
  selector: {matchLabels: {app: probe}}
  template:
    metadata: {labels: {app: probe}}
    spec: {containers: [{name: probe, image: none}]}
";

/// The policy goes with the value.
struct Policy;

impl Policy {
    fn begin(space: &Namespace) -> Self {
        space
            .apply(POLICY)
            .expect("the API server knows such policies");
        let policy = Self;
        let probe = written(PROBE).expect("a file");
        let path = probe.path().display().to_string();
        // The API server applies it a moment later.
        wait("a policy that counts", || {
            let create = ["create", "--dry-run=server", "-o", "json", "-f", &path];
            let made: Value = serde_json::from_str(&space.kubectl(&create)?)
                .map_err(|error| error.to_string())?;
            match grace_period(&made) {
                Some(GRACE_PERIOD_SECONDS) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
        policy
    }
}

impl Drop for Policy {
    fn drop(&mut self) {
        for kind in ["mutatingadmissionpolicybinding", "mutatingadmissionpolicy"] {
            let _ = kubectl(&["delete", "--ignore-not-found", kind, "percolator-e2e"]);
        }
    }
}

fn grace_period(set: &Value) -> Option<i64> {
    set.pointer("/spec/template/spec/terminationGracePeriodSeconds")?
        .as_i64()
}

fn is_ready(space: &Namespace) {
    space.wait_for_all(
        "altered",
        &[
            ("Ready", "True", "UpToDate"),
            ("Reconciling", "False", "UpToDate"),
            ("Stalled", "False", "NotStalled"),
            ("Degraded", "False", "AsExpected"),
            ("Drifted", "True", "AlteredByAdmission"),
        ],
    );
}

#[test]
fn a_cluster_runs_under_a_policy_that_changes_its_sets() {
    let Some(kube) = Kube::find() else { return };
    let group = "--api-group=admissionregistration.k8s.io";
    let kinds = kubectl(&["api-resources", group, "-o", "name"]).expect("its kinds");
    let has_policies = kinds.contains("mutatingadmissionpolicies");
    if !has_policies {
        say("this Kubernetes is older than policies that change objects: a webhook does so alone");
    }
    kube.install(&[]);
    let space = kube.namespace(SPACE);
    let _policy = has_policies.then(|| Policy::begin(&space));
    // Another name of the same programs.
    let _webhook = ImageWebhook::begin(&space, &kube.image, &kube.other_image);
    say("a cluster starts");
    space.apply(&small("altered", "")).expect("a cluster");
    is_ready(&space);
    let sets = ["altered-master", "altered-tso", "altered-tablet"];
    for set in sets {
        let live = space.get("statefulset", set).expect("a set");
        assert_eq!(
            grace_period(&live) == Some(GRACE_PERIOD_SECONDS),
            has_policies,
            "{live}"
        );
        let image = live.pointer("/spec/template/spec/containers/0/image");
        assert_eq!(image.expect("an image"), &*kube.other_image, "{live}");
        space.wait_for_words("altered", "Drifted", "AlteredByAdmission", &[set]);
    }
    let master = space.get("statefulset", sets[0]).expect("a set");
    let requests = master.pointer("/spec/template/spec/containers/0/resources/requests");
    let cpu = if has_policies { "20m" } else { "10m" };
    assert_eq!(requests.expect("requests")["cpu"], cpu, "{master}");

    say("another operator restarts nobody");
    let incarnations = space.incarnations("altered");
    kill_operators();
    space.give_team("altered", "a");
    is_ready(&space);
    assert_eq!(space.incarnations("altered"), incarnations);

    say("a change is rolled out");
    space
        .change("altered", r#"{"oracle":{"window":"2s"}}"#)
        .expect("a window");
    is_ready(&space);
    let changed = space.restarted("altered", &incarnations);
    assert!(
        changed.len() == 1 && changed[0].starts_with("altered-tso-0 "),
        "{changed:?}"
    );
    proxies_come_and_go(&space, has_policies);
    observers_run(&space);
}

/// Runs the command in the master's pod.
fn percolator(space: &Namespace, arguments: &[&str]) -> Result<String, String> {
    space.percolator("altered-master-0", "altered", arguments)
}

/// Workers call this machine, and what it answers is written.
fn observers_run(space: &Namespace) {
    say("an observer's worker comes, and calls a webhook for each change");
    let receiver = Receiver::start();
    let secret = ["create", "secret", "generic", "hook"];
    let key = "--from-literal=key=a key that nobody else knows";
    space
        .kubectl(&[&secret[..], &[key]].concat())
        .expect("a key");
    percolator(space, &["table", "create", "documents"]).expect("a table");
    let observer = json!({
        "name": "lengths",
        "table": "documents",
        "column": "text",
        "webhook": {"url": receiver.url(), "keySecret": {"name": "hook", "key": "key"}},
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
    });
    let observers = json!({ "observers": [observer] });
    space
        .change("altered", &observers.to_string())
        .expect("an observer");
    wait("its worker", || {
        let status = space.get("perc", "altered")?["status"]["observers"].clone();
        match status["lengths"]["summary"].as_str() {
            Some("1/1") => Ok(()),
            _ => Err(status.to_string()),
        }
    });
    is_ready(space);
    for (text, length) in [("three", "5"), ("elevenths", "9")] {
        percolator(space, &["put", "documents", "d", "text", text]).expect("a change");
        receiver.was_called_with(text);
        wait("the cell that follows", || {
            match percolator(space, &["get", "documents", "d", "length"])? {
                found if found == length => Ok(()),
                other => Err(other),
            }
        });
    }

    say("and goes when nobody asks for it");
    space
        .change("altered", r#"{"observers":null}"#)
        .expect("none");
    space.wait_for_none("deployments");
    is_ready(space);
}

fn proxies_come_and_go(space: &Namespace, has_policies: bool) {
    say("two proxies come, and carry out transactions");
    let resources = r#"{"resources":{"requests":{"cpu":"10m","memory":"64Mi"}}}"#;
    let spec = format!(r#"{{"proxy":{{"replicas":2,"pod":{resources}}}}}"#);
    space.change("altered", &spec).expect("proxies");
    let proxies_serve = |summary: &str| {
        wait("proxies that serve", || {
            let status = space.get("perc", "altered")?["status"]["proxy"]["summary"].clone();
            if status == summary {
                Ok(())
            } else {
                Err(status.to_string())
            }
        });
        is_ready(space);
    };
    proxies_serve("2/2");
    if has_policies {
        space.wait_for_words(
            "altered",
            "Drifted",
            "AlteredByAdmission",
            &["altered-proxy"],
        );
    }
    let proxies = Proxies::of(space, "altered");
    let pod = proxies.carry_out_transactions("1");
    proxies.are_listed();

    say("two clients share a transaction, each at a proxy of its own");
    proxies.share_a_transaction();

    say("a proxy's pod is deleted, and sessions are begun at others");
    let delete = ["delete", "pod", &pod, "--wait=false"];
    space.kubectl(&delete).expect("the pod's end");
    proxies.carry_out_transactions("2");
    proxies_serve("2/2");
    proxies.carry_out_transactions("3");
    proxies.are_listed();

    say("they are reached from outside of the Kubernetes cluster");
    let outside = r#"{"proxy":{"service":{"type":"NodePort"}}}"#;
    space.change("altered", outside).expect("another type");
    proxies.serve_outside();
    let usual = r#"{"proxy":{"service":null}}"#;
    space.change("altered", usual).expect("the usual type");
    wait("a service that is closed to the outside", || {
        let spec = space.get("service", "altered-proxy")?["spec"].clone();
        let is_open = !spec["ports"][0]["nodePort"].is_null();
        if spec["type"] == "ClusterIP" && spec["sessionAffinity"] == "None" && !is_open {
            Ok(())
        } else {
            Err(spec.to_string())
        }
    });

    say("their number is another's to say");
    let change = r#"{"proxy":{"replicas":null}}"#;
    space.change("altered", change).expect("no number");
    let scale = ["scale", "deployment", "altered-proxy", "--replicas=3"];
    wait("three proxies", || {
        space.kubectl(&scale)?;
        match &space.get("perc", "altered")?["status"]["proxy"]["summary"] {
            summary if summary == "3/3" => Ok(()),
            summary => Err(summary.to_string()),
        }
    });
    is_ready(space);

    say("they go with what was made for them");
    let change = r#"{"proxy":null}"#;
    space.change("altered", change).expect("no proxies");
    space.wait_for_none("deployments");
    let service = space.get("service", "altered-proxy");
    assert!(service.is_err(), "{service:?}");
    is_ready(space);
}
