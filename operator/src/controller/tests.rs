//! Reconciles of clusters, with API servers made up.

mod fleet;

use super::*;

#[test]
fn what_does_not_serve_is_reconciled_soon_and_then_less_often() {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
    let at = |second| Timestamp::from_second(second).unwrap();
    let condition = |type_: &str, status: &str, since| Condition {
        type_: type_.into(),
        status: status.into(),
        reason: "x".into(),
        message: String::new(),
        observed_generation: None,
        last_transition_time: Time(at(since)),
    };
    for (serves, waits, now, seconds) in [
        ("True", "False", 1_001, 600),
        ("False", "False", 1_001, 12),
        ("False", "False", 1_100, 100),
        ("False", "False", 9_000, 600),
        ("False", "False", 999, 12),
        // The pod of a new server can't be made, and no watch reports that.
        ("True", "True", 2_001, 12),
        ("True", "True", 2_100, 100),
        ("False", "True", 2_100, 100),
    ] {
        let status = Status {
            conditions: vec![
                condition("Available", serves, 1_000),
                condition("Progressing", waits, 2_000),
            ],
            ..Status::default()
        };
        let pause = requeue_after(&status, at(now));
        assert_eq!(pause.as_secs(), seconds, "{serves} {waits} {now}");
    }
    // No watch reports definitions that come later.
    for reason in [
        "WaitingForDefinitions",
        "WaitingForPermission",
        "ObjectConflict",
    ] {
        let mut waits = condition("Monitored", "False", 2_000);
        waits.reason = reason.into();
        let status = Status {
            conditions: vec![condition("Available", "True", 1_000), waits],
            ..Status::default()
        };
        assert_eq!(requeue_after(&status, at(9_000)).as_secs(), 40);
    }
    // No watch reports tablets that are moved.
    for reason in ["DrainingTablets", "DrainBlocked"] {
        let mut drains = condition("Progressing", "True", 2_000);
        drains.reason = reason.into();
        let status = Status {
            conditions: vec![condition("Available", "True", 1_000), drains],
            ..Status::default()
        };
        for (now, seconds) in [(2_000, 3), (2_040, 10), (9_000, 60)] {
            assert_eq!(
                requeue_after(&status, at(now)).as_secs(),
                seconds,
                "{reason}"
            );
        }
    }
}

/// An API server with one cluster, of a version that this operator doesn't know.
fn with_a_newer_cluster() -> Client {
    let newer = r#"{"apiVersion": "percolator.dev/v1alpha1", "kind": "PercolatorCluster",
        "metadata": {"name": "newer", "namespace": "n"},
        "spec": {"tablets": {"storage": {"engine": "stone"}}}}"#;
    let gone = r#"{"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
        "message": "gone", "reason": "NotFound", "code": 404}"#;
    let answer = move |request: hyper::Request<kube::client::Body>| {
        let is_there = request.uri().path().ends_with("/newer");
        let (status, text) = if is_there { (200, newer) } else { (404, gone) };
        let body = kube::client::Body::from(text.as_bytes().to_vec());
        let answer = hyper::Response::builder().status(status).body(body);
        std::future::ready(answer)
    };
    Client::new(tower::service_fn(answer), "n")
}

/// What reconciles share, of this API server.
fn shared(client: Client) -> Arc<Shared> {
    let settings = Settings {
        image: "percolator:1".into(),
        unschedulable_timeout_seconds: 300,
        rolls_max: 10,
    };
    let metrics = Metrics::new().unwrap();
    let shared = Shared::new(client, settings, "me", metrics, Watches::default());
    Arc::new(shared)
}

fn found(name: &str) -> Arc<KnownObject<ClusterObject>> {
    let metadata = ObjectMeta {
        name: Some(name.into()),
        namespace: Some("n".into()),
        generation: Some(1),
        ..ObjectMeta::default()
    };
    Arc::new(KnownObject::new(metadata))
}

/// Of a refusal, because the namespace is being deleted.
const NAMESPACE_ENDING: &str =
    r#""reason": "Forbidden", "details": {"causes": [{"reason": "NamespaceTerminating"}]}"#;

/// An API server with a cluster of this name and none of what it needs, that refuses to make anything in this way, and
/// keeps what it is asked to write.
fn that_refuses(name: &'static str, why: &'static str) -> (Client, Arc<Mutex<Vec<String>>>) {
    that_refuses_and(name, why, |_| None)
}

