//! A master that has lost its state, while money and tables are there: nothing is begun over them, and a person has it rebuilt.

use crate::support;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::support::{Cluster, wait_for};
use serde_json::Value;

/// An `up` that waits for a person.
struct Waiting {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Waiting {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(support::PERCOLATOR)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command runs");
        let stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self { child, lines }
    }

    /// The next line with this.
    fn line(&self, part: &str) -> String {
        let deadline = Instant::now() + Duration::from_secs(150);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left);
            let line = line.unwrap_or_else(|error| panic!("no line with {part:?}: {error}"));
            if line.contains(part) {
                return line;
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        support::signal(self.child.id(), "TERM");
        let _ = self.child.wait();
    }
}

const BANK: [&str; 7] = ["bank", "--accounts", "100", "--clients", "4", "-o", "json"];
const SERVERS: [&str; 3] = ["tablet-0", "tablet-1", "tablet-2"];

fn json(cluster: &Cluster, arguments: &[&str]) -> Value {
    let said = cluster.run(arguments).ok();
    serde_json::from_str(&said).expect("JSON")
}

fn barrier(cluster: &Cluster) -> u64 {
    let status = json(cluster, &["gc", "status", "-o", "json"]);
    let text = status["barrier"].as_str().expect("a timestamp");
    text.parse().expect("a number")
}

/// The names and ids of the tables.
fn tables(cluster: &Cluster) -> Vec<(String, u64)> {
    let list = cluster.run(&["table", "list", "-o", "json"]).ok();
    let table = |line: &str| {
        let table: Value = serde_json::from_str(line).expect("JSON");
        let name = table["name"].as_str().expect("a name").to_owned();
        (name, table["id"].as_u64().expect("an id"))
    };
    list.lines().map(table).collect()
}

fn log(cluster: &Cluster, server: &str) -> String {
    let file = cluster.data_dir.join("logs").join(format!("{server}.log"));
    std::fs::read_to_string(file).unwrap_or_default()
}

fn rebuild<'a>(servers: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    let named = servers.iter().flat_map(|server| ["--server", *server]);
    let command = ["master", "rebuild"].into_iter().chain(named);
    command.chain(more.iter().copied()).collect()
}

/// The master's folder goes, and it and the servers say what is wrong.
fn lose_folder(cluster: &Cluster) {
    cluster.lose_folder("master-0");
    for server in SERVERS {
        wait_for(&format!("the word of {server}"), || {
            let says = "was lost. Nothing is begun over it";
            let log = log(cluster, server);
            (log.contains(says) && log.contains("percolator master rebuild")).then_some(())
        });
    }
    cluster.run(&["table", "create", "new"]).refused(
        5,
        &["this master has no state", "percolator master rebuild"],
    );
}

/// The line of a message that begins with this, without what the message says of it behind a wide gap.
fn typed(said: &str, program: &str) -> Vec<String> {
    let line = said.lines().find(|line| line.trim().starts_with(program));
    let line = line.unwrap_or_else(|| panic!("no line with {program}: {said}"));
    let (line, _) = line
        .trim()
        .split_once("       ")
        .unwrap_or((line.trim(), ""));
    line.split_whitespace().map(String::from).collect()
}

