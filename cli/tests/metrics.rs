//! What a real cluster shows of itself: every metric that is declared is there, in the form that Prometheus wants, and
//! is counted where something happens.

use crate::support;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::support::{Cluster, block_on, wait_for};
use percolator_client::{Client, Options, Registry};
use percolator_telemetry::endpoint;
use percolator_telemetry::names::{client, leadership, master, process, proxy, tablet, tso};
use percolator_telemetry::{Kind, Metric, Values, text};
use serde_json::Value;

/// What a server shows, by its name.
type Pages = BTreeMap<String, String>;

fn servers(cluster: &Cluster) -> Vec<(String, String)> {
    let file = std::fs::read(cluster.data_dir.join("servers.json")).expect("servers.json");
    let servers: Value = serde_json::from_slice(&file).expect("JSON");
    let word = |server: &Value, field: &str| server[field].as_str().expect(field).to_owned();
    let servers = servers.as_array().expect("a list").iter();
    servers
        .map(|server| (word(server, "server"), word(server, "metrics")))
        .collect()
}

fn get(address: &str, path: &str) -> endpoint::PageResponse {
    block_on(endpoint::get(address, path)).expect("an answer")
}

fn scrape(cluster: &Cluster) -> Pages {
    let servers = servers(cluster).into_iter();
    servers
        .map(|(server, address)| (server, get(&address, "/metrics").body))
        .collect()
}

fn tables(server: &str) -> [&'static [Metric]; 3] {
    let (own, led) = match server.trim_end_matches(|c: char| c.is_ascii_digit() || c == '-') {
        "master" => (master::ALL, leadership::ALL),
        "tso" => (tso::ALL, leadership::ALL),
        "proxy" => (proxy::ALL, client::ALL),
        _ => (tablet::ALL, &[][..]),
    };
    [process::ALL, own, led]
}

/// Every declared metric is on the page, and nothing else.
fn check_declared(page: &str, metrics: &[Metric]) {
    for metric in metrics {
        let (name, kind) = (metric.name, metric.kind.name());
        let kind = format!("# TYPE {name} {kind}");
        assert!(page.lines().any(|line| line == kind), "{kind}\n{page}");
        let series = match metric.kind {
            Kind::Histogram { .. } => format!("{name}_count"),
            Kind::Counter | Kind::Gauge => name.to_owned(),
        };
        for values in metric.children().iter().filter(|values| !values.is_empty()) {
            let line = page.lines().find(|line| {
                let labels = || metric.labels.iter().zip(values);
                line.strip_prefix(&series)
                    .is_some_and(|rest| rest.starts_with('{'))
                    && labels()
                        .all(|(label, value)| line.contains(&format!("{}=\"{value}\"", label.name)))
            });
            assert!(line.is_some(), "{series} has no {values:?}\n{page}");
        }
    }
    for line in page.lines() {
        if let Some(name) = line.strip_prefix("# TYPE ") {
            let name = name.split(' ').next().unwrap_or_default();
            let declared = metrics.iter().any(|metric| metric.name == name);
            assert!(declared, "{name} is not declared");
        }
    }
}

/// The sum of a metric's series; of a histogram, how often it was observed.
fn sum(page: &str, metric: &Metric) -> f64 {
    let name = match metric.kind {
        Kind::Histogram { .. } => format!("{}_count", metric.name),
        Kind::Counter | Kind::Gauge => metric.name.to_owned(),
    };
    let series = page.lines().filter(|line| {
        let rest = line.strip_prefix(&name);
        rest.is_some_and(|rest| rest.starts_with([' ', '{']))
    });
    series
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

/// Counters and histograms that nothing has happened to, though they don't say that it needs something unusual.
fn silent(pages: &[&str], metrics: &[Metric]) -> Vec<&'static str> {
    let counts = metrics
        .iter()
        .filter(|metric| !matches!(metric.kind, Kind::Gauge) && metric.after.is_empty());
    counts
        .filter(|metric| pages.iter().all(|page| sum(page, metric) == 0.0))
        .map(|metric| metric.name)
        .collect()
}

