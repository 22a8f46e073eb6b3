//! Upgrades of a fleet: a new operator restarts nobody, though it knows newer templates of pods; a new image of several clusters
//! goes to one after the other, as the operator's `--rolls-max` says, also when operators are killed meanwhile.

use std::collections::BTreeSet;

use percolator_e2e::{Kube, Namespace, kill_operators, say, small, wait};
use serde_json::Value;

const CLUSTERS: [&str; 2] = ["one", "two"];

fn sets(space: &Namespace, cluster: &str) -> Vec<Value> {
    let sets = ["master", "tso", "tablet"].map(|role| format!("{cluster}-{role}"));
    let sets = sets.iter().map(|name| space.get("statefulset", name));
    sets.collect::<Result<_, _>>().expect("StatefulSets")
}

/// Whether pods of the cluster are made anew.
fn is_changing(space: &Namespace, cluster: &str) -> bool {
    let mut sets = sets(space, cluster).into_iter();
    sets.any(|set| set["status"]["currentRevision"] != set["status"]["updateRevision"])
}

fn drains_on_stop(space: &Namespace, cluster: &str) -> bool {
    let tablets = &sets(space, cluster)[2]["spec"]["template"]["spec"];
    let arguments = &tablets["containers"][0]["args"];
    arguments.to_string().contains("--drain-on-stop=")
}

fn revision(space: &Namespace, cluster: &str) -> Result<Value, String> {
    Ok(space.get("perc", cluster)?["status"]["templates"]["revision"].clone())
}

#[test]
fn a_fleet_is_upgraded_in_turns() {
    let Some(kube) = Kube::find() else { return };
    kube.install(&["--set", "rollsMax=1"]);
    let space = kube.namespace("upgrades");
    for cluster in CLUSTERS {
        // As an operator makes them that knows no newer templates.
        let made = small(cluster, "  templateRevision: 1");
        space.apply(&made).expect("made");
    }
    for cluster in CLUSTERS {
        space.wait_until_up_to_date(cluster);
        assert!(!drains_on_stop(&space, cluster));
    }
    say("an operator that knows newer ones, and has another image, follows");
    let incarnations = CLUSTERS.map(|cluster| space.incarnations(cluster));
    for cluster in CLUSTERS {
        space
            .change(cluster, "{\"templateRevision\": null}")
            .expect("changed");
    }
    let (_, tag) = kube.other_image.rsplit_once(':').expect("a tag");
    kube.install(&["--set", "rollsMax=1", "--set", &format!("image.tag={tag}")]);
    for cluster in CLUSTERS {
        space.give_team(cluster, "new");
        space.wait_until_up_to_date(cluster);
        assert_eq!(revision(&space, cluster), Ok(1.into()));
    }
    assert_eq!(
        CLUSTERS.map(|cluster| space.incarnations(cluster)),
        incarnations
    );

    say("both get the image at once");
    let image = format!("{{\"image\": {:?}}}", kube.other_image);
    for cluster in CLUSTERS {
        space.change(cluster, &image).expect("changed");
    }
    let (mut changed, mut waited, mut killed) = (BTreeSet::new(), false, false);
    wait("both to run the image", || {
        let changing = CLUSTERS.map(|cluster| is_changing(&space, cluster));
        // The first one may have ended before the second was read.
        let [first, _] = CLUSTERS;
        assert!(
            changing != [true, true] || !is_changing(&space, first),
            "both change at a time"
        );
        for (cluster, is_changing) in CLUSTERS.iter().zip(changing) {
            if is_changing {
                changed.insert(*cluster);
            }
            let waits = [("Progressing", "True", "WaitingForTurn")];
            waited |= space.has_conditions(cluster, &waits).is_ok();
        }
        if waited && !killed {
            kill_operators();
            killed = true;
        }
        for cluster in CLUSTERS {
            space.is_up_to_date(cluster)?;
            if revision(&space, cluster)? != 4 {
                return Err(format!("{cluster} has the templates of before"));
            }
        }
        Ok(())
    });
    assert!(waited, "neither waited for the other");
    assert_eq!(changed, BTreeSet::from(CLUSTERS));
    for cluster in CLUSTERS {
        assert!(drains_on_stop(&space, cluster));
    }
}
