//! The register in a ConfigMap passes the suite of all registers, on a real API server.

use std::sync::Arc;
use std::time::Duration;

use kube::Config;
use percolator_e2e::{Kube, Namespace};
use percolator_register::conformance::{self, Bed, FaultyProxy, FaultyRegister};
use percolator_register::{BoxFuture, LoadError, Register, SwapError};
use percolator_register_kube::KubeRegister;

/// A machine that runs a whole Kubernetes may take long to answer.
const LONG_TIMEOUT: Duration = Duration::from_secs(60);
/// For answers that never come.
const SHORT_TIMEOUT: Duration = Duration::from_secs(3);

struct KubeBed<'a> {
    config: &'a Config,
    space: &'a Namespace,
    name: String,
}

impl KubeBed<'_> {
    fn register(&self, config: Config) -> KubeRegister {
        KubeRegister::new(config, self.space.name(), &self.name).expect("a configuration")
    }
}

impl Bed for KubeBed<'_> {
    fn open(&self) -> BoxFuture<'_, Arc<dyn Register>> {
        Box::pin(async {
            let register = self
                .register(self.config.clone())
                .with_timeout(LONG_TIMEOUT);
            Arc::new(register) as Arc<dyn Register>
        })
    }

    fn open_faulty(&self) -> BoxFuture<'_, FaultyRegister> {
        Box::pin(async {
            let server = &self.config.cluster_url;
            let address = server.authority().expect("an address").to_string();
            let proxy = FaultyProxy::start(address).await;
            let mut config = self.config.clone();
            let url = format!("https://{}", proxy.address);
            config.cluster_url = url.parse().expect("an address");
            let register = self.register(config).with_timeout(SHORT_TIMEOUT);
            FaultyRegister {
                register: Arc::new(register),
                fault: proxy.fault,
            }
        })
    }
}

async fn config() -> Config {
    Config::infer().await.expect("a kubeconfig")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_register_in_a_configmap() {
    let Some(kube) = Kube::find() else { return };
    let (space, config) = (kube.namespace("register"), config().await);
    conformance::run(async |case| KubeBed {
        config: &config,
        space: &space,
        name: case.replace('_', "-"),
    })
    .await;
}

/// As an operator makes it, so that servers need not be allowed to create any.
#[tokio::test]
async fn an_object_that_was_made_before_keeps_what_it_has() {
    let Some(kube) = Kube::find() else { return };
    let (space, config) = (kube.namespace("register-made"), config().await);
    let register = KubeRegister::new(config, space.name(), "made").expect("a configuration");
    let register = register.with_timeout(LONG_TIMEOUT);
    let make = ["create", "configmap", "made", "--from-literal=note=kept"];
    space.kubectl(&make).expect("a configmap");
    let label = ["label", "configmap", "made", "team=a"];
    space.kubectl(&label).expect("a label");
    assert_eq!(register.load().await, Ok(None));
    let first = register.swap(None, b"one".to_vec()).await.expect("a swap");
    let second = register.swap(Some(first), b"two".to_vec()).await;
    let second = second.expect("a swap");
    let object = space.get("configmap", "made").expect("the object");
    assert_eq!(object["metadata"]["labels"]["team"], "a", "{object}");
    assert_eq!(object["data"]["note"], "kept", "{object}");

    // Somebody else's change is a conflict, after which the value is the same, with another version.
    let label = ["label", "configmap", "made", "team=b", "--overwrite"];
    space.kubectl(&label).expect("a label");
    let error = register.swap(Some(second), b"three".to_vec()).await;
    let Err(SwapError::Conflict { found, .. }) = error else {
        panic!("{error:?}");
    };
    let loaded = register.load().await.expect("a load").expect("a value");
    assert_eq!((&*loaded.value, Some(loaded.version)), (&b"two"[..], found));
    let third = register.swap(found, b"three".to_vec()).await;
    assert!(third.is_ok_and(|third| third > second));

    // A handle that has seen its value doesn't take its absence for a first start.
    let delete = ["delete", "configmap", "made"];
    space.kubectl(&delete).expect("an end");
    let error = register.load().await.unwrap_err();
    assert!(matches!(error, LoadError::Damaged { .. }), "{error}");
}

#[tokio::test]
async fn what_is_missing_or_not_allowed_is_reported() {
    let Some(kube) = Kube::find() else { return };
    let (space, config) = (kube.namespace("register-refused"), config().await);
    let open = |namespace: &str, name: &str| {
        let register = KubeRegister::new(config.clone(), namespace, name);
        register
            .expect("a configuration")
            .with_timeout(LONG_TIMEOUT)
    };
    let nowhere = open("no-such-namespace", "register");
    assert_eq!(nowhere.load().await, Ok(None));
    let error = nowhere.swap(None, Vec::new()).await.unwrap_err();
    assert!(matches!(error, SwapError::Unavailable { .. }), "{error}");
    let misnamed = open(space.name(), "Not_A_Name");
    let error = misnamed.swap(None, Vec::new()).await.unwrap_err();
    assert!(matches!(error, SwapError::Refused { .. }), "{error}");
    let immutable = "
apiVersion: v1
kind: ConfigMap
metadata: {name: immutable}
immutable: true
";
    space.apply(immutable).expect("a configmap");
    let register = open(space.name(), "immutable");
    let error = register.swap(None, Vec::new()).await.unwrap_err();
    assert!(matches!(error, SwapError::Refused { .. }), "{error}");
}