/// Prometheus' own opinion; none where its tool isn't here.
fn promtool(page: &str) -> Option<String> {
    let tool = std::env::var_os("PERCOLATOR_PROMTOOL").unwrap_or_else(|| "promtool".into());
    let mut child = Command::new(tool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(page.as_bytes()).expect("written");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    Some(if output.status.success() {
        said
    } else {
        format!("{}: {said}", output.status)
    })
}

fn check_by_promtool(who: &str, page: &str) {
    match promtool(page) {
        Some(said) => assert_eq!(said, "", "{who}"),
        None => eprintln!("SKIPPED: there's no promtool, of Debian's package prometheus"),
    }
}

#[test]
fn every_server_shows_what_is_declared_and_counts_what_happens() {
    let cluster = Cluster::processes();
    cluster.run(&["gc", "set", "--retention", "1s"]).ok();
    let bank = [
        "bank",
        "--duration",
        "3s",
        "--accounts",
        "500",
        "--clients",
        "16",
    ];
    cluster.run(&bank).ok();
    let mut left = Vec::new();
    wait_for("every counter to count", || {
        // Collection goes on by itself, below what the next transactions write.
        let few = [
            "bank",
            "--duration",
            "1s",
            "--accounts",
            "500",
            "--clients",
            "16",
        ];
        cluster.run(&few).ok();
        let pages = scrape(&cluster);
        left = ["tso", "master", "tablet"]
            .into_iter()
            .flat_map(|role| {
                let pages = pages.iter().filter(|(server, _)| server.starts_with(role));
                let pages: Vec<&str> = pages.map(|(_, page)| page.as_str()).collect();
                tables(role)
                    .into_iter()
                    .flat_map(move |table| silent(&pages, table))
            })
            // Whole seconds, and servers that do little take none.
            .filter(|name| *name != process::CPU.name)
            .collect();
        eprintln!("not counted yet: {left:?}");
        left.is_empty().then_some(())
    });
    for (server, page) in scrape(&cluster) {
        check_declared(&page, &tables(&server).concat());
        check_by_promtool(&server, &page);
        if server == "proxy-0" {
            // It keeps nothing.
            continue;
        }
        let volume = |suffix: &str| {
            let mut lines = page.lines().filter(|line| !line.starts_with('#'));
            let line = lines.find_map(|line| line.split_once(suffix));
            line.and_then(|(_, bytes)| bytes.parse::<f64>().ok())
                .unwrap_or_else(|| panic!("{server} has no {suffix}: {page}"))
        };
        let (free, size) = (volume("_disk_free_bytes "), volume("_disk_size_bytes "));
        assert!(0.0 < free && free < size, "{server}: {free} of {size}");
    }
}

/// What a process takes of the machine, of all servers in it together.
const WHOLE: [Metric; 8] = [
    process::MEMORY_LIMIT,
    process::CPU,
    process::OPEN_FDS,
    process::MAX_FDS,
    process::VIRTUAL,
    process::RESIDENT,
    process::START,
    process::THREADS,
];

#[test]
fn servers_of_one_process_have_a_page_each_and_the_process_is_counted_once() {
    let cluster = Cluster::threads();
    // It has tablets on every server, and asks for all of them.
    let bank = ["bank", "--duration", "1s", "--accounts", "500"];
    cluster.run(&bank).ok();
    let pages = scrape(&cluster);
    let servers_and_proxy = support::SERVERS.len() + 1;
    assert_eq!(pages.len(), servers_and_proxy, "{:?}", pages.keys());
    for (server, page) in &pages {
        let mut declared = tables(server).concat();
        if server != "master-0" {
            declared.retain(|metric| WHOLE.iter().all(|whole| whole.name != metric.name));
        }
        check_declared(page, &declared);
        check_by_promtool(server, page);
    }
    let requests = |server: &str| sum(&pages[server], &tablet::REQUESTS);
    let all: f64 = ["tablet-0", "tablet-1", "tablet-2"]
        .map(requests)
        .iter()
        .sum();
    assert!(all > 0.0, "{pages:?}");
    for (server, address) in servers(&cluster) {
        // `up` has waited for it.
        assert_eq!(get(&address, "/readyz").body, "ok\n", "{server}");
    }
    let data_dir = cluster.data_dir.clone();
    let (code, said) = cluster.stop();
    assert_eq!(code, 0, "{said}");
    assert!(
        !data_dir.join("servers.json").exists(),
        "it is told that they run"
    );
}

#[test]
fn health_and_readiness_are_told_and_a_page_that_is_not_there() {
    let cluster = Cluster::processes();
    for (server, address) in servers(&cluster) {
        for page in ["/healthz", "/readyz"] {
            // The master may have heard a server a moment before that has its answer.
            wait_for(&format!("{page} of {server}"), || {
                let answer = get(&address, page);
                (answer.status == 200 && answer.body == "ok\n").then_some(())
            });
        }
        let answer = get(&address, "/");
        assert_eq!(answer.status, 404);
        assert!(answer.body.contains("/metrics"), "{}", answer.body);
    }
    // A server that is started again shows itself where it did before.
    let before = servers(&cluster);
    cluster.kill("tablet-0");
    assert_eq!(servers(&cluster), before);
    let (_, address) = &before[2];
    wait_for("tablet-0 to be ready again", || {
        let answer = block_on(endpoint::get(address, "/readyz")).ok()?;
        (answer.status == 200).then_some(())
    });
}

#[test]
fn a_server_without_its_master_is_healthy_and_not_ready() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = std::path::Path::new(support::PERCOLATOR).with_file_name("percolator-tablet");
    let mut child = Command::new(program)
        .args(["--metrics-listen", "127.0.0.1:0", "--master", "127.0.0.1:1"])
        .args(["--data-dir".as_ref(), folder.path().as_os_str()])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program");
    let mut line = String::new();
    let stdout = child.stdout.take().expect("a pipe");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).expect("a line");
    let address = line
        .trim()
        .strip_prefix("metrics on ")
        .expect(&line)
        .to_owned();
    // The address is taken before the data is opened, and answers once it serves.
    let answer = get(&address, "/readyz");
    let healthy = get(&address, "/healthz");
    let page = get(&address, "/metrics");
    child.kill().expect("killed");
    child.wait().expect("ended");
    assert_eq!(answer.status, 503);
    assert!(
        answer.body.contains("no master has accepted"),
        "{}",
        answer.body
    );
    assert_eq!(healthy.status, 200);
    assert!(
        page.body.contains("\npercolator_ready 0\n"),
        "{}",
        page.body
    );
}

