//! The operator's requests to the API server, by the audit log of the test's Kubernetes, which
//! has every request of the operator's service account and no other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;

use serde_json::Value;

/// Verbs that change something.
const WRITES: [&str; 5] = ["create", "update", "patch", "delete", "deletecollection"];

/// The audit log.
#[derive(Clone, Debug)]
pub struct Audit {
    file: PathBuf,
}

/// A verb of a resource, as a role grants it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ApiOperation {
    /// Of the resource, empty for the first one.
    pub group: String,
    /// The resource, with the subresource behind a slash.
    pub resource: String,
    /// As in a role.
    pub verb: String,
}

impl std::fmt::Display for ApiOperation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            group,
            resource,
            verb,
        } = self;
        write!(f, "{verb} {resource}")?;
        match group.as_str() {
            "" => Ok(()),
            group => write!(f, " of {group}"),
        }
    }
}

/// One request.
#[derive(Clone, Debug)]
pub struct Request {
    /// The operation.
    pub deed: ApiOperation,
    /// The object's namespace and its name, where there are any.
    pub object: String,
    /// Of the answer.
    pub code: u64,
    /// No role allows it.
    pub is_forbidden: bool,
}

impl Request {
    fn of(event: &Value) -> Self {
        let of = &event["objectRef"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut resource = text(&of["resource"]);
        if let Some(part) = of["subresource"].as_str() {
            resource = format!("{resource}/{part}");
        }
        let decision = &event["annotations"]["authorization.k8s.io/decision"];
        Self {
            deed: ApiOperation {
                group: text(&of["apiGroup"]),
                resource,
                verb: text(&event["verb"]),
            },
            object: format!("{}/{}", text(&of["namespace"]), text(&of["name"])),
            code: event["responseStatus"]["code"].as_u64().unwrap_or_default(),
            is_forbidden: decision == "forbid",
        }
    }

    /// Whether it is about the lease, which is renewed all the time.
    pub fn is_about_lease(&self) -> bool {
        self.deed.resource == "leases"
    }

    /// Whether it was to change something, other than the lease.
    pub fn is_write(&self) -> bool {
        WRITES.contains(&&*self.deed.verb) && !self.is_about_lease()
    }

    /// The operations that a role has to grant for it. An apply of a new object creates it, too.
    fn needs(&self) -> impl Iterator<Item = ApiOperation> {
        let is_new = self.deed.verb == "patch" && self.code == 201;
        let create = is_new.then(|| ApiOperation {
            verb: "create".to_owned(),
            ..self.deed.clone()
        });
        create.into_iter().chain([self.deed.clone()])
    }
}

impl std::fmt::Display for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}: {}", self.deed, self.object, self.code)
    }
}

impl Audit {
    /// The log of `cargo xtask kube up`, which lies beside the cluster's configuration.
    pub fn find() -> Self {
        let configuration = std::env::var_os("KUBECONFIG").map(PathBuf::from);
        let configuration = configuration.expect("KUBECONFIG says where the cluster is");
        let file = configuration.with_file_name("audit.log");
        assert!(file.exists(), "{} is not there", file.display());
        Self { file }
    }

    /// How far it has been written.
    pub fn end(&self) -> u64 {
        let file = std::fs::metadata(&self.file);
        file.map(|file| file.len()).expect("the audit log")
    }

    /// The requests since then, in the order of their answers.
    pub fn since(&self, start: u64) -> Vec<Request> {
        let mut file = File::open(&self.file).expect("the audit log");
        file.seek(SeekFrom::Start(start)).expect("the audit log");
        let mut text = String::new();
        file.read_to_string(&mut text).expect("the audit log");
        requests(&text)
    }
}

/// Of whole lines: the last one may be written just now.
fn requests(text: &str) -> Vec<Request> {
    let lines = text
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'));
    let events = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events.map(|event| Request::of(&event)).collect()
}

/// How many requests there were of each kind, to read.
pub fn counts<'a>(requests: impl IntoIterator<Item = &'a Request>) -> String {
    let mut counts = BTreeMap::<String, u64>::new();
    for request in requests {
        *counts.entry(request.deed.to_string()).or_default() += 1;
    }
    let counts: Vec<String> = counts
        .iter()
        .map(|(deed, count)| format!("{count} {deed}"))
        .collect();
    counts.join(", ")
}

/// The operations of requests that were not refused.
pub fn used(requests: &[Request]) -> BTreeSet<ApiOperation> {
    let allowed = requests.iter().filter(|request| !request.is_forbidden);
    allowed.flat_map(Request::needs).collect()
}

/// The operations that the rules of a role grant.
pub fn granted(role: &Value) -> BTreeSet<ApiOperation> {
    let texts = |value: &Value| -> Vec<String> {
        let list = value.as_array().into_iter().flatten();
        list.filter_map(|text| text.as_str().map(str::to_owned))
            .collect()
    };
    let mut deeds = BTreeSet::new();
    for rule in role["rules"].as_array().into_iter().flatten() {
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                for verb in texts(&rule["verbs"]) {
                    let (group, resource) = (group.clone(), resource.clone());
                    deeds.insert(ApiOperation {
                        group,
                        resource,
                        verb,
                    });
                }
            }
        }
    }
    deeds
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(verb: &str, resource: &str, code: u64, decision: &str) -> String {
        let event = json!({
            "verb": verb,
            "objectRef": {"resource": resource, "namespace": "n", "name": "x"},
            "responseStatus": {"code": code},
            "annotations": {"authorization.k8s.io/decision": decision},
        });
        format!("{event}\n")
    }

    #[test]
    fn requests_are_read_and_a_line_that_is_not_whole_is_none() {
        let text = event("get", "pods", 200, "allow") + &event("update", "leases", 200, "allow");
        let half = &text[..text.len() - 5];
        assert_eq!(requests(half).len(), 1);
        let both = requests(&text);
        assert!(!both[0].is_write() && !both[1].is_write() && both[1].is_about_lease());
        assert_eq!(both[0].to_string(), "get pods n/x: 200");
        assert!(requests(&event("patch", "pods", 409, "allow"))[0].is_write());
    }

    #[test]
    fn what_was_used_is_held_against_what_is_granted() {
        let text = event("patch", "services", 201, "allow") + &event("list", "pods", 403, "forbid");
        let role = json!({"rules": [{"apiGroups": [""], "resources": ["services", "pods"],
            "verbs": ["create", "patch", "list"]}]});
        let (used, granted) = (used(&requests(&text)), granted(&role));
        let unused: Vec<String> = granted
            .difference(&used)
            .map(ApiOperation::to_string)
            .collect();
        let expected = ["create pods", "list pods", "patch pods", "list services"];
        let mut unused = unused;
        unused.sort();
        let mut expected = expected.map(str::to_owned);
        expected.sort();
        assert_eq!(unused, expected);
    }
}
