//! A cluster is stopped, and restored from what it had then, as docs/kubernetes.md says: its claims, and the registers of its
//! oracles and masters. `cargo xtask test e2e` runs it.

use percolator_e2e::{Kube, Namespace, SMALL_PROXY, say, small, wait};
use serde_json::{Value, json};

const OF_CLUSTER: &str = "-lpercolator.dev/cluster=demo";

/// The registers, as a copy has them: without what binds them to this incarnation of the cluster.
fn registers(space: &Namespace) -> Vec<Value> {
    let list = space.kubectl(&["get", "configmap", OF_CLUSTER, "-o", "json"]);
    let list: Value = serde_json::from_str(&list.expect("ConfigMaps")).expect("JSON");
    let found = list["items"].as_array().into_iter().flatten();
    let registers = found.filter(|found| found["binaryData"]["register"].is_string());
    let copy = |found: &Value| {
        let metadata = ["name", "labels", "annotations"];
        let metadata = metadata.map(|field| (field.to_owned(), found["metadata"][field].clone()));
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": Value::Object(metadata.into_iter().collect()),
            "binaryData": found["binaryData"],
        })
    };
    registers.map(copy).collect()
}

/// Ends all pods, and nothing starts them again.
fn stop(space: &Namespace) {
    space.change("demo", r#"{"paused":true}"#).expect("paused");
    space.wait_for("demo", "Paused", "True", "PausedBySpec");
    for kind in ["deployment", "statefulset"] {
        let scale = ["scale", kind, OF_CLUSTER, "--replicas=0"];
        space.kubectl(&scale).expect("none");
    }
    space.wait_for_none("pods");
}

#[test]
fn a_cluster_is_restored_from_what_it_had_when_it_stood_still() {
    let Some(kube) = Kube::find() else { return };
    kube.install(&[]);
    let space = kube.namespace("backup");
    say("a cluster with two oracles, two masters and a proxy");
    let manifest = small("demo", SMALL_PROXY);
    let manifest = manifest.replace("oracle:\n", "oracle:\n    replicas: 2\n");
    let manifest = manifest.replace("master:\n", "master:\n    replicas: 2\n");
    space.apply(&manifest).expect("a cluster");
    space.wait_until_up_to_date("demo");
    let run = |arguments: &[&str]| space.percolator("demo-master-0", "demo", arguments);
    run(&["table", "create", "notes"]).expect("a table");
    run(&["put", "notes", "zoe", "text", "kept"]).expect("a row");

    say("it is stopped, and copied");
    stop(&space);
    let copies = registers(&space);
    assert_eq!(copies.len(), 3, "{copies:?}");

    say("it is deleted, and restored");
    space.kubectl(&["delete", "perc", "demo"]).expect("gone");
    space.wait_for_none("statefulsets");
    for copy in &copies {
        let name = copy["metadata"]["name"].as_str().expect("a name");
        space.kubectl(&["delete", "configmap", name]).expect("gone");
        space.apply(&copy.to_string()).expect("a register");
    }
    space.apply(&manifest).expect("a cluster");
    space.wait_until_up_to_date("demo");
    // DNS gives the address of the service that was deleted for up to half a minute.
    wait("its row", || match run(&["get", "notes", "zoe", "text"])? {
        row if row == "kept" => Ok(()),
        other => Err(other),
    });
    wait("another row", || {
        run(&["put", "notes", "joe", "text", "new"])
    });
}
