//! Workers with a program of their own, in an image of its own, are as many as an autoscaler asks for, which goes by the
//! changes that wait: docs/kubernetes.md says how, and this follows the page.

use percolator_e2e::adapter::Adapter;
use percolator_e2e::prometheus::{Prometheus, documented_configuration};
use percolator_e2e::{Kube, Namespace, say, small, wait};

const SPACE: &str = "observers";
const MASTER: &str = "demo-master-0";
const DOCUMENTS: usize = 400;
const WORKERS_MAX: &str = "3";

/// Runs the command in the master's pod.
fn percolator(space: &Namespace, arguments: &[&str]) -> Result<String, String> {
    space.percolator(MASTER, "demo", arguments)
}

/// One run takes half a second, and a worker has two at a time.
fn spec(kube: &Kube) -> String {
    format!(
        "  observers:
    - name: words
      table: documents
      column: text
      exec: measure
      image: {}
      concurrency: 2
      resources: {{requests: {{cpu: 10m, memory: 64Mi}}}}",
        kube.handler_image
    )
}

/// The manifest of the page, with small numbers.
fn autoscaler(kube: &Kube) -> String {
    let begins =
        "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: words}";
    let documented = kube.documented("kubernetes.md", begins);
    let numbers = [
        ("maxReplicas: 10", &format!("maxReplicas: {WORKERS_MAX}")),
        (
            r#"averageValue: "500""#,
            &r#"averageValue: "20""#.to_owned(),
        ),
        (r#"value: "30""#, &r#"value: "10""#.to_owned()),
    ];
    let small = numbers.iter().fold(documented, |text, (number, small)| {
        assert_eq!(text.matches(number).count(), 1, "{number} in {text}");
        text.replace(number, small)
    });
    // Otherwise fewer are asked for after five minutes.
    format!("{small}  behavior: {{scaleDown: {{stabilizationWindowSeconds: 0}}}}\n")
}

/// Waits until there are so many workers, and all serve.
fn wait_for_workers(space: &Namespace, count: &str) {
    wait(&format!("{count} workers"), || {
        let status = space.get("perc", "demo")?["status"]["observers"]["words"].clone();
        if status["summary"].as_str() == Some(&format!("{count}/{count}")) {
            return Ok(());
        }
        let asked = space.kubectl(&["get", "hpa", "words", "-o", "jsonpath={.status}"]);
        Err(format!("{status}, {asked:?}"))
    });
}

#[test]
fn workers_with_a_program_of_their_own_are_scaled_by_the_changes_that_wait() {
    let Some(kube) = Kube::find() else { return };
    kube.install(&[]);
    let space = kube.namespace(SPACE);
    let configuration = documented_configuration(&kube);
    space.apply(&small("demo", "")).expect("a cluster");
    let Some(prometheus) = Prometheus::start(&configuration, &[], &[SPACE]) else {
        return;
    };
    space.wait_until_up_to_date("demo");
    percolator(&space, &["table", "create", "documents"]).expect("a table");
    let changed = small("demo", &spec(&kube));
    space.apply(&changed).expect("an observer");
    say("the program of its image runs for each change");
    wait_for_workers(&space, "1");
    percolator(&space, &["put", "documents", "first", "text", "elevenths"]).expect("a change");
    wait("the cell that follows", || {
        match percolator(&space, &["get", "documents", "first", "length"])? {
            found if found == "9" => Ok(()),
            other => Err(other),
        }
    });

    let rules = kube.documented("kubernetes.md", "externalRules:");
    let Some(_adapter) = Adapter::start(&rules, &prometheus, &space) else {
        return;
    };
    space.apply(&autoscaler(&kube)).expect("an autoscaler");
    say("many changes wait, and workers are added");
    let lines = (0..DOCUMENTS).map(|it| format!("{{\"id\":\"{it:05}\",\"text\":\"three\"}}\n"));
    let import = ["import", "--table", "documents", "--key", "id", "-"];
    space
        .percolator_with(MASTER, "demo", &import, &lines.collect::<String>())
        .expect("an import");
    wait_for_workers(&space, WORKERS_MAX);
    say("none waits, and one is left");
    wait_for_workers(&space, "1");
    let all = percolator(&space, &["scan", "documents", "-o", "json"]).expect("all rows");
    let followed = all.matches(r#""column":"length","value":"5""#).count();
    assert_eq!(followed, DOCUMENTS, "{all}");
    space.wait_for("demo", "Ready", "True", "UpToDate");
}
