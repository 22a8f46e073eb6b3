//! Sessions at the proxies of a cluster, over HTTP with JSON: by the API server, which leads to services and pods.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{Namespace, api, is_ending, kubectl, nodes, wait, written};

const PORT: u16 = 7400;
const TABLE: &str = "proxied";

/// The destination of a session's calls: the address in its token, and the pod that has the address.
#[derive(Debug)]
struct Session {
    token: String,
    address: String,
    pod: String,
}

/// A cluster's proxies.
#[derive(Debug)]
pub struct Proxies<'a> {
    space: &'a Namespace,
    cluster: &'a str,
}

impl<'a> Proxies<'a> {
    /// Those of a cluster that serves; makes the table that sessions write to.
    pub fn of(space: &'a Namespace, cluster: &'a str) -> Self {
        let master = format!("{cluster}-master-0");
        let create = ["table", "create", TABLE];
        space
            .percolator(&master, cluster, &create)
            .expect("a table");
        Self { space, cluster }
    }

    /// A call of a method, at a service or a pod, written as a part of the API server's path.
    fn call(&self, target: &str, method: &str, body: &Value) -> Result<Value, String> {
        let file = written(&body.to_string())?;
        let name = self.space.name();
        let path = format!("/api/v1/namespaces/{name}/{target}/proxy/v1/{method}");
        let body = file.path().display().to_string();
        let answer = kubectl(&["create", "--raw", &path, "-f", &body])?;
        serde_json::from_str(&answer).map_err(|error| format!("{answer}: {error}"))
    }

    /// The pods of the proxies that go on, by their addresses: of one that ends, no answer comes for half a minute, in which
    /// sessions end.
    fn pods(&self) -> Result<Vec<(String, String)>, String> {
        let labels = format!(
            "-lpercolator.dev/cluster={},percolator.dev/component=proxy",
            self.cluster
        );
        let list = self
            .space
            .kubectl(&["get", "pods", &labels, "-o", "json"])?;
        let list: Value = serde_json::from_str(&list).map_err(|error| error.to_string())?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let pods = list["items"].as_array().into_iter().flatten();
        let pods = pods.filter(|pod| !is_ending(pod));
        Ok(pods
            .map(|pod| {
                (
                    text(&pod["status"]["podIP"]),
                    text(&pod["metadata"]["name"]),
                )
            })
            .collect())
    }

    /// The proxies that `percolator status` lists are the pods that go on, each is up, and its metrics are reached.
    pub fn are_listed(&self) {
        let master = format!("{}-master-0", self.cluster);
        wait("the proxies in the status", || {
            let status = ["status", "-o", "json"];
            let status = self.space.percolator(&master, self.cluster, &status)?;
            let status: Value =
                serde_json::from_str(&status).map_err(|error| format!("{status}: {error}"))?;
            let servers = status["servers"].as_array().into_iter().flatten();
            let proxies = servers.filter(|server| server["role"] == "proxy");
            let is_well = |proxy: &Value| proxy["up"] == true && proxy["sessions"].is_u64();
            let well = proxies.filter(|proxy| is_well(proxy));
            let names = well.map(|proxy| proxy["server"].as_str().unwrap_or_default().to_owned());
            let listed: BTreeSet<String> = names.collect();
            let pods: BTreeSet<String> = self.pods()?.into_iter().map(|(_, pod)| pod).collect();
            if listed == pods {
                Ok(())
            } else {
                Err(format!("{pods:?} run: {status}"))
            }
        });
    }

    /// A transaction of two clients, each of which is at a proxy of its own: what both have written is committed at once.
    pub fn share_a_transaction(&self) {
        let manager = self.begin();
        let (address, pod) = wait("another proxy", || {
            let others = self.pods()?.into_iter();
            let mut others = others.filter(|(_, pod)| *pod != manager.pod);
            others
                .next()
                .ok_or_else(|| format!("{} is alone", manager.pod))
        });
        let join = json!({"session": manager.token});
        let joined = self.call(&format!("pods/{pod}:{PORT}"), "join", &join);
        let joined = joined.expect("the other proxy reaches this one");
        let participant = Session {
            token: joined["session"].as_str().expect("a token").to_owned(),
            address,
            pod,
        };
        let cell = |row: &str| json!({"table": TABLE, "row": row, "column": "shared"});
        for (session, row) in [(&manager, "a"), (&participant, "b")] {
            let mut put = cell(row);
            put["value"] = json!(session.pod);
            self.on(session, "put", put).expect("a put");
        }
        self.on(&participant, "finish", json!({}))
            .expect("it hands over what it has written");
        self.on(&manager, "commit", json!({})).expect("a commit");
        let reader = self.begin();
        for (session, row) in [(&manager, "a"), (&participant, "b")] {
            let read = self.on(&reader, "get", cell(row)).expect("a get");
            assert_eq!(read["value"], session.pod, "{row}: {read}");
        }
        self.on(&reader, "rollback", json!({})).expect("a rollback");
    }

