//! What is asked of an API server, and how its answers are taken.

use std::sync::{Arc, Mutex};

use super::*;

/// An API server that answers everything like this.
fn that_says(code: u16, text: &'static str) -> Objects {
    let answer = move |_: hyper::Request<kube::client::Body>| {
        let body = kube::client::Body::from(text.as_bytes().to_vec());
        std::future::ready(hyper::Response::builder().status(code).body(body))
    };
    Objects::new(Client::new(tower::service_fn(answer), "n"), "n")
}

#[tokio::test]
async fn what_is_gone_with_its_definition_is_removed() {
    let rule = Kind::PrometheusRule.api();
    let removed = |objects: Objects| {
        let rule = rule.clone();
        async move { objects.remove(&rule, "a", Preconditions::default()).await }
    };
    // In words, and not as a Status.
    let gone = that_says(404, "404 page not found\n");
    removed(gone).await.expect("it is gone");
    let refused = that_says(403, "forbidden\n");
    removed(refused).await.expect_err("a refusal");
}

#[test]
fn what_goes_by_itself_is_no_refusal() {
    let of = |code, message: &str| {
        let status = KubeStatus::failure(message, "why");
        is_refusal(&status.with_code(code))
    };
    assert!([403, 422, 400].into_iter().all(|code| of(code, "")));
    assert!(
        ![401, 404, 409, 429, 500, 503]
            .into_iter()
            .any(|code| of(code, ""))
    );
    assert!(of(
        500,
        "Internal error occurred: failed calling webhook \"policies\": no endpoints"
    ));
    assert!(of(
        500,
        "failed to create typed patch object (n/demo; apps/v1, Kind=StatefulSet): duplicate entries"
    ));
}

/// What is refused hides nothing else, and what is for the Prometheus operator is done last.
#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one story in its order")]
async fn what_is_refused_keeps_nothing_else_from_being_done() {
    let asked = Arc::<Mutex<Vec<String>>>::default();
    let noted = asked.clone();
    let answer = move |request: hyper::Request<kube::client::Body>| {
        let path = request.uri().path();
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        noted.lock().unwrap().push(name.clone());
        async move {
            let asked = request.into_body().collect_bytes().await.expect("a body");
            let asked = String::from_utf8_lossy(&asked).into_owned();
            let (code, text) = match &*name {
                "bad" => {
                    let refusal = r#"{"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
                        "message": "failed calling webhook \"w\": it is 8:15", "reason": "InternalError", "code": 500}"#;
                    (500, refusal.to_owned())
                }
                "altered" => (200, asked.replace("image-a", "image-b")),
                "claim" | "unused" | "gone" => {
                    let empty =
                        r#"{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {}}"#;
                    (200, empty.to_owned())
                }
                _ => (200, asked),
            };
            let body = kube::client::Body::from(text.into_bytes());
            hyper::Response::builder().status(code).body(body)
        }
    };
    let objects = Objects::new(Client::new(tower::service_fn(answer), "n"), "n");
    let object = |kind, name: &str| {
        let body = json!({"spec": {"image": "image-a"}});
        Object::new(kind, name, json!({}), &json!({}), body)
    };
    let plan = Plan {
        apply: vec![
            object(Kind::Service, "bad"),
            object(Kind::Service, "good"),
            object(Kind::Service, "altered"),
            object(Kind::StatefulSet, "waits"),
            object(Kind::PrometheusRule, "bad"),
            object(Kind::PodMonitor, "monitor"),
        ],
        claims: ["bad", "claim"]
            .map(|name| (name.to_owned(), json!({"spec": {}})))
            .into(),
        remove: vec![(Kind::Service, "gone".to_owned())],
        release: vec!["unused".to_owned()],
        ..Plan::default()
    };
    let named = |name: &str| json!({"metadata": {"name": name}});
    let gone = (Kind::Service, "gone".to_owned());
    let mut observed = Observed {
        objects: [(gone.clone(), named("gone"))].into(),
        claims: vec![serde_json::from_value(named("unused")).expect("a claim")],
        ..Observed::default()
    };
    let refused = objects.carry_out(&plan, &mut observed).await;
    let why = || "failed calling webhook \"w\"".to_owned();
    let CarriedOut { refused, .. } = refused.expect("no other failure");
    let altered: Vec<&(Kind, String)> = observed.altered.keys().collect();
    assert_eq!(altered, [&(Kind::Service, "altered".to_owned())]);
    // So that it isn't planned once more by what was seen before.
    assert!(observed.objects[&gone]["metadata"]["deletionTimestamp"].is_string());
    let claim = &observed.claims[0];
    assert!(claim.metadata.deletion_timestamp.is_some());
    assert_eq!(
        refused,
        [
            Refusal::of_servers(why()),
            Refusal::of_servers(why()),
            Refusal::of_monitoring(why()),
        ]
    );
    let asked = asked.lock().unwrap();
    let expected = [
        "bad", "good", "altered", "bad", "claim", "gone", "unused", "bad", "monitor",
    ];
    assert_eq!(*asked, expected);
}

