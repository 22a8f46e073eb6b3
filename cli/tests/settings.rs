//! What a manifest says while the cluster runs counts without a restart.

mod support;

use std::path::Path;

use support::{Cluster, SERVERS, wait_for};

fn manifest(spec: &str) -> String {
    format!(
        "apiVersion: percolator.dev/v1alpha1\nkind: PercolatorCluster\nmetadata:\n  name: settings\nspec:\n{spec}"
    )
}

fn log(cluster: &Cluster, server: &str) -> String {
    let file = cluster.data_dir.join("logs").join(format!("{server}.log"));
    std::fs::read_to_string(file).unwrap_or_default()
}

/// Says another level, and waits until every server has heard of it.
fn set_level(cluster: &Cluster, file: &Path, from: &str, to: &str) {
    std::fs::write(file, manifest(&format!("  log: {{level: {to}}}\n"))).expect("writable");
    let said = format!("\"message\":\"log level\",\"from\":\"{from}\",\"to\":\"{to}\"");
    for server in SERVERS {
        wait_for(&format!("{server}: {said}"), || {
            log(cluster, server).contains(&said).then_some(())
        });
    }
}

#[test]
fn the_logs_level_changes_without_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("cluster.yaml");
    std::fs::write(&file, manifest("  log: {level: info}\n")).expect("writable");
    let path = file.display().to_string();
    let cluster = Cluster::start_in(&folder.path().join("data"), &["--processes", "-f", &path]);
    let pids = || SERVERS.map(|server| cluster.pid(server));
    let lives = pids();
    for server in SERVERS {
        let log = log(&cluster, server);
        assert!(
            log.contains("\"INFO\"") && !log.contains("\"DEBUG\""),
            "{log}"
        );
    }

    set_level(&cluster, &file, "info", "debug");
    cluster.run(&["table", "create", "t"]).ok();
    for server in SERVERS {
        wait_for(&format!("what {server} does in detail"), || {
            log(&cluster, server).contains("\"DEBUG\"").then_some(())
        });
    }

    // And then nothing more.
    set_level(&cluster, &file, "debug", "error");
    let use_it = || {
        cluster.run(&["put", "t", "row", "column", "value"]).ok();
        cluster.run(&["gc", "status"]).ok();
    };
    // What was on its way when the level changed is told by the end of the first requests.
    use_it();
    let before = SERVERS.map(|server| log(&cluster, server));
    use_it();
    for (server, before) in SERVERS.into_iter().zip(before) {
        assert_eq!(log(&cluster, server), before, "{server}");
    }

    set_level(&cluster, &file, "error", "info");
    // What can't be understood changes nothing.
    std::fs::write(&file, manifest("  log: {level: loud}\n")).expect("writable");
    std::fs::remove_file(cluster.data_dir.join("log-level")).expect("a file of the cluster");
    for server in SERVERS {
        wait_for(&format!("{server} misses the file"), || {
            let log = log(&cluster, server);
            log.contains("telling from info on, as before")
                .then_some(())
        });
    }
    set_level(&cluster, &file, "info", "warn");
    assert_eq!(pids(), lives);
    let (code, said) = cluster.stop();
    assert_eq!(code, 0, "{said}");
    assert!(
        said.contains("loud") && said.contains("it goes on as it was"),
        "{said}"
    );
}
