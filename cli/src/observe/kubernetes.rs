//! What `kubectl` shows of a cluster, for a bundle: its objects, events, and the ends of its pods' logs. It is run as its
//! user would run it; what it refuses is reported, and the rest is there all the same.

use std::io;
use std::process::Stdio;
use std::str::FromStr;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::process::Command;

/// Longer than any response takes.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Lines of each log.
const LINES: &str = "--tail=5000";
/// Kinds of objects that belong to a cluster, by its label.
const KINDS: [&str; 7] = [
    "statefulsets",
    "deployments",
    "pods",
    "configmaps",
    "persistentvolumeclaims",
    "services",
    "poddisruptionbudgets",
];
const OF_OPERATORS: &str = "app.kubernetes.io/name=percolator-operator";
/// What stands for values that may be secret.
const LEFT_OUT: &str = "[left out]";

/// A cluster on Kubernetes, and how it is reached.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct OnKubernetes {
    /// Ask `kubectl` too, for the PercolatorCluster of this name, in the current context's namespace where none is given:
    /// its objects, events, and the ends of its pods' logs, and of the operator's.
    #[arg(long, value_name = "[NAMESPACE/]NAME")]
    kubernetes: Option<ClusterName>,
    /// As kubectl's.
    #[arg(long, value_name = "NAME", requires = "kubernetes")]
    context: Option<String>,
    /// As kubectl's.
    #[arg(long, value_name = "FILE", requires = "kubernetes")]
    kubeconfig: Option<String>,
    /// Where the operator runs.
    #[arg(
        long,
        value_name = "NAMESPACE",
        default_value = "percolator-system",
        requires = "kubernetes"
    )]
    operator_namespace: String,
}

/// A cluster's name, and its namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ClusterName {
    namespace: Option<String>,
    name: String,
}

impl FromStr for ClusterName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (namespace, name) = match text.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, text),
        };
        let is_letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        // Such a name is no flag either.
        let is_name = |name: &str| {
            name.starts_with(is_letter) && name.chars().all(|c| is_letter(c) || "-.".contains(c))
        };
        if !is_name(name) || !namespace.is_none_or(is_name) {
            return Err(format!(
                "{text:?} is not NAME or NAMESPACE/NAME, such as default/demo"
            ));
        }
        Ok(Self {
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
        })
    }
}

/// What was found out.
#[derive(Debug, Default)]
pub(crate) struct ClusterReport {
    /// By the file's name.
    pub(crate) objects: Vec<(String, Value)>,
    /// Likewise: as they were written.
    pub(crate) logs: Vec<(String, Vec<u8>)>,
    /// What was refused, and why.
    pub(crate) refused: Vec<String>,
}

impl OnKubernetes {
    /// Nothing where no cluster was named.
    ///
    /// # Errors
    /// There is no `kubectl` to run.
    pub(crate) async fn ask(&self) -> io::Result<Option<ClusterReport>> {
        let Some(ClusterName { namespace, name }) = &self.kubernetes else {
            return Ok(None);
        };
        let mut told = ClusterReport::default();
        let namespace = namespace.as_deref();
        let get = ["get", "percolatorclusters.percolator.dev", name];
        if let Some(cluster) = self.object(namespace, &get, &mut told).await? {
            told.objects.push(("percolatorcluster".into(), cluster));
        }
        let label = format!("percolator.dev/cluster={name}");
        for kind in KINDS {
            let get = ["get", kind, "-l", &label];
            let Some(list) = self.object(namespace, &get, &mut told).await? else {
                continue;
            };
            if kind == "pods" {
                self.logs(namespace, &list, &mut told).await?;
            }
            told.objects.push((kind.into(), list));
        }
        let get = ["get", "events", "--sort-by=.lastTimestamp"];
        if let Some(events) = self.object(namespace, &get, &mut told).await? {
            told.objects.push(("events".into(), about(&events, name)));
        }
        let operators = Some(&*self.operator_namespace);
        let get = ["get", "pods", "-l", OF_OPERATORS];
        if let Some(list) = self.object(operators, &get, &mut told).await? {
            self.logs(operators, &list, &mut told).await?;
            told.objects.push(("operator-pods".into(), list));
        }
        Ok(Some(told))
    }

