//! The resource's definition: generated files are fresh, and its rules say what they should.

use crate::support::{each_property, fresh, schema};
use kube::core::cel::Validator;
use percolator_api::{ClusterObject, PercolatorCluster, definition};
use serde_json::{Value, json};

const HEAD: &str = "\
# Generated from operator/api by `cargo xtask generate`: change the types there.
";

fn definition_text() -> String {
    let yaml = serde_saphyr::to_string(&definition()).expect("a definition can be written");
    format!("{HEAD}{yaml}")
}

#[test]
fn the_generated_definitions_are_fresh() {
    let text = definition_text();
    fresh("crds/percolatorclusters.yaml", &text);
    fresh(
        "charts/percolator-operator/files/percolatorclusters.yaml",
        &text,
    );
    // A client-side apply keeps all of it as JSON in an annotation, which may have 256 KiB.
    let json = definition().to_string();
    assert!(json.len() < 200 << 10, "{} bytes", json.len());
}

/// Some tools, as GitOps ones, take a property that is null, or may be, for one that differs for ever.
#[test]
fn no_property_is_null_or_may_be() {
    fn walk(path: &str, value: &Value) {
        assert!(!value.is_null(), "{path}");
        for (name, field) in value.as_object().into_iter().flatten() {
            assert_ne!(name, "nullable", "{path}");
            walk(&format!("{path}.{name}"), field);
        }
        for (index, element) in value.as_array().into_iter().flatten().enumerate() {
            walk(&format!("{path}[{index}]"), element);
        }
    }
    walk("", &definition());
}

#[test]
fn the_definition_can_be_read_back() {
    let read: Value = serde_saphyr::from_str(&definition_text()).expect("good YAML");
    assert_eq!(read, definition());
}

/// A resource as the API server keeps it, with every default.
fn object(change: impl FnOnce(&mut Value)) -> Value {
    let cluster = PercolatorCluster::from_yaml(include_str!("../../../examples/cluster.yaml"));
    let mut object = serde_json::to_value(cluster.expect("the example is good")).expect("JSON");
    change(&mut object);
    object
}

fn refusals(new: &Value, old: Option<&Value>) -> Vec<String> {
    match Validator::new().validate(&schema(), new, old) {
        Ok(()) => Vec::new(),
        Err(errors) => {
            let errors = errors.into_vec().into_iter();
            errors
                .map(|error| format!("{}: {}", error.field_path, error.message))
                .collect()
        }
    }
}

#[test]
fn the_example_passes_every_rule() {
    let example = object(|_| {});
    assert_eq!(refusals(&example, None), Vec::<String>::new());
    assert_eq!(refusals(&example, Some(&example)), Vec::<String>::new());
}

#[test]
fn the_example_for_production_passes_every_rule_and_has_a_standby() {
    let text = include_str!("../../../examples/production.yaml");
    let cluster = PercolatorCluster::from_yaml(text).expect("the example is good");
    assert_eq!(cluster.spec.oracle.replicas, 2);
    let production = serde_json::to_value(cluster).expect("JSON");
    assert_eq!(refusals(&production, None), Vec::<String>::new());
    // From the small example to this one, and back.
    for (new, old) in [
        (&production, &object(|_| {})),
        (&object(|_| {}), &production),
    ] {
        let replicas = |object: &Value| object["spec"]["oracle"]["replicas"].clone();
        let mut changed = old.clone();
        changed["spec"]["oracle"]["replicas"] = replicas(new);
        assert_eq!(refusals(&changed, Some(old)), Vec::<String>::new());
    }
}

#[test]
fn the_other_examples_pass_every_rule() {
    for text in [
        include_str!("../../../examples/monitored.yaml"),
        include_str!("../../../examples/air-gapped.yaml"),
    ] {
        let cluster = PercolatorCluster::from_yaml(text).expect("the example is good");
        let object = serde_json::to_value(cluster).expect("JSON");
        assert_eq!(refusals(&object, None), Vec::<String>::new());
    }
}

