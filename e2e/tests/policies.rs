//! If the network carries out NetworkPolicies, those of the chart and of docs/kubernetes.md let in the cluster's own servers, the
//! operator, and the application that they name. Nobody else reaches a server.

use percolator_e2e::policies::PoliciesCarriedOut;
use percolator_e2e::{Kube, Namespace, SMALL_PROXY, say, server_of, small};

const CLOSED: [&str; 3] = [
    "networkPolicy.enabled=true",
    "networkPolicy.clusters.namespaces={closed}",
    "networkPolicy.clusters.clientsFrom[0].podSelector.matchLabels.run=shop",
];

fn cluster() -> String {
    small("demo", SMALL_PROXY).replace("    replicas: 1\n", "    replicas: 2\n")
}

/// By its conditions alone: nodes have no part in the cluster, and reach none of its servers.
fn wait_until_ready(space: &Namespace) {
    space.wait_for_all(
        "demo",
        &[
            ("Ready", "True", "UpToDate"),
            ("Degraded", "False", "AsExpected"),
        ],
    );
}

/// Runs a bank in a pod of this name.
fn bank_in(kube: &Kube, space: &Namespace, pod: &str, server: &str) {
    let bank = ["-c", server, "bank", "--accounts", "20"];
    let bank = [&bank[..], &["--clients", "2", "--duration", "2s"]].concat();
    space.start(kube, pod, &bank);
}

/// A command in a pod of this name reaches nobody.
fn is_kept_out(kube: &Kube, space: &Namespace, pod: &str, server: &str) {
    let get = [
        "-c",
        server,
        "get",
        "bank",
        "a",
        "b",
        "--request-timeout",
        "10s",
    ];
    space.start(kube, pod, &get);
    let (well, said) = space.wait_for_end(pod);
    // By a refusal, or by silence, as the network does it.
    let is_kept_out = ["Connection refused", "did not answer"];
    let is_kept_out = is_kept_out.iter().any(|words| said.contains(words));
    assert!(!well && is_kept_out, "{said}");
}

#[test]
fn policies_keep_out_all_but_those_that_they_name() {
    let Some(kube) = Kube::find() else { return };
    let Some(carried_out) = PoliciesCarriedOut::start() else {
        return;
    };
    let other = kube.namespace("open");
    let space = kube.namespace("closed");
    kube.install(&CLOSED.map(|value| ["--set", value]).concat());

    say("behind the chart's policies a cluster starts, and serves the application that is named");
    space.apply(&cluster()).expect("a cluster");
    wait_until_ready(&space);
    bank_in(&kube, &space, "shop", &server_of("demo"));
    space.bank_ends_well("shop");

    say("others are kept out");
    is_kept_out(&kube, &space, "stranger", &server_of("demo"));
    is_kept_out(&kube, &other, "shop", "demo.closed:7400");

    say("the operator reaches the master, by which it drains a tablet server");
    let scale = ["scale", "perc", "demo", "--replicas=1"];
    space.kubectl(&scale).expect("scale");
    wait_until_ready(&space);
    let pods = space.pods("demo").expect("pods");
    let names = pods.iter().map(|pod| &pod["metadata"]["name"]);
    assert_eq!(names.filter(|name| *name == "demo-tablet-1").count(), 0);

    say("so does the policy of docs/kubernetes.md");
    kube.install(&["--set", "networkPolicy.enabled=false"]);
    bank_in(&kube, &space, "anyone", &server_of("demo"));
    space.bank_ends_well("anyone");
    let policy = kube.documented("kubernetes.md", "apiVersion: networking.k8s.io/v1");
    let policy = policy.replace("app: YOUR-APPLICATION", "run: buyer");
    space.apply(&policy).expect("a policy");
    for named in [&other, &space] {
        bank_in(&kube, named, "buyer", "demo.closed:7400");
        named.bank_ends_well("buyer");
    }
    is_kept_out(&kube, &space, "visitor", &server_of("demo"));
    space.give_team("demo", "seen");
    drop(carried_out);
    space.wait_until_up_to_date("demo");
}