#[test]
fn an_application_sees_what_its_client_does() {
    let cluster = Cluster::processes();
    let registry = Registry::new();
    let (shown, master) = (registry.clone(), cluster.master.clone());
    block_on(async move {
        let connected = Client::connect(&master).await.expect("connected");
        connected.measure(&shown).expect("measured");
        let again = connected.measure(&shown);
        assert!(again.is_err(), "a registry has one client's metrics");
        connected.create_table("t", &[]).await.expect("a table");
        let write = async |row: &str| {
            let txn = connected.begin().await.expect("begun");
            let seen = txn.get("t", row, "c").await.expect("read");
            txn.put("t", row, "c", seen.unwrap_or_default())
                .expect("put");
            txn
        };
        write("a").await.commit().await.expect("committed");
        let (first, second) = (write("a").await, write("a").await);
        first.commit().await.expect("committed");
        second.commit().await.expect_err("a conflict");
        let reads = connected.begin().await.expect("begun");
        reads.get("t", "a", "c").await.expect("read");
        reads.commit().await.expect("nothing to commit");
    });
    let page = text(&registry).expect("text");
    check_declared(&page, client::ALL);
    for line in [
        "percolator_client_transactions_begun_total 4",
        "percolator_client_commits_total{outcome=\"committed\"} 2",
        "percolator_client_commits_total{outcome=\"conflict\"} 1",
        "percolator_client_commits_total{outcome=\"read_only\"} 1",
        "percolator_client_commit_duration_seconds_count 4",
        "percolator_client_commit_cells_count 3",
    ] {
        assert!(page.lines().any(|found| found == line), "{line}\n{page}");
    }
    assert!(sum(&page, &client::REQUESTS) >= 7.0, "{page}");
}

