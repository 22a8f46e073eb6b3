//! Golden files: what is made of two manifests, to the letter. A change of a pod's template restarts the pods of
//! every cluster when the operator is upgraded, and shows here.

use std::path::Path;

use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, Service, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1 as rbac;
use percolator_api::{ClusterObject, PercolatorCluster};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;
use crate::cluster::object::fingerprint;
use crate::cluster::revisions::{FIRST, NEWEST};
use crate::cluster::tests::read;

pub(crate) fn cluster(manifest: &str) -> ClusterObject {
    let manifest = PercolatorCluster::from_yaml(manifest).expect("a good manifest");
    let mut cluster = ClusterObject::new(&manifest.metadata.name, manifest.spec);
    cluster.metadata.namespace = Some("default".into());
    cluster.metadata.uid = Some("00000000-0000-0000-0000-000000000001".into());
    cluster.metadata.generation = Some(1);
    cluster
}

pub(crate) const EXAMPLE: &str = include_str!("../../../../examples/cluster.yaml");

const EVERYTHING: &str = "
apiVersion: percolator.dev/v1alpha1
kind: PercolatorCluster
metadata: {name: all}
spec:
  image: registry.example.com/percolator:1.2.3
  imagePullPolicy: IfNotPresent
  imagePullSecrets: [{name: credentials}]
  claims: {whenDeleted: Delete}
  log: {level: debug, format: json}
  service: {labels: {team: a}, annotations: {note: b}, type: LoadBalancer, loadBalancerClass: example.com/internal}
  monitoring:
    podMonitor: {enabled: true, interval: 15s, labels: {release: prometheus}}
    prometheusRule: {enabled: true, labels: {release: prometheus}}
  oracle:
    replicas: 3
    service: {labels: {tier: time}, annotations: {note: c}}
    window: 500ms
    storage: {size: 100Mi, storageClassName: fast}
    advertise: '{pod}.db.example.com:7400'
  master:
    pod: {serviceAccountName: own, priorityClassName: high}
  observers:
  - {name: words, table: documents, column: text, exec: 'count $1', image: 'counter:1', envFrom: [{secretRef: {name: a}}]}
  - name: hook
    table: documents
    column: text
    replicas: 2
    webhook: {url: 'https://example.com/changed', keySecret: {name: hook, key: key}}
  proxy:
    replicas: 2
    idleMax: 10s
    sessionMax: 1m
    grace: 20s
    service: {labels: {tier: edge}, annotations: {note: d}, type: NodePort}
    pod: {resources: {limits: {memory: 2Gi}}, env: [{name: RUST_BACKTRACE, value: '1'}]}
  tablets:
    replicas: 5
    storage:
      engine: sled
      cacheSize: 1Gi
      size: 100Gi
      storageClassName: fast
      claim:
        accessMode: ReadWriteOncePod
        volumeAttributesClassName: gold
        labels: {backup: daily}
        annotations: {example.com/snapshot: 'true'}
    pod:
      specPatch:
        runtimeClassName: gvisor
        dnsConfig: {options: [{name: ndots, value: '1'}]}
        volumes: [{name: certs, secret: {secretName: certs}}]
        containers:
        - {name: proxy, image: 'proxy:1'}
        - name: tablet
          envFrom: [{secretRef: {name: collector}}]
          volumeMounts: [{name: certs, mountPath: /certs, readOnly: true}]
      resources: {requests: {cpu: 1, memory: 2Gi}, limits: {cpu: 2}}
      nodeSelector: {disk: nvme}
      affinity:
        podAntiAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
          - weight: 1
            podAffinityTerm:
              topologyKey: kubernetes.io/hostname
              labelSelector: {matchExpressions: [{key: app, operator: In, values: [web]}]}
      tolerations: [{key: dedicated, operator: Exists, tolerationSeconds: 60}]
      topologySpreadConstraints: [{maxSkew: 2, topologyKey: rack, whenUnsatisfiable: DoNotSchedule}]
      labels: {tier: data}
      annotations: {scrape: 'true'}
      env: [{name: RUST_BACKTRACE, value: '1'}]
      securityContext: {runAsUser: 1000, fsGroup: 1000, runAsNonRoot: true}
      containerSecurityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL], add: [SYS_NICE]}
        seccompProfile: {type: Localhost, localhostProfile: servers.json}
";

fn settings() -> Settings {
    Settings {
        image: "percolator:test".into(),
        unschedulable_timeout_seconds: 300,
        rolls_max: 10,
    }
}