#[test]
fn rules_for_values_refuse_what_they_should() {
    for (path, value, said) in [
        ("/metadata/name", json!("9lives"), "starting with a letter"),
        ("/metadata/name", json!("a.b"), "starting with a letter"),
        ("/metadata/name", json!("a".repeat(41)), "1 to 40"),
        ("/spec/oracle/replicas", json!(0), "from 1 to 3"),
        ("/spec/oracle/replicas", json!(4), "from 1 to 3"),
        ("/spec/master/replicas", json!(4), "must be from 1 to 3"),
        ("/spec/oracle/window", json!("99ms"), "from 100ms to 60s"),
        ("/spec/oracle/window", json!("1m1s"), "from 100ms to 60s"),
        (
            "/spec/monitoring/podMonitor/interval",
            json!("61s"),
            "from 1s to 1m",
        ),
        ("/spec/tablets/replicas", json!(0), "from 1 to 1000"),
        ("/spec/tablets/replicas", json!(1001), "from 1 to 1000"),
        ("/spec/tablets/storage/size", json!("63Mi"), "at least 64Mi"),
        ("/spec/tablets/storage/size", json!(7), "at least 64Mi"),
        (
            "/spec/tablets/storage/cacheSize",
            json!("1k"),
            "at least 1Mi",
        ),
        ("/spec/oracle/storage/size", json!("1Mi"), "at least 16Mi"),
    ] {
        let bad = object(|object| *object.pointer_mut(path).expect(path) = value.clone());
        let refusals = refusals(&bad, None);
        assert!(
            refusals.len() == 1 && refusals[0].contains(said),
            "{path} {value}: {refusals:?}"
        );
    }
}

/// The example with this many volumes of each role, each asked for with the size of its role's spec.
/// They are not there by default.
#[test]
fn rules_for_proxies_refuse_what_they_should() {
    for (proxy, said) in [
        (json!({"replicas": 101}), "from 0 to 100"),
        (json!({"idleMax": "0s"}), "from 1s to 1h"),
        (json!({"sessionMax": "61m"}), "from 1s to 1h"),
        (json!({"grace": "61m"}), "from 0s to 1h"),
        (
            json!({"pod": {"resources": {"limits": {"memory": "32Mi"}}}}),
            "64Mi",
        ),
    ] {
        let whole = |proxy: &Value| {
            let mut defaults =
                serde_json::to_value(percolator_api::Proxy::default()).expect("JSON");
            percolator_api::merge(&mut defaults, proxy);
            object(|object| object["spec"]["proxy"] = defaults)
        };
        assert_eq!(refusals(&whole(&json!({})), None), Vec::<String>::new());
        let refusals = refusals(&whole(&proxy), None);
        assert!(
            refusals.len() == 1 && refusals[0].contains(said),
            "{proxy}: {refusals:?}"
        );
    }
}

fn made(volumes: u32, change: impl FnOnce(&mut Value)) -> Value {
    object(|object| {
        for role in ["tablets", "oracle", "master"] {
            let volumes = if role == "tablets" {
                volumes
            } else {
                volumes.min(1)
            };
            object["status"][role] = json!({"volumes": volumes});
            if volumes > 0 {
                object["status"][role]["claimed"] = object["spec"][role]["storage"]["size"].clone();
            }
        }
        change(object);
    })
}

#[test]
fn what_was_never_carried_out_can_be_taken_back() {
    let changed = |path: &str, value: &Value| {
        object(|object| {
            // Not every field is in the example.
            let (above, field) = path.rsplit_once('/').expect(path);
            object.pointer_mut(above).expect(path)[field] = value.clone();
        })
    };
    for (path, bad, good, volumes) in [
        // 30 for 3, of which none, or the first three, have a volume.
        ("/spec/tablets/replicas", json!(30), json!(3), 0),
        ("/spec/tablets/replicas", json!(30), json!(3), 3),
        // A class that doesn't exist: no claim has a volume.
        (
            "/spec/master/storage/storageClassName",
            json!("x"),
            json!("y"),
            0,
        ),
        (
            "/spec/tablets/storage/storageClassName",
            json!("x"),
            json!("y"),
            0,
        ),
        // A size that the class can't give; and one that it can't grow to, so that the claims still ask for less.
        (
            "/spec/oracle/storage/size",
            json!("100Ti"),
            json!("64Mi"),
            0,
        ),
        (
            "/spec/tablets/storage/size",
            json!("20Gi"),
            json!("10Gi"),
            3,
        ),
    ] {
        let mut old = changed(path, &bad);
        old["status"] = made(volumes, |_| {})["status"].clone();
        let refused = refusals(&changed(path, &good), Some(&old));
        assert_eq!(refused, Vec::<String>::new(), "{path} {volumes}");
        // Without a status no operator has reconciled it yet.
        old.as_object_mut().expect("an object").remove("status");
        assert_eq!(
            refusals(&changed(path, &good), Some(&old)),
            Vec::<String>::new()
        );
    }
}