#[test]
fn the_bank_shows_what_its_client_does() {
    let cluster = Cluster::threads();
    let mut child = Command::new(support::PERCOLATOR)
        .args(["-c", &cluster.master, "bank", "--accounts", "10"])
        .args(["--duration", "60s", "--metrics-listen", "127.0.0.1:0"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program");
    // Kept open: who can't say anything any more would end.
    let mut said = std::io::BufReader::new(child.stderr.take().expect("a pipe"));
    let mut line = String::new();
    let address = loop {
        line.clear();
        let bytes = std::io::BufRead::read_line(&mut said, &mut line).expect("a line");
        assert!(bytes > 0, "it ended before it said where");
        if let Some((_, address)) = line.trim().split_once("metrics on ") {
            break address.to_owned();
        }
    };
    let page = wait_for("commits", || {
        let page = get(&address, "/metrics").body;
        (sum(&page, &client::COMMITS) >= 10.0).then_some(page)
    });
    child.kill().expect("killed");
    child.wait().expect("ended");
    check_declared(&page, &[process::ALL, client::ALL].concat());
    check_by_promtool("bank", &page);
    assert!(page.contains("role=\"bank\""), "{page}");
}

#[test]
fn labels_of_names_are_bounded() {
    let metrics = [
        process::ALL,
        tso::ALL,
        tablet::ALL,
        master::ALL,
        client::ALL,
    ];
    for metric in metrics.into_iter().flatten() {
        let series: usize = metric
            .labels
            .iter()
            .map(|label| match label.values {
                Values::OneOf(values) => values.len(),
                Values::UpTo(most, _) => most + 1,
                Values::Of(_) => 1,
            })
            .product();
        assert!(series <= 256, "{} has {series} series", metric.name);
    }
}

/// Transactions that the servers say are committed, in one phase, in two, and large ones.
fn committed(cluster: &Cluster) -> [u64; 3] {
    let pages = scrape(cluster);
    tablet::COMMITTED
        .iter()
        .map(|how| {
            let series = format!("{}{{how=\"{how}\"}} ", tablet::TRANSACTIONS.name);
            let lines = pages.values().flat_map(|page| page.lines());
            let counts = lines.filter_map(|line| line.strip_prefix(&series)?.parse::<u64>().ok());
            counts.sum()
        })
        .collect::<Vec<_>>()
        .try_into()
        .expect("three ways")
}

#[test]
fn each_transaction_is_counted_once_wherever_its_cells_are() {
    let cluster = Cluster::processes();
    cluster
        .run(&["table", "create", "t", "--split-at", "h", "--split-at", "p"])
        .ok();
    let before = committed(&cluster);
    cluster.run(&["put", "t", "a", "c", "1"]).ok();
    block_on(async {
        // Rows of every server.
        let rows = ["a", "i", "q"];
        for (buffer_bytes, times) in [(Options::default().buffer_bytes, 5), (1, 2)] {
            let options = Options {
                buffer_bytes,
                ..Options::default()
            };
            let client = Client::connect_with(&cluster.master, options).await;
            let client = client.expect("connected");
            for time in 0..times {
                let txn = client.begin().await.expect("begun");
                for row in rows {
                    txn.put("t", row, "c", format!("{buffer_bytes} {time}"))
                        .expect("put");
                }
                txn.commit().await.expect("committed");
            }
            // One that ends otherwise.
            let txn = client.begin().await.expect("begun");
            txn.put("t", "a", "c", "never").expect("put");
            txn.rollback();
            client.settle().await;
        }
    });
    let after = committed(&cluster);
    let more = std::array::from_fn(|how| after[how] - before[how]);
    assert_eq!(more, [1, 5, 2], "{before:?}, {after:?}");
}
