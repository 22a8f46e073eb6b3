//! Images without a container engine: an OCI archive of one layer is a tar of five files.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use super::sh::{output, sh};

/// What goes into an image.
#[derive(Debug)]
pub(crate) struct Image {
    /// NAME:TAG.
    pub(crate) name: String,
    pub(crate) entrypoint: String,
    pub(crate) user: String,
    /// Where its programs start, and keep what they write.
    volume: Option<String>,
    /// What it says of itself, as registries and scanners show it.
    labels: Vec<(String, String)>,
    root: tempfile::TempDir,
}

/// Of Debian's package ca-certificates.
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

impl Image {
    pub(crate) fn new(name: &str, entrypoint: &str) -> anyhow::Result<Self> {
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
    pub(crate) fn volume(&mut self, path: &str) -> anyhow::Result<()> {
        let place = self.place(path)?;
        fs::create_dir(&place)?;
        fs::set_permissions(&place, fs::Permissions::from_mode(0o1777))?;
        self.volume = Some(path.to_owned());
        Ok(())
    }

    /// Adds a program at a path of the image, without what only debuggers read.
    pub(crate) fn program(&self, file: &Path, path: &str) -> anyhow::Result<()> {
        let place = self.place(path)?;
        output(Command::new("strip").arg("-o").arg(&place).arg(file))?;
        fs::set_permissions(&place, fs::Permissions::from_mode(0o755))?;
        Ok(())
    }

    /// Adds a script at a path of the image.
    pub(crate) fn script(&self, text: &str, path: &str) -> anyhow::Result<()> {
        let place = self.place(path)?;
        fs::write(&place, text)?;
        fs::set_permissions(&place, fs::Permissions::from_mode(0o755))?;
        Ok(())
    }

    /// Adds another name of what lies beside it.
    pub(crate) fn link(&self, path: &str, of: &str) -> anyhow::Result<()> {
        symlink(of, self.place(path)?)?;
        Ok(())
    }

    /// Adds the shared libraries that a program needs, where it looks for them.
    pub(crate) fn libraries_of(&self, file: &Path) -> anyhow::Result<()> {
        let needed = output(Command::new("ldd").arg(file))?;
        for library in needed
            .split_whitespace()
            .filter(|word| word.starts_with('/'))
        {
            let place = self.place(library)?;
            if !place.exists() {
                let real = fs::canonicalize(library).with_context(|| library.to_owned())?;
                fs::copy(&real, &place).with_context(|| library.to_owned())?;
                fs::set_permissions(&place, fs::Permissions::from_mode(0o755))?;
            }
        }
        Ok(())
    }

    /// Adds the certificates by which servers of the internet are known, where programs look for them; if this machine has them.
    pub(crate) fn certificates(&self) -> anyhow::Result<()> {
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
    pub(crate) fn label(&mut self, key: &str, value: &str) {
        let key = format!("org.opencontainers.image.{key}");
        self.labels.push((key, value.to_owned()));
    }

    /// Writes the archive, and gives the number of bytes in the layer.
    pub(crate) fn write(&self, archive: &Path) -> anyhow::Result<u64> {
        let work = tempfile::tempdir()?;
        let blobs = work.path().join("blobs/sha256");
        fs::create_dir_all(&blobs)?;
        let layer = work.path().join("layer");
        tar(self.root.path(), &layer)?;
        let bytes = layer.metadata()?.len();
        let diff = digest(&layer)?;
        fs::rename(&layer, blobs.join(&diff))?;
        let blob = |value: &Value| -> anyhow::Result<Value> {
            let file = work.path().join("blob");
            let text = value.to_string();
            fs::write(&file, &text)?;
            let digest = digest(&file)?;
            fs::rename(&file, blobs.join(&digest))?;
            Ok(json!({"digest": format!("sha256:{digest}"), "size": text.len()}))
        };
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
        let mut config = blob(&json!({
            "architecture": architecture()?,
            "os": "linux",
            "config": settings,
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{diff}")]},
        }))?;
        config["mediaType"] = json!("application/vnd.oci.image.config.v1+json");
        let mut manifest = blob(&json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config,
            "layers": [{
                "mediaType": "application/vnd.oci.image.layer.v1.tar",
                "digest": format!("sha256:{diff}"),
                "size": bytes,
            }],
        }))?;
        manifest["mediaType"] = json!("application/vnd.oci.image.manifest.v1+json");
        manifest["annotations"] = json!({
            "io.containerd.image.name": self.name,
            "org.opencontainers.image.ref.name": self.name,
        });
        let index = json!({"schemaVersion": 2, "manifests": [manifest]});
        fs::write(work.path().join("index.json"), index.to_string())?;
        fs::write(
            work.path().join("oci-layout"),
            r#"{"imageLayoutVersion":"1.0.0"}"#,
        )?;
        tar(work.path(), archive)?;
        Ok(bytes)
    }
}

fn architecture() -> anyhow::Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => bail!("images of {other} have no name here"),
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

fn digest(file: &Path) -> anyhow::Result<String> {
    let text = output(Command::new("sha256sum").arg(file))?;
    let digest = text.split_whitespace().next();
    digest.map(str::to_owned).context("sha256sum says nothing")
}

#[cfg(test)]
mod tests {
    use super::*;

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
