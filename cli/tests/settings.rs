//! What a manifest says while the cluster runs counts without a restart.

use std::path::Path;

use crate::support::{Cluster, SERVERS, wait_for};
use serde_json::Value;

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
            log.contains("logging from info on, as before")
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

/// Whether a line of a log is the server's own, by what it says of itself.
fn is_of(line: &str, role: &str, server: &str) -> bool {
    let line: Value = serde_json::from_str(line).unwrap_or_default();
    line["role"] == role && line["server"] == server
}

const ROLES: [&str; 5] = ["master", "tso", "tablet", "tablet", "tablet"];

#[test]
fn servers_that_share_a_process_follow_the_level_and_say_who_they_are() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("cluster.yaml");
    let path = file.display().to_string();
    // Anyone who reads it meanwhile finds one or the other.
    let say = |spec: &str| {
        let beside = folder.path().join("next.yaml");
        std::fs::write(&beside, manifest(spec)).expect("writable");
        std::fs::rename(&beside, &file).expect("the same folder");
    };
    // Without a word of it, they tell from warn on.
    say("  gc: {}\n");
    let cluster = Cluster::start_in(&folder.path().join("data"), &["-f", &path]);
    let said = cluster.wait_for_line("its start", |line| line.starts_with("ready in "));
    let told: Vec<_> = said
        .iter()
        .filter(|line| line.contains("\"INFO\""))
        .collect();
    assert_eq!(told, Vec::<&String>::new());

    // What doesn't count while it runs is told.
    say("  gc: {}\n  oracle: {window: 2s}\n");
    cluster.wait_for_line("what waits for a start", |line| {
        line.starts_with("spec.oracle.window: another value counts when")
    });
    say("  log: {level: debug}\n");
    let changed = |from: &str, to: &str| {
        let change = format!("\"message\":\"log level\",\"from\":\"{from}\",\"to\":\"{to}\"");
        cluster.wait_for_line(&change, |line| line.contains(&change))
    };
    changed("warn", "debug");
    for (role, server) in ROLES.into_iter().zip(SERVERS) {
        cluster.wait_for_line(server, |line| is_of(line, role, server));
    }

    say("  log: {level: info}\n");
    let said = changed("debug", "info");
    // What the process tells for none of them: that the level changed.
    let of_nobody = |line: &&String| !line.contains("\"server\":") && !line.contains("log level");
    let others: Vec<_> = said.iter().filter(of_nobody).collect();
    assert_eq!(others, Vec::<&String>::new());
    say("  gc: {}\n");
    changed("info", "warn");
}

#[test]
fn servers_say_who_they_are_for_people_and_for_programs() {
    for (format, says) in [
        (
            "text",
            &(|role: &str, server: &str| format!(" role={role} server={server} "))
                as &dyn Fn(&str, &str) -> String,
        ),
        ("json", &|role, server| {
            format!("\"role\":\"{role}\",\"server\":\"{server}\"}}")
        }),
    ] {
        let variables = [("PERCOLATOR_LOG_FORMAT", format)];
        let cluster = Cluster::start_with(&["--processes"], &variables);
        let data = cluster.data_dir.clone();
        for (role, server) in ROLES.into_iter().zip(SERVERS) {
            let says = says(role, server);
            let file = data.join("logs").join(format!("{server}.log"));
            let log = std::fs::read_to_string(file).expect("a log");
            // The last one may be on its way.
            let written = log.rfind('\n').map_or("", |end| &log[..end]);
            let lines = written.lines();
            let silent: Vec<_> = lines.filter(|line| !line.contains(&says)).collect();
            assert!(!log.is_empty(), "{server}");
            assert_eq!(silent, Vec::<&str>::new(), "{server}: {says}");
        }
    }
}
