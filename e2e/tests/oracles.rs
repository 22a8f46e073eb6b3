//! Several oracles that share a register in a ConfigMap: one is killed with its pod, one is cut off, one stands still, a disk hangs, the
//! API server is away, one is evicted, they restart one after the other, and their number changes. Money moves all the time, no transfer
//! fails, and over all oracles timestamps are in real-time order. `cargo xtask test e2e` runs it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use percolator_e2e::application::Application;
use percolator_e2e::audit::{Audit, Request};
use percolator_e2e::leaders::{
    Cordon, OWN_DISK, cut_off, evict_leader, hang_disk_and_kill, kill_at_once, leader, stand_still,
    wait_for_another_leader, wait_for_another_term, wait_until_promised,
};
use percolator_e2e::nodes;
use percolator_e2e::{Kube, Namespace, SCRATCH, say, small, wait};
use percolator_history::{Op, Outcome, Transaction, check, parse};
use serde_json::Value;

const ACCOUNTS: u32 = 100;
const CLIENTS: u32 = 8;
const HISTORY: &str = "history.jsonl";
const REGISTER: &str = "demo-tso-register";
/// In the status.
const ROLE: &str = "oracle";
const MASTERS: &str = "master";
/// A machine that runs a whole Kubernetes is busy. Longer than that, and another oracle has not taken over.
const STALL_MAX: Duration = Duration::from_secs(60);
/// A transfer that is answered is in the history by then.
const NOT_WRITTEN_YET: Duration = Duration::from_secs(5);
/// The leader swaps once a second, and the operator must not reconcile the cluster each time.
const SWAPS: u64 = 8;

/// The bank's history, as far as it is written.
struct History {
    file: PathBuf,
}

impl History {
    fn read(&self) -> Vec<Transaction> {
        let text = wait("the bank's history", || {
            std::fs::read_to_string(&self.file).map_err(|error| error.to_string())
        });
        // The last line may be written just now.
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        parse(whole).expect("a history")
    }

    /// When each transfer was answered, by the bank's own clock, in order.
    fn ends_us(&self) -> Vec<u64> {
        let committed = self.read().into_iter();
        let committed = committed.filter(|one| one.outcome == Outcome::Committed);
        let mut ends: Vec<u64> = committed.filter_map(|one| one.times?.ended_us).collect();
        ends.sort_unstable();
        ends
    }

    /// Does something, waits until money moves again, and prints for how long none did.
    fn stall(&self, what: &str, application: &Application<'_>, act: impl FnOnce()) {
        let before = self.ends_us().len();
        act();
        application.goes_on();
        application.nothing_has_failed();
        let ends = self.ends_us();
        // From the last one that was known before, too.
        let gaps = ends[before.saturating_sub(1)..].windows(2);
        let longest = gaps
            .map(|pair| Duration::from_micros(pair[1] - pair[0]))
            .max();
        let longest = longest.expect("transfers");
        let transfers = ends.len() - before;
        say(&format!(
            "{what}: no transfer was answered for {} ms at most; {transfers} were",
            longest.as_millis()
        ));
        assert!(longest < STALL_MAX, "{what}: {longest:?}");
    }

    /// Timestamps strictly increase in real time, over all clients and all oracles, and none came twice: the checker knows
    /// when each transaction was.
    fn holds(&self) {
        let mut history = self.read();
        // The last reads may be of transfers that aren't written down yet.
        let ended = |one: &Transaction| one.times.as_ref().and_then(|times| times.ended_us);
        let end = history.iter().filter_map(ended).max().expect("transfers");
        let whole = end - u64::try_from(NOT_WRITTEN_YET.as_micros()).expect("some seconds");
        for one in &mut history {
            if ended(one).is_none_or(|at| at > whole) {
                one.ops.retain(|op| !matches!(op, Op::Read(..)));
            }
        }
        history.retain(|one| !one.ops.is_empty());
        let report = check(&history);
        assert!(report.anomaly.is_none(), "{:?}", report.anomaly);
        let mut granted: Vec<u64> = history.iter().filter_map(|one| one.commit_ts).collect();
        let count = granted.len();
        granted.sort_unstable();
        granted.dedup();
        assert_eq!(granted.len(), count, "a commit_ts was granted twice");
        say(&format!(
            "{} transactions, {count} with a commit_ts: all timestamps in order",
            history.len()
        ));
    }
}