pub(crate) fn wanted(cluster: &ClusterObject, observed: &Observed) -> Wanted {
    build(cluster, observed, &settings())
}

/// What is there once all of that was applied.
fn made(wanted: &Wanted) -> Observed {
    let mut observed = Observed::default();
    for object in wanted.all() {
        observed
            .objects
            .insert((object.kind, object.name.clone()), object.value.clone());
    }
    observed
}

fn text(wanted: &Wanted) -> String {
    wanted
        .all()
        .map(|object| {
            let mut value = object.value.clone();
            // It follows from everything else.
            let annotations = value["metadata"]["annotations"].as_object_mut();
            annotations
                .expect("objects say what was asked")
                .remove("percolator.dev/asked");
            serde_json::to_string_pretty(&value).expect("JSON") + "\n"
        })
        .collect()
}

fn golden(name: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("testdata")
        .join(name);
    if std::env::var_os("REWRITE").is_some_and(|value| value == "1") {
        std::fs::write(&file, text).expect(name);
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        found == text,
        "testdata/{name} differs from what is built: `cargo xtask generate` writes it anew. A change below \
         `template` restarts the pods of every cluster when the operator is upgraded"
    );
}

#[test]
fn what_is_built_is_what_the_golden_files_say() {
    for (name, manifest) in [("example.json", EXAMPLE), ("everything.json", EVERYTHING)] {
        golden(
            name,
            &text(&wanted(&cluster(manifest), &Observed::default())),
        );
    }
}

/// Objects are JSON, so no compiler sees that they have fields of Kubernetes alone, of the right types.
#[test]
fn what_is_built_is_all_of_kubernetes_types() {
    fn typed<T: Serialize + DeserializeOwned>(value: &Value) -> Value {
        let read: T = serde_json::from_value(value.clone()).expect("an object of this kind");
        json!(read)
    }
    for manifest in [EXAMPLE, EVERYTHING] {
        let wanted = wanted(&cluster(manifest), &Observed::default());
        for object in wanted.all() {
            let value = &object.value;
            let read = match object.kind {
                Kind::ServiceAccount => typed::<ServiceAccount>(value),
                Kind::ConfigMap => typed::<ConfigMap>(value),
                Kind::Service => typed::<Service>(value),
                Kind::PodDisruptionBudget => typed::<PodDisruptionBudget>(value),
                Kind::Role => typed::<rbac::Role>(value),
                Kind::RoleBinding => typed::<rbac::RoleBinding>(value),
                Kind::StatefulSet => typed::<StatefulSet>(value),
                Kind::Deployment => typed::<Deployment>(value),
                Kind::PodMonitor | Kind::PrometheusRule => continue,
            };
            // A field that Kubernetes doesn't know is left out when it is read.
            assert_eq!(read, *value, "{}", object.name);
        }
    }
}

/// A new operator restarts nobody: a cluster's pods are made by the templates of its revision, to the letter, as by the operator before.
#[test]
fn the_templates_of_a_revision_stay_what_they_were() {
    let mut made = String::new();
    for revision in FIRST..=NEWEST {
        for (name, manifest) in [("example", EXAMPLE), ("everything", EVERYTHING)] {
            let mut cluster = cluster(manifest);
            cluster.spec.template_revision = Some(revision);
            let wanted = wanted(&cluster, &Observed::default());
            let sets = wanted.sets.iter().map(|(_, set)| set);
            for set in sets.chain(&wanted.deployments) {
                let template = fingerprint(&set.value["spec"]["template"]);
                made += &format!("{revision} {name} {} {template}\n", set.name);
            }
        }
    }
    let kept = include_str!("../../../testdata/templates.txt");
    assert!(
        made == kept,
        "testdata/templates.txt has the fingerprints of the pods' templates, by revision, manifest and set. One that changes \
         restarts the pods of every cluster of its revision when the operator is upgraded: make the change part of a new \
         revision (src/cluster/revisions.rs). Lines of a new one are added by hand; these are all of now:\n{made}"
    );
}