/// Without a status kstatus takes a resource for done, before any operator has seen it.
#[test]
fn a_cluster_that_no_operator_has_seen_is_about_no_generation() {
    let status = schema()["properties"]["status"].clone();
    assert_eq!(status["default"], json!({"observedGeneration": -1}));
    // The rules about changes count on what these have then.
    for role in ["tablets", "oracle", "master"] {
        let of_role = &status["properties"][role];
        assert_eq!(of_role["properties"]["volumes"]["default"], 0, "{role}");
    }
}

#[test]
fn the_printed_columns_begin_with_the_conditions() {
    let columns = definition()["spec"]["versions"][0]["additionalPrinterColumns"].clone();
    let columns = columns.as_array().expect("columns");
    let of = |priority: i64| -> Vec<&str> {
        let has = |column: &&Value| column["priority"].as_i64().unwrap_or_default() == priority;
        let columns = columns.iter().filter(has);
        columns
            .filter_map(|column| column["name"].as_str())
            .collect()
    };
    let narrow = of(0);
    assert_eq!(narrow[..3], ["Ready", "Reason", "Degraded"]);
    assert!(of(1).contains(&"Status"));
}

/// Of two with the same keys, the API server itself would say that they are an internal error.
#[test]
fn lists_with_names_take_each_name_once() {
    let schema = schema();
    let spec = &schema["properties"]["spec"]["properties"];
    let keys = |list: &Value| {
        assert_eq!(list["x-kubernetes-list-type"], "map", "{list}");
        list["x-kubernetes-list-map-keys"].clone()
    };
    assert_eq!(keys(&spec["imagePullSecrets"]), json!(["name"]));
    for role in ["tablets", "oracle", "master"] {
        let pod = &spec[role]["properties"]["pod"]["properties"];
        assert_eq!(keys(&pod["env"]), json!(["name"]));
        let spread = keys(&pod["topologySpreadConstraints"]);
        assert_eq!(spread, json!(["topologyKey", "whenUnsatisfiable"]));
    }
}

#[test]
fn rules_for_changes_refuse_what_they_should() {
    let old = made(3, |_| {});
    for (path, value, said) in [
        (
            "/spec/tablets/storage/size",
            json!("9Gi"),
            "must not shrink",
        ),
        (
            "/spec/tablets/storage/engine",
            json!("sled"),
            "must not change",
        ),
        (
            "/spec/master/storage/size",
            json!("100Mi"),
            "must not shrink",
        ),
    ] {
        let new = object(|object| *object.pointer_mut(path).expect(path) = value.clone());
        let refusals = refusals(&new, Some(&old));
        assert!(
            refusals.len() == 1 && refusals[0].contains(said),
            "{path} {value}: {refusals:?}"
        );
    }
    for role in ["tablets", "oracle", "master"] {
        let class = |class: &str| {
            made(3, |object| {
                object["spec"][role]["storage"]["storageClassName"] = json!(class)
            })
        };
        for (new, old) in [
            (&class("fast"), &old),
            (&old, &class("fast")),
            (&class("fast"), &class("slow")),
        ] {
            let refusals = refusals(new, Some(old));
            assert!(
                refusals.len() == 1 && refusals[0].contains("storageClassName must not change"),
                "{role}: {refusals:?}"
            );
        }
        assert_eq!(
            refusals(&class("fast"), Some(&class("fast"))),
            Vec::<String>::new()
        );
    }
}

