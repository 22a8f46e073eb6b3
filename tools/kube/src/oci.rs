//! Images without a container engine: an OCI archive of one layer is a tar of five files.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context as _;
use serde_json::{Value, json};

use super::sh::{output, sh};
use crate::platform::Platform;

/// The content of an image.
#[derive(Debug)]
pub struct Image {
    /// NAME:TAG.
    pub name: String,
    platform: Platform,
    /// The program that a container of it runs.
    pub entrypoint: String,
    /// The user that runs it.
    pub user: String,
    /// The folder in which its programs start and write.
    volume: Option<String>,
    /// Its labels, as registries and scanners show them.
    labels: Vec<(String, String)>,
    root: tempfile::TempDir,
}

/// Of Debian's package ca-certificates.
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

impl Image {
    /// Of this machine's platform.
    pub fn new(name: &str, entrypoint: &str) -> anyhow::Result<Self> {
        Self::of(Platform::native()?, name, entrypoint)
    }

    /// An empty image.
    pub fn of(platform: Platform, name: &str, entrypoint: &str) -> anyhow::Result<Self> {
        let root = tempfile::tempdir()?;
        for folder in ["etc", "tmp"] {
            fs::create_dir(root.path().join(folder))?;
        }
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755))?;
        fs::set_permissions(root.path().join("tmp"), fs::Permissions::from_mode(0o1777))?;
        fs::write(
            root.path().join("etc/passwd"),
            "root:x:0:0::/:/\nnonroot:x:65532:65532::/:/\n",
        )?;
        Ok(Self {
            name: name.to_owned(),
            platform,
            entrypoint: entrypoint.to_owned(),
            user: "65532:65532".to_owned(),
            volume: None,
            labels: Vec::new(),
            root,
        })
    }

    fn place(&self, path: &str) -> anyhow::Result<PathBuf> {
        let place = self.root.path().join(path.trim_start_matches('/'));
        if let Some(folder) = place.parent() {
            fs::create_dir_all(folder)?;
        }
        Ok(place)
    }

    /// Makes a folder the volume in which programs start. Anyone who runs them may write to it.
    pub fn volume(&mut self, path: &str) -> anyhow::Result<()> {
        let place = self.place(path)?;
        fs::create_dir(&place)?;
        fs::set_permissions(&place, fs::Permissions::from_mode(0o1777))?;
        self.volume = Some(path.to_owned());
        Ok(())
    }

    /// Adds a program at a path of the image, without what only debuggers read.
    pub fn program(&self, file: &Path, path: &str) -> anyhow::Result<()> {
        let place = self.place(path)?;
        output(
            Command::new(self.platform.tool("strip"))
                .arg("-o")
                .arg(&place)
                .arg(file),
        )?;
        fs::set_permissions(&place, fs::Permissions::from_mode(0o755))?;
        Ok(())
    }

    /// Adds a script at a path of the image.
    pub fn script(&self, text: &str, path: &str) -> anyhow::Result<()> {
        let place = self.place(path)?;
        fs::write(&place, text)?;
        fs::set_permissions(&place, fs::Permissions::from_mode(0o755))?;
        Ok(())
    }

    /// Adds another name of what lies beside it.
    pub fn link(&self, path: &str, of: &str) -> anyhow::Result<()> {
        symlink(of, self.place(path)?)?;
        Ok(())
    }

    /// Adds the shared libraries that a program needs, where its loader searches for them.
    pub fn libraries_of(&self, file: &Path) -> anyhow::Result<()> {
        let libraries = if self.platform.is_native() {
            let needed = output(Command::new("ldd").arg(file))?;
            let words = needed.split_whitespace();
            let paths = words.filter(|word| word.starts_with('/'));
            paths.map(|path| (path.into(), path.to_owned())).collect()
        } else {
            self.platform.libraries(file)?
        };
        for (library, path) in libraries {
            let place = self.place(&path)?;
            if !place.exists() {
                let real = fs::canonicalize(&library).with_context(|| path.clone())?;
                fs::copy(&real, &place).with_context(|| path.clone())?;
                fs::set_permissions(&place, fs::Permissions::from_mode(0o755))?;
            }
        }
        Ok(())
    }

    /// Adds the certificates by which servers of the internet are known, where programs search for them; if this machine has them.
    pub fn certificates(&self) -> anyhow::Result<()> {
        if Path::new(CERTIFICATES).exists() {
            fs::copy(CERTIFICATES, self.place(CERTIFICATES)?).context(CERTIFICATES)?;
        } else {
            println!(
                "{CERTIFICATES} isn't here: programs in the image can't check servers of https"
            );
        }
        Ok(())
    }

    /// Says something of the image, by a key of the OCI image specification without its prefix, such as `version`.
    pub fn label(&mut self, key: &str, value: &str) {
        let key = format!("org.opencontainers.image.{key}");
        self.labels.push((key, value.to_owned()));
    }

    /// Writes an archive of it, and gives the number of bytes in its layer.
    pub fn write(&self, archive: &Path) -> anyhow::Result<u64> {
        Ok(write(std::slice::from_ref(self), archive)?[0])
    }

    /// Adds its layer, its settings and its manifest to the blobs: what an index says of it, and the number of bytes in the layer.
    fn add_to(&self, blobs: &Blobs) -> anyhow::Result<(Value, u64)> {
        let (diff, bytes) = blobs.add(|layer| tar(self.root.path(), layer))?;
        let mut settings = json!({
            "Entrypoint": [self.entrypoint],
            "Env": ["PATH=/usr/local/bin"],
            "User": self.user,
            "WorkingDir": self.volume.as_deref().unwrap_or("/"),
        });
        if let Some(volume) = &self.volume {
            settings["Volumes"][volume] = json!({});
        }
        for (key, value) in &self.labels {
            settings["Labels"][key] = json!(value);
        }
        let architecture = self.platform.architecture();
        let config = blobs.add_json(
            "application/vnd.oci.image.config.v1+json",
            &json!({
                "architecture": architecture,
                "os": "linux",
                "config": settings,
                "rootfs": {"type": "layers", "diff_ids": [diff]},
            }),
        )?;
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let mut manifest = blobs.add_json(
            kind,
            &json!({
                "schemaVersion": 2,
                "mediaType": kind,
                "config": config,
                "layers": [{
                    "mediaType": "application/vnd.oci.image.layer.v1.tar",
                    "digest": diff,
                    "size": bytes,
                }],
            }),
        )?;
        manifest["platform"] = json!({"os": "linux", "architecture": architecture});
        Ok((manifest, bytes))
    }
}

