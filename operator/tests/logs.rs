//! The lines of the operator's log, and their level.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::Value;

const DETAILED: &str = "warn,percolator_operator=debug";
const TIMEOUT: Duration = Duration::from_secs(120);

/// No process listens there.
const KUBECONFIG: &str = "{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, \
    user: a}}], clusters: [{name: a, cluster: {server: 'https://127.0.0.1:1'}}], users: [{name: a, user: {}}]}";

/// Killed when it is dropped.
struct Operator(Child);

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_logs_level_changes_without_a_restart_and_each_line_names_the_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let (config, level) = (folder.path().join("config"), folder.path().join("level"));
    std::fs::write(&config, KUBECONFIG).expect("writable");
    // At once, as a ConfigMap's files change: a file that is written is empty first, which is a level too.
    let beside = folder.path().join("beside");
    let say = |words: &str| {
        std::fs::write(&beside, words).expect("writable");
        std::fs::rename(&beside, &level).expect("writable");
    };
    say(DETAILED);
    let child = Command::new(env!("CARGO_BIN_EXE_percolator-operator"))
        .args(["--listen", "127.0.0.1:0", "--identity", "operator-7"])
        .env("KUBECONFIG", &config)
        .env("PERCOLATOR_LOG_LEVEL_FILE", &level)
        .env_remove("PERCOLATOR_LOG")
        .stderr(Stdio::piped())
        .spawn();
    let mut operator = Operator(child.expect("it runs"));
    let lines = BufReader::new(operator.0.stderr.take().expect("a pipe")).lines();
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            if send.send(line).is_err() {
                break;
            }
        }
    });
    let mut said = Vec::new();
    let mut wait_for = |message: &str| -> Value {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = receive.recv_timeout(left);
            let line = line.unwrap_or_else(|error| panic!("{message}: {error}: {said:#?}"));
            let object: Value = serde_json::from_str(&line).unwrap_or_default();
            said.push(line);
            assert_eq!(
                (&object["role"], &object["server"]),
                (&"operator".into(), &"operator-7".into()),
                "{object}"
            );
            if object["message"] == message {
                return object;
            }
        }
    };
    // It has read the level then.
    assert_eq!(wait_for("a watch or a reconcile failed")["level"], "DEBUG");
    say("warn");
    let change = wait_for("log level");
    assert_eq!(
        (&change["from"], &change["to"]),
        (&DETAILED.into(), &"warn".into())
    );
    say(DETAILED);
    assert_eq!(wait_for("log level")["to"], DETAILED);
    assert_eq!(wait_for("a watch or a reconcile failed")["level"], "DEBUG");
}