    /// The ends of these pods' logs, and of those of the containers that they had before.
    async fn logs(
        &self,
        namespace: Option<&str>,
        pods: &Value,
        told: &mut ClusterReport,
    ) -> io::Result<()> {
        for pod in pods["items"].as_array().into_iter().flatten() {
            let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let name = word(&pod["metadata"]["name"]);
            let containers = ["initContainers", "containers"].map(|kind| &pod["spec"][kind]);
            let containers = containers.into_iter().filter_map(Value::as_array).flatten();
            for container in containers.map(|container| word(&container["name"])) {
                let logs = ["logs", &name, "-c", &container, LINES];
                if let Some(log) = self.run(namespace, &logs, told).await? {
                    told.logs.push((format!("{name}.{container}.log"), log));
                }
                if has_had_another(pod, &container) {
                    let previous = [&logs[..], &["--previous"]].concat();
                    if let Some(log) = self.run(namespace, &previous, told).await? {
                        told.logs
                            .push((format!("{name}.{container}.previous.log"), log));
                    }
                }
            }
        }
        Ok(())
    }

    /// What a `get` says, without what may be secret.
    async fn object(
        &self,
        namespace: Option<&str>,
        get: &[&str],
        told: &mut ClusterReport,
    ) -> io::Result<Option<Value>> {
        let arguments = [get, &["-o", "json"]].concat();
        let Some(answer) = self.run(namespace, &arguments, told).await? else {
            return Ok(None);
        };
        match serde_json::from_slice(&answer) {
            Ok(mut object) => {
                without_secrets(&mut object);
                Ok(Some(object))
            }
            Err(error) => {
                told.refused.push(format!(
                    "kubectl {}: its answer is no JSON: {error}",
                    arguments.join(" ")
                ));
                Ok(None)
            }
        }
    }

    /// What it writes; nothing where it refuses, which is taken note of.
    async fn run(
        &self,
        namespace: Option<&str>,
        arguments: &[&str],
        told: &mut ClusterReport,
    ) -> io::Result<Option<Vec<u8>>> {
        let mut command = Command::new("kubectl");
        for (flag, value) in [
            ("--kubeconfig", self.kubeconfig.as_deref()),
            ("--context", self.context.as_deref()),
            ("--namespace", namespace),
        ] {
            if let Some(value) = value {
                command.arg(format!("{flag}={value}"));
            }
        }
        command
            .args(arguments)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output = tokio::time::timeout(TIMEOUT, command.output()).await;
        let why = match output {
            Ok(Ok(output)) if output.status.success() => return Ok(Some(output.stdout)),
            Ok(Ok(output)) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            Ok(Err(error)) => return Err(error),
            Err(_) => format!("no answer within {TIMEOUT:?}"),
        };
        let asked = arguments.join(" ");
        told.refused.push(format!("kubectl {asked}: {why}"));
        Ok(None)
    }
}

/// Whether the pod's container was started again.
fn has_had_another(pod: &Value, container: &str) -> bool {
    let statuses = ["initContainerStatuses", "containerStatuses"].map(|kind| &pod["status"][kind]);
    let mut statuses = statuses.into_iter().filter_map(Value::as_array).flatten();
    statuses.any(|status| {
        status["name"] == container && status["restartCount"].as_u64().is_some_and(|n| n > 0)
    })
}

/// The events of a cluster and of what is named after it, by what says something.
fn about(events: &Value, name: &str) -> Value {
    let prefix = format!("{name}-");
    let mut kept = Vec::new();
    for event in events["items"].as_array().into_iter().flatten() {
        let object = &event["involvedObject"];
        let about = object["name"].as_str().unwrap_or_default();
        // Claims are named after their volume: data-demo-tablet-0.
        let is_claim = about
            .split_once('-')
            .is_some_and(|(_, rest)| rest.starts_with(&prefix));
        if about == name || about.starts_with(&prefix) || is_claim {
            kept.push(json!({
                "first": event["firstTimestamp"],
                "last": event["lastTimestamp"],
                "time": event["eventTime"],
                "count": event["count"],
                "type": event["type"],
                "reason": event["reason"],
                "kind": object["kind"],
                "about": about,
                "message": event["message"],
            }));
        }
    }
    kept.into()
}