#[test]
fn everything_is_owned_labelled_and_restricted() {
    for manifest in [EXAMPLE, EVERYTHING] {
        let cluster = cluster(manifest);
        let wanted = wanted(&cluster, &Observed::default());
        for object in wanted.all() {
            let metadata = &object.value["metadata"];
            assert_eq!(
                metadata["ownerReferences"][0]["uid"],
                json!(cluster.metadata.uid)
            );
            assert_eq!(
                metadata["labels"]["app.kubernetes.io/managed-by"], "percolator-operator",
                "{}",
                object.name
            );
        }
        for (role, set) in &wanted.sets {
            let pod = &set.value["spec"]["template"]["spec"];
            let has_register = *role == Role::Oracle && cluster.spec.oracle.replicas > 1;
            assert_eq!(pod["automountServiceAccountToken"], has_register);
            assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
            let container = &pod["containers"][0]["securityContext"];
            assert_eq!(container["readOnlyRootFilesystem"], true);
            assert_eq!(container["capabilities"]["drop"], json!(["ALL"]));
        }
        for deployment in &wanted.deployments {
            let pod = &deployment.value["spec"]["template"]["spec"];
            assert_eq!(pod["automountServiceAccountToken"], false);
            assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
            let container = &pod["containers"][0]["securityContext"];
            assert_eq!(container["readOnlyRootFilesystem"], true);
            assert_eq!(container["capabilities"]["drop"], json!(["ALL"]));
        }
    }
}

/// An application whose Helm release has the cluster's name sets the same generic labels.
#[test]
fn only_the_operators_own_labels_select() {
    for manifest in [EXAMPLE, EVERYTHING] {
        let cluster = cluster(manifest);
        let name = cluster.metadata.name.clone().expect("a name");
        let wanted = wanted(&cluster, &Observed::default());
        let mut selectors = 0;
        for object in wanted.all() {
            let spec = &object.value["spec"];
            let selector = match object.kind {
                Kind::Service => &spec["selector"],
                Kind::StatefulSet
                | Kind::Deployment
                | Kind::PodDisruptionBudget
                | Kind::PodMonitor => &spec["selector"]["matchLabels"],
                _ => continue,
            };
            selectors += 1;
            let labels = selector.as_object().expect("labels");
            assert_eq!(labels["percolator.dev/cluster"], json!(name));
            let is_own = |label: &String| label.starts_with("percolator.dev/");
            assert!(labels.keys().all(is_own), "{}: {selector}", object.name);
        }
        assert!(selectors >= 10, "{selectors}");
        for (_, set) in &wanted.sets {
            let spec = &set.value["spec"];
            for (label, value) in spec["selector"]["matchLabels"].as_object().expect("labels") {
                assert_eq!(spec["template"]["metadata"]["labels"][label], *value);
                assert_eq!(
                    spec["volumeClaimTemplates"][0]["metadata"]["labels"][label],
                    *value
                );
            }
        }
    }
}

#[test]
fn a_set_keeps_the_claims_that_it_was_made_with() {
    let mut cluster = cluster(EXAMPLE);
    let first = wanted(&cluster, &Observed::default());
    let mut observed = made(&first);
    observed.claims = vec![read(json!({
        "metadata": {"name": "data-demo-tablet-1"}, "status": {"phase": "Bound"},
    }))];
    cluster.spec.tablets.storage.size = percolator_api::Quantity::from_bytes(20 << 30);
    let then = wanted(&cluster, &observed);
    let size = |wanted: &Wanted| -> Value {
        wanted.sets[2].1.value["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"]
            .clone()
    };
    assert_eq!(size(&first), "10Gi");
    assert_eq!(size(&then), "10Gi");
}

#[test]
fn only_the_first_master_of_a_name_begins_a_new_cluster() {
    let cluster = cluster(EXAMPLE);
    let is_new = |claims: &[&str]| -> Value {
        let observed = Observed {
            claims: claims
                .iter()
                .map(|name| read(json!({"metadata": {"name": name}})))
                .collect(),
            ..Observed::default()
        };
        let wanted = wanted(&cluster, &observed);
        let config = wanted.all().find(|object| object.kind == Kind::ConfigMap);
        config.expect("there is a config").value["data"]["new-cluster"].clone()
    };
    assert_eq!(is_new(&[]), "true");
    assert_eq!(is_new(&["data-demo-master-0"]), "true");
    assert_eq!(is_new(&["data-demo-master-0", "data-demo-tso-0"]), "false");
    assert_eq!(is_new(&["data-demo-tablet-12"]), "false");
    // Of another cluster, whose name begins with this one's.
    assert_eq!(is_new(&["data-demo-tablet-a-tablet-0"]), "true");
}

