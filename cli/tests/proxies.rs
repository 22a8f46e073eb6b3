//! Proxies in `percolator status` and `top`: while they run, when they are killed, when they end, and behind another master.

use crate::support::http::{Http, json};
use crate::support::sessions::ProxyProcess;
use crate::support::{Cluster, signal, wait_for};
use serde_json::Value;

/// The status, and in it the proxy of this name, if it is there.
fn listed(cluster: &Cluster, name: &str) -> (Value, Option<Value>) {
    let said = cluster.run(&["status", "-o", "json"]);
    // Without a master there is none.
    let status = serde_json::from_str(&said.out).unwrap_or(Value::Null);
    let servers = status["servers"].as_array().into_iter().flatten();
    let mut proxies = servers.filter(|server| server["role"] == "proxy");
    let proxy = proxies.find(|proxy| proxy["server"] == name).cloned();
    (status, proxy)
}

#[test]
fn a_proxy_is_listed_while_it_runs_and_as_down_when_it_was_killed() {
    let cluster = Cluster::threads();
    let metrics = ["--metrics-listen", "127.0.0.1:0"];
    let arguments = |name| [&["--server", name][..], &metrics].concat();
    let mut first = ProxyProcess::start(&cluster, &arguments("first"));
    let mut second = ProxyProcess::start(&cluster, &arguments("second"));
    for _ in 0..2 {
        wait_for("a session", || {
            let (status, _) = Http::new(&first.address).post("begin", "{}");
            (status == 200).then_some(())
        });
    }
    let has = |name: &str, sessions: u64| {
        wait_for("a proxy with its sessions", || {
            let (status, proxy) = listed(&cluster, name);
            let proxy = proxy.filter(|proxy| proxy["sessions"] == sessions)?;
            assert_eq!(status["healthy"], true, "{status}");
            Some(proxy)
        })
    };
    assert_eq!(has("first", 2)["address"], first.address);
    has("second", 0);
    let top = ["top", "--once", "-o", "json", "--interval", "100ms"];
    let top = json(&cluster.run(&top).ok());
    assert!(top["load_of"]["first"].is_object(), "{top}");

    // One that ends in order isn't missed.
    second.end();
    let (status, proxy) = listed(&cluster, "second");
    assert_eq!(
        (&status["healthy"], proxy),
        (&true.into(), None),
        "{status}"
    );
    first.kill();
    let status = wait_for("the proxy that was killed to be missed", || {
        let (status, proxy) = listed(&cluster, "first");
        (proxy.expect("listed")["up"] == false).then_some(status)
    });
    let problem = &status["problems"][0];
    assert_eq!(
        (&problem["kind"], &problem["about"]),
        (&"server-down".into(), &"first".into())
    );
    // It is started again, at another address: the first one isn't in its way.
    let _again = ProxyProcess::start(&cluster, &arguments("first"));
    wait_for("the one that took its place", || {
        let page = cluster.run(&["status"]).out;
        assert!(!page.contains("several proxies"), "{page}");
        page.contains("up, 0 sessions").then_some(())
    });
}

/// The master keeps nothing of proxies: the next one hears of them again.
#[test]
fn another_master_lists_the_proxies_that_there_are() {
    let cluster = Cluster::processes();
    let is_listed = || {
        wait_for("the proxy in the status", || {
            listed(&cluster, "proxy-0")
                .1
                .filter(|proxy| proxy["up"] == true)
        })
    };
    is_listed();
    signal(cluster.pid("master-0"), "KILL");
    is_listed();
}
