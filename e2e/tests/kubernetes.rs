//! The chart, the operator and its clusters on a real Kubernetes of three nodes. `cargo xtask test e2e` runs it.

use std::process::Command;
use std::time::{Duration, Instant};

use percolator_e2e::application::Application;
use percolator_e2e::audit::{Audit, Request, counts};
use percolator_e2e::condition_monitor::ConditionMonitor;
use percolator_e2e::watched::ObjectWatches;
use percolator_e2e::{
    Kube, Namespace, OPERATOR, TIMEOUT, breakdown, kill_operators, kubectl, say, wait,
};

/// If the operator's own share of a start takes longer, its steps are printed.
const LONG: Duration = Duration::from_secs(3);

#[test]
#[expect(clippy::too_many_lines, reason = "one story in its order")]
fn an_application_runs_through_everything() {
    let Some(kube) = Kube::find() else { return };
    kube.install(&[]);
    let space = kube.namespace("application");
    let watched = ObjectWatches::begin(space.name(), &breakdown::KINDS);
    kube.helm(&["test", "percolator", "-n", OPERATOR])
        .expect("helm test");
    let started = Instant::now();
    space.apply(&kube.example()).expect("the example");
    space.wait_for("demo", "Available", "True", "AllServersReady");
    say(&format!(
        "apply to available: {:.1} s",
        started.elapsed().as_secs_f64()
    ));
    space.wait_until_up_to_date("demo");
    let changes = watched.changes();
    for line in breakdown::text(&changes, "demo", started).lines() {
        say(line);
    }
    if breakdown::share(&changes, "demo").is_none_or(|share| share > LONG) {
        let about = |what: &[&str]| {
            kubectl(&[&["-n", OPERATOR], what].concat()).unwrap_or_else(|error| error)
        };
        let selector = "-lapp.kubernetes.io/name=percolator-operator";
        say(&about(&["get", "pods,leases", "-o", "wide"]));
        say(&about(&["logs", selector, "--prefix", "--tail=60"]));
    }
    drop(watched);
    let monitor = ConditionMonitor::follow(&space, "demo");
    let application = Application::start(&kube, &space, "demo", 1000, 8);

    for pod in ["demo-tablet-1", "demo-tso-0", "demo-master-0"] {
        say(&format!("{pod} is killed"));
        let available = space.follow("demo");
        space.kill(pod);
        available.has_seen_it_unavailable();
        space.wait_until_up_to_date("demo");
        application.goes_on();
    }
    say("the operator is killed");
    kill_operators();
    application.goes_on();

    say("a tablet server more");
    space
        .kubectl(&["scale", "perc", "demo", "--replicas=4"])
        .expect("scale");
    space.wait_until_up_to_date("demo");
    application.goes_on();

    say("a setting without restart: nobody restarts");
    let incarnations = space.incarnations("demo");
    assert_eq!(incarnations.len(), 6);
    space
        .change(
            "demo",
            r#"{"service":{"labels":{"team":"a"}},"tablets":{"service":{"annotations":{"team":"a"}}}}"#,
        )
        .expect("a label");
    space.wait_for_team("demo", "a");
    space.wait_until_up_to_date("demo");
    let service = space.get("service", "demo-tablet").expect("a service");
    assert_eq!(service["metadata"]["annotations"]["team"], "a", "{service}");
    assert_eq!(space.incarnations("demo"), incarnations);
    application.goes_on();

    say("a setting with restart: the oracle alone");
    space
        .change("demo", r#"{"oracle":{"window":"2s"}}"#)
        .expect("a window");
    space.wait_until_up_to_date("demo");
    let changed = space.restarted("demo", &incarnations);
    assert!(
        changed.len() == 1 && changed[0].starts_with("demo-tso-0 "),
        "{changed:?}"
    );
    application.goes_on();

    say("volumes grow, and nobody restarts");
    let incarnations = space.incarnations("demo");
    space
        .change("demo", r#"{"tablets":{"storage":{"size":"11Gi"}}}"#)
        .expect("a size");
    space.wait_until_up_to_date("demo");
    for ordinal in 0..4 {
        let claim = space
            .get("pvc", &format!("data-demo-tablet-{ordinal}"))
            .expect("a claim");
        assert_eq!(claim["status"]["capacity"]["storage"], "11Gi");
    }
    assert_eq!(space.incarnations("demo"), incarnations);
    application.goes_on();

    say("a volume that doesn't grow by itself");
    grow_by_hand(&space);
    application.goes_on();

    say(
        "another definition and another operator, as docs/kubernetes.md upgrades, and nobody restarts",
    );
    let tag = kube.other_image.rsplit_once(':').expect("a tag").1;
    let folder = tempfile::tempdir().expect("a folder");
    let chart = folder.path().join("chart");
    let chart = chart.to_str().expect("a path of text").to_owned();
    let copied = Command::new("cp")
        .args(["-r", &kube.chart(), &chart])
        .status();
    assert!(copied.expect("cp runs").success());
    let file = format!("{chart}/files/percolatorclusters.yaml");
    let text = std::fs::read_to_string(&file).expect("the definition");
    let (old, new) = ("A cluster of Percolator:", "A newer cluster of Percolator:");
    assert!(text.contains(old), "{text}");
    std::fs::write(&file, text.replace(old, new)).expect("a definition");
    let definition = || {
        let name = "percolatorclusters.percolator.dev";
        kubectl(&["get", "crd", name, "-o", "json"]).expect("the definition")
    };
    let tag_is = format!("image.tag={tag}");
    let upgrade = ["upgrade", "percolator", &chart, "-n", OPERATOR];
    let reuse = ["--reset-then-reuse-values", "--wait", TIMEOUT];
    let values = ["--set", "log.level=debug", "--set", &tag_is];
    kube.helm(&[&upgrade[..], &reuse, &values].concat())
        .expect("helm upgrade");
    assert!(definition().contains(new), "{}", definition());
    space.give_team("demo", "b");
    space.wait_until_up_to_date("demo");
    assert_eq!(space.incarnations("demo"), incarnations);
    application.goes_on();

    say("and back to the operator before, and nobody restarts");
    let rollback = ["rollback", "percolator", "-n", OPERATOR, "--wait", TIMEOUT];
    kube.helm(&rollback).expect("helm rollback");
    assert!(!definition().contains(new), "{}", definition());
    space.give_team("demo", "c");
    space.wait_until_up_to_date("demo");
    assert_eq!(space.incarnations("demo"), incarnations);
    application.goes_on();

    say("another image");
    let image = format!(r#"{{"image":"{}"}}"#, kube.other_image);
    space.change("demo", &image).expect("an image");
    space.wait_until_up_to_date("demo");
    let version = space.get("perc", "demo").expect("the cluster")["status"]["version"].clone();
    assert_eq!(version, tag);
    monitor.holds();
    application.ends_well();
    // And with nothing going on.
    space.all_money_is_there("demo", 1000);

    say("idle: nothing is written");
    let version = || {
        space
            .get("perc", "demo")
            .map(|it| it["metadata"]["resourceVersion"].clone())
    };
    let reconciles = || operator_metric("reconciles_total{result=\"ok\"}");
    let mut seen = 0_u32..;
    // A change may be followed by another reconcile that writes; the one after that writes nothing.
    wait("a reconcile that writes nothing", || {
        let before = (version()?, operator_metric("writes_total")?);
        let (count, now) = (reconciles()?, seen.next().unwrap_or_default());
        trigger_reconcile(&space, &now.to_string())?;
        wait("a reconcile", || match reconciles()? {
            now if now > count => Ok(()),
            now => Err(format!("{now} reconciles")),
        });
        let after = (version()?, operator_metric("writes_total")?);
        if after == before {
            Ok(())
        } else {
            Err(format!("{before:?}, and then {after:?}"))
        }
    });
    stands_still(&space);
    say(&format!(
        "resident memory of the operator: {:.1} MiB",
        operator_memory_mib()
    ));
}

/// Triggers a reconcile by a change of a pod, which leaves nothing to write.
fn trigger_reconcile(space: &Namespace, value: &str) -> Result<(), String> {
    let annotation = format!("reconciled-at={value}");
    let annotate = [
        "annotate",
        "--overwrite",
        "pod",
        "demo-tablet-0",
        &annotation,
    ];
    space.kubectl(&annotate).map(drop)
}

/// The lease is renewed every two seconds.
const RENEWALS: usize = 5;

/// By the API server's audit log: while the lease is renewed so many times, and clusters are reconciled, nothing else is written.
fn stands_still(space: &Namespace) {
    let (audit, mut now) = (Audit::find(), 0);
    let start = audit.end();
    let seen = wait("only the lease to be written", || {
        let requests = audit.since(start);
        let last = requests.iter().rposition(Request::is_write);
        let (before, after) = requests.split_at(last.map_or(0, |last| last + 1));
        let is_reconcile = |request: &&Request| {
            request.deed.resource == "percolatorclusters" && request.deed.verb == "get"
        };
        if after.iter().filter(is_reconcile).count() == 0 {
            now += 1;
            trigger_reconcile(space, &format!("again-{now}"))?;
        }
        let is_renewal =
            |request: &&Request| request.is_about_lease() && request.deed.verb == "update";
        let renewals = after.iter().filter(is_renewal).count();
        let reconciles = after.iter().filter(is_reconcile).count();
        if renewals >= RENEWALS && reconciles > 0 {
            Ok(counts(after))
        } else {
            Err(format!(
                "{renewals} renewals and {reconciles} reconciles since the last write: {:?}",
                before.last().map(Request::to_string)
            ))
        }
    });
    say(&format!("asked for meanwhile: {seen}"));
}

fn operator_metric(name: &str) -> Result<u64, String> {
    let path = format!(
        "/api/v1/namespaces/{OPERATOR}/services/percolator-percolator-operator:8080/proxy/metrics"
    );
    let text = kubectl(&["get", "--raw", &path])?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(&format!("percolator_operator_{name} ")))
        .ok_or_else(|| format!("{name} is not among them: {text}"))?;
    line.parse().map_err(|error| format!("{line}: {error}"))
}

/// Of the process that runs in a container on this machine.
fn operator_memory_mib() -> f64 {
    let script = "for p in /proc/[0-9]*; do
        if tr '\\0' ' ' < $p/cmdline 2>/dev/null | grep -q '^/usr/local/bin/percolator-operator --image'; then
            grep VmRSS $p/status; fi; done";
    let output = Command::new("sh")
        .args(["-c", script])
        .output()
        .expect("sh");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let kib = text
        .split_whitespace()
        .nth(1)
        .and_then(|kib| kib.parse().ok());
    kib.map_or(f64::NAN, |kib: f64| kib / 1024.0)
}

/// The test is the storage driver of the oracle's volume.
fn grow_by_hand(space: &Namespace) {
    let claim = r#"{"annotations":{"bed.percolator.dev/grows-by-hand":"true"}}"#;
    let storage = format!(r#"{{"oracle":{{"storage":{{"size":"2Gi","claim":{claim}}}}}}}"#);
    space.change("demo", &storage).expect("a size");
    wait("the claim to ask for it", || {
        let claim = space.get("pvc", "data-demo-tso-0")?;
        match &claim["spec"]["resources"]["requests"]["storage"] {
            asked if *asked == "2Gi" => Ok(()),
            asked => Err(asked.to_string()),
        }
    });
    let report = |status: serde_json::Value| {
        let status = serde_json::json!({ "status": status }).to_string();
        let patch = [
            "patch",
            "pvc",
            "data-demo-tso-0",
            "--type=merge",
            "-p",
            &status,
        ];
        space
            .kubectl(&[&patch[..], &["--subresource=status"]].concat())
            .expect("a status of the claim");
    };
    report(serde_json::json!({"conditions": [{
        "type": "FileSystemResizePending", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]}));
    let words = ["data-demo-tso-0", "kubectl delete pod demo-tso-0"];
    space.wait_for_words("demo", "Degraded", "VolumeNotGrown", &words);
    report(serde_json::json!({
        "allocatedResourceStatuses": {"storage": "ControllerResizeInfeasible"},
        "conditions": [{"type": "ControllerResizeError", "status": "True", "message": "at most 16Gi"}],
    }));
    let words = ["from 1Gi to 2Gi: at most 16Gi;"];
    space.wait_for_words("demo", "Degraded", "VolumeNotGrown", &words);
    report(serde_json::json!({
        "allocatedResourceStatuses": null, "conditions": [], "capacity": {"storage": "2Gi"},
    }));
    space.wait_until_up_to_date("demo");
}
