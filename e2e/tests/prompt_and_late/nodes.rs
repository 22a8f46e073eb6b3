//! A node that is cut off, and one that loses its power and is taken out of service, under an application.

use percolator_e2e::application::Application;
use percolator_e2e::condition_monitor::ConditionMonitor;
use percolator_e2e::late::side_by_side;
use percolator_e2e::{Kube, Namespace, nodes, say};
use serde_json::Value;

/// Nodes other than the first, which applications run on.
pub(super) fn come_and_go(kube: &Kube, spaces: &[&Namespace]) {
    let each = || spaces.iter().copied();
    let applications = each().map(|space| Application::start(kube, space, "demo", 100, 4));
    let applications: Vec<_> = applications.collect();
    let monitors = each().map(|space| ConditionMonitor::follow(space, "demo"));
    let monitors: Vec<_> = monitors.collect();
    let unavailable = || {
        side_by_side(each(), |space| {
            space.wait_for("demo", "Available", "False", "ServersNotReady");
        });
    };
    let available = || side_by_side(each(), |space| space.wait_until_up_to_date("demo"));

    say("a node is cut off, and comes back");
    let off = nodes::cut_off(2);
    unavailable();
    side_by_side(each(), |space| {
        let node = ["node-2", "kubectl taint node node-2"];
        space.wait_for_words("demo", "Degraded", "NodeUnreachable", &node);
    });
    drop(off);
    available();
    side_by_side(&applications, Application::goes_on);

    say(
        "a node loses its power, and is taken out of service: its servers start elsewhere, with their volumes",
    );
    let dead = nodes::cut_power(3);
    unavailable();
    let command = side_by_side(each(), |space| {
        let taint = "kubectl taint node node-3 node.kubernetes.io/out-of-service";
        let message = space.wait_for_words("demo", "Degraded", "NodeUnreachable", &[taint]);
        let command = &message[message.find(taint).expect("a command")..];
        command.split(',').next().unwrap_or_default().to_owned()
    });
    assert!(command.iter().all(|it| *it == command[0]), "{command:?}");
    let out = nodes::out_of_service(&command[0], 3);
    side_by_side(each(), |space| {
        space.wait_for("demo", "Available", "True", "AllServersReady");
        let pods = space.pods("demo").expect("pods");
        let on_it = |pod: &&Value| pod["spec"]["nodeName"] == "node-3";
        assert_eq!(pods.iter().filter(on_it).count(), 0, "{pods:?}");
    });
    side_by_side(&applications, Application::goes_on);

    say("and comes back");
    drop(dead);
    drop(out);
    available();
    monitors.into_iter().for_each(ConditionMonitor::holds);
    side_by_side(applications, Application::ends_well);
    for space in spaces {
        space.all_money_is_there("demo", 100);
    }
}
