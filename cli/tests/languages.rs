//! A bank of clients in Python and Go at two proxies, whose every second transfer is a transaction that two clients share, while
//! clients, proxies and servers are killed: what they write down is a history that snapshot isolation explains, and no money is
//! lost.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::server::free_addresses;
use crate::support::sessions::{ProxyProcess, begin_when_ready, connect};
use crate::support::{Choices, Cluster, Deck, block_on, has_go, output_of, wait_for};
use percolator_wire::proxy::v1;
use percolator_wire::proxy::v1::cell_write::Change;

/// Of each language, processes with so many clients each.
const PROCESSES: usize = 4;
const CLIENTS: usize = 4;
const ACCOUNTS: usize = 8;
const KILLS: u64 = 24;

fn tree() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Two proxies, each of which may reach the other one, at addresses that stay theirs.
struct Proxies {
    addresses: [SocketAddr; 2],
    running: [ProxyProcess; 2],
}

impl Proxies {
    fn start(cluster: &Cluster) -> Self {
        let addresses = free_addresses();
        let running = [0, 1].map(|number| Self::start_one(cluster, addresses, number));
        Self { addresses, running }
    }

    fn start_one(cluster: &Cluster, addresses: [SocketAddr; 2], number: usize) -> ProxyProcess {
        let (own, other) = (addresses[number], addresses[1 - number]);
        let server = format!("bank-{number}");
        let (own, other) = (own.to_string(), other.to_string());
        let flags = ["--server", &server, "--listen", &own, "--advertise", &own];
        let flags = [&flags[..], &["--peers", &other]].concat();
        // Its port may be another process's for a moment, as of any connection from here.
        wait_for("a proxy at its address", || {
            ProxyProcess::try_start(cluster, &flags)
        })
    }

    fn kill(&mut self, cluster: &Cluster, number: usize) {
        self.running[number].kill();
        self.running[number] = Self::start_one(cluster, self.addresses, number);
    }
}

/// The processes of clients, each of which has its place.
struct Clients {
    proxies: [SocketAddr; 2],
    folder: tempfile::TempDir,
    go: Option<PathBuf>,
    running: Vec<Child>,
    started: usize,
}

impl Clients {
    fn start(proxies: [SocketAddr; 2]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("recorder");
        let go = has_go().then(|| {
            let mut build = Command::new("go");
            build
                .args(["build", "-o"])
                .arg(&program)
                .arg("./internal/recorder")
                .current_dir(tree().join("go"));
            output_of(build).ok();
            program
        });
        let mut clients = Self {
            proxies,
            folder,
            go,
            running: Vec::new(),
            started: 0,
        };
        let languages = if clients.go.is_some() { 2 } else { 1 };
        for place in 0..PROCESSES * languages {
            let child = clients.spawn(place);
            clients.running.push(child);
        }
        clients
    }

