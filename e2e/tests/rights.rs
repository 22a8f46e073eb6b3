//! The operator uses each right that the chart grants, and no other: by the audit log of all tests before this one.
//! `cargo xtask test e2e` runs it last.

use std::collections::BTreeSet;

use percolator_e2e::audit::{ApiOperation, Audit, Request, counts, granted, used};
use percolator_e2e::{Kube, OPERATOR, kubectl, say};
use serde_json::Value;

const NAME: &str = "percolator-percolator-operator";

/// Rights that the tests don't use each time: the resource, the verb, and the reason why it is granted.
const NOT_SEEN: [(&str, &str, &str); 7] = [
    (
        "percolatorclusters/finalizers",
        "update",
        "asked by admission (OwnerReferencesPermissionEnforcement), and no request of its own",
    ),
    ("configmaps", "delete", TAKEN_UP),
    ("services", "delete", TAKEN_UP),
    ("poddisruptionbudgets", "delete", TAKEN_UP),
    ("roles", "delete", TAKEN_UP),
    ("rolebindings", "delete", TAKEN_UP),
    (
        "events",
        "patch",
        "when the same event is reported again within minutes",
    ),
];
const TAKEN_UP: &str = "asked by admission, where what a former cluster left behind is taken up";

fn role(arguments: &[&str]) -> Value {
    let role = kubectl(&[&["get", "-o", "json"], arguments].concat()).expect("a role");
    serde_json::from_str(&role).expect("JSON")
}

#[test]
fn the_operator_uses_each_right_that_it_has_and_asks_for_no_other() {
    let Some(kube) = Kube::find() else { return };
    kube.install(&[]);
    let mut granted = granted(&role(&["clusterrole", NAME]));
    let lease = format!("{NAME}-lease");
    let of_lease = role(&["role", &lease, "-n", OPERATOR]);
    granted.extend(percolator_e2e::audit::granted(&of_lease));
    let requests = Audit::find().since(0);
    say(&format!(
        "{} requests of operators: {}",
        requests.len(),
        counts(&requests)
    ));

    // While rights change, as in a test of two namespaces, an operator of before may ask for what it had.
    let forbidden = requests.iter().filter(|request| request.is_forbidden);
    let (had, never): (Vec<&Request>, Vec<&Request>) =
        forbidden.partition(|request| granted.contains(&request.deed));
    say(&format!("forbidden for a while: {}", counts(had)));
    let never: BTreeSet<String> = never.into_iter().map(Request::to_string).collect();
    assert!(never.is_empty(), "asked for, and not granted: {never:?}");

    let used = used(&requests);
    let is_listed = |deed: &&ApiOperation| {
        NOT_SEEN
            .iter()
            .any(|(resource, verb, _)| deed.resource == *resource && deed.verb == *verb)
    };
    let unused: Vec<String> = granted
        .difference(&used)
        .filter(|deed| !is_listed(deed))
        .map(ApiOperation::to_string)
        .collect();
    assert_eq!(unused, [""; 0], "granted, and never used");
}
