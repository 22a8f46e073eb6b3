//! Transactions that several clients share, at one proxy and at two, from two languages.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::sessions::{
    Grpc, Proxy, ProxyProcess, Session, begin_when_ready, connect, is, reason, refused, with_table,
};
use crate::support::{Cluster, block_on, has_go, output_of};
use percolator_wire::proxy::v1;
use percolator_wire::proxy::v1::cell_write::Change;
use percolator_wire::proxy::v1::outcome_response::Outcome;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// A cluster, its proxy "a", and "b", which may reach it.
struct Two {
    cluster: Cluster,
    a: Proxy,
    b: Proxy,
}

impl Two {
    fn new() -> Self {
        Self::with_idle(Duration::from_secs(2))
    }

    /// Sessions at "a" may be without a call for so long.
    fn with_idle(idle_max: Duration) -> Self {
        let cluster = with_table();
        let a = Proxy::start(&cluster, |options| {
            options.advertise = Some("127.0.0.1".into());
            options.limits.idle_max = idle_max;
        });
        let b = Proxy::start(&cluster, |options| {
            options.server = "b".into();
            options.peers = vec![a.address.clone()];
        });
        Self { cluster, a, b }
    }

    async fn connect(&self) -> (Grpc, Grpc) {
        (
            connect(&self.a.address).await,
            connect(&self.b.address).await,
        )
    }
}

fn put(row: &str, value: &str) -> Vec<v1::CellWrite> {
    vec![v1::CellWrite {
        table: "t".into(),
        row: row.to_owned().into(),
        column: "c".into(),
        change: Some(Change::Put(value.to_owned().into())),
    }]
}

async fn value(grpc: &Grpc, row: &str) -> Option<String> {
    let mut session = Session::begin(grpc).await;
    session.get(row).await.expect("read")
}

