//! Clusters beside others, of somebody else or of the same name, and what deleting one leaves behind.

use percolator_e2e::{Kube, Namespace, small, wait};

/// Two clusters of one name, of one operator or of several.
#[expect(clippy::too_many_lines, reason = "one story in its order")]
pub(super) fn keep_to_themselves(kube: &Kube, blue: &Namespace, green: &Namespace) {
    let say = |what: &str| green.say(what);
    say("an object of somebody else is left alone");
    blue.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: mine}, data: {a: b}}")
        .expect("a config");
    blue.apply(&small("mine", "  claims: {whenDeleted: Delete}"))
        .expect("a cluster");
    blue.wait_for("mine", "Degraded", "True", "ObjectConflict");
    let config = blue.get("configmap", "mine").expect("it is there");
    assert_eq!(config["data"]["a"], "b");
    assert!(blue.get("statefulset", "mine-master").is_err());
    blue.kubectl(&["delete", "configmap", "mine"])
        .expect("gone");
    // The operator gets no event for the end of a foreign object: it polls for it.
    blue.wait_until_up_to_date("mine");

    say("two clusters of one name in two namespaces");
    green.apply(&small("mine", "")).expect("a cluster");
    green.wait_until_up_to_date("mine");
    for (space, value) in [(blue, "blue"), (green, "green")] {
        let server = "mine:7400";
        space.start(kube, "table", &["-c", server, "table", "create", "colours"]);
        assert!(space.wait_for_end("table").0);
        space.start(
            kube,
            "put",
            &["-c", server, "put", "colours", "mine", "is", value],
        );
        assert!(space.wait_for_end("put").0);
    }
    let get = ["-c", "mine:7400", "get", "colours", "mine", "is"];
    for (space, value) in [(blue, "blue"), (green, "green")] {
        space.start(kube, "get", &get);
        assert_eq!(space.wait_for_end("get"), (true, value.to_owned()));
    }

    say("paused: nothing happens; and then it does");
    green
        .change("mine", r#"{"paused":true,"tablets":{"replicas":2}}"#)
        .expect("paused");
    green.wait_for("mine", "Paused", "True", "PausedBySpec");
    green.wait_for("mine", "Progressing", "False", "PausedBySpec");
    assert_eq!(green.incarnations("mine").len(), 3);
    green.change("mine", r#"{"paused":false}"#).expect("on");
    green.wait_until_up_to_date("mine");
    assert_eq!(green.incarnations("mine").len(), 4);

    say(
        "accounts of its own are not needed any more: each server runs as another one, and they go",
    );
    let account = "{apiVersion: v1, kind: ServiceAccount, metadata: {name: theirs}}";
    green.apply(account).expect("an account");
    let of_pod = r#"{"pod":{"serviceAccountName":"theirs"}}"#;
    let spec = ["oracle", "master", "tablets"].map(|role| format!(r#""{role}":{of_pod}"#));
    let spec = format!("{{{}}}", spec.join(","));
    green.change("mine", &spec).expect("an account");
    green.wait_until_up_to_date("mine");
    wait("the end of its own account", || {
        match green
            .kubectl(&["get", "serviceaccounts", "-o", "name"])?
            .as_str()
        {
            "serviceaccount/default\nserviceaccount/theirs" => Ok(()),
            other => Err(other.to_owned()),
        }
    });

    say("deleted, and made again at once: claims stay, and all of them are taken up again");
    green.kubectl(&["delete", "perc", "mine"]).expect("gone");
    green.apply(&small("mine", "")).expect("one server less");
    let words = ["must be at least 2", "data-mine-tablet-1"];
    green.wait_for_words("mine", "Degraded", "InvalidSpec", &words);
    let again = small("mine", "").replace("replicas: 1", "replicas: 2");
    green.apply(&again).expect("the same again");
    green.wait_until_up_to_date("mine");

    say("deleted without what it had: that is taken up, and nobody restarts");
    let incarnations = green.incarnations("mine");
    let orphan = ["delete", "perc", "mine", "--cascade=orphan"];
    green.kubectl(&orphan).expect("gone");
    assert_eq!(green.incarnations("mine"), incarnations);
    green.apply(&again).expect("the same again");
    green.wait_until_up_to_date("mine");
    assert_eq!(green.incarnations("mine"), incarnations);
    green.wait_until_it_prints(kube, "get-again", &get, "green");

    say("deleted: claims go");
    blue.kubectl(&["delete", "perc", "mine"]).expect("gone");
    blue.wait_for_none("pvc");
}
