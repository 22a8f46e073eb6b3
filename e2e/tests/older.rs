//! An operator and a cluster of an older commit become those of this one, while money moves: the new chart and operator restart
//! nobody; the new image goes to all servers. `cargo xtask soak --upgrade-from COMMIT` runs it.

use percolator_e2e::application::Application;
use percolator_e2e::{Kube, say, small, wait};

const ACCOUNTS: u32 = 100;

/// Of the release before; set by `cargo xtask soak`.
fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} says nothing"))
}

#[test]
fn an_older_release_is_brought_up_to_date() {
    let Some(kube) = Kube::find() else { return };
    let older = variable("PERCOLATOR_E2E_OLDER_IMAGE");
    kube.install_older(&variable("PERCOLATOR_E2E_OLDER_CHART"), &older);
    let space = kube.namespace("older");
    // The image that its operator is in.
    space.apply(&small("demo", "")).expect("a cluster");
    space.wait_until_up_to_date("demo");
    let incarnations = space.incarnations("demo");
    // Clients are older ones still when the servers are new.
    let mut of_before = kube.clone();
    of_before.image.clone_from(&older);
    let bank = Application::bank(&of_before, &space, "demo", ACCOUNTS, 4, &[]);

    say("the new chart restarts nobody");
    kube.install(&[]);
    space.give_team("demo", "new");
    space.wait_until_up_to_date("demo");
    assert_eq!(space.incarnations("demo"), incarnations);
    bank.goes_on();

    say("the new image goes to all servers");
    let spec = format!("{{\"image\": {:?}}}", kube.image);
    space.change("demo", &spec).expect("changed");
    space.wait_until_up_to_date("demo");
    wait("the new image everywhere", || {
        let pods = space.pods("demo")?;
        let images = pods
            .iter()
            .map(|pod| &pod["spec"]["containers"][0]["image"]);
        let others: Vec<_> = images.filter(|image| **image != *kube.image).collect();
        if others.is_empty() {
            Ok(())
        } else {
            Err(format!("{others:?}"))
        }
    });
    space.wait_until_up_to_date("demo");
    let renewed = space.incarnations("demo");
    assert_eq!(renewed, space.restarted("demo", &incarnations));
    bank.nothing_has_failed();
    bank.ends_well();
    space
        .percolator("demo-master-0", "demo", &["gc", "verify"])
        .expect("nothing is lost");
}
