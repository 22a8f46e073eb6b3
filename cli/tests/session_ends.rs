//! Sessions of a proxy that end at each of their steps, in each way: what was said to be committed is there, and nothing else, and all of
//! it or none.

use std::time::Duration;

use crate::support::sessions::{
    Grpc, ProxyProcess, Session, begin_when_ready, connect, reason, with_table,
};
use crate::support::{Cluster, block_on};
use percolator_wire::proxy::v1::outcome_response::Outcome;
use tonic::{Code, Status};

/// How far a session has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Begun,
    Read,
    Written,
    /// Its commit is under way.
    CommitSent,
    Committed,
}

impl Step {
    const ALL: [Self; 5] = [
        Self::Begun,
        Self::Read,
        Self::Written,
        Self::CommitSent,
        Self::Committed,
    ];
}

/// What ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    RolledBack,
    /// Its client says nothing any more.
    Silent,
    /// SIGTERM to the proxy.
    Stopped,
    /// SIGKILL to the proxy.
    Killed,
}

impl End {
    const ALL: [Self; 4] = [Self::RolledBack, Self::Silent, Self::Stopped, Self::Killed];
}

/// A session that is to end, and what its client was told of its commit.
struct Ending {
    step: Step,
    session: Session,
    rows: [String; 2],
    commit: Option<tokio::task::JoinHandle<Result<u64, Status>>>,
    committed: Option<u64>,
}

impl Ending {
    /// It reads and writes a row of each tablet.
    async fn at(grpc: &Grpc, end: End, step: Step) -> Self {
        let session = Session::begin(grpc).await;
        let mut ending = Self {
            step,
            session,
            rows: ["a", "z"].map(|tablet| format!("{tablet}-{end:?}-{step:?}")),
            commit: None,
            committed: None,
        };
        if step == Step::Begun {
            return ending;
        }
        for row in &ending.rows {
            let read = ending.session.get(row).await.expect("read");
            assert_eq!(read, None, "{row}");
        }
        if step == Step::Read {
            return ending;
        }
        for row in &ending.rows {
            ending.session.put(row, "1").await.expect("written");
        }
        match step {
            Step::Begun | Step::Read | Step::Written => {}
            Step::CommitSent => {
                let mut session = ending.session.clone();
                ending.commit = Some(tokio::spawn(async move { session.commit().await }));
            }
            Step::Committed => {
                let commit_ts = ending.session.commit().await.expect("committed");
                ending.committed = Some(commit_ts);
            }
        }
        ending
    }

    /// What its client was told in the end. `None`: nothing is known.
    async fn told(&mut self) -> Option<bool> {
        let Some(commit) = self.commit.take() else {
            return Some(self.committed.is_some());
        };
        match commit.await.expect("no panic") {
            Ok(_) => Some(true),
            Err(status) if status.code() == Code::Aborted => Some(false),
            // The connection is gone, or the proxy doesn't know either.
            Err(_) => None,
        }
    }
}

/// Ends all of them in this way; the proxy that answers then.
async fn end_all(
    cluster: &Cluster,
    mut proxy: ProxyProcess,
    end: End,
    endings: &mut [Ending],
) -> ProxyProcess {
    match end {
        End::RolledBack => {
            for ending in endings {
                let rolled_back = ending.session.rollback().await;
                match ending.step {
                    Step::Begun | Step::Read | Step::Written => rolled_back.expect("rolled back"),
                    // It says that it is being committed, or is: or it was first.
                    Step::CommitSent => {}
                    Step::Committed => {
                        let (code, _) = reason(&rolled_back.expect_err("it is committed"));
                        assert_eq!(code, Code::FailedPrecondition);
                    }
                }
            }
            proxy
        }
        End::Silent => {
            // Longer than `--idle-max`.
            tokio::time::sleep(Duration::from_secs(3)).await;
            proxy
        }
        End::Stopped | End::Killed => {
            let ended = tokio::task::spawn_blocking(move || {
                if end == End::Stopped {
                    proxy.end();
                } else {
                    proxy.kill();
                }
            });
            ended.await.expect("no panic");
            start(cluster)
        }
    }
}

fn start(cluster: &Cluster) -> ProxyProcess {
    let arguments = [
        "--listen",
        "127.0.0.1:0",
        "--idle-max",
        "2s",
        "--grace",
        "0s",
    ];
    ProxyProcess::start(cluster, &arguments)
}

#[test]
fn a_session_that_ends_at_any_step_leaves_what_was_said() {
    let cluster = with_table();
    let mut proxy = start(&cluster);
    block_on(async {
        for end in End::ALL {
            let grpc = connect(&proxy.address).await;
            begin_when_ready(&grpc).await;
            let mut endings = Vec::new();
            for step in Step::ALL {
                endings.push(Ending::at(&grpc, end, step).await);
            }
            proxy = end_all(&cluster, proxy, end, &mut endings).await;
            let grpc = connect(&proxy.address).await;
            let mut reader = begin_when_ready(&grpc).await;
            for mut ending in endings {
                let what = format!("{end:?} at {:?}", ending.step);
                let told = ending.told().await;
                let mut there = Vec::new();
                for row in &ending.rows {
                    // A commit that was cut off is pushed to its end by who reads, one way or the other.
                    there.push(reader.get(row).await.expect("read").is_some());
                }
                let is_there = there[0];
                assert_eq!(there, [is_there; 2], "{what}: a part of it");
                if let Some(told) = told {
                    assert_eq!(is_there, told, "{what}");
                }
                if ending.step != Step::CommitSent {
                    assert!(told.is_some(), "{what}");
                }
                // What a proxy that lives still says of it.
                if matches!(end, End::RolledBack | End::Silent) {
                    let (outcome, _) = ending.session.outcome().await.expect("known");
                    let expected = if is_there {
                        Outcome::Committed
                    } else {
                        Outcome::RolledBack
                    };
                    assert_eq!(outcome, expected, "{what}");
                }
            }
        }
    });
}
