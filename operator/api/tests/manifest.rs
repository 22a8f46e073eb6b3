//! What manifests may say, and the exact words for what they may not.

use percolator_api::{Duration, Engine, ManifestError, PercolatorCluster, Quantity};

const EXAMPLE: &str = include_str!("../../../examples/cluster.yaml");

const HEAD: &str = "apiVersion: percolator.dev/v1alpha1\nkind: PercolatorCluster\n";

/// A manifest whose spec begins on line 5.
fn with_spec(spec: &str) -> String {
    format!("{HEAD}metadata: {{name: demo}}\nspec:\n{spec}")
}

fn refusal(text: &str) -> String {
    match PercolatorCluster::from_yaml(text) {
        Ok(cluster) => panic!("accepted: {cluster:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn the_example_says_the_defaults() {
    let example = PercolatorCluster::from_yaml(EXAMPLE).expect("the example is good");
    let shortest = format!("{HEAD}metadata:\n  name: demo\n");
    assert_eq!(PercolatorCluster::from_yaml(&shortest), Ok(example.clone()));

    assert_eq!(example.metadata.name, "demo");
    assert_eq!(example.spec.tablets.replicas, 3);
    assert_eq!(example.spec.tablets.storage.engine, Engine::Redb);
    assert_eq!(
        example.spec.tablets.storage.cache_size,
        Quantity::from_bytes(256 << 20)
    );
    assert_eq!(example.spec.oracle.window, Duration::from_millis(3_000));
}

#[test]
fn every_field_can_be_set() {
    let digest = "0123456789abcdef".repeat(4);
    let text = format!(
        "{HEAD}metadata: {{name: a-1, namespace: data, labels: {{app.example.com/part: db}}, \
         annotations: {{owner: 'Ann, B.'}}}}\n\
         spec: {{image: 'registry.example.com/percolator:1@sha256:{digest}', oracle: {{replicas: 1, window: 1m}},\n\
         tablets: {{replicas: 7, storage: {{engine: sled, cacheSize: 1048576, size: 1.5Gi}}}},\n\
         master: {{replicas: 1}}, proxy: {{replicas: 2, grace: 1m}}}}\n"
    );
    let cluster = PercolatorCluster::from_yaml(&text).expect(&text);
    assert_eq!(cluster.metadata.namespace.as_deref(), Some("data"));
    assert_eq!(cluster.spec.tablets.replicas, 7);
    assert_eq!(cluster.spec.tablets.storage.engine, Engine::Sled);
    assert_eq!(cluster.spec.tablets.storage.cache_size.bytes(), 1 << 20);
    assert_eq!(cluster.spec.tablets.storage.size.bytes(), 3 << 29);
    let proxy = cluster.spec.proxies().expect("proxies");
    assert_eq!((proxy.replicas, proxy.grace.as_millis()), (Some(2), 60_000));
    assert_eq!(proxy.idle_max.as_millis(), 30_000);

    // What is written can be read again.
    let written = serde_json::to_string(&cluster).expect("resources can be written");
    assert_eq!(PercolatorCluster::from_yaml(&written), Ok(cluster));
}

#[test]
fn what_kubernetes_prints_can_be_read() {
    let printed = format!(
        "{HEAD}metadata:
  annotations:
    kubectl.kubernetes.io/last-applied-configuration: |
      {{\"kind\":\"PercolatorCluster\"}}
  creationTimestamp: \"2026-01-02T03:04:05Z\"
  finalizers:
  - percolator.dev/data
  generation: 2
  managedFields:
  - apiVersion: percolator.dev/v1alpha1
    fieldsType: FieldsV1
    fieldsV1:
      f:metadata:
        f:annotations:
          .: {{}}
          f:kubectl.kubernetes.io/last-applied-configuration: {{}}
      f:spec:
        .: {{}}
        f:tablets: {{}}
    manager: kubectl-client-side-apply
    operation: Update
    time: \"2026-01-02T03:04:05Z\"
  name: demo
  namespace: default
  ownerReferences:
  - apiVersion: v1
    kind: ConfigMap
    name: demo
    uid: 9dd5c0c2-3fbc-4f8b-8a3c-6a1a3f0a0d0f
  resourceVersion: \"4711\"
  uid: 52b0a7a0-2f55-4a8f-a3a3-6d5a52e2f7a1
spec:
  tablets:
    replicas: 5
status:
  observedGeneration: 2
  conditions:
  - type: Ready
    status: \"True\"
"
    );
    let cluster = PercolatorCluster::from_yaml(&printed).expect(&printed);
    assert_eq!(cluster.metadata.name, "demo");
    assert_eq!(cluster.spec.tablets.replicas, 5);
    // What nobody adds is an error as before.
    assert_eq!(
        refusal(&format!(
            "{HEAD}metadata: {{name: demo, uuid: x}}\nstatuses: {{}}\n"
        )),
        "line 3: metadata.uuid: unknown field; the fields here are name, namespace, labels, \
         annotations\n\
         line 4: statuses: unknown field; the fields here are apiVersion, kind, metadata, spec"
    );
}

#[test]
fn a_field_without_a_value_has_its_default() {
    let text = with_spec("  tablets:\n    replicas:\n    storage:\n  oracle:\n");
    let cluster = PercolatorCluster::from_yaml(&text).expect(&text);
    assert_eq!(cluster.spec.tablets.replicas, 3);
}

#[test]
fn unknown_fields_are_all_named_with_path_and_line() {
    assert_eq!(
        refusal(&with_spec(
            "  tablets:\n    replicas: 0\n    storage:\n      engin: sled\n      \
             cachesize: 1Gi\n  colour: blue\n"
        )),
        "line 6: spec.tablets.replicas: 0 must be from 1 to 1000\n\
         line 8: spec.tablets.storage.engin: unknown field; did you mean \"engine\"?\n\
         line 9: spec.tablets.storage.cachesize: unknown field; did you mean \"cacheSize\"?\n\
         line 10: spec.colour: unknown field; the fields here are image, imagePullPolicy, \
         imagePullSecrets, templateRevision, paused, claims, log, service, podDefaults, \
         monitoring, oracle, tablets, master, proxy, observers, gc, balance"
    );
    assert_eq!(
        refusal(&format!("{HEAD}metadata: {{name: demo}}\nspecs:\n")),
        "line 4: specs: unknown field; did you mean \"spec\"?"
    );
}

#[test]
#[expect(clippy::too_many_lines, reason = "one story in its order")]
fn wrong_values_are_named_with_what_to_do() {
    for (spec, message) in [
        (
            "  tablets: {replicas: 0}\n",
            "line 5: spec.tablets.replicas: 0 must be from 1 to 1000",
        ),
        (
            "  proxy: {replicas: 101}\n",
            "line 5: spec.proxy.replicas: 101 must be from 0 to 100",
        ),
        (
            "  proxy: {idleMax: 0s, sessionMax: 2h, grace: 61m}\n",
            "line 5: spec.proxy.grace: 1h1m must be from 0s to 1h\n\
             line 5: spec.proxy.idleMax: 0s must be from 1s to 1h\n\
             line 5: spec.proxy.sessionMax: 2h must be from 1s to 1h",
        ),
        (
            "  proxy: {pod: {resources: {limits: {memory: 32Mi}}}}\n",
            "line 5: spec.proxy.pod.resources.limits.memory: 32Mi is too little for a proxy: the smallest limit that fits \
             is 64Mi; with less the kernel kills the server. Write 0 for no limit",
        ),
        (
            "  podDefaults: {labels: {percolator.dev/a: b}, specPatch: {containers: [{name: tablet, image: a}]}}\n",
            "line 5: spec.podDefaults.specPatch.containers[0]: the name \"tablet\" is that of a server's container: write it in \
             the specPatch of its role\n\
             line 5: spec.podDefaults.labels.percolator.dev/a: is the operator's own: choose another one",
        ),
        (
            "  podDefaults: {resources: {limits: {memory: 64Mi}}}\n",
            "line 5: spec.podDefaults.resources.limits.memory: 64Mi is too little for a tablet server with a cache of 256Mi: \
             the smallest limit that fits is 384Mi; with less the kernel kills the server. Write 0 for no limit (together with \
             spec.tablets.pod)",
        ),
        (
            "  podDefaults: {specPatch: {terminationGracePeriodSeconds: 5, affinity: {}, volumes: [{name: scratch}]}}\n",
            "line 5: spec.podDefaults.specPatch.terminationGracePeriodSeconds: differs from role to role: write it in the \
             specPatch of a role\n\
             line 5: spec.podDefaults.specPatch.affinity: has a field of its own: write it as podDefaults.affinity\n\
             line 5: spec.podDefaults.specPatch.volumes[0]: the volume \"scratch\" is the operator's own: choose another name",
        ),
        (
            "  proxy: {service: {labels: {percolator.dev/a: b}}}\n",
            "line 5: spec.proxy.service.labels.percolator.dev/a: is the operator's own: choose another one",
        ),
        (
            "  image: a@sha256:12\n",
            "line 5: spec.image: \"sha256:12\" is no digest: write NAME@sha256: and 64 of 0-9 and a-f",
        ),
        (
            "  tablets: {replicas: -2}\n",
            "line 5: spec.tablets.replicas: expected a whole number from 0 to 4294967295, \
             found the number -2",
        ),
        (
            "  tablets: {replicas: 2.5}\n",
            "line 5: spec.tablets.replicas: expected a whole number from 0 to 4294967295, \
             found the number 2.5",
        ),
        (
            "  tablets: {replicas: 5000000000}\n",
            "line 5: spec.tablets.replicas: expected a whole number from 0 to 4294967295, \
             found the number 5000000000",
        ),
        (
            "  tablets: {replicas: \"3\"}\n",
            "line 5: spec.tablets.replicas: expected a whole number from 0 to 4294967295, \
             found the string \"3\"",
        ),
        (
            "  tablets: 3\n",
            "line 5: spec.tablets: expected a group of fields, found the number 3",
        ),
        (
            "  - tablets\n",
            "line 4: spec: expected a group of fields, found a list",
        ),
        (
            "  image: true\n",
            "line 5: spec.image: expected a string, found the boolean true",
        ),
        (
            "  image: ''\n",
            "line 5: spec.image: \"\" must be an image's name without blanks, or be left out",
        ),
        (
            "  tablets:\n    storage:\n      engine: rocksdb\n",
            "line 7: spec.tablets.storage.engine: \"rocksdb\" is not known; \
             use one of redb, sled, memory",
        ),
        (
            "  tablets: {storage: {engine: Sled}}\n",
            "line 5: spec.tablets.storage.engine: \"Sled\" is not known; did you mean \"sled\"?",
        ),
        (
            "  tablets: {storage: {engine: 7}}\n",
            "line 5: spec.tablets.storage.engine: expected one of redb, sled, memory, \
             found the number 7",
        ),
        (
            "  tablets: {storage: {cacheSize: 256MB}}\n",
            "line 5: spec.tablets.storage.cacheSize: \"256MB\" is not a quantity: write a number \
             of bytes, if need be with one of the suffixes Ki Mi Gi Ti Pi Ei (powers of 1024) or \
             k M G T P E (powers of 1000), such as \"256Mi\"",
        ),
        (
            "  tablets: {storage: {cacheSize: [1]}}\n",
            "line 5: spec.tablets.storage.cacheSize: expected a quantity, such as \"256Mi\", \
             found a list",
        ),
        (
            "  tablets: {storage: {cacheSize: 4Ki, size: 1Mi}}\n",
            "line 5: spec.tablets.storage.cacheSize: 4Ki must be at least 1Mi\n\
             line 5: spec.tablets.storage.size: 1Mi must be at least 64Mi",
        ),
        (
            "  tablets: {drainOnStop: 2h}\n",
            "line 5: spec.tablets.drainOnStop: 2h must be from 0s to 1h",
        ),
        (
            "  oracle: {replicas: 4, window: 10ms}\n  master: {replicas: 0}\n",
            "line 5: spec.oracle.replicas: 4 must be from 1 to 3\n\
             line 5: spec.oracle.window: 10ms must be from 100ms to 60s\n\
             line 6: spec.master.replicas: 0 must be from 1 to 3",
        ),
        (
            "  monitoring: {podMonitor: {enabled: true, interval: 18446744073709551615ms}}\n",
            "line 5: spec.monitoring.podMonitor.interval: 5124095576030h25m51s615ms must be from 1s to 1m",
        ),
        (
            "  oracle:\n    window: 3\n",
            "line 6: spec.oracle.window: expected a duration with its unit, such as \"3s\" or \
             \"500ms\", found the number 3",
        ),
        (
            "  oracle:\n    window: 3 seconds\n",
            "line 6: spec.oracle.window: \"3 seconds\" is not a duration: write whole numbers \
             with the units h, m, s and ms, largest first, such as \"3s\", \"500ms\" or \"1m30s\"",
        ),
    ] {
        assert_eq!(refusal(&with_spec(spec)), message, "{spec}");
    }
}

#[test]
fn all_problems_are_reported_at_once() {
    assert_eq!(
        refusal(
            "apiVersion: percolator.dev/v1\n\
             kind: PercolatorCluster\n\
             metadata:\n  labels:\n    app.example.com/part: 3\n    b: c d\n\
             spec:\n  oracle: {window: 3, replicas: 0}\n  tablets:\n    replicas: three\n    storage:\n      \
             engine: rocksdb\n      cacheSize: 256MB\n      sise: 1\n  master: [1]\n"
        ),
        "line 1: apiVersion: expected \"percolator.dev/v1alpha1\", found the string \
         \"percolator.dev/v1\"\n\
         line 3: metadata.name: missing: this field is required\n\
         line 5: metadata.labels.app.example.com/part: expected a string, found the number 3\n\
         line 6: metadata.labels.b: \"c d\" must be at most 63 of letters, digits, '-', '_' and '.', \
         starting and ending with a letter or digit, or be empty\n\
         line 8: spec.oracle.window: expected a duration with its unit, such as \"3s\" or \
         \"500ms\", found the number 3\n\
         line 8: spec.oracle.replicas: 0 must be from 1 to 3\n\
         line 10: spec.tablets.replicas: expected a whole number from 0 to 4294967295, found the \
         string \"three\"\n\
         line 12: spec.tablets.storage.engine: \"rocksdb\" is not known; use one of redb, sled, \
         memory\n\
         line 13: spec.tablets.storage.cacheSize: \"256MB\" is not a quantity: write a number of \
         bytes, if need be with one of the suffixes Ki Mi Gi Ti Pi Ei (powers of 1024) or k M G T P \
         E (powers of 1000), such as \"256Mi\"\n\
         line 14: spec.tablets.storage.sise: unknown field; did you mean \"size\"?\n\
         line 15: spec.master: expected a group of fields, found a list"
    );
    // No metadata at all, and no name where some is.
    assert_eq!(
        refusal(&format!("{HEAD}spec: {{image: 3}}\n")),
        "line 1: metadata: missing: this field is required\n\
         line 3: spec.image: expected a string, found the number 3"
    );
    assert_eq!(
        refusal(&format!("{HEAD}metadata: {{name: [a], namespace: 3}}\n")),
        "line 3: metadata.name: expected a string, found a list\n\
         line 3: metadata.namespace: expected a string, found the number 3"
    );
}

#[test]
fn the_metadata_is_checked() {
    for (metadata, message) in [
        (
            "metadata: {}\n",
            "line 3: metadata.name: missing: this field is required",
        ),
        ("", "line 1: metadata: missing: this field is required"),
        (
            "metadata:\n  name: Demo_1\n  namespace: -x\n",
            "line 4: metadata.name: \"Demo_1\" must be 1 to 40 of a-z, 0-9 and '-', starting and \
             ending with a letter or digit\n\
             line 5: metadata.namespace: \"-x\" must be 1 to 63 of a-z, 0-9 and '-', starting and \
             ending with a letter or digit",
        ),
        (
            "metadata:\n  name: 17\n",
            "line 4: metadata.name: expected a string, found the number 17",
        ),
        (
            "metadata:\n  name: a\n  labels:\n    app.example.com/part: a b\n",
            "line 6: metadata.labels.app.example.com/part: \"a b\" must be at most 63 of letters, \
             digits, '-', '_' and '.', starting and ending with a letter or digit, or be empty",
        ),
        (
            "metadata:\n  name: a\n  annotations:\n    Up.Case/x: ok\n    '-': ok\n",
            "line 6: metadata.annotations.Up.Case/x: the key's prefix \"Up.Case\" must be the \
             name of a domain\n\
             line 7: metadata.annotations.-: the key's name \"-\" must be at most 63 of letters, \
             digits, '-', '_' and '.', starting and ending with a letter or digit",
        ),
    ] {
        assert_eq!(refusal(&format!("{HEAD}{metadata}")), message, "{metadata}");
    }
}

#[test]
fn another_kind_of_resource_is_called_so() {
    assert_eq!(
        refusal("apiVersion: apps/v1\nkind: Deployment\nspec: {replicas: 3}\n"),
        "line 1: apiVersion: expected \"percolator.dev/v1alpha1\", found the string \"apps/v1\"\n\
         line 2: kind: expected \"PercolatorCluster\", found the string \"Deployment\""
    );
    assert_eq!(
        refusal("metadata: {name: demo}\n"),
        "line 1: apiVersion: missing: write `apiVersion: percolator.dev/v1alpha1`\n\
         line 1: kind: missing: write `kind: PercolatorCluster`"
    );
    assert_eq!(
        refusal("- one\n- two\n"),
        "line 1: expected a PercolatorCluster with the fields apiVersion, kind, metadata and \
         spec, found a list"
    );
}

#[test]
fn files_that_hold_no_single_document_are_refused() {
    for empty in ["", "\n\n", "# only a remark\n", "---\n"] {
        assert_eq!(
            PercolatorCluster::from_yaml(empty),
            Err(ManifestError::Empty),
            "{empty:?}"
        );
    }
    assert_eq!(
        refusal(""),
        "the manifest is empty: it needs `apiVersion: percolator.dev/v1alpha1`, \
         `kind: PercolatorCluster` and `metadata.name`"
    );
    let one = with_spec("  tablets: {replicas: 1}\n");
    assert_eq!(
        refusal(&format!("{one}---\n{one}")),
        "line 7: a second document begins here: keep one PercolatorCluster in a file, and put \
         other resources into files of their own"
    );
}

#[test]
fn broken_yaml_is_refused_with_its_place() {
    let twice = with_spec("  oracle: {replicas: 1}\n  oracle: {replicas: 1}\n");
    assert_eq!(
        refusal(&twice),
        "line 6, column 3: not valid YAML: the field oracle stands here a second time"
    );
    for (spec, message) in [
        (
            "  tablets: {replicas: 3\n",
            "line 5, column 12: not valid YAML: unclosed bracket '{'",
        ),
        (
            "  tablets:\n   storage: 1\n    engine: sled\n",
            "line 7, column 11: not valid YAML: mapping values are not allowed in this context",
        ),
        (
            "  image: \"unfinished\n",
            "line 6, column 1: not valid YAML: invalid indentation in multiline quoted scalar",
        ),
        (
            "\ttablets: 3\n",
            "line 5, column 2: not valid YAML: tabs disallowed within this context (block indentation)",
        ),
    ] {
        assert_eq!(refusal(&with_spec(spec)), message, "{spec}");
    }
}

#[test]
fn every_field_is_documented_in_the_schema() {
    fn walk(path: &str, schema: &serde_json::Value, undocumented: &mut Vec<String>) {
        if let Some(properties) = schema.get("properties").and_then(|p| p.as_object()) {
            for (name, property) in properties {
                let path = format!("{path}.{name}");
                if property.get("description").is_none() {
                    undocumented.push(path.clone());
                }
                walk(&path, property, undocumented);
            }
        }
    }
    let settings = schemars::generate::SchemaSettings::default().with(|settings| {
        settings.inline_subschemas = true;
    });
    let schema = settings
        .into_generator()
        .into_root_schema_for::<PercolatorCluster>();
    let schema = serde_json::to_value(schema).expect("a schema is JSON");
    let mut undocumented = Vec::new();
    walk("", &schema, &mut undocumented);
    assert_eq!(undocumented, Vec::<String>::new());

    let storage = &schema["properties"]["spec"]["properties"]["tablets"]["properties"]["storage"];
    assert_eq!(storage["properties"]["cacheSize"]["default"], "256Mi");
}

#[test]
fn lists_of_kubernetes_own_types_are_read_and_their_mistakes_named() {
    let pod = |pod: &str| with_spec(&format!("  tablets:\n    pod: {pod}\n"));
    let good = pod(
        "{tolerations: [{key: a, operator: Exists, tolerationSeconds: 60}], \
                    securityContext: {runAsNonRoot: true, fsGroup: 7}, \
                    containerSecurityContext: {capabilities: {drop: [ALL]}}, \
                    resources: {requests: {cpu: 0.5, memory: 1Gi}, limits: {cpu: 2}}}",
    );
    let cluster = PercolatorCluster::from_yaml(&good).expect(&good);
    let pod_read = &cluster.spec.tablets.pod;
    assert_eq!(pod_read.tolerations[0].toleration_seconds, Some(60));
    assert_eq!(pod_read.resources.requests["cpu"].to_string(), "0.5");
    assert_eq!(pod_read.resources.limits["cpu"].to_string(), "2");
    for (text, message) in [
        (
            "{tolerations: [{key: a}, {keey: b}]}",
            "line 6: spec.tablets.pod.tolerations[1].keey: unknown field; did you mean \"key\"?",
        ),
        (
            "{tolerations: {key: a}}",
            "line 6: spec.tablets.pod.tolerations: expected a list, found a group of fields",
        ),
        (
            "{securityContext: {runAsNonRoot: 1}}",
            "line 6: spec.tablets.pod.securityContext.runAsNonRoot: expected true or false, found the number 1",
        ),
        (
            "{containerSecurityContext: {privilegd: true}}",
            "line 6: spec.tablets.pod.containerSecurityContext.privilegd: unknown field; did you mean \"privileged\"?",
        ),
        (
            "{resources: {limits: {cpu: 1Kim}}}",
            "line 6: spec.tablets.pod.resources.limits.cpu: \"1Kim\" is not an amount: write a number, if need \
             be with m (a thousandth) or one of Ki Mi Gi Ti k M G T, such as \"500m\" or \"1Gi\"",
        ),
        (
            "{resources: {requests: {cpu: lots}}}",
            "line 6: spec.tablets.pod.resources.requests.cpu: \"lots\" is not an amount: write a number, if need \
             be with m (a thousandth) or one of Ki Mi Gi Ti k M G T, such as \"500m\" or \"1Gi\"",
        ),
        (
            "{labels: {percolator.dev/x: z}}",
            "line 6: spec.tablets.pod.labels.percolator.dev/x: is the operator's own: choose another one",
        ),
        (
            "{env: [{name: PERCOLATOR_LOG}]}",
            "line 6: spec.tablets.pod.env[0].name: \"PERCOLATOR_LOG\" is the operator's own: the spec has fields for \
             the servers' settings",
        ),
        (
            "{env: [{name: POD_NAME, value: a}]}",
            "line 6: spec.tablets.pod.env[0].name: \"POD_NAME\" is the operator's own: the spec has fields for the \
             servers' settings",
        ),
        (
            "{env: [{name: A}, {name: B}, {name: A, value: b}]}",
            "line 6: spec.tablets.pod.env[2]: name \"A\" is that of [0], too: leave one of them out",
        ),
        (
            "{topologySpreadConstraints: [{maxSkew: 1, topologyKey: z, whenUnsatisfiable: DoNotSchedule}, {maxSkew: 2, \
             topologyKey: z, whenUnsatisfiable: DoNotSchedule}]}",
            "line 6: spec.tablets.pod.topologySpreadConstraints[1]: topologyKey, whenUnsatisfiable \"z, DoNotSchedule\" \
             is that of [0], too: leave one of them out",
        ),
    ] {
        assert_eq!(refusal(&pod(text)), message);
    }
}

#[test]
fn what_pods_can_not_do_with_is_reported_with_its_line() {
    let pod = |pod: &str| with_spec(&format!("  tablets:\n    pod: {pod}\n"));
    for (text, message) in [
        (
            "{resources: {limits: {memory: 256Mi}}}",
            "line 6: spec.tablets.pod.resources.limits.memory: 256Mi is too little for a tablet server with a cache of \
             256Mi: the smallest limit that fits is 384Mi; with less the kernel kills the server. Write 0 for no limit",
        ),
        (
            "{resources: {requests: {cpu: 2}, limits: {cpu: 500m}}}",
            "line 6: spec.tablets.pod.resources.requests.cpu: 2 is more than limits.cpu, which is 500m: ask for no more \
             than that",
        ),
        (
            "{specPatch: {containers: [{name: tablet, image: x}]}}",
            "line 6: spec.tablets.pod.specPatch.containers[0].image: has a field of its own: write it as spec.image",
        ),
        (
            "{specPatch: {dnsConfg: {}}}",
            "line 6: spec.tablets.pod.specPatch.dnsConfg: unknown field of a pod's spec",
        ),
        (
            "{specPatch: [1]}",
            "line 6: spec.tablets.pod.specPatch: expected a group of fields, found a list",
        ),
    ] {
        assert_eq!(refusal(&pod(text)), message);
    }
}

#[test]
fn access_from_outside_is_checked() {
    let good = with_spec(
        "  service: {type: LoadBalancer, loadBalancerClass: example.com/internal}\n  oracle: {advertise: '{pod}.db.example.com:7400'}\n",
    );
    let cluster = PercolatorCluster::from_yaml(&good).expect(&good);
    assert!(cluster.spec.oracle.advertise.is_some());
    for (spec, message) in [
        (
            "  service: {loadBalancerClass: a}\n",
            "line 5: spec.service.loadBalancerClass: is for the type LoadBalancer alone: leave it out, or set \
             spec.service.type",
        ),
        (
            "  proxy: {service: {loadBalancerClass: a}}\n",
            "line 5: spec.proxy.service.loadBalancerClass: is for the type LoadBalancer alone: leave it out, or set \
             spec.proxy.service.type",
        ),
        (
            "  tablets: {advertise: 'db.example.com:7400'}\n",
            "line 5: spec.tablets.advertise: \"db.example.com:7400\" must be HOST:PORT, with {pod} in HOST in place of \
             the pod's name, such as {pod}.db.example.com:7400",
        ),
        (
            "  tablets: {storage: {claim: {labels: {percolator.dev/cluster: a}}}}\n",
            "line 5: spec.tablets.storage.claim.labels.percolator.dev/cluster: is the operator's own: choose another one",
        ),
    ] {
        assert_eq!(refusal(&with_spec(spec)), message);
    }
}