    /// A client outside of the Kubernetes cluster, which reaches a port of the nodes and no pod, carries out transactions: each
    /// call on a connection of its own.
    pub fn serve_outside(&self) {
        let service = format!("{}-proxy", self.cluster);
        let port = wait("a port of the nodes", || {
            let service = self.space.get("service", &service)?;
            let port = &service["spec"]["ports"][0]["nodePort"];
            port.as_u64().ok_or_else(|| service["spec"].to_string())
        });
        let address = format!("{}:{port}", nodes::address(1));
        // Of two proxies, each call would find the right one by chance, too.
        for round in 0..8 {
            // The port leads to the proxies a moment later.
            let begun = wait("a session from outside", || {
                api::post(&address, "/v1/begin", &json!({}))
            });
            let session = &begun["session"];
            let row = format!("outside-{round}");
            let put = json!({"session": session, "table": TABLE, "row": row, "column": "c", "value": "v"});
            api::post(&address, "/v1/put", &put).expect("a put");
            api::post(&address, "/v1/commit", &json!({"session": session})).expect("a commit");
        }
    }

    /// A new session, by the service.
    fn begin(&self) -> Session {
        let service = format!("services/{}-proxy:grpc", self.cluster);
        wait("a session", || {
            let begun = self.call(&service, "begin", &json!({}))?;
            let token = begun["session"].as_str().ok_or("no token")?.to_owned();
            let (_, rest) = token.split_once('.').ok_or("no start_ts")?;
            let (address, _) = rest.rsplit_once('.').ok_or("no secret")?;
            let (host, port) = address.rsplit_once(':').ok_or("no port")?;
            assert_eq!(port, PORT.to_string(), "{token}");
            // One of IPv6 has brackets.
            let host = host.trim_matches(['[', ']']);
            let pods = self.pods()?;
            let pod = pods.iter().find(|(ip, _)| ip == host);
            let pod = pod.ok_or_else(|| format!("no pod has {host}: {pods:?}"))?;
            // A client in the cluster reaches it.
            nodes::all().try_for_each(|node| nodes::connects(node, host, PORT))?;
            let (address, pod) = (address.to_owned(), pod.1.clone());
            Ok(Session {
                token,
                address,
                pod,
            })
        })
    }

    fn on(&self, session: &Session, method: &str, mut body: Value) -> Result<Value, String> {
        body["session"] = json!(session.token);
        let pod = format!("pods/{}:{PORT}", session.pod);
        self.call(&pod, method, &body)
    }

    /// A transaction that writes a value and commits, and another one that reads it. Gives the pod of the first.
    pub fn carry_out_transactions(&self, value: &str) -> String {
        let cell = json!({"table": TABLE, "row": "r", "column": "c"});
        let session = self.begin();
        let mut put = cell.clone();
        put["value"] = json!(value);
        self.on(&session, "put", put).expect("a put");
        // A proxy refuses what is another one's, and the session goes on where it is.
        let others = self.pods().expect("pods");
        let other = others.iter().find(|(_, pod)| *pod != session.pod);
        if let Some((_, other)) = other {
            let body = json!({"session": session.token});
            let refused = self.call(&format!("pods/{other}:{PORT}"), "commit", &body);
            assert!(refused.is_err(), "{refused:?} for {}", session.address);
        }
        self.on(&session, "commit", json!({})).expect("a commit");
        let reader = self.begin();
        let read = self.on(&reader, "get", cell).expect("a get");
        assert_eq!(read["value"], value, "{read}");
        self.on(&reader, "rollback", json!({})).expect("a rollback");
        session.pod
    }
}
