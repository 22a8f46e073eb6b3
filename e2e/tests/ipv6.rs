//! A cluster on a Kubernetes of IPv6 alone, which `cargo xtask test e2e` starts for this program: servers, their registers, proxies,
//! the operator and Prometheus reach each other, also at the addresses that servers have after a restart.

use std::net::Ipv6Addr;

use percolator_e2e::prometheus::{Prometheus, documented_configuration};
use percolator_e2e::proxies::Proxies;
use percolator_e2e::{Kube, Namespace, OPERATOR, say, server_of, small, wait};
use serde_json::Value;

const SPACE: &str = "ipv6";
/// Two masters, two oracles, a tablet server, two proxies.
const SERVERS: usize = 7;

fn cluster() -> String {
    let proxy = "  proxy:
    replicas: 2
    pod: {resources: {requests: {cpu: 10m}}}";
    let small = small("demo", proxy);
    let storage = "    storage: {size: 16Mi}";
    assert_eq!(small.matches(storage).count(), 2, "{small}");
    small.replace(storage, &format!("    replicas: 2\n{storage}"))
}

/// The one address of a pod or of a service is of IPv6.
fn is_of_ipv6(address: &Value, others: &Value) {
    let text = address.as_str().unwrap_or_default();
    assert!(text.parse::<Ipv6Addr>().is_ok(), "{address}");
    assert_eq!(others.as_array().map(Vec::len), Some(1), "{others}");
}

/// Every server is up where the status says that it is.
fn all_are_up(space: &Namespace) {
    wait("all servers in the status", || {
        let said = space.percolator("demo-master-0", "demo", &["status", "-o", "json"])?;
        let status: Value = serde_json::from_str(&said).map_err(|error| error.to_string())?;
        let servers = status["servers"].as_array().cloned().unwrap_or_default();
        let is_well = |server: &&Value| {
            let address = server["address"].as_str().unwrap_or_default();
            server["up"] == true && address.starts_with('[')
        };
        // The leading master has a line of its own.
        match servers.iter().filter(is_well).count() {
            up if up + 1 >= SERVERS => Ok(()),
            _ => Err(said),
        }
    });
}

#[test]
fn a_cluster_serves_where_there_is_no_ipv4() {
    let Some(kube) = Kube::find() else { return };
    kube.install(&[]);
    let space = kube.namespace(SPACE);
    space.apply(&cluster()).expect("a cluster");
    space.wait_until_up_to_date("demo");
    let pods = space.pods("demo").expect("pods");
    assert_eq!(pods.len(), SERVERS, "{pods:?}");
    for pod in &pods {
        is_of_ipv6(&pod["status"]["podIP"], &pod["status"]["podIPs"]);
    }
    for service in ["demo", "demo-proxy"] {
        let service = space.get("service", service).expect("a service");
        is_of_ipv6(
            &service["spec"]["clusterIP"],
            &service["spec"]["clusterIPs"],
        );
    }
    all_are_up(&space);

    say("money moves while each server gets another address");
    let bank = ["-c", &server_of("demo"), "bank", "--accounts", "20"];
    let bank = [&bank[..], &["--clients", "2", "--duration", "40s"]].concat();
    space.start(&kube, "bank", &bank);
    for role in ["master-0", "master-1", "tso-0", "tso-1", "tablet-0"] {
        space.kill(&format!("demo-{role}"));
        space.wait_until_up_to_date("demo");
    }
    space.bank_ends_well("bank");
    space.all_money_is_there("demo", 20);
    all_are_up(&space);

    say("clients share a transaction at two proxies");
    let proxies = Proxies::of(&space, "demo");
    proxies.are_listed();
    proxies.share_a_transaction();
    proxies.carry_out_transactions("by IPv6");

    say("Prometheus scrapes them all, and the operator");
    let configuration = documented_configuration(&kube);
    let Some(prometheus) = Prometheus::start(&configuration, &[], &[SPACE, OPERATOR]) else {
        return;
    };
    wait("all targets", || {
        let targets = prometheus.targets()?;
        let wrong = targets.iter().filter(|(_, wrong)| !wrong.is_empty());
        let wrong: Vec<_> = wrong.collect();
        if wrong.is_empty() && targets.len() > SERVERS {
            Ok(())
        } else {
            Err(format!("{} targets, {wrong:?}", targets.len()))
        }
    });
}
