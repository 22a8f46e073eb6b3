//! Specs that can't be carried out, and what becomes of a cluster whose storage fails: conditions say what is wrong, and
//! going back is enough.

use std::sync::{Mutex, MutexGuard, PoisonError};

use percolator_e2e::{Kube, Namespace, kubectl, small, wait};

/// For anyone who changes the storage class, which all have in common.
static STORAGE_CLASS: Mutex<()> = Mutex::new(());

/// Volumes of the class that these tests use can't grow, as long as the value is there: anyone who has it is alone.
struct NoExpansion(#[expect(dead_code, reason = "held")] MutexGuard<'static, ()>);

impl NoExpansion {
    fn begin() -> Self {
        let alone = STORAGE_CLASS.lock().unwrap_or_else(PoisonError::into_inner);
        let expansion = Self(alone);
        Self::set(false).expect("the class");
        expansion
    }

    fn set(may: bool) -> Result<String, String> {
        let patch = format!(r#"{{"allowVolumeExpansion":{may}}}"#);
        kubectl(&["patch", "storageclass", "local", "-p", &patch])
    }
}

impl Drop for NoExpansion {
    fn drop(&mut self) {
        let set = Self::set(true);
        if !std::thread::panicking() {
            set.expect("the class");
        }
    }
}

/// Three clusters at a time; they go in the end.
pub(super) fn are_reported(kube: &Kube, space: &Namespace) {
    std::thread::scope(|threads| {
        threads.spawn(|| of_pods(space));
        threads.spawn(|| have_a_server_that_crashes(space));
        threads.spawn(|| of_storage(kube, space));
    });
    space
        .kubectl(&["delete", "perc", "--all", "--wait=false"])
        .expect("they go");
}

/// Of one cluster, whose servers or pods can't be as it says.
fn of_pods(space: &Namespace) {
    space.apply(&small("bad", "")).expect("a cluster");
    space.wait_until_up_to_date("bad");
    are_refused(space);
    have_no_pods(space);
}

/// Of two, whose volumes can't be as they say.
fn of_storage(kube: &Kube, space: &Namespace) {
    space.apply(&small("full", "")).expect("a cluster");
    space.wait_until_up_to_date("full");
    have_no_volumes(space);
    have_no_storage_class(space);
    come_back_empty(kube, space);
}

fn are_refused(space: &Namespace) {
    let incarnations = space.incarnations("bad");
    space.say("refused by the API server");
    for (spec, said) in [
        (r#"{"tablets":{"replicas":0}}"#, "from 1 to 1000"),
        (r#"{"oracle":{"replicas":4}}"#, "from 1 to 3"),
        (r#"{"oracle":{"window":"1ms"}}"#, "from 100ms to 60s"),
        (
            r#"{"tablets":{"storage":{"engine":"sled"}}}"#,
            "must not change",
        ),
        (
            r#"{"tablets":{"storage":{"engine":"tape"}}}"#,
            "Unsupported value",
        ),
        (
            r#"{"tablets":{"storage":{"size":"128Mi"}}}"#,
            "must not shrink",
        ),
        (
            r#"{"tablets":{"storage":{"storageClassName":"x"}}}"#,
            "must not change",
        ),
        (r#"{"tablets":{"storage":{"size":"much"}}}"#, "size"),
        (
            r#"{"oracle":{"pod":{"env":[{"name":"A","value":"1"},{"name":"A","value":"2"}]}}}"#,
            "Duplicate value",
        ),
        (
            r#"{"imagePullSecrets":[{"name":"a"},{"name":"a"}]}"#,
            "Duplicate value",
        ),
    ] {
        let error = space.change("bad", spec).expect_err(spec);
        assert!(error.contains(said), "{spec}: {error}");
    }
    let error = space.apply(&small("9lives", "")).expect_err("a name");
    assert!(error.contains("starting with a letter"), "{error}");
    assert_eq!(space.incarnations("bad"), incarnations);

    space.say("refused by the operator");
    space
        .change(
            "bad",
            r#"{"tablets":{"pod":{"labels":{"percolator.dev/x":"y"}}}}"#,
        )
        .expect("the API server knows no better");
    space.wait_for("bad", "Degraded", "True", "InvalidSpec");
    space
        .change("bad", r#"{"tablets":{"pod":{"labels":null}}}"#)
        .expect("back");
    space.wait_until_up_to_date("bad");
    assert_eq!(space.incarnations("bad"), incarnations);
}

fn have_no_pods(space: &Namespace) {
    space.say("an image that doesn't exist");
    space
        .change(
            "bad",
            r#"{"image":"localhost/none:1","imagePullPolicy":"Never"}"#,
        )
        .expect("an image");
    space.wait_for("bad", "Degraded", "True", "ImageUnavailable");
    wait("an event about it", || {
        let events = ["get", "events", "-o", "name", "--field-selector"];
        let ours = "reason=ImageUnavailable,involvedObject.name=bad,type=Warning";
        match space.kubectl(&[&events[..], &[ours]].concat())?.as_str() {
            "" => Err("none".to_owned()),
            _ => Ok(()),
        }
    });
    space
        .change("bad", r#"{"image":null,"imagePullPolicy":null}"#)
        .expect("back");
    space.wait_until_up_to_date("bad");

    space.say("resources that don't fit");
    space
        .change(
            "bad",
            r#"{"tablets":{"pod":{"resources":{"requests":{"cpu":"1000"}}}}}"#,
        )
        .expect("resources");
    space.wait_for("bad", "Degraded", "True", "PodUnschedulable");
    space
        .change(
            "bad",
            r#"{"tablets":{"pod":{"resources":{"requests":{"cpu":"10m"}}}}}"#,
        )
        .expect("back");
    space.wait_until_up_to_date("bad");

    space.say("pods that can't be made");
    for (pod, words) in [
        (r#"{"serviceAccountName":"nobody"}"#, "nobody"),
        (
            r#"{"securityContext":{"runAsUser":65532,"runAsNonRoot":true,"fsGroup":65532,"seccompProfile":{"type":"Unconfined"}}}"#,
            "violates PodSecurity",
        ),
    ] {
        let spec = format!(r#"{{"oracle":{{"pod":{pod}}}}}"#);
        space.change("bad", &spec).expect(words);
        space.wait_for_words("bad", "Degraded", "PodsRefused", &["bad-tso", words]);
        space
            .kubectl(&[
                "patch",
                "perc",
                "bad",
                "--type=json",
                "-p",
                r#"[{"op":"remove","path":"/spec/oracle/pod"}]"#,
            ])
            .expect("back");
        space.wait_until_up_to_date("bad");
    }
}

fn have_a_server_that_crashes(space: &Namespace) {
    space.apply(&small("ill", "")).expect("a cluster");
    space.wait_until_up_to_date("ill");
    space.say("a server that crashes: its last words are in the condition, and stay there");
    space
        .change("ill", r#"{"oracle":{"pod":{"securityContext":{"runAsUser":1000,"runAsNonRoot":true,"seccompProfile":{"type":"RuntimeDefault"}}}}}"#)
        .expect("a user who may not read the volume");
    let words = ["ill-tso-0", "ermission denied"];
    space.wait_for_words("ill", "Degraded", "ServerCrashing", &words);
    space
        .change("ill", r#"{"oracle":{"pod":{"securityContext":null}}}"#)
        .expect("back");
    space.wait_until_up_to_date("ill");
}

fn have_no_volumes(space: &Namespace) {
    space.say("a size that the storage can't grow to, and back");
    let size = |size: &str| format!(r#"{{"tablets":{{"storage":{{"size":"{size}"}}}}}}"#);
    let expansion = NoExpansion::begin();
    space.change("full", &size("512Mi")).expect("a size");
    space.wait_for("full", "Degraded", "True", "ApplyRefused");
    space
        .change("full", &size("256Mi"))
        .expect("the size that it has");
    space.wait_until_up_to_date("full");
    let error = space.change("full", &size("128Mi")).expect_err("less");
    assert!(error.contains("must not shrink"), "{error}");
    drop(expansion);

    space.say("more tablet servers than volumes, and back");
    let quota = "{apiVersion: v1, kind: ResourceQuota, metadata: {name: few}, spec: {hard: {persistentvolumeclaims: '10'}}}";
    space.apply(quota).expect("a quota");
    // Three claims of this cluster, and three of each of the other two.
    wait("it to count", || {
        let quota = space.get("resourcequota", "few")?;
        match quota["status"]["used"]["persistentvolumeclaims"].as_str() {
            Some("9") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    space
        .kubectl(&["scale", "perc", "full", "--replicas=4"])
        .expect("too many");
    space.wait_for_words("full", "Degraded", "PodsRefused", &["full-tablet"]);
    wait("one more to have a volume", || {
        let status = space.get("perc", "full")?["status"]["tablets"].clone();
        match status["volumes"].as_i64() {
            Some(volumes) if volumes > 1 => Ok(()),
            _ => Err(status.to_string()),
        }
    });
    space.wait_for("full", "Available", "True", "AllServersReady");
    space
        .kubectl(&["scale", "perc", "full", "--replicas=1"])
        .expect("as many as before");
    // One that runs by now is drained first. Before the set is as small, more of them would be made without the quota.
    wait("one of them", || {
        let set = space.get("statefulset", "full-tablet")?;
        match set["spec"]["replicas"].as_i64() {
            Some(1) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    space
        .kubectl(&["delete", "resourcequota", "few"])
        .expect("gone");
    // Kubernetes tries again later each time, up to a quarter of an hour, but with a change of the set at once.
    let change = ["annotate", "statefulset", "full-tablet", "try=again"];
    space.kubectl(&change).expect("an annotation");
    space.wait_until_up_to_date("full");
}

fn have_no_storage_class(space: &Namespace) {
    space.say("a storage class that doesn't exist");
    let manifest = small("nowhere", "").replace("size: 16Mi", "size: 16Mi, storageClassName: none");
    space.apply(&manifest).expect("a cluster");
    space.wait_for("nowhere", "Degraded", "True", "PodUnschedulable");
    space
        .apply(&small("nowhere", ""))
        .expect("the default class");
    space.wait_until_up_to_date("nowhere");
    let manifest =
        small("nowhere", "").replace("size: 16Mi", "size: 16Mi, storageClassName: other");
    let error = space.apply(&manifest).expect_err("there are volumes now");
    assert!(
        error.contains("must not change once there are volumes"),
        "{error}"
    );
}

fn come_back_empty(kube: &Kube, space: &Namespace) {
    space.say("a tablet server whose volume comes back empty");
    let table = ["-c", "nowhere:7400", "table", "create", "rows"];
    space.start(kube, "table", &table);
    assert!(space.wait_for_end("table").0);
    space
        .kubectl(&["delete", "pvc", "data-nowhere-tablet-0", "--wait=false"])
        .expect("its claim");
    space.kill("nowhere-tablet-0");
    let words = ["nowhere-tablet-0", "1 tablets"];
    space.wait_for_words("nowhere", "Degraded", "DataLost", &words);
    space.wait_for("nowhere", "Available", "False", "ServersNotReady");
}