fn resource_version(object: &Value) -> &str {
    let version = object["metadata"]["resourceVersion"].as_str();
    version.expect("a version")
}

/// While the register changes once a second, the operator sleeps: but for what it does after some time by itself.
fn the_register_wakes_nobody(space: &Namespace) {
    let (audit, mut swaps) = (Audit::find(), 0);
    let register = || space.get("configmap", REGISTER);
    let mut before = resource_version(&wait("the register", register)).to_owned();
    let start = audit.end();
    wait("swaps of the register", || {
        let now = register()?;
        if resource_version(&now) != before {
            before = resource_version(&now).to_owned();
            swaps += 1;
        }
        if swaps >= SWAPS {
            Ok(())
        } else {
            Err(format!("{swaps} swaps"))
        }
    });
    let requests = audit.since(start);
    let about = format!("{}/demo", space.name());
    let is_reconcile = |request: &&Request| {
        request.deed.resource == "percolatorclusters" && request.object == about
    };
    let reconciles = requests.iter().filter(is_reconcile).count() as u64;
    let writes = requests.iter().filter(|request| request.is_write());
    let writes: Vec<String> = writes.map(Request::to_string).collect();
    say(&format!(
        "{swaps} swaps of the register, {reconciles} reconciles of the operator"
    ));
    assert!(
        reconciles <= SWAPS / 4,
        "{reconciles} reconciles during {swaps} swaps"
    );
    assert_eq!(writes, [""; 0], "the operator wrote");
}

/// While the API server stands still, money moves, nobody takes over, and nothing restarts.
fn the_api_server_is_away(
    space: &Namespace,
    application: &Application<'_>,
    history: &History,
    away_for: Duration,
) {
    say(&format!("the API server stands still for {away_for:?}"));
    let before = (space.incarnations("demo"), leader(space, ROLE));
    let (leads, _) = before.1.as_ref().expect("a leader");
    let masters = leader(space, MASTERS);
    let (master, _) = masters.as_ref().expect("a master that leads");
    // A standby that was away needs some seconds to be one of those that promise.
    wait_until_promised(space, leads, "percolator_tso_promised");
    wait_until_promised(space, master, "percolator_master_promised");
    history.stall(
        &format!("API server away for {away_for:?}"),
        application,
        || {
            let away = nodes::stop_api_server();
            let began = Instant::now();
            while began.elapsed() < away_for {
                let answered = history.ends_us().len();
                wait("a transfer without the API server", || {
                    let now = history.ends_us().len();
                    if now > answered {
                        Ok(())
                    } else {
                        Err("none was answered".to_owned())
                    }
                });
                std::thread::sleep(Duration::from_secs(1));
            }
            drop(away);
            space.wait_until_up_to_date("demo");
        },
    );
    assert_eq!((space.incarnations("demo"), leader(space, ROLE)), before);
    assert_eq!(leader(space, MASTERS), masters);
}

/// The leader is killed, the next one is cut off, the one after that stands still for a while, and the disk of one hangs.
fn leaders_are_lost(
    space: &Namespace,
    application: &Application<'_>,
    history: &History,
    first: &str,
) {
    say("the leader is killed, and its pod with it");
    history.stall("leader killed", application, || {
        let cordon = Cordon::begin();
        kill_at_once(space, first);
        space.wait_for("demo", "Available", "True", "StandbysNotReady");
        wait_for_another_leader(space, ROLE, first);
        drop(cordon);
        space.wait_until_up_to_date("demo");
    });

    say("the leader is cut off the network");
    let (cut, _) = wait("a leader", || leader(space, ROLE));
    history.stall("leader cut off", application, || {
        let off = cut_off(space, &cut);
        wait_for_another_leader(space, ROLE, &cut);
        drop(off);
        space.wait_until_up_to_date("demo");
    });

    say("the leader stands still, and goes on when another one leads");
    let (still, _) = wait("a leader", || leader(space, ROLE));
    history.stall("leader stands still", application, || {
        stand_still(space, ROLE, &still);
        space.wait_until_up_to_date("demo");
    });

    say("the leader's disk hangs, which nobody needs; and then it is killed, and can't end");
    let (hung, _) = wait("a leader", || leader(space, ROLE));
    history.stall("leader's disk hangs", application, || {
        hang_disk_and_kill(space, ROLE, &hung, || application.goes_on());
        space.wait_until_up_to_date("demo");
    });
}