/// The same limits as the operator's own check, which says the amount.
#[test]
fn a_limit_that_a_server_can_not_work_with_is_refused() {
    for (role, least, less) in [
        ("tablets", "384Mi", "383Mi"),
        ("oracle", "32Mi", "33554431"),
        ("master", "64Mi", "63Mi"),
    ] {
        let with = |limit: &str| {
            object(|object| {
                object["spec"][role]["pod"]["resources"] = json!({"limits": {"memory": limit}});
            })
        };
        for good in [least, "0", "9Gi"] {
            assert_eq!(
                refusals(&with(good), None),
                Vec::<String>::new(),
                "{role} {good}"
            );
        }
        let refused = refusals(&with(less), None);
        assert!(
            refused.len() == 1 && refused[0].contains("the kernel kills"),
            "{role}: {refused:?}"
        );
        for (limit, problems) in [(least, 0), (less, 1)] {
            let spec: percolator_api::Spec =
                serde_json::from_value(with(limit)["spec"].clone()).expect("a spec");
            assert_eq!(spec.validate().len(), problems, "{role} {limit}");
        }
    }
}

#[test]
fn what_may_change_can_be_changed() {
    let old = made(3, |_| {});
    for (path, value) in [
        ("/spec/tablets/replicas", json!(4)),
        ("/spec/tablets/replicas", json!(1)),
        ("/spec/tablets/storage/size", json!("11Gi")),
        ("/spec/tablets/storage/cacheSize", json!("1Mi")),
        ("/spec/oracle/window", json!("1m")),
        ("/spec/oracle/window", json!("1m0s")),
        ("/spec/paused", json!(true)),
    ] {
        let new = object(|object| *object.pointer_mut(path).expect(path) = value.clone());
        assert_eq!(
            refusals(&new, Some(&old)),
            Vec::<String>::new(),
            "{path} {value}"
        );
    }
}

#[test]
fn every_field_is_described() {
    let mut seen = 0;
    each_property(
        "spec",
        &schema()["properties"]["spec"],
        &mut |path, property| {
            let text = property["description"].as_str().unwrap_or_default();
            assert!(text.len() > 10, "{path} is not described: {property}");
            seen += 1;
        },
    );
    assert!(seen > 50, "{seen}");
}

/// The API server writes the defaults of a newer definition's fields into every object.
#[test]
fn an_operator_reads_what_a_newer_definition_brings() {
    let object: ClusterObject = serde_json::from_value(json!({
        "apiVersion": "percolator.dev/v1alpha1",
        "kind": "PercolatorCluster",
        "metadata": {"name": "demo"},
        "spec": {
            "future": 1,
            "imagePullSecrets": [{"name": "a", "future": 1}],
            "gc": {"future": 1},
            "log": {"future": 1},
            "claims": {"future": 1},
            "service": {"future": 1},
            "monitoring": {
                "future": 1,
                "podMonitor": {"future": 1},
                "prometheusRule": {"future": 1},
            },
            "oracle": {"future": 1, "storage": {"future": 1}},
            "master": {"future": 1},
            "tablets": {
                "replicas": 5,
                "future": {},
                "storage": {"future": 1},
                "pod": {"future": 1, "resources": {"future": 1}},
            },
        },
        "status": {"future": 1, "tablets": {"future": 1}},
    }))
    .expect("what it knows is read");
    assert_eq!(object.spec.tablets.replicas, 5);
}

/// Kubernetes knows no format "uint32".
#[test]
fn numbers_that_no_field_holds_are_refused() {
    fn unbounded(value: &Value) -> usize {
        match value {
            Value::Object(fields) => {
                let is_number = fields.get("format").is_some_and(|it| it == "uint32");
                let is_bounded = fields.get("maximum") == Some(&json!(u32::MAX));
                let below: usize = fields.values().map(unbounded).sum();
                usize::from(is_number && !is_bounded) + below
            }
            Value::Array(elements) => elements.iter().map(unbounded).sum(),
            _ => 0,
        }
    }
    let definition = percolator_api::definition();
    assert_eq!(unbounded(&definition), 0);
    assert!(definition.to_string().contains("4294967295"));
}
