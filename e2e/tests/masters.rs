//! Several masters that share registers in ConfigMaps: one becomes two, the leader is killed with its pod, the next one is
//! cut off, the one after that stands still, the disk of one hangs, one is evicted, they restart one after the other, and become one again. Money
//! moves all the time and no transfer fails; tables are created all the time, and each of them is there in the end.
//! `cargo xtask test e2e` runs it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use percolator_e2e::application::Application;
use percolator_e2e::leaders::{
    Cordon, OWN_DISK, cut_off, evict_leader, hang_disk_and_kill, kill_at_once, leader, stand_still,
    wait_for_another_leader, wait_for_another_term,
};
use percolator_e2e::{Kube, Namespace, PROGRAM, say, server_of, small, wait};

const ACCOUNTS: u32 = 100;
const CLIENTS: u32 = 8;
/// In the status.
const ROLE: &str = "master";
const REGISTERS: [&str; 2] = ["demo-master-register", "demo-master-register-state"];
/// A machine that runs a whole Kubernetes is busy. Longer than that, and another master has not taken over.
const STALL_MAX: Duration = Duration::from_secs(90);
/// Between two tables: the machine has other things to do.
const PAUSE: Duration = Duration::from_millis(200);

/// Tables that are created one after the other by one client, as an application would, until this is dropped.
struct Tables {
    created: Arc<Mutex<Vec<Instant>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Tables {
    /// Begins, in the pod of the application.
    fn create(space: &Namespace) -> Self {
        let (created, stop) = (Arc::<Mutex<Vec<Instant>>>::default(), Arc::default());
        let space = space.name().to_owned();
        let (of_thread, until) = (created.clone(), Arc::<AtomicBool>::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                if let Err(error) = create_more(&space, &of_thread, &until) {
                    // A client that gave up: the same table is created again, which may be there by now.
                    say(&format!("tables are not created: {error}"));
                }
            }
        });
        Self {
            created,
            stop,
            thread: Some(thread),
        }
    }

    fn times(&self) -> Vec<Instant> {
        let created = self.created.lock().unwrap_or_else(PoisonError::into_inner);
        created.clone()
    }

    /// Waits until one was created that was begun after this was called.
    fn go_on(&self) {
        let before = self.times().len();
        wait("tables", || match self.times().len() {
            // One may have been under way.
            now if now > before + 1 => Ok(()),
            now => Err(format!("{now} tables, and {before} before")),
        });
    }

    /// Ends, and says how many were created.
    fn end(mut self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("tables are created to the end");
        }
        self.times().len()
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        // Of a test that has failed: nobody waits for it.
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Names one table after the other to one `percolator table create -`, until that ends or `until` is set.
fn create_more(
    space: &str,
    created: &Mutex<Vec<Instant>>,
    until: &AtomicBool,
) -> Result<(), String> {
    let created = || created.lock().unwrap_or_else(PoisonError::into_inner);
    let server = server_of("demo");
    let mut command = Command::new("kubectl");
    command.args([
        "-n", space, "exec", "-i", "bank", "--", PROGRAM, "-c", &server,
    ]);
    command.args(["-o", "json", "table", "create", "-"]);
    let mut client = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let mut names = client.stdin.take().expect("piped");
    let mut answers = BufReader::new(client.stdout.take().expect("piped")).lines();
    while !until.load(Ordering::Relaxed) {
        let name = format!("table-{}", created().len());
        if writeln!(names, "{name}").is_err() || !matches!(answers.next(), Some(Ok(_))) {
            break;
        }
        created().push(Instant::now());
        std::thread::sleep(PAUSE);
    }
    drop(names);
    let ended = client.wait_with_output();
    let ended = ended.map_err(|error| error.to_string())?;
    if ended.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&ended.stderr).trim().to_owned())
}

/// Does something, waits until tables are created and money moves again, and prints for how long no table was.
fn stall(what: &str, tables: &Tables, application: &Application<'_>, act: impl FnOnce()) {
    let before = tables.times().len();
    act();
    tables.go_on();
    application.goes_on();
    application.nothing_has_failed();
    let times = tables.times();
    // From the last one that was created before, too.
    let gaps = times[before.saturating_sub(1)..].windows(2);
    let longest = gaps.map(|pair| pair[1] - pair[0]).max().expect("tables");
    say(&format!(
        "{what}: no table was created for {} ms at most; {} were",
        longest.as_millis(),
        times.len() - before
    ));
    assert!(longest < STALL_MAX, "{what}: {longest:?}");
}

/// Both masters run, on two nodes.
fn are_apart(space: &Namespace, cluster: &str) {
    let pods = [0, 1].map(|number| {
        let pod = format!("{cluster}-master-{number}");
        wait(&pod, || space.get("pod", &pod))
    });
    let nodes = pods.map(|pod| pod["spec"]["nodeName"].to_string());
    assert_ne!(nodes[0], nodes[1], "one node has both masters");
}

/// The program's arguments, in the pod of the application.
const EXEC: [&str; 5] = ["exec", "bank", "--", PROGRAM, "-q"];

/// The cluster that began with two masters has a table; then it is deleted, because the machine is small.
fn the_pair_serves(space: &Namespace) {
    space.wait_until_up_to_date("pair");
    are_apart(space, "pair");
    let create = ["-c", &server_of("pair"), "table", "create", "first"];
    let said = space.kubectl(&[&EXEC[..], &create].concat());
    said.expect("a table of the cluster that began with two");
    let gone = space.kubectl(&["delete", "perc", "pair", "--wait=false"]);
    gone.expect("the cluster's end");
}