/// The same, but for paths that have an answer of their own here.
fn that_refuses_and(
    name: &'static str,
    why: &'static str,
    own: fn(&str) -> Option<(u16, &'static str)>,
) -> (Client, Arc<Mutex<Vec<String>>>) {
    let writes = Arc::<Mutex<Vec<String>>>::default();
    let written = writes.clone();
    let answer = move |request: hyper::Request<kube::client::Body>| {
        let path = request.uri().path().to_owned();
        let cluster = format!(
            r#"{{"apiVersion": "percolator.dev/v1alpha1", "kind": "PercolatorCluster",
            "metadata": {{"name": "{name}", "namespace": "n", "uid": "u", "generation": 1}}, "spec": {{}}}}"#
        );
        let failure = |code: u16, rest: &str| {
            let text = format!(
                r#"{{"apiVersion": "v1", "kind": "Status", "metadata": {{}}, "status": "Failure", "message": "no",
                "code": {code}, {rest}}}"#
            );
            (code, text)
        };
        let is_list = ["pods", "persistentvolumeclaims", "events", "deployments"]
            .iter()
            .any(|kind| path.ends_with(kind));
        let (status, text) = if let Some((status, text)) = own(&path) {
            (status, text.to_owned())
        } else if request.method() != hyper::Method::GET {
            written.lock().unwrap().push(path.clone());
            if path.ends_with("/status") {
                (200, cluster)
            } else {
                failure(403, why)
            }
        } else if path.ends_with(&format!("/percolatorclusters/{name}")) {
            (200, cluster)
        } else if is_list {
            (
                200,
                r#"{"apiVersion": "v1", "kind": "List", "metadata": {}, "items": []}"#.to_owned(),
            )
        } else {
            failure(404, r#""reason": "NotFound""#)
        };
        let body = kube::client::Body::from(text.into_bytes());
        let answer = hyper::Response::builder().status(status).body(body);
        std::future::ready(answer)
    };
    (Client::new(tower::service_fn(answer), "n"), writes)
}

#[tokio::test]
async fn the_end_of_a_namespace_is_waited_for_and_no_failure() {
    let (client, writes) = that_refuses("mine", NAMESPACE_ENDING);
    let shared = self::shared(client);
    let again = reconcile(found("mine"), shared.clone()).await;
    assert_eq!(again.expect("no failure"), Action::requeue(RESYNC_INTERVAL));
    // The first refusal counts for the rest, and is in the status. The status was written before, too, to record the image. Each
    // has an event.
    let writes = std::mem::take(&mut *writes.lock().unwrap());
    let (status, made): (Vec<_>, Vec<_>) =
        writes.iter().partition(|path| path.ends_with("/status"));
    assert!(status.len() == 2 && made.len() == 3, "{writes:?}");
    let text = percolator_telemetry::text(&shared.metrics.registry).unwrap();
    assert!(
        text.contains("reconciles_total{result=\"error\"} 0"),
        "{text}"
    );

    // Other refusals are errors.
    let (client, _) = that_refuses("mine", r#""reason": "Forbidden""#);
    let error = reconcile(found("mine"), self::shared(client)).await;
    error.expect_err("a refusal");
}

#[tokio::test]
async fn a_definition_that_goes_holds_up_no_cluster() {
    // It was there a moment ago; an API server says so in words, and not as a Status.
    let (client, writes) = that_refuses_and("mine", NAMESPACE_ENDING, |path| {
        if path.ends_with("/apis/monitoring.coreos.com/v1") {
            Some((
                200,
                r#"{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "monitoring.coreos.com/v1",
                "resources": [{"name": "prometheusrules", "singularName": "prometheusrule", "namespaced": true,
                    "kind": "PrometheusRule", "verbs": ["get"]}]}"#,
            ))
        } else if path.contains("/prometheusrules/") {
            Some((404, "404 page not found\n"))
        } else {
            None
        }
    });
    let again = reconcile(found("mine"), shared(client)).await;
    assert_eq!(again.expect("no failure"), Action::requeue(RESYNC_INTERVAL));
    let writes = writes.lock().unwrap();
    assert!(writes.len() > 1, "it is made: {writes:?}");
}

