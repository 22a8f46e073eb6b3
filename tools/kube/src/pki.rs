//! Certificates, and the configurations of those who hold them.

use std::{fs, path::Path};

use anyhow::Context as _;

use super::sh::sh;

const CURVE: &str = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";

/// Makes the authority, and the key that service accounts' tokens are signed with.
pub(crate) fn authority(folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder)?;
    let p = folder.display();
    sh(&format!(
        "openssl req -x509 {CURVE} -days 3650 -subj /CN=kube-ca -keyout {p}/ca.key -out {p}/ca.crt
         openssl genrsa -out {p}/sa.key 2048
         openssl rsa -in {p}/sa.key -pubout -out {p}/sa.pub"
    ))?;
    Ok(())
}

/// A certificate for a subject such as `/O=group/CN=name`; `hosts` in openssl's words, empty for clients alone.
pub(crate) fn certificate(
    folder: &Path,
    name: &str,
    subject: &str,
    hosts: &str,
) -> anyhow::Result<()> {
    let p = folder.display();
    let mut extensions = "extendedKeyUsage=serverAuth,clientAuth\n".to_owned();
    if !hosts.is_empty() {
        extensions += &format!("subjectAltName={hosts}\n");
    }
    fs::write(folder.join(format!("{name}.ext")), extensions)?;
    sh(&format!(
        "openssl req {CURVE} -subj {subject} -keyout {p}/{name}.key -out {p}/{name}.csr
         openssl x509 -req -in {p}/{name}.csr -CA {p}/ca.crt -CAkey {p}/ca.key \
           -set_serial 0x$(openssl rand -hex 8) -days 3650 -extfile {p}/{name}.ext -out {p}/{name}.crt"
    ))?;
    Ok(())
}

/// Writes a kubeconfig for anyone who has this certificate.
pub(crate) fn kubeconfig(
    folder: &Path,
    name: &str,
    server: &str,
    file: &Path,
) -> anyhow::Result<()> {
    let p = folder.display();
    let text = format!(
        "apiVersion: v1
kind: Config
clusters:
- name: kube
  cluster: {{server: '{server}', certificate-authority: '{p}/ca.crt'}}
users:
- name: user
  user: {{client-certificate: '{p}/{name}.crt', client-key: '{p}/{name}.key'}}
contexts:
- name: kube
  context: {{cluster: kube, user: user}}
current-context: kube
"
    );
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}