fn service(name: &str) -> Object {
    Object::new(
        Kind::Service,
        name,
        json!({}),
        &json!({}),
        json!({"spec": {}}),
    )
}

/// A deletion that leaves everything may have taken its owner off since it was seen.
#[tokio::test]
async fn what_has_changed_since_it_was_seen_is_not_applied() {
    let answer = async |request: hyper::Request<kube::client::Body>| {
        let asked = request.into_body().collect_bytes().await.expect("a body");
        let asked: Value = serde_json::from_slice(&asked).expect("JSON");
        let (code, answer) = if asked["metadata"]["resourceVersion"] == "7" {
            (200, asked)
        } else {
            let conflict = json!({
                "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
                "message": "the object has been modified", "reason": "Conflict", "code": 409,
            });
            (409, conflict)
        };
        let body = kube::client::Body::from(answer.to_string().into_bytes());
        Ok::<_, std::convert::Infallible>(
            hyper::Response::builder()
                .status(code)
                .body(body)
                .expect("an answer"),
        )
    };
    let objects = Objects::new(Client::new(tower::service_fn(answer), "n"), "n");
    let plan = Plan {
        apply: vec![service("a")],
        ..Plan::default()
    };
    for (version, is_applied) in [("7", true), ("6", false)] {
        let live = json!({"metadata": {"name": "a", "uid": "u", "resourceVersion": version}});
        let mut observed = Observed {
            objects: [((Kind::Service, "a".to_owned()), live)].into(),
            ..Observed::default()
        };
        let done = objects.carry_out(&plan, &mut observed).await;
        // Not a refusal, which would last.
        assert_eq!(done.is_ok(), is_applied, "{version}: {done:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_takes_too_long_is_left_to_the_next_reconcile() {
    let asked = Arc::<Mutex<usize>>::default();
    let noted = asked.clone();
    let answer = move |request: hyper::Request<kube::client::Body>| {
        *noted.lock().unwrap() += 1;
        async move {
            // As where a webhook doesn't answer, and may be ignored.
            tokio::time::sleep(Duration::from_secs(10)).await;
            let asked = request.into_body().collect_bytes().await.expect("a body");
            let body = kube::client::Body::from(asked.to_vec());
            Ok::<_, std::convert::Infallible>(hyper::Response::new(body))
        }
    };
    let objects = Objects::new(Client::new(tower::service_fn(answer), "n"), "n");
    let plan = Plan {
        apply: (0..9).map(|at| service(&format!("s-{at}"))).collect(),
        ..Plan::default()
    };
    let mut observed = Observed::default();
    let done = objects
        .carry_out(&plan, &mut observed)
        .await
        .expect("answers");
    assert_eq!(
        done,
        CarriedOut {
            refused: Vec::new(),
            is_cut_off: true
        }
    );
    assert_eq!(*asked.lock().unwrap(), 3);
    assert_eq!(observed.objects.len(), 3);
}
