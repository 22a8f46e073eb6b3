//! The command `percolator`, in a pod that has it, or in one of its own.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::{Kube, Namespace, PROGRAM, SCRATCH, nodes, say, server_of, wait};

impl Namespace {
    /// Runs it in this pod, about a cluster of this namespace. What it prints.
    pub fn percolator(
        &self,
        pod: &str,
        cluster: &str,
        arguments: &[&str],
    ) -> Result<String, String> {
        let server = server_of(cluster);
        let exec = ["exec", pod, "--", PROGRAM, "-c", &server];
        self.kubectl(&[&exec[..], arguments].concat())
    }

    /// Runs it in this pod, with this on its standard input.
    pub fn percolator_with(
        &self,
        pod: &str,
        cluster: &str,
        arguments: &[&str],
        input: &str,
    ) -> Result<(), String> {
        let server = server_of(cluster);
        let mut command = self.command();
        command.args(["exec", "-i", pod, "--", PROGRAM, "-c", &server]);
        with_input(command.args(arguments), input)
    }

    /// The file below [`SCRATCH`] of a running pod that a test has started on the first node.
    pub fn scratch_file(&self, pod: &str, file: &str) -> std::path::PathBuf {
        let uid = wait(pod, || self.get("pod", pod))["metadata"]["uid"].clone();
        let uid = uid.as_str().unwrap_or_default();
        let volume = format!("kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/scratch");
        nodes::folder(1).join(volume).join(file)
    }

    /// Starts `percolator` in a pod of its own, on the first node. The label `run` has the pod's name, as with `kubectl run`.
    pub fn start(&self, kube: &Kube, pod: &str, arguments: &[&str]) {
        let list: Vec<String> = arguments.iter().map(|word| format!("{word:?}")).collect();
        let (list, image) = (list.join(", "), &kube.image);
        let manifest = format!(
            "
apiVersion: v1
kind: Pod
metadata: {{name: {pod}, labels: {{run: {pod}}}}}
spec:
  restartPolicy: Never
  nodeSelector: {{kubernetes.io/hostname: node-1}}
  securityContext: {{runAsNonRoot: true, runAsUser: 65532, seccompProfile: {{type: RuntimeDefault}}}}
  containers:
  - name: percolator
    image: {image}
    imagePullPolicy: Never
    args: [{list}]
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {{drop: [ALL]}}
    volumeMounts: [{{name: scratch, mountPath: {SCRATCH}}}]
  volumes: [{{name: scratch, emptyDir: {{}}}}]
"
        );
        // A new namespace has its service account a moment later.
        wait("a pod", || self.apply(&manifest));
    }

    /// Waits until a bank in such a pod ends, which has to report that no money was lost; prints its report.
    pub fn bank_ends_well(&self, pod: &str) {
        let (ended_well, printed) = self.wait_for_end(pod);
        assert!(
            ended_well && printed.contains("no money was lost or made"),
            "{printed}"
        );
        let summary = printed
            .lines()
            .skip_while(|line| !line.starts_with("transfers  "));
        summary.for_each(say);
    }

    /// The pods' names, each with its uid and its count of restarts.
    pub fn incarnations(&self, cluster: &str) -> Vec<String> {
        let pods = self.pods(cluster).expect("a list of pods");
        let incarnation = |pod: &Value| {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let (name, uid) = (
                text(&pod["metadata"]["name"]),
                text(&pod["metadata"]["uid"]),
            );
            let restarts = &pod["status"]["containerStatuses"][0]["restartCount"];
            format!("{name} {uid} {restarts}")
        };
        pods.iter().map(incarnation).collect()
    }

    /// The pods that restarted, or were replaced, since there were these.
    pub fn restarted(&self, cluster: &str, before: &[String]) -> Vec<String> {
        let mut now = self.incarnations(cluster);
        now.retain(|incarnation| !before.contains(incarnation));
        now
    }

    /// Kills a server's pod, and waits for its replacement.
    pub fn kill(&self, pod: &str) {
        let uid = wait(pod, || self.get("pod", pod))["metadata"]["uid"].clone();
        self.kubectl(&["delete", "pod", pod, "--force", "--grace-period=0"])
            .expect("a pod's end");
        wait("its replacement", || match self.get("pod", pod) {
            Ok(found) if found["metadata"]["uid"] != uid => Ok(()),
            other => Err(format!("{other:?}")),
        });
    }

    /// Waits until such a pod ends; gives what it printed, and whether it ended well.
    pub fn wait_for_end(&self, pod: &str) -> (bool, String) {
        let phase = wait(&format!("the end of {pod}"), || {
            let found = self.get("pod", pod)?;
            match found["status"]["phase"].as_str() {
                Some(phase @ ("Succeeded" | "Failed")) => Ok(phase.to_owned()),
                phase => Err(format!("{phase:?}")),
            }
        });
        let printed = wait("what it printed", || self.log(pod));
        (phase == "Succeeded", printed)
    }

    /// Starts it again, in one pod after the other, until it prints this. DNS may give the address of a service that was
    /// deleted for 30 seconds, and `percolator` gives up before.
    pub fn wait_until_it_prints(&self, kube: &Kube, pod: &str, arguments: &[&str], line: &str) {
        let mut count = 0;
        wait(&format!("{line:?} of {pod}"), || {
            count += 1;
            let pod = format!("{pod}-{count}");
            self.start(kube, &pod, arguments);
            match self.wait_for_end(&pod) {
                (true, printed) if printed == line => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
    }
}

/// Runs a command, with this on its standard input.
pub(crate) fn with_input(command: &mut Command, input: &str) -> Result<(), String> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    // It reads all before it says anything. Who doesn't read it says why below.
    if let Some(mut stdin) = child.stdin.take() {
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child
        .wait_with_output()
        .map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}