/// Each field of a spec, another value of it, and whose pods restart: `docs/kubernetes.md` says the same.
#[test]
#[expect(clippy::too_many_lines, reason = "one story in its order")]
fn what_restarts_is_what_the_table_says() {
    const NOBODY: &[Role] = &[];
    let changes = json!({
        "image": "other",
        "imagePullPolicy": "Always",
        "imagePullSecrets": [{"name": "a"}],
        "templateRevision": 1,
        "paused": true,
        "proxy": {
            "replicas": 2,
            "idleMax": "1m",
            "sessionMax": "10m",
            "grace": "1m",
            "service": {"labels": {"a": "b"}},
            "pod": {"priorityClassName": "a"},
        },
        "observers": [{"name": "a", "table": "t", "column": "c", "exec": "x", "image": "y"}],
        "claims": {"whenDeleted": "Delete"},
        "log": {"level": "debug", "format": "text"},
        "service": {"labels": {"a": "b"}, "annotations": {"a": "b"}},
        "podDefaults": {"priorityClassName": "b"},
        "monitoring": {"podMonitor": {"enabled": true}, "prometheusRule": {"enabled": true}},
        "gc": {"retention": "7m", "maxHold": "1h", "paused": true},
        "balance": {"enabled": false, "splitSize": "64Mi", "splitLoad": 5000},
        "oracle": {
            "replicas": 2,
            "window": "1s",
            "advertise": "{pod}.example.com:7400",
            "storage": {"size": "2Gi"},
            "service": {"labels": {"a": "b"}},
            "pod": {"priorityClassName": "a"},
        },
        "master": {
            "storage": {"size": "2Gi"},
            "service": {"annotations": {"a": "b"}},
            "pod": {"specPatch": {"runtimeClassName": "a"}},
        },
        "tablets": {
            "replicas": 9,
            "drainOnStop": "1m",
            "storage": {"size": "20Gi", "cacheSize": "1Gi", "claim": {"labels": {"a": "b"}}},
            "service": {"labels": {"a": "b"}, "annotations": {"a": "b"}},
            "pod": {"env": [{"name": "A", "value": "b"}]},
        },
    });
    let definition = percolator_api::definition();
    let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    let fields = |object: Option<&Value>| {
        let fields = object.and_then(Value::as_object).expect("fields");
        fields.keys().cloned().collect::<Vec<_>>()
    };
    assert_eq!(fields(Some(&changes)), fields(definition.pointer(spec)));
    let whose = [
        ("image", &Role::ALL[..]),
        ("imagePullPolicy", &Role::ALL),
        ("imagePullSecrets", &Role::ALL),
        ("templateRevision", &[Role::Tablet]),
        ("log.format", &Role::ALL),
        ("podDefaults", &Role::ALL),
        ("oracle.replicas", &[Role::Oracle]),
        ("oracle.window", &[Role::Oracle]),
        ("oracle.advertise", &[Role::Oracle]),
        ("oracle.pod", &[Role::Oracle]),
        ("master.pod", &[Role::Master]),
        ("tablets.pod", &[Role::Tablet]),
        ("tablets.drainOnStop", &[Role::Tablet]),
        ("tablets.storage.cacheSize", &[Role::Tablet]),
    ];
    let before = cluster(EXAMPLE);
    let first = wanted(&before, &Observed::default());
    let observed = made(&first);
    let template = |set: &Object| set.value["spec"]["template"].clone();
    let mut paths = Vec::new();
    leaves("", &changes, &mut paths);
    let table = include_str!("../../../../docs/kubernetes.md");
    let rows: Vec<&str> = table
        .lines()
        .filter(|line| line.starts_with("| "))
        .collect();
    for (path, value) in paths {
        let mut spec = json!(before.spec);
        let pointer = format!("/{}", path.replace('.', "/"));
        set_at(&mut spec, &pointer, value);
        let mut after = before.clone();
        after.spec = serde_json::from_value(spec).expect(&path);
        let restarted: Vec<Role> = first
            .sets
            .iter()
            .zip(wanted(&after, &observed).sets)
            .filter(|((_, before), (_, after))| template(before) != template(after))
            .map(|((role, _), _)| *role)
            .collect();
        let documented = whose.iter().find(|(field, _)| *field == path);
        assert_eq!(
            restarted,
            documented.map_or(NOBODY, |(_, roles)| *roles),
            "{path}"
        );
        let is_in = |row: &&&str| {
            let names = row
                .split('|')
                .nth(1)
                .unwrap_or_default()
                .split('`')
                .skip(1)
                .step_by(2);
            names.into_iter().any(|name| {
                let name = name.split(':').next().unwrap_or_default();
                path == name
                    || path.starts_with(&format!("{name}."))
                    || path.ends_with(&format!(".{name}"))
            })
        };
        let row = rows
            .iter()
            .find(is_in)
            .unwrap_or_else(|| panic!("the table doesn't say what {path} does"));
        assert_eq!(
            row.contains("restart: "),
            !restarted.is_empty(),
            "{path}: {row}"
        );
    }
}

