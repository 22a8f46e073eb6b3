//! Tablet servers are added and taken away under a bank: cancelled halfway, with an operator that is killed and a node that is
//! cut off, and to the end. And everything restarts, one after the other, without a transfer that fails.

use percolator_e2e::application::Application;
use percolator_e2e::leaders::evict;
use percolator_e2e::{Kube, Namespace, OPERATOR, kill_operators, kubectl, nodes, say, small, wait};
use serde_json::{Value, json};

/// Cuts the table into so many tablets that each server has some.
const ROWS: [&str; 11] = ["b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
const FEW: u32 = 3;
const MANY: u32 = 6;
/// Of the first one that goes.
const ITS_CLAIM: &str = "data-demo-tablet-3";
const ACCOUNTS: u32 = 100;
const CLIENTS: u32 = 4;

/// Runs the command in the bank's pod.
fn percolator(space: &Namespace, arguments: &[&str]) -> Result<String, String> {
    space.percolator("bank", "demo", arguments)
}

/// The tablet servers, as the master knows them.
fn servers(space: &Namespace) -> Result<Vec<Value>, String> {
    let list = percolator(space, &["server", "list", "-o", "json"])?;
    let servers = list.lines().map(serde_json::from_str::<Value>);
    servers
        .collect::<Result<_, _>>()
        .map_err(|error| format!("{error}: {list}"))
}

fn name_of(number: u32) -> String {
    format!("demo-tablet-{number}")
}

/// Waits until this is true of each of these servers.
fn wait_for_each(space: &Namespace, what: &str, numbers: &[u32], is_it: impl Fn(&Value) -> bool) {
    wait(what, || {
        let servers = servers(space)?;
        let good = |number: &u32| {
            let mut named = servers.iter();
            let server = named.find(|server| server["server"] == name_of(*number));
            server.is_some_and(&is_it)
        };
        if numbers.iter().all(good) {
            Ok(())
        } else {
            Err(json!(servers).to_string())
        }
    });
}

fn is_drained(server: &Value) -> bool {
    server["draining"] == true && server["drained"] == true
}

fn has_tablets(server: &Value) -> bool {
    server["draining"] == false && server["tablets"].as_u64() > Some(0)
}

fn scale(space: &Namespace, replicas: u32) {
    let replicas = format!("--replicas={replicas}");
    let scale = ["scale", "perc", "demo", &replicas];
    space.kubectl(&scale).expect("scale");
}

/// Waits until the status has these servers as drained by the operator.
fn wait_for_record(space: &Namespace, expected: &Value) {
    wait("the record of drains", || {
        let status = space.get("perc", "demo")?["status"]["tablets"].clone();
        if status["draining"] == *expected {
            Ok(())
        } else {
            Err(status.to_string())
        }
    });
}

/// The node of a server, by its number.
fn node_of(space: &Namespace, server: u32) -> u32 {
    let name = name_of(server);
    let pod = wait(&name, || space.get("pod", &name));
    let node = pod["spec"]["nodeName"].as_str();
    let node = node.and_then(|node| node.strip_prefix("node-"));
    node.and_then(|node| node.parse().ok())
        .unwrap_or_else(|| panic!("{name} is on no node: {pod}"))
}

/// How many pods of tablet servers there are.
fn servers_there(space: &Namespace) -> usize {
    let incarnations = space.incarnations("demo");
    let tablets = incarnations
        .iter()
        .filter(|incarnation| incarnation.starts_with("demo-tablet-"));
    tablets.count()
}

/// Half of the servers are to go, and that is taken back while their tablets move: as soon as the operator has recorded it, because
/// three servers of some small tablets are empty, and gone, within some seconds.
fn take_back(space: &Namespace) {
    let all: Vec<u32> = (0..MANY).collect();
    let going: Vec<u32> = (FEW..MANY).collect();
    let incarnations = space.incarnations("demo");
    scale(space, FEW);
    wait_for_record(space, &json!(going));
    scale(space, MANY);
    wait_for_record(space, &Value::Null);
    space.wait_until_up_to_date("demo");
    wait_for_each(space, "tablets on each server", &all, has_tablets);
    assert_eq!(
        space.incarnations("demo"),
        incarnations,
        "nobody was taken away"
    );
}

/// The nodes of the operators' pods, as far as they have one.
fn nodes_of_operators() -> Result<Vec<String>, String> {
    let names = "jsonpath={.items[*].spec.nodeName}";
    let nodes = kubectl(&["-n", OPERATOR, "get", "pods", "-o", names])?;
    Ok(nodes.split_whitespace().map(str::to_owned).collect())
}

/// Half of the servers go, while a node with one of them is cut off for some time, and the operator is killed.
fn take_away(space: &Namespace) {
    let going: Vec<u32> = (FEW..MANY).collect();
    let node_of_each: Vec<(u32, u32)> = (0..MANY).map(|it| (it, node_of(space, it))).collect();
    let nodes: Vec<u32> = going
        .iter()
        .map(|it| node_of_each[*it as usize].1)
        .collect();
    // The bank is on the first one.
    let node = nodes.iter().copied().find(|node| *node > 1);
    let node = node.expect("servers are spread over nodes");
    // The operator has to be in reach, and the next one too, before Kubernetes notices that the node isn't.
    let name = format!("node-{node}");
    kubectl(&["cordon", &name]).expect("a node that gets no pods");
    if nodes_of_operators().is_ok_and(|nodes| nodes.contains(&name)) {
        kill_operators();
        wait("an operator in reach", || {
            let nodes = nodes_of_operators()?;
            let is_in_reach = !nodes.is_empty() && !nodes.contains(&name);
            is_in_reach.then_some(()).ok_or(format!("{nodes:?}"))
        });
    }
    let (cut, others): (Vec<_>, Vec<_>) = going.iter().zip(nodes).partition(|it| it.1 == node);
    let numbers = |of: Vec<(&u32, u32)>| of.into_iter().map(|it| *it.0).collect::<Vec<_>>();
    let (cut, others) = (numbers(cut), numbers(others));
    let off = nodes::cut_off(node);
    scale(space, FEW);
    wait_for_record(space, &json!(going));
    kill_operators();
    // One that was getting a tablet from a server that is cut off has to ask it whether the rows have left.
    let of_cut = |server: &Value| {
        let (waits_for, nodes) = (server["waits_for"].to_string(), &node_of_each);
        let mut cut = nodes.iter().filter(|it| it.1 == node);
        cut.any(|it| waits_for.contains(&name_of(it.0)))
    };
    let is_done = |server: &Value| is_drained(server) || of_cut(server);
    wait_for_each(space, "drains of those in reach", &others, is_done);
    let is_not_drained = |server: &Value| server["drained"] == false;
    wait_for_each(space, "those out of reach", &cut, is_not_drained);
    assert_eq!(
        servers_there(space),
        MANY as usize,
        "none of them goes before all are drained"
    );
    drop(off);
    kubectl(&["uncordon", &name]).expect("a node that gets pods");
    space.wait_until_up_to_date("demo");
    wait_for_each(space, "drains", &going, is_drained);
    assert_eq!(servers_there(space), FEW as usize);
    space.get("pvc", ITS_CLAIM).expect("its claim is retained");
}

/// Evicts a server, as from a node that is drained: it has no tablets any more when it ends.
fn ends_without_tablets(space: &Namespace, number: u32) {
    wait("an eviction", || evict(space, &name_of(number)));
    // With its tablets it would be down for longer than the time between two reconciles: it has to start again first.
    let is_emptied = |server: &Value| {
        let ends = server["stopping"] == true || server["alive"] == false;
        ends && server["tablets"] == 0
    };
    wait_for_each(space, "its end without tablets", &[number], is_emptied);
}

#[test]
fn tablet_servers_come_and_go_and_restart_unnoticed() {
    let Some(kube) = Kube::find() else { return };
    kube.install(&[]);
    let space = kube.namespace("scaling");
    let manifest = small("demo", "")
        .replace("replicas: 1", &format!("replicas: {FEW}"))
        .replace(
            "storage: {size: 16Mi}",
            "replicas: 2\n    storage: {size: 16Mi}",
        );
    space.apply(&manifest).expect("a cluster");
    space.wait_until_up_to_date("demo");
    let application = Application::start(&kube, &space, "demo", ACCOUNTS, CLIENTS);
    let create = ["table", "create", "many"];
    let cuts = ROWS.map(|row| ["--split-at", row]).concat();
    percolator(&space, &[&create[..], &cuts].concat()).expect("a table");

    say("twice as many servers: the new ones get tablets");
    scale(&space, MANY);
    space.wait_until_up_to_date("demo");
    let all: Vec<u32> = (0..MANY).collect();
    wait_for_each(&space, "tablets on each server", &all, has_tablets);
    application.goes_on();

    say("half of them are to go, and that is taken back halfway");
    take_back(&space);
    application.goes_on();
    application.nothing_has_failed();

    say("half of them go, a node with one of these is cut off, and the operator is killed");
    take_away(&space);
    application.goes_on();

    say("one comes back, and may have tablets again");
    scale(&space, FEW + 1);
    space.wait_until_up_to_date("demo");
    wait_for_each(&space, "its tablets", &[FEW], has_tablets);
    wait_for_record(&space, &json!([4, 5]));
    application.goes_on();

    say("and goes with its claim");
    let spec = r#"{"claims":{"whenScaled":"Delete"},"tablets":{"replicas":3}}"#;
    space.change("demo", spec).expect("one server less");
    wait("the end of its claim", || {
        let name = ["get", "pvc", ITS_CLAIM, "--ignore-not-found", "-o", "name"];
        match space.kubectl(&name)?.as_str() {
            "" => Ok(()),
            claim => Err(claim.to_owned()),
        }
    });
    space.wait_until_up_to_date("demo");
    application.ends_well();
    space.kubectl(&["delete", "pod", "bank"]).expect("it ended");

    say("a pod that is evicted hands its tablets over before it ends");
    let bank = Application::bank(&kube, &space, "demo", ACCOUNTS, CLIENTS, &[]);
    wait_for_each(&space, "tablets that it can hand over", &[1], has_tablets);
    ends_without_tablets(&space, 1);
    space.wait_until_up_to_date("demo");

    say("everything restarts with another image, and no transfer fails");
    let other = kube.other_image.as_str();
    let spec = format!(r#"{{"image":"{other}"}}"#);
    space.change("demo", &spec).expect("an image");
    space.wait_until_up_to_date("demo");
    bank.goes_on();
    bank.nothing_has_failed();
    bank.ends_well();
}