/// `up` says what to type, and that works as it is.
#[test]
fn a_lost_master_is_rebuilt_by_what_up_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let cluster = Cluster::start_in(&data, &[]);
    cluster.run(&["table", "create", "notes"]).ok();
    cluster.run(&["put", "notes", "zoe", "text", "kept"]).ok();
    cluster.stop();
    let master = data.join("master-0");
    std::fs::remove_dir_all(&master).expect("removed");

    let data_dir = data.to_str().expect("text");
    let up = ["up", "--port", "0", "--data-dir", data_dir];
    let refused = support::percolator(&up);
    refused.refused(1, &["the folder of master-0 is missing", "bring it back"]);
    let all = "-c HOST:PORT master rebuild --server tablet-0 --server tablet-1 --server tablet-2";
    assert_eq!(typed(&refused.err, "percolator -c")[1..].join(" "), all);
    assert_eq!(
        typed(&refused.err, "percolator up")[1..],
        ["up", "--data-dir", data_dir]
    );
    let made = typed(&refused.err, "mkdir");
    assert_eq!(made[1..], [master.to_str().expect("text")]);
    std::fs::create_dir(&made[1]).expect("made");

    // Nobody could type it while `up` waits for its own command.
    support::percolator(&[&up[..], &["--", "true"]].concat()).refused(
        1,
        &["not ready in time", "master rebuild --server tablet-0"],
    );
    let waiting = Waiting::start(&up);
    let said = waiting.line("percolator -c ");
    let command = typed(&said, "percolator -c");
    let arguments: Vec<&str> = command[1..].iter().map(String::as_str).collect();
    wait_for("all servers to report", || {
        let said = support::percolator(&[&arguments[..], &["--yes"]].concat());
        said.status.success().then_some(())
    });
    waiting.line("ready in ");
    let row = ["get", "notes", "zoe", "text"];
    let said = support::percolator(&[&arguments[..2], &row].concat()).ok();
    assert_eq!(said, "kept\n");
}

/// The data and the manifest of a cluster of this spec, which has a row and was stopped.
fn stopped_with_a_row(folder: &Path, spec: &str) -> (PathBuf, String) {
    let (data, manifest) = (folder.join("data"), folder.join("manifest.yaml"));
    let text = format!(
        "{{apiVersion: percolator.dev/v1alpha1, kind: PercolatorCluster, metadata: {{name: local}}, spec: {spec}}}"
    );
    std::fs::write(&manifest, text).expect("written");
    let manifest = manifest.to_str().expect("text").to_owned();
    let cluster = Cluster::start_in(&data, &["-f", &manifest]);
    cluster.run(&["table", "create", "notes"]).ok();
    cluster.run(&["put", "notes", "zoe", "text", "kept"]).ok();
    cluster.stop();
    (data, manifest)
}

/// A state in a register isn't lost with a folder.
#[test]
fn the_folder_of_one_of_several_is_not_missed() {
    let folder = tempfile::tempdir().expect("a folder");
    let spec = "{master: {replicas: 2}, oracle: {replicas: 2}}";
    let (data, manifest) = stopped_with_a_row(folder.path(), spec);
    let of_two = ["-f", &*manifest];
    for server in ["master-0", "tso-0"] {
        std::fs::remove_dir_all(data.join(server)).expect("removed");
    }
    let cluster = Cluster::start_in(&data, &of_two);
    assert_eq!(cluster.run(&["get", "notes", "zoe", "text"]).ok(), "kept\n");
}

/// Masters that run without a state take the one in that somebody brings back.
#[test]
fn a_state_that_comes_back_needs_no_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let (data, manifest) = stopped_with_a_row(folder.path(), "{master: {replicas: 2}}");
    let of_two = ["-f", &*manifest];
    let (state, kept) = (
        data.join("register/master-state"),
        folder.path().join("kept"),
    );
    std::fs::rename(&state, &kept).expect("a state");
    for master in ["master-0", "master-1"] {
        let _ = std::fs::remove_file(data.join(master).join("state-copy"));
    }
    let data_dir = data.to_str().expect("text");
    let up = ["up", "--port", "0", "--data-dir", data_dir];
    let waiting = Waiting::start(&[&up[..], &of_two].concat());
    let command = typed(&waiting.line("percolator -c "), "percolator -c");
    std::fs::rename(&kept, &state).expect("it is back");
    waiting.line("ready in ");
    let masters: Vec<&str> = command[1..3].iter().map(String::as_str).collect();
    let row = ["get", "notes", "zoe", "text"];
    let said = support::percolator(&[&masters[..], &row].concat()).ok();
    assert_eq!(said, "kept\n");
}