/// Writes an archive of an image for each of several platforms, all of one name. Gives the number of bytes in the layer of each.
pub fn write(images: &[Image], archive: &Path) -> anyhow::Result<Vec<u64>> {
    let work = tempfile::tempdir()?;
    let blobs = Blobs(work.path().join("blobs/sha256"));
    fs::create_dir_all(&blobs.0)?;
    let (mut manifests, mut bytes) = (Vec::new(), Vec::new());
    for image in images {
        let (manifest, layer) = image.add_to(&blobs)?;
        manifests.push(manifest);
        bytes.push(layer);
    }
    let mut named = match &manifests[..] {
        [manifest] => manifest.clone(),
        manifests => {
            let kind = "application/vnd.oci.image.index.v1+json";
            let index = json!({"schemaVersion": 2, "mediaType": kind, "manifests": manifests});
            blobs.add_json(kind, &index)?
        }
    };
    if let [first, ..] = images {
        named["annotations"] = json!({
            "io.containerd.image.name": first.name,
            "org.opencontainers.image.ref.name": first.name,
        });
    }
    let index = json!({"schemaVersion": 2, "manifests": [named]});
    fs::write(work.path().join("index.json"), index.to_string())?;
    fs::write(
        work.path().join("oci-layout"),
        r#"{"imageLayoutVersion":"1.0.0"}"#,
    )?;
    tar(work.path(), archive)?;
    Ok(bytes)
}

/// The folder of an archive in which each file is called by its digest.
struct Blobs(PathBuf);

