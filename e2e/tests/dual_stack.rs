//! A cluster on a Kubernetes of IPv4 and IPv6, which `cargo xtask test e2e` starts for this program: its services have an address of
//! each family, and it serves at both, also at the addresses that servers have after a restart.

use std::net::{IpAddr, SocketAddr};

use percolator_e2e::{Kube, Namespace, SMALL_PROXY, nodes, say, small, wait};
use serde_json::Value;

/// Of servers and of proxies.
const PORT: u16 = 7400;

/// The addresses in a list of an object: the first one is of IPv4, the second of IPv6.
fn addresses(list: &Value, of: impl Fn(&Value) -> &Value) -> Vec<IpAddr> {
    let found = list.as_array().into_iter().flatten().map(of);
    let texts = found.map(|address| address.as_str().unwrap_or_default());
    let found: Vec<IpAddr> = texts.map(|text| text.parse().expect(text)).collect();
    let families: Vec<bool> = found.iter().map(IpAddr::is_ipv6).collect();
    assert_eq!(families, [false, true], "{list}");
    found
}

/// The addresses of a service of the cluster.
fn listens(space: &Namespace, service: &str) -> Vec<IpAddr> {
    let service = space.get("service", service).expect("a service");
    addresses(&service["spec"]["clusterIPs"], |address| address)
}

#[test]
fn a_cluster_serves_by_both_families() {
    let Some(kube) = Kube::find() else { return };
    kube.install(&[]);
    let space = kube.namespace("dual-stack");
    space.apply(&small("demo", SMALL_PROXY)).expect("a cluster");
    space.wait_until_up_to_date("demo");
    for pod in space.pods("demo").expect("pods") {
        addresses(&pod["status"]["podIPs"], |address| &address["ip"]);
    }

    say("money moves by both, while each server gets other addresses");
    let addresses = listens(&space, "demo").into_iter();
    let places = addresses.map(|address| SocketAddr::new(address, PORT).to_string());
    let banks: Vec<_> = places.zip(["by-ipv4", "by-ipv6"]).collect();
    for (place, pod) in &banks {
        let bank = ["-c", place, "bank", "--table", pod, "--accounts", "20"];
        let bank = [&bank[..], &["--clients", "2", "--duration", "30s"]].concat();
        space.start(&kube, pod, &bank);
    }
    for role in ["master-0", "tso-0", "tablet-0"] {
        space.kill(&format!("demo-{role}"));
        space.wait_until_up_to_date("demo");
    }
    for (place, pod) in &banks {
        space.bank_ends_well(pod);
        let list = format!("{pod}-tables");
        space.start(&kube, &list, &["-c", place, "table", "list"]);
        let (well, said) = space.wait_for_end(&list);
        assert!(well && said.contains(pod), "{said}");
    }

    say("a proxy answers at both");
    for address in listens(&space, "demo-proxy") {
        let host = address.to_string();
        wait("the proxy", || {
            nodes::all().try_for_each(|node| nodes::connects(node, &host, PORT))
        });
    }
}