    /// Of Python in the even places. Of each language, half of them are at each proxy.
    fn spawn(&mut self, place: usize) -> Child {
        let [mut at, mut other] = self.proxies;
        if place / 2 % 2 == 1 {
            std::mem::swap(&mut at, &mut other);
        }
        let (language, mut command) = match &self.go {
            Some(go) if place % 2 == 1 => ("go", Command::new(go)),
            _ => {
                let mut python = Command::new("python3");
                python.arg(tree().join("python/tests/recorder.py"));
                ("python", python)
            }
        };
        let name = format!("{language}{}", self.started);
        self.started += 1;
        let file = self.folder.path().join(format!("{name}.jsonl"));
        command
            .args([&name, &CLIENTS.to_string()])
            .arg(file)
            .env("PYTHONPATH", tree().join("python"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("PERCOLATOR_PROXY", at.to_string())
            .env("OTHER_PROXY", other.to_string())
            .stdin(Stdio::null())
            .spawn()
            .expect("a client starts")
    }

    fn kill(&mut self, place: usize) {
        self.check();
        let child = &mut self.running[place];
        child.kill().expect("killed");
        child.wait().expect("gone");
        let child = self.spawn(place);
        self.running[place] = child;
    }

    /// None of them has given up.
    fn check(&mut self) {
        for child in &mut self.running {
            let ended = child.try_wait().expect("known");
            assert!(ended.is_none(), "a client ended by itself: {ended:?}");
        }
    }

    /// What they have written down, without a last line that is cut.
    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for entry in fs::read_dir(self.folder.path()).expect("readable") {
            let path = entry.expect("readable").path();
            if path.extension().is_some_and(|it| it == "jsonl") {
                let text = fs::read_to_string(path).expect("text");
                let whole = text.split_inclusive('\n');
                let whole = whole.filter(|line| line.ends_with('\n'));
                lines.extend(whole.map(str::to_owned));
            }
        }
        lines
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        for child in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Makes the accounts: the first line of the history.
async fn make_accounts(proxy: &str) -> String {
    let grpc = connect(proxy).await;
    let mut session = begin_when_ready(&grpc).await;
    let value = |account: usize| format!("100 first-{account}");
    let writes = (0..ACCOUNTS).map(|account| v1::CellWrite {
        table: "accounts".into(),
        row: format!("a{account}").into(),
        column: "balance".into(),
        change: Some(Change::Put(value(account).into())),
    });
    let commit_ts = session.commit_with(writes.collect()).await;
    let ops = (0..ACCOUNTS).map(|account| {
        format!(
            r#"{{"w":["accounts/a{account}:balance","{}"]}}"#,
            value(account)
        )
    });
    let (start_ts, commit_ts) = (session.start_ts, commit_ts.expect("committed"));
    let ops = ops.collect::<Vec<_>>().join(",");
    format!(
        r#"{{"client":"first","start_ts":"{start_ts}","commit_ts":"{commit_ts}","outcome":"committed","ops":[{ops}]}}"#
    ) + "\n"
}

#[test]
fn clients_in_two_languages_lose_no_money_whatever_is_killed() {
    let cluster = Cluster::start(&["--processes", "--no-proxy"]);
    let mut proxies = Proxies::start(&cluster);
    let mut choices = Choices::from_env();
    let create = ["table", "create", "accounts", "--split-at", "a4"];
    cluster.run(&create).ok();
    let first = block_on(make_accounts(&proxies.addresses[0].to_string()));
    let mut clients = Clients::start(proxies.addresses);
    let places = clients.running.len();
    let mut servers = Deck::new([
        "bank-0", "bank-1", "tablet-0", "tablet-1", "tablet-2", "master-0", "tso-0",
    ]);
    let committed = |clients: &Clients| {
        let lines = clients.lines();
        let committed = lines.iter().filter(|line| line.contains("\"committed\""));
        committed.count()
    };
    let mut before = 0;
    for kill in 0..KILLS {
        // They go on, whatever has gone before.
        wait_for("more transfers", || {
            clients.check();
            (committed(&clients) >= before + 20).then_some(())
        });
        before = committed(&clients);
        if kill % 2 == 0 {
            match servers.draw(&mut choices) {
                "bank-0" => proxies.kill(&cluster, 0),
                "bank-1" => proxies.kill(&cluster, 1),
                server => cluster.kill(server),
            }
        } else {
            let place = choices.below(places as u64);
            clients.kill(usize::try_from(place).expect("small"));
        }
        std::thread::sleep(Duration::from_millis(choices.below(300)));
    }
    wait_for("the last transfers", || {
        (committed(&clients) >= before + 50).then_some(())
    });
    for child in &mut clients.running {
        child.kill().expect("killed");
        child.wait().expect("gone");
    }
    let lines = clients.lines();
    // Names of clients begin so, balances don't. Of any process of the language: one may be killed before its first line.
    let by = |name: &str| lines.iter().any(|line| line.contains(name));
    assert!(by("\"python"), "Python has done nothing");
    assert!(clients.go.is_none() || by("\"go"), "Go has done nothing");
    let is_shared = |line: &&String| line.contains("+\"") && line.contains("\"committed\"");
    let shared = lines.iter().filter(is_shared).count();
    eprintln!("{shared} transfers of two clients each are committed");
    assert!(shared * 10 > committed(&clients), "too few were shared");
    let history = clients.folder.path().join("history");
    fs::write(&history, first + &lines.concat()).expect("written");
    let checked = cluster.run(&["history", "check", &history.to_string_lossy()]);
    eprintln!("{}", checked.ok());
    assert_eq!(cluster.money(), 100 * ACCOUNTS as u64);
}