/// Takes out who changed which field, the manifest that was applied, which is there once more, and the values of
/// environment variables but our own: tokens are given that way.
fn without_secrets(object: &mut Value) {
    match object {
        Value::Array(values) => values.iter_mut().for_each(without_secrets),
        Value::Object(fields) => {
            fields.remove("managedFields");
            fields.remove("kubectl.kubernetes.io/last-applied-configuration");
            if let Some(Value::String(spec)) = fields.get_mut("lastValidSpec") {
                let mut last: Value = serde_json::from_str(spec).unwrap_or_default();
                without_secrets(&mut last);
                *spec = last.to_string();
            }
            if let Some(Value::Array(variables)) = fields.get_mut("env") {
                for variable in variables {
                    let name = variable["name"].as_str().unwrap_or_default();
                    let is_ours = name.starts_with("PERCOLATOR_");
                    if let Some(value) = variable.get_mut("value")
                        && !is_ours
                    {
                        *value = LEFT_OUT.into();
                    }
                }
            }
            fields.values_mut().for_each(without_secrets);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_named_with_its_namespace_or_without() {
        let named = |text: &str| text.parse::<ClusterName>();
        let full = named("shop/demo").expect("a name");
        assert_eq!(full.namespace.as_deref(), Some("shop"));
        assert_eq!(
            (full.name.as_str(), named("demo").expect("a name").namespace),
            ("demo", None)
        );
        for wrong in ["", "/", "a/", "/a", "a/b/c", "--all", "a/-b", "A"] {
            assert!(named(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn values_of_others_variables_are_left_out() {
        let mut pod = json!({"items": [{
            "metadata": {"managedFields": [1], "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "secret", "a": "b"}},
            "spec": {"containers": [{"env": [
                {"name": "PERCOLATOR_LOG_FORMAT", "value": "json"},
                {"name": "TOKEN", "value": "secret"},
                {"name": "POD_NAME", "valueFrom": {}},
            ]}]},
            "status": {"lastValidSpec": r#"{"podDefaults":{"env":[{"name":"KEY","value":"secret"}]},"paused":false}"#},
        }]});
        without_secrets(&mut pod);
        let text = pod.to_string();
        assert!(
            !text.contains("secret") && !text.contains("managedFields"),
            "{text}"
        );
        assert!(
            text.contains(r#"{"name":"PERCOLATOR_LOG_FORMAT","value":"json"}"#),
            "{text}"
        );
        assert!(
            text.contains(r#"{"name":"TOKEN","value":"[left out]"}"#),
            "{text}"
        );
        let last = pod["items"][0]["status"]["lastValidSpec"].as_str();
        let last: Value = serde_json::from_str(last.expect("a spec")).expect("JSON");
        assert_eq!(
            last,
            json!({"podDefaults": {"env": [{"name": "KEY", "value": LEFT_OUT}]}, "paused": false})
        );
    }

    #[test]
    fn events_are_those_of_the_cluster() {
        let of =
            |name: &str| json!({"involvedObject": {"name": name, "kind": "Pod"}, "reason": name});
        let names = [
            "demo",
            "demo-tablet-0",
            "data-demo-tablet-0",
            "demon",
            "another-demo",
            "x",
        ];
        let events = json!({"items": names.map(of)});
        let kept = about(&events, "demo");
        let kept: Vec<_> = kept
            .as_array()
            .expect("a list")
            .iter()
            .map(|it| &it["about"])
            .collect();
        assert_eq!(kept, ["demo", "demo-tablet-0", "data-demo-tablet-0"]);
    }
}