/// All tables that were created can be used.
fn are_there(space: &Namespace, created: usize) {
    let list = ["-c", &server_of("demo"), "table", "list"];
    let list = space.kubectl(&[&EXEC[..], &list].concat()).expect("tables");
    let ready = (0..created).filter(|number| {
        let name = format!("table-{number}");
        let mut lines = list.lines().map(|line| line.split_whitespace());
        lines.any(|mut line| line.next() == Some(&name) && line.any(|word| word == "ready"))
    });
    assert_eq!(ready.count(), created, "{list}");
    say(&format!("{created} tables were created, and all are there"));
}

/// The leader is killed, the next one is cut off, the one after that stands still for a while, and the disk of one hangs.
fn leaders_are_lost(
    space: &Namespace,
    tables: &Tables,
    application: &Application<'_>,
    first: &str,
) {
    say("the leader is killed, and its pod with it");
    stall("leader killed", tables, application, || {
        let cordon = Cordon::begin();
        kill_at_once(space, first);
        space.wait_for("demo", "Available", "True", "StandbysNotReady");
        wait_for_another_leader(space, ROLE, first);
        tables.go_on();
        drop(cordon);
        space.wait_until_up_to_date("demo");
    });

    say("the leader is cut off the network");
    let (cut, _) = wait("a leader", || leader(space, ROLE));
    stall("leader cut off", tables, application, || {
        let off = cut_off(space, &cut);
        wait_for_another_leader(space, ROLE, &cut);
        tables.go_on();
        drop(off);
        space.wait_until_up_to_date("demo");
    });

    say("the leader stands still, and goes on when another one leads");
    let (still, _) = wait("a leader", || leader(space, ROLE));
    stall("leader stands still", tables, application, || {
        stand_still(space, ROLE, &still);
        tables.go_on();
        space.wait_until_up_to_date("demo");
    });

    say("the leader's disk hangs, which nobody needs; and then it is killed, and can't end");
    let (hung, _) = wait("a leader", || leader(space, ROLE));
    stall("leader's disk hangs", tables, application, || {
        hang_disk_and_kill(space, ROLE, &hung, || tables.go_on());
        space.wait_until_up_to_date("demo");
    });
}

fn the_leader_is_evicted(space: &Namespace, tables: &Tables, application: &Application<'_>) {
    say("the leader is evicted");
    stall("leader evicted", tables, application, || {
        evict_leader(space, ROLE, ["demo-master-0", "demo-master-1"]);
        space.wait_until_up_to_date("demo");
    });
}

#[test]
#[expect(clippy::too_many_lines, reason = "one story in its order")]
fn tables_are_created_while_masters_come_and_go() {
    let Some(kube) = Kube::find() else { return };
    kube.install(&[]);
    let space = kube.namespace("masters");
    say("a cluster with one master, and one that begins with two");
    let one = "master:\n    storage";
    let two = "master:\n    replicas: 2\n    storage";
    let demo = small("demo", "");
    let (storage, own_disk) = (
        "master:\n    storage: {size: 16Mi}",
        format!("master:\n    {OWN_DISK}"),
    );
    assert!(demo.contains(storage), "{demo}");
    space
        .apply(&demo.replace(storage, &own_disk))
        .expect("a cluster");
    let pair = small("pair", "");
    assert!(pair.contains(one), "{pair}");
    space.apply(&pair.replace(one, two)).expect("a cluster");
    space.wait_until_up_to_date("demo");
    let application = Application::bank(&kube, &space, "demo", ACCOUNTS, CLIENTS, &[]);
    let tables = Tables::create(&space);
    tables.go_on();
    the_pair_serves(&space);

    say("one master becomes two");
    stall("from one master to two", &tables, &application, || {
        space
            .change("demo", r#"{"master":{"replicas":2}}"#)
            .expect("a master more");
        space.wait_until_up_to_date("demo");
    });
    let (first, term) = wait("a leader", || leader(&space, ROLE));
    say(&format!("{first} leads in term {term}"));
    are_apart(&space, "demo");

    leaders_are_lost(&space, &tables, &application, &first);

    the_leader_is_evicted(&space, &tables, &application);

    say("the masters restart, one after the other");
    let incarnations = space.incarnations("demo");
    let (_, term) = leader(&space, ROLE).expect("a leader");
    stall("rolling restart", &tables, &application, || {
        space
            .change(
                "demo",
                r#"{"master":{"pod":{"annotations":{"round":"two"}}}}"#,
            )
            .expect("an annotation");
        space.wait_until_up_to_date("demo");
    });
    wait_for_another_term(&space, ROLE, term);
    let changed = space.restarted("demo", &incarnations);
    let is_master = |it: &String| it.starts_with("demo-master-");
    assert!(
        changed.len() == 2 && changed.iter().all(is_master),
        "{changed:?}"
    );

    say("two masters become one, which keeps the registers");
    stall("from two masters to one", &tables, &application, || {
        space
            .change("demo", r#"{"master":{"replicas":1}}"#)
            .expect("a master less");
        space.wait_until_up_to_date("demo");
    });
    let now = space.incarnations("demo");
    let others = |incarnations: &[String]| -> Vec<String> {
        let others = incarnations.iter().filter(|it| !is_master(it));
        others.cloned().collect()
    };
    assert_eq!(
        others(&now),
        others(&incarnations),
        "another number restarts nobody else"
    );
    for name in REGISTERS {
        let register = space.get("configmap", name).expect("the register");
        assert!(register["binaryData"]["register"].is_string(), "{register}");
    }
    let created = tables.end();
    are_there(&space, created);
    application.ends_well();
}
