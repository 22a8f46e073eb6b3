//! The control plane: etcd, the API server, DNS, the controller manager and the scheduler, as processes of the machine.

use std::{fs, process::Command};

use anyhow::Context as _;

use super::network::{Family, Network};
use super::sh::{start, wait};
use super::{ETCD, ETCD_PEERS, Kube, PORT, READY, pki};

/// The audit policy: requests of the operator alone, in the namespace of the chart by this project's pages.
const AUDIT: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  userGroups: ['system:serviceaccounts:percolator-system']
- level: None
";

/// Starts all of them, and returns when the API server is ready.
pub(super) fn start_all(kube: &Kube, network: Network) -> anyhow::Result<()> {
    make_certificates(kube, network.first())?;
    start_etcd(kube)?;
    start_api_server(kube, network)?;
    start_dns(kube, network.first())?;
    start_controllers(kube)
}

fn make_certificates(kube: &Kube, family: Family) -> anyhow::Result<()> {
    let (hub, first) = (family.hub(), family.first_service());
    let p = kube.folder.join("pki");
    pki::authority(&p)?;
    let hosts = format!(
        "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:localhost,IP:127.0.0.1,IP:{first},IP:{hub}"
    );
    pki::certificate(&p, "apiserver", "/CN=kube-apiserver", &hosts)?;
    for (name, subject) in [
        ("admin", "/O=system:masters/CN=admin"),
        ("manager", "/CN=system:kube-controller-manager"),
        ("scheduler", "/CN=system:kube-scheduler"),
        ("proxy", "/CN=system:kube-proxy"),
        (
            "kubelet-client",
            "/O=system:masters/CN=apiserver-kubelet-client",
        ),
        ("front-proxy", "/CN=front-proxy"),
    ] {
        pki::certificate(&p, name, subject, "")?;
        let file = kube.folder.join(format!("{name}.conf"));
        pki::kubeconfig(&p, name, &family.server(), &file)?;
    }
    Ok(())
}

fn start_etcd(kube: &Kube) -> anyhow::Result<()> {
    let mut etcd = Command::new("etcd");
    etcd.arg("--data-dir").arg(kube.folder.join("etcd")).args([
        &format!("--listen-client-urls=http://{ETCD}"),
        &format!("--advertise-client-urls=http://{ETCD}"),
        &format!("--listen-peer-urls=http://{ETCD_PEERS}"),
        // A test's cluster goes with the machine.
        "--unsafe-no-fsync",
    ]);
    start(&mut etcd, &kube.log("etcd"))
}

fn start_api_server(kube: &Kube, network: Network) -> anyhow::Result<()> {
    let family = network.first();
    let (hub, any) = (family.hub(), family.unspecified());
    let services = network.list(Family::services);
    let policy = kube.folder.join("audit.yaml");
    fs::write(&policy, AUDIT).with_context(|| format!("cannot write {}", policy.display()))?;
    let p = kube.folder.join("pki");
    let p = p.display();
    let mut apiserver = Command::new(kube.programs.of("kube-apiserver"));
    apiserver.args([
        format!("--etcd-servers=http://{ETCD}"),
        format!("--secure-port={PORT}"),
        format!("--bind-address={any}"),
        format!("--advertise-address={hub}"),
        format!("--client-ca-file={p}/ca.crt"),
        format!("--tls-cert-file={p}/apiserver.crt"),
        format!("--tls-private-key-file={p}/apiserver.key"),
        format!("--kubelet-client-certificate={p}/kubelet-client.crt"),
        format!("--kubelet-client-key={p}/kubelet-client.key"),
        format!("--kubelet-certificate-authority={p}/ca.crt"),
        // By name nobody finds a node here.
        "--kubelet-preferred-address-types=InternalIP".into(),
        // Other servers answer for APIs of their own, as for metrics, and are asked in the name of who asks.
        format!("--requestheader-client-ca-file={p}/ca.crt"),
        "--requestheader-allowed-names=front-proxy".into(),
        "--requestheader-username-headers=X-Remote-User".into(),
        "--requestheader-group-headers=X-Remote-Group".into(),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".into(),
        format!("--proxy-client-cert-file={p}/front-proxy.crt"),
        format!("--proxy-client-key-file={p}/front-proxy.key"),
        format!("--service-account-key-file={p}/sa.pub"),
        format!("--service-account-signing-key-file={p}/sa.key"),
        "--service-account-issuer=https://kubernetes.default.svc".into(),
        format!("--service-cluster-ip-range={services}"),
        "--authorization-mode=Node,RBAC".into(),
        // As OpenShift has it: who lets an object block its owner's deletion has to be allowed to.
        "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement".into(),
        "--allow-privileged=true".into(),
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", kube.audit().display()),
        // All of it is read at the end.
        "--audit-log-maxsize=4000".into(),
    ]);
    if kube.programs.release().has_mutating_policies() {
        // They are beta still; a test changes StatefulSets by one.
        apiserver.args([
            "--feature-gates=MutatingAdmissionPolicy=true",
            "--runtime-config=admissionregistration.k8s.io/v1beta1=true",
        ]);
    }
    start(&mut apiserver, &kube.log("apiserver"))?;
    wait(READY, || {
        kube.kubectl(["get", "--raw=/readyz"])
            .map_err(|error| format!("the API server: {error:#}"))
    })?;
    Ok(())
}

fn start_dns(kube: &Kube, family: Family) -> anyhow::Result<()> {
    let hub = family.hub();
    let corefile = kube.folder.join("Corefile");
    let admin = configuration(kube, "admin");
    fs::write(
        &corefile,
        format!(
            ".:53 {{
    bind {hub}
    errors
    ready 127.0.0.1:8181
    kubernetes cluster.local {{
        kubeconfig {admin} kube
        ttl 30
    }}
    cache 30
}}
"
        ),
    )?;
    let mut dns = Command::new(kube.programs.coredns());
    dns.arg("-conf").arg(&corefile);
    start(&mut dns, &kube.log("dns"))
}

/// The controller manager and the scheduler.
fn start_controllers(kube: &Kube) -> anyhow::Result<()> {
    let p = kube.folder.join("pki");
    let p = p.display();
    let mut manager = Command::new(kube.programs.of("kube-controller-manager"));
    manager.args([
        format!("--kubeconfig={}", configuration(kube, "manager")),
        format!("--service-account-private-key-file={p}/sa.key"),
        format!("--root-ca-file={p}/ca.crt"),
        "--use-service-account-credentials=true".into(),
        "--leader-elect=false".into(),
        "--bind-address=127.0.0.1".into(),
        "--node-monitor-grace-period=20s".into(),
    ]);
    start(&mut manager, &kube.log("manager"))?;
    let mut scheduler = Command::new(kube.programs.of("kube-scheduler"));
    scheduler.args([
        format!("--kubeconfig={}", configuration(kube, "scheduler")),
        // A pod whose volume was bound while it was being scheduled is scheduled again soon, not after five minutes.
        "--pod-max-in-unschedulable-pods-duration=10s".to_owned(),
        "--leader-elect=false".into(),
        "--bind-address=127.0.0.1".into(),
    ]);
    start(&mut scheduler, &kube.log("scheduler"))
}

/// The path of a kubeconfig.
fn configuration(kube: &Kube, name: &str) -> String {
    let file = kube.folder.join(format!("{name}.conf"));
    file.display().to_string()
}
