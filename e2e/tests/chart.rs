//! The chart, with every set of values: what it makes is as it was reviewed, and Kubernetes takes it. `cargo xtask test e2e`
//! runs it.

use percolator_e2e::{Kube, OPERATOR, TIMEOUT, kubectl, wait, written};

#[test]
fn the_chart_is_valid_with_every_value() {
    let Some(kube) = Kube::find() else { return };
    let chart = kube.chart();
    let everything = format!("{chart}/ci/everything.yaml");
    for values in [&[][..], &["-f", &everything]] {
        let mut arguments = vec!["lint", "--strict", &chart];
        arguments.extend(values);
        kube.helm(&arguments).expect("helm lint");
    }
    // What a release is made of, so that a change is seen in review.
    for (values, golden) in [
        (&[][..], "e2e/testdata/chart.yaml"),
        (&["-f", &everything], "e2e/testdata/chart-everything.yaml"),
    ] {
        let mut arguments = vec!["template", "percolator", &chart, "-n", OPERATOR];
        // It is generated, and compared below.
        arguments.extend(["--set", "crds.create=false"]);
        arguments.extend(values);
        let made = kube.helm(&arguments).expect("helm template") + "\n";
        let path = kube.root.join(golden);
        if std::env::var_os("REWRITE").is_some_and(|value| value == "1") {
            std::fs::write(&path, &made).expect(golden);
        }
        let kept = std::fs::read_to_string(&path).expect(golden);
        let differs = made
            .lines()
            .zip(kept.lines())
            .find(|(made, kept)| made != kept);
        assert!(
            made == kept,
            "{golden} is not what the chart makes: {differs:?}; `REWRITE=1 cargo xtask test e2e` writes it anew"
        );
    }
    // Several operators keep apart, and one at a time is drained; one alone never stands in a drain's way.
    for (replicas, are_apart) in [("replicas=1", false), ("replicas=2", true)] {
        let without = ["--set", "crds.create=false"];
        let template = ["template", "x", &chart, "--set", replicas];
        let made = kube.helm(&[&template[..], &without].concat());
        let made = made.expect("helm template");
        for part in ["podAntiAffinity:", "kind: PodDisruptionBudget"] {
            let is_there = made.lines().any(|line| line.trim() == part);
            assert_eq!(is_there, are_apart, "{replicas}: {part}");
        }
    }
    names_are_texts(&kube, &chart);
    for (wrong, said) in [
        ("replicas=many", "replicas"),
        ("log.level=loud", "level"),
        ("image.digest=1.2.3", "digest"),
        ("imagePulPolicy=Never", "imagePulPolicy"),
        ("namespaces={Upper}", "namespaces"),
        ("unschedulableTimeout=soon", "unschedulableTimeout"),
        ("unschedulableTimeout=5m5m", "unschedulableTimeout"),
        ("rollsMax=0", "rollsMax"),
        // A tag or a digest has a value of its own.
        ("image.repository=example.com/percolator:1", "repository"),
        ("image.repository=percolator@sha256:0", "repository"),
        ("image.tag=sha256:0", "tag"),
        // Kubernetes' own, by which operators know each other apart.
        ("extraEnv[0].name=HOSTNAME", "name"),
        // One that names nobody is refused by the API server.
        (
            "networkPolicy.metricsFrom[0].podSelectors.a=b",
            "podSelectors",
        ),
        // Otherwise they would be open, and nobody would know.
        (
            "networkPolicy.clusters.namespaces={shop}",
            "networkPolicy.enabled",
        ),
    ] {
        let error = kube
            .helm(&["template", "x", &chart, "--set", wrong])
            .expect_err(wrong);
        assert!(error.contains(said), "{wrong}: {error}");
    }
    the_definition_is_the_generated_one(&kube, &chart);
    dry_run(&kube);
}

