//! A mutating admission webhook on this machine, which has pods run another image than they ask for, as a cluster does that takes
//! images from a mirror.

use std::fs;
use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

use crate::receiver::{MACHINE, REQUEST_TIMEOUT, answer_calls};
use crate::{Namespace, kubectl};

const NAME: &str = "percolator-e2e-images";

/// Answers the API server's calls, which end with the value.
#[derive(Debug)]
pub struct ImageWebhook;

impl ImageWebhook {
    /// From now on StatefulSets and pods of this namespace that ask for the one image get the other one.
    pub fn begin(space: &Namespace, asked: &str, got: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name| folder.path().join(name).display().to_string();
        let (certificate, key) = (path("certificate"), path("key"));
        let make = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=webhook";
        let mut openssl = Command::new("openssl");
        openssl.args(make.split(' '));
        openssl.args(["-addext", &format!("subjectAltName=IP:{MACHINE}")]);
        openssl.args(["-keyout", &key, "-out", &certificate]);
        let made = openssl.output().expect("openssl");
        assert!(made.status.success(), "{made:?}");
        let chain = vec![CertificateDer::from_pem_file(&certificate).expect("a certificate")];
        let private = PrivateKeyDer::from_pem_file(&key).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(chain, private)
            .expect("a certificate of this key");
        let listener = TcpListener::bind((MACHINE, 0)).expect("an address of this machine");
        let address = listener.local_addr().expect("an address");
        let images = Arc::new((asked.to_owned(), got.to_owned()));
        let config = Arc::new(config);
        std::thread::spawn(move || serve(&listener, &config, &images));
        let authority = fs::read(&certificate).expect("a certificate");
        let webhook = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": NAME},
            "webhooks": [{
                "name": "images.percolator.example",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Fail",
                "reinvocationPolicy": "IfNeeded",
                "clientConfig": {
                    "url": format!("https://{address}/images"),
                    "caBundle": base64(&authority),
                },
                "namespaceSelector": {
                    "matchLabels": {"kubernetes.io/metadata.name": space.name},
                },
                "rules": [
                    {
                        "apiGroups": ["apps"], "apiVersions": ["v1"],
                        "resources": ["statefulsets"], "operations": ["CREATE", "UPDATE"],
                    },
                    {
                        "apiGroups": [""], "apiVersions": ["v1"],
                        "resources": ["pods"], "operations": ["CREATE"],
                    },
                ],
            }],
        });
        space.apply(&webhook.to_string()).expect("a webhook");
        Self
    }
}

impl Drop for ImageWebhook {
    fn drop(&mut self) {
        let kind = "mutatingwebhookconfiguration";
        let _ = kubectl(&["delete", "--ignore-not-found", kind, NAME]);
    }
}

fn serve(listener: &TcpListener, config: &Arc<ServerConfig>, images: &Arc<(String, String)>) {
    for stream in listener.incoming().flatten() {
        let _ = stream.set_read_timeout(Some(REQUEST_TIMEOUT));
        let Ok(connection) = ServerConnection::new(config.clone()) else {
            continue;
        };
        let images = images.clone();
        std::thread::spawn(move || {
            let stream = StreamOwned::new(connection, stream);
            answer_calls(stream, "Content-Type: application/json\r\n", |call| {
                review(&call.body, &images).to_string()
            });
        });
    }
}

/// The answer to the API server: a patch that replaces images.
fn review(asked: &Value, (from, to): &(String, String)) -> Value {
    let request = &asked["request"];
    let spec = match request["kind"]["kind"].as_str() {
        Some("Pod") => "/spec",
        _ => "/spec/template/spec",
    };
    let mut patch = Vec::new();
    for list in ["initContainers", "containers"] {
        let containers = request["object"].pointer(&format!("{spec}/{list}"));
        let containers = containers.and_then(Value::as_array).into_iter().flatten();
        for (index, container) in containers.enumerate() {
            if container["image"] == **from {
                let path = format!("{spec}/{list}/{index}/image");
                patch.push(json!({"op": "replace", "path": path, "value": to}));
            }
        }
    }
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {
            "uid": request["uid"],
            "allowed": true,
            "patchType": "JSONPatch",
            "patch": base64(Value::from(patch).to_string().as_bytes()),
        },
    })
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_replaced_where_they_are_asked_for() {
        let images = ("a".to_owned(), "b".to_owned());
        let review = |kind: &str, object: &Value| {
            let asked = json!({"request": {"uid": "7", "kind": {"kind": kind}, "object": object}});
            review(&asked, &images)["response"]["patch"].clone()
        };
        let spec = json!({"containers": [{"image": "c"}, {"image": "a"}]});
        let replaces = |path: &str| {
            let patch = json!([{"op": "replace", "path": path, "value": "b"}]);
            Value::from(base64(patch.to_string().as_bytes()))
        };
        assert_eq!(
            review("Pod", &json!({"spec": spec})),
            replaces("/spec/containers/1/image")
        );
        let set = json!({"spec": {"template": {"spec": spec}}});
        assert_eq!(
            review("StatefulSet", &set),
            replaces("/spec/template/spec/containers/1/image")
        );
    }
}