#[tokio::test]
async fn what_fails_of_a_cluster_that_goes_is_no_failure() {
    // It is gone when its objects are asked for.
    let (client, _) = that_refuses("another", r#""reason": "Forbidden""#);
    let shared = shared(client);
    reconcile(found("mine"), shared.clone())
        .await
        .expect("gone");
    assert!(is_gone(&found("mine").metadata, &shared).await);
    assert!(!is_gone(&found("another").metadata, &shared).await);
    // And one that failed waits for nothing any more, when no watch knows it.
    shared.reconciles.failed("n/mine", Instant::now(), 1.0);
    assert_eq!(shared.count().2, 0);
    let mut watched = kube::runtime::reflector::store::Writer::default();
    shared.known.lock().unwrap().push(watched.as_reader());
    let known = (*found("mine")).clone();
    watched.apply_watcher_event(&watcher::Event::Apply(known.clone()));
    assert_eq!(shared.count().2, 1);
    watched.apply_watcher_event(&watcher::Event::Delete(known));
    assert_eq!(shared.count().2, 0);
}

#[tokio::test]
async fn a_cluster_that_does_not_parse_holds_up_no_other() {
    let shared = shared(with_a_newer_cluster());
    for failures in 1..=3 {
        let error = reconcile(found("newer"), shared.clone()).await.unwrap_err();
        assert!(error.to_string().contains("stone"), "{error}");
        let again = failed(found("newer"), &error, shared.clone());
        assert_ne!(again, Action::await_change(), "{failures}");
        reconcile(found("another"), shared.clone()).await.unwrap();
    }
    assert_eq!(shared.reconciles.standstill(Instant::now()), None);
    let text = percolator_telemetry::text(&shared.metrics.registry).unwrap();
    assert!(
        text.contains("reconciles_total{result=\"error\"} 3"),
        "{text}"
    );
    assert!(text.contains("reconciles_total{result=\"ok\"} 3"), "{text}");
}

/// An API server that keeps what it is asked to apply, and makes images of a mirror of all images. It knows of each write.
fn with_a_mirror(name: &'static str) -> (Client, Arc<Mutex<Vec<String>>>) {
    let writes = Arc::<Mutex<Vec<String>>>::default();
    let kept = Arc::<Mutex<BTreeMap<String, String>>>::default();
    let written = writes.clone();
    let answer = move |request: hyper::Request<kube::client::Body>| {
        let (written, kept) = (written.clone(), kept.clone());
        async move {
            let path = request.uri().path().to_owned();
            let is_write = request.method() != hyper::Method::GET;
            let body = request.into_body().collect_bytes().await.expect("a body");
            let body = String::from_utf8_lossy(&body).into_owned();
            let missing = r#"{"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
                "message": "none", "reason": "NotFound", "code": 404}"#;
            let cluster = format!(
                r#"{{"apiVersion": "percolator.dev/v1alpha1", "kind": "PercolatorCluster",
                "metadata": {{"name": "{name}", "namespace": "n", "uid": "u", "generation": 1}}, "spec": {{}}}}"#
            );
            let is_list = ["pods", "persistentvolumeclaims", "events", "deployments"]
                .iter()
                .any(|kind| path.ends_with(kind));
            let (code, text) = if path.contains("/percolatorclusters/") {
                (200, cluster)
            } else if is_write {
                let made = body.replace("\"image\":\"", "\"image\":\"mirror/");
                written.lock().unwrap().push(path.clone());
                kept.lock().unwrap().insert(path, made.clone());
                (200, made)
            } else if is_list {
                let list = r#"{"apiVersion": "v1", "kind": "List", "metadata": {}, "items": []}"#;
                (200, list.to_owned())
            } else {
                let found = kept.lock().unwrap().get(&path).cloned();
                found.map_or((404, missing.to_owned()), |found| (200, found))
            };
            let body = kube::client::Body::from(text.into_bytes());
            hyper::Response::builder().status(code).body(body)
        }
    };
    (Client::new(tower::service_fn(answer), "n"), writes)
}

/// No watch reports a response, so that the next reconcile comes by itself. It applies nothing again.
#[tokio::test]
async fn what_admission_alters_is_applied_once() {
    let (client, writes) = with_a_mirror("mine");
    let shared = self::shared(client);
    let again = reconcile(found("mine"), shared.clone()).await;
    assert_eq!(again.expect("no failure"), Action::requeue(CONTINUE_AFTER));
    let of_sets = || {
        let writes = std::mem::take(&mut *writes.lock().unwrap());
        let sets = writes.iter().filter(|path| path.contains("/statefulsets/"));
        sets.count()
    };
    assert_eq!(of_sets(), 1);
    let again = reconcile(found("mine"), shared.clone()).await;
    assert_ne!(again.expect("no failure"), Action::requeue(CONTINUE_AFTER));
    assert_eq!(of_sets(), 0);
    // A cluster that is gone leaves nothing behind.
    assert_eq!(shared.altered().len(), 1);
    shared.forget("n/mine");
    assert_eq!(shared.altered().len(), 0);
    // Another operator asks once.
    let other = self::shared(shared.client.clone());
    let again = reconcile(found("mine"), other).await;
    assert_eq!(again.expect("no failure"), Action::requeue(CONTINUE_AFTER));
    assert_eq!(of_sets(), 1);
}
