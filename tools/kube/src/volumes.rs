//! Volumes for claims: a folder for each, which every node can mount, as network storage does. Grows them too, unless a test
//! does that by hand.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use super::{Kube, sh};

/// The annotation of claims whose volumes don't grow by themselves: a test says what becomes of them.
const BY_HAND: &str = "bed.percolator.dev/grows-by-hand";
/// The annotation of claims whose volumes are file systems of their own, so that a test can have their disks hang.
const OWN_DISK: &str = "bed.percolator.dev/own-disk";
/// The size of such a volume, in bytes: folders of oracles and masters are small.
const OWN_DISK_BYTES: u64 = 64 << 20;
/// Each claim is tried so many times.
const ATTEMPTS: u32 = 5;

/// Serves claims until it's killed.
pub(crate) fn run(kube: &Kube) -> anyhow::Result<()> {
    loop {
        if let Err(error) = watch(kube) {
            eprintln!("{error:#}");
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

fn watch(kube: &Kube) -> anyhow::Result<()> {
    let mut kubectl = kube
        .command(&kube.programs.of("kubectl"))
        .args(["get", "persistentvolumeclaims", "-A", "-o", "json"])
        .args(["--watch", "--output-watch-events"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run kubectl")?;
    let events = kubectl.stdout.take().context("kubectl without output")?;
    for event in serde_json::Deserializer::from_reader(events).into_iter::<Value>() {
        let event = event.context("kubectl doesn't print JSON")?;
        let claim = &event["object"];
        for _ in 0..ATTEMPTS {
            let result = match event["type"].as_str() {
                Some("DELETED") => remove(kube, claim),
                _ => serve(kube, claim),
            };
            let Err(error) = result else { break };
            // The claim may be gone by now; or the API server is busy, and no other event of it comes.
            eprintln!("{}: {error:#}", claim["metadata"]["name"]);
            std::thread::sleep(Duration::from_millis(500));
        }
    }
    kubectl.wait()?;
    bail!("the watch ended; watching again")
}

fn volume(claim: &Value) -> anyhow::Result<String> {
    let uid = claim["metadata"]["uid"]
        .as_str()
        .context("a claim without uid")?;
    Ok(format!("pvc-{uid}"))
}

fn serve(kube: &Kube, claim: &Value) -> anyhow::Result<()> {
    if claim["spec"]["storageClassName"] != "local" {
        return Ok(());
    }
    let name = volume(claim)?;
    let asked = &claim["spec"]["resources"]["requests"]["storage"];
    if claim["spec"]["volumeName"].is_null() {
        let folder = kube.folder.join("volumes").join(&name);
        fs::create_dir_all(&folder)?;
        if !claim["metadata"]["annotations"][OWN_DISK].is_null() {
            mount_own_disk(&folder)?;
        }
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o770))?;
        let metadata = &claim["metadata"];
        kube.apply(
            &json!({
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": name},
                "spec": {
                    "capacity": {"storage": asked},
                    "accessModes": claim["spec"]["accessModes"],
                    "storageClassName": "local",
                    "persistentVolumeReclaimPolicy": "Retain",
                    "local": {"path": folder},
                    "claimRef": {
                        "apiVersion": "v1",
                        "kind": "PersistentVolumeClaim",
                        "namespace": metadata["namespace"],
                        "name": metadata["name"],
                        "uid": metadata["uid"],
                    },
                    "nodeAffinity": {"required": {"nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]}
                    ]}},
                },
            })
            .to_string(),
        )?;
    } else if claim["metadata"]["annotations"][BY_HAND].is_null()
        && claim["status"]["phase"] == "Bound"
        && claim["status"]["capacity"]["storage"] != *asked
    {
        let capacity = json!({"spec": {"capacity": {"storage": asked}}}).to_string();
        kube.kubectl([
            "patch",
            "persistentvolume",
            &name,
            "--type=merge",
            "-p",
            &capacity,
        ])?;
        let status = json!({"status": {"capacity": {"storage": asked}}}).to_string();
        let text = |field: &str| claim["metadata"][field].as_str().unwrap_or_default();
        kube.kubectl([
            "patch",
            "persistentvolumeclaim",
            text("name"),
            "-n",
            text("namespace"),
            "--subresource=status",
            "--type=merge",
            "-p",
            &status,
        ])?;
    }
    Ok(())
}

/// Mounts a file system in a file at this folder, unless that was done before.
fn mount_own_disk(folder: &Path) -> anyhow::Result<()> {
    let image = folder.with_extension("image");
    if image.exists() {
        return Ok(());
    }
    let made = folder.with_extension("part");
    fs::File::create(&made)?.set_len(OWN_DISK_BYTES)?;
    sh::output(Command::new("mkfs.ext4").arg("-q").arg(&made))?;
    sh::output(
        Command::new("mount")
            .args(["-o", "loop"])
            .args([&*made, folder]),
    )?;
    fs::rename(&made, &image)?;
    Ok(())
}

fn remove(kube: &Kube, claim: &Value) -> anyhow::Result<()> {
    let name = volume(claim)?;
    kube.kubectl([
        "delete",
        "persistentvolume",
        &name,
        "--ignore-not-found",
        "--wait=false",
    ])?;
    let folder = kube.folder.join("volumes").join(&name);
    if !claim["metadata"]["annotations"][OWN_DISK].is_null() {
        sh::output(Command::new("umount").arg("-l").arg(&folder))?;
        fs::remove_file(folder.with_extension("image"))?;
    }
    fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))
}