async fn is_rolled_back(session: &mut Session) {
    let began = Instant::now();
    while session.outcome().await.expect("known").0 != Outcome::RolledBack {
        assert!(began.elapsed() < Duration::from_secs(60), "not in a minute");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[test]
fn all_of_it_is_committed_at_once_from_both_proxies() {
    let two = Two::new();
    block_on(async {
        let (a, b) = two.connect().await;
        let mut manager = Session::begin(&a).await;
        let mut here = manager.join(&a).await.expect("joined");
        let mut there = manager.join(&b).await.expect("joined");
        assert_eq!([here.start_ts, there.start_ts], [manager.start_ts; 2]);
        assert!(there.token.contains(".b."), "{}", there.token);

        // Each sees its own writes alone.
        there.put("there", "draft").await.expect("written");
        let draft = there.get("there").await.expect("read");
        assert_eq!(draft.as_deref(), Some("draft"));
        for other in [&mut here, &mut manager] {
            assert_eq!(other.get("there").await.expect("read"), None);
        }
        // Longer than a session may be idle: the other proxy keeps it.
        here.finish(put("here", "1")).await.expect("handed over");
        tokio::time::sleep(Duration::from_secs(3)).await;
        for _ in 0..2 {
            let finished = there.finish(put("there", "1")).await;
            finished.expect("handed over, also twice");
        }
        assert_eq!(value(&b, "there").await, None, "nothing is committed yet");
        let commit_ts = manager.commit().await.expect("committed");
        assert_eq!(manager.commit().await.expect("again"), commit_ts);
        for row in ["here", "there"] {
            assert_eq!(value(&b, row).await.as_deref(), Some("1"));
        }
        let late = refused(manager.join(&b).await.map(|it| it.token));
        assert_eq!(late, is(Code::FailedPrecondition, "TOO_LATE"));
        let again = refused(there.put("x", "1").await);
        assert_eq!(again, is(Code::FailedPrecondition, "PARTICIPANT_FINISHED"));
        // It doesn't say that it was rolled back.
        for mut part in [here, there] {
            let outcome = refused(part.outcome().await);
            assert_eq!(
                outcome,
                is(Code::FailedPrecondition, "PARTICIPANT_FINISHED")
            );
        }
    });
}

#[test]
fn locks_of_participants_hold() {
    let two = Two::new();
    block_on(async {
        let (a, b) = two.connect().await;
        for at in [&a, &b] {
            let mut manager = Session::begin(&a).await;
            let mut part = manager.join(at).await.expect("joined");
            part.get_for_update("watched").await.expect("read");
            part.finish(put("x", "1")).await.expect("handed over");
            let mut other = Session::begin(&a).await;
            other.put("watched", "changed").await.expect("written");
            other.commit().await.expect("committed");
            let lost = refused(manager.commit().await);
            assert_eq!(lost, is(Code::Aborted, "CONFLICT"));
            assert_eq!(value(&a, "x").await, None);
        }
    });
}

#[test]
fn a_participant_that_is_missing_aborts_it() {
    let two = Two::new();
    block_on(async {
        let (a, b) = two.connect().await;
        for at in [&a, &b] {
            // It has not finished.
            let mut manager = Session::begin(&a).await;
            let mut part = manager.join(at).await.expect("joined");
            let missing = refused(manager.commit().await);
            assert_eq!(missing, is(Code::Aborted, "PARTICIPANT_LOST"));
            let late = part.finish(put("x", "1")).await.expect_err("late");
            assert_eq!(late.code(), Code::Aborted, "{late:?}");
            is_rolled_back(&mut manager).await;

            // It has rolled back, which the manager's proxy hears of.
            let mut manager = Session::begin(&a).await;
            let mut part = manager.join(at).await.expect("joined");
            part.rollback().await.expect("rolled back");
            is_rolled_back(&mut manager).await;

            // The manager has.
            let mut manager = Session::begin(&a).await;
            let mut part = manager.join(at).await.expect("joined");
            manager.rollback().await.expect("rolled back");
            let late = refused(part.finish(put("x", "1")).await);
            assert_eq!(late, is(Code::Aborted, "MANAGER_GONE"));
        }
        assert_eq!(value(&a, "x").await, None);
    });
}

#[test]
fn one_cell_is_written_by_one_client() {
    let two = Two::new();
    block_on(async {
        let (a, b) = two.connect().await;
        let mut manager = Session::begin(&a).await;
        for at in [&a, &b] {
            let mut part = manager.join(at).await.expect("joined");
            part.finish(put("x", "1")).await.expect("handed over");
        }
        let twice = manager.commit().await.expect_err("twice");
        assert_eq!(reason(&twice), is(Code::Aborted, "TWO_WRITERS"));
        let details = twice.get_error_details();
        let info = details.error_info().expect("there");
        assert_eq!(info.metadata["cell"], "t/x:c");
        is_rolled_back(&mut manager).await;
        assert_eq!(value(&a, "x").await, None);
    });
}

/// What was read of a table that is gone decides nothing about another one of its name.
#[test]
fn a_table_that_is_made_anew_is_another_one() {
    let two = Two::new();
    block_on(async {
        let (a, b) = two.connect().await;
        for at in [&a, &b] {
            let mut manager = Session::begin(&a).await;
            let mut part = manager.join(at).await.expect("joined");
            part.get_for_update("x").await.expect("read");
            two.cluster.run(&["table", "delete", "t", "--yes"]).ok();
            two.cluster.run(&["table", "create", "t"]).ok();
            // The proxies know the new one then; the participant does not.
            for proxy in [&a, &b] {
                let began = Instant::now();
                loop {
                    let mut later = Session::begin(proxy).await;
                    let written = later.put("y", "1").await;
                    if written.is_ok() && later.commit().await.is_ok() {
                        break;
                    }
                    assert!(began.elapsed() < Duration::from_secs(60), "{written:?}");
                }
            }
            let finished = part.finish(put("x", "1")).await;
            let committed = manager.commit().await;
            assert!(finished.is_err() || committed.is_err());
            assert_eq!(value(&a, "x").await, None);
        }
    });
}

#[test]
fn a_proxy_that_is_killed_ends_what_was_shared_with_it() {
    let cluster = with_table();
    let advertised = ["--advertise", "127.0.0.1", "--idle-max", "2s"];
    let mut first = ProxyProcess::start(&cluster, &advertised);
    let peers = ["--server", "b", "--peers", &first.address.clone()];
    block_on(async {
        let a = connect(&first.address).await;
        let mut manager = begin_when_ready(&a).await;
        let mut second = ProxyProcess::start(&cluster, &peers);
        let b = connect(&second.address).await;
        begin_when_ready(&b).await;
        manager.join(&b).await.expect("joined");
        let mut idle = Session::begin(&a).await;
        idle.join(&b).await.expect("joined");
        second.kill();
        let missing = refused(manager.commit().await);
        assert_eq!(missing, is(Code::Aborted, "PARTICIPANT_LOST"));
        // Also if nobody commits: it isn't kept any more.
        is_rolled_back(&mut idle).await;

        // The manager's.
        let second = ProxyProcess::start(&cluster, &peers);
        let b = connect(&second.address).await;
        begin_when_ready(&b).await;
        let manager = Session::begin(&a).await;
        let mut part = manager.join(&b).await.expect("joined");
        first.kill();
        let refused_by = |status: Status| status.code();
        let nobody = part.finish(put("x", "1")).await.expect_err("nobody");
        assert_eq!(refused_by(nobody), Code::Unavailable);
        let nobody = manager.join(&b).await.map(|it| it.token);
        assert_eq!(refused_by(nobody.expect_err("nobody")), Code::Unavailable);
        assert_eq!(value(&b, "x").await, None);
    });
}

#[test]
fn a_proxy_connects_to_its_peers_alone() {
    let two = Two::new();
    block_on(async {
        let (a, b) = two.connect().await;
        let there = Session::begin(&b).await;
        let not_a_peer = refused(there.join(&a).await.map(|it| it.token));
        assert_eq!(not_a_peer, is(Code::FailedPrecondition, "OTHER_PROXY"));
        // A token that somebody made up.
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a port");
        let address = listener.local_addr().expect("bound");
        let made_up = Session {
            token: format!("7.{address}.{}", "0".repeat(32)),
            ..there
        };
        let not_a_peer = refused(made_up.join(&b).await.map(|it| it.token));
        assert_eq!(not_a_peer, is(Code::FailedPrecondition, "OTHER_PROXY"));
        let connected = tokio::time::timeout(Duration::from_millis(100), listener.accept());
        assert!(connected.await.is_err(), "it connects");
    });
}

#[test]
fn workers_in_two_languages_share_a_transaction() {
    // Interpreters start, on a machine that may be busy.
    let two = Two::with_idle(Duration::from_secs(60));
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let python = "python3 examples/shared.py";
    let folder = tempfile::tempdir().expect("a folder");
    let worker = folder.path().join("worker");
    let go = worker.to_str().expect("a path of text");
    let elsewhere = format!("env PERCOLATOR_PROXY={} {python} --here", two.b.address);
    let go_elsewhere = format!("env PERCOLATOR_PROXY={} {go} --here", two.b.address);
    let mut rounds = vec![vec![python, &*elsewhere]];
    if has_go() {
        // Not by `go run`: to compile it may take longer than a session waits for a call.
        let mut build = Command::new("go");
        build.args(["build", "-o", go, "./examples/worker"]);
        build.current_dir(tree.join("go"));
        output_of(build).ok();
        rounds.extend([
            vec![python, go, &*go_elsewhere],
            vec![&*go_elsewhere, &*elsewhere],
        ]);
    }
    for workers in rounds {
        let output = Command::new("python3")
            .arg("examples/shared.py")
            .args(workers.iter().flat_map(|worker| ["--worker", worker]))
            .current_dir(tree.join("python"))
            .env("PYTHONPATH", tree.join("python"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("PERCOLATOR_PROXY", &two.a.address)
            .output()
            .expect("python3 runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let wrong = String::from_utf8_lossy(&output.stderr).into_owned();
        let expected = "all texts 3\nblue words 5\ngreen words 1\nred words 8\n";
        assert_eq!(said, expected, "{workers:?}: {wrong}");
        two.cluster.run(&["delete", "counts", "red", "words"]).ok();
    }
}
