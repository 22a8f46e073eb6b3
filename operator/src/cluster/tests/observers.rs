//! The workers of observers: how they are made, waited for and removed.

use super::*;

fn asks(more: Value) -> impl FnOnce(&mut ClusterObject) {
    move |cluster| {
        let mut observer = json!({"name": "words", "table": "documents", "column": "text"});
        percolator_api::merge(&mut observer, &more);
        let observer = serde_json::from_value(observer).expect("an observer");
        cluster.spec.observers = vec![observer];
    }
}

fn with_workers(more: Value) -> (World, Value) {
    let mut world = World::all_ready();
    world.change(asks(more));
    assert_eq!(world.step().0, ["demo-observer-words"]);
    let key = (Kind::Deployment, "demo-observer-words".to_owned());
    let live = world.observed.objects[&key].clone();
    (world, live)
}

#[test]
fn workers_come_behind_the_servers_and_go_with_the_spec() {
    let webhook =
        json!({"url": "https://example.com/changed", "keySecret": {"name": "hook", "key": "key"}});
    let (mut world, live) = with_workers(json!({"webhook": webhook, "replicas": 2}));
    assert_eq!(
        world.condition("Progressing"),
        reason(true, Reason::WaitingForObservers)
    );
    let message = world.message("Progressing");
    assert!(message.contains("demo-observer-words: 0 of 2"), "{message}");
    let pod = &live["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(container["image"], SETTINGS_IMAGE);
    let args: Vec<&str> = container["args"]
        .as_array()
        .expect("arguments")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    assert!(
        args.contains(&"--webhook=https://example.com/changed"),
        "{args:?}"
    );
    assert_eq!(args[args.len() - 3..], ["--", "documents", "text"]);
    let env = container["env"].to_string();
    assert!(
        env.contains(r#"{"secretKeyRef":{"key":"key","name":"hook"}}"#),
        "{env}"
    );
    // The column is observed before.
    let observe = pod["initContainers"][0]["args"].to_string();
    let words = r#""table","observe","--","documents","text"]"#;
    assert!(observe.ends_with(words), "{observe}");

    let key = (Kind::Deployment, "demo-observer-words".to_owned());
    let live = world.observed.objects.get_mut(&key).expect("a Deployment");
    live["status"] =
        json!({"observedGeneration": 1, "replicas": 2, "readyReplicas": 2, "updatedReplicas": 2});
    world.step();
    assert_eq!(world.condition("Ready"), reason(true, Reason::UpToDate));
    let status = world.cluster.status.as_ref().expect("a status");
    assert_eq!(status.observers["words"].summary, "2/2");
    world.change(|cluster| cluster.spec.observers.clear());
    assert_eq!(world.step().0, ["-demo-observer-words"]);
    let status = world.cluster.status.as_ref().expect("a status");
    assert!(status.observers.is_empty());
}

/// Its image has a version of its own, which is none of the servers'.
#[test]
fn the_version_is_the_servers_alone() {
    let (mut world, _) = with_workers(json!({"exec": "count", "image": "counter:1"}));
    let before = world.cluster.status.clone().expect("a status").version;
    world.pod("demo-observer-words-x", json!({"containerStatuses": []}));
    let pod = world.observed.pods.last_mut().expect("it is there");
    edit(pod, |pod| {
        pod["metadata"]["labels"] = json!({"percolator.dev/component": "observer-words"});
        pod["spec"]["containers"] = json!([{"name": "observer-words", "image": "counter:1"}]);
    });
    world.step();
    let version = world.cluster.status.clone().expect("a status").version;
    assert_eq!(version, before);
}

/// Kubernetes takes `$(NAME)` for a variable, and `$$` for a `$`.
#[test]
fn a_program_runs_in_an_image_of_its_own_and_its_shell_sees_dollars() {
    let program = json!({"exec": "count $(cat) $HOME", "image": "counter:1"});
    let (_, live) = with_workers(program);
    let pod = &live["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(container["image"], "counter:1");
    assert_eq!(container["command"], json!(["percolator"]));
    let args = container["args"].to_string();
    assert!(args.contains("--exec=count $$(cat) $$HOME"), "{args}");
    assert_eq!(pod["initContainers"][0]["image"], SETTINGS_IMAGE);
}

#[test]
fn what_an_observer_may_not_say_is_refused_in_words() {
    for (more, said) in [
        (
            json!({}),
            "spec.observers[0].exec: set either exec or webhook",
        ),
        (
            json!({"exec": "a"}),
            "spec.observers[0].image: exec needs one",
        ),
        (
            json!({"exec": "a", "image": "b", "name": "A"}),
            "spec.observers[0].name: \"A\" must be 1 to 20",
        ),
        (
            json!({"exec": "a", "image": "b", "replicas": 101}),
            "spec.observers[0].replicas: 101 must be from 0 to 100",
        ),
        (
            json!({"exec": "a", "image": "b", "attempts": 0}),
            "spec.observers[0].attempts: 0 must be from 1 to 1000",
        ),
        (
            json!({"exec": "a", "image": "b", "timeout": "2h"}),
            "spec.observers[0].timeout: 2h must be from 1s to 1h",
        ),
        (
            json!({"webhook": {"url": "ftp://a", "keySecret": {"name": "a", "key": "b"}}}),
            "spec.observers[0].webhook.url: must begin with http",
        ),
        (
            json!({"exec": "a", "image": "b", "env": [{"name": "PERCOLATOR_X"}]}),
            "spec.observers[0].env[0].name: \"PERCOLATOR_X\" is the operator's own",
        ),
    ] {
        let mut world = World::all_ready();
        world.change(asks(more.clone()));
        assert_eq!(world.step().0, Vec::<String>::new(), "{more}");
        let message = world.message("Degraded");
        assert!(message.contains(said), "{more}: {message}");
    }
}