#[test]
#[allow(clippy::too_many_lines, reason = "one story in its order")]
fn a_master_that_loses_its_folder_is_rebuilt_by_a_person() {
    let cluster = Cluster::processes();
    cluster.run(&["gc", "set", "--retention", "1s"]).ok();
    cluster.run(&["table", "create", "gone"]).ok();
    cluster.run(&["table", "delete", "gone", "--yes"]).ok();
    cluster
        .run(&["table", "create", "notes", "--split-at", "m"])
        .ok();
    cluster.run(&["put", "notes", "zoe", "text", "kept"]).ok();
    let ledger = cluster.data_dir.join("../ledger.jsonl");
    let ledger = ledger.to_str().expect("text");
    let moves = ["--duration", "1s", "--ledger", ledger];
    cluster.run(&[&BANK[..], &moves].concat()).ok();
    // The newest points are lost if no tablet server has them.
    wait_for("a safe point at every tablet server", || {
        let status = json(&cluster, &["gc", "status", "-o", "json"]);
        let servers = status["servers"].as_array()?;
        let has_one = |server: &Value| server["safe_point"].as_str().is_some_and(|it| it != "0");
        servers.iter().all(has_one).then_some(())
    });
    let before = tables(&cluster);

    lose_folder(&cluster);

    let shown = wait_for("all servers to report", || {
        let said = cluster.run(&rebuild(&SERVERS, &[]));
        said.status.success().then_some(said)
    });
    for word in ["notes", "bank", "retention 1s", "tso-0"] {
        assert!(shown.out.contains(word), "{word}: {shown:?}");
    }
    assert!(
        shown.err.contains("nothing was changed: --yes"),
        "{shown:?}"
    );
    cluster
        .run(&rebuild(&SERVERS[..2], &["--yes"]))
        .refused(7, &["solve the problems first"]);
    let unheard = [&SERVERS[..], &["tablet-9"]].concat();
    cluster
        .run(&rebuild(&unheard, &["--yes"]))
        .refused(7, &["solve the problems first"]);
    let names = cluster.data_dir.join("../names.txt");
    std::fs::write(&names, SERVERS.join("\n")).expect("written");
    let names = names.to_str().expect("text");
    let from = ["master", "rebuild", "--servers-from", names, "--yes"];
    let said = cluster.run(&from);
    assert!(said.status.success(), "{said:?}");
    assert!(said.err.contains("the state was written"), "{said:?}");

    // Servers wait for leases that nobody knows any more.
    wait_for("the row", || {
        let said = cluster.run(&["get", "notes", "zoe", "text"]);
        (said.out == "kept\n").then_some(())
    });
    assert_eq!(tables(&cluster), before);
    let collected = barrier(&cluster);
    assert!(collected > 0, "what servers know isn't forgotten");
    cluster.run(&[&BANK[..], &moves].concat()).ok();
    cluster.run(&["bank", "--verify", ledger]).ok();
    cluster.run(&["table", "create", "new"]).ok();
    let highest = before.iter().map(|(_, id)| *id).max();
    let now = tables(&cluster);
    let new = now.iter().find(|(name, _)| name == "new").expect("made");
    assert!(Some(new.1) > highest, "{now:?}");
    cluster.run(&["table", "delete", "notes", "--yes"]).ok();
    cluster.run(&from).refused(2, &["has the state of cluster"]);
    // It waits for sessions that nobody knows any more.
    let since = std::time::Instant::now();
    while barrier(&cluster) <= collected {
        assert!(
            since.elapsed() < Duration::from_secs(240),
            "it stands still"
        );
        std::thread::sleep(Duration::from_millis(500));
    }
    // It starts as any other.
    cluster.kill("master-0");
    wait_for("the money", || {
        let said = cluster.run(&["bank", "--verify", ledger]);
        said.status.success().then_some(())
    });
}
