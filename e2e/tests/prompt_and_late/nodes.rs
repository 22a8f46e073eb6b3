//! A node that is cut off, and one that loses its power, under an application.

use percolator_e2e::application::Application;
use percolator_e2e::condition_monitor::ConditionMonitor;
use percolator_e2e::late::side_by_side;
use percolator_e2e::{Kube, Namespace, nodes, say};

/// Nodes other than the first, which applications run on.
pub(super) fn come_and_go(kube: &Kube, spaces: [&Namespace; 2]) {
    let applications = spaces.map(|space| Application::start(kube, space, "demo", 100, 4));
    let monitors = spaces.map(|space| ConditionMonitor::follow(space, "demo"));
    let unavailable = || {
        side_by_side(spaces, |space| {
            space.wait_for("demo", "Available", "False", "ServersNotReady");
        });
    };
    let available = || side_by_side(spaces, |space| space.wait_until_up_to_date("demo"));

    say("a node is cut off, and comes back");
    let off = nodes::cut_off(2);
    unavailable();
    side_by_side(spaces, |space| {
        let node = ["node-2", "kubectl taint node node-2"];
        space.wait_for_words("demo", "Degraded", "NodeUnreachable", &node);
    });
    drop(off);
    available();
    side_by_side(applications.each_ref(), Application::goes_on);

    say("a node loses its power, and comes back");
    let dead = nodes::cut_power(3);
    unavailable();
    drop(dead);
    available();
    monitors.into_iter().for_each(ConditionMonitor::holds);
    side_by_side(applications, Application::ends_well);
    for space in spaces {
        space.all_money_is_there("demo", 100);
    }
}