#[test]
fn pod_defaults_hold_where_a_role_says_nothing() {
    let mut spec = json!(cluster(EXAMPLE).spec);
    let defaults = json!({
        "nodeSelector": {"disk": "ssd", "zone": "a"},
        "tolerations": [{"key": "db", "operator": "Exists"}],
        "labels": {"team": "data"},
        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}],
        "resources": {"requests": {"cpu": "20m"}},
        "serviceAccountName": "theirs",
        "specPatch": {
            "containers": [{"name": "logs", "image": "logs:1"}],
            "initContainers": [{"name": "first", "image": "first:1"}],
            "volumes": [{"name": "more", "emptyDir": {}}],
        },
    });
    spec["podDefaults"] = defaults;
    spec["proxy"] = json!({"replicas": 1});
    spec["observers"] = json!([{"name": "a", "table": "t", "column": "c", "exec": "x", "image": "y",
        "env": [{"name": "A", "value": "3"}]}]);
    spec["tablets"]["pod"] = json!({
        "nodeSelector": {"zone": "b"},
        "tolerations": [{"key": "tablets", "operator": "Exists"}],
        "env": [{"name": "B", "value": "2"}],
        "resources": {"requests": {"memory": "2Gi"}},
        "specPatch": {"runtimeClassName": "gvisor"},
    });
    let mut cluster = cluster(EXAMPLE);
    cluster.spec = serde_json::from_value(spec).expect("a spec");
    assert_eq!(cluster.spec.validate(), []);
    let wanted = wanted(&cluster, &Observed::default());
    let accounts = |object: &&Object| object.kind == Kind::ServiceAccount;
    assert_eq!(wanted.common.iter().find(accounts), None);
    let sets = wanted.sets.iter().map(|(_, set)| set);
    for object in sets.chain(&wanted.deployments) {
        let template = &object.value["spec"]["template"];
        let pod = &template["spec"];
        let own = &pod["containers"][0];
        let variable = |name: &str| {
            let mut variables = own["env"].as_array().expect("variables").iter();
            variables
                .find(|it| it["name"] == name)
                .map(|it| &it["value"])
        };
        let is_tablets = object.name == "demo-tablet";
        let expected = if is_tablets {
            ("b", "tablets", "2")
        } else {
            ("a", "db", "1")
        };
        assert_eq!(template["metadata"]["labels"]["team"], "data");
        assert_eq!(pod["nodeSelector"]["disk"], "ssd");
        assert_eq!(pod["nodeSelector"]["zone"], expected.0);
        assert_eq!(pod["tolerations"][0]["key"], expected.1);
        assert_eq!(pod["tolerations"].as_array().map(Vec::len), Some(1));
        assert_eq!(variable("B"), Some(&json!(expected.2)), "{own}");
        let of_observer = object.name.contains("observer");
        let first = if of_observer { "3" } else { "1" };
        assert_eq!(variable("A"), Some(&json!(first)), "{own}");
        assert_eq!(own["resources"]["requests"]["cpu"], "20m");
        assert_eq!(pod["serviceAccountName"], "theirs");
        let has = |list: &str, name: &str| {
            let mut elements = pod[list].as_array().into_iter().flatten();
            elements.any(|it| it["name"] == name)
        };
        for (list, name) in [("initContainers", "first"), ("volumes", "more")] {
            assert_eq!(has(list, name), !is_tablets, "{} {list}", object.name);
        }
        assert_eq!(has("initContainers", "observe"), of_observer, "{pod}");
        let sidecars = pod["containers"].as_array().map(|it| it.len() - 1);
        assert_eq!(sidecars, Some(usize::from(!is_tablets)), "{}", object.name);
    }
}

/// The fields that have a value; a pod, a service and a claim as one.
fn leaves(path: &str, value: &Value, found: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(fields)
            if !["pod", "podDefaults", "service", "claim"]
                .iter()
                .any(|it| path.ends_with(it)) =>
        {
            for (name, field) in fields {
                let dot = if path.is_empty() { "" } else { "." };
                leaves(&format!("{path}{dot}{name}"), field, found);
            }
        }
        _ => found.push((path.to_owned(), value.clone())),
    }
}

fn set_at(object: &mut Value, pointer: &str, value: Value) {
    let at = pointer
        .split('/')
        .skip(1)
        .fold(object, |object, name| &mut object[name]);
    *at = value;
}