#[test]
#[expect(clippy::too_many_lines, reason = "one story in its order")]
fn money_moves_while_oracles_come_and_go() {
    let Some(kube) = Kube::find() else { return };
    kube.install(&[]);
    let space = kube.namespace("oracles");
    say("a cluster with one oracle, and one that begins with two");
    let storage = "oracle:\n    storage";
    let two = "oracle:\n    replicas: 2\n    storage";
    // Two masters: they go on without the API server as well.
    let (one, two_masters) = (
        "master:\n    storage",
        "master:\n    replicas: 2\n    storage",
    );
    let (demo, pair) = (small("demo", ""), small("pair", ""));
    assert!(pair.contains(storage) && demo.contains(one), "{pair}");
    let demo = demo.replace(one, two_masters).replace(
        "oracle:\n    storage: {size: 16Mi}",
        &format!("oracle:\n    {OWN_DISK}"),
    );
    assert!(demo.contains(OWN_DISK), "{demo}");
    space.apply(&demo).expect("a cluster");
    space.apply(&pair.replace(storage, two)).expect("a cluster");
    space.wait_until_up_to_date("demo");
    let history = format!("{SCRATCH}/{HISTORY}");
    // Whether all money is there, others ask who transfer some, and don't write it down: in another table.
    let more = ["--table", "written-down", "--history", &history];
    let application = Application::bank(&kube, &space, "demo", ACCOUNTS, CLIENTS, &more);
    let history = History {
        file: space.scratch_file("bank", HISTORY),
    };

    say("one oracle becomes two");
    history.stall("from one oracle to two", &application, || {
        space
            .change("demo", r#"{"oracle":{"replicas":2}}"#)
            .expect("an oracle more");
        space.wait_until_up_to_date("demo");
    });
    let (first, term) = wait("a leader", || leader(&space, ROLE));
    say(&format!("{first} leads in term {term}"));
    space.wait_until_up_to_date("pair");
    let pods = ["demo-tso-0", "demo-tso-1"].map(|pod| wait(pod, || space.get("pod", pod)));
    let nodes = pods.map(|pod| pod["spec"]["nodeName"].to_string());
    assert_ne!(nodes[0], nodes[1], "one node has both oracles");

    leaders_are_lost(&space, &application, &history, &first);
    the_api_server_is_away(&space, &application, &history, nodes::api_server_away_for());

    say("the leader is evicted");
    history.stall("leader evicted", &application, || {
        evict_leader(&space, ROLE, ["demo-tso-0", "demo-tso-1"]);
        space.wait_until_up_to_date("demo");
    });

    say("the oracles restart, one after the other");
    let (incarnations, (_, term)) = (
        space.incarnations("demo"),
        leader(&space, ROLE).expect("a leader"),
    );
    history.stall("rolling restart", &application, || {
        space
            .change("demo", r#"{"oracle":{"window":"2s"}}"#)
            .expect("a window");
        space.wait_until_up_to_date("demo");
    });
    wait_for_another_term(&space, ROLE, term);
    let changed = space.restarted("demo", &incarnations);
    assert!(
        changed.len() == 2 && changed.iter().all(|it| it.starts_with("demo-tso-")),
        "{changed:?}"
    );
    // It was without the API server as well, and its status may say so until the operator's next reconcile.
    space.wait_until_up_to_date("pair");
    the_register_wakes_nobody(&space);

    say("two oracles become one, which keeps the register");
    history.stall("from two oracles to one", &application, || {
        space
            .change("demo", r#"{"oracle":{"replicas":1}}"#)
            .expect("an oracle less");
        space.wait_until_up_to_date("demo");
    });
    let register = space.get("configmap", REGISTER).expect("the register");
    assert!(register["binaryData"]["register"].is_string(), "{register}");
    history.holds();
    application.ends_well();
}