/// The definition is a part of the release, so that an upgrade brings it; without `keep`, clusters would go with the release.
fn the_definition_is_the_generated_one(kube: &Kube, chart: &str) {
    const FILE: &str = "templates/definition.yaml";
    let made =
        |values: &[&str]| kube.helm(&[&["template", "x", chart, "-s", FILE], values].concat());
    let (kept, gone) = (made(&[]), made(&["--set", "crds.keep=false"]));
    let is_kept = |made: &str| made.contains("\n    helm.sh/resource-policy: keep\n");
    let kept = kept.expect("the definition");
    assert!(is_kept(&kept) && !is_kept(&gone.expect("the definition")));
    let generated = kube.root.join("crds/percolatorclusters.yaml");
    let generated = std::fs::read_to_string(generated).expect("the definition");
    let mut made_lines = kept.lines();
    for line in generated.lines() {
        assert!(
            made_lines.any(|made| made == line),
            "{line} is not in the release"
        );
    }
    made(&["--set", "crds.create=false"]).expect_err("no definition");
}

/// Every file of values that the chart has for tests.
fn values_files(chart: &str) -> Vec<String> {
    let files = std::fs::read_dir(format!("{chart}/ci")).expect("the chart's values for tests");
    let files = files.map(|file| file.expect("a file").path().display().to_string());
    let files: Vec<String> = files.filter(|file| file.ends_with(".yaml")).collect();
    assert!(!files.is_empty(), "{chart}/ci is empty");
    files
}

/// Definitions of the Prometheus operator's that the chart has objects of; they go away with the value.
struct Definitions(Vec<String>);

impl Definitions {
    fn install(kube: &Kube) -> Self {
        let file = |kind| {
            let file = format!("monitoring.coreos.com_{kind}.yaml");
            kube.definitions.join(file).display().to_string()
        };
        let definitions = Self(["servicemonitors", "prometheusrules"].map(file).into());
        for file in &definitions.0 {
            kubectl(&["apply", "--server-side", "-f", file]).expect("a definition");
            // One that was only just made has no conditions, which kubectl calls an error, and doesn't wait.
            wait("a definition that counts", || {
                kubectl(&["wait", "--for=condition=Established", TIMEOUT, "-f", file])
            });
        }
        definitions
    }
}

impl Drop for Definitions {
    fn drop(&mut self) {
        for file in &self.0 {
            let _ = kubectl(&["delete", "--ignore-not-found", "-f", file]);
        }
    }
}

/// The verdict of Kubernetes itself on all objects that it knows: of every file of values, of none, and of others.
fn dry_run(kube: &Kube) {
    let (chart, _definitions) = (kube.chart(), Definitions::install(kube));
    // Roles are for namespaces that are there, and these stand in the values.
    let _spaces = ["blue", "green"].map(|name| kube.namespace(name));
    let files = values_files(&chart);
    let files = files.iter().map(|file| vec!["-f", file]);
    let sets = [
        "replicas=2",
        "namespaces={default}",
        "log.format=text",
        "leaderElection.lease=own",
        "metrics.dashboards.enabled=true,metrics.dashboards.labels.grafana_dashboard=null",
        "serviceAccount.create=false",
        "rbac.create=false",
    ];
    let sets = sets.into_iter().map(|set| vec!["--set", set]);
    for values in files.chain(sets).chain([Vec::new()]) {
        let template = ["template", "dry", &chart, "-n", "default", "--include-crds"];
        let manifest = kube.helm(&[&template[..], &values].concat());
        let manifest = manifest.expect("helm template");
        let file = written(&manifest).expect("a file");
        let path = file.path().display().to_string();
        let apply = [
            "apply",
            "--server-side",
            "--force-conflicts",
            "--field-manager=helm",
        ];
        let dry = ["--dry-run=server", "--validate=strict", "-f", &path];
        // A definition that has just been removed may be known still, or one that was made not yet.
        wait(&format!("{values:?} to be taken"), || {
            kubectl(&[&apply[..], &dry].concat())
        });
    }
}

/// Also those that YAML reads as a number, or as yes.
fn names_are_texts(kube: &Kube, chart: &str) {
    for (release, name) in [("true", "123"), ("true", "true")] {
        let name = format!("nameOverride={name}");
        let odd = ["template", release, chart, "--set-string", &name];
        let own = ["--set-string", "serviceAccount.name=123"];
        let without = ["--set", "crds.create=false"];
        let made = kube.helm(&[&odd[..], &own, &without].concat());
        let made = made.expect("helm template");
        for line in made.lines().map(str::trim) {
            let (key, value) = line.split_once(": ").unwrap_or_default();
            let is_name = key == "name" || key == "serviceAccountName" || key.starts_with("app.");
            let is_text = !["true", "123"].contains(&value);
            assert!(!is_name || is_text, "{line}");
        }
    }
}
