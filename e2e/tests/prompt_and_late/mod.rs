//! What holds for a prompt operator holds for one with late watches: bad specs of every kind, clusters of one
//! name and what deleting leaves behind, and what happens to nodes, with both side by side. And each of them reconciles its
//! own namespaces, and no other. `cargo xtask test e2e` runs it.

mod neighbours;
mod nodes;
mod specs;

use percolator_e2e::late::{PromptAndLate, side_by_side};
use percolator_e2e::{Kube, OPERATOR, say, small};

#[test]
fn what_holds_for_a_prompt_operator_holds_for_a_late_one() {
    let Some(kube) = Kube::find() else { return };
    // Should the one that acts be cut off, the other takes over.
    let names = ["bad-specs", "blue", "green", "nodes"];
    let both = PromptAndLate::begin(&kube, names, &["--set", "replicas=2"]);
    let other = kube.namespace("other");
    other.apply(&small("mine", "")).expect("a cluster");

    let late = both.late_at_least();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            side_by_side(both.sides(), |[bad, ..]| specs::are_reported(&kube, bad));
        });
        threads.spawn(|| {
            side_by_side(both.prompt_at_least(), |[_, blue, green, _]| {
                neighbours::keep_to_themselves(&kube, blue, green);
            });
        });
        side_by_side(late, |[_, _, _, nodes]| {
            nodes.apply(&kube.example()).expect("the example");
            nodes.wait_until_up_to_date("demo");
        });
    });
    let nodes: Vec<_> = late.iter().map(|[_, _, _, nodes]| nodes).collect();
    nodes::come_and_go(&kube, &nodes);

    say("with rights in some namespaces, and in no other");
    let cluster = other.get("perc", "mine").expect("it is there");
    // The API server's default: about no generation.
    assert_eq!(cluster["status"]["observedGeneration"], -1, "{cluster}");
    assert_eq!(cluster["status"]["conditions"], serde_json::json!([]));
    assert_eq!(other.incarnations("mine"), Vec::<String>::new());

    say("without the chart, clusters run on");
    let [_, _, green, _] = both.into_prompt();
    let incarnations = green.incarnations("mine");
    kube.helm(&["uninstall", "percolator", "-n", OPERATOR, "--wait"])
        .expect("uninstall");
    assert_eq!(green.incarnations("mine"), incarnations);
    green.get("perc", "mine").expect("the resource stays");
    // With rights in all of them.
    kube.install(&[]);
    green.wait_until_up_to_date("mine");
    assert_eq!(green.incarnations("mine"), incarnations);
    other.wait_until_up_to_date("mine");
}