impl Blobs {
    /// Adds what this makes: its digest, and its size.
    fn add(&self, make: impl FnOnce(&Path) -> anyhow::Result<()>) -> anyhow::Result<(String, u64)> {
        let file = self.0.join("new");
        make(&file)?;
        let digest = digest(&file)?;
        let bytes = file.metadata()?.len();
        fs::rename(&file, self.0.join(&digest))?;
        Ok((format!("sha256:{digest}"), bytes))
    }

    /// Adds a document of this media type: what refers to it.
    fn add_json(&self, kind: &str, value: &Value) -> anyhow::Result<Value> {
        let write = |file: &Path| Ok(fs::write(file, value.to_string())?);
        let (digest, size) = self.add(write)?;
        Ok(json!({"mediaType": kind, "digest": digest, "size": size}))
    }
}

/// The same folder gives the same bytes.
fn tar(folder: &Path, archive: &Path) -> anyhow::Result<()> {
    let archive = std::path::absolute(archive)?;
    sh(&format!(
        "cd '{}' && tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf '{}' -- *",
        folder.display(),
        archive.display()
    ))?;
    Ok(())
}

pub(super) fn digest(file: &Path) -> anyhow::Result<String> {
    let text = output(Command::new("sha256sum").arg(file))?;
    let digest = text.split_whitespace().next();
    digest.map(str::to_owned).context("sha256sum says nothing")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_of_two_platforms_is_an_index() {
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("image.tar");
        let images = [Platform::Amd64, Platform::Arm64];
        let images = images.map(|platform| Image::of(platform, "a:1", "/bin/a").unwrap());
        assert_eq!(write(&images, &archive).unwrap().len(), 2);
        let file = |name: &str| -> Value {
            let mut tar = Command::new("tar");
            let text = output(tar.arg("-xOf").arg(&archive).arg(name)).unwrap();
            serde_json::from_str(&text).unwrap()
        };
        let index = file("index.json");
        let named = &index["manifests"][0];
        assert_eq!(named["annotations"]["io.containerd.image.name"], "a:1");
        let blob = |of: &Value| {
            let digest = of["digest"].as_str().unwrap().replace(':', "/");
            file(&format!("blobs/{digest}"))
        };
        let index = blob(named);
        let manifests = index["manifests"].as_array().unwrap();
        let of = |it: &Value| it["platform"]["architecture"].clone();
        assert_eq!(
            manifests.iter().map(of).collect::<Vec<_>>(),
            ["amd64", "arm64"]
        );
        let config = blob(&blob(&manifests[1])["config"]);
        assert_eq!(config["architecture"], "arm64");
    }

    #[test]
    fn the_volume_is_in_the_image_and_anybody_may_write_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("image.tar");
        let mut image = Image::new("a:1", "/bin/a").unwrap();
        image.volume("/data").unwrap();
        image.label("version", "1.2.3");
        image.write(&archive).unwrap();
        let tar = |more: &[&str]| {
            let mut command = Command::new("tar");
            output(command.args(more).arg("-f").arg(&archive)).unwrap()
        };
        let mut found = (false, false);
        for blob in tar(&["-t"]).lines().filter(|name| name.contains("sha256/")) {
            if blob.ends_with('/') {
                continue;
            }
            let file = folder.path().join("blob");
            sh(&format!(
                "tar -xOf '{}' {blob} > '{}'",
                archive.display(),
                file.display()
            ))
            .unwrap();
            if let Ok(value) = serde_json::from_slice::<Value>(&fs::read(&file).unwrap()) {
                let config = &value["config"];
                found.0 |= config["WorkingDir"] == "/data"
                    && config["Volumes"] == json!({"/data": {}})
                    && config["Labels"] == json!({"org.opencontainers.image.version": "1.2.3"})
                    && config["User"] == "65532:65532";
            } else {
                let list = output(Command::new("tar").arg("-tvf").arg(&file)).unwrap();
                let is_data =
                    |line: &str| line.starts_with("drwxrwxrwt") && line.ends_with(" data/");
                found.1 |= list.lines().any(is_data);
            }
        }
        assert_eq!(found, (true, true), "in the settings, in the layer");
    }
}
